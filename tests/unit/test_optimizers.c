/* Compares UPDATE with PyTorch's SGD, Adam and AdamW and with references for Lion, LAMB, Muon and
 * Adafactor: 20 steps on given gradients (tests/golden/optimizers.txt, which
 * tests/golden/make_optimizers.py writes), from the config's keys. FP64 (ref) within 1e-10, FP32
 * (ref, cpu) within 2e-5 of the parameters' norm. */
#include "device/device.h"
#include "train/updates.h"

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

/* A number of FP64, FP32 or BF16 memory. */
static double get(const void *memory, tr_dtype dtype, int i) {
    if (dtype == TR_BF16) return (double)tr_bf16_to_f32(((const uint16_t *)memory)[i]);
    return dtype == TR_F64 ? ((const double *)memory)[i] : (double)((const float *)memory)[i];
}

static void set(void *memory, tr_dtype dtype, int i, double x) {
    if (dtype == TR_F64) ((double *)memory)[i] = x;
    else if (dtype == TR_BF16) ((uint16_t *)memory)[i] = tr_f32_to_bf16((float)x);
    else ((float *)memory)[i] = (float)x;
}

/* The tensors of make_optimizers.py, which has the same; a vector has one row. */
enum { TENSORS = 3 };
static const int64_t shapes[TENSORS][2] = {{8, 5}, {4, 8}, {1, 24}};

/* A store of these tensors, on one rank. */
typedef struct owned {
    tr_store store;
    tr_store_slot slot[TENSORS];
    tr_param param[TENSORS];
    tr_global global[TENSORS];
    tr_box box[TENSORS];
    tr_run run[TENSORS];
    double grad[MOST], addend[MOST], state[TR_OPTIM_STATES][MOST]; /* of any type */
} owned;

static void own_tensor(owned *o, int k, tr_dtype dtype) {
    const int64_t rows = shapes[k][0], cols = shapes[k][1];
    o->box[k] = (tr_box){.extent = {rows, cols}, .local_stride = {cols, 1}};
    o->global[k] = (tr_global){.name = {'t', (char)('0' + k)},
                               .rank = 2,
                               .shape = {rows, cols},
                               .boxes = 1,
                               .box = &o->box[k]};
    if (rows == 1) {
        o->global[k].rank = 1;
        o->global[k].shape[0] = cols;
        o->box[k] = (tr_box){.extent = {cols}, .local_stride = {1}};
    }
    o->param[k] = (tr_param){.tensors = 1,
                             .tensor = &o->global[k],
                             .local = {rows, cols},
                             .count = rows * cols,
                             .decay = true,
                             .is_linear = rows > 1,
                             .lr_scale = 1,
                             .dtype = dtype};
}

/* w: the parameters, of type dtype. */
static void own(owned *o, tr_device *device, tr_dtype dtype, tr_optim_memory optimizer, char *w) {
    const tr_dtype acc = tr_dtype_acc(dtype), grad = tr_optim_grad_dtype(optimizer, dtype);
    size_t at = 0;
    o->store = (tr_store){.device = device,
                          .dtype = dtype,
                          .acc = acc,
                          .optimizer = optimizer.kind,
                          .grad_dtype = grad,
                          .state_dtype = tr_optim_state_dtype(optimizer, dtype),
                          .no_master = optimizer.no_master,
                          .slot = o->slot,
                          .slots = TENSORS,
                          .laps = 1,
                          .run = o->run,
                          .runs = TENSORS};
    for (int k = 0; k < TENSORS; k++) {
        own_tensor(o, k, dtype);
        tr_store_slot *slot = &o->slot[k];
        const size_t numbers = at * tr_dtype_size(acc);
        char *const value = w + at * tr_dtype_size(dtype);
        char *const sum = (char *)o->grad + at * tr_dtype_size(grad);
        *slot = (tr_store_slot){
            .param = &o->param[k],
            .layout = {.replicas = {.count = {1, 1, 1}}, .parts = 1, .counted_in_tp = true},
            .portion = {.extent = o->param[k].count},
            .grad = sum,
            .direction = grad == acc ? sum : (char *)o->addend + numbers,
            .master = dtype == acc ? value : NULL,
            .value = value,
            .optimizer = tr_optim_kind_for(optimizer.kind, &o->param[k]),
            .shares = -1};
        for (int i = 0; i < tr_optim_states(slot->optimizer); i++)
            slot->state[i] = (char *)o->state[i] + numbers;
        o->run[k] = (tr_run){.slot = k,
                             .grad = slot->grad,
                             .direction = slot->direction,
                             .master = slot->master,
                             .state = {slot->state[0], slot->state[1]},
                             .value = value,
                             .count = o->param[k].count,
                             .optimizer = slot->optimizer,
                             .decay = true,
                             .lr_scale = 1};
        at += (size_t)o->param[k].count;
    }
}

