/* Tests a run on a device that refuses an operator. */
#include "device/device_impl.h"
#include "support/small_engine.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { STEPS = 3 };

/* Computes losses and norms of the first steps of a Qwen3 model on a device that may refuse an
 * operator; text[size] gets the operators that run in parts. */
static void train_qwen3(bool refuses, double result[2 * STEPS], char *text, size_t size) {
    tr_world *world;
    tr_device *device;
    tr_engine *engine;
    tr_step_result step;
    tr_schedule *schedule = schedule_of("1f1b", 1, 4);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 2}, &device), TR_OK);
    tr_device_ops refusing = *device->ops;
    refusing.fuses = true;
    if (refuses) refusing.prepare[TR_OP_NORM_ROPE] = refusing.prepare[TR_OP_NORM_ROPE_DGRAD] = NULL;
    device->ops = &refusing;
    tr_engine_desc desc = small(world, device, schedule);
    strcpy(desc.model.family, "qwen3");
    desc.dtype = TR_F32;
    desc.fetch = fetch;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_OK);
    assert_int_equal(tr_store_init(tr_engine_store(engine), 1, NULL), TR_OK);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(tr_engine_step(engine, i + 1, i + 1, 0, 1e-3f, &step), TR_OK);
        result[2 * i] = step.loss;
        result[2 * i + 1] = step.grad_norm;
    }
    (void)tr_device_fallbacks(device, text, size);
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    tr_world_close(world);
}

/* A device that refuses a fused operator runs its parts, reports that, and computes the same losses
 * and norms. */
static void test_refused_operator(void **state) {
    (void)state;
    double whole[2 * STEPS], parts[2 * STEPS];
    char text[512];
    train_qwen3(false, whole, text, sizeof text);
    assert_null(strstr(text, "norm_rope"));
    train_qwen3(true, parts, text, sizeof text);
    assert_non_null(strstr(text, "4 x norm_rope of 2 heads of 16 f32 in parts"));
    assert_non_null(strstr(text, "4 x norm_rope_dgrad of 2 heads of 16 f32 in parts"));
    for (int i = 0; i < 2 * STEPS; i++)
        assert_true(fabs(parts[i] - whole[i]) <= 16 * (double)FLT_EPSILON * fabs(whole[i]));
    assert_true(whole[0] > 1 && whole[2 * STEPS - 2] != whole[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_operator)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
