/* Tests sums of gradients in BF16 (optim.gradients): one rank's sums over the micro-batches of a
 * step are as near to those in FP32 as independent stochastic rounding leaves them, all of their
 * memory is planned, and it falls. */
#include "base/memory.h"
#include "support/small_engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_BATCHES = 16 };

static tr_status same_sample(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                             int count) {
    (void)sample;
    return fetch(context, validation, 3, wanted, count);
}

typedef struct owned {
    tr_world *world;
    tr_device *device;
    tr_schedule *schedule;
    tr_engine *engine;
    tr_memory_plan plan;
} owned;

/* Takes a step of equal micro-batches. */
static void open_and_step(owned *o, tr_dtype gradients, tr_dtype dtype, int micro_batches) {
    tr_step_result result;
    assert_int_equal(tr_world_open_local(1, &o->world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 2}, &o->device), TR_OK);
    o->schedule = schedule_of("1f1b", 1, micro_batches);
    tr_engine_desc desc = small(o->world, o->device, o->schedule);
    desc.batch = micro_batches;
    desc.micro_batch = 1;
    desc.dtype = dtype;
    desc.fetch = same_sample;
    desc.optimizer.gradients = gradients;
    if (tr_engine_create(&desc, &o->engine) != TR_OK) fail_msg("%s", tr_error_message());
    assert_int_equal(tr_store_init(tr_engine_store(o->engine), 1, NULL), TR_OK);
    assert_int_equal(tr_engine_step(o->engine, 1, 1, 0, 1e-3, &result), TR_OK);
    assert_true(result.finite);
    tr_engine_plan(o->engine, &o->plan);
    for (int c = 0; c < TR_MEMORY_CLASSES; c++)
        assert_int_equal(o->plan.of[c], tr_device_peak(o->device, (tr_memory)c));
}

static void close_engine(owned *o) {
    tr_engine_destroy(o->engine);
    tr_schedule_destroy(o->schedule);
    tr_device_close(o->device);
    tr_world_close(o->world);
}

/* After m micro-batches the sum is m / 16 of the whole one, S. A rounding moves it by less than a
 * gap, at most 2^-7 of it. Its variance is at most a quarter of the gap's square, so that
 * independent roundings leave a root mean square of at most 2^-8 sqrt(1 + 4 + ... + 256) / 16 of
 * that of S. Those with the same draws in each micro-batch, which are correlated by a half, leave
 * more. */
static void compare(const tr_param *narrow, const tr_param *wide, double *squares, double *errors) {
    const uint16_t *got = narrow->grad;
    const float *want = wide->grad;
    for (int64_t i = 0; i < wide->count; i++) {
        const double size = fabs((double)want[i]);
        const double error = (double)tr_bf16_to_f32(got[i]) - (double)want[i];
        double most = 0;
        for (int m = 1; m <= MICRO_BATCHES; m++)
            most = most * (1 + 0x1p-7) + 0x1p-7 * size * m / MICRO_BATCHES;
        /* FP32 sums have their own errors. */
        if (!(fabs(error) <= most + 0x1p-19 * size + 1e-30))
            fail_msg("%s, element %lld: %g, not within %g of %g", tr_param_name(narrow),
                     (long long)i, (double)tr_bf16_to_f32(got[i]), most, (double)want[i]);
        *squares += size * size;
        *errors += error * error;
    }
}

static void sums_are_near_those_in_fp32(void **state) {
    (void)state;
    const double steps = MICRO_BATCHES * (MICRO_BATCHES + 1) * (2 * MICRO_BATCHES + 1) / 6.0;
    const tr_dtype dtypes[] = {TR_F32, TR_BF16};
    for (int d = 0; d < 2; d++) {
        owned narrow, wide;
        double squares = 0, errors = 0;
        open_and_step(&narrow, TR_BF16, dtypes[d], MICRO_BATCHES);
        open_and_step(&wide, TR_F32, dtypes[d], MICRO_BATCHES);
        const tr_store *a = tr_engine_store(narrow.engine), *b = tr_engine_store(wide.engine);
        assert_true(a->slots > 0 && a->slots == b->slots);
        for (int i = 0; i < a->slots; i++) {
            /* The optimizer has added the second use of a tied one to the first. */
            const bool tied = a->slot[i].param->use > 0 || strcmp(tr_param_name(a->slot[i].param),
                                                                  "transformer.wte.weight") == 0;
            if (!tied) compare(a->slot[i].param, b->slot[i].param, &squares, &errors);
        }
        const double off = sqrt(errors / squares), most = 0x1p-8 * sqrt(steps) / MICRO_BATCHES;
        if (!(off > most / 8 && off <= most))
            fail_msg("%s: sums are %g off, not at most %g", tr_dtype_name(dtypes[d]), off, most);
        assert_true(narrow.plan.of[TR_MEMORY_GRADIENTS] < wide.plan.of[TR_MEMORY_GRADIENTS]);
        close_engine(&narrow);
        close_engine(&wide);
    }
}

/* The memory is 2 bytes for each gradient, and 4 for each of the layer that has most: a block, with
 * 12 C^2 + 13 C parameters. */
static void memory_is_as_documented(void **state) {
    (void)state;
    enum { C = 32 };
    owned narrow, wide;
    open_and_step(&narrow, TR_BF16, TR_BF16, 2);
    open_and_step(&wide, TR_F32, TR_BF16, 2);
    const size_t gaps = 12 * TR_ALIGN, addend = 4 * (12 * C * C + 13 * C),
                 have = narrow.plan.of[TR_MEMORY_GRADIENTS] - wide.plan.of[TR_MEMORY_GRADIENTS] / 2;
    assert_in_range(have, addend, addend + 2 * gaps);
    close_engine(&narrow);
    close_engine(&wide);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_near_those_in_fp32),
                                       cmocka_unit_test(memory_is_as_documented)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
