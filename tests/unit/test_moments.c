/* Tests the rounding of the optimizer's states and of sums of gradients (QUANTIZE,
 * layers/rounding.h) and the codes of base/code8.h: it is unbiased, independent between steps,
 * micro-batches and tensors, as good as independent between the states of an element, and the same
 * for an element of a global tensor in every part of it that a rank holds. */
#include "base/code8.h"
#include "base/philox.h"
#include "device/device.h"
#include "layers/rounding.h"
#include "support/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DRAWS = 1000000 };

static uint64_t seed;
static tr_device *device;
static float *x;
static uint16_t *y;

static int setup(void **state) {
    (void)state;
    x = malloc(DRAWS * sizeof *x);
    y = malloc(DRAWS * sizeof *y);
    return !x || !y || tr_device_open("cpu", &(tr_device_options){.threads = 2}, &device) != TR_OK;
}

static int teardown(void **state) {
    (void)state;
    tr_device_close(device);
    free(x);
    free(y);
    return 0;
}

/* A tensor with one box. */
typedef struct owned {
    tr_param param;
    tr_global global;
    tr_box box;
} owned;

static tr_param *own(owned *o, const char *name, int64_t rows, int64_t cols, tr_box box) {
    o->box = box;
    o->global = (tr_global){.rank = 2, .shape = {rows, cols}, .boxes = 1, .box = &o->box};
    (void)snprintf(o->global.name, sizeof o->global.name, "%s", name);
    o->param =
        (tr_param){.tensors = 1, .tensor = &o->global, .count = box.extent[0] * box.extent[1]};
    return &o->param;
}

static tr_param *own_whole(owned *o, const char *name, int64_t rows, int64_t cols) {
    return own(o, name, rows, cols, (tr_box){.extent = {rows, cols}, .local_stride = {cols, 1}});
}

/* Rounds from[count], the parameter's elements from `element` on, to to[count]; adds: rounds their
 * sums with to[count]. sample: the first one of a micro-batch. */
static void round_or_add(const tr_param *param, int use, int64_t step, int64_t sample, bool adds,
                         int64_t element, int64_t count, const float *from, uint16_t *to) {
    tr_op_desc desc;
    tr_op *op = NULL;
    tr_step_state at = {.seed = seed, .step = step};
    if (tr_param_rounding(param, use, count, &desc) != TR_OK ||
        tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op) != TR_OK)
        fail_msg("%s", tr_error_message());
    const tr_op_args args = {.t = {[TR_QUANTIZE_X] = tr_tensor_vector(from, TR_F32, count),
                                   [TR_QUANTIZE_Y] = tr_tensor_vector(to, TR_BF16, count)},
                             .state = &at,
                             .sample = sample,
                             .element = element,
                             .adds = adds};
    assert_int_equal(tr_op_run(op, tr_device_compute(device), &args), TR_OK);
    assert_int_equal(tr_stream_sync(tr_device_compute(device)), TR_OK);
    tr_op_release(op);
}

static void round_part(const tr_param *param, int use, int64_t step, int64_t element, int64_t count,
                       const float *from, uint16_t *to) {
    round_or_add(param, use, step, 0, false, element, count, from, to);
}

static void near(double have, double want, double limit, const char *what, double of) {
    if (!(fabs(have - want) <= limit))
        fail_msg("%s of %g: %g, not within %g of %g (seed %llu)", what, of, have, limit, want,
                 (unsigned long long)seed);
}

/* The mean of n draws with a chance p of one gap more is within 4 sigma. */
static void is_unbiased(void **state) {
    (void)state;
    const float some[] = {1.0f + 0x1p-9f,
                          1.0f + 0x1p-7f * 0.999f,
                          -1.0f - 0x1.8p-9f,
                          3.14159265f,
                          -2.7e-20f,
                          1e30f,
                          1.5f,
                          0.0f,
                          0x1.23456p-130f};
    owned o;
    const tr_param *param = own_whole(&o, "tensor", 1000, DRAWS / 1000);
    for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
        double sum = 0;
        uint32_t bits;
        memcpy(&bits, &some[k], sizeof bits);
        const double low = (double)tr_bf16_to_f32((uint16_t)(bits >> 16));
        const double gap = (double)tr_bf16_to_f32((uint16_t)((bits >> 16) + 1)) - low;
        const double p = ((double)some[k] - low) / gap;
        for (int i = 0; i < DRAWS; i++) x[i] = some[k];
        round_part(param, 0, 1, 0, DRAWS, x, y);
        for (int i = 0; i < DRAWS; i++) {
            const double up = ((double)tr_bf16_to_f32(y[i]) - low) / gap;
            assert_true(up == 0 || up == 1);
            sum += up;
        }
        near(sum / DRAWS, p, 4 * sqrt(p * (1 - p) / DRAWS), "chance of the larger neighbour",
             (double)some[k]);
    }
}