/* Takes the steps of the config's optimizer from given.start to w, of type dtype, with the states
 * of *o; path: how far each went. */
static void take_steps_with(owned *o, const char *device_name, tr_dtype dtype, const tr_config *c,
                            void *w, double path[MOST]) {
    tr_device *device;
    tr_mesh mesh;
    tr_directions *directions;
    tr_updates *updates;
    size_t bytes = 0;
    double before[MOST];
    const tr_optim_config config = tr_optim_of(c);
    assert_int_equal(tr_mesh_make(1, 1, 1, 0, 1, &mesh), TR_OK);
    assert_int_equal(tr_device_open(device_name, &(tr_device_options){.threads = 1}, &device),
                     TR_OK);
    own(o, device, dtype, tr_optim_memory_of(&config), w);
    if (tr_updates_create(&o->store, &config, &bytes, &updates) != TR_OK ||
        tr_directions_create(&o->store, &config, &mesh, NULL, &bytes, &directions) != TR_OK)
        fail_msg("%s", tr_error_message());
    void *scratch = malloc(bytes + 1);
    for (int i = 0; i < given.count; i++) {
        set(w, dtype, i, given.start[i]);
        path[i] = 0;
    }
    for (int t = 1; t <= given.steps; t++) {
        tr_step_state step = {.seed = 3,
                              .step = t,
                              .lr = c->optim.lr,
                              .gradient_factor = 1,
                              .bias_correction1 = 1 - pow(config.beta1, t),
                              .bias_correction2 = 1 - pow(config.beta2, t),
                              .square_weight = pow(t, -0.8)};
        for (int i = 0; i < given.count; i++)
            set(o->grad, o->store.grad_dtype, i, given.gradient[t - 1][i]);
        for (int i = 0; i < given.count; i++) before[i] = get(w, dtype, i);
        assert_int_equal(
            tr_updates_run(updates, directions, tr_device_compute(device), &step, scratch), TR_OK);
        assert_int_equal(tr_stream_sync(tr_device_compute(device)), TR_OK);
        for (int i = 0; i < given.count; i++) path[i] += fabs(get(w, dtype, i) - before[i]);
    }
    tr_updates_destroy(updates);
    tr_directions_destroy(directions);
    free(scratch);
    tr_device_close(device);
}

static void take_steps(const char *device_name, tr_dtype dtype, const tr_config *c, void *w,
                       double path[MOST]) {
    owned *o = calloc(1, sizeof *o);
    assert_non_null(o);
    take_steps_with(o, device_name, dtype, c, w, path);
    free(o);
}

static void check(const char *keys, const char *device, tr_dtype dtype, const tr_config *c,
                  const double *want, double limit) {
    double w[MOST], path[MOST], off = 0, norm = 0;
    take_steps(device, dtype, c, w, path);
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
        if (tr_optim_of(&config).kind == TR_OPTIM_ADAFACTOR) seen[TR_OPTIM_ADAFACTOR_VECTOR] = true;
        check(keys, "ref", TR_F64, &config, after, 1e-10);
        /* Muon's polynomial multiplies the rounding of small singular values. */
        const double limit = tr_optim_of(&config).kind == TR_OPTIM_MUON ? 1e-3 : 2e-5;
        check(keys, "ref", TR_F32, &config, after, limit);
        check(keys, "cpu", TR_F32, &config, after, limit);
    }
    (void)fclose(f);
    for (int k = 0; k < TR_OPTIM_KINDS; k++)
        if (!seen[k]) fail_msg("no case of optimizer %d", k);
}

/* Takes the steps of every optimizer with another value of a key, in a model of type dtype. They
 * may end within `limit` of the way's length from the references, or if that is 0, as far as
 * rounded parameters (parameters_round). */
