/* Compares models with PyTorch and transformers, through the program's own config, engine,
 * optimizer and sampler: every golden file of tests/golden, or of the folder that the environment
 * variable TRIREME_GOLDEN names. tests/golden/make.py writes them. TRIREME_GOLDEN_SHOW=1 prints
 * every distance.
 *
 * FP64 (ref): logits, losses, gradients and parameters, each tensor within 1e-10 of its norm.
 *
 * FP32 (ref, cpu): logits, loss and each gradient within 2e-5 of its norm; the parameters after the
 * steps, all together.
 *
 * BF16, FP16 (ref, cpu): no farther from the FP64 values than PyTorch in the same precision times
 * 1.5: logits; gradients, and parameters after the steps, all together. Each gradient: times 2. A
 * single element with the wrong sign of its first gradient is as far off after AdamW's step as a
 * whole tensor, so parameters are not judged one by one. In FP16 a model has about one such
 * element, or none, here as in PyTorch, so the parameters of all files are judged together, and of
 * each file only the number of such elements.
 *
 * A gradient that is zero in exact arithmetic, such as that of a key's bias, is compared with the
 * norm of all gradients, and in BF16 and FP16, if PyTorch has exactly zero, with PyTorch's distance
 * of all gradients. AdamW turns its rounding errors into steps of any size, so elements with
 * such a gradient are left out when parameters of FP32, BF16 and FP16 are compared. */
#include "config/config.h"
#include "support/elements.h"
#include "support/generate_order.h"
#include "support/golden.h"
#include "support/op_cases.h"
#include "train/decoder.h"
#include "train/engine.h"
#include "train/loss_scale.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        if ((expr) != TR_OK)                                                                       \
            fail_msg("%s: %s: %s (%s)", run.file, run.what, tr_error_message(), tr_error_trace()); \
    } while (0)

enum { MICRO_BATCHES = 2, OVERRIDES = 64 };

/* The results of a run of a golden file's model. */
typedef struct results {
    double *logits, *gradients, *after; /* as in the file */
    double *losses, *norms, *valid;     /* [steps] */
} results;

/* The current run, for messages. */
static struct {
    const char *file;
    char what[32];
} run;

static int faults;

static void name_run(const char *file, const char *precision, const char *device) {
    run.file = file;
    (void)snprintf(run.what, sizeof run.what, "%s on %s", precision, device);
}

/* Counts a fault when a distance is more than the limit. */
static void judge(const char *of, double is, double limit) {
    bool fault = !(is <= limit);
    if (fault || getenv("TRIREME_GOLDEN_SHOW"))
        print_message("%s%s, %s: %s is off by %.3g, limit %.3g\n", fault ? "FAULT: " : "", run.file,
                      run.what, of, is, limit);
    faults += fault;
}

/* --- a run ------------------------------------------------------------------------------------ */

static void configure(const golden *g, const char *device, const char *precision, tr_config *c) {
    char *lines = strdup(g->config), *rest = lines, *line, device_key[32], precision_key[32];
    const char *overrides[OVERRIDES];
    int count = 0;
    (void)snprintf(device_key, sizeof device_key, "device.name=%s", device);
    (void)snprintf(precision_key, sizeof precision_key, "train.precision=%s", precision);
    overrides[count++] = device_key;
    overrides[count++] = precision_key;
    while ((line = strtok_r(rest, "\n", &rest)) && count < OVERRIDES) overrides[count++] = line;
    TRY(tr_config_parse("", 0, g->name, overrides, count, c));
    free(lines);
}

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    const golden *g = context;
    const struct {
        const char *name;
        const int32_t *from;
    } inputs[] = {{TR_STEP_INPUT_TOKENS, g->tokens},
                  {TR_STEP_INPUT_LABELS, g->labels},
                  {TR_STEP_INPUT_DOCUMENT_STARTS, g->starts}};
    (void)validation;
    /* The engine reads ahead, also when no step follows. */
    if (sample >= g->steps * g->batch) return TR_FAIL(TR_ERR_DATA, "the file has no such sample");
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        void *to = tr_fetch_place(wanted, count, inputs[i].name);
        size_t bytes = (size_t)g->seq * sizeof(int32_t);
        if (to && inputs[i].from) memcpy(to, inputs[i].from + sample * g->seq, bytes);
        else if (to) memset(to, 0, bytes);
    }
    return TR_OK;
}