/* Both uses of a tied table, and tensor ranks that compute parts of a gradient, have a use of
 * QUANTIZE of their own; tensor ranks with the same gradient share one. */
static void gradients_have_uses(void **state) {
    (void)state;
    enum { TP = 4 };
    static const tr_param params[] = {{.use = 0, .partial = TR_AXIS_BIT(TR_AXIS_TP)},
                                      {.use = 1, .partial = TR_AXIS_BIT(TR_AXIS_TP)}};
    bool taken[2 * TP] = {0};
    for (int k = 0; k < 2; k++)
        for (int rank = 0; rank < TP; rank++) {
            const int use = tr_param_rounding_gradient(&params[k], rank, TP);
            const int place = (use - TR_PARAM_ROUNDING_GRADIENT) / TR_ROUNDING_USES;
            assert_int_equal(use, TR_PARAM_ROUNDING_GRADIENT + place * TR_ROUNDING_USES);
            assert_in_range(place, 0, 2 * TP - 1);
            assert_false(taken[place]);
            taken[place] = true;
            const tr_param whole = {.use = params[k].use}, pair = {.use = params[k].use,
                                                                   .partial = params[k].partial,
                                                                   .copies = {[TR_AXIS_TP] = 2}};
            assert_int_equal(tr_param_rounding_gradient(&whole, rank, TP),
                             tr_param_rounding_gradient(&whole, 0, TP));
            assert_int_equal(tr_param_rounding_gradient(&pair, rank, TP),
                             tr_param_rounding_gradient(&pair, rank % 2, TP));
        }
}

/* Draws of half a gap are +1 and -1 with equal chances: the mean of their products is 0 within 4
 * sigma. */
static void is_independent(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int use;
        int64_t step, away, sample;
    } other[] = {{"tensor", 0, 2, 0, 0},    {"tensor", 1, 1, 0, 0},
                 {"tensor2", 0, 1, 0, 0},   {"tensor", 0, 1LL << 40, 0, 0},
                 {"tensor", 0, 1, 1, 0},    {"tensor", 0, 1, 2, 0},
                 {"tensor", 0, 1, 4, 0},    {"tensor", 0, 1, 8, 0},
                 {"tensor", 0, 1, 0, 1},    {"tensor", 0, 1, 0, 4},
                 {"tensor", 0, 1, 0, 4096}, {"tensor", TR_PARAM_ROUNDING_GRADIENT, 1, 0, 0}};
    uint16_t *z = malloc(DRAWS * sizeof *z);
    owned o;
    assert_non_null(z);
    for (int i = 0; i < DRAWS; i++) x[i] = 1.0f + 0x1p-8f;
    round_part(own_whole(&o, "tensor", 1, DRAWS), 0, 1, 0, DRAWS, x, y);
    for (size_t k = 0; k < sizeof other / sizeof *other; k++) {
        int64_t sum = 0;
        const int64_t n = DRAWS - other[k].away;
        round_or_add(own_whole(&o, other[k].name, 1, DRAWS), other[k].use, other[k].step,
                     other[k].sample, false, 0, DRAWS, x, z);
        for (int64_t i = 0; i < n; i++)
            sum += (y[i] == 0x3f80 ? -1 : 1) * (z[i + other[k].away] == 0x3f80 ? -1 : 1);
        near((double)sum / (double)n, 0, 4 / sqrt((double)n), "correlation in case", (double)k);
    }
    free(z);
}

/* Counts half-words by their draws of use 0, of `other` and, for a cube, of use 2. Returns the most
 * by which the share of those below a, b and c differs from the product of the shares below each,
 * over all multiples a, b and c of 65536 / cells. */
