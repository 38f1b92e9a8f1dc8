/* The engine of one rank: what does not fit is refused before device memory is taken. */
#include "base/memory.h"
#include "pipeline/generate.h"
#include "train/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static tr_schedule *four_micro_batches(void) {
    tr_schedule *schedule;
    const tr_schedule_request request = {
        .name = "1f1b", .ranks = 1, .micro_batches = 4, .chunks = 1};
    assert_int_equal(tr_schedule_make(&request, &schedule), TR_OK);
    return schedule;
}

static tr_engine_desc small(tr_world *world, tr_device *device, tr_schedule *schedule) {
    tr_engine_desc desc = {
        .world = world,
        .device = device,
        .model =
            {.family = "gpt2", .layers = 2, .width = 32, .heads = 2, .context = 16, .vocab = 256},
        .batch = 8,
        .micro_batch = 2,
        .dtype = TR_BF16,
        .schedule = schedule,
        .adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f}};
    assert_int_equal(tr_mesh_make(1, 1, 1, 0, 1, &desc.mesh), TR_OK);
    return desc;
}

/* The classes of the plan that are known before anything is allocated, to the byte. */
static void test_refuses_what_does_not_fit(void **state) {
    (void)state;
    tr_world *world;
    tr_device *device;
    tr_engine *engine;
    tr_schedule *schedule = four_micro_batches();
    tr_memory_plan plan;
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 2}, &device), TR_OK);
    tr_engine_desc desc = small(world, device, schedule);
    assert_int_equal(tr_engine_create(&desc, &engine), TR_OK);
    tr_engine_plan(engine, &plan);
    tr_engine_destroy(engine);
    size_t exact = plan.total;

    desc.memory = exact;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_OK);
    tr_engine_destroy(engine);

    size_t before = device->allocated;
    const size_t too_small[] = {exact - 1, exact - plan.arena - 1, 1};
    for (size_t i = 0; i < sizeof too_small / sizeof *too_small; i++) {
        desc.memory = too_small[i];
        assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_FIT);
        assert_non_null(strstr(tr_error_message(), "device.memory"));
        assert_int_equal(device->allocated, before);
    }
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    tr_world_close(world);
}

/* Sizes whose product no integer holds. */
static void test_refuses_absurd_sizes(void **state) {
    (void)state;
    tr_world *world;
    tr_device *device;
    tr_engine *engine;
    tr_schedule *schedule = four_micro_batches();
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    tr_engine_desc desc = small(world, device, schedule);
    desc.batch = INT64_C(1) << 40;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_CONFIG);
    desc.micro_batch = INT64_C(1) << 30;
    desc.model.context = INT32_MAX;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_CONFIG);
    desc = small(world, device, schedule);
    desc.memory = INT64_C(1) << 40;
    desc.model.width = 1 << 20;
    desc.model.layers = 4096;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_FIT);
    assert_int_equal(device->allocated, 0);
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    tr_world_close(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses_what_does_not_fit),
        cmocka_unit_test(test_refuses_absurd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
