/* The engine of one rank: model, stages, program, memory and optimizer, put together for one
 * layout. It takes training and validation steps; it knows no files and no config. */
#pragma once

#include "comm/mesh.h"
#include "partition/layout.h"
#include "pipeline/program/run.h"
#include "train/fetch.h"
#include "train/optimizer.h"
#include "train/store.h"

typedef struct tr_engine_desc {
    tr_world *world;
    tr_device *device;
    tr_mesh mesh;
    tr_model_config model;
    int64_t batch, micro_batch; /* sequences of a whole step; of one micro-batch on one data rank */
    tr_dtype dtype;
    bool deterministic; /* as a tr_op_context says it */
    bool documents;     /* as tr_model_shape says */
    /* Of mesh.degree[pp] ranks and the step's micro-batches; used while the engine is created. */
    const tr_schedule *schedule;
    uint64_t seed;
    double max_norm; /* 0: no clipping */
    tr_adamw_config adamw;
    size_t memory; /* bytes that this rank may plan; 0: no limit */
    /* Called for the step inputs that the layers of this rank ask for. */
    tr_fetch_fn fetch;
    void *fetch_context;
    /* Told of every instruction of a program, before and after: the watchdog's board. May be NULL.
     */
    void (*observe)(void *context, const tr_instr *instr, bool begin);
    void *observe_context;
} tr_engine_desc;

typedef struct tr_step_result {
    double loss, grad_norm; /* nats a token; of the mean gradient */
    double tokens;          /* that counted */
    bool finite;            /* false: nothing was changed */
    bool stop;              /* a rank had asked to stop when the step's end ran */
    /* The failure of a rank's fetch, the same on all ranks, as this thread's error; nothing was
     * changed then. */
    tr_status unread;
} tr_step_result;

typedef struct tr_engine tr_engine;

/* Collective over the world. Memory is allocated once, here; parameters have no values yet.
 * TR_ERR_FIT, before any of it is allocated, when the plan's total is more than desc->memory.
 * TR_ERR_CONFIG for sizes that do not go together. */
tr_status tr_engine_create(const tr_engine_desc *desc, tr_engine **out);
void tr_engine_destroy(tr_engine *engine);

/* One training step. `step` is from 1; `lr` of this step; optimizer_step counts steps not skipped,
 * this one included. Collective. */
tr_status tr_engine_step(tr_engine *engine, int64_t step, int64_t optimizer_step,
                         int64_t first_sample, double lr, tr_step_result *out);
/* Mean loss of `batches` whole batches of validation samples from 0, fewer when one is unread;
 * `out` is as a step's. Collective. */
tr_status tr_engine_validate(tr_engine *engine, int64_t batches, tr_step_result *out);
/* tr_optimizer_stop_word; valid as long as the engine. */
_Atomic double *tr_engine_stop_word(tr_engine *engine);

tr_store *tr_engine_store(tr_engine *engine);
const tr_model *tr_engine_model(const tr_engine *engine);
/* The training step's programs of the pipeline line. */
const tr_program_set *tr_engine_programs(const tr_engine *engine);
/* Computed costs of the stages, and the edges between them. */
const tr_stage_table *tr_engine_table(const tr_engine *engine);
/* The plan by which memory was allocated, with what NCCL has taken. */
void tr_engine_plan(const tr_engine *engine, tr_memory_plan *out);
/* "0-3 | 4-6 | ...": the layers of each stage; at most `size` bytes. */
void tr_engine_cut(const tr_engine *engine, char *text, size_t size);
