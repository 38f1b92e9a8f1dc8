/* Compares UPDATE with PyTorch's SGD, Adam and AdamW and with references for Lion and LAMB: 20
 * steps on given gradients (tests/golden/optimizers.txt, which tests/golden/make_optimizers.py
 * writes), from the config's keys. FP64 (ref) within 1e-10, FP32 (ref, cpu) within 2e-5 of the
 * parameters' norm.
 */
#include "device/device.h"
#include "partition/optim_row.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 128, STEPS = 64, LINE = 1 << 14 };

static struct {
    int count, steps;
    double start[MOST], gradient[STEPS][MOST];
} given;

static char line[LINE];

static void read_numbers(FILE *f, double *out) {
    assert_non_null(fgets(line, sizeof line, f));
    char *at = line;
    for (int i = 0; i < given.count; i++) out[i] = strtod(at, &at);
    assert_true(*at == '\n');
}

static FILE *open_golden(void) {
    FILE *f = fopen(TRIREME_TEST_GOLDEN "/optimizers.txt", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d %d\n", &given.count, &given.steps), 2);
    assert_true(given.count <= MOST && given.steps <= STEPS);
    read_numbers(f, given.start);
    for (int t = 0; t < given.steps; t++) read_numbers(f, given.gradient[t]);
    return f;
}

static void config_of(const char *keys, tr_config *config) {
    char text[512], *rest = NULL;
    const char *overrides[16];
    int count = 0;
    (void)snprintf(text, sizeof text, "%s", keys);
    for (char *key = strtok_r(text, ";\n", &rest); key; key = strtok_r(NULL, ";\n", &rest))
        overrides[count++] = key + strspn(key, " ");
    if (tr_config_parse("", 0, "keys", overrides, count, config) != TR_OK ||
        tr_config_check(config, 0) != TR_OK)
        fail_msg("%s: %s", keys, tr_error_message());
}

/* A number of FP64 or FP32 memory. */
static double get(const void *memory, tr_dtype dtype, int i) {
    return dtype == TR_F64 ? ((const double *)memory)[i] : (double)((const float *)memory)[i];
}

static void set(void *memory, tr_dtype dtype, int i, double x) {
    if (dtype == TR_F64) ((double *)memory)[i] = x;
    else ((float *)memory)[i] = (float)x;
}

/* Runs an operator of this description. */
static void run(tr_device *device, const tr_op_desc *desc, tr_op_args args) {
    tr_op *op;
    if (tr_op_prepare(&(tr_op_context){.device = device}, desc, &op) != TR_OK)
        fail_msg("%s", tr_error_message());
    void *scratch = op->scratch_bytes ? malloc(op->scratch_bytes) : NULL;
    args.scratch = scratch;
    assert_int_equal(tr_op_run(op, tr_device_compute(device), &args), TR_OK);
    assert_int_equal(tr_stream_sync(tr_device_compute(device)), TR_OK);
    free(scratch);
    tr_op_release(op);
}

/* make_optimizers.py has the same. */
static const int64_t tensors[] = {40, 32, 24};

/* Steps each tensor along its direction, with the norms of its halves, as two ranks have them. */
static void descend(tr_device *device, tr_dtype dtype, tr_step_state *step, char *w,
                    const char *grad) {
    enum { PARTS = 2 };
    const size_t size = tr_dtype_size(dtype);
    for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
        const int64_t n = tensors[k], part = n / PARTS;
        const tr_op_desc sumsq = {.kind = TR_OP_SUMSQ, .sumsq = {.count = part, .dtype = dtype}};
        const tr_op_desc along = tr_optim_descend(n, PARTS, dtype, 1);
        double norms[PARTS][2];
        for (int p = 0; p < PARTS; p++)
            for (int of = 0; of < 2; of++) {
                const char *x = (of ? grad : w) + (size_t)(p * part) * size;
                run(device, &sumsq,
                    (tr_op_args){
                        .t = {[TR_SUMSQ_X] = tr_tensor_vector(x, dtype, part),
                              [TR_SUMSQ_OUT] = tr_tensor_vector(&norms[p][of], TR_F64, 1)}});
            }
        run(device, &along,
            (tr_op_args){.t = {[TR_DESCEND_U] = tr_tensor_vector(grad, dtype, n),
                               [TR_DESCEND_NORMS] = tr_tensor_matrix(norms, TR_F64, PARTS, 2),
                               [TR_DESCEND_MASTER] = tr_tensor_vector(w, dtype, n),
                               [TR_DESCEND_VALUE] = tr_tensor_vector(w, dtype, n)},
                         .state = step});
        w += (size_t)n * size;
        grad += (size_t)n * size;
    }
}