static double most_uneven(int cells, int other, bool cube) {
    static int32_t count[257][257][65];
    const int depth = cube ? cells : 1;
    double most = 0;
    memset(count, 0, sizeof count);
    for (uint32_t half = 0; half < 65536; half++) {
        const uint32_t a = tr_rounding_draw(half, 0), b = tr_rounding_draw(half, other),
                       c = cube ? tr_rounding_draw(half, 2) : 0;
        count[a * (uint32_t)cells >> 16][b * (uint32_t)cells >> 16][c * (uint32_t)cells >> 16]++;
    }
    for (int i = 0; i < cells; i++)
        for (int j = 0; j < cells; j++)
            for (int k = 0; k < depth; k++) {
                int32_t *cell = &count[i][j][k];
                if (i > 0) *cell += count[i - 1][j][k];
                if (j > 0) *cell += count[i][j - 1][k];
                if (k > 0) *cell += count[i][j][k - 1];
                if (i > 0 && j > 0) *cell -= count[i - 1][j - 1][k];
                if (i > 0 && k > 0) *cell -= count[i - 1][j][k - 1];
                if (j > 0 && k > 0) *cell -= count[i][j - 1][k - 1];
                if (i > 0 && j > 0 && k > 0) *cell += count[i - 1][j - 1][k - 1];
                const double want =
                    (double)(i + 1) * (j + 1) * (k + 1) / ((double)cells * cells * depth);
                most = fmax(most, fabs((double)*cell / 65536 - want));
            }
    return most;
}

/* The uses that share a half-word draw each number once, and together as the comment of
 * tr_rounding_factor says. */
static void uses_share_bits_evenly(void **state) {
    (void)state;
    static bool drawn[TR_ROUNDING_USES][65536];
    for (int use = 0; use < TR_ROUNDING_USES; use++)
        for (uint32_t half = 0; half < 65536; half++) {
            const uint32_t draw = tr_rounding_draw(half, use);
            assert_true(draw < 65536 && !drawn[use][draw]);
            drawn[use][draw] = true;
        }
    /* Uses 1 and 2 are in proportion as 0 and 1 are. */
    assert_true(most_uneven(256, 1, false) < 7e-5);
    assert_true(most_uneven(256, 2, false) < 7e-5);
    assert_true(most_uneven(64, 1, true) < 2e-4);
}

/* Every part of a matrix rounds as the whole: rows, columns, a range of elements (parallel.zero),
 * and a matrix that is turned in memory as its own whole. */
static void is_the_same_in_parts(void **state) {
    (void)state;
    enum { ROWS = 45, COLS = 203, COUNT = ROWS * COLS };
    static float part[COUNT];
    static uint16_t whole[COUNT], got[COUNT], turned[COUNT];
    owned o;
    for (int i = 0; i < COUNT; i++) x[i] = tr_normal(seed, 3, (uint64_t)i);
    round_part(own_whole(&o, "matrix", ROWS, COLS), 1, 9, 0, COUNT, x, whole);
    for (int turn = 0; turn < 2; turn++) {
        const uint16_t *want = turn ? turned : whole;
        for (int cut = 0; cut < 300; cut++) {
            const int64_t r0 = cut % 7 ? cut % ROWS : 0, c0 = cut % 5 ? cut % COLS : 0;
            const int64_t rows = 1 + (cut * 31) % (ROWS - r0), cols = 1 + (cut * 17) % (COLS - c0);
            const tr_box box = {.offset = {r0, c0},
                                .extent = {rows, cols},
                                .local_stride = {turn ? 1 : cols, turn ? rows : 1}};
            const int64_t from = cut % 3 ? cut % (rows * cols) : 0, n = rows * cols - from;
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < cols; j++)
                    part[turn ? j * rows + i : i * cols + j] = x[(r0 + i) * COLS + c0 + j];
            /* A matrix of one row or column has one order in memory. */
            if (turn && (rows == 1 || cols == 1)) continue;
            if (turn && cut == 0) continue;
            round_part(own(&o, "matrix", ROWS, COLS, box), 1, 9, from, n, part + from, got);
            for (int64_t k = from; k < from + n; k++) {
                const int64_t i = turn ? k % rows : k / cols, j = turn ? k / rows : k % cols;
                if (got[k - from] != want[(r0 + i) * COLS + c0 + j])
                    fail_msg("turned %d, cut %d: element (%d, %d) rounds otherwise", turn, cut,
                             (int)(r0 + i), (int)(c0 + j));
            }
        }
        if (turn) break;
        /* The turned whole, by which its parts are judged. */
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) part[j * ROWS + i] = x[i * COLS + j];
        round_part(own(&o, "matrix", ROWS, COLS,
                       (tr_box){.extent = {ROWS, COLS}, .local_stride = {1, ROWS}}),
                   1, 9, 0, COUNT, part, got);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) turned[i * COLS + j] = got[j * ROWS + i];
    }
}

