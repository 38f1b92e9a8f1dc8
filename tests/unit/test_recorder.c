/* Tests the lines that a run prints for people. */
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

/* Operators that run without their GPU's library are counted and named in one line; without such
 * operators there is no line. */
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
    tr_recorder recorder = {.world = world, .leads = true, .log.fd = -1};
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &product));
    shows(&recorder, device, "");
    product->way = TR_OP_OWN; /* as on a GPU */
    shows(&recorder, device,
          "slow     1 operator not run whole by cuBLASLt, cuDNN or oneDNN; rank 0: 1 x matmul "
          "8x16x4 f32 in the own kernel\n");
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &again));
    shows(&recorder, device,
          "slow     2 operators not run whole by cuBLASLt, cuDNN or oneDNN; rank 0: 2 x matmul "
          "8x16x4 f32 in the own kernel\n");
    recorder.leads = false;
    shows(&recorder, device, "");
    tr_op_release(product);
    tr_op_release(again);
    tr_device_close(device);
    tr_world_close(world);
}

/* The error that ends a run stays this thread's error when log.txt cannot be written: a full disk
 * is often the cause of both. */
static void test_keeps_error(void **state) {
    (void)state;
    char *text;
    size_t size;
    tr_config config = {.log.every = 1, .train = {.batch = 1, .micro_batch = 1}, .parallel.dp = 1};
    tr_recorder recorder = {.config = &config, .leads = true};
    recorder.out = recorder.warnings = open_memstream(&text, &size);
    assert_non_null(recorder.out);
    tr_recorder_begin(&recorder, NULL);
    must(tr_append_open("/dev/full", -1, &recorder.log));
    (void)TR_FAIL(TR_ERR_IO, "the step was not saved");
    tr_recorder_keep(&recorder, "%s\n", tr_error_message());
    assert_string_equal(tr_error_message(), "the step was not saved");
    tr_recorder_close(&recorder);
    (void)fclose(recorder.out);
    assert_non_null(strstr(text, "warning: lines are missing in log.txt: "));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fallbacks),
                                       cmocka_unit_test(test_keeps_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
