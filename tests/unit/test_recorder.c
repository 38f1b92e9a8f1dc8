/* The lines that a run prints for people. */
#include "support/must.h"
#include "train/recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void shows(tr_recorder *recorder, const tr_device *device, const char *expected) {
    char *text;
    size_t size;
    recorder->out = open_memstream(&text, &size);
    assert_non_null(recorder->out);
    must(tr_recorder_show_fallbacks(recorder, device));
    (void)fclose(recorder->out);
    assert_string_equal(text, expected);
    free(text);
}

/* Operators without their GPU's library are counted and named in one line; no line without them. */
static void test_fallbacks(void **state) {
    (void)state;
    tr_world *world;
    tr_device *device;
    tr_op *product, *again;
    const tr_op_desc desc = {
        .kind = TR_OP_MATMUL,
        .matmul = {.m = 8, .n = 16, .k = 4, .a = TR_F32, .b = TR_F32, .c = TR_F32}};
    must(tr_world_open_local(1, &world));
    must(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device));
    tr_recorder recorder = {.world = world, .leads = true};
    must(tr_op_prepare(device, &desc, &product));
    shows(&recorder, device, "");
    product->way = TR_OP_OWN; /* as on a GPU */
    shows(&recorder, device,
          "slow     1 operator without cuBLASLt or cuDNN; rank 0: 1 x matmul 8x16x4 f32 in the own "
          "kernel\n");
    must(tr_op_prepare(device, &desc, &again));
    shows(&recorder, device,
          "slow     2 operators without cuBLASLt or cuDNN; rank 0: 2 x matmul 8x16x4 f32 in the "
          "own kernel\n");
    recorder.leads = false;
    shows(&recorder, device, "");
    tr_op_release(product);
    tr_op_release(again);
    tr_device_close(device);
    tr_world_close(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fallbacks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
