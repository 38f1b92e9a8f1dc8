/* oneDNN's products, in the same terms for its versions 2 and 3. Private to device/cpu/. */
#pragma once

#include "base/status.h"
#include "device/tensor.h"

#include <dnnl.h>
#include <dnnl_debug.h>

/* Returns a failure of oneDNN as TR_ERR_INTERNAL, because shapes and types were checked before. */
#define TR_DNNL(expr)                                                                              \
    do {                                                                                           \
        dnnl_status_t tr_dnnl_ = (expr);                                                           \
        if (tr_dnnl_ != dnnl_success)                                                              \
            return TR_FAIL(TR_ERR_INTERNAL, "oneDNN: %s failed: %s", #expr,                        \
                           dnnl_status2str(tr_dnnl_));                                             \
    } while (0)

/* Returns true when oneDNN uses this instruction set here, which is all bits of its constant. */
static inline bool tr_onednn_uses(unsigned isa) {
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

/* A matrix of FP32 or BF16. */
typedef struct tr_onednn_matrix {
    int64_t rows, columns, ld; /* as multiplied: after transposition; ld of the stored matrix */
    bool transposed;
    tr_dtype dtype;
} tr_onednn_matrix;

enum {
    TR_ONEDNN_SRC,
    TR_ONEDNN_WEIGHTS,
    TR_ONEDNN_DST,
    TR_ONEDNN_BIAS,
    TR_ONEDNN_RESIDUAL,
    TR_ONEDNN_OPERANDS
};

/* DST = SRC * WEIGHTS + BIAS + RESIDUAL, or added to DST; or DST = scale * SRC * WEIGHTS. */
typedef struct tr_onednn_matmul {
    const tr_onednn_matrix *operand[TR_ONEDNN_OPERANDS]; /* bias and residual may be NULL */
    float scale;                                         /* 0: 1 */
    bool adds;
} tr_onednn_matmul;

/* Each operand's argument for dnnl_primitive_execute. */
extern const int tr_onednn_argument[TR_ONEDNN_OPERANDS];

/* The implementations of a product for the calling thread's number of OpenMP threads, oneDNN's
 * proposal first, one at a time. */
typedef struct tr_onednn_list {
    dnnl_primitive_desc_t current; /* the list's; NULL past the end */
#if DNNL_VERSION_MAJOR < 3
    dnnl_matmul_desc_t matmul; /* the iterator reads it */
    dnnl_primitive_desc_iterator_t iterator;
#endif
} tr_onednn_list;

/* Opens a list, which is empty after a failure and where oneDNN has no implementation. The caller
 * closes it, and does not move it before. */
tr_status tr_onednn_list_open(const tr_onednn_matmul *matmul, dnnl_engine_t engine,
                              tr_onednn_list *list);
void tr_onednn_list_close(tr_onednn_list *list);

/* Goes on to the next implementation; the list is not past its end. */
void tr_onednn_list_next(tr_onednn_list *list);

/* Returns the current implementation, which the caller destroys; NULL past the end and without
 * memory. */
dnnl_primitive_desc_t tr_onednn_list_take(const tr_onednn_list *list);

/* Returns the name of an implementation, which lives as long as that; "" for NULL. */
const char *tr_onednn_name(const_dnnl_primitive_desc_t implementation);

/* Makes the view of an operand, without data. The caller destroys it. */
tr_status tr_onednn_view(const tr_onednn_matrix *x, dnnl_engine_t engine, dnnl_memory_t *out);

/* Makes the view of an implementation's scratch, without data. The caller destroys it. */
tr_status tr_onednn_scratch_view(const_dnnl_primitive_desc_t implementation, dnnl_engine_t engine,
                                 size_t *bytes, dnnl_memory_t *out);
