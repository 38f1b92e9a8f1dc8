/* The collectives of a group over a host transport, and how far they are. Private to comm/. */
#pragma once

#include "comm/rounds.h"
#include "comm/scatter_walk.h"

typedef enum tr_collective_kind {
    TR_COLLECTIVE_REDUCE,  /* of buffer[count] */
    TR_COLLECTIVE_RANGES,  /* a gather of `range` */
    TR_COLLECTIVE_SCATTER, /* a reduction of buffer[n * count] to part[count] */
    TR_COLLECTIVE_PARTS,   /* a gather of buffer[n * count] */
    TR_COLLECTIVE_SUMS     /* a reduction of `sum`, each for the members that get it */
} tr_collective_kind;

typedef struct tr_collective {
    struct tr_collective *next;
    tr_collective_kind kind;
    unsigned char *buffer, *part;
    int64_t count;
    tr_dtype held;  /* of the caller's elements */
    tr_dtype dtype; /* of messages: held, or BF16 that was rounded from FP32 */
    tr_reduce op;
    const tr_gather_range *range; /* [ranges] */
    const tr_scatter_range *sum;  /* [ranges] */
    int ranges;
    const struct tr_group_host *before; /* it begins when collective `ticket` of this group is over;
                                           NULL: at once */
    int64_t ticket;
    double delay;    /* seconds by which it is delayed */
    tr_event *event; /* the stream has computed the data */
} tr_collective;

/* What the first collective waits for. */
typedef enum tr_collective_phase {
    TR_COLLECTIVE_PHASE_DATA, /* its data, and its delay */
    TR_COLLECTIVE_PHASE_COPY_IN,
    TR_COLLECTIVE_PHASE_EXCHANGE, /* the messages of a small piece, or of a rank's part of it */
    TR_COLLECTIVE_PHASE_GATHER,   /* the messages of the other ranks' reduced chunks */
    TR_COLLECTIVE_PHASE_RANGES,   /* the messages of a gather */
    TR_COLLECTIVE_PHASE_SUMS,     /* the messages of a reduction of ranges */
    TR_COLLECTIVE_PHASE_COPY_OUT
} tr_collective_phase;

typedef struct tr_group_host {
    tr_group base;
    tr_rounds *rounds;
    size_t piece_bytes;     /* of a whole buffer in one round */
    size_t slot_bytes;      /* of one rank's place in scratch */
    unsigned char *scratch; /* [n][slot_bytes] */
    const void **source;    /* [n]: where each rank's part of the current chunk is */
    /* Collectives [0, over) have ended; `first` is number `over`. */
    tr_collective *first, **end, *free;
    int64_t started, over;
    tr_collective_phase phase;
    double due; /* when the first one may begin, once its data are computed; 0: not known */
    int64_t at; /* elements of it, or of each of its parts, that have been reduced or gathered */
    /* A gather: the range and byte with which the current round begins; and how many pieces of each
     * member a round has so far. */
    int range;
    size_t byte;
    int *pieces; /* [n] */
    /* [n]: where the round of a reduction of ranges begins, for what member j gets */
    tr_scatter_cursor *cursor;
    const struct tr_group_host *before; /* of the next collective */
    int64_t ticket;
    bool computing; /* a thread adds, packs or unpacks without the lock */
    /* Staged: */
    tr_stream *stream;
    tr_event *copied;
    unsigned char *stage; /* [piece_bytes]; NULL: not staged */
} tr_group_host;

/* --- one round of a gather of ranges (group_ranges.c), under the lock ------------------------- */

/* Returns how many bytes travel for `bytes` bytes of the caller's elements. */
size_t tr_collective_ranges_sent(const tr_collective *collective, size_t bytes);
/* Rounds this rank's pieces of the round to the type of messages, and widens those of all members,
 * in their own memory; without the lock. */
void tr_collective_ranges_pack(const tr_group_host *group);
void tr_collective_ranges_unpack(const tr_group_host *group);
/* Posts the round's messages. */
void tr_collective_ranges_post(tr_group_host *group);
/* Copies this rank's pieces of the round to the pinned buffer, or the other members' from it. */
tr_status tr_collective_ranges_copy(tr_group_host *group, bool in);
/* Continues after the current round; returns false when it was the last one. */
bool tr_collective_ranges_next(tr_group_host *group);

/* --- one piece of a collective of equal parts (group_parts.c), under the lock ----------------- */

/* Returns the elements of each part that the current piece has. */
int64_t tr_collective_parts_count(const tr_group_host *group);
/* Posts the piece's messages. */
void tr_collective_parts_post(tr_group_host *group);
/* Copies the piece's data to the pinned buffer, or its result from it. */
tr_status tr_collective_parts_copy(tr_group_host *group, bool in);
/* Returns where the sum of this rank's elements of the piece goes. */
unsigned char *tr_collective_parts_sum(const tr_group_host *group);

/* --- one round of a reduction of ranges (group_sums.c), under the lock ------------------------ */

/* Rounds the round's summands to the type of messages, in their own memory; without the lock. */
void tr_collective_sums_pack(const tr_group_host *group);
/* Posts the round's messages. */
void tr_collective_sums_post(tr_group_host *group);
/* Adds what this rank gets in the round, and widens it to the caller's type; without the lock. */
void tr_collective_sums_add(const tr_group_host *group);
/* Copies the round's summands to the pinned buffer, or this rank's sums from it. */
tr_status tr_collective_sums_copy(tr_group_host *group, bool in);
/* Continues after the current round; returns false when it was the last one. */
bool tr_collective_sums_next(tr_group_host *group);
