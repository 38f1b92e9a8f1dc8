/* Compares muon's orthogonal directions with the same five steps in FP64, as Jordan et al. 2024
 * write them: in FP64 within 1e-10, in FP32 within 1e-5. Those of BF16 and FP16 models are made in
 * BF16, and may be 1.5 times as far off as the published steps in BF16 over all matrices, 2 times
 * over those of one shape. The matrices are drawn several times, because a single error is chance.
 * Sizes of their columns differ by two orders of magnitude. */
#include "base/memory.h"
#include "base/philox.h"
#include "device/device.h"
#include "partition/muon.h"
#include "support/must.h"
#include "train/newton_schulz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MATRICES = 5, MOST = 48 * 48, DRAWS = 8 };
static const int64_t shapes[MATRICES][2] = {{48, 48}, {16, 48}, {48, 24}, {1, 40}, {33, 7}};
static const double A = 3.4445, B = -4.7750, C = 2.0315;

typedef struct matrices {
    double start[MATRICES][MOST], exact[MATRICES][MOST], published[MATRICES][MOST];
} matrices;

/* Sums of squares over the draws, relative to the exact directions. */
typedef struct errors {
    double made[MATRICES], published[MATRICES];
} errors;

static double round_to(bool bf16, double x) {
    return bf16 ? (double)tr_bf16_to_f32(tr_f32_to_bf16((float)x)) : x;
}

/* The published steps on x[rows, cols], each product rounded once if bf16. */
static void step_as_published(int64_t rows, int64_t cols, bool bf16, double *x) {
    static double gram[MOST], change[MOST], next[MOST];
    const bool left = rows <= cols;
    const int64_t side = left ? rows : cols, depth = left ? cols : rows;
    const int64_t step = left ? cols : 1, along = left ? 1 : cols; /* of x, or of its transpose */
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < side; j++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum += x[i * step + k * along] * x[j * step + k * along];
            gram[i * side + j] = round_to(bf16, sum);
        }
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < side; j++) {
            double sum = B * gram[i * side + j];
            for (int64_t k = 0; k < side; k++) sum += C * gram[i * side + k] * gram[k * side + j];
            change[i * side + j] = round_to(bf16, sum);
        }
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < depth; j++) {
            double sum = A * x[i * step + j * along];
            for (int64_t k = 0; k < side; k++)
                sum += change[i * side + k] * x[k * step + j * along];
            next[i * step + j * along] = round_to(bf16, sum);
        }
    memcpy(x, next, (size_t)(rows * cols) * sizeof *x);
}

static double norm_of(const double *x, const double *minus, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += pow(x[i] - (minus ? minus[i] : 0), 2);
    return sqrt(sum);
}

static void draw(uint64_t seed, matrices *m) {
    for (uint64_t k = 0; k < MATRICES; k++) {
        const int64_t rows = shapes[k][0], cols = shapes[k][1], n = rows * cols;
        double size[48];
        for (int64_t c = 0; c < cols; c++) size[c] = exp(tr_normal(2 * seed, k, (uint64_t)c));
        for (int64_t i = 0; i < n; i++)
            m->start[k][i] =
                (double)(float)(size[i % cols] * tr_normal(2 * seed + 1, k, (uint64_t)i));
        const double norm = norm_of(m->start[k], NULL, n);
        for (int64_t i = 0; i < n; i++) {
            m->exact[k][i] = m->start[k][i] / (norm + 1e-7);
            m->published[k][i] = round_to(true, m->exact[k][i]);
        }
        for (int t = 0; t < TR_MUON_STEPS; t++) {
            step_as_published(rows, cols, false, m->exact[k]);
            step_as_published(rows, cols, true, m->published[k]);
        }
    }
}

/* A store of these matrices, on one rank. */
typedef struct owned {
    tr_store store;
    tr_store_slot slot[MATRICES];
    tr_param param[MATRICES];
    tr_global global[MATRICES];
    tr_box box[MATRICES];
    double norms[MATRICES][2];
} owned;