/* A copy of elements of a local tensor from or to the file's array. */
typedef struct transfer {
    const tr_store_slot *slot;
    tr_dtype dtype; /* of `local` */
    void *local;
    double *file; /* the tensor's part of the array */
    bool to_file;
    double factor;
} transfer;

static void move_element(void *context, int64_t global, int64_t local) {
    const transfer *t = context;
    if (t->to_file) t->file[global] = t->factor * tr_element(t->local, t->dtype, local);
    else tr_element_set(t->local, t->dtype, local, t->file[global]);
}

typedef enum what { MASTERS, GRADIENTS } what;

/* Moves all parameters' masters (of frozen ones in BF16 the values) or gradients (if they have one)
 * between the store and an array like the file's. */
static void move_all(const golden *g, const tr_store *store, what of, bool to_file, double factor,
                     double *file) {
    int64_t moved = 0;
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        if (slot->shares >= 0) continue;
        for (int k = 0; k < slot->param->tensors; k++) {
            const tr_global *tensor = &slot->param->tensor[k];
            const golden_param *p = golden_find(g, tensor->name);
            if (!p || p->count != tr_global_count(tensor))
                fail_msg("%s: %s is not in the file in this size", g->name, tensor->name);
            transfer t = {.dtype = store->acc,
                          .local = of == MASTERS ? slot->master : slot->param->grad,
                          .file = file + p->at,
                          .to_file = to_file,
                          .factor = factor};
            tr_range held;
            if (of == MASTERS) t.local = tr_store_slot_saved(store, slot, &t.dtype, &held);
            if (t.local) tr_each_element(tensor, move_element, &t);
            moved += p->count;
        }
    }
    if (moved != g->count)
        fail_msg("%s: the model has %lld elements, the file %lld", g->name, (long long)moved,
                 (long long)g->count);
}

/* Takes the step with the first loss scale, and with half of it while gradients overflow, which is
 * a fault: none of seed 1 does, and one step of 180 with seeds 2 to 5. (PyTorch's gradients of
 * parameters are FP16, Trireme's FP32; make.py halves PyTorch's scale for some of the files.) */
static void take_step(const golden *g, const tr_config *c, tr_engine *engine, int64_t step,
                      tr_step_result *out) {
    double scale = tr_loss_scaled(c) ? TR_LOSS_SCALE_FIRST : 1;
    int tries = 0;
    do {
        tr_engine_set_loss_scale(engine, scale);
        TRY(tr_engine_step(engine, step, step, (step - 1) * g->batch, g->lr[step - 1], out));
        scale /= 2;
        tries++;
    } while (!out->finite && scale >= 1);
    judge("number of overflows", tries - 1, 0);
}

static void train(const golden *g, const tr_config *c, tr_world *world, tr_device *device,
                  results *out) {
    tr_engine *engine;
    tr_schedule *schedule;
    tr_engine_desc desc = {.world = world,
                           .device = device,
                           .model = c->model,
                           .batch = g->batch,
                           .micro_batch = g->batch / MICRO_BATCHES,
                           .dtype = tr_config_dtype(c),
                           .documents = g->starts != NULL,
                           .max_norm = c->optim.clip,
                           .optimizer = tr_optim_of(c),
                           .fetch = fetch,
                           .fetch_context = (void *)g};
    TRY(generate_order("1f1b", 1, 1, MICRO_BATCHES, &schedule));
    TRY(tr_mesh_make(1, 1, 1, 0, 1, &desc.mesh));
    desc.schedule = schedule;
    TRY(tr_engine_create(&desc, &engine));
    tr_store *store = tr_engine_store(engine);
    move_all(g, store, MASTERS, false, 1, g->weights);
    TRY(tr_store_publish(store));
    for (int64_t step = 1; step <= g->steps; step++) {
        tr_step_result result;
        take_step(g, c, engine, step, &result);
        out->losses[step - 1] = result.loss;
        out->norms[step - 1] = result.grad_norm;
        out->valid[step - 1] = result.tokens;
        if (step == 1)
            move_all(g, store, GRADIENTS, true, 1 / (result.tokens * result.loss_scale),
                     out->gradients);
    }
    move_all(g, store, MASTERS, true, 1, out->after);
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
}

/* Feeds each document of step 1's samples from its start. */
static void decode_logits(const golden *g, const tr_decoder_desc *desc, double *logits) {
    for (int64_t row = 0; row < g->batch * g->seq;) {
        tr_decoder *decoder;
        int64_t start = g->starts ? g->starts[row] : 0, position = 0;
        TRY(tr_decoder_create(desc, &decoder));
        do {
            TRY(tr_decoder_step(decoder, &g->tokens[row], &position));
            position++;
            TRY(tr_decoder_logits(decoder, logits + row * g->vocab));
            row++;
        } while (row % g->seq && (!g->starts || g->starts[row] == start));
        tr_decoder_destroy(decoder);
    }
}