static void check_rounding(const char *key, tr_dtype dtype, double limit) {
    static tr_config config;
    char keys[512], with[600];
    double after[MOST];
    FILE *f = open_golden();
    while (fgets(keys, sizeof keys, f)) {
        read_numbers(f, after);
        keys[strcspn(keys, "\n")] = '\0';
        config_of(keys, &config);
        const tr_optim_kind kind = tr_optim_of(&config).kind;
        const bool stateless = kind == TR_OPTIM_SGD || kind == TR_OPTIM_ADAFACTOR;
        if (stateless && strstr(key, "moments")) continue;
        (void)snprintf(with, sizeof with, "%s; %s", keys, key);
        config_of(with, &config);
        for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
            double w[MOST], path[MOST], off = 0, most = 0;
            take_steps(on_cpu ? "cpu" : "ref", dtype, &config, w, path);
            for (int i = 0; i < given.count; i++) {
                const double size = fmax(fabs(given.start[i]), fabs(after[i]));
                off += pow(get(w, dtype, i) - after[i], 2);
                most += limit > 0 ? pow(limit * path[i], 2)
                                  : 2.06 / 1.6 * (0x1p-7 * size * path[i] + pow(0x1p-9 * size, 2));
            }
            if (!(off > 0 && off <= most))
                fail_msg("%s: off by %g, not %g", with, sqrt(off), sqrt(most));
        }
    }
    (void)fclose(f);
}

/* A moment of which numbers are at most G of themselves apart has a standard deviation of at most
 * G / 2 for every step that it remembers: the first one G / 2 / sqrt(1 - beta1^2) = 1.15 G with
 * beta1 0.9, and in 20 steps the root of the second one G / 2 sqrt(20) / 2 = 1.1 G. If the errors
 * of all steps had one sign, the parameters would be off by the root of both squares, 1.6 G of
 * their way, in the mean square over the elements, of which there are 96: 4 sigma of that mean
 * are 1.29 times as much, 2.06 G. In BF16 G is 2^-7, and in 8 bits 1/8, except of muon's
 * moments, which are at most 1/60 of their block's largest number apart. Lion's sign is another one
 * where the mean is smaller than its error, which happens to as few steps. */
static void moments_round(void **state) {
    (void)state;
    check_rounding("optim.moments=bf16", TR_F32, 2.06 * 0x1p-7);
    check_rounding("optim.moments=int8", TR_F32, 2.06 / 8);
}

/* An element with gradients that are 1e-4 of the others goes as far as with FP32 moments, within 4
 * times 1.6 G of its way as above: Adam divides by the root of its second moment, 1e-8 of the
 * block's, which only the code of squares reaches. */
static void small_moments_stay(void **state) {
    (void)state;
    enum { SMALL = 3 };
    static tr_config config;
    float wide[MOST], w[MOST];
    double path[MOST], unused[MOST];
    (void)fclose(open_golden());
    for (int t = 0; t < given.steps; t++) given.gradient[t][SMALL] *= 1e-4;
    config_of("optim.name=adamw; optim.lr=0.003", &config);
    take_steps("cpu", TR_F32, &config, wide, path);
    config_of("optim.name=adamw; optim.lr=0.003; optim.moments=int8", &config);
    take_steps("cpu", TR_F32, &config, w, unused);
    const double off = fabs((double)w[SMALL] - (double)wide[SMALL]);
    if (!(off <= 4 * 1.6 / 8 * path[SMALL])) fail_msg("off by %g, of %g", off, path[SMALL]);
}

/* Muon keeps the momentum of a matrix in the even code: after a step, which begins with moments of
 * 0, every number is less than 2^-6 scales from the gradient. */
static void matrices_have_even_moments(void **state) {
    (void)state;
    static tr_config config;
    float w[MOST];
    double path[MOST];
    owned *o = calloc(1, sizeof *o);
    assert_non_null(o);
    (void)fclose(open_golden());
    given.steps = 1;
    config_of("optim.name=muon; optim.moments=int8", &config);
    take_steps_with(o, "cpu", TR_F32, &config, w, path);
    const double *gradient = given.gradient[0];
    for (int k = 0; k < TENSORS; gradient += o->param[k].count, k++) {
        float largest = 0;
        if (!o->param[k].is_linear) continue;
        for (int i = 0; i < o->param[k].count; i++)
            largest = fmaxf(largest, fabsf((float)gradient[i]));
        const float scale = tr_code8_scale(largest);
        for (int i = 0; i < o->param[k].count; i++) {
            const uint8_t number = ((const uint8_t *)o->slot[k].state[0])[i];
            const double have = (double)tr_code8_decode(number, scale, TR_CODE8_EVEN);
            if (!(fabs(have - gradient[i]) < 0x1p-6 * (double)scale))
                fail_msg("element %d of tensor %d: %g, not %g", i, k, have, gradient[i]);
        }
    }
    free(o);
}

