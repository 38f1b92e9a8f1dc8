/* The engine of one rank: model, stages, program, memory and optimizer for one layout. It takes
 * training and validation steps, and does not depend on files or the config. */
#pragma once

#include "comm/mesh.h"
#include "data/fetch.h"
#include "partition/layout.h"
#include "pipeline/program/run.h"
#include "train/decoder.h"
#include "train/optimizer.h"
#include "train/store.h"

typedef struct tr_engine_desc {
    tr_world *world;
    tr_device *device;
    tr_mesh mesh;
    tr_model_config model;
    int64_t batch, micro_batch; /* sequences of a step; of one micro-batch on one data rank */
    tr_dtype dtype;
    bool deterministic;         /* see tr_op_context */
    struct tr_plan_book *plans; /* which the operators take; NULL: the proposed ones */
    bool documents;             /* see tr_model_shape */
    int64_t seq;                /* tokens of a sequence; 0: model.context */
    /* Takes no training step: without gradients and optimizer state. */
    bool forward_only;
    bool decodes; /* makes a decoder (tr_engine_decoder) */
    /* Of mesh.degree[pp] ranks and the step's micro-batches; used while the engine is created. */
    const tr_schedule *schedule;
    /* [smaller_count]: batches below `batch` that training steps may take (tr_engine_set_batch);
     * copied. */
    const tr_smaller_batch *smaller;
    int smaller_count;
    uint64_t seed;
    double max_norm; /* 0: no clipping */
    tr_optim_config optimizer;
    bool noise;       /* steps measure the noise scale */
    int zero;         /* parallel.zero: what the data ranks divide */
    tr_reduce reduce; /* how ranks sum gradients: parallel.reduce */
    /* As in tr_layout_desc. The caller allocates the copy that `background` plans. */
    int64_t offload_first, offload_stages;
    bool background;
    size_t memory;       /* bytes that this rank may plan; 0: no limit */
    bool memory_is_free; /* that is the device's free memory, and not device.memory */
    /* As in tr_layout_desc; used while the engine is created. */
    const double *room;
    const char *cut;
    /* Reads the step inputs that the layers of this rank ask for. A thread of the engine calls it
     * for the next training step, until the engine is destroyed, and never at the same time as
     * another thread. */
    tr_fetch_fn fetch;
    void *fetch_context;
    /* Called before and after every instruction of a program, for the watchdog's board. May be
     * NULL. */
    void (*observe)(void *context, const tr_instr *instr, bool begin);
    void *observe_context;
    const tr_layer_probe *probe; /* of the layers' operators; NULL: none */
} tr_engine_desc;

typedef struct tr_step_result {
    double loss, grad_norm;  /* nats a token; of the mean gradient */
    double tokens;           /* that counted; 0: not finite */
    bool finite;             /* false: no parameter was changed */
    bool skipped;            /* no parameter was changed */
    double loss_scale;       /* of the step's gradients */
    tr_noise_estimate noise; /* NAN: not measured */
    bool stop;               /* a rank had asked to stop before the end of the step ran */
    /* The failure of a rank's fetch, the same on all ranks, also as this thread's error. No
     * parameter was changed then. */
    tr_status unread;
} tr_step_result;

typedef struct tr_engine tr_engine;

/* Creates the engine and allocates all its memory; parameters have no values yet. Collective over
 * the world; the ranks agree on a failure. Fails with TR_ERR_FIT before any allocation when the
 * plan's total is more than desc->memory, and with TR_ERR_CONFIG when sizes contradict each
 * other. */
tr_status tr_engine_create(const tr_engine_desc *desc, tr_engine **out);
void tr_engine_destroy(tr_engine *engine);

/* Takes one training step. `step` counts from 1; `lr` is this step's; optimizer_step counts steps
 * that were not skipped since the optimizer's states were zero, including this one. Collective. */
tr_status tr_engine_step(tr_engine *engine, int64_t step, int64_t optimizer_step,
                         int64_t first_sample, double lr, tr_step_result *out);
/* Makes later training steps take `batch` sequences, and the step after each read ahead for `next`:
 * desc->batch, which both are at first, or one of desc->smaller. */
void tr_engine_set_batch(tr_engine *engine, int64_t batch, int64_t next);
/* Makes later steps change no parameter when their loss or gradient norm is above its limit; 0: no
 * limit. */
void tr_engine_set_limits(tr_engine *engine, double loss, double norm);
/* Makes later steps multiply the loss of a token by `scale`, a power of two, and divide the sums of
 * gradients by it; at first it is 1. */
void tr_engine_set_loss_scale(tr_engine *engine, double scale);
/* Computes the mean loss of `batches` batches of validation samples from 0, of fewer when a fetch
 * fails. Fills `out` like a step, except grad_norm and finite; the loss is NAN when no label
 * counts. Collective. */
tr_status tr_engine_validate(tr_engine *engine, int64_t batches, tr_step_result *out);
/* The loss of a sequence: the sum over its labels that count, in nats, and their number. */
typedef struct tr_sequence_loss {
    double nats, labels;
} tr_sequence_loss;
/* Computes the loss of each sequence of one batch, which `fetch` reads as samples first .. first +
 * batch - 1 of a validation. *sequence is [batch], in their order, the same on every rank, and
 * valid until the next step. Fills `out` like tr_engine_validate. Collective. */
tr_status tr_engine_evaluate(tr_engine *engine, tr_fetch_fn fetch, void *context, int64_t first,
                             tr_step_result *out, const tr_sequence_loss **sequence);
/* Returns tr_optimizer_stop_word's pointer; it is valid as long as the engine. */
_Atomic double *tr_engine_stop_word(tr_engine *engine);

/* Sets *out to the decoder of one text with the engine's parameters, memory and channels, for use
 * until the next step; needs desc->decodes. Gathers the values that this rank lacks.
 * Collective. */
tr_status tr_engine_decode(tr_engine *engine, tr_decoder **out);
/* Returns the seconds in which this rank has waited for sums over its tensor ranks
 * (tr_group_waited). */
double tr_engine_tensor_waited(const tr_engine *engine);
/* Completes the values of parameters, of which a training step leaves those of other data ranks'
 * portions outdated (tr_store). Call it before other code reads the store's values between steps;
 * validations and the decoder complete them by themselves. Collective. */
tr_status tr_engine_complete(tr_engine *engine);
tr_store *tr_engine_store(tr_engine *engine);
const tr_model *tr_engine_model(const tr_engine *engine);
/* Returns the programs of all ranks of the pipeline of a training step with this batch; with
 * forward_only those of validation. */
const tr_program_set *tr_engine_programs(const tr_engine *engine, int64_t batch);
/* Returns the layout of the model; it is valid as long as the engine. */
const tr_layout *tr_engine_layout(const tr_engine *engine);
/* Returns true when NCCL adds gradients of three or more ranks in an order of its own, which then
 * depends on parallel.zero and the cut. */
bool tr_engine_sums_freely(const tr_engine *engine);
/* Fills *out with the plan by which memory was allocated, including NCCL's memory. */
void tr_engine_plan(const tr_engine *engine, tr_memory_plan *out);
