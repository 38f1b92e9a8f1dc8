/* The cases in which test_op_cuda compares the cuda device with ref, each in one storage type. The
 * emulated device has fewer and smaller ones (TRIREME_EMULATED), because it runs on the host. */
#pragma once

#include "support/op_cases.h"

typedef struct tr_op_listed {
    tr_op_case op;
    tr_dtype storage;
    char name[256]; /* "test_SET: the case" */
} tr_op_listed;

enum { TR_OP_LISTED = 4096 };
typedef struct tr_op_case_list {
    tr_op_listed op[TR_OP_LISTED];
    int count;
    const char *set; /* the name of the set that is listed */
    uint64_t random; /* state of random cases */
} tr_op_case_list;

/* Append a set of cases: the operators of GPT-2 124M in BF16; the shared tables; shapes at which
 * kernels take another path; random shapes; random products. */
void tr_op_list_models(tr_op_case_list *l);
void tr_op_list_table(tr_op_case_list *l);
void tr_op_list_large(tr_op_case_list *l);
void tr_op_list_ways(tr_op_case_list *l);
void tr_op_list_random(tr_op_case_list *l);
void tr_op_list_products(tr_op_case_list *l);
