/* Data of a case: values, running and comparing. */
#include "base/memory.h"
#include "base/philox.h"
#include "support/op_tensors.h"

#include <stdio.h>
#include <stdlib.h>

double tr_dtype_eps(tr_dtype dtype) {
    return dtype == TR_BF16  ? 0x1p-7
           : dtype == TR_F16 ? 0x1p-10
           : dtype == TR_F64 ? 0x1p-52
                             : 0x1p-23;
}

/* Returns the distance of subnormal numbers, where it matters. */
static double least_of(tr_dtype dtype) {
    return dtype == TR_F16 ? 0x1p-24 : 0;
}

double tr_element(const void *memory, tr_dtype dtype, int64_t i) {
    switch (dtype) {
    case TR_F32: return (double)((const float *)memory)[i];
    case TR_BF16:
    case TR_F16: return (double)tr_narrow_load(dtype, ((const uint16_t *)memory)[i]);
    case TR_F64: return ((const double *)memory)[i];
    case TR_I32: return (double)((const int32_t *)memory)[i];
    default: return (double)((const uint8_t *)memory)[i];
    }
}

void tr_element_set(void *memory, tr_dtype dtype, int64_t i, double value) {
    switch (dtype) {
    case TR_F32: ((float *)memory)[i] = (float)value; break;
    case TR_BF16:
    case TR_F16: ((uint16_t *)memory)[i] = tr_narrow_round(dtype, (float)value); break;
    case TR_F64: ((double *)memory)[i] = value; break;
    case TR_I32: ((int32_t *)memory)[i] = (int32_t)value; break;
    default: ((uint8_t *)memory)[i] = (uint8_t)value; break;
    }
}

/* --- values ----------------------------------------------------------------------------------- */

/* Documents of about five tokens; one always begins with its sequence. */
static int64_t start_of(uint64_t seed, int64_t i, int64_t seq) {
    int64_t t = i % seq;
    while (t > 0 && tr_philox4x32(seed, (uint64_t)(i - i % seq + t), 2).v[0] % 5 != 0) t--;
    return t;
}

static double value_of(const tr_op_tensor *t, uint64_t seed, uint64_t stream, int64_t i) {
    double normal = (double)tr_normal(seed, stream, (uint64_t)i);
    uint32_t bits = tr_philox4x32(seed ^ stream, (uint64_t)i, 1).v[0];
    switch (t->fill) {
    case TR_FILL_GAMMA: return 1 + normal / 4;
    case TR_FILL_SPREAD:
        if (i % t->limit == 0) return 0.5 + fabs(normal);
        if (i % t->limit == 1) return -0.5 - fabs(normal);
        return normal;
    case TR_FILL_SQUARE: return normal * normal;
    case TR_FILL_MEAN_SQUARE: return 1 + normal * normal;
    case TR_FILL_LABELS:
        if (bits >> 8 & 1 && bits >> 9 & 1) return -1;
        return (double)((bits >> 10) % (uint32_t)t->limit);
    case TR_FILL_NAN: return NAN;
    case TR_FILL_STARTS: return (double)start_of(seed ^ stream, i, t->limit);
    case TR_FILL_TOKENS: return (double)((bits >> 10) % (uint32_t)t->limit);
    case TR_FILL_LOSSES: return i % 2 ? (double)(bits % 100 + 1) : 100 * normal * normal;
    default: return normal;
    }
}

static size_t bytes_of(const tr_op_tensor *t) {
    return (size_t)t->count * tr_dtype_size(t->dtype);
}

void tr_op_data_operands(const tr_op_desc *desc, void *const *memory, int n,
                         tr_tensor t[TR_OP_MAX_TENSORS]) {
    tr_op_operands(desc, t);
    for (int i = 0; i < n; i++)
        if (t[i].rank) t[i].data = memory[i];
}

/* Runs one forward operator of ref on the host memory of `data`. */
static tr_status run_ref(const tr_op_desc *desc, tr_step_state *state, void *const *t, int n) {
    tr_status status = TR_OK;
    tr_device *device = NULL;
    tr_op *op = NULL;
    tr_op_args args = {.state = state};
    tr_op_data_operands(desc, t, n, args.t);
    TR_TRY(tr_device_open("ref", &(tr_device_options){.threads = 1}, &device));
    TR_TRY_OUT(tr_op_prepare(&(tr_op_context){.device = device}, desc, &op));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, op->scratch_bytes, &args.scratch));
    TR_TRY_OUT(tr_op_run(op, tr_device_compute(device), &args));
out:
    tr_device_free(device, args.scratch);
    tr_op_release(op);
    tr_device_close(device);
    return status;
}

