/* Launchers of the program's own kernels. They enqueue on a stream and return the launch's status.
 * Shapes, pointers and `adds` as in device/op.h, the state in device memory. Private. */
#pragma once

#include "base/dtype.h"
#include "device/elementwise.h"
#include "device/op.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sums over rows (columns.cuh): rows that a block sums before the second kernel adds the blocks'
 * sums, and the scratch of `sums` sums of `width` columns. At most 512 chunks. */
static inline TR_HOSTDEVICE int64_t tr_cuda_chunk_rows(int64_t rows) {
    return rows <= 512 * 128 ? 128 : (rows + 511) / 512;
}
static inline size_t tr_cuda_columns_scratch(int64_t rows, int64_t width, int sums) {
    const int64_t chunk_rows = tr_cuda_chunk_rows(rows);
    return (size_t)((rows + chunk_rows - 1) / chunk_rows * width * sums) * sizeof(float);
}

/* rows.cu */
cudaError_t tr_cuda_launch_add(cudaStream_t stream, tr_dtype dtype, int64_t count, const void *a,
                               const void *b, void *y);
cudaError_t tr_cuda_launch_cast(cudaStream_t stream, tr_dtype from, tr_dtype to, int64_t count,
                                const void *x, void *y);
cudaError_t tr_cuda_launch_add_rows(cudaStream_t stream, tr_dtype dtype, int64_t rows,
                                    int64_t width, const void *x, void *y);
cudaError_t tr_cuda_launch_activation(cudaStream_t stream, const tr_rows_desc *desc, const void *x,
                                      void *y);
cudaError_t tr_cuda_launch_activation_dgrad(cudaStream_t stream, const tr_rows_desc *desc,
                                            const void *dy, const void *x, void *dx);
/* partial: tr_cuda_columns_scratch of 1 sum. */
cudaError_t tr_cuda_launch_bias_grad(cudaStream_t stream, tr_dtype dtype, int64_t rows,
                                     int64_t width, const void *dy, float *dbias, float *partial,
                                     bool adds);

/* norm.cu */
cudaError_t tr_cuda_launch_layernorm(cudaStream_t stream, const tr_layernorm_desc *d, const void *x,
                                     const void *gamma, const void *beta, void *y, float *means,
                                     float *rstds);
cudaError_t tr_cuda_launch_layernorm_dgrad(cudaStream_t stream, const tr_layernorm_desc *d,
                                           const void *dy, const void *x, const void *gamma,
                                           const float *means, const float *rstds,
                                           const void *residual, void *dx);
/* partial: tr_cuda_columns_scratch of 2 sums. */
cudaError_t tr_cuda_launch_layernorm_wgrad(cudaStream_t stream, const tr_layernorm_desc *d,
                                           const void *dy, const void *x, const float *means,
                                           const float *rstds, float *dgamma, float *dbeta,
                                           float *partial, bool adds);

/* rmsnorm.cu */
cudaError_t tr_cuda_launch_rmsnorm(cudaStream_t stream, const tr_rmsnorm_desc *desc, const void *x,
                                   const void *gamma, void *y, float *rstds, void *kept);
cudaError_t tr_cuda_launch_rmsnorm_dgrad(cudaStream_t stream, const tr_rmsnorm_desc *desc,
                                         const void *dy, const void *x, const void *gamma,
                                         const float *rstds, const void *residual, void *dx,
                                         void *kept);
/* partial: tr_cuda_columns_scratch of 1 sum. */
cudaError_t tr_cuda_launch_rmsnorm_wgrad(cudaStream_t stream, const tr_rmsnorm_desc *desc,
                                         const void *dy, const void *x, const float *rstds,
                                         float *dgamma, float *partial, bool adds);

/* glu.cu */
cudaError_t tr_cuda_launch_glu(cudaStream_t stream, const tr_glu_desc *desc, const void *x,
                               void *y);
cudaError_t tr_cuda_launch_glu_dgrad(cudaStream_t stream, const tr_glu_desc *desc, const void *dy,
                                     const void *x, void *dx);

/* rope.cu; starts may be NULL. The table is a kernel argument. */
enum { TR_CUDA_ROPE_PAIRS = 128 };
typedef struct tr_cuda_rope_table {
    uint64_t turns[TR_CUDA_ROPE_PAIRS]; /* per position, in 2^-64 of a turn */
    float magnitude;
} tr_cuda_rope_table;
cudaError_t tr_cuda_launch_rope(cudaStream_t stream, const tr_rope_desc *desc,
                                const tr_cuda_rope_table *table, const tr_step_state *state,
                                const int32_t *starts, void *x);
