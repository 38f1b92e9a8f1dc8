/* Runs a model's stages under a schedule: every rank is a thread with its own copy of the model,
 * and runs lowered programs over the local transport. The test describes the model. */
#pragma once

#include "layers/layer_stage.h"
#include "pipeline/program/run.h"
#include "support/generate_order.h"
#include "support/pipeline_cases.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum {
    SEED = 1234,
    LAYERS = 6,
    BATCH = 2,
    SEQ = 6,
    TOKENS = BATCH * SEQ,
    MICRO_BATCHES = 3,
    MOST_RANKS = 4,
    MOST_MEMORIES = 400,
    MOST_VALUES = 1 << 16
};

typedef struct outcome {
    double loss[MICRO_BATCHES][2 * BATCH];       /* of the last step: the first two are used */
    double validation[MICRO_BATCHES][2 * BATCH]; /* of each sequence */
    float value[MOST_VALUES]; /* of all layers, one after the other: written by `finish` */
} outcome;

struct rank_state;

/* The model to run, of LAYERS layers. */
typedef struct rig_model {
    int steps;
    int vocab; /* of tokens and labels */
    /* Makes and prepares r->model; is_here says which layers will run. */
    tr_status (*make)(struct rank_state *r);
    /* Lists the step inputs other than tokens and labels; returns their number. May be NULL. */
    int (*inputs)(struct rank_state *r, tr_step_data *input);
    /* After a training step: fills the outcome's values of the layers that are here. */
    tr_status (*finish)(struct rank_state *r, int step);
} rig_model;

/* One layout; read-only while its ranks run, except the outcome. */
typedef struct layout {
    const rig_model *model;
    const tr_schedule *schedule, *forward;
    const int *first;
    tr_dtype dtype;
    int skip; /* micro-batches that are skipped before those of the schedule */
    tr_world *world[MOST_RANKS];
    int32_t tokens[MICRO_BATCHES * TOKENS], labels[MICRO_BATCHES * TOKENS];
    outcome *result;
    char failure[MOST_RANKS][512];
} layout;

typedef struct rank_state {
    layout *l;
    int rank;
    tr_device *device;
    tr_group *tp;
    tr_model *model;
    tr_stage_table table;
    tr_links *links;
    tr_program_set *set[2];
    tr_stage *stage[LAYERS];
    tr_runner *runner[2];
    double loss[MICRO_BATCHES][2 * BATCH]; /* of the step that ran last, where the last layer is */
    void *memory[MOST_MEMORIES];           /* to free */
    int memories;
} rank_state;

tr_status take(rank_state *r, size_t bytes, void *out);

bool is_here(const rank_state *r, int layer);

/* Returns the outcome of the model under the schedule, with stages cut at first[] and the
 * micro-batches from `skip` on. The caller frees it. */
outcome *run_layout(const rig_model *model, const tr_schedule *schedule, const int *first,
                    tr_dtype dtype, int skip);

/* Fails unless the outcomes are the same bit for bit. */
void expect_same(const rig_model *model, const outcome *want, const tr_schedule *schedule,
                 const int *first, tr_dtype dtype);

/* Cuts of LAYERS layers into 1 to 6 stages. */
extern const int cut1[], cut2[], cut2b[], cut3[], cut4[], cut6[];

/* Makes GPipe's order for six stages in a loop over three ranks, with I and W apart and each W
 * after all I of its stage. */
tr_schedule *split_schedule(void);

void expect_generated(const rig_model *model, const outcome *want, const char *name, int ranks,
                      int stages, const int *first, tr_dtype dtype);

/* Fails unless the model's outcome is the same as on one rank under every schedule, on one to four
 * ranks and in one to six stages. Returns that outcome; the caller frees it. */
outcome *expect_every_layout(const rig_model *model, tr_dtype dtype);