/* The forward pass behind a layer norm's gradients: mean and rstd of X (Y is thrown away). */
static tr_status derive_layernorm(tr_op_data *data, int x, int mean, int rstd) {
    tr_op_desc forward = data->desc;
    forward.kind = TR_OP_LAYERNORM;
    int64_t count = forward.layernorm.rows * forward.layernorm.width;
    void *y, *ones;
    TR_TRY(tr_calloc((size_t)count, 4, &y));
    tr_status status = tr_calloc((size_t)count, 4, &ones);
    if (status == TR_OK) {
        status = run_ref(
            &forward, &data->state,
            (void *[]){data->memory[x], ones, ones, y, data->memory[mean], data->memory[rstd]}, 6);
        free(ones);
    }
    free(y);
    return status;
}

/* The forward pass behind an RMS norm's gradients: rstd of X. */
static tr_status derive_rmsnorm(tr_op_data *data, tr_rmsnorm_desc norm, int x, int rstd) {
    tr_op_desc forward = {.kind = TR_OP_RMSNORM, .rmsnorm = norm};
    forward.rmsnorm.ldy = 0;
    void *y, *ones;
    TR_TRY(tr_calloc((size_t)(forward.rmsnorm.rows * forward.rmsnorm.width), 4, &y));
    tr_status status = tr_calloc((size_t)forward.rmsnorm.width, 4, &ones);
    if (status == TR_OK) {
        status = run_ref(&forward, &data->state,
                         (void *[]){data->memory[x], ones, y, data->memory[rstd]}, 4);
        free(ones);
    }
    free(y);
    return status;
}

static tr_status derive_norm_rope(tr_op_data *data) {
    const tr_rope_desc *d = &data->desc.norm_rope.rope;
    const tr_rmsnorm_desc norm = {.rows = d->rows * d->heads,
                                  .width = d->head_size,
                                  .eps = data->desc.norm_rope.eps,
                                  .dtype = d->dtype};
    return derive_rmsnorm(data, norm, TR_NORM_ROPE_DGRAD_X, TR_NORM_ROPE_DGRAD_RSTD);
}

static tr_status derive(tr_op_data *data) {
    void **m = data->memory;
    tr_op_desc forward = data->desc;
    switch (data->desc.kind) {
    case TR_OP_LAYERNORM_DGRAD:
        return derive_layernorm(data, TR_LN_DGRAD_X, TR_LN_DGRAD_MEAN, TR_LN_DGRAD_RSTD);
    case TR_OP_LAYERNORM_WGRAD:
        return derive_layernorm(data, TR_LN_WGRAD_X, TR_LN_WGRAD_MEAN, TR_LN_WGRAD_RSTD);
    case TR_OP_RMSNORM_DGRAD:
        return derive_rmsnorm(data, data->desc.rmsnorm, TR_RMS_DGRAD_X, TR_RMS_DGRAD_RSTD);
    case TR_OP_RMSNORM_WGRAD:
        return derive_rmsnorm(data, data->desc.rmsnorm, TR_RMS_WGRAD_X, TR_RMS_WGRAD_RSTD);
    case TR_OP_NORM_ROPE_DGRAD: return derive_norm_rope(data);
    case TR_OP_ATTENTION_DGRAD:
        forward.kind = TR_OP_ATTENTION;
        return run_ref(&forward, &data->state,
                       (void *[]){m[TR_ATTENTION_DGRAD_QKV], m[TR_ATTENTION_DGRAD_Y],
                                  m[TR_ATTENTION_DGRAD_LSE], m[TR_ATTENTION_DGRAD_STARTS]},
                       4);
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_DGRAD:
        forward.kind = TR_OP_XENT_MAX;
        TR_TRY(run_ref(&forward, &data->state, m, TR_XENT_LOSS));
        forward.kind = TR_OP_XENT_SUM;
        return data->desc.kind == TR_OP_XENT_SUM ? TR_OK
                                                 : run_ref(&forward, &data->state, m, TR_XENT_LOSS);
    default: return TR_OK;
    }
}

/* Every text feeds tokens at another place. */
static void set_positions(const tr_op_desc *desc, tr_step_state *state) {
    int64_t middle = 0;
    if (desc->kind == TR_OP_ATTENTION_DECODE)
        middle = (desc->attention.seq + 1 - desc->attention.decode) / 2;
    if (desc->kind == TR_OP_ROPE) middle = desc->rope.seq / 2;
    if (desc->kind == TR_OP_NORM_ROPE) middle = desc->norm_rope.rope.seq / 2;
    if (desc->kind == TR_OP_POSITION) middle = desc->embed.seq / 2;
    for (int k = 0; k < TR_STEP_TEXTS; k++) state->position[k] = middle > k ? middle - k : 0;
}

