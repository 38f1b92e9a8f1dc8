/* The one table of operator cases. A case is a description with options; it determines the tensors,
 * how they are filled, and how their values are compared after a run. The same cases compare a
 * device with ref (tr_op_data_compare) and give the inputs of the gradient tests. For a new
 * operator add its tensors to op_data.c and its lines to op_cases.c. */
#pragma once

#include "device/op.h"

enum {
    TR_CASE_IN_PLACE = 1,    /* the output is the input that op.h allows it to be */
    TR_CASE_NO_BIAS = 2,     /* BIAS (VALUE of UPDATE, NORM of FACTOR) is NULL */
    TR_CASE_NO_RESIDUAL = 4, /* RESIDUAL is NULL */
    TR_CASE_EVAL = 8,        /* state->train = 0 */
    TR_CASE_SKIP = 16,       /* state->skip = 1 */
    TR_CASE_F32_OUT = 32,    /* MATMUL: C is f32 though A and B may be narrow */
    TR_CASE_ADDS = 64,       /* the run adds to the gradients of parameters */
    TR_CASE_STORAGE = 128,   /* MATMUL that accumulates: C is of the storage type */
};

typedef struct tr_op_case {
    tr_op_desc desc; /* with dtype f32; tr_op_data_make sets the storage type */
    unsigned options;
} tr_op_case;

/* The storage types that every device has, in which each case runs. */
enum { TR_OP_STORAGES = 3 };
extern const tr_dtype tr_op_storages[TR_OP_STORAGES];
extern const tr_op_case tr_op_cases[];
extern const size_t tr_op_case_count;
/* Cases with more elements than one thread or block handles, for implementations that divide the
 * work. */
extern const tr_op_case tr_op_large_cases[];
extern const size_t tr_op_large_case_count;

typedef enum tr_fill {
    TR_FILL_NORMAL, /* standard normal numbers, rounded to the dtype */
    TR_FILL_GAMMA,  /* 1 + normal / 4 */
    TR_FILL_SPREAD, /* normal, but the first two of every `limit` elements differ by at least 1: the
                       layer norm of a nearly constant row is far less exact than its arithmetic */
    TR_FILL_SQUARE, /* normal^2, as second moments are */
    TR_FILL_MEAN_SQUARE, /* 1 + normal^2: the mean square of many numbers is far from 0, and what is
                            divided by its root no larger than the dividend by much */
    TR_FILL_TOKENS,      /* i32 in [0, limit) */
    TR_FILL_STARTS,      /* i32: 0, later at times the index within `limit` rows, else as before */
    TR_FILL_LABELS,      /* i32 in [0, limit), about every fifth -1 */
    TR_FILL_LOSSES,      /* pairs of a positive loss and a number of tokens */
    TR_FILL_NAN,         /* a gradient that is to be written, not read */
    TR_FILL_STATE,       /* the case's step state */
    TR_FILL_DERIVED      /* a forward operator's output, computed by ref from the other tensors */
} tr_fill;

typedef struct tr_op_tensor {
    bool present;
    tr_dtype dtype;
    int64_t count;
    tr_fill fill;
    int64_t limit; /* of tokens and labels; elements in a row */
    bool output;   /* other tensors must not change a bit */
    int64_t terms; /* number of terms of the sums that give an element; 0: exact to the bit */
    double scale; /* root mean square of such a sum, by the distribution of its inputs: an output of
                     few elements may be small by cancellation, but its rounding errors are not; 0
                     where nothing cancels */
    double inner; /* eps of rounded intermediate values (probabilities in bf16 or f16); 0: none */
    int alias;    /* index of the tensor that has the same memory, or -1 */
} tr_op_tensor;

/* A case with its data in host memory. */
typedef struct tr_op_data {
    tr_op_desc desc;
    tr_op_tensor tensor[TR_OP_MAX_TENSORS];
    void *memory[TR_OP_MAX_TENSORS]; /* NULL where absent or an alias */
    tr_step_state state;
    int64_t sample;
    bool adds;
} tr_op_data;

/* Makes the data of a case in this storage type from a seed. Release it with tr_op_data_free. */
tr_status tr_op_data_make(const tr_op_case *c, tr_dtype storage, uint64_t seed, tr_op_data *out);
tr_status tr_op_data_clone(const tr_op_data *data, tr_op_data *out);
void tr_op_data_free(tr_op_data *data);

/* Makes the description's operands from memory[n], which they index; NULL: absent. Leaves out
 * operands that the description does not use. */
void tr_op_data_operands(const tr_op_desc *desc, void *const *memory, int n,
                         tr_tensor t[TR_OP_MAX_TENSORS]);

/* Prepares the operator, runs it on `stream` (NULL: the compute stream) on copies in device memory,
 * and brings all tensors back into `data`. */
tr_status tr_op_data_run(tr_op_data *data, tr_device *device, tr_stream *stream);

/* Compares the tensors after two runs: inputs bit for bit; an element of an output within
 *   eps(dtype) |want| + (4 eps(f32) sqrt(terms) + inner) max(max|want of the tensor|, scale),
 * where a subnormal number of FP16 has the eps of the least normal one.
 * Returns true when they agree; otherwise `message` names the worst tensor and element. */
bool tr_op_data_compare(const tr_op_data *got, const tr_op_data *want, char *message, size_t size);

/* Writes "matmul bf16 [m 3 n 5 k 7 ...] options", for messages. */
void tr_op_case_describe(const tr_op_case *c, tr_dtype storage, char *text, size_t size);

double tr_dtype_eps(tr_dtype dtype); /* the distance from 1 to the next number */
/* Read and write element i as a double (rounded) in f32, bf16, f16, f64, i32 or u8. */
double tr_element(const void *memory, tr_dtype dtype, int64_t i);
void tr_element_set(void *memory, tr_dtype dtype, int64_t i, double value);