/* directions: memory for those of all matrices, adjacent. */
static void own(owned *o, const matrices *m, tr_device *device, tr_dtype dtype, char *directions) {
    const tr_dtype acc = tr_dtype_acc(dtype);
    o->store = (tr_store){.device = device,
                          .dtype = dtype,
                          .acc = acc,
                          .optimizer = TR_OPTIM_MUON,
                          .slot = o->slot,
                          .slots = MATRICES,
                          .laps = 1};
    for (int k = 0; k < MATRICES; k++) {
        const int64_t rows = shapes[k][0], cols = shapes[k][1], n = rows * cols;
        o->box[k] = (tr_box){.extent = {rows, cols}, .local_stride = {cols, 1}};
        o->global[k] = (tr_global){.name = {'m', (char)('0' + k)},
                                   .rank = 2,
                                   .shape = {rows, cols},
                                   .boxes = 1,
                                   .box = &o->box[k]};
        o->param[k] = (tr_param){.tensors = 1,
                                 .tensor = &o->global[k],
                                 .local = {rows, cols},
                                 .count = n,
                                 .is_linear = true,
                                 .dtype = dtype};
        o->slot[k] = (tr_store_slot){
            .param = &o->param[k],
            .layout = {.replicas = {.count = {1, 1, 1}}, .parts = 1, .counted_in_tp = true},
            .portion = {.extent = n},
            .direction = directions,
            .optimizer = TR_OPTIM_MUON,
            .shares = -1};
        o->norms[k][1] = pow(norm_of(m->start[k], NULL, n), 2);
        for (int64_t i = 0; i < n; i++) {
            if (acc == TR_F64) ((double *)(void *)directions)[i] = m->start[k][i];
            else ((float *)(void *)directions)[i] = (float)m->start[k][i];
        }
        directions += (size_t)n * tr_dtype_size(acc);
    }
}

/* Returns how far one direction is from the exact one, of that one's norm. */
static double error_of(const owned *o, const matrices *m, int k) {
    static double got[MOST];
    tr_muon muon;
    const tr_store_slot *slot = &o->slot[k];
    const int64_t n = slot->param->count;
    assert_int_equal(tr_muon_make(slot->param, &slot->layout, &muon), TR_OK);
    const double longer = (double)(muon.rows > muon.cols ? muon.rows : muon.cols);
    const double factor = muon.length / (0.2 * sqrt(longer));
    for (int64_t i = 0; i < n; i++)
        got[i] = factor * (o->store.acc == TR_F64 ? ((const double *)slot->direction)[i]
                                                  : (double)((const float *)slot->direction)[i]);
    return norm_of(got, m->exact[k], n) / norm_of(m->exact[k], NULL, n);
}

static void run(const matrices *m, const char *device_name, tr_dtype dtype, errors *sum) {
    static double directions[MATRICES * MOST];
    owned *o = calloc(1, sizeof *o);
    tr_device *device;
    tr_newton_schulz *made;
    size_t bytes = 0;
    assert_non_null(o);
    must(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device));
    own(o, m, device, dtype, (char *)directions);
    must(tr_newton_schulz_create(&o->store, NULL, &made));
    for (int k = 0; k < MATRICES; k++) must(tr_newton_schulz_add(made, k, o->norms[k], &bytes));
    must(tr_newton_schulz_alloc(made));
    void *scratch = aligned_alloc(TR_ALIGN, tr_align_up(bytes + 1));
    assert_non_null(scratch);
    must(tr_newton_schulz_run(made, 0, tr_device_compute(device), scratch));
    must(tr_stream_sync(tr_device_compute(device)));
    for (int k = 0; k < MATRICES; k++) {
        const int64_t n = o->param[k].count;
        const double norm = norm_of(m->exact[k], NULL, n);
        sum->made[k] += pow(error_of(o, m, k), 2);
        sum->published[k] += pow(norm_of(m->published[k], m->exact[k], n) / norm, 2);
    }
    tr_newton_schulz_destroy(made);
    tr_device_close(device);
    free(scratch);
    free(o);
}

/* limit 0: what the published steps in BF16 allow. */
static void check(const char *device, tr_dtype dtype, double limit) {
    matrices *m = calloc(1, sizeof *m);
    errors sum = {{0}, {0}};
    double all = 0, published = 0;
    assert_non_null(m);
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        draw(seed, m);
        run(m, device, dtype, &sum);
    }
    for (int k = 0; k < MATRICES; k++) {
        const double most = limit > 0 ? limit : 2 * sqrt(sum.published[k]);
        if (!(sqrt(sum.made[k]) <= most))
            fail_msg("%s on %s, matrix %d: off by %g, not %g", tr_dtype_name(dtype), device, k,
                     sqrt(sum.made[k]), most);
        all += sum.made[k];
        published += sum.published[k];
    }
    if (limit == 0 && !(sqrt(all) <= 1.5 * sqrt(published)))
        fail_msg("%s on %s: off by %g, the published steps by %g", tr_dtype_name(dtype), device,
                 sqrt(all), sqrt(published));
    free(m);
}

static void directions_are_orthogonal(void **state) {
    (void)state;
    check("ref", TR_F64, 1e-10);
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        const char *device = on_cpu ? "cpu" : "ref";
        check(device, TR_F32, 1e-5);
        check(device, TR_BF16, 0);
        check(device, TR_F16, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(directions_are_orthogonal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
