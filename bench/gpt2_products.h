/* The products of a GPT-2 step as the layers describe them (layers/linear.c, layers/head.c). */
#pragma once

#include "device/op.h"

typedef struct bench_product {
    const char *label;
    tr_op_desc desc;
} bench_product;

enum { BENCH_BLOCK_PRODUCTS = 12, BENCH_PRODUCTS = 15 }; /* the last three: the head */

/* Describes C[m, n] = A B. */
static inline tr_op_desc bench_forward(int64_t m, int64_t n, int64_t k, tr_dtype dtype,
                                       tr_fusion fused) {
    return (tr_op_desc){
        .kind = TR_OP_MATMUL,
        .matmul = {.m = m, .n = n, .k = k, .a = dtype, .b = dtype, .c = dtype, .fused = fused}};
}

/* Describes the gradient of the input: C[m, n] = A B'. */
static inline tr_op_desc bench_dgrad(int64_t m, int64_t n, int64_t k, tr_dtype dtype,
                                     tr_fusion fused) {
    tr_op_desc desc = bench_forward(m, n, k, dtype, fused);
    desc.matmul.trans_b = true;
    return desc;
}

/* Describes the gradient of the weight: C[m, n] += A' B in FP32. */
static inline tr_op_desc bench_wgrad(int64_t m, int64_t n, int64_t k, tr_dtype dtype,
                                     tr_fusion fused) {
    tr_op_desc desc = bench_forward(m, n, k, dtype, fused);
    desc.matmul.c = TR_F32;
    desc.matmul.trans_a = desc.matmul.accumulate = true;
    return desc;
}

/* Describes the products of `rows` tokens at width c, with the whole vocabulary v in one part. */
static inline void bench_products(int64_t rows, int64_t c, int64_t v, tr_dtype t,
                                  bench_product out[BENCH_PRODUCTS]) {
    const tr_fusion none = {0}, bias = {.bias = true}, gelu = {.bias = true, .activate = true};
    const tr_fusion dgelu = {.activate_grad = true}, sums = {.bias_grad = true};
    const bench_product list[BENCH_PRODUCTS] = {
        {"matmul qkv, bias", bench_forward(rows, 3 * c, c, t, bias)},
        {"matmul proj", bench_forward(rows, c, c, t, none)},
        {"matmul fc, bias, gelu", bench_forward(rows, 4 * c, c, t, gelu)},
        {"matmul out", bench_forward(rows, c, 4 * c, t, none)},
        {"matmul out dgrad, gelu", bench_dgrad(rows, 4 * c, c, t, dgelu)},
        {"matmul fc dgrad", bench_dgrad(rows, c, 4 * c, t, none)},
        {"matmul proj dgrad", bench_dgrad(rows, c, c, t, none)},
        {"matmul qkv dgrad", bench_dgrad(rows, c, 3 * c, t, none)},
        {"matmul out wgrad, bias", bench_wgrad(4 * c, c, rows, t, sums)},
        {"matmul fc wgrad, bias", bench_wgrad(c, 4 * c, rows, t, sums)},
        {"matmul proj wgrad, bias", bench_wgrad(c, c, rows, t, sums)},
        {"matmul qkv wgrad, bias", bench_wgrad(c, 3 * c, rows, t, sums)},
        {"matmul head", bench_dgrad(rows, v, c, t, none)},
        {"matmul head dgrad", bench_forward(rows, c, v, t, none)},
        {"matmul head wgrad", bench_wgrad(v, c, rows, t, none)},
    };
    for (int i = 0; i < BENCH_PRODUCTS; i++) out[i] = list[i];
}
