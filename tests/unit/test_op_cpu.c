/* Compares every operator of the cpu device with ref: the shared table, shapes large enough for
 * several threads, and random shapes, in all storage types. Two runs on two threads give the same
 * bits, and all operators except oneDNN's products give them on any number of threads.
 * TRIREME_TEST_ONLY="test_table: NAME" runs only the table's operators with names that begin so. */
#include "base/code8.h"
#include "base/philox.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels.h"
#include "device/elementwise.h"
#include "support/op_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;
static tr_device *ref, *cpu, *cpu1, *cpu3; /* on 2, 1 and 3 threads */

static void check_case(const tr_op_case *c) {
    for (int s = 0; s < TR_OP_STORAGES; s++) {
        tr_op_check check;
        tr_op_data got;
        tr_op_check_open(c, tr_op_storages[s], seed, ref, &check);
        tr_op_check_run(&check, cpu, &got);
        tr_op_check_same(&check, cpu, &got);
        tr_op_check_parts(&check, cpu, &got);
        tr_op_check_parts(&check, ref, NULL);
        if (c->desc.kind != TR_OP_MATMUL) {
            tr_op_check_same(&check, cpu1, &got);
            tr_op_check_same(&check, cpu3, &got);
        }
        tr_op_data_free(&got);
        tr_op_check_close(&check);
    }
    tr_op_case adding;
    if (tr_op_case_adding(c, &adding)) check_case(&adding);
}

static const char only_table[] = "test_table: ";

/* Returns how the names of the operators begin that the environment chooses, or NULL. */
static const char *chosen_names(void) {
    const char *only = getenv("TRIREME_TEST_ONLY");
    return only && strncmp(only, only_table, strlen(only_table)) == 0 ? only + strlen(only_table)
                                                                      : NULL;
}

static void test_table(void **state) {
    (void)state;
    const char *names = chosen_names();
    int cases = 0;
    for (size_t i = 0; i < tr_op_case_count; i++) {
        const char *name = tr_op_name(tr_op_cases[i].desc.kind);
        if (names && strncmp(name, names, strlen(names)) != 0) continue;
        check_case(&tr_op_cases[i]);
        cases++;
    }
    assert_true(cases > 0);
}

/* Tensors of more elements than one thread handles alone, and rows longer than a block. */
static void test_large(void **state) {
    (void)state;
    for (size_t i = 0; i < tr_op_large_case_count; i++) check_case(&tr_op_large_cases[i]);
}

/* Depths of 64 i - 1, for which oneDNN 2.6.3's product of BF16 by AMX tiles has wrong rows in the
 * first two shapes, and ends with SIGILL in the third. */
static void test_depths(void **state) {
    (void)state;
    const int64_t shapes[][3] = {{90, 40, 63}, {45, 53, 63}, {130, 20, 63}, {66, 44, 127}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned options = 0; options <= TR_CASE_F32_OUT; options += TR_CASE_F32_OUT) {
            const int64_t *s = shapes[i];
            tr_op_desc m = {.kind = TR_OP_MATMUL, .matmul = {.m = s[0], .n = s[1], .k = s[2]}};
            m.matmul.accumulate = options != 0;
            check_case(&(tr_op_case){m, options});
        }
}

static uint64_t random_state;
static int64_t up_to(int64_t n) {
    return tr_up_to(&random_state, n);
}

/* Checks all other operators, each in shapes of its own. */
static void check_random_rows(void) {
    const tr_op_kind rows[] = {TR_OP_BIAS_GRAD, TR_OP_ACTIVATION, TR_OP_ACTIVATION_DGRAD,
                               TR_OP_ADD,       TR_OP_CAST,       TR_OP_ADD_ROWS};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        check_case(
            &(tr_op_case){{.kind = rows[k], .rows = {.rows = up_to(200), .width = up_to(200)}}, 0});
    for (tr_op_kind k = TR_OP_EMBED; k <= TR_OP_POSITION_WGRAD; k++) {
        int64_t seq = up_to(40);
        check_case(&(tr_op_case){{.kind = k,
                                  .embed = {.rows = seq * up_to(6),
                                            .width = up_to(150),
                                            .seq = seq,
                                            .vocab_begin = up_to(30) - 1,
                                            .vocab = up_to(300),
                                            .documents = up_to(2) == 1}},
                                 0});
    }
    for (tr_op_kind k = TR_OP_DROPOUT_ADD; k <= TR_OP_DROPOUT_DGRAD; k++)
        check_case(&(tr_op_case){{.kind = k,
                                  .dropout = {.rows = up_to(90),
                                              .width = up_to(400),
                                              .seq = up_to(40),
                                              .p = (float)up_to(9) / 10,
                                              .site = (uint64_t)up_to(1000)}},
                                 0});
    for (int rms = 0; rms < 2; rms++)
        check_case(&(tr_op_case){{.kind = TR_OP_ADD_NORM,
                                  .add_norm = {.add = {.rows = up_to(90),
                                                       .width = 7 + up_to(400),
                                                       .seq = up_to(40),
                                                       .p = (float)(up_to(9) - 1) / 10,
                                                       .site = (uint64_t)up_to(1000)},
                                               .eps = 1e-5f,
                                               .rms = rms}},
                                 0});
    for (tr_op_kind k = TR_OP_XENT_MAX; k <= TR_OP_XENT; k++)
        check_case(&(tr_op_case){
            {.kind = k,
             .xent = {.rows = up_to(60), .vocab_begin = up_to(30) - 1, .vocab = up_to(600) + 1}},
            0});
    check_case(&(tr_op_case){{.kind = TR_OP_SUMSQ, .sumsq = {.count = up_to(30000)}}, 0});
    check_case(&(tr_op_case){
        {.kind = TR_OP_STEP_FINISH, .step_finish = {.losses = up_to(40), .norms = up_to(40)}}, 0});
    check_case(&(tr_op_case){{.kind = TR_OP_UPDATE,
                              .update = {.count = up_to(30000),
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .eps = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .lr_scale = 0.3}},
                             0});
}

