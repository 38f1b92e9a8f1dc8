#include "support/op_cuda_cases.h"
#include "bench/gpt2_products.h"
#include "device/op_table.h"
#include "support/op_check.h"
#include "support/seed.h"

#include <stdio.h>
#include <stdlib.h>

/* Lists a case in one storage type, and the one that adds to gradients. */
static void add_storage(tr_op_case_list *l, const tr_op_case *c, tr_dtype storage) {
    if (l->count == TR_OP_LISTED) {
        printf("more than %d cases\n", TR_OP_LISTED);
        exit(1);
    }
    tr_op_listed *op = &l->op[l->count++];
    *op = (tr_op_listed){.op = *c, .storage = storage};
    const int begin = snprintf(op->name, sizeof op->name, "%s: ", l->set);
    tr_op_case_describe(c, storage, op->name + begin, sizeof op->name - (size_t)begin);
    tr_op_case adding;
    if (tr_op_case_adding(c, &adding)) add_storage(l, &adding, storage);
}

static void add_case(tr_op_case_list *l, const tr_op_case *c) {
    for (int s = 0; s < TR_OP_STORAGES; s++) add_storage(l, c, tr_op_storages[s]);
    if (tr_op_row_of(c->desc.kind)->fp64) add_storage(l, c, TR_F64);
}

/* The operators of GPT-2 124M in BF16, with fewer rows, because ref is slow, and a part of the
 * head's columns. The emulation, which runs on the host, has even fewer. */
#ifdef TRIREME_EMULATED
enum { ROWS = 24, WIDTH = 64, SEQ = 72, VOCAB = 192 };
#else
enum { ROWS = 128, WIDTH = 768, SEQ = 1024, VOCAB = 5632 };
#endif

void tr_op_list_models(tr_op_case_list *l) {
    const tr_op_desc list[] = {
        {.kind = TR_OP_ATTENTION,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 2,
                       .kv_heads = 2,
                       .head_size = 64,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_ATTENTION_DGRAD,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 2,
                       .kv_heads = 2,
                       .head_size = 64,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_ATTENTION,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 4,
                       .kv_heads = 1,
                       .head_size = 128,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_ATTENTION_DGRAD,
         .attention = {.batch = 1,
                       .seq = SEQ,
                       .heads = 4,
                       .kv_heads = 1,
                       .head_size = 128,
                       .dtype = TR_BF16}},
        {.kind = TR_OP_LAYERNORM, .layernorm = {ROWS, WIDTH, 1e-5f, TR_BF16}},
        {.kind = TR_OP_LAYERNORM_DGRAD, .layernorm = {ROWS, WIDTH, 1e-5f, TR_BF16}},
        {.kind = TR_OP_LAYERNORM_WGRAD, .layernorm = {ROWS, WIDTH, 1e-5f, TR_BF16}},
        {.kind = TR_OP_DROPOUT_ADD, .dropout = {ROWS, WIDTH, ROWS, 0, 0.1f, 7, TR_BF16}},
        {.kind = TR_OP_DROPOUT_DGRAD, .dropout = {ROWS, WIDTH, ROWS, 0, 0.1f, 7, TR_BF16}},
        {.kind = TR_OP_ADD_NORM,
         .add_norm = {{ROWS, WIDTH, ROWS, 0, 0.1f, 7, TR_BF16}, 1e-5f, false}},
        {.kind = TR_OP_ADD_NORM, .add_norm = {{ROWS, WIDTH, ROWS, 0, 0, 7, TR_BF16}, 1e-5f, true}},
        {.kind = TR_OP_EMBED, .embed = {.rows = ROWS, .width = WIDTH, .vocab = VOCAB}},
        {.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = ROWS, .width = WIDTH, .vocab = VOCAB}},
        {.kind = TR_OP_POSITION, .embed = {.rows = ROWS, .width = WIDTH, .seq = ROWS}},
        {.kind = TR_OP_POSITION_WGRAD, .embed = {.rows = ROWS, .width = WIDTH, .seq = ROWS}},
        {.kind = TR_OP_XENT_MAX, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT_SUM, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT_LOSS, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT_DGRAD, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_XENT, .xent = {.rows = ROWS, .vocab = VOCAB}},
        {.kind = TR_OP_SUMSQ, .sumsq = {.count = 4 * WIDTH * WIDTH}},
        {.kind = TR_OP_UPDATE,
         .update = {.count = 4 * WIDTH * WIDTH,
                    .beta1 = 0.9f,
                    .beta2 = 0.95f,
                    .eps = 1e-8f,
                    .weight_decay = 0.1f,
                    .dtype = TR_BF16,
                    .lr_scale = 1}},
    };
    bench_product products[BENCH_PRODUCTS];
    bench_products(ROWS, WIDTH, VOCAB, TR_BF16, products);
    for (int i = 0; i < BENCH_PRODUCTS; i++) {
        const unsigned out = products[i].desc.matmul.c == TR_F32 ? TR_CASE_F32_OUT : 0;
        add_storage(l, &(tr_op_case){products[i].desc, out}, TR_BF16);
    }
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        add_storage(l, &(tr_op_case){list[i], 0}, TR_BF16);
}

