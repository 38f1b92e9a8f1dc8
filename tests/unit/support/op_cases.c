#include "support/op_cases.h"

/* Sizes are odd on purpose: tails of vectors, single rows and columns, more than one block. */
#define MATMUL(m_, n_, k_, ...)                                                                    \
    {                                                                                              \
        .kind = TR_OP_MATMUL, .matmul = {.m = m_, .n = n_, .k = k_, __VA_ARGS__ }                  \
    }
#define ROWS(KIND, rows_, width_)                                                                  \
    {                                                                                              \
        .kind = TR_OP_##KIND, .rows = {.rows = rows_, .width = width_ }                            \
    }
#define NORM(KIND, rows_, width_)                                                                  \
    {                                                                                              \
        .kind = TR_OP_##KIND, .layernorm = {.rows = rows_, .width = width_, .eps = 1e-5f }         \
    }
#define RMSNORM(KIND, rows_, width_, ...)                                                          \
    {                                                                                              \
        .kind = TR_OP_##KIND, .rmsnorm = {                                                         \
            .rows = rows_,                                                                         \
            .width = width_,                                                                       \
            .eps = 1e-5f,                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define GLU(KIND, rows_, width_, activation_)                                                      \
    {                                                                                              \
        .kind = TR_OP_##KIND, .glu = {                                                             \
            .rows = rows_,                                                                         \
            .width = width_,                                                                       \
            .activation = TR_ACTIVATION_##activation_                                              \
        }                                                                                          \
    }
#define ROPE(rows_, seq_, heads_, size_, ld_, ...)                                                 \
    {                                                                                              \
        .kind = TR_OP_ROPE, .rope = {                                                              \
            .rows = rows_,                                                                         \
            .seq = seq_,                                                                           \
            .heads = heads_,                                                                       \
            .head_size = size_,                                                                    \
            .ld = ld_,                                                                             \
            .theta = 10000,                                                                        \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define LLAMA3                                                                                     \
    .scaling = {                                                                                   \
        .kind = TR_ROPE_LLAMA3, .original = 64, .factor = 8, .low_factor = 1, .high_factor = 4}
#define YARN .scaling = {.kind = TR_ROPE_YARN, .original = 64, .factor = 4}
#define NORM_ROPE(KIND, rows_, seq_, heads_, size_, ld_, ...)                                      \
    {                                                                                              \
        .kind = TR_OP_##KIND, .norm_rope = {                                                       \
            .eps = 1e-6,                                                                           \
            .rope = {.rows = rows_,                                                                \
                     .seq = seq_,                                                                  \
                     .heads = heads_,                                                              \
                     .head_size = size_,                                                           \
                     .ld = ld_,                                                                    \
                     .theta = 10000,                                                               \
                     __VA_ARGS__}                                                                  \
        }                                                                                          \
    }
#define ACTIVATION(KIND, rows_, width_, activation_)                                               \
    {                                                                                              \
        .kind = TR_OP_##KIND, .rows = {                                                            \
            .rows = rows_,                                                                         \
            .width = width_,                                                                       \
            .activation = TR_ACTIVATION_##activation_                                              \
        }                                                                                          \
    }
#define ATTENTION(KIND, batch_, seq_, heads_, kv_heads_, size_, ...)                               \
    {                                                                                              \
        .kind = TR_OP_##KIND, .attention = {                                                       \
            .batch = batch_,                                                                       \
            .seq = seq_,                                                                           \
            .heads = heads_,                                                                       \
            .kv_heads = kv_heads_,                                                                 \
            .head_size = size_,                                                                    \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define EMBED(KIND, rows_, width_, begin_, vocab_)                                                 \
    {                                                                                              \
        .kind = TR_OP_##KIND, .embed = {                                                           \
            .rows = rows_,                                                                         \
            .width = width_,                                                                       \
            .vocab_begin = begin_,                                                                 \
            .vocab = vocab_                                                                        \
        }                                                                                          \
    }
#define POSITION(KIND, rows_, width_, seq_, ...)                                                   \
    {                                                                                              \
        .kind = TR_OP_##KIND, .embed = {.rows = rows_, .width = width_, .seq = seq_, __VA_ARGS__ } \
    }
#define DROPOUT(KIND, rows_, width_, seq_, p_, ...)                                                \
    {                                                                                              \
        .kind = TR_OP_##KIND, .dropout = {                                                         \
            .rows = rows_,                                                                         \
            .width = width_,                                                                       \
            .seq = seq_,                                                                           \
            .p = p_,                                                                               \
            .site = 77,                                                                            \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define ADD_NORM(rows_, width_, seq_, p_, rms_)                                                    \
    {                                                                                              \
        .kind = TR_OP_ADD_NORM, .add_norm = {                                                      \
            .add = {.rows = rows_, .width = width_, .seq = seq_, .p = p_, .site = 77},             \
            .eps = 1e-5f,                                                                          \
            .rms = rms_                                                                            \
        }                                                                                          \
    }
#define XENT(KIND, rows_, begin_, vocab_)                                                          \
    {                                                                                              \
        .kind = TR_OP_##KIND, .xent = {.rows = rows_, .vocab_begin = begin_, .vocab = vocab_ }     \
    }
#define XENT_APART(KIND, rows_, begin_, vocab_, ld_)                                               \
    {                                                                                              \
        .kind = TR_OP_##KIND, .xent = {                                                            \
            .rows = rows_,                                                                         \
            .vocab_begin = begin_,                                                                 \
            .vocab = vocab_,                                                                       \
            .ld = ld_                                                                              \
        }                                                                                          \
    }