static void test_random(void **state) {
    (void)state;
    random_state = seed;
    for (int i = 0; i < 60; i++) {
        tr_op_desc m = {.kind = TR_OP_MATMUL};
        m.matmul = tr_random_matmul(&random_state, 90, 140, 170);
        check_case(&(tr_op_case){m, up_to(3) == 1 ? TR_CASE_F32_OUT : 0});
    }
    /* One row has its own product, in blocks of 1,024 columns. */
    for (int i = 0; i < 40; i++) {
        tr_op_desc m = {.kind = TR_OP_MATMUL,
                        .matmul = tr_random_matmul(&random_state, 1, 1300, 170)};
        m.matmul.trans_a = false;
        m.matmul.lda = 0;
        m.matmul.accumulate &= i % 8 == 0;
        if (!m.matmul.accumulate && up_to(2) == 1) m.matmul.ldc = 0, m.matmul.fused.residual = true;
        if (!m.matmul.accumulate && !m.matmul.fused.bias && !m.matmul.fused.residual)
            m.matmul.scale = 0.25;
        check_case(&(tr_op_case){m, up_to(3) == 1 ? TR_CASE_F32_OUT : 0});
    }
    for (int i = 0; i < 8; i++) {
        tr_op_desc a = {.attention = tr_random_attention(&random_state)};
        for (a.kind = TR_OP_ATTENTION; a.kind <= TR_OP_ATTENTION_DECODE; a.kind++) {
            a.attention.documents &= a.kind != TR_OP_ATTENTION_DECODE;
            a.attention.decode = 1 + i * (a.attention.seq - 1) / 7;
            check_case(&(tr_op_case){a, 0});
        }
        tr_op_desc n = {.layernorm = {up_to(200), up_to(300) + 1, 1e-5f, TR_F32}};
        for (n.kind = TR_OP_LAYERNORM; n.kind <= TR_OP_LAYERNORM_WGRAD; n.kind++)
            check_case(&(tr_op_case){n, 0});
        tr_op_desc r = {.rmsnorm = tr_random_rmsnorm(&random_state)};
        for (r.kind = TR_OP_RMSNORM; r.kind <= TR_OP_RMSNORM_WGRAD; r.kind++)
            check_case(&(tr_op_case){r, 0});
        tr_op_desc g = {.glu = {up_to(60), up_to(600), (tr_activation)(up_to(4) - 1), TR_F32}};
        for (g.kind = TR_OP_GLU; g.kind <= TR_OP_GLU_DGRAD; g.kind++)
            check_case(&(tr_op_case){g, 0});
        check_case(&(tr_op_case){{.kind = TR_OP_ROPE, .rope = tr_random_rope(&random_state)}, 0});
        tr_op_desc p = {.norm_rope = {.rope = tr_random_rope(&random_state), .eps = 1e-6}};
        p.norm_rope.rope.inverse = false;
        for (p.kind = TR_OP_NORM_ROPE; p.kind <= TR_OP_NORM_ROPE_DGRAD; p.kind++)
            check_case(&(tr_op_case){p, 0});
    }
    for (int i = 0; i < 8; i++) check_random_rows();
}