/* With beta2 0.999 a step moves a second moment by less than half a gap of BF16, so that rounding
 * to nearest keeps it where it is for ever. */
static void moves_slow_means(void **state) {
    (void)state;
    enum { COUNT = 4096, STEPS = 1000 };
    owned o;
    const tr_param *param = own_whole(&o, "second", 1, COUNT);
    double sum = 0, squares = 0, want = 1;
    float stuck = 1;
    for (int i = 0; i < COUNT; i++) x[i] = 1;
    for (int t = 1; t <= STEPS; t++) {
        for (int i = 0; i < COUNT; i++) x[i] = 0.999f * x[i] + 0.001f * 2;
        round_part(param, 1, t, 0, COUNT, x, y);
        for (int i = 0; i < COUNT; i++) x[i] = tr_bf16_to_f32(y[i]);
        stuck = tr_bf16_to_f32(tr_f32_to_bf16(0.999f * stuck + 0.001f * 2));
        want = 0.999 * want + 0.001 * 2;
    }
    for (int i = 0; i < COUNT; i++) {
        sum += (double)x[i];
        squares += ((double)x[i] - want) * ((double)x[i] - want);
    }
    const double sigma = sqrt(squares / COUNT);
    near(sum / COUNT, want, 4 * sigma / sqrt(COUNT), "mean", want);
    /* Each step's variance is at most the step's size times a gap: 0.001 * 2^-7; and the factor
     * 0.999 leaves of these at most 1 / (1 - 0.999^2). */
    assert_true(sigma <= sqrt(0.001 * 0x1p-7 / (1 - 0.999 * 0.999)));
    assert_true(stuck == 1);
}

/* The first micro-batch writes 1, and each of the others adds 1/32 of a gap of BF16, which rounding
 * to nearest would lose. The sums' mean is exact within 4 sigma, and their variance is that of
 * independent draws within 4 sigma: with the same draws for every micro-batch it would be 15 times
 * as large. */
static void sums_of_gradients_are_unbiased(void **state) {
    (void)state;
    enum { ADDED = 15 };
    const double p = 1.0 / 32, pq = p * (1 - p), variance = ADDED * pq;
    owned o;
    const tr_param *param = own_whole(&o, "weight", 1000, DRAWS / 1000);
    double sum = 0, squares = 0;
    memset(y, 0xff, DRAWS * sizeof *y); /* NaN, which the first one does not read */
    for (int m = 0; m <= ADDED; m++) {
        for (int i = 0; i < DRAWS; i++) x[i] = m == 0 ? 1.0f : 0x1p-12f;
        round_or_add(param, TR_PARAM_ROUNDING_GRADIENT, 3, 4 * m, m > 0, 0, DRAWS, x, y);
    }
    for (int i = 0; i < DRAWS; i++) {
        const double gaps = ((double)tr_bf16_to_f32(y[i]) - 1) * 0x1p7 - ADDED * p;
        sum += gaps;
        squares += gaps * gaps;
    }
    near(sum / DRAWS, 0, 4 * sqrt(variance / DRAWS), "mean error of sums", ADDED);
    /* The fourth moment of a binomial number. */
    const double fourth = 3 * variance * variance + variance * (1 - 6 * pq);
    near(squares / DRAWS, variance, 4 * sqrt((fourth - variance * variance) / DRAWS),
         "variance of sums", ADDED);
}

/* Every number keeps its value, in its own block and in one of which the scale is larger as long as
 * that reaches down to it; zeros are 0; neighbours are at most 1/8 apart, down to 2^-14 and 2^-30
 * of the scale, or with the even code 2^-6 of the scale. */