/* Takes a step with the gradient g of every element, from parameters of 0. */
static void take_one_step(const char *keys, tr_dtype dtype, double g, owned *o, void *w) {
    static tr_config config;
    double path[MOST];
    (void)fclose(open_golden());
    given.steps = 1;
    for (int i = 0; i < given.count; i++) {
        given.start[i] = 0;
        given.gradient[0][i] = g;
    }
    config_of(keys, &config);
    *o = (owned){0};
    take_steps_with(o, "cpu", dtype, &config, w, path);
}

/* Numbers halfway between two of BF16, which are `low` and the next, go up as often as down: so the
 * pairs of x and y go the same way as often as not. Adds those that do to *same. */
static void count_pairs(const uint16_t *x, const uint16_t *y, uint16_t low, int64_t count,
                        int *same) {
    for (int64_t i = 0; i < count; i++) {
        const int up = (x[i] & 0x7fff) - low, other = (y[i] & 0x7fff) - low;
        assert_true((up == 0 || up == 1) && (other == 0 || other == 1));
        *same += up == other;
    }
}

/* A step rounds the two moments of an element, and a moment and the parameter, independently. */
static void uses_round_independently(void **state) {
    (void)state;
    uint16_t w[MOST];
    float wide[MOST];
    int moments = 0, parameters = 0;
    owned *o = calloc(1, sizeof *o);
    assert_non_null(o);
    /* Both become 1 - 0.7490234375 = (1 + 2^-8) / 4. */
    take_one_step("optim.moments=bf16; optim.beta1=0.7490234375; optim.beta2=0.7490234375", TR_F32,
                  1, o, wide);
    for (int k = 0; k < TENSORS; k++)
        count_pairs(o->slot[k].state[0], o->slot[k].state[1], 0x3e80, o->param[k].count, &moments);
    /* The moment becomes the gradient, and the parameter is moved by it. */
    take_one_step("optim.name=sgd; optim.lr=1; optim.moments=bf16; optim.master=none; "
                  "train.precision=bf16",
                  TR_BF16, 1 + 0x1p-8, o, w);
    for (int k = 0; k < TENSORS; k++)
        count_pairs(o->slot[k].state[0], o->slot[k].value, 0x3f80, o->param[k].count, &parameters);
    /* Within 4 sigma. */
    const double half = given.count / 2.0, limit = 4 * sqrt(given.count) / 2;
    if (fabs(moments - half) > limit || fabs(parameters - half) > limit)
        fail_msg("of %d pairs of moments %d go the same way, and %d of moment and parameter",
                 given.count, moments, parameters);
    free(o);
}

/* A gradient is off by at most 2^-8 of itself, and so by less than a moment of BF16 that remembers
 * one step. */
static void gradients_round(void **state) {
    (void)state;
    check_rounding("optim.gradients=bf16", TR_F32, 2.06 * 0x1p-7);
}

/* A step of d moves a parameter of size w, of which numbers are at most 2^-7 w apart, with a
 * variance of at most 2^-7 w d, and so its way with one of 2^-7 w times its length; at the start it
 * is rounded by at most 2^-9 w. 4 sigma are as above. */
static void parameters_round(void **state) {
    (void)state;
    check_rounding("train.precision=bf16; optim.master=none", TR_BF16, 0);
    check_rounding("train.precision=bf16; optim.master=none; optim.gradients=bf16", TR_BF16, 0);
}