/* Products with more than one block in each direction, which threads divide between them. */
static void test_blocks(void **state) {
    (void)state;
    random_state = seed;
    for (int i = 0; i < 16; i++) {
        tr_op_desc m = {.kind = TR_OP_MATMUL};
        m.matmul = tr_random_matmul(&random_state, 180, 700, 1200);
        if (!m.matmul.accumulate && up_to(2) == 1) m.matmul.ldc = 0, m.matmul.fused.residual = true;
        check_case(&(tr_op_case){m, up_to(2) == 1 ? TR_CASE_F32_OUT : 0});
    }
    const tr_matmul_desc long_ones[] = {
        {.m = 1100, .n = 70, .k = 66, .trans_a = true, .accumulate = true},
        {.m = 1090, .n = 66, .k = 65},
        {.m = 600, .n = 140, .k = 4200, .trans_a = true, .accumulate = true},
        {.m = 64, .n = 72, .k = 8224, .trans_b = true, .accumulate = true},
        {.m = 70, .n = 80, .k = 4200, .fused = {.bias = true, .residual = true}},
        {.m = 70, .n = 80, .k = 4200, .scale = 0.25}};
    for (size_t i = 0; i < sizeof long_ones / sizeof *long_ones; i++)
        check_case(&(tr_op_case){{.kind = TR_OP_MATMUL, .matmul = long_ones[i]}, TR_CASE_F32_OUT});
}

/* Operands of different types, and a product of types that no library offers. */
static void test_mixed_matmul(void **state) {
    (void)state;
    for (int types = 0; types < 8; types++) {
        tr_op_data want, got;
        char message[256];
        const tr_op_case c = {
            {.kind = TR_OP_MATMUL,
             .matmul = {.m = 9, .n = 20, .k = 31, .fused.bias = true, .trans_a = types & 1}},
            0};
        must(tr_op_data_make(&c, TR_F32, seed, &want));
        tr_matmul_desc *d = &want.desc.matmul;
        tr_dtype *const dtype[] = {&d->a, &d->b, &d->c};
        for (int i = 0; i < 3; i++) {
            if (!(types >> i & 1)) continue;
            *dtype[i] = want.tensor[i].dtype = TR_BF16;
            for (int64_t j = 0; j < want.tensor[i].count; j++)
                tr_element_set(want.memory[i], TR_BF16, j, (double)(j % 13) / 8 - 0.5);
        }
        if (d->b == TR_BF16) {
            want.tensor[TR_MATMUL_BIAS].dtype = TR_BF16;
            for (int64_t j = 0; j < d->n; j++)
                tr_element_set(want.memory[TR_MATMUL_BIAS], TR_BF16, j, (double)(j % 7) / 4);
        }
        must(tr_op_data_clone(&want, &got));
        must(tr_op_data_run(&want, ref, NULL));
        must(tr_op_data_run(&got, cpu, NULL));
        if (!tr_op_data_compare(&got, &want, message, sizeof message))
            fail_msg("types %d: %s", types, message);
        tr_op_data_free(&want);
        tr_op_data_free(&got);
    }
}

enum { SETS = TR_CPU_AMX }; /* AMX's, which differ in the product of BF16 alone, have test_tiles */
static const tr_cpu_kernels *sets[SETS];

/* Returns how many sets this processor can run, each with those before it. */
static int known_sets(void) {
    int known = 0;
    while (known < SETS && (sets[known] = tr_cpu_kernels_for((tr_cpu_set)known))) known++;
    return known;
}

/* The kernels for this processor's instruction sets give the bits of the base ones, and all Philox
 * those of base/philox.h. */