tr_status tr_op_data_make(const tr_op_case *c, tr_dtype storage, uint64_t seed, tr_op_data *out) {
    *out = (tr_op_data){
        .desc = tr_op_case_desc(c, storage), .sample = 2, .adds = c->options & TR_CASE_ADDS};
    tr_op_tensor *t = out->tensor;
    tr_op_case_tensors(&out->desc, c->options, t);
    out->state = (tr_step_state){.seed = seed,
                                 .step = 3,
                                 .first_sample = 10,
                                 .train = !(c->options & TR_CASE_EVAL),
                                 .skip = !!(c->options & TR_CASE_SKIP),
                                 .loss_scale = TR_OP_LOSS_SCALE,
                                 .lr = 1e-3f,
                                 .bias_correction1 = 0.271f,
                                 .bias_correction2 = 0.142625f,
                                 .max_norm = 0.125f,
                                 .square_weight = 0.375,
                                 .gradient_factor = 0.5f};
    set_positions(&out->desc, &out->state);
    tr_status status = TR_OK;
    for (int i = 0; i < TR_OP_MAX_TENSORS && status == TR_OK; i++) {
        if (!t[i].present || t[i].alias >= 0) continue;
        uint64_t stream = tr_mix64((uint64_t)c->desc.kind * TR_OP_MAX_TENSORS + (uint64_t)i);
        status = tr_calloc((size_t)t[i].count, tr_dtype_size(t[i].dtype), &out->memory[i]);
        if (status != TR_OK) break;
        if (t[i].fill == TR_FILL_STATE) memcpy(out->memory[i], &out->state, sizeof out->state);
        else if (t[i].fill != TR_FILL_DERIVED)
            for (int64_t j = 0; j < t[i].count; j++)
                tr_element_set(out->memory[i], t[i].dtype, j, value_of(&t[i], seed, stream, j));
    }
    if (status == TR_OK) status = derive(out);
    if (status != TR_OK) tr_op_data_free(out);
    return status;
}

tr_status tr_op_data_clone(const tr_op_data *data, tr_op_data *out) {
    *out = *data;
    memset(out->memory, 0, sizeof out->memory);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        if (!data->memory[i]) continue;
        const tr_op_tensor *t = &data->tensor[i];
        tr_status status = tr_calloc((size_t)t->count, tr_dtype_size(t->dtype), &out->memory[i]);
        if (status != TR_OK) {
            tr_op_data_free(out);
            return status;
        }
        memcpy(out->memory[i], data->memory[i], bytes_of(t));
    }
    return TR_OK;
}

void tr_op_data_free(tr_op_data *data) {
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        free(data->memory[i]);
        data->memory[i] = NULL;
    }
}

/* --- running and comparing -------------------------------------------------------------------- */

/* Allocates scratch with NaN in it: an operator finds there what another one has left. */
static tr_status make_scratch(tr_device *device, tr_stream *stream, size_t bytes, void **out) {
    void *dirt;
    TR_TRY(tr_device_alloc(device, TR_MEMORY_DATA, bytes, out));
    TR_TRY(tr_calloc(bytes, 1, &dirt));
    memset(dirt, 0xff, bytes);
    tr_status status = tr_stream_copy(stream, *out, dirt, bytes);
    if (status == TR_OK) status = tr_stream_sync(stream); /* before `dirt` is freed */
    free(dirt);
    return status;
}

tr_status tr_op_data_run(tr_op_data *data, tr_device *device, tr_stream *stream) {
    tr_status status = TR_OK;
    tr_op *op = NULL;
    tr_op_args args = {.sample = data->sample, .adds = data->adds};
    void *state = NULL, *memory[TR_OP_MAX_TENSORS] = {0}, *given[TR_OP_MAX_TENSORS];
    if (!stream) stream = tr_device_compute(device);
    TR_TRY_OUT(
        tr_op_prepare(&(tr_op_context){.device = device, .deterministic = true}, &data->desc, &op));
    TR_TRY_OUT(make_scratch(device, stream, op->scratch_bytes, &args.scratch));
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, sizeof data->state, &state));
    TR_TRY_OUT(tr_stream_copy(stream, state, &data->state, sizeof data->state));
    args.state = state;
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        if (!data->memory[i]) continue;
        size_t bytes = bytes_of(&data->tensor[i]);
        TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_DATA, bytes, &memory[i]));
        TR_TRY_OUT(tr_stream_copy(stream, memory[i], data->memory[i], bytes));
    }
    memcpy(given, memory, sizeof given);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++)
        if (data->tensor[i].present && data->tensor[i].alias >= 0)
            given[i] = memory[data->tensor[i].alias];
    tr_op_data_operands(&data->desc, given, TR_OP_MAX_TENSORS, args.t);
    TR_TRY_OUT(tr_op_run(op, stream, &args));
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++)
        if (data->memory[i])
            TR_TRY_OUT(
                tr_stream_copy(stream, data->memory[i], memory[i], bytes_of(&data->tensor[i])));
    TR_TRY_OUT(tr_stream_sync(stream));
