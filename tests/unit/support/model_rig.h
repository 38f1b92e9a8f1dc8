/* A whole model for tests, on one tensor rank, each layer of which reads the one before. It has
 * memory for every lifetime and fills it with NaN when the lifetime ends, so that a buffer used
 * outside of its lifetime turns the results into NaN. Host devices only. */
#pragma once

#include "base/memory.h"
#include "base/philox.h"
#include "layers/model.h"
#include "support/elements.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Ends the test program on failure, because the caller may run on a thread, where cmocka cannot
 * jump. */
#define RIG_TRY(expr)                                                                              \
    do {                                                                                           \
        if ((expr) != TR_OK) {                                                                     \
            (void)fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, tr_error_message(),      \
                          tr_error_trace());                                                       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { RIG_LAYERS = 8 };

typedef struct rig {
    tr_device *device;
    tr_world *world;
    tr_group *tp;
    tr_model *model;
    tr_layer_env env;
    int64_t rows, sample;
    bool adds;
    size_t tensor_bytes; /* of (batch, seq, width) */
    tr_step_state *state;
    char *tensor[RIG_LAYERS + 1];  /* x of each layer; [0] and the last are not used */
    char *dtensor[RIG_LAYERS + 1]; /* their gradients */
    char **piece[RIG_LAYERS], *scratch[RIG_LAYERS];
    char *cache[RIG_LAYERS];
    int32_t *tokens, *labels;
    double *loss;
    float *logits;
} rig;

/* Opens the rig. `world` is this rank's one of `tp` local worlds; the tensor group is opened over
 * all of them. */
void rig_open(rig *r, const char *device, tr_world *world, const tr_model_config *config,
              tr_dtype dtype, int64_t batch, int64_t seq, bool decode);

void rig_close(rig *r);

/* --- parameters ------------------------------------------------------------------------------- */

tr_param *rig_param(const tr_model *model, int index);

typedef struct rig_index {
    int64_t *index, first;
} rig_index;

/* Returns element i of the gradient. */
double rig_grad(const tr_param *param, int64_t i);

float rig_get(const tr_param *param, tr_dtype dtype, int64_t i);

void rig_set(tr_param *param, tr_dtype dtype, int64_t i, float value);

void rig_fill(rig *r);

typedef struct rig_values {
    tr_param *param;
    tr_dtype dtype;
    uint64_t name;
    bool norm;
} rig_values;

/* Fills every element with a value that depends only on its tensor's name and its place; weights of
 * norms are around 1. */
void rig_fill_named(rig *r);

/* --- running ---------------------------------------------------------------------------------- */

double rig_forward(rig *r);

/* Returns rig_forward with `value` as element i of an FP32 parameter. */
double rig_forward_with(rig *r, tr_param *param, int64_t i, float value);

/* Prepares for the first micro-batch, which must write every gradient and read none. */
void rig_begin_gradients(rig *r);

/* Runs F, I and W of the whole model. The first call after rig_begin_gradients writes the
 * gradients, later ones add to them. apart: every I runs before the first W, otherwise I and W run
 * layer by layer. */
void rig_accumulate(rig *r, bool apart);

void rig_backward(rig *r, bool apart);

/* Runs one token a row through a rig opened for decoding; fills r->logits[batch, vocab]. */
void rig_decode(rig *r, int64_t position);

/* Returns log(sum(exp(logits[0..vocab)))). */
double rig_log_sum_exp(const float *logits, int64_t vocab);