static void test_kernels(void **state) {
    (void)state;
    enum { N = 203, PANELS = 3, K = 37, ROWS = 11 };
    const int known = known_sets();
    static float x[PANELS * TR_PANEL * K], out[SETS][N], active[SETS][TR_ACTIVATION_COUNT][2][N],
        product[SETS][2][ROWS * PANELS * TR_PANEL], scores[SETS][3][PANELS * TR_PANEL];
    static tr_word halves[PANELS * TR_PANEL * K];
    static tr_word words[PANELS * TR_PANEL * K], pairs[SETS][N];
    static float row[SETS][3][ROWS + 2 * PANELS * TR_PANEL];
    static uint16_t rounded[SETS][PANELS * TR_PANEL * K];
    float sum[SETS];
    uint32_t bits[N + 1 + TR_CPU_PHILOX_MORE];
    for (int i = 0; i < PANELS * TR_PANEL * K; i++) {
        x[i] = 4 * tr_normal(seed, 1, (uint64_t)i);
        words[i] =
            (tr_word)tr_f32_to_bf16(x[i]) << 16 | tr_f32_to_bf16(tr_normal(seed, 2, (uint64_t)i));
        halves[i] = (tr_word)tr_half_round(x[i]) << 16 |
                    tr_half_round(0x1p-14f * tr_normal(seed, 2, (uint64_t)i)); /* subnormal, too */
    }
    for (int s = 0; s < known; s++) {
        for (int a = 0; a < TR_ACTIVATION_COUNT; a++) {
            sets[s]->activation[a](N, x, active[s][a][0]);
            sets[s]->activation_dgrad[a](N, x, x + N, active[s][a][1]);
        }
        memcpy(out[s], x, sizeof out[s]);
        sets[s]->exponential(N, out[s], 0.75f, 1.25f, 0.5f, out[s]);
        sum[s] = sets[s]->round_row(PANELS * K, x, rounded[s]);
        for (int i = 0; i < PANELS * TR_PANEL * K; i++)
            assert_int_equal(rounded[s][i], tr_f32_to_bf16(x[i]));
        sets[s]->round_rows(N / TR_PANEL, x, x + N, pairs[s]);
        for (int64_t rows = 1; rows <= ROWS; rows++) {
            sets[s]->gemm[TR_F32](rows, PANELS, K, (const tr_word *)x, K, 1, (const tr_word *)x,
                                  K * TR_PANEL, product[s][0], PANELS * TR_PANEL, rows > 1);
            sets[s]->gemm[TR_BF16](rows, PANELS, K, words, K, 1, words, K * TR_PANEL, product[s][1],
                                   PANELS * TR_PANEL, rows > 1);
        }
        memcpy(scores[s], x, sizeof scores[s]);
        scores[s][2][0] = sets[s]->softmax(PANELS, 0.75f, scores[s][0], &scores[s][2][1]);
        sets[s]->softmax_dgrad(PANELS, 0.25f, scores[s][0], scores[s][1]);
        for (int t = 0; t < 3; t++) {
            const tr_word *b = t == TR_F32 ? (const tr_word *)x : t == TR_F16 ? halves : words;
            float *low = row[s][t] + ROWS;
            sets[s]->dots[t](ROWS, K, b, b + K, K, row[s][t]);
            sets[s]->combine[t](ROWS, K, x, b, K, low, low + PANELS * TR_PANEL);
        }
        static const int rounds[] = {TR_PHILOX_ROUNDS, TR_ROUNDING_ROUNDS};
        for (size_t k = 0; k < sizeof rounds / sizeof *rounds; k++) {
            sets[s]->philox(rounds[k], seed, UINT32_MAX - 20u, 77, (N + 1) / 4, bits);
            for (uint64_t q = 0; q < (N + 1) / 4; q++) {
                tr_philox want = tr_philox_rounds(rounds[k], seed, UINT32_MAX - 20u + q, 77);
                assert_memory_equal(bits + 4 * q, want.v, sizeof want.v);
            }
        }
        assert_memory_equal(out[s], out[0], sizeof out[0]);
        assert_memory_equal(active[s], active[0], sizeof active[0]);
        assert_memory_equal(rounded[s], rounded[0], sizeof rounded[0]);
        assert_memory_equal(pairs[s], pairs[0], sizeof pairs[0]);
        assert_memory_equal(&sum[s], &sum[0], sizeof sum[0]);
        assert_memory_equal(product[s], product[0], sizeof product[0]);
        assert_memory_equal(scores[s], scores[0], sizeof scores[0]);
        assert_memory_equal(row[s], row[0], sizeof row[0]);
    }
}

/* All kernels widen every BF16 and round every FP32 tried, a sample of all bit patterns and those
 * halfway between two BF16, as base/dtype.h does: subnormal numbers, infinities and NaNs, too. */
static void test_row_kernels(void **state) {
    (void)state;
    enum { N = (1 << 20) - 3, NARROW = 1 << 16 };
    static float x[N], wide[NARROW];
    static uint16_t narrow[NARROW], rounded[N];
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t bits = i * 4096 + (i % 16 == 0 ? 0x8000u : (uint32_t)seed % 4096);
        memcpy(x + i, &bits, sizeof bits);
    }
    for (uint32_t i = 0; i < NARROW; i++) narrow[i] = (uint16_t)i;
    for (int s = 0; s < known_sets(); s++) {
        assert_ptr_equal(sets[s]->row_load(TR_F32, x, 3, N - 3, wide), x + 3);
        assert_ptr_equal(sets[s]->row_load(TR_BF16, narrow, 1, NARROW - 1, wide), wide);
        for (int i = 1; i < NARROW; i++) {
            const float want = tr_bf16_to_f32(narrow[i]);
            assert_memory_equal(wide + i - 1, &want, sizeof want);
        }
        sets[s]->row_store(TR_BF16, rounded, 1, N - 1, x);
        for (int i = 1; i < N; i++)
            if (rounded[i] != tr_f32_to_bf16(x[i - 1]))
                fail_msg("set %d: %a is rounded to %04x, not %04x", s, (double)x[i - 1], rounded[i],
                         tr_f32_to_bf16(x[i - 1]));
    }
}