static void check_number(int number, float s, tr_code8 code) {
    const bool squares = code == TR_CODE8_SQUARES;
    const int size = squares ? number : number & 127;
    const float value = tr_code8_decode((uint8_t)number, s, code);
    for (uint32_t draw = 0; draw < 4; draw++)
        assert_int_equal(tr_code8_encode(value, s, code, draw * 0x55555555u), number);
    const bool has_room = code == TR_CODE8_EVEN ? size % 2 == 0 : size > 16 || size == 0;
    if (s < 0x1p100f && has_room)
        assert_true(tr_code8_decode(tr_code8_encode(value, 2 * s, code, 0), 2 * s, code) == value);
    if (size == 0) return;
    const float before = tr_code8_decode((uint8_t)(number - 1), s, code);
    if (code == TR_CODE8_EVEN) assert_true(fabsf(value) - fabsf(before) == 0x1p-6f * s);
    if (code == TR_CODE8_EVEN || size < 9) return;
    assert_true(fabsf(value) > fabsf(before) && fabsf(value) <= 1.125f * fabsf(before));
}

static void codes_keep_their_numbers(void **state) {
    (void)state;
    static const float scales[] = {0x1p-100f, 0x1p-30f, 1.0f, 0x1p64f, 0x1p126f};
    for (size_t k = 0; k < sizeof scales / sizeof *scales; k++) {
        const float s = scales[k];
        for (int c = 0; c < TR_CODE8_CODES; c++) {
            const tr_code8 code = (tr_code8)c;
            const int largest = tr_code8_largest(code);
            for (int number = 0; number <= largest; number++) {
                check_number(number, s, code);
                if (code != TR_CODE8_SQUARES && number > 0) check_number(128 + number, s, code);
            }
            assert_true(tr_code8_decode((uint8_t)largest, s, code) == 1.875f * s);
        }
        assert_true(tr_code8_scale(1.875f * s) == s && tr_code8_scale(1.0f * s) == s);
    }
    assert_true(tr_code8_scale(0) == 0 && tr_code8_encode(0, 0, TR_CODE8_SQUARES, 0) == 0);
    assert_true(tr_code8_scale(nextafterf(1.875f, 2)) == 2 && tr_code8_scale(0.99f) == 1);
    assert_true(tr_code8_scale(0.9375f) == 0.5f);
    /* A square is never divided by as 0. */
    assert_int_equal(tr_code8_encode(1e-30f, 1, TR_CODE8_SQUARES, 0), 1);
    assert_int_equal(tr_code8_encode(1e-30f, 1, TR_CODE8_SIGNED, 0), 0);
    assert_int_equal(tr_code8_encode(NAN, 1, TR_CODE8_SIGNED, 0), 127);
    assert_int_equal(tr_code8_encode(-INFINITY, 1, TR_CODE8_SIGNED, 0), 255);
    assert_int_equal(tr_code8_encode(-INFINITY, 1, TR_CODE8_EVEN, 0), 248);
}

/* The mean of n draws is within 4 sigma of the number, of every size in a block. */
static void codes_are_unbiased(void **state) {
    (void)state;
    static const float some[] = {1.8f, -1.03f, 0.3f, 0x1.4p-13f, -0x1.1p-16f, 0x1p-18f};
    for (size_t k = 0; k < sizeof some / sizeof *some; k++)
        for (int c = 0; c < TR_CODE8_CODES; c++) {
            const tr_code8 code = (tr_code8)c;
            const float number = some[k];
            double sum = 0, squared = 0;
            if (code == TR_CODE8_SQUARES && number < 0) continue;
            for (int i = 0; i < DRAWS; i++) {
                const uint32_t draw =
                    tr_code8_draw(tr_philox_half(tr_philox4x32(seed, (uint64_t)i, 5), 0));
                const double d =
                    (double)tr_code8_decode(tr_code8_encode(number, 1, code, draw), 1, code) -
                    (double)number;
                sum += d;
                squared += d * d;
            }
            const double sigma = sqrt(squared / DRAWS);
            const double gap =
                code == TR_CODE8_EVEN ? 0x1p-6 : fmax(fabs((double)number) / 8, 0x1p-17);
            assert_true(sigma <= gap / 2 * 1.01);
            near(sum / DRAWS, 0, 4 * sigma / sqrt(DRAWS), "mean error", (double)number);
        }
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_unbiased),
        cmocka_unit_test(gradients_have_uses),
        cmocka_unit_test(is_independent),
        cmocka_unit_test(uses_share_bits_evenly),
        cmocka_unit_test(is_the_same_in_parts),
        cmocka_unit_test(moves_slow_means),
        cmocka_unit_test(sums_of_gradients_are_unbiased),
        cmocka_unit_test(codes_keep_their_numbers),
        cmocka_unit_test(codes_are_unbiased),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