/* Takes the steps of the config's optimizer from given.start to w. */
static void take_steps(const char *device_name, tr_dtype dtype, const tr_config *c, void *w) {
    tr_device *device;
    const tr_optim_config o = tr_optim_of(c);
    const int64_t n = given.count;
    double grad[MOST], state[TR_OPTIM_STATES][MOST] = {{0}}; /* of either type */
    assert_int_equal(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device),
                     TR_OK);
    const tr_op_desc desc = tr_optim_update(&o, n, dtype, true, 1);
    const bool by_tensor = tr_optim_row_of(o.kind)->by_tensor;
    for (int i = 0; i < n; i++) set(w, dtype, i, given.start[i]);
    for (int t = 1; t <= given.steps; t++) {
        tr_step_state step = {.lr = c->optim.lr,
                              .gradient_factor = 1,
                              .bias_correction1 = 1 - pow(o.beta1, t),
                              .bias_correction2 = 1 - pow(o.beta2, t)};
        for (int i = 0; i < n; i++) set(grad, dtype, i, given.gradient[t - 1][i]);
        tr_op_args args = {.t = {[TR_UPDATE_GRAD] = tr_tensor_vector(grad, dtype, n),
                                 [TR_UPDATE_MASTER] = tr_tensor_vector(w, dtype, n)},
                           .state = &step};
        if (!by_tensor) args.t[TR_UPDATE_VALUE] = tr_tensor_vector(w, dtype, n);
        for (int k = 0; k < tr_optim_states(o.kind); k++)
            args.t[TR_UPDATE_M + k] = tr_tensor_vector(state[k], dtype, n);
        run(device, &desc, args);
        if (by_tensor) descend(device, dtype, &step, w, (const char *)grad);
    }
    tr_device_close(device);
}

static void check(const char *keys, const char *device, tr_dtype dtype, const tr_config *c,
                  const double *want, double limit) {
    double w[MOST], off = 0, norm = 0;
    take_steps(device, dtype, c, w);
    for (int i = 0; i < given.count; i++) {
        const double d = get(w, dtype, i) - want[i];
        off += d * d;
        norm += want[i] * want[i];
    }
    if (!(sqrt(off) <= limit * sqrt(norm)))
        fail_msg("%s on %s: %g of the norm, not %g", keys, device, sqrt(off / norm), limit);
}

static void equal_the_references(void **state) {
    (void)state;
    static tr_config config;
    char keys[512];
    double after[MOST];
    int cases = 0;
    bool seen[TR_OPTIM_KINDS] = {false};
    FILE *f = open_golden();
    for (; fgets(keys, sizeof keys, f); cases++) {
        read_numbers(f, after);
        keys[strcspn(keys, "\n")] = '\0';
        config_of(keys, &config);
        seen[tr_optim_of(&config).kind] = true;
        check(keys, "ref", TR_F64, &config, after, 1e-10);
        check(keys, "ref", TR_F32, &config, after, 2e-5);
        check(keys, "cpu", TR_F32, &config, after, 2e-5);
    }
    (void)fclose(f);
    for (int k = 0; k < TR_OPTIM_KINDS; k++)
        if (!seen[k]) fail_msg("no case of optimizer %d", k);
}

static void rows_are_whole(void **state) {
    (void)state;
    for (int k = 0; k < TR_OPTIM_KINDS; k++) {
        const tr_optim_row *row = tr_optim_row_of((tr_optim_kind)k);
        const int states = tr_optim_states((tr_optim_kind)k);
        for (int i = 0; i < TR_OPTIM_STATES; i++) {
            assert_int_equal(row->state[i] != NULL, i < states);
            if (row->state[i]) assert_true(strlen(row->state[i]) < TR_NAME_GROUP);
        }
    }
    char text[TR_OPTIM_NAMES];
    tr_optim_new_states(TR_OPTIM_ADAM, TR_OPTIM_ADAMW, text);
    assert_string_equal(text, "");
    tr_optim_new_states(TR_OPTIM_ADAM, TR_OPTIM_LION, text);
    assert_string_equal(text, "adam_m, adam_v");
    tr_optim_new_states(TR_OPTIM_SGD, TR_OPTIM_ADAMW, text);
    assert_string_equal(text, "");
}

/* Parameters that do not decay have neither weight decay nor L1 and L2. */
static void decay_is_of_matrices(void **state) {
    (void)state;
    static tr_config config;
    static const char *const names[] = {"adamw", "adam", "sgd", "lion", "lamb"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char keys[128];
        (void)snprintf(keys, sizeof keys,
                       "optim.name=%s; optim.weight_decay=0.2; optim.l1=0.3; optim.l2=0.5",
                       names[i]);
        config_of(keys, &config);
        const tr_optim_config o = tr_optim_of(&config);
        const tr_update_desc none = tr_optim_update(&o, 1, TR_F32, false, 1).update;
        assert_true(none.weight_decay == 0 && none.l1 == 0 && none.l2 == 0);
        const tr_update_desc all = tr_optim_update(&o, 1, TR_F32, true, 1).update;
        const bool couples = tr_optim_row_of(o.kind)->couples;
        assert_true(all.l1 == 0.3 && all.weight_decay == (couples ? 0 : 0.2) &&
                    all.l2 == (couples ? 0.7 : 0.5));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_the_references),
                                       cmocka_unit_test(rows_are_whole),
                                       cmocka_unit_test(decay_is_of_matrices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
