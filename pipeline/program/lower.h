/* Lowering: turns a checked schedule and a stage table into every rank's program, with transfers,
 * reductions, waits and the place of every buffer in the rank's arena.
 *
 * Messages of one directed pair of ranks are numbered from 0 in the sender's order, and the
 * receiver's RECVs follow that order: an action that needs message k is preceded by the RECVs of
 * all messages up to k that have not been taken. Stages on one rank exchange no messages: the
 * output's place is the input's. */
#pragma once

#include "layers/stage.h"
#include "pipeline/orders/schedule.h"
#include "pipeline/program/arena.h"

/* An offset in the arena: nothing is there. */
#define TR_NO_PLACE SIZE_MAX

typedef struct tr_instr {
    /* F I W B RECV SEND WAIT_SENT REDUCE_START REDUCE_WAIT GATHER_START GATHER_WAIT OFFLOAD
     * OFFLOAD_WAIT FETCH FETCH_WAIT; FINISH is the last of a program. */
    tr_action action;
    int memory; /* F I W B: index into tr_program.memory; else -1 */
    bool adds;  /* as in tr_stage_io */
    /* RECV, SEND, WAIT_SENT: one message, of one edge. */
    int edge;
    int peer;        /* rank of the line */
    int message;     /* number on its channel in this program */
    int send;        /* WAIT_SENT: index of its SEND */
    size_t offset;   /* RECV, SEND, GATHER_START, GATHER_WAIT: in the arena; TR_NO_PLACE: the values
                        have memory of their own */
    size_t bytes;    /* of the message; REDUCE_START, GATHER_START: of the bucket on this rank;
                        OFFLOAD, FETCH: of the copies */
    size_t gathered; /* GATHER_START: as in tr_bucket */
    int first_copy, copies; /* OFFLOAD, FETCH: in tr_program.copy */
    /* REDUCE_START: the stage's last W or B starts the sum while it runs, after the share `ready`
     * of its time, in which it completes the bucket; not early: the sum starts here. */
    bool early;
    /* GATHER_WAIT: the stage's next action waits while it runs, after the share `ready` of its
     * time, when it comes to the layer of the bucket. */
    double ready;
} tr_instr;

/* A place of an edge tensor of an action. */
typedef enum tr_place_role {
    TR_PLACE_IN,
    TR_PLACE_OUT,
    TR_PLACE_DOUT,
    TR_PLACE_DIN,
    TR_PLACE_ROLES
} tr_place_role;
typedef struct tr_place {
    int edge;
    tr_place_role role;
    size_t offset;
} tr_place;

/* An action's memory, as offsets in the arena. TR_NO_PLACE: no bytes, or not alive. */
typedef struct tr_action_memory {
    int first_piece, pieces; /* of its stage, in tr_program.piece */
    size_t backward;         /* B: the place of I..W */
    size_t unkept;           /* F: the place of tensors that are built again */
    int first_place, places; /* in tr_program.place */
} tr_action_memory;

/* One piece that an OFFLOAD copies to the host's memory, or a FETCH back: offsets in the arena, and
 * in the memory of the host. */
typedef struct tr_program_copy {
    size_t offset, host, bytes;
} tr_program_copy;

/* The memory of a program by class; `item` in the same order as `key`. */
typedef enum tr_item_kind {
    TR_ITEM_FI = TR_LIFE_FI,
    TR_ITEM_FW = TR_LIFE_FW,
    TR_ITEM_IW = TR_LIFE_IW,
    TR_ITEM_INPUT, /* an edge's tensor on the receiving stage, received or made on this rank */
    TR_ITEM_SEND,  /* an activation until it is sent */
    TR_ITEM_SEND_GRADIENT, /* a gradient until it is sent */
    TR_ITEM_GRADIENT,      /* an output's gradient, received or made on this rank */
    TR_ITEM_UNKEPT,        /* tensors of an F that are built again */
    TR_ITEM_BUCKET,        /* a bucket's weight gradients (tr_program_bucket) */
    TR_ITEM_VALUES,        /* the values of a bucket's parameters, from one gather to the next */
    TR_ITEM_FETCHED_FI,    /* blocks F..I and F..W after a FETCH */
    TR_ITEM_FETCHED_FW,
    TR_ITEM_KINDS
} tr_item_kind;
typedef struct tr_item_key {
    tr_item_kind kind;
    int owner;       /* stage of a block, edge of a slot */
    int micro_batch; /* of weight gradients and values their bucket */
} tr_item_key;