static void decode(const golden *g, const tr_config *c, tr_world *world, tr_device *device,
                   results *out) {
    const tr_model_shape shape = {.batch = 1,
                                  .seq = c->model.context,
                                  .dtype = tr_config_dtype(c),
                                  .decode = true,
                                  .tp_size = 1};
    tr_mesh_groups *groups;
    tr_model *model;
    tr_store *store;
    tr_mesh mesh;
    TRY(tr_model_create(&c->model, &shape, &model));
    TRY(tr_mesh_make(1, 1, 1, 0, 1, &mesh));
    TRY(tr_mesh_groups_create(world, device, &mesh, &groups));
    const int first[2] = {0, model->count}, owner[1] = {0};
    const tr_placement placement = {.stages = 1, .first = first, .owner = owner};
    TRY(tr_store_create(&(tr_store_desc){.device = device,
                                         .world = world,
                                         .mesh = &mesh,
                                         .model = model,
                                         .placement = &placement,
                                         .dtype = shape.dtype},
                        &store));
    move_all(g, store, MASTERS, false, 1, g->weights);
    TRY(tr_store_publish(store));
    const tr_decoder_desc desc = {.world = world,
                                  .device = device,
                                  .mesh = mesh,
                                  .groups = groups,
                                  .model = model,
                                  .rows = 1,
                                  .placement = &placement};
    decode_logits(g, &desc, out->logits);
    tr_store_destroy(store);
    tr_model_destroy(model);
    tr_mesh_groups_destroy(groups);
}

static void take(const golden *g, const char *name, const char *precision, results *out) {
    static tr_config c;
    tr_world *world;
    tr_device *device;
    const tr_device_options options = {.threads = 1};
    name_run(g->name, precision, name);
    *out = (results){.logits = calloc((size_t)(g->batch * g->seq * g->vocab), sizeof(double)),
                     .gradients = calloc((size_t)g->count, sizeof(double)),
                     .after = calloc((size_t)g->count, sizeof(double)),
                     .losses = calloc((size_t)g->steps, sizeof(double)),
                     .norms = calloc((size_t)g->steps, sizeof(double)),
                     .valid = calloc((size_t)g->steps, sizeof(double))};
    configure(g, name, precision, &c);
    TRY(tr_world_open_local(1, &world));
    TRY(tr_device_open(name, &options, &device));
    train(g, &c, world, device, out);
    decode(g, &c, world, device, out);
    tr_device_close(device);
    tr_world_close(world);
}