out:
    (void)tr_stream_sync(stream); /* after a failure too: nothing below may be in use */
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) tr_device_free(device, memory[i]);
    tr_device_free(device, state);
    tr_device_free(device, args.scratch);
    tr_op_release(op);
    return status;
}

/* How many times its tolerance element i is off; infinity when only one is a number. */
static double excess(const tr_op_tensor *t, double got, double want, double largest) {
    if (isnan(want) && isnan(got)) return 0;
    double error = fabs(got - want);
    if (error == 0 || got == want) return 0;
    double tolerance =
        fmax(tr_dtype_eps(t->dtype) * fabs(want), least_of(t->dtype)) +
        (4 * tr_dtype_eps(TR_F32) * sqrt((double)t->terms) + t->inner) * fmax(largest, t->scale);
    return !isfinite(error) || t->terms == 0 || tolerance == 0 ? INFINITY : error / tolerance;
}

bool tr_op_data_compare(const tr_op_data *got, const tr_op_data *want, char *message, size_t size) {
    double worst = 1;
    for (int k = 0; k < TR_OP_MAX_TENSORS; k++) {
        const tr_op_tensor *t = &want->tensor[k];
        if (!want->memory[k]) continue;
        if (!t->output || t->terms == 0) {
            if (memcmp(got->memory[k], want->memory[k], bytes_of(t)) == 0) continue;
            if (!t->output) {
                (void)snprintf(message, size, "input %d was changed", k);
                return false;
            }
        }
        double largest = 0;
        for (int64_t i = 0; i < t->count; i++) {
            double magnitude = fabs(tr_element(want->memory[k], t->dtype, i));
            if (isfinite(magnitude)) largest = fmax(largest, magnitude);
        }
        for (int64_t i = 0; i < t->count; i++) {
            double a = tr_element(got->memory[k], t->dtype, i);
            double b = tr_element(want->memory[k], t->dtype, i);
            double times = excess(t, a, b, largest);
            if (times <= worst) continue;
            worst = times;
            (void)snprintf(message, size,
                           "tensor %d, element %lld of %lld: %.9g, should be %.9g (largest %.3g): "
                           "%.3g times the tolerance",
                           k, (long long)i, (long long)t->count, a, b, largest, times);
        }
    }
    return worst <= 1;
}

void tr_op_case_describe(const tr_op_case *c, tr_dtype storage, char *text, size_t size) {
    const tr_matmul_desc *m = &c->desc.matmul;
    const tr_attention_desc *a = &c->desc.attention;
    const char *name = tr_op_name(c->desc.kind), *type = tr_dtype_name(storage);
    switch (c->desc.kind) {
    case TR_OP_MATMUL:
        (void)snprintf(
            text, size, "%s %s m %lld n %lld k %lld ld %lld %lld %lld%s%s%s%s%s%s%s%s options %u",
            name, type, (long long)m->m, (long long)m->n, (long long)m->k,
            (long long)tr_matmul_lda(m), (long long)tr_matmul_ldb(m), (long long)tr_matmul_ldc(m),
            m->trans_a ? " trans_a" : "", m->trans_b ? " trans_b" : "",
            m->fused.bias ? " bias" : "", m->accumulate ? " accumulate" : "",
            m->fused.activate ? " gelu" : "", m->fused.activate_grad ? " gelu_dgrad" : "",
            m->fused.residual ? " residual" : "",
            !m->fused.bias_grad       ? ""
            : m->fused.bias_grad_of_a ? " bias_grad_of_a"
                                      : " bias_grad",
            c->options);
        break;
    case TR_OP_ATTENTION:
    case TR_OP_ATTENTION_DGRAD:
    case TR_OP_ATTENTION_DECODE:
        (void)snprintf(text, size,
                       "%s %s batch %lld seq %lld heads %lld / %lld of %lld window %lld%s", name,
                       type, (long long)a->batch, (long long)a->seq, (long long)a->heads,
                       (long long)a->kv_heads, (long long)a->head_size, (long long)a->window,
                       a->documents ? " documents" : "");
        break;
    default: /* every other description starts with its two sizes, or one */
        (void)snprintf(text, size, "%s %s %lld x %lld options %u", name, type,
                       (long long)c->desc.rows.rows, (long long)c->desc.rows.width, c->options);
    }
}
