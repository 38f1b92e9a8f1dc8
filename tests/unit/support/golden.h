/* Golden files: PyTorch's results for small models. tests/golden/make.py writes them and describes
 * their datasets. */
#pragma once

#include "layers/param.h"

enum { GOLDEN_PARAMS = 64 };

/* A parameter's place in the flat arrays. */
typedef struct golden_param {
    char name[TR_NAME_SIZE];
    int64_t at, count;
} golden_param;

/* PyTorch's distances in one precision from the FP64 values. */
typedef struct golden_distances {
    double logits, gradient[GOLDEN_PARAMS], after[GOLDEN_PARAMS];
} golden_distances;

typedef struct golden {
    char name[256]; /* of the file */
    char *config;   /* lines key=value */
    int params;
    golden_param param[GOLDEN_PARAMS];
    int64_t count; /* elements of all parameters */
    int64_t steps, batch, seq, vocab;
    int32_t *tokens, *labels;            /* [steps, batch, seq] */
    int32_t *starts;                     /* likewise; NULL: no documents */
    double *weights, *gradients, *after; /* [count] */
    double *logits;                      /* [batch, seq, vocab] */
    double *lr, *losses, *norms, *valid; /* [steps] */
    golden_distances bf16, fp16;
} golden;

/* Reads a file. Ends the program with a sentence when it is not a golden file. */
void golden_read(const char *path, golden *out);
void golden_free(golden *g);
/* Returns the parameter of that name, or NULL. */
const golden_param *golden_find(const golden *g, const char *name);
