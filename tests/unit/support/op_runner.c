#include "support/op_runner.h"

#include "base/memory.h"
#include "base/philox.h"

#include <math.h>

const double tr_difference_weight[TR_DIFFERENCE_POINTS] = {1, -8, 8, -1};
const int tr_difference_offset[TR_DIFFERENCE_POINTS] = {-2, -1, 1, 2};

tr_op_runner tr_op_runner_open(tr_device *device, const tr_op_desc *desc, tr_op_data *data) {
    tr_op_runner r = {.device = device, .args = {.state = &data->state, .sample = data->sample}};
    must(tr_op_prepare(&(tr_op_context){.device = device}, desc, &r.op));
    must(tr_device_alloc(device, TR_MEMORY_DATA, r.op->scratch_bytes, &r.args.scratch));
    return r;
}

void tr_op_runner_run(tr_op_runner *r) {
    must(tr_op_run(r->op, tr_device_compute(r->device), &r->args));
}

void tr_op_runner_close(tr_op_runner *r) {
    tr_device_free(r->device, r->args.scratch);
    tr_op_release(r->op);
}

double tr_op_weighted_sum(const float *y, const float *dy, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)y[i] * (double)dy[i];
    return sum;
}

float *tr_op_random_floats(uint64_t seed, uint64_t stream, int64_t n) {
    float *x;
    must(tr_calloc((size_t)n, sizeof *x, &x));
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(rint((double)tr_normal(seed, stream, (uint64_t)i) * 65536) / 65536);
    return x;
}