/* The place of a bucket's weight gradients in the arena. */
typedef struct tr_program_bucket {
    int stage, bucket;
    size_t offset, bytes;
} tr_program_bucket;

typedef struct tr_program {
    int rank, ranks, stages, micro_batches, edges;
    bool forward_only;
    int count;
    tr_instr *instr;
    int memories;
    tr_action_memory *memory;
    int pieces;
    size_t *piece; /* [pieces]: offsets in the arena */
    int places;
    tr_place *place;
    int items; /* of a block one for each size of its pieces */
    tr_arena_item *item;
    tr_item_key *key;
    size_t *offset;                       /* of the items' buffers */
    int buckets;                          /* of weight gradients in the arena; none in validation */
    tr_program_bucket *bucket;            /* [buckets]: by stage and number */
    size_t bucket_bytes;                  /* of all of them */
    size_t bucket_peak;                   /* the most of them alive at one instruction */
    size_t value_bytes, value_peak;       /* the same of values that are gathered, each once */
    int copies;                           /* of OFFLOADs and FETCHes */
    tr_program_copy *copy;                /* [copies] */
    size_t host_bytes;                    /* of the host's memory, for them */
    size_t scratch_bytes, scratch_offset; /* one block for all actions, at the arena's end */
    size_t arena_bytes;                   /* with scratch */
    size_t live_peak_bytes;               /* with scratch: most bytes alive at one instruction */
} tr_program;

/* Returns the first instruction after the last action of the same stage before the action at `at`:
 * from there up to `at` are the GATHER_WAITs that it makes. */
static inline int tr_program_waits(const tr_program *program, int at) {
    const int stage = program->instr[at].action.stage;
    while (at > 0 && !(tr_action_computes(program->instr[at - 1].action) &&
                       program->instr[at - 1].action.stage == stage))
        at--;
    return at;
}

typedef struct tr_program_set {
    int ranks;
    tr_program *program; /* [ranks] */
} tr_program_set;

/* Lowers a schedule that tr_schedule_check accepts (it is checked again here). A listed schedule
 * keeps its RECV and SEND in place, and starts its reductions at its REDUCE. Otherwise the
 * reductions of a stage's buckets start in its last W. They are waited for before FINISH. Buckets
 * without bytes have no reduction.
 *
 * With gradients in the arena (tr_bucket) a wait also ends those of its bucket, so it comes
 * earlier: before the first action that writes gradients of a stage, the rank waits for all
 * reductions that it has started, except those of the stage that ended last, which hide behind this
 * stage's backward. In a breadth-first order the gradients of two stages are then alive at one
 * time; in an order that begins all stages before the first one ends, those of all stages.
 *
 * With divided or updated values (tr_bucket) tr_lower_gathers adds their gathers.
 *
 * With tr_stage_cost.offload the pieces F..I and F..W of a micro-batch are in the host's memory
 * between its F and its I or B, if the rank has at least three actions in between. OFFLOAD comes
 * after F, and OFFLOAD_WAIT after the next action, behind which the copy hides; FETCH comes before
 * the last action before I or B, and FETCH_WAIT after that.
 *
 * A WAIT_SENT comes before the first instruction that starts, in the step simulated without
 * latency, one mean action after the send is complete and the receiver has taken the message, and
 * at the latest before FINISH. The margin is there because costs are estimates: an early wait stops
 * compute until the transfer ends, while a late one only holds a slot longer. So a program needs no
 * buffer between the ranks: every wait for another rank points forward in the simulated step, and
 * tr_program_prove proves the result, including waits, for any costs.
 *
 * In a program of F alone, with one stage a rank and F in ascending order on all ranks, the
 * WAIT_SENT of a message to the next stage comes before the second F after it at the latest: the
 * ranks before a slow one do not run ahead of it, and without latency the program takes no longer.
 *
 * Fails with TR_ERR_CONFIG from the check, and with TR_ERR_INTERNAL on a table with an edge without
 * bytes or lifetime. The caller releases *out with tr_program_set_destroy. */
tr_status tr_lower(const tr_schedule *schedule, const tr_stage_table *table, tr_program_set **out);

/* Sets arena[ranks] to the bytes of the ranks' arenas in the programs that tr_lower makes, in much
 * less time: does not prove the programs, and gives no buffer a place. Fails like tr_lower. */
tr_status tr_lower_arenas(const tr_schedule *schedule, const tr_stage_table *table, size_t *arena);

void tr_program_set_destroy(tr_program_set *set);