cudaError_t tr_cuda_launch_norm_rope(cudaStream_t stream, const tr_norm_rope_desc *desc,
                                     const tr_cuda_rope_table *table, const tr_step_state *state,
                                     const int32_t *starts, void *x, const void *gamma,
                                     float *rstds, void *kept);
cudaError_t tr_cuda_launch_norm_rope_dgrad(cudaStream_t stream, const tr_norm_rope_desc *desc,
                                           const tr_cuda_rope_table *table, const int32_t *starts,
                                           void *dx, const void *x, const void *gamma,
                                           const float *rstds, void *dnormed);

/* decode.cu; scores: batch * heads * seq floats. */
cudaError_t tr_cuda_launch_attention_decode(cudaStream_t stream, const tr_attention_desc *d,
                                            const tr_step_state *state, const void *qkv,
                                            void *kcache, void *vcache, void *y, float *scores);

/* embed.cu */
cudaError_t tr_cuda_launch_embed(cudaStream_t stream, const tr_embed_desc *d, const int32_t *tokens,
                                 const void *table, void *y);
cudaError_t tr_cuda_launch_position(cudaStream_t stream, const tr_embed_desc *d,
                                    const tr_step_state *state, const void *x, const void *table,
                                    const int32_t *starts, void *y);
/* Adds to the table, as embed_wgrad does. starts: NULL without documents; keys: with them, as for
 * embed_wgrad. */
cudaError_t tr_cuda_launch_position_wgrad(cudaStream_t stream, const tr_embed_desc *d,
                                          const void *dy, const int32_t *starts, float *table,
                                          uint64_t *keys);
/* keys: tr_cuda_sort_keys(rows) numbers, rows rounded up to a power of two; rows < 2^32. */
cudaError_t tr_cuda_launch_embed_wgrad(cudaStream_t stream, const tr_embed_desc *d, const void *dy,
                                       const int32_t *tokens, float *table, uint64_t *keys);
static inline int64_t tr_cuda_sort_keys(int64_t rows) {
    int64_t keys = 2;
    while (keys < rows) keys *= 2;
    return keys;
}

/* dropout.cu; sample is that of tr_op_args. */
cudaError_t tr_cuda_launch_dropout_add(cudaStream_t stream, const tr_dropout_desc *d,
                                       const tr_step_state *state, int64_t sample, const void *x,
                                       const void *bias, const void *residual, void *y);
cudaError_t tr_cuda_launch_dropout_dgrad(cudaStream_t stream, const tr_dropout_desc *d,
                                         const tr_step_state *state, int64_t sample, const void *dy,
                                         void *dx);

/* add_norm.cu; beta and means: not with rms. */
cudaError_t tr_cuda_launch_add_norm(cudaStream_t stream, const tr_add_norm_desc *desc,
                                    const tr_step_state *state, int64_t sample, void *sum,
                                    const void *bias, const void *residual, const void *gamma,
                                    const void *beta, void *y, float *means, float *rstds);

/* loss.cu */
cudaError_t tr_cuda_launch_xent_max(cudaStream_t stream, const tr_xent_desc *d, const void *logits,
                                    float *maxima);
cudaError_t tr_cuda_launch_xent_sum(cudaStream_t stream, const tr_xent_desc *d, const void *logits,
                                    const int32_t *labels, const float *maxima, float *sums);
cudaError_t tr_cuda_launch_xent_loss(cudaStream_t stream, const tr_xent_desc *d,
                                     const int32_t *labels, const float *sums, double *loss);
cudaError_t tr_cuda_launch_xent_dgrad(cudaStream_t stream, const tr_xent_desc *d,
                                      const tr_step_state *state, void *logits,
                                      const int32_t *labels, const float *maxima,
                                      const float *sums);
/* units: multiprocessors; shared: bytes of shared memory of each. */
cudaError_t tr_cuda_launch_xent(cudaStream_t stream, const tr_xent_desc *d, int units,
                                int64_t shared, const tr_step_state *state, void *logits,
                                const int32_t *labels, float *maxima, float *sums);

/* optimizer.cu; sums: those of the blocks, also of TR_SUMSQ_WHOLE. */
cudaError_t tr_cuda_launch_sumsq(cudaStream_t stream, const tr_sumsq_desc *d, const void *x,
                                 double *out, double *sums);