/* Rows of storage: sums, scaled rows and maxima, as one element after another gives them. */
static void check_rows(const tr_cpu_kernels *set, tr_dtype dtype, const float *x) {
    enum { N = 203, FROM = 5 };
    static uint32_t stored[N + FROM], scaled[N + FROM], want[N + FROM];
    float sums[N], largest = -INFINITY;
    for (int i = 0; i < N + FROM; i++) tr_element_set(stored, dtype, i, (double)x[i]);
    memcpy(sums, x, sizeof sums);
    set->row_add(dtype, stored, FROM, N, sums);
    for (int i = 0; i < N; i++) {
        const float number = (float)tr_element(stored, dtype, FROM + i);
        assert_true(sums[i] == x[i] + number);
        largest = number > largest ? number : largest;
        tr_element_set(want, dtype, FROM + i, (double)(x[i] * 0.75f));
    }
    assert_true(set->row_largest(dtype, stored, FROM, N) == largest);
    set->row_scale(dtype, scaled, FROM, N, 0.75f, x);
    assert_memory_equal(scaled, want, sizeof want);
}

/* The kernels of norms and rotary positions do the operations of device/elementwise.h; an RMS norm
 * is one with means of 0. */
static void check_norms(const tr_cpu_kernels *set, const float *x) {
    enum { N = 203, HALF = N / 2 };
    const float *dy = x + N, *gamma = x + 2 * N, *beta = x + 3 * N, mean = x[4 * N], rstd = 1.25f;
    float y[N], rms[N], g[N], normal[N], dx[N], plain[N], drms[N], grms[N], nrms[N];
    uint64_t turns[HALF];
    float cosine[HALF], sine[HALF], c, s;
    set->norm(N, mean, rstd, x, gamma, beta, y);
    set->norm(N, 0, rstd, x, gamma, NULL, rms);
    set->norm_terms(N, mean, rstd, dy, x, gamma, g, normal);
    set->norm_terms(N, 0, rstd, dy, x, gamma, grms, nrms);
    set->norm_dgrad(N, rstd, 0.5f, 0.75f, g, normal, beta, dx);
    set->norm_dgrad(N, rstd, 0.5f, 0.75f, g, normal, NULL, plain);
    set->norm_dgrad(N, rstd, 0, 0.75f, grms, nrms, NULL, drms);
    for (int i = 0; i < N; i++) {
        const float n = tr_layernorm_centred(x[i], mean, rstd), gi = dy[i] * gamma[i];
        const float v = tr_layernorm_dgrad(gi, n, rstd, 0.5f, 0.75f);
        assert_true(y[i] == tr_layernorm_element(x[i], mean, rstd, gamma[i], beta[i]));
        assert_true(rms[i] == tr_rmsnorm_element(x[i], rstd, gamma[i]));
        assert_true(g[i] == gi && normal[i] == n && nrms[i] == x[i] * rstd);
        assert_true(plain[i] == v && dx[i] == v + beta[i]);
        assert_true(drms[i] == tr_rmsnorm_dgrad(gi, x[i] * rstd, rstd, 0.75f));
    }
    for (uint64_t i = 0; i < HALF; i++) turns[i] = tr_mix64(i);
    set->angles(HALF, 1234567, turns, 1.5f, -1.5f, cosine, sine);
    memcpy(y, x, sizeof y);
    set->rotate(HALF, cosine, sine, y, y);
    for (int i = 0; i < HALF; i++) {
        tr_rope_rotation(1234567 * turns[i], &c, &s);
        assert_true(cosine[i] == c * 1.5f && sine[i] == s * -1.5f);
        assert_true(y[i] == x[i] * cosine[i] - x[HALF + i] * sine[i]);
        assert_true(y[HALF + i] == x[HALF + i] * cosine[i] + x[i] * sine[i]);
    }
}

static void test_elementwise_kernels(void **state) {
    (void)state;
    enum { N = 1024 };
    float x[N];
    for (int i = 0; i < N; i++) x[i] = 4 * tr_normal(seed, 3, (uint64_t)i);
    for (int s = 0; s < known_sets(); s++) {
        for (int t = 0; t < TR_OP_STORAGES; t++) check_rows(sets[s], tr_op_storages[t], x);
        check_norms(sets[s], x);
    }
}

/* The exponential is within 1.5 ulp of every number tried, a sample of all bit patterns and those
 * around its bounds; of a NaN it is a NaN. */
