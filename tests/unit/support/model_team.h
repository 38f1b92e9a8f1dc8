/* Runs a whole model on some tensor ranks, each on its thread, and collects its results as global
 * tensors. */
#pragma once

#include "support/model_rig.h"

#include <pthread.h>

#define EPS_F32  0x1p-24
#define EPS_BF16 0x1p-8

enum { BATCH = 2, SEQ = 5, MOST_TENSORS = 64, MOST_RANKS = 4 };

#ifdef __SANITIZE_THREAD__
/* oneDNN's own locks are not instrumented: under ThreadSanitizer the cpu device reports false
 * races. */
enum { DEVICES = 1 };
#else
enum { DEVICES = 2 };
#endif
extern const char *const devices[];

/* Gradients of global tensors in the order in which layers list them, each use of a tied one
 * separately. */
typedef struct result {
    double loss[2];
    int tensors;
    int64_t count[MOST_TENSORS];
    double *grad[MOST_TENSORS];
    char name[MOST_TENSORS][TR_NAME_SIZE];
    int use[MOST_TENSORS];
    bool partial[MOST_TENSORS]; /* each tensor rank has a part of the gradient */
} result;

void result_free(result *x);

/* The data that the threads of one model share. */
typedef struct team {
    const char *device;
    const tr_model_config *config;
    tr_dtype dtype;
    int64_t batch, seq;
    bool apart;
    void (*fill)(rig *r);
    tr_world *world[MOST_RANKS];
    rig rig[MOST_RANKS];
} team;

typedef struct member {
    team *team;
    int rank;
} member;

typedef struct collection {
    const tr_param *param;
    double *grad;
} collection;

void run_filled(const char *device, const tr_model_config *config, tr_dtype dtype, int ranks,
                bool apart, void (*fill)(rig *r), result *out);

/* The same for micro-batches of another shape. */
void run_shape(const char *device, const tr_model_config *config, tr_dtype dtype, int64_t batch,
               int64_t seq, int ranks, bool apart, void (*fill)(rig *r), result *out);

double norm(const double *a, int64_t n);

/* Fails unless losses are within `loss` relative, and every gradient norm-wise within `grad` of the
 * larger of its own norm and `floor` times the global norm. */
void compare(const result *x, const result *reference, double loss, double grad, double floor);

/* Fails unless losses and gradients have the same bits, except the gradients of norms and other
 * parameters that only with sequence parallelism are sums of the tensor ranks' parts. These are
 * within 1e-5 of their own norm, or of a thousandth of the global one. */
void compare_sequence(const result *sequence, const result *without);

/* Fails unless every gradient has the same bits. */
void compare_bits(const result *a, const result *b);