cudaError_t tr_cuda_launch_step_finish(cudaStream_t stream, const tr_step_finish_desc *d,
                                       const double *losses, const double *norms,
                                       tr_step_state *state);
/* Operands of UPDATE, DIRECTION and DESCEND. value is NULL where it is the master, and scales are
 * NULL unless the states have 8 bits. */
typedef struct tr_cuda_update {
    const void *grad;
    void *master, *m, *v, *value, *u;
    float *m_scales, *v_scales;
    int64_t sample, element;
} tr_cuda_update;
cudaError_t tr_cuda_launch_update(cudaStream_t stream, const tr_update_desc *d,
                                  const tr_step_state *state, const tr_cuda_update *o);
cudaError_t tr_cuda_launch_direction(cudaStream_t stream, const tr_update_desc *d,
                                     const tr_step_state *state, const tr_cuda_update *o);
cudaError_t tr_cuda_launch_descend(cudaStream_t stream, const tr_descend_desc *d,
                                   const tr_step_state *state, const double *norms,
                                   const tr_cuda_update *o);
cudaError_t tr_cuda_launch_rescale(cudaStream_t stream, const tr_rescale_desc *d, float *x,
                                   const double *norms);

/* narrow.cu: the same of operands in fewer bits than FP32; UPDATE if it steps, or else
 * DIRECTION. */
cudaError_t tr_cuda_launch_update_narrow(cudaStream_t stream, const tr_update_desc *d,
                                         const tr_step_state *state, const tr_cuda_update *o,
                                         bool steps);
cudaError_t tr_cuda_launch_descend_bf16(cudaStream_t stream, const tr_descend_desc *d,
                                        const tr_step_state *state, const double *norms,
                                        const tr_cuda_update *o);

/* factor.cu; partial: tr_cuda_factor_partial doubles; scratch, on 16 bytes: 1 + rows doubles and
 * rows + cols floats; norm may be NULL. */
static inline int64_t tr_cuda_factor_blocks(int64_t rows) {
    return (rows + tr_factor_block(rows) - 1) / tr_factor_block(rows);
}
/* Sums of columns by block of rows, and of rows by block of columns. */
static inline int64_t tr_cuda_factor_partial(int64_t rows, int64_t cols) {
    return tr_cuda_factor_blocks(rows) * cols + tr_sumsq_blocks(cols) * rows;
}
cudaError_t tr_cuda_launch_factor_sums(cudaStream_t stream, const tr_factor_desc *d,
                                       const tr_step_state *state, const void *x, double *rows,
                                       double *cols, double *partial);
cudaError_t tr_cuda_launch_factor(cudaStream_t stream, const tr_factor_desc *d,
                                  const tr_step_state *state, const void *x, const double *rows,
                                  const double *cols, float *r, float *c, double *norm, float *u,
                                  void *scratch);

/* quantize.cu */
cudaError_t tr_cuda_launch_quantize(cudaStream_t stream, const tr_quantize_desc *d,
                                    const tr_step_state *state, int64_t sample, int64_t element,
                                    bool adds, const float *x, void *y);

/* matmul.cu: t by TR_MATMUL_*, as MATMUL. */
cudaError_t tr_cuda_launch_matmul(cudaStream_t stream, const tr_matmul_desc *desc,
                                  const tr_tensor *t, bool adds);

/* attention.cu: heads of at most TR_ATTENTION_MAX_DIM; starts may be NULL; scratch:
 * TR_ATTENTION_ROW_BYTES for each of batch * heads * seq rows. */
enum { TR_ATTENTION_MAX_DIM = 256, TR_ATTENTION_ROW_BYTES = 8 };
cudaError_t tr_cuda_launch_attention(cudaStream_t stream, const tr_attention_desc *d,
                                     const void *qkv, const int32_t *starts, void *y, float *lse);
cudaError_t tr_cuda_launch_attention_dgrad(cudaStream_t stream, const tr_attention_desc *d,
                                           const void *dy, const void *qkv, const void *y,
                                           const float *lse, const int32_t *starts, void *dqkv,
                                           void *scratch);
/* first[batch, seq]: the first token that each token sees. */
cudaError_t tr_cuda_launch_attention_first(cudaStream_t stream, const tr_attention_desc *d,
                                           const int32_t *starts, int32_t *first);

#ifdef __cplusplus
}
#endif