void tr_op_list_table(tr_op_case_list *l) {
    for (size_t i = 0; i < tr_op_case_count; i++) add_case(l, &tr_op_cases[i]);
}

void tr_op_list_large(tr_op_case_list *l) {
    for (size_t i = 0; i < tr_op_large_case_count; i++) add_case(l, &tr_op_large_cases[i]);
}

static void add_kinds(tr_op_case_list *l, tr_op_desc desc, tr_op_kind first, tr_op_kind last) {
    for (tr_op_kind kind = first; kind <= last; kind++) {
        desc.kind = kind;
        add_case(l, &(tr_op_case){desc, 0});
    }
}

/* Norms of rows for a team of two, four and eight warps, which in the last ones does not keep all
 * of its row; some teams have no row. */
static void list_norms(tr_op_case_list *l) {
    const struct { int64_t rows, width; } of[] = {{5, 1160}, {3, 2568}, {2, 8328}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const int64_t rows = of[i].rows, width = of[i].width;
        const tr_dropout_desc add = {rows, width, rows, 0, 0.25f, 7, TR_F32};
        add_kinds(l, (tr_op_desc){.layernorm = {rows, width, 1e-5f, TR_F32}}, TR_OP_LAYERNORM,
                  TR_OP_LAYERNORM_DGRAD);
        add_kinds(l, (tr_op_desc){.rmsnorm = {.rows = rows, .width = width, .eps = 1e-5f}},
                  TR_OP_RMSNORM, TR_OP_RMSNORM_DGRAD);
        for (int rms = 0; rms <= 1; rms++)
            add_kinds(l, (tr_op_desc){.add_norm = {add, 1e-5, rms}}, TR_OP_ADD_NORM,
                      TR_OP_ADD_NORM);
    }
}

/* Shapes at which kernels take another path: chunks of more than 128 rows, several packs a thread,
 * a sort through global memory, more blocks of SUMSQ than are added at once, the same token in
 * every row. */