static void test_exponential(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static float x[N], y[N];
    static const float edges[] = {0.0f,      -0.0f,    88.72284f, 88.7229f, 89.0f,
                                  89.0001f,  -87.5f,   -103.5f,   -104.0f,  -104.0001f,
                                  -INFINITY, INFINITY, 180.0f,    -180.0f};
    enum { EDGES = sizeof edges / sizeof *edges };
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t bits = i * 4096 + (uint32_t)seed % 4096;
        memcpy(x + i, &bits, sizeof bits);
    }
    memcpy(x, edges, sizeof edges);
    for (int s = 0; s < known_sets(); s++) {
        sets[s]->exponential(N, x, 1.0f, 0.0f, 1.0f, y);
        for (int i = 0; i < N; i++) {
            const double want = exp((double)x[i]);
            if (isnan(x[i])) assert_true(isnan(y[i]));
            else if (want >= 0x1.ffffffp127) assert_true(y[i] == INFINITY);
            else if (fabs((double)y[i] - want) > 1.5 * ldexp(1.5, ilogb(fmax(want, 0x1p-126)) - 23))
                fail_msg("set %d: exp(%a) = %a, not %a", s, (double)x[i], (double)y[i], want);
        }
    }
}

/* Takes a step with a state in this code, of which `keep` is kept: of momentum, or of AdamW with a
 * mean of 1: then directions are the inverse roots of the state. */
static void step_codes(const tr_cpu_kernels *set, tr_code8 kind, float keep, const float *grad,
                       const uint16_t *draw, int n, uint8_t *code, float *scales, float *out) {
    enum { BLOCKS = 2, MOST = BLOCKS * TR_CODE8_BLOCK };
    const bool squares = kind == TR_CODE8_SQUARES;
    float master[MOST] = {0}, scale_of_1[BLOCKS] = {1, 1};
    uint8_t ones[MOST];
    assert_true(n <= MOST);
    memset(ones, tr_code8_encode(1, 1, TR_CODE8_SIGNED, 0), sizeof ones);
    set->update(&(tr_cpu_update){.step = TR_CPU_DIRECTION,
                                 .rule = squares ? TR_UPDATE_ADAMW : TR_UPDATE_MOMENTUM,
                                 .scalars = {.factor = 1,
                                             .momentum = keep,
                                             .beta1 = 1,
                                             .beta2 = keep,
                                             .mean_scale = 1,
                                             .root_scale = 1},
                                 .grad = grad,
                                 .master = master,
                                 .m = squares ? ones : code,
                                 .v = squares ? code : NULL,
                                 .u = out,
                                 .state_dtype = TR_U8,
                                 .code = {squares ? TR_CODE8_SIGNED : kind, TR_CODE8_SQUARES},
                                 .scales = {squares ? scale_of_1 : scales, scales},
                                 .drawn = draw},
                n);
}

/* The step's kernel encodes and decodes as the header does: x, which gradients make in one step. */
static void check_codes(const tr_cpu_kernels *set, tr_code8 kind, const float *x, const float *grad,
                        const uint16_t *draw, int n) {
    enum { BLOCKS = 2, MOST = BLOCKS * TR_CODE8_BLOCK };
    const bool squares = kind == TR_CODE8_SQUARES;
    const float zeros[MOST] = {0};
    float scales[BLOCKS] = {0}, largest[BLOCKS] = {0}, out[MOST];
    uint8_t code[MOST] = {0}, again[MOST];
    for (int i = 0; i < n; i++)
        largest[i / TR_CODE8_BLOCK] = fmaxf(largest[i / TR_CODE8_BLOCK], fabsf(x[i]));
    step_codes(set, kind, 0, grad, draw, n, code, scales, out);
    for (int b = 0; b < BLOCKS; b++) assert_true(scales[b] == tr_code8_scale(largest[b]));
    for (int i = 0; i < n; i++)
        assert_int_equal(code[i],
                         tr_code8_encode(0.0f + x[i], scales[i / TR_CODE8_BLOCK], kind,
                                         tr_code8_draw(tr_rounding_draw(draw[i], squares))));
    memcpy(again, code, sizeof code);
    step_codes(set, kind, 1, zeros, draw, n, again, scales, out);
    for (int i = 0; i < n; i++) {
        const float scale = tr_code8_scale(largest[i / TR_CODE8_BLOCK]),
                    was = tr_code8_decode(code[i], scale, kind),
                    is = tr_code8_decode(again[i], scales[i / TR_CODE8_BLOCK], kind);
        assert_true(out[i] == (squares ? 1 / sqrtf(was) : was));
        assert_true(is == was);
    }
}

