#include "support/ref_rig.h"

uint64_t seed;

tr_device *device;

tr_status run_at(tr_op_desc desc, tr_step_state *state, int64_t sample, bool adds, void *const *t,
                 int n) {
    tr_op *op;
    tr_op_args args = {.state = state, .sample = sample, .adds = adds};
    must(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &op));
    tr_op_data_operands(&desc, t, n, args.t);
    must(tr_device_alloc(device, TR_MEMORY_DATA, op->scratch_bytes, &args.scratch));
    tr_status status = tr_op_run(op, tr_device_compute(device), &args);
    tr_device_free(device, args.scratch);
    tr_op_release(op);
    return status;
}

void fill_normal(float *x, int64_t n, uint64_t stream) {
    for (int64_t i = 0; i < n; i++) x[i] = tr_normal(seed, stream, (uint64_t)i);
}

void assert_near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.17g is not near %.17g", got, want);
}

int setup(void **state) {
    (void)state;
    return (int)tr_op_open_ref(&device);
}

int teardown(void **state) {
    (void)state;
    tr_device_close(device);
    return 0;
}
