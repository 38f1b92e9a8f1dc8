#include "support/model_team.h"

const char *const devices[] = {"ref", "cpu"};

void result_free(result *x) {
    for (int p = 0; p < x->tensors; p++) free(x->grad[p]);
}

/* Returns the index of the tensor, which it adds if it is missing. */
static int result_tensor(result *x, const tr_global *tensor, int use) {
    int p = 0;
    while (p < x->tensors && (strcmp(x->name[p], tensor->name) != 0 || x->use[p] != use)) p++;
    if (p < x->tensors) return p;
    assert_true(p < MOST_TENSORS);
    x->tensors++;
    x->count[p] = tr_global_count(tensor);
    x->use[p] = use;
    memcpy(x->name[p], tensor->name, TR_NAME_SIZE);
    x->grad[p] = calloc((size_t)x->count[p], sizeof(double));
    for (int64_t i = 0; i < x->count[p]; i++) x->grad[p][i] = (double)NAN;
    return p;
}

static void *member_run(void *argument) {
    const member *m = argument;
    rig *r = &m->team->rig[m->rank];
    rig_open(r, m->team->device, m->team->world[m->rank], m->team->config, m->team->dtype,
             m->team->batch, m->team->seq, false);
    m->team->fill(r);
    (void)rig_forward(r);
    rig_backward(r, m->team->apart);
    return NULL;
}

static void *member_close(void *argument) {
    const member *m = argument;
    rig_close(&m->team->rig[m->rank]);
    tr_world_close(m->team->world[m->rank]);
    return NULL;
}

/* Runs a function on every rank, each on its thread, because opening and closing are collective. */
static void on_every_rank(team *t, int ranks, void *(*run)(void *)) {
    member members[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    for (int rank = 0; rank < ranks; rank++) {
        members[rank] = (member){t, rank};
        assert_int_equal(pthread_create(&threads[rank], NULL, run, &members[rank]), 0);
    }
    for (int rank = 0; rank < ranks; rank++) pthread_join(threads[rank], NULL);
}

/* Adds one element of a gradient. Ranks that hold the same element have either parts of its
 * gradient or the same bits. */
static void collect_element(void *context, int64_t global, int64_t local) {
    const collection *c = context;
    double *to = &c->grad[global], value = c->param->has_grad ? rig_grad(c->param, local) : 0;
    if (isnan(*to)) *to = value;
    else if (c->param->partial & TR_AXIS_BIT(TR_AXIS_TP)) *to += value;
    else if (*to != value)
        fail_msg("%s: two ranks have different gradients", tr_param_name(c->param));
}

static void collect(team *t, int ranks, result *out) {
    *out = (result){0};
    memcpy(out->loss, t->rig[0].loss, sizeof out->loss);
    for (int rank = 0; rank < ranks; rank++) {
        assert_memory_equal(out->loss, t->rig[rank].loss, sizeof out->loss);
        for (int p = 0; p < t->rig[rank].model->params_count; p++) {
            const tr_param *param = rig_param(t->rig[rank].model, p);
            for (int k = 0; k < param->tensors; k++) {
                int at = result_tensor(out, &param->tensor[k], param->use);
                out->partial[at] = param->partial & TR_AXIS_BIT(TR_AXIS_TP);
                tr_each_element(&param->tensor[k], collect_element,
                                &(collection){param, out->grad[at]});
            }
        }
    }
}

void run_shape(const char *device, const tr_model_config *config, tr_dtype dtype, int64_t batch,
               int64_t seq, int ranks, bool apart, void (*fill)(rig *r), result *out) {
    static team t;
    t = (team){.device = device,
               .config = config,
               .dtype = dtype,
               .batch = batch,
               .seq = seq,
               .apart = apart,
               .fill = fill};
    RIG_TRY(tr_world_open_local(ranks, t.world));
    on_every_rank(&t, ranks, member_run);
    collect(&t, ranks, out);
    on_every_rank(&t, ranks, member_close);
}

void run_filled(const char *device, const tr_model_config *config, tr_dtype dtype, int ranks,
                bool apart, void (*fill)(rig *r), result *out) {
    run_shape(device, config, dtype, BATCH, SEQ, ranks, apart, fill, out);
}

static double distance(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum);
}

double norm(const double *a, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * a[i];
    return sqrt(sum);
}

void compare(const result *x, const result *reference, double loss, double grad, double floor) {
    assert_true(x->loss[1] == reference->loss[1]);
    assert_int_equal(x->tensors, reference->tensors);
    double error = fabs(x->loss[0] - reference->loss[0]) / fabs(reference->loss[0]);
    if (!(error <= loss)) fail_msg("loss is off by %g, more than %g", error, loss);
    double total = 0;
    for (int p = 0; p < reference->tensors; p++) {
        double n = norm(reference->grad[p], reference->count[p]);
        total += n * n;
    }
    for (int p = 0; p < reference->tensors; p++) {
        assert_string_equal(x->name[p], reference->name[p]);
        double own = norm(reference->grad[p], reference->count[p]);
        double scale = own > floor * sqrt(total) ? own : floor * sqrt(total);
        double off = distance(x->grad[p], reference->grad[p], reference->count[p]) / scale;
        if (!(off <= grad))
            fail_msg("%s (use %d): gradient is off by %g, more than %g", reference->name[p],
                     reference->use[p], off, grad);
    }
}

void compare_sequence(const result *a, const result *b) {
    int sliced = 0;
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    for (int p = 0; p < a->tensors; p++) {
        if (a->partial[p] && !b->partial[p]) sliced++;
        else if (memcmp(a->grad[p], b->grad[p], (size_t)a->count[p] * sizeof(double)) != 0)
            fail_msg("%s (use %d): the gradient has other bits", a->name[p], a->use[p]);
    }
    assert_true(sliced > 0);
    compare(a, b, 0, 1e-5, 1e-3);
}

void compare_bits(const result *a, const result *b) {
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_int_equal(a->tensors, b->tensors);
    for (int p = 0; p < a->tensors; p++)
        assert_memory_equal(a->grad[p], b->grad[p], (size_t)a->count[p] * sizeof(double));
}