#define SUMSQ(n)                                                                                   \
    {                                                                                              \
        .kind = TR_OP_SUMSQ, .sumsq = {.count = n }                                                \
    }
#define SUMSQ_PART(n, part_)                                                                       \
    {                                                                                              \
        .kind = TR_OP_SUMSQ, .sumsq = {.count = n, .part = part_ }                                 \
    }
#define SUMSQ_BF16(n, part_)                                                                       \
    {                                                                                              \
        .kind = TR_OP_SUMSQ, .sumsq = {.count = n, .dtype = TR_BF16, .part = part_ }               \
    }
#define STEP_FINISH(l, n)                                                                          \
    {                                                                                              \
        .kind = TR_OP_STEP_FINISH, .step_finish = {.losses = l, .norms = n }                       \
    }
#define UPDATE(n, ...)    UPDATE_OF(UPDATE, n, __VA_ARGS__)
#define DIRECTION(n, ...) UPDATE_OF(DIRECTION, n, __VA_ARGS__)
#define UPDATE_OF(KIND, n, ...)                                                                    \
    {                                                                                              \
        .kind = TR_OP_##KIND, .update = {                                                          \
            .count = n,                                                                            \
            .beta1 = 0.9f,                                                                         \
            .beta2 = 0.95f,                                                                        \
            .eps = 1e-8f,                                                                          \
            .weight_decay = 0.1f,                                                                  \
            .lr_scale = 0.5,                                                                       \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define RESCALE(n, p)                                                                              \
    {                                                                                              \
        .kind = TR_OP_RESCALE, .rescale = {.count = n, .parts = p }                                \
    }
#define FACTOR_OF(KIND, m, n, all_m, all_n, ...)                                                   \
    {                                                                                              \
        .kind = TR_OP_##KIND, .factor = {                                                          \
            .rows = m,                                                                             \
            .cols = n,                                                                             \
            .all_rows = all_m,                                                                     \
            .all_cols = all_n,                                                                     \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define FACTOR(m, n, all_m, all_n, ...) FACTOR_OF(FACTOR, m, n, all_m, all_n, __VA_ARGS__)
#define FACTOR_SUMS(m, n, ...)          FACTOR_OF(FACTOR_SUMS, m, n, m, n, __VA_ARGS__)
/* A tensor of one row, and two boxes of the columns of a matrix of m rows. */
#define QUANTIZE(n)                                                                                \
    {                                                                                              \
        .kind = TR_OP_QUANTIZE, .quantize = {                                                      \
            .count = n,                                                                            \
            .use = 1,                                                                              \
            .boxes = 1,                                                                            \
            .box = {{.name = 7, .rows = 1, .cols = n, .ld = n}}                                    \
        }                                                                                          \
    }
#define ROUNDING(m, n, k)                                                                          \
    {                                                                                              \
        .count = m * (n + k), .boxes = 2, .box = {                                                 \
            {.name = 7, .rows = m, .cols = n, .ld = n + k, .first = 3, .step = 2 * n},             \
            {.name = 8, .begin = n, .rows = m, .cols = k, .ld = n + k, .step = k + 1}              \
        }                                                                                          \
    }
#define QUANTIZE_BOXES(m, n, k)                                                                    \
    { .kind = TR_OP_QUANTIZE, .quantize = ROUNDING(m, n, k) }
/* Steps of BF16 operands in these boxes. States in 8 bits: test_op_rounded.c. */
#define ROUNDED(KIND, m, n, k, ...)                                                                \
    UPDATE_OF(KIND, m *(n + k), .rounding = ROUNDING(m, n, k), __VA_ARGS__)
#define DESCEND_BF16(m, n, k)                                                                      \
    {                                                                                              \
        .kind = TR_OP_DESCEND, .descend = {                                                        \
            .count = m * (n + k),                                                                  \
            .parts = 2,                                                                            \
            .lr_scale = 0.5,                                                                       \
            .factor = 0.7,                                                                         \
            .bf16_master = true,                                                                   \
            .rounding = ROUNDING(m, n, k)                                                          \
        }                                                                                          \
    }
#define DESCEND_OF(n, p, all)                                                                      \
    {                                                                                              \
        .kind = TR_OP_DESCEND, .descend = {                                                        \
            .count = n,                                                                            \
            .parts = p,                                                                            \
            .whole = all,                                                                          \
            .lr_scale = 0.5,                                                                       \
            .factor = 1,                                                                           \
            .weight_decay = 0.1f                                                                   \
        }                                                                                          \
    }
#define DESCEND(n, p, decay)                                                                       \
    {                                                                                              \
        .kind = TR_OP_DESCEND, .descend = {                                                        \
            .count = n,                                                                            \
            .parts = p,                                                                            \
            .lr_scale = 0.5,                                                                       \
            .factor = 0.7,                                                                         \
            .weight_decay = decay                                                                  \
        }                                                                                          \
    }

#define BIAS_GRAD_OF_A .fused = {.bias_grad = true, .bias_grad_of_a = true}

const tr_dtype tr_op_storages[TR_OP_STORAGES] = {TR_F32, TR_BF16, TR_F16};

const tr_op_case tr_op_cases[] = {
    {MATMUL(1, 1, 1), 0},
    {MATMUL(3, 5, 7), 0},
    {MATMUL(16, 32, 64, .fused.bias = true), 0},
    {MATMUL(33, 17, 65, .fused.bias = true, .trans_b = true), 0},
    {MATMUL(9, 31, 13, .trans_a = true), 0},
    {MATMUL(8, 12, 20, .trans_a = true, .trans_b = true), TR_CASE_F32_OUT},
    {MATMUL(31, 47, 19, .trans_a = true, .accumulate = true), 0},
    {MATMUL(20, 24, 1, .accumulate = true), 0},
    {MATMUL(7, 9, 11, .lda = 15, .ldb = 10, .ldc = 12), 0},
    {MATMUL(33, 24, 8, .ldc = 40, .trans_b = true, .accumulate = true), TR_CASE_STORAGE},
    {MATMUL(33, 40, 8, .accumulate = true, .align = 16), TR_CASE_STORAGE},
    {MATMUL(33, 8, 65, .trans_b = true, .scale = 0.37), 0},
    {MATMUL(33, 8, 24, .lda = 40, .scale = 2, .align = 16), 0},
    {MATMUL(7, 9, 11, .lda = 8, .ldb = 14, .ldc = 11, .trans_a = true, .trans_b = true), 0},
    {MATMUL(6, 8, 128, .ldc = 20, .fused.bias = true, .trans_b = true), TR_CASE_F32_OUT},
    {MATMUL(1, 96, 48, .fused.bias = true, .trans_b = true), 0},
    {MATMUL(130, 70, 200, .fused.bias = true, .trans_b = true), 0},
    {MATMUL(13, 24, 31, .fused.bias = true, .fused.activate = true), 0},
    {MATMUL(40, 72, 64, .fused.activate = true), 0},
    {MATMUL(5, 7, 9, .lda = 11, .fused.bias = true, .fused.activate = true), 0},
    {MATMUL(13, 24, 31, .trans_b = true, .fused.activate_grad = true), 0},
    {MATMUL(5, 7, 9, .ldb = 13, .trans_b = true, .fused.activate_grad = true), 0},
    {MATMUL(13, 24, 31, .fused = {true, .activate = true, .activation = TR_ACTIVATION_GELU_ERF}),
     0},
    {MATMUL(5, 7, 9, .fused = {.activate = true, .activation = TR_ACTIVATION_RELU2}), 0},
    {MATMUL(13, 24, 31, .fused = {.activate_grad = true, .activation = TR_ACTIVATION_GELU_ERF}), 0},
    {MATMUL(5, 7, 9, .fused = {.activate_grad = true, .activation = TR_ACTIVATION_RELU2}), 0},
    {MATMUL(13, 24, 31, .fused.residual = true), 0},
    {MATMUL(5, 9, 7, .fused.bias = true, .fused.residual = true), 0},
    {MATMUL(31, 40, 19, .trans_a = true, .accumulate = true, .fused.bias_grad = true), 0},
    {MATMUL(3, 5, 70, .trans_a = true, .ldc = 8, .fused.bias_grad = true), TR_CASE_F32_OUT},
    {MATMUL(31, 40, 19, .trans_a = true, .accumulate = true, BIAS_GRAD_OF_A), 0},
    {MATMUL(5, 3, 70, .trans_a = true, .ldb = 9, .ldc = 8, BIAS_GRAD_OF_A), TR_CASE_F32_OUT},
    {ROWS(BIAS_GRAD, 1, 1), 0},
    {ROWS(BIAS_GRAD, 67, 35), 0},
    {ROWS(BIAS_GRAD, 200, 96), 0},
    {NORM(LAYERNORM, 1, 3), 0},
    {NORM(LAYERNORM, 7, 33), 0},
    {NORM(LAYERNORM, 19, 128), 0},
    {NORM(LAYERNORM, 3, 1100), 0},
    {NORM(LAYERNORM_DGRAD, 5, 33), 0},
    {NORM(LAYERNORM_DGRAD, 19, 128), TR_CASE_IN_PLACE},
    {NORM(LAYERNORM_DGRAD, 4, 1100), TR_CASE_NO_RESIDUAL},
    {NORM(LAYERNORM_WGRAD, 1, 5), 0},
    {NORM(LAYERNORM_WGRAD, 61, 37), 0},
    {NORM(LAYERNORM_WGRAD, 70, 128), 0},
    {RMSNORM(RMSNORM, 1, 3), 0},
    {RMSNORM(RMSNORM, 7, 33), 0},
    {RMSNORM(RMSNORM, 19, 128), TR_CASE_IN_PLACE},
    {RMSNORM(RMSNORM, 3, 1100), 0},
    {RMSNORM(RMSNORM, 12, 16, .group = 3, .ldx = 80, .ldy = 64), 0},
    {RMSNORM(RMSNORM, 10, 7, .group = 2, .ldx = 15, .ldy = 15), TR_CASE_IN_PLACE},
    {RMSNORM(RMSNORM_DGRAD, 5, 33), 0},
    {RMSNORM(RMSNORM_DGRAD, 19, 128), TR_CASE_IN_PLACE},
    {RMSNORM(RMSNORM_DGRAD, 4, 1100), TR_CASE_NO_RESIDUAL},
    {RMSNORM(RMSNORM_DGRAD, 12, 16, .group = 3, .ldy = 64), TR_CASE_IN_PLACE | TR_CASE_NO_RESIDUAL},
    {RMSNORM(RMSNORM_DGRAD, 10, 7, .group = 2, .ldx = 15, .ldy = 17), 0},
    {RMSNORM(RMSNORM_WGRAD, 1, 5), 0},
    {RMSNORM(RMSNORM_WGRAD, 61, 37), 0},
    {RMSNORM(RMSNORM_WGRAD, 70, 128), 0},
    {RMSNORM(RMSNORM_WGRAD, 141, 24, .group = 3, .ldx = 80, .ldy = 96), 0},
    {GLU(GLU, 1, 1, GELU), 0},
    {GLU(GLU, 13, 37, SILU), 0},
    {GLU(GLU, 5, 1032, SILU), 0},
    {GLU(GLU, 13, 40, GELU), 0},
    {GLU(GLU, 13, 37, GELU_ERF), 0},
    {GLU(GLU, 7, 64, RELU2), 0},
    {GLU(GLU_DGRAD, 13, 37, SILU), 0},
    {GLU(GLU_DGRAD, 5, 1032, SILU), TR_CASE_IN_PLACE},
    {GLU(GLU_DGRAD, 13, 40, GELU), 0},
    {GLU(GLU_DGRAD, 13, 37, GELU_ERF), TR_CASE_IN_PLACE},
    {GLU(GLU_DGRAD, 7, 64, RELU2), 0},
    {ROPE(1, 1, 1, 2, 2), 0},
    {ROPE(14, 7, 3, 10, 34), 0},
    {ROPE(64, 64, 4, 32, 192, .inverse = true), 0},
    {ROPE(14, 7, 3, 16, 80, .documents = true), 0},
    {ROPE(3, 200000, 2, 64, 256, .decode = 1), 0},
    {ROPE(6, 200000, 2, 64, 256, .decode = 3), 0},
    {ROPE(200, 200, 1, 64, 64, .scaling = {.kind = TR_ROPE_LINEAR, .factor = 4}), 0},
    {ROPE(200, 200, 1, 64, 64, LLAMA3), 0},
    {ROPE(200, 200, 1, 64, 64, YARN), 0},
    {ROPE(200, 100, 1, 64, 72, YARN, .inverse = true, .documents = true), 0},
    {NORM_ROPE(NORM_ROPE, 1, 1, 1, 2, 2, .decode = 0), 0},
    {NORM_ROPE(NORM_ROPE, 14, 7, 3, 10, 34, .documents = true), 0},
    {NORM_ROPE(NORM_ROPE, 64, 64, 4, 32, 192, .decode = 0), 0},
    {NORM_ROPE(NORM_ROPE, 6, 3, 2, 256, 520, YARN), 0},
    {NORM_ROPE(NORM_ROPE, 3, 200000, 2, 64, 256, .decode = 1), 0},
    {NORM_ROPE(NORM_ROPE, 6, 200000, 2, 64, 256, .decode = 3), 0},
    {NORM_ROPE(NORM_ROPE_DGRAD, 1, 1, 1, 2, 2, .decode = 0), 0},
    {NORM_ROPE(NORM_ROPE_DGRAD, 14, 7, 3, 10, 34, .documents = true), 0},
    {NORM_ROPE(NORM_ROPE_DGRAD, 64, 64, 4, 32, 192, .decode = 0), 0},
    {NORM_ROPE(NORM_ROPE_DGRAD, 6, 3, 2, 256, 520, YARN), 0},
    {ACTIVATION(ACTIVATION, 1, 1, GELU), 0},
    {ACTIVATION(ACTIVATION, 13, 37, GELU), 0},
    {ACTIVATION(ACTIVATION, 40, 512, GELU), 0},
    {ACTIVATION(ACTIVATION, 13, 37, GELU_ERF), 0},
    {ACTIVATION(ACTIVATION, 13, 37, SILU), 0},
    {ACTIVATION(ACTIVATION, 40, 512, RELU2), 0},
    {ACTIVATION(ACTIVATION_DGRAD, 13, 37, GELU), 0},
    {ACTIVATION(ACTIVATION_DGRAD, 13, 37, GELU_ERF), 0},
    {ACTIVATION(ACTIVATION_DGRAD, 40, 512, SILU), TR_CASE_IN_PLACE},
    {ACTIVATION(ACTIVATION_DGRAD, 13, 37, RELU2), 0},
    {ACTIVATION(ACTIVATION_DGRAD, 40, 512, GELU), TR_CASE_IN_PLACE},
    {ATTENTION(ATTENTION, 1, 1, 1, 1, 1), 0},
    {ATTENTION(ATTENTION, 2, 7, 3, 3, 5), 0},
    {ATTENTION(ATTENTION, 1, 33, 2, 2, 16), 0},
    {ATTENTION(ATTENTION, 2, 70, 1, 1, 32), 0},
    {ATTENTION(ATTENTION, 2, 19, 6, 2, 5), 0},
    {ATTENTION(ATTENTION, 1, 33, 4, 1, 16, .scale = 0.5f), 0},
    {ATTENTION(ATTENTION, 2, 70, 2, 2, 8, .window = 20), 0},
    {ATTENTION(ATTENTION, 1, 9, 2, 1, 8, .window = 1), 0},
    {ATTENTION(ATTENTION, 2, 70, 2, 1, 8, .documents = true), 0},
    {ATTENTION(ATTENTION, 2, 70, 4, 2, 12, .window = 33, .documents = true), 0},
    {ATTENTION(ATTENTION_DGRAD, 1, 1, 1, 1, 4), 0},
    {ATTENTION(ATTENTION_DGRAD, 2, 7, 3, 3, 5), 0},
    {ATTENTION(ATTENTION_DGRAD, 1, 33, 2, 2, 16), 0},
    {ATTENTION(ATTENTION_DGRAD, 2, 70, 1, 1, 32), 0},
    {ATTENTION(ATTENTION_DGRAD, 2, 19, 6, 2, 5), 0},
    {ATTENTION(ATTENTION_DGRAD, 1, 33, 4, 1, 16, .scale = 0.5f), 0},
    {ATTENTION(ATTENTION_DGRAD, 2, 70, 2, 2, 8, .window = 20), 0},
    {ATTENTION(ATTENTION_DGRAD, 1, 9, 2, 1, 8, .window = 1), 0},
    {ATTENTION(ATTENTION_DGRAD, 2, 70, 2, 1, 8, .documents = true), 0},
    {ATTENTION(ATTENTION_DGRAD, 2, 70, 4, 2, 12, .window = 33, .documents = true), 0},
    {ATTENTION(ATTENTION_DECODE, 1, 1, 1, 1, 1, .decode = 1), 0},
    {ATTENTION(ATTENTION_DECODE, 3, 9, 2, 2, 5, .decode = 1), 0},
    {ATTENTION(ATTENTION_DECODE, 2, 64, 3, 3, 16, .decode = 1), 0},
    {ATTENTION(ATTENTION_DECODE, 2, 64, 6, 2, 16, .decode = 1, .scale = 0.5f), 0},
    {ATTENTION(ATTENTION_DECODE, 2, 64, 4, 1, 5, .decode = 1, .window = 7), 0},
    {ATTENTION(ATTENTION_DECODE, 1, 9, 1, 1, 1, .decode = 9), 0},
    {ATTENTION(ATTENTION_DECODE, 3, 19, 2, 2, 5, .decode = 2), 0},
    {ATTENTION(ATTENTION_DECODE, 2, 64, 6, 2, 16, .decode = 16), 0},
    {ATTENTION(ATTENTION_DECODE, 2, 64, 4, 1, 5, .decode = 11, .window = 7), 0},
    {EMBED(EMBED, 1, 1, 0, 3), 0},
    {EMBED(EMBED, 29, 33, 11, 17), 0},
    {EMBED(EMBED_WGRAD, 29, 33, 11, 17), 0},
    {EMBED(EMBED_WGRAD, 150, 8, 0, 10), 0},
    {POSITION(POSITION, 21, 33, 7), 0},
    {POSITION(POSITION, 21, 33, 7), TR_CASE_IN_PLACE},
    {POSITION(POSITION, 3, 20, 9, .decode = 1), 0},
    {POSITION(POSITION, 6, 20, 9, .decode = 3), 0},
    {POSITION(POSITION, 10, 33, 7, .first = 5), 0},
    {POSITION(POSITION_WGRAD, 21, 33, 7), 0},
    {POSITION(POSITION_WGRAD, 5, 3, 5), 0},
    {POSITION(POSITION, 36, 33, 12, .documents = true), 0},
    {POSITION(POSITION_WGRAD, 36, 33, 12, .documents = true), 0},
    {DROPOUT(DROPOUT_ADD, 14, 33, 7, 0.1f), 0},
    {DROPOUT(DROPOUT_ADD, 14, 33, 7, 0.1f), TR_CASE_NO_BIAS | TR_CASE_NO_RESIDUAL},
    {DROPOUT(DROPOUT_ADD, 6, 130, 3, 0.5f), TR_CASE_IN_PLACE | TR_CASE_NO_BIAS},
    {DROPOUT(DROPOUT_ADD, 9, 33, 7, 0.5f, .first = 12), 0},
    {DROPOUT(DROPOUT_ADD, 5, 6, 8, 0.0f), 0},
    {DROPOUT(DROPOUT_ADD, 5, 6, 5, 0.3f), TR_CASE_EVAL},
    {DROPOUT(DROPOUT_DGRAD, 14, 33, 7, 0.1f), 0},
    {DROPOUT(DROPOUT_DGRAD, 6, 130, 3, 0.5f), TR_CASE_IN_PLACE},
    {DROPOUT(DROPOUT_DGRAD, 9, 33, 7, 0.5f, .first = 12), 0},
    {DROPOUT(DROPOUT_DGRAD, 5, 6, 5, 0.3f), TR_CASE_EVAL},
    {ADD_NORM(14, 33, 7, 0.1f, false), 0},
    {ADD_NORM(14, 33, 7, 0.1f, true), 0},
    {ADD_NORM(6, 136, 3, 0, false), TR_CASE_NO_BIAS},
    {ADD_NORM(6, 136, 3, 0.5f, true), TR_CASE_NO_BIAS},
    {ADD_NORM(5, 6, 5, 0.3f, false), TR_CASE_EVAL},
    {ADD_NORM(3, 1100, 3, 0, true), 0},
    {XENT(XENT_MAX, 1, 0, 1), 0},
    {XENT(XENT_MAX, 13, 0, 37), 0},
    {XENT(XENT_SUM, 13, 0, 37), 0},
    {XENT(XENT_SUM, 9, 20, 300), 0},
    {XENT(XENT_LOSS, 1, 0, 2), 0},
    {XENT(XENT_LOSS, 13, 0, 37), 0},
    {XENT(XENT_DGRAD, 1, 0, 2), 0},
    {XENT(XENT_DGRAD, 13, 0, 37), 0},
    {XENT(XENT_DGRAD, 9, 20, 300), 0},
    {XENT_APART(XENT_MAX, 13, 0, 37, 64), 0},
    {XENT_APART(XENT_SUM, 13, 0, 37, 64), 0},
    {XENT_APART(XENT_DGRAD, 13, 0, 37, 64), 0},
    {XENT_APART(XENT_MAX, 9, 20, 301, 303), 0},
    {XENT_APART(XENT_SUM, 9, 20, 301, 303), 0},
    {XENT_APART(XENT_DGRAD, 9, 20, 301, 303), 0},
    {XENT(XENT, 1, 0, 2), 0},
    {XENT(XENT, 13, 0, 37), 0},
    {XENT(XENT, 9, 20, 300), 0},
    {XENT_APART(XENT, 13, 0, 37, 64), 0},
    {XENT_APART(XENT, 9, 20, 301, 303), 0},
    {ROWS(ADD, 13, 37), 0},
    {ROWS(ADD, 40, 64), TR_CASE_IN_PLACE},
    {ROWS(CAST, 13, 37), 0},
    {ROWS(CAST, 40, 64), 0},
    {ROWS(ADD_ROWS, 1, 5), 0},
    {ROWS(ADD_ROWS, 3, 37), 0},
    {ROWS(ADD_ROWS, 8, 1037), 0},
    {ROWS(ADD_ROWS, 5, 64), 0},
    {SUMSQ(0), 0},
    {SUMSQ(1), 0},
    {SUMSQ(4099), 0},
    {SUMSQ(20000), 0},
    {SUMSQ_PART(1, TR_SUMSQ_BLOCKS), 0},
    {SUMSQ_PART(20000, TR_SUMSQ_BLOCKS), 0},
    {SUMSQ_BF16(4099, TR_SUMSQ_WHOLE), 0},
    {SUMSQ_BF16(20000, TR_SUMSQ_BLOCKS), 0},
    {SUMSQ_PART(0, TR_SUMSQ_TOTAL), 0},
    {SUMSQ_PART(4099, TR_SUMSQ_TOTAL), 0},
    {STEP_FINISH(1, 0), 0},
    {STEP_FINISH(5, 17), 0},
    {UPDATE(1, .clip_value = 0), 0},
    {UPDATE(1037, .clip_value = 0), 0},
    {UPDATE(1037, .clip_value = 0.1, .l1 = 0.03, .l2 = 0.2), 0},
    {UPDATE(1037, .rule = TR_UPDATE_SGD), 0},
    {UPDATE(1037, .rule = TR_UPDATE_MOMENTUM, .momentum = 0.9f), 0},
    {UPDATE(1037, .rule = TR_UPDATE_MOMENTUM, .momentum = 0.9f, .nesterov = true), 0},
    {UPDATE(1037, .rule = TR_UPDATE_LION), 0},
    {UPDATE(64, .clip_value = 0), TR_CASE_NO_BIAS},
    {UPDATE(64, .clip_value = 0), TR_CASE_SKIP},
    {UPDATE(64, .rule = TR_UPDATE_LION), TR_CASE_SKIP},
    {DIRECTION(1, .clip_value = 0), 0},
    {DIRECTION(1037, .clip_value = 0.1, .l1 = 0.03, .l2 = 0.2), 0},
    {DIRECTION(1037, .rule = TR_UPDATE_SGD), 0},
    {DIRECTION(1037, .rule = TR_UPDATE_MOMENTUM, .momentum = 0.9f, .nesterov = true), 0},
    {DIRECTION(1037, .rule = TR_UPDATE_LION), 0},
    {DIRECTION(64, .clip_value = 0), TR_CASE_SKIP},
    {DESCEND(1, 0, 0.1f), 0},
    {DESCEND(1037, 0, 0.1f), 0},
    {DESCEND(1037, 1, 0), 0},
    {DESCEND(1037, 3, 0), 0},
    {DESCEND(64, 2, 0), TR_CASE_NO_BIAS},
    {DESCEND(64, 2, 0), TR_CASE_SKIP},
    {RESCALE(1, 1), 0},
    {RESCALE(1037, 3), 0},
    {UPDATE(1037, .rule = TR_UPDATE_ROOT), 0},
    {DIRECTION(1037, .rule = TR_UPDATE_ROOT, .clip_value = 0.1), 0},
    {DIRECTION(64, .rule = TR_UPDATE_ROOT), TR_CASE_SKIP},
    {DESCEND_OF(1037, 2, 2074), 0},
    {DESCEND_OF(64, 1, 64), TR_CASE_SKIP},
    {DIRECTION(1037, .clip_value = 0), TR_CASE_IN_PLACE},
    {DIRECTION(1037, .bf16_grad = true), 0},
    {ROUNDED(UPDATE, 31, 17, 6, .state_dtype = TR_BF16), 0},
    {ROUNDED(UPDATE, 3, 160, 333, .state_dtype = TR_BF16, .bf16_master = true, .bf16_grad = true),
     0},
    {ROUNDED(UPDATE, 5, 128, 70, .bf16_master = true, .rule = TR_UPDATE_MOMENTUM, .l2 = 0.2), 0},
    {ROUNDED(UPDATE, 2, 9, 300, .state_dtype = TR_BF16, .rule = TR_UPDATE_ROOT), 0},
    {ROUNDED(UPDATE, 1, 500, 1, .bf16_master = true, .bf16_grad = true, .rule = TR_UPDATE_SGD), 0},
    {ROUNDED(UPDATE, 2, 20, 12, .state_dtype = TR_BF16, .bf16_master = true), TR_CASE_SKIP},
    {ROUNDED(DIRECTION, 31, 17, 6, .state_dtype = TR_BF16, .bf16_master = true), 0},
    {ROUNDED(DIRECTION, 3, 160, 333, .bf16_grad = true, .state_dtype = TR_BF16), 0},
    {DESCEND_BF16(31, 17, 6), 0},
    {FACTOR_SUMS(1, 1, .scales = false), 0},
    {FACTOR_SUMS(33, 70, .scales = true), 0},
    {FACTOR_SUMS(3, 4099, .scales = false), 0},
    {FACTOR_SUMS(4, 4399, .scales = true), 0},
    {FACTOR_SUMS(4200, 3, .scales = false), 0},
    {FACTOR_SUMS(43, 1301, .scales = true), 0},
    {FACTOR_SUMS(1, 1, .bf16_grad = true), 0},
    {FACTOR_SUMS(33, 70, .scales = true, .bf16_grad = true), 0},
    {FACTOR_SUMS(5, 4416, .scales = true, .bf16_grad = true), 0},
    {FACTOR_SUMS(43, 1304, .scales = true, .bf16_grad = true), 0},
    {FACTOR(1, 1, 1, 1, .scales = false), 0},
    {FACTOR(33, 70, 33, 140, .scales = true), TR_CASE_IN_PLACE},
    {FACTOR(33, 70, 99, 70, .scales = false), TR_CASE_NO_BIAS},
    {FACTOR(5, 700, 5, 700, .scales = true), TR_CASE_IN_PLACE},
    {FACTOR(3, 4399, 3, 4399, .scales = false), 0},
    {FACTOR(3, 4400, 3, 4400, .scales = true), TR_CASE_IN_PLACE},
    {FACTOR(8, 8, 8, 8, .scales = true), TR_CASE_SKIP},
    {FACTOR(33, 70, 33, 140, .scales = true, .bf16_grad = true), 0},
    {FACTOR(6, 4416, 6, 4416, .scales = true, .bf16_grad = true), 0},
    {FACTOR(8, 8, 8, 8, .scales = true, .bf16_grad = true), TR_CASE_SKIP},
    {QUANTIZE(1), 0},
    {QUANTIZE(1037), 0},
    {QUANTIZE(64), TR_CASE_SKIP},
    {QUANTIZE_BOXES(31, 17, 6), 0},
};
const size_t tr_op_case_count = sizeof tr_op_cases / sizeof *tr_op_cases;

const tr_op_case tr_op_large_cases[] = {
    {ROWS(BIAS_GRAD, 301, 67), 0},
    {ACTIVATION(ACTIVATION, 301, 67, GELU), 0},
    {ACTIVATION(ACTIVATION_DGRAD, 301, 67, GELU), 0},
    {ROWS(ADD, 301, 67), 0},
    {ROWS(CAST, 301, 67), 0},
    {ROWS(ADD_ROWS, 7, 4099), 0},
    {NORM(LAYERNORM, 301, 259), 0},
    {NORM(LAYERNORM_DGRAD, 301, 259), 0},
    {NORM(LAYERNORM_WGRAD, 301, 259), 0},
    {RMSNORM(RMSNORM, 301, 259), 0},
    {RMSNORM(RMSNORM_DGRAD, 301, 259), 0},
    {RMSNORM(RMSNORM_WGRAD, 301, 259), 0},
    {GLU(GLU, 67, 301, SILU), 0},
    {GLU(GLU_DGRAD, 67, 301, SILU), 0},
    {ROPE(150, 75, 5, 32, 224, .documents = true), 0},
    {ATTENTION(ATTENTION, 2, 131, 2, 2, 33), 0},
    {ATTENTION(ATTENTION, 1, 96, 3, 3, 64), 0},
    {ATTENTION(ATTENTION_DGRAD, 2, 131, 2, 2, 33), 0},
    {ATTENTION(ATTENTION_DGRAD, 1, 96, 3, 3, 64), 0},
    {ATTENTION(ATTENTION, 1, 150, 4, 2, 64, .window = 64), 0},
    {ATTENTION(ATTENTION_DGRAD, 1, 150, 4, 2, 64, .window = 64), 0},
    {ATTENTION(ATTENTION_DECODE, 2, 131, 2, 2, 33, .decode = 1), 0},
    {ATTENTION(ATTENTION_DECODE, 1, 96, 3, 3, 64, .decode = 1), 0},
    {ATTENTION(ATTENTION_DECODE, 2, 131, 4, 2, 33, .decode = 50, .window = 40), 0},
    {EMBED(EMBED, 200, 131, 3, 40), 0},
    {EMBED(EMBED_WGRAD, 200, 131, 3, 40), 0},
    {POSITION(POSITION, 200, 131, 50), 0},
    {POSITION(POSITION_WGRAD, 200, 131, 50), 0},
    {POSITION(POSITION_WGRAD, 200, 264, 100, .documents = true), 0},
    {DROPOUT(DROPOUT_ADD, 60, 1031, 20, 0.2f), 0},
    {DROPOUT(DROPOUT_DGRAD, 60, 1031, 20, 0.2f), 0},
    {ADD_NORM(60, 1031, 20, 0.2f, false), 0},
    {ADD_NORM(60, 1031, 20, 0.2f, true), 0},
    {XENT(XENT_MAX, 17, 0, 3001), 0},
    {XENT(XENT_SUM, 17, 0, 3001), 0},
    {XENT(XENT_LOSS, 17, 0, 3001), 0},
    {XENT(XENT_DGRAD, 17, 0, 3001), 0},
    {XENT(XENT, 17, 0, 3001), 0},
    {UPDATE(20011, .clip_value = 0), 0},
    {UPDATE(20011, .rule = TR_UPDATE_MOMENTUM, .momentum = 0.9f), 0},
    {UPDATE(20011, .rule = TR_UPDATE_LION), 0},
    {DIRECTION(20011, .clip_value = 0), 0},
    {DESCEND(20011, 2, 0), 0},
    {RESCALE(20011, 1), 0},
    {DIRECTION(20011, .rule = TR_UPDATE_ROOT), 0},
    {FACTOR_SUMS(301, 259, .scales = true), 0},
    {FACTOR_SUMS(301, 264, .scales = true, .bf16_grad = true), 0},
    {FACTOR(301, 259, 301, 518, .scales = true), 0},
    {FACTOR(301, 264, 301, 528, .scales = true, .bf16_grad = true), 0},
    {QUANTIZE(20011), 0},
    {QUANTIZE_BOXES(301, 40, 27), 0},
};
const size_t tr_op_large_case_count = sizeof tr_op_large_cases / sizeof *tr_op_large_cases;
