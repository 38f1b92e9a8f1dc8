/* Tests the lines that a run prints for people. */
#include "support/must.h"
#include "train/recorder.h"

#include <pthread.h>
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

enum { RANKS = 2 };

typedef struct tracing_rank {
    tr_world *world;
    int rank;
    tr_recorder recorder;
    tr_status status;
} tracing_rank;

#ifdef __SANITIZE_ADDRESS__
const char *__asan_default_options(void);
/* Memory that is not there is a failure for the program, as without the sanitizer. */
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}
#endif

/* Writes a trace; rank 1 has no memory for its record. */
static void *write_trace(void *argument) {
    tracing_rank *r = argument;
    static tr_config config = {.device.name = "cpu"};
    const tr_record record = {.count = r->rank == 1 ? SIZE_MAX / 1024 : 0};
    const tr_program_set programs = {0};
    tr_mesh mesh;
    r->recorder.config = &config;
    r->recorder.world = r->world;
    r->recorder.leads = r->rank == 0;
    r->recorder.log.fd = -1;
    r->status = tr_mesh_make(1, RANKS, 1, r->rank, RANKS, &mesh);
    if (r->status == TR_OK)
        r->status = tr_recorder_write_trace(&r->recorder, &mesh, &programs, &record, 2);
    tr_world_close(r->world);
    return NULL;
}

/* A trace that one rank cannot make is a warning, and ends the run on no rank. */
static void test_no_trace(void **state) {
    (void)state;
    char *text;
    size_t size;
    pthread_t thread[RANKS];
    tr_world *world[RANKS];
    static tracing_rank rank[RANKS];
    must(tr_world_open_local(RANKS, world));
    FILE *warnings = open_memstream(&text, &size);
    assert_non_null(warnings);
    for (int i = 0; i < RANKS; i++) {
        rank[i] = (tracing_rank){.world = world[i], .rank = i, .recorder.warnings = warnings};
        assert_int_equal(pthread_create(&thread[i], NULL, write_trace, &rank[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    (void)fclose(warnings);
    for (int i = 0; i < RANKS; i++) assert_int_equal(rank[i].status, TR_OK);
    assert_non_null(strstr(text, "warning: no trace: "));
    assert_null(strchr(strchr(text, '\n') + 1, '\n'));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fallbacks),
                                       cmocka_unit_test(test_keeps_error),
                                       cmocka_unit_test(test_no_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