static void rows_are_whole(void **state) {
    (void)state;
    for (int k = 0; k < TR_OPTIM_KINDS; k++) {
        const tr_optim_row *row = tr_optim_row_of((tr_optim_kind)k);
        if (k != TR_OPTIM_ADAFACTOR)
            assert_int_equal(tr_optim_states((tr_optim_kind)k), tr_update_states(row->rule));
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
    tr_optim_new_states(TR_OPTIM_MUON, TR_OPTIM_ADAMW, text);
    assert_string_equal(text, "muon_m");
    tr_optim_new_states(TR_OPTIM_LAMB, TR_OPTIM_MUON, text);
    assert_string_equal(text, "adam_m, adam_v");
    assert_true(tr_optim_restarts(TR_OPTIM_LAMB, TR_OPTIM_MUON));
    assert_false(tr_optim_restarts(TR_OPTIM_MUON, TR_OPTIM_MUON));
    assert_true(tr_optim_restarts(TR_OPTIM_MUON, TR_OPTIM_LION));
    assert_false(tr_optim_restarts(TR_OPTIM_MUON, TR_OPTIM_LAMB));
    assert_false(tr_optim_restarts(TR_OPTIM_LION, TR_OPTIM_MUON));
    assert_true(tr_optim_continues(TR_OPTIM_MUON, TR_OPTIM_LAMB));
    assert_false(tr_optim_continues(TR_OPTIM_LAMB, TR_OPTIM_MUON));
    assert_false(tr_optim_continues(TR_OPTIM_LION, TR_OPTIM_ADAMW));
    assert_false(tr_optim_continues(TR_OPTIM_SGD, TR_OPTIM_SGD));
    tr_optim_new_states(TR_OPTIM_ADAFACTOR, TR_OPTIM_ADAMW, text);
    assert_string_equal(text, "factor_r, factor_c, factor_v");
    assert_true(tr_optim_restarts(TR_OPTIM_ADAFACTOR, TR_OPTIM_ADAMW));
    assert_true(tr_optim_restarts(TR_OPTIM_ADAMW, TR_OPTIM_ADAFACTOR));
    assert_false(tr_optim_restarts(TR_OPTIM_ADAFACTOR, TR_OPTIM_ADAFACTOR));
}

/* Parameters that do not decay have neither weight decay nor L1 and L2. */
static void decay_is_of_matrices(void **state) {
    (void)state;
    static tr_config config;
    static const char *const names[] = {"adamw", "adam", "sgd",      "lion",
                                        "lamb",  "muon", "adafactor"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char keys[128];
        (void)snprintf(keys, sizeof keys,
                       "optim.name=%s; optim.weight_decay=0.2; optim.l1=0.3; optim.l2=0.5",
                       names[i]);
        config_of(keys, &config);
        const tr_optim_config o = tr_optim_of(&config);
        /* The layers keep tensors apart for those that step each by itself. */
        assert_int_equal(config.model.tuning.apart, tr_optim_row_of(o.kind)->by_tensor);
        const tr_update_desc none = tr_optim_update(&o, 1, TR_F32, false, 1).update;
        assert_true(none.weight_decay == 0 && none.l1 == 0 && none.l2 == 0);
        const tr_update_desc all = tr_optim_update(&o, 1, TR_F32, true, 1).update;
        const bool couples = tr_optim_row_of(o.kind)->couples;
        const double decay = couples || tr_optim_row_of(o.kind)->decays_last
                                 ? 0
                                 : 0.2; /* the last ones' is in DESCEND */
        assert_true(all.l1 == 0.3 && all.weight_decay == decay && all.l2 == (couples ? 0.7 : 0.5));
    }
}

/* An optimizer only scales the gradient if nothing is added to it and nothing limits it. */
static void only_scales_without_other_terms(void **state) {
    (void)state;
    tr_op_desc desc = {.kind = TR_OP_DIRECTION, .update = {.rule = TR_UPDATE_SGD}};
    double *const terms[] = {&desc.update.weight_decay, &desc.update.clip_value, &desc.update.l1,
                             &desc.update.l2};
    assert_true(tr_optim_only_scales(&desc));
    for (size_t k = 0; k < sizeof terms / sizeof *terms; k++) {
        *terms[k] = 0.1;
        assert_false(tr_optim_only_scales(&desc));
        *terms[k] = 0;
    }
    desc.update.rule = TR_UPDATE_LION;
    assert_false(tr_optim_only_scales(&desc));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_the_references),
                                       cmocka_unit_test(moments_round),
                                       cmocka_unit_test(small_moments_stay),
                                       cmocka_unit_test(matrices_have_even_moments),
                                       cmocka_unit_test(uses_round_independently),
                                       cmocka_unit_test(gradients_round),
                                       cmocka_unit_test(parameters_round),
                                       cmocka_unit_test(rows_are_whole),
                                       cmocka_unit_test(decay_is_of_matrices),
                                       cmocka_unit_test(only_scales_without_other_terms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
