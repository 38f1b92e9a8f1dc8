/* Shared by the files of device/cpu/. Private. */
#pragma once

#include "base/memory.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"
#include "device/cpu/onednn.h"
#include "device/cpu/vec.h"
#include "device/host_impl.h"

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else /* the thread counts in the loops' pragmas are then unused */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#endif

typedef struct tr_cpu_device {
    tr_host_device host;
    const tr_cpu_kernels *kernels;
    dnnl_engine_t engine;
    dnnl_stream_t stream; /* in order, in the caller's thread */
} tr_cpu_device;

#define TR_CPU_PREPARE(UPPER, lower)                                                               \
    tr_status tr_cpu_prepare_##lower(const tr_op_context *context, const tr_op_desc *desc,         \
                                     tr_op **out);
TR_OP_LIST(TR_CPU_PREPARE)
#undef TR_CPU_PREPARE

/* The product with one row of A, without oneDNN; leaves *out NULL for what oneDNN multiplies. */
tr_status tr_cpu_prepare_matmul_row(const tr_op_context *context, const tr_op_desc *desc,
                                    tr_op **out);

/* The product of BF16 by AMX, without oneDNN; leaves *out NULL for what oneDNN multiplies. */
tr_status tr_cpu_prepare_matmul_tiles(const tr_op_context *context, const tr_op_desc *desc,
                                      tr_op **out);

/* Completes the sums c[count], count <= TR_BLOCK, of C's elements (row, at) and on: scale, bias and
 * residual. */
void tr_cpu_matmul_finish(const tr_cpu_kernels *kernels, const tr_matmul_desc *d,
                          const tr_op_args *args, int64_t row, int64_t at, int64_t count, float *c);

/* Memory of the random bits of TR_CPU_DRAWN elements. */
enum { TR_CPU_DRAWN = 4096 };
typedef struct tr_cpu_draws {
    uint32_t words[TR_CPU_DRAWN / 2 + 8 + TR_CPU_PHILOX_MORE];
    uint16_t kept[TR_CPU_DRAWN];
} tr_cpu_draws;

/* Returns the random half-words of elements at .. at + n - 1 of a run, n <= TR_CPU_DRAWN, in
 * `memory`. For a use each is turned into its own (tr_rounding_draw). */
const uint16_t *tr_cpu_draw(const tr_op *op, const tr_op_args *args, const tr_quantize_desc *d,
                            int64_t at, int64_t n, tr_cpu_draws *memory);

/* Returns the number of threads for a loop over `elements` elements: 1 if waking others would cost
 * more than the loop. No result depends on it. */
static inline int tr_cpu_threads(const tr_op *op, int64_t elements) {
    return elements < 16384 ? 1 : op->context.device->threads;
}

/* Returns true when the processor is Intel's. */
bool tr_cpu_is_intel(void);

/* Returns this thread's index within a parallel loop. */
static inline int tr_cpu_thread(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

static inline const tr_cpu_kernels *tr_cpu_kernels_of(const tr_op *op) {
    return ((const tr_cpu_device *)op->context.device)->kernels;
}