/* The kernels that round stochastically do what the headers do with each number. */
static void check_rounding(const tr_cpu_kernels *set) {
    enum { N = TR_CODE8_BLOCK + 203 };
    static const float special[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-130f, 0x1p-126f, INFINITY};
    float x[N], wide[N];
    uint16_t half[N], bits[N];
    uint32_t draw[N];
    for (int specials = 0; specials <= 6; specials++) {
        for (int i = 0; i < N; i++) {
            x[i] = tr_normal(seed, 3, (uint64_t)i) * exp2f((float)(i % 40 - 20 - i / 50));
            bits[i] = (uint16_t)(tr_philox4x32(seed, (uint64_t)i, 5).v[0] >> 16);
            draw[i] = tr_rounding_draw(bits[i], specials);
        }
        for (int i = 0; i < specials; i++) x[7 * i] = special[i];
        set->round_drawn(false, N, x, bits, specials, half);
        for (int i = 0; i < N; i++) {
            assert_int_equal(half[i], tr_round_bf16(x[i], draw[i]));
            wide[i] = tr_bf16_to_f32(half[i]) + x[N - 1 - i];
        }
        for (int i = 0; i < N / 2; i++) {
            const float other = x[i];
            x[i] = x[N - 1 - i];
            x[N - 1 - i] = other;
        }
        set->round_drawn(true, N, x, bits, specials, half);
        for (int i = 0; i < N; i++) assert_int_equal(half[i], tr_round_bf16(wide[i], draw[i]));
        check_codes(set, TR_CODE8_SIGNED, x, x, bits, N);
        check_codes(set, TR_CODE8_EVEN, x, x, bits, N);
        for (int i = 0; i < N; i++) wide[i] = x[i] * x[i];
        check_codes(set, TR_CODE8_SQUARES, wide, x, bits, N);
    }
}

static void test_rounding_kernels(void **state) {
    (void)state;
    for (int s = 0; s < known_sets(); s++) check_rounding(sets[s]);
}

/* One product of integers, of which every sum is exact in any order: `set` must give the bits of
 * the base kernels. A lies in rows or transposed; words of B past its depth are NaN. */
static void check_tiles(const tr_cpu_kernels *set, int64_t rows, int64_t panels, int64_t depth,
                        bool transposed, bool accumulate) {
    enum { MOST = 300, PANELS = 9 };
    static tr_word a[MOST * (TR_GEMM_MOST_ROWS + 5)], b[PANELS * (MOST + 1) * TR_PANEL];
    static float c[2][TR_GEMM_MOST_ROWS][PANELS * TR_PANEL + 3];
    const int64_t row_step = transposed ? 1 : depth + 5, column_step = transposed ? rows + 3 : 1;
    const int64_t panel_step = (depth + 1) * TR_PANEL, ldc = PANELS * TR_PANEL + 3;
    const tr_cpu_kernels *base = &tr_cpu_kernels_base;
    assert_true(depth < MOST && panels <= PANELS);
    memset(b, 0xff, sizeof b);
    memset(a, 0xff, sizeof a);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < depth; j++)
            a[i * row_step + j * column_step] = tr_f32_to_bf16((float)up_to(9) - 5) |
                                                (tr_word)tr_f32_to_bf16((float)up_to(9) - 5) << 16;
    for (int64_t p = 0; p < panels; p++)
        for (int64_t i = 0; i < depth * TR_PANEL; i++)
            b[p * panel_step + i] = tr_f32_to_bf16((float)up_to(9) - 5) |
                                    (tr_word)tr_f32_to_bf16((float)up_to(9) - 5) << 16;
    for (size_t i = 0; i < sizeof c[0] / sizeof(float); i++)
        ((float *)c[0])[i] = ((float *)c[1])[i] = (float)up_to(100);
    set->gemm[TR_BF16](rows, panels, depth, a, row_step, column_step, b, panel_step, c[1][0], ldc,
                       accumulate);
    base->gemm[TR_BF16](rows, panels, depth, a, row_step, column_step, b, panel_step, c[0][0], ldc,
                        accumulate);
    if (memcmp(c[0], c[1], sizeof c[0]) != 0)
        fail_msg("%lld rows, %lld panels, depth %lld%s%s", (long long)rows, (long long)panels,
                 (long long)depth, transposed ? ", transposed" : "", accumulate ? ", adds" : "");
}

/* AMX's products, where the processor has it. */
static void test_tiles(void **state) {
    (void)state;
    const tr_cpu_kernels *amx = tr_cpu_kernels_for(TR_CPU_AMX);
    if (!amx) {
        printf("skipped: the processor has no AMX, or the build no kernels for it\n");
        skip();
    }
    for (int64_t rows = 1; rows <= TR_GEMM_MOST_ROWS; rows++)
        for (int64_t panels = 1; panels <= 9; panels++)
            for (int form = 0; form < 4; form++) {
                check_tiles(amx, rows, panels, 16 * (1 + up_to(3)), form & 1, form & 2);
                check_tiles(amx, rows, panels, up_to(69), form & 1, form & 2);
                check_tiles(amx, rows, panels, 16 * (8 + up_to(9)), form & 1, form & 2);
            }
}

