/* Shared by the tests of operators: comparing a case on ref with other devices, and random shapes.
 * Failures are cmocka's. */
#pragma once

#include "support/must.h"
#include "support/op_cases.h"
#include "support/seed.h"

/* ref on one thread. Release with tr_device_close. */
tr_status tr_op_open_ref(tr_device **out);

/* A case in one storage type: its data, and what ref makes of them. */
typedef struct tr_op_check {
    char text[256]; /* the case, for messages */
    uint64_t seed;
    tr_op_data start, want;
} tr_op_check;

/* The same case on a run that adds; false where it adds already, or none of its operands is the
 * gradient of a parameter. */
bool tr_op_case_adding(const tr_op_case *c, tr_op_case *out);

void tr_op_check_open(const tr_op_case *c, tr_dtype storage, uint64_t seed, tr_device *ref,
                      tr_op_check *out);
void tr_op_check_close(tr_op_check *check);
/* Fails unless a run on `where` came within the tolerances of ref. */
void tr_op_check_near(const tr_op_check *check, const tr_op_data *got, const char *where);
/* Runs the case on a device, which must come within the tolerances of ref. Release `got` with
 * tr_op_data_free. */
void tr_op_check_run(const tr_op_check *check, tr_device *device, tr_op_data *got);
/* The same with nothing kept, which must give the bits of another run. */
void tr_op_check_same(const tr_op_check *check, tr_device *device, const tr_op_data *other);
/* Runs the case as its decomposition, if it has one: the result must be near ref's too. ADD_NORM,
 * which rounds where its parts do, must have the bits of `whole`, unless it is NULL. No equal plan
 * may be in use. */
void tr_op_check_parts(const tr_op_check *check, tr_device *device, const tr_op_data *whole);

/* A product up to these sizes, of any layout, with neither types nor an epilogue. */
tr_matmul_desc tr_random_matmul(uint64_t *random, int64_t m, int64_t n, int64_t k);
/* A norm of rows that lie dense, or in groups with something between. */
tr_rmsnorm_desc tr_random_rmsnorm(uint64_t *random);
/* A rotation of any kind, either way, of the first heads of a row. */
tr_rope_desc tr_random_rope(uint64_t *random);
/* Attention of any kind, small; decoding takes no documents. */
tr_attention_desc tr_random_attention(uint64_t *random);