void tr_op_list_ways(tr_op_case_list *l) {
    const tr_op_case cases[] = {
        {{.kind = TR_OP_BIAS_GRAD, .rows = {.rows = 66000, .width = 3}}, 0},
        {{.kind = TR_OP_BIAS_GRAD, .rows = {.rows = 140, .width = 520}}, 0},
        {{.kind = TR_OP_LAYERNORM_WGRAD, .layernorm = {.rows = 140, .width = 520, .eps = 1e-5f}},
         0},
        {{.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = 4099, .width = 8, .vocab = 40}}, 0},
        {{.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = 2049, .width = 3, .vocab = 1}}, 0},
        {{.kind = TR_OP_EMBED_WGRAD, .embed = {.rows = 70, .width = 264, .vocab = 1000}}, 0},
        {{.kind = TR_OP_XENT_MAX, .xent = {.rows = 3, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT_SUM, .xent = {.rows = 3, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT_DGRAD, .xent = {.rows = 3, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT_LOSS, .xent = {.rows = 1100, .vocab = 5}}, 0},
        {{.kind = TR_OP_XENT, .xent = {.rows = 4, .vocab = 9005}}, 0},
        {{.kind = TR_OP_XENT, .xent = {.rows = 5, .vocab = 60001}}, 0},
        {{.kind = TR_OP_SUMSQ, .sumsq = {.count = 4096 * 1025 + 13}}, 0},
        {{.kind = TR_OP_DROPOUT_ADD,
          .dropout = {.rows = 9, .width = 520, .seq = 4, .p = 0.3f, .site = 3}},
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) add_case(l, &cases[i]);
    list_norms(l);
}

/* Fewer where they take long: on the host, and there with the address sanitizer six times as
 * long. */
#if defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 2 };
#elif defined(TRIREME_EMULATED)
enum { ROUNDS = 4 };
#else
enum { ROUNDS = 8 };
#endif

void tr_op_list_random(tr_op_case_list *l) {
    for (int i = 0; i < ROUNDS; i++) {
        int64_t rows = tr_up_to(&l->random, 150), width = tr_up_to(&l->random, 2) == 1
                                                              ? tr_up_to(&l->random, 400)
                                                              : 8 * tr_up_to(&l->random, 50);
        add_kinds(l, (tr_op_desc){.rows = {.rows = rows, .width = width}}, TR_OP_BIAS_GRAD,
                  TR_OP_BIAS_GRAD);
        const tr_activation activation =
            (tr_activation)(tr_up_to(&l->random, TR_ACTIVATION_COUNT) - 1);
        add_kinds(l, (tr_op_desc){.rows = {rows, width, TR_F32, TR_F32, activation}},
                  TR_OP_ACTIVATION, TR_OP_ACTIVATION_DGRAD);
        add_kinds(l, (tr_op_desc){.rows = {.rows = rows, .width = width}}, TR_OP_ADD,
                  TR_OP_ADD_ROWS);
        add_kinds(l, (tr_op_desc){.layernorm = {rows, width + 1, 1e-5f, TR_F32}}, TR_OP_LAYERNORM,
                  TR_OP_LAYERNORM_WGRAD);
        add_kinds(l, (tr_op_desc){.rmsnorm = tr_random_rmsnorm(&l->random)}, TR_OP_RMSNORM,
                  TR_OP_RMSNORM_WGRAD);
        add_kinds(l, (tr_op_desc){.glu = {rows, width, activation, TR_F32}}, TR_OP_GLU,
                  TR_OP_GLU_DGRAD);
        add_kinds(l, (tr_op_desc){.rope = tr_random_rope(&l->random)}, TR_OP_ROPE, TR_OP_ROPE);
        tr_norm_rope_desc norm_rope = {.rope = tr_random_rope(&l->random), .eps = 1e-6};
        norm_rope.rope.inverse = false;
        add_kinds(l, (tr_op_desc){.norm_rope = norm_rope}, TR_OP_NORM_ROPE, TR_OP_NORM_ROPE_DGRAD);
        tr_attention_desc attention = tr_random_attention(&l->random);
        add_kinds(l, (tr_op_desc){.attention = attention}, TR_OP_ATTENTION, TR_OP_ATTENTION_DGRAD);
        attention.documents = false;
        attention.decode = (attention.seq + 1) / 2;
        add_kinds(l, (tr_op_desc){.attention = attention}, TR_OP_ATTENTION_DECODE,
                  TR_OP_ATTENTION_DECODE);
        /* On a GPU, cuDNN computes this in BF16. */
        attention = (tr_attention_desc){.batch = 1,
                                        .seq = 63 + tr_up_to(&l->random, 70),
                                        .heads = 2,
                                        .kv_heads = tr_up_to(&l->random, 2),
                                        .head_size = 32 + 32 * tr_up_to(&l->random, 3)};
        add_kinds(l, (tr_op_desc){.attention = attention}, TR_OP_ATTENTION, TR_OP_ATTENTION_DGRAD);
        add_kinds(l,
                  (tr_op_desc){.embed = {.rows = rows,
                                         .width = width,
                                         .vocab_begin = tr_up_to(&l->random, 9) - 1,
                                         .vocab = tr_up_to(&l->random, 60)}},
                  TR_OP_EMBED, TR_OP_EMBED_WGRAD);
        int64_t seq = tr_up_to(&l->random, 30);
        add_kinds(l,
                  (tr_op_desc){.embed = {.rows = seq * tr_up_to(&l->random, 4),
                                         .width = width,
                                         .seq = seq,
                                         .documents = tr_up_to(&l->random, 2) == 1}},
                  TR_OP_POSITION, TR_OP_POSITION_WGRAD);
        const int64_t first = tr_up_to(&l->random, 40) - 1;
        add_kinds(l, (tr_op_desc){.dropout = {rows, width, seq, first, 0.25f, 7, TR_F32}},
                  TR_OP_DROPOUT_ADD, TR_OP_DROPOUT_DGRAD);
        const tr_dropout_desc add = {rows, width + 7, seq, first, 0.25f, 7, TR_F32};
        add_kinds(l, (tr_op_desc){.add_norm = {add, 1e-5, i % 2}}, TR_OP_ADD_NORM, TR_OP_ADD_NORM);
        add_kinds(l,
                  (tr_op_desc){.xent = {.rows = rows / 8 + 1,
                                        .vocab = 8 * width,
                                        .ld = tr_up_to(&l->random, 2) == 1
                                                  ? 0
                                                  : 8 * width + tr_up_to(&l->random, 70)}},
                  TR_OP_XENT_MAX, TR_OP_XENT);
        add_kinds(l,
                  (tr_op_desc){.update = {.count = tr_up_to(&l->random, 5000),
                                          .beta1 = 0.9f,
                                          .beta2 = 0.95f,
                                          .eps = 1e-8f,
                                          .weight_decay = 0.1f,
                                          .dtype = TR_F32,
                                          .lr_scale = 2}},
                  TR_OP_UPDATE, TR_OP_UPDATE);
    }
}

/* Sets the other fields of a product to values that one of the fusions allows. */
static void fuse(tr_op_case_list *l, tr_matmul_desc *d) {
    const int64_t which = tr_up_to(&l->random, 5);
    d->fused = (tr_fusion){.bias = d->fused.bias && (which == 1 || which == 3),
                           .activate = which == 1,
                           .activate_grad = which == 2,
                           .residual = which == 3,
                           .bias_grad = which >= 4,
                           .bias_grad_of_a = which == 5};
    if (which < 3)
        d->fused.activation = (tr_activation)(tr_up_to(&l->random, TR_ACTIVATION_COUNT) - 1);
    if (which == 4) d->trans_b = false, d->ldb = 0;
    else if (which == 5) d->trans_a = true, d->lda = 0;
    else d->accumulate = false, d->ldc = 0, d->n *= 8, d->ldb *= 8;
}

/* Products with random leading dimensions and fusions. */
void tr_op_list_products(tr_op_case_list *l) {
    for (int i = 0; i < 12 * ROUNDS; i++) {
        tr_op_desc m = {.kind = TR_OP_MATMUL};
        m.matmul = tr_random_matmul(&l->random, 20, 20, 20);
        add_case(l, &(tr_op_case){m, tr_up_to(&l->random, 3) == 1 ? TR_CASE_F32_OUT : 0});
        fuse(l, &m.matmul);
        add_case(l, &(tr_op_case){m, m.matmul.fused.bias_grad ? TR_CASE_F32_OUT : 0});
    }
}
