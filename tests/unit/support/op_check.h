/* Shared by the tests of operators: comparing a case on ref with other devices, and random shapes.
 * Failures are cmocka's. */
#pragma once

#include "support/must.h"
#include "support/op_cases.h"
#include "support/seed.h"

/* Opens ref on one thread. Release it with tr_device_close. */
tr_status tr_op_open_ref(tr_device **out);

/* A case in one storage type: its data, and ref's results. */
typedef struct tr_op_check {
    char text[256]; /* the case, for messages */
    uint64_t seed;
    tr_op_data start, want;
} tr_op_check;

/* Makes the same case for a run that adds to gradients. Returns false when it adds already, or when
 * no operand is the gradient of a parameter. */
bool tr_op_case_adding(const tr_op_case *c, tr_op_case *out);

void tr_op_check_open(const tr_op_case *c, tr_dtype storage, uint64_t seed, tr_device *ref,
                      tr_op_check *out);
void tr_op_check_close(tr_op_check *check);
/* Fails unless the results of a run on `where` are within the tolerances of ref's. */
void tr_op_check_near(const tr_op_check *check, const tr_op_data *got, const char *where);
/* Runs the case on a device, and fails unless its results are within the tolerances of ref's.
 * Release `got` with tr_op_data_free. */
void tr_op_check_run(const tr_op_check *check, tr_device *device, tr_op_data *got);
/* Runs the case again without keeping the results, and fails unless they have the same bits. */
void tr_op_check_same(const tr_op_check *check, tr_device *device, const tr_op_data *other);
/* Runs the case as its decomposition, if it has one: the result must be near ref's too. ADD_NORM
 * and XENT, which round where their parts do, must have the bits of `whole`, unless it is NULL. No
 * equal plan may be in use. */
void tr_op_check_parts(const tr_op_check *check, tr_device *device, const tr_op_data *whole);

/* Return random descriptions. Of a product: up to these sizes, in any layout, without types or an
 * epilogue. */
tr_matmul_desc tr_random_matmul(uint64_t *random, int64_t m, int64_t n, int64_t k);
/* Of a norm: rows that are dense, or in groups with gaps. */
tr_rmsnorm_desc tr_random_rmsnorm(uint64_t *random);
/* Of a rotation: any kind, forward or back, of the first heads of a row. */
tr_rope_desc tr_random_rope(uint64_t *random);
/* Of attention: any kind, small; decoding without documents. */
tr_attention_desc tr_random_attention(uint64_t *random);