static size_t scratch_on(tr_device *device, const tr_op_desc *desc) {
    tr_op *op;
    must(tr_op_prepare(&(tr_op_context){.device = device}, desc, &op));
    const size_t bytes = op->scratch_bytes;
    tr_op_release(op);
    return bytes;
}

/* Threads without a head have no scratch: forward there is a task for each query head, backward for
 * each key head. */
static void test_attention_scratch(void **state) {
    (void)state;
    for (int64_t batch = 1; batch <= 2; batch++)
        for (tr_op_kind kind = TR_OP_ATTENTION; kind <= TR_OP_ATTENTION_DECODE; kind++) {
            const tr_op_desc desc = {.kind = kind,
                                     .attention = {.batch = batch,
                                                   .seq = 90,
                                                   .heads = 2,
                                                   .kv_heads = 1,
                                                   .head_size = 16,
                                                   .decode = 5}};
            const size_t tasks = (size_t)(kind == TR_OP_ATTENTION_DGRAD ? batch : 2 * batch);
            const size_t of_3_threads = scratch_on(cpu3, &desc), of_1 = scratch_on(cpu1, &desc);
            assert_int_equal(of_3_threads, (tasks < 3 ? tasks : 3) * of_1);
            check_case(&(tr_op_case){desc, 0});
        }
}

static int open_devices(void **state) {
    (void)state;
    seed = tr_test_seed(1);
    char version[32];
    printf("oneDNN %s %s, BF16 %s\n", tr_cpu_onednn_version(version, sizeof version), tr_cpu_isa(),
           tr_cpu_bf16_native() ? "native" : "widened");
    must(tr_device_open("ref", &(tr_device_options){.threads = 1}, &ref));
    must(tr_device_open("cpu", &(tr_device_options){.threads = 2}, &cpu));
    must(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &cpu1));
    must(tr_device_open("cpu", &(tr_device_options){.threads = 3}, &cpu3));
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    tr_device *all[] = {ref, cpu, cpu1, cpu3};
    for (int i = 0; i < 4; i++) tr_device_close(all[i]);
    return 0;
}

/* BF16 can represent 258 but not 257, which rounds to 256: a product that is rounded before the
 * residual is added gives a wrong sum. */
static void test_residual_is_rounded_once(void **state) {
    (void)state;
    enum { M = 5, N = 24, K = 255 };
    static uint16_t a[M * K], b[N * K], bias[N], residual[M * N], c[M * N];
    for (int i = 0; i < M * K; i++) a[i] = tr_f32_to_bf16(1);
    for (int i = 0; i < N * K; i++) b[i] = tr_f32_to_bf16(1);
    for (int i = 0; i < N; i++) bias[i] = tr_f32_to_bf16(2);
    for (int i = 0; i < M * N; i++) residual[i] = tr_f32_to_bf16((float)(1 + 2 * (i % 8)));
    for (int run = 0; run < 4; run++) {
        const bool transposed = run % 2;
        tr_device *device = run < 2 ? cpu : ref;
        const tr_op_desc desc = {.kind = TR_OP_MATMUL,
                                 .matmul = {.m = M,
                                            .n = N,
                                            .k = K,
                                            .a = TR_BF16,
                                            .b = TR_BF16,
                                            .c = TR_BF16,
                                            .trans_b = transposed,
                                            .fused = {.bias = true, .residual = true}}};
        tr_op *op;
        assert_int_equal(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op), TR_OK);
        void *scratch = malloc(op->scratch_bytes + 1);
        tr_op_args args = {.scratch = scratch};
        tr_op_operands(&desc, args.t);
        args.t[TR_MATMUL_A].data = a;
        args.t[TR_MATMUL_B].data = b;
        args.t[TR_MATMUL_C].data = c;
        args.t[TR_MATMUL_BIAS].data = bias;
        args.t[TR_MATMUL_RESIDUAL].data = residual;
        assert_int_equal(tr_op_run(op, tr_device_compute(device), &args), TR_OK);
        for (int i = 0; i < M * N; i++)
            assert_true(tr_bf16_to_f32(c[i]) == (float)(258 + 2 * (i % 8)));
        tr_op_release(op);
        free(scratch);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_depths),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_mixed_matmul),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_row_kernels),
        cmocka_unit_test(test_elementwise_kernels),
        cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_rounding_kernels),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_residual_is_rounded_once),
        cmocka_unit_test(test_attention_scratch),
    };
    if (chosen_names()) cmocka_set_test_filter("test_table");
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