static void results_free(results *r) {
    void *memory[] = {r->logits, r->gradients, r->after, r->losses, r->norms, r->valid};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* --- judging ---------------------------------------------------------------------------------- */

static double norm(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static double distance(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrt(sum);
}

/* Returns true when the gradient of that element is zero except for rounding, so that AdamW's step
 * is noise. */
static bool is_zero(double gradient, double global) {
    return fabs(gradient) <= 1e-12 * global;
}

/* Judges logits, losses, norms, and each gradient, relative to their norms. */
static void judge_forward_and_gradients(const golden *g, const results *r, double limit) {
    int64_t logits = g->batch * g->seq * g->vocab;
    double global = norm(g->gradients, g->count);
    for (int64_t s = 0; s < g->steps; s++)
        if (r->valid[s] != g->valid[s])
            judge("number of labels", fabs(r->valid[s] - g->valid[s]), 0);
    judge("logits", distance(r->logits, g->logits, logits), limit * norm(g->logits, logits));
    judge("loss", fabs(r->losses[0] - g->losses[0]), limit * g->losses[0]);
    judge("norm", fabs(r->norms[0] - g->norms[0]), limit * g->norms[0]);
    for (int p = 0; p < g->params; p++) {
        const golden_param *param = &g->param[p];
        double own = norm(g->gradients + param->at, param->count);
        judge(param->name,
              distance(r->gradients + param->at, g->gradients + param->at, param->count),
              limit * (own < 1e-10 * global ? global : own));
    }
}

/* Returns the distance of all parameters with a gradient that is not zero. *far (may be NULL)
 * becomes the number of their elements that are off by more than half of the first step. */
static double distance_after(const golden *g, const results *r, int64_t *far) {
    double global = norm(g->gradients, g->count), sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < g->count; i++) {
        double d = r->after[i] - g->after[i];
        if (is_zero(g->gradients[i], global)) continue;
        sum += d * d;
        count += fabs(d) > 0.5 * g->lr[0];
    }
    if (far) *far = count;
    return sqrt(sum);
}

static void check_fp64(const golden *g) {
    results r;
    take(g, "ref", "fp64", &r);
    judge_forward_and_gradients(g, &r, 1e-10);
    for (int64_t s = 0; s < g->steps; s++) {
        judge("loss", fabs(r.losses[s] - g->losses[s]), 1e-10 * g->losses[s]);
        judge("norm", fabs(r.norms[s] - g->norms[s]), 1e-10 * g->norms[s]);
    }
    for (int p = 0; p < g->params; p++) {
        const golden_param *param = &g->param[p];
        judge(param->name, distance(r.after + param->at, g->after + param->at, param->count),
              1e-10 * norm(g->after + param->at, param->count));
    }
    results_free(&r);
}

static void check_fp32(const golden *g, const char *device) {
    results r;
    take(g, device, "fp32", &r);
    judge_forward_and_gradients(g, &r, 2e-5);
    judge("all parameters", distance_after(g, &r, NULL), 2e-5 * norm(g->after, g->count));
    results_free(&r);
}

/* Of parameters after the steps. */
typedef struct squares {
    double is, pytorch; /* sums of squares of all distances */
    int64_t far;        /* elements that are off by more than half of the first step */
} squares;

static void judge_after(const squares *after) {
    judge("all parameters", sqrt(after->is), 1.5 * sqrt(after->pytorch));
}

/* Adds to *after the distances of the parameters, which it does not judge, and sets after->far. */
static void check_narrow(const golden *g, const char *device, const char *precision,
                         const golden_distances *pytorch, squares *after) {
    int64_t logits = g->batch * g->seq * g->vocab;
    const double all = norm(pytorch->gradient, g->params);
    results r;
    take(g, device, precision, &r);
    for (int p = 0; p < g->params; p++) {
        const golden_param *param = &g->param[p];
        const double theirs = pytorch->gradient[p];
        after->pytorch += pytorch->after[p] * pytorch->after[p];
        judge(param->name,
              distance(r.gradients + param->at, g->gradients + param->at, param->count),
              2 * (theirs == 0 ? all : theirs));
    }
    judge("logits", distance(r.logits, g->logits, logits), 1.5 * pytorch->logits);
    judge("all gradients", distance(r.gradients, g->gradients, g->count), 1.5 * all);
    after->is += pow(distance_after(g, &r, &after->far), 2);
    results_free(&r);
}

static void check_bf16(const golden *g, const char *device) {
    squares after = {0};
    check_narrow(g, device, "bf16", &g->bf16, &after);
    judge_after(&after);
}

/* Adds to *after the distances of the parameters. Judges how many elements rounding turned into the
 * other direction: with seeds 1 to 5 a file has 1.3 of them on average, at most 4. They are
 * independent of each other, so that more than 8 come once in 100,000 files (Poisson). These files
 * have up to 7,088 elements of parameters; the limit of a larger file grows in proportion. */
static void check_fp16(const golden *g, const char *device, squares *after) {
    check_narrow(g, device, "fp16", &g->fp16, after);
    judge("number of elements with another direction", (double)after->far,
          8 * fmax(1, (double)g->count / 7088));
}

static void test_golden(void **state) {
    (void)state;
    char pattern[4096];
    const char *folder = getenv("TRIREME_GOLDEN");
    squares ref = {0}, cpu = {0};
    glob_t files;
    (void)snprintf(pattern, sizeof pattern, "%s/*.h5", folder ? folder : TRIREME_TEST_GOLDEN);
    if (glob(pattern, 0, NULL, &files) != 0) fail_msg("there is no %s", pattern);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        golden g;
        golden_read(files.gl_pathv[i], &g);
        check_fp64(&g);
        check_fp32(&g, "ref");
        check_fp32(&g, "cpu");
        check_bf16(&g, "ref");
        check_bf16(&g, "cpu");
        check_fp16(&g, "ref", &ref);
        check_fp16(&g, "cpu", &cpu);
        golden_free(&g);
    }
    globfree(&files);
    name_run("all files", "fp16", "ref");
    judge_after(&ref);
    name_run("all files", "fp16", "cpu");
    judge_after(&cpu);
    if (faults) fail_msg("%d distances are too large", faults);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
