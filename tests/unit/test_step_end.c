/* Tests the end of a step: the optimizer steps many tensors at once, and a request to stop applies
 * to the step in progress. */
#include "base/memory.h"
#include "device/device_impl.h"
#include "support/small_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

/* --- the optimizer ---------------------------------------------------------------------------- */

static tr_op_prepare_fn prepare_update;
static tr_status (*run_update)(tr_op *op, tr_stream *stream, const tr_op_args *args);
static int update_runs;
static bool deterministic_layers; /* whether the layers' operators were prepared as deterministic */

static tr_op_prepare_fn prepare_matmul;

static tr_status prepare_looked_at(const tr_op_context *context, const tr_op_desc *desc,
                                   tr_op **out) {
    deterministic_layers = context->deterministic;
    return prepare_matmul(context, desc, out);
}

static tr_status count_run(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    update_runs++;
    return run_update(op, stream, args);
}

static tr_status prepare_counted(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    TR_TRY(prepare_update(context, desc, out));
    run_update = (*out)->run;
    (*out)->run = count_run;
    return TR_OK;
}

/* Returns the run that steps a slot. A slot has the same offset from the run's beginning in every
 * memory. */
static int run_of(const tr_store *store, const tr_store_slot *slot) {
    const size_t size = tr_dtype_size(store->dtype);
    for (int i = 0; i < store->runs; i++) {
        const tr_run *run = &store->run[i];
        const int64_t at = (char *)slot->master - run->master; /* bytes */
        const int64_t element = at / (int64_t)sizeof(float);
        if (at < 0 || element + slot->param->count > run->count) continue;
        assert_int_equal(run->decay, slot->param->decay);
        assert_ptr_equal(slot->param->grad, run->grad + at);
        for (int k = 0; k < TR_OPTIM_STATES; k++)
            assert_ptr_equal(slot->state[k], run->state[k] + at);
        assert_ptr_equal(slot->param->value, (char *)run->value + (size_t)element * size);
        assert_int_equal((uintptr_t)slot->param->value % TR_ALIGN, 0);
        return i;
    }
    fail_msg("%s is not in a run", tr_param_name(slot->param));
    return -1;
}

/* A rank's optimizer takes two operations a step, whatever the number of tensors. The layers'
 * operators are prepared as the engine's description says. */
static void test_steps_many_tensors(void **state) {
    (void)state;
    tr_world *world;
    tr_device *device;
    tr_engine *engine;
    tr_step_result result;
    tr_schedule *schedule = schedule_of("1f1b", 1, 4);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 2}, &device), TR_OK);
    tr_device_ops counting = *device->ops;
    prepare_update = counting.prepare[TR_OP_UPDATE];
    counting.prepare[TR_OP_UPDATE] = prepare_counted;
    prepare_matmul = counting.prepare[TR_OP_MATMUL];
    counting.prepare[TR_OP_MATMUL] = prepare_looked_at;
    device->ops = &counting;
    tr_engine_desc desc = small(world, device, schedule);
    desc.fetch = fetch;
    desc.deterministic = true;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_OK);
    assert_true(deterministic_layers);
    assert_int_equal(tr_store_init(tr_engine_store(engine), 1, NULL), TR_OK);
    assert_int_equal(tr_engine_step(engine, 1, 1, 0, 1e-3f, &result), TR_OK);
    const tr_store *store = tr_engine_store(engine);
    int own = 0;
    for (int i = 0; i < store->slots; i++)
        if (store->slot[i].shares < 0) own += run_of(store, &store->slot[i]) >= 0;
    assert_true(result.finite && own > 20);
    assert_int_equal(update_runs, 2);
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    tr_world_close(world);
}

/* --- a request to stop ------------------------------------------------------------------------ */

typedef struct request {
    tr_engine *engine;
    tr_device *device;
    bool before, after; /* when the request comes, relative to the end of a step; the device must
                           read it, not the host, so it is written in stream order */
} request;

static void request_stop(void *engine) {
    atomic_store(tr_engine_stop_word(engine), 1);
}

static void ask_around_the_end(void *context, const tr_instr *instr, bool begin) {
    request *r = context;
    if (instr->action.type != TR_ACTION_FINISH || !(begin ? r->before : r->after)) return;
    assert_int_equal(tr_stream_call(tr_device_compute(r->device), request_stop, r->engine), TR_OK);
}

static bool stops(tr_engine *engine, int64_t step) {
    tr_step_result result;
    assert_int_equal(tr_engine_step(engine, step, step, 0, 1e-3f, &result), TR_OK);
    return result.stop;
}

/* A request applies to the step in progress until the device has read it at the step's end, even if
 * the host has enqueued that end long before. After that it applies to the next step. */
static void check_stop(const char *device_name) {
    tr_world *world;
    request r = {0};
    tr_schedule *schedule = schedule_of("1f1b", 1, 4);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &r.device),
                     TR_OK);
    tr_engine_desc desc = small(world, r.device, schedule);
    desc.fetch = fetch;
    desc.observe = ask_around_the_end;
    desc.observe_context = &r;
    assert_int_equal(tr_engine_create(&desc, &r.engine), TR_OK);
    assert_int_equal(tr_store_init(tr_engine_store(r.engine), 1, NULL), TR_OK);
    assert_false(stops(r.engine, 1));
    r.before = true;
    assert_true(stops(r.engine, 2));
    r.before = false;
    assert_true(stops(r.engine, 3)); /* a request stays */
    atomic_store(tr_engine_stop_word(r.engine), 0);
    r.after = true;
    assert_false(stops(r.engine, 4));
    r.after = false;
    assert_true(stops(r.engine, 5));
    tr_step_result validation;
    assert_int_equal(tr_engine_validate(r.engine, 1, &validation), TR_OK);
    assert_true(validation.stop);
    tr_engine_destroy(r.engine);
    tr_schedule_destroy(schedule);
    tr_device_close(r.device);
    tr_world_close(world);
}

static void test_stops_after_the_step_in_progress(void **state) {
    (void)state;
    check_stop("cpu");
    check_stop("guarded"); /* a worker thread runs the queue, as on a GPU */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_many_tensors),
        cmocka_unit_test(test_stops_after_the_step_in_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
