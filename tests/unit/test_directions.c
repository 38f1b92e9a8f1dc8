/* Tests optimizers that choose the length of each tensor's step, in whole engines in FP64: the
 * length of LAMB's steps, parameters that do not depend on the layout, and bytes as planned. */
#include "support/engine_ranks.h"
#include "support/small_engine.h"

#include "train/store_tensors.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, TENSORS = 160 };
static const double LR = 0.01;

/* The global tensors of a model, and Adafactor's states of them, before and after some steps. */
typedef struct tensors {
    int count;
    char name[TENSORS][TR_NAME_SIZE];
    int64_t size[TENSORS];
    double *value[TENSORS][2];
} tensors;

typedef struct layout {
    const tr_model_config *model;
    tr_optim_config optimizer;
    int pp, dp, tp, steps;
} layout;

typedef struct member {
    const layout *layout;
    const tr_schedule *schedule;
    pthread_mutex_t *lock;
    tensors *out;
} member;

static int find(tensors *t, const tr_ckpt_tensor *tensor) {
    int k = 0;
    while (k < t->count && strcmp(t->name[k], tensor->name) != 0) k++;
    assert_true(k < TENSORS);
    if (k < t->count) return k;
    t->count++;
    (void)snprintf(t->name[k], TR_NAME_SIZE, "%s", tensor->name);
    t->size[k] = 1;
    for (int d = 0; d < tensor->rank; d++) t->size[k] *= tensor->shape[d];
    for (int when = 0; when < 2; when++)
        t->value[k][when] = calloc((size_t)t->size[k], sizeof(double));
    return k;
}

static void take_box(const tr_ckpt_tensor *tensor, const tr_box *box, double *out) {
    int64_t at[TR_PARAM_RANK] = {0}, elements = 1;
    for (int d = 0; d < tensor->rank; d++) elements *= box->extent[d];
    for (int64_t i = 0; i < elements; i++) {
        int64_t from = box->local_offset, to = 0;
        for (int d = 0; d < tensor->rank; d++) {
            from += at[d] * box->local_stride[d];
            to = to * tensor->shape[d] + box->offset[d] + at[d];
        }
        out[to] = ((const double *)tensor->local)[from];
        for (int d = tensor->rank - 1; d >= 0 && ++at[d] == box->extent[d]; d--) at[d] = 0;
    }
}

/* Collects what a checkpoint would hold. */
static tr_status collect(const member *m, tr_engine *engine, const tr_mesh *mesh, int when) {
    tr_ckpt_tensor *tensor;
    int count;
    TR_TRY(tr_store_list_tensors(tr_engine_store(engine), mesh, &tensor, &count));
    (void)pthread_mutex_lock(m->lock);
    for (int i = 0; i < count; i++) {
        if (strncmp(tensor[i].name, "weights/", 8) != 0 &&
            strncmp(tensor[i].name, "factor_", 7) != 0)
            continue;
        const int t = find(m->out, &tensor[i]);
        for (int b = 0; b < tensor[i].boxes; b++)
            take_box(&tensor[i], &tensor[i].box[b], m->out->value[t][when]);
    }
    (void)pthread_mutex_unlock(m->lock);
    free(tensor);
    return TR_OK;
}

static bool is_weight(const tensors *t, int k) {
    return strncmp(t->name[k], "weights/", 8) == 0;
}

static tr_status fetch_words(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                             int count) {
    (void)context, (void)validation;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < 16; i++)
            ((int32_t *)wanted[k].to)[i] = (int32_t)((sample * 7 + i * i) % 64);
    return TR_OK;
}

static tr_status take_steps(engine_rank *r, void *state) {
    const member *m = state;
    const layout *l = m->layout;
    tr_step_result result;
    tr_engine_desc desc = small(r->world, r->device, (tr_schedule *)m->schedule);
    desc.model = *l->model;
    desc.model.tuning.apart = tr_optim_row_of(l->optimizer.kind)->by_tensor;
    desc.dtype = TR_F64;
    desc.fetch = fetch_words;
    desc.optimizer = l->optimizer;
    TR_TRY(tr_mesh_make(l->pp, l->dp, l->tp, r->rank, r->ranks, &desc.mesh));
    TR_TRY(tr_engine_create(&desc, &r->engine));
    TR_TRY(tr_store_init(tr_engine_store(r->engine), 3, NULL));
    TR_TRY(collect(m, r->engine, &desc.mesh, 0));
    for (int t = 1; t <= l->steps; t++)
        TR_TRY(tr_engine_step(r->engine, t, t, 8 * (t - 1), LR, &result));
    TR_TRY(collect(m, r->engine, &desc.mesh, 1));
    return check_planned_memory(r);
}

static void run(const layout *l, tensors *out) {
    member m[RANKS];
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    tr_schedule *schedule = schedule_of("1f1b", l->pp, 4 / l->dp);
    out->count = 0;
    for (int i = 0; i < RANKS; i++) m[i] = (member){l, schedule, &lock, out};
    run_engine_ranks(l->pp * l->dp * l->tp, "ref", take_steps, m, sizeof *m);
    tr_schedule_destroy(schedule);
}

static void free_tensors(tensors *t) {
    for (int k = 0; k < t->count; k++) {
        free(t->value[k][0]);
        free(t->value[k][1]);
    }
}

static double norm(const double *x, const double *minus, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i] - (minus ? minus[i] : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

static const tr_model_config models[] = {
    {.family = "gpt2", .layers = 2, .width = 32, .heads = 4, .context = 16, .vocab = 64},
    {.family = "llama",
     .layers = 2,
     .width = 32,
     .heads = 4,
     .kv_heads = 1, /* tensor ranks share it */
     .context = 16,
     .vocab = 64},
    {.family = "llama",
     .layers = 2,
     .width = 32,
     .heads = 4,
     .kv_heads = 2, /* of four tensor ranks two share each */
     .context = 16,
     .vocab = 64},
};
enum { MODELS = sizeof models / sizeof *models };

static const tr_optim_config optimizers[] = {
    {.kind = TR_OPTIM_LAMB, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01},
    {.kind = TR_OPTIM_MUON,
     .beta1 = 0.9,
     .beta2 = 0.95,
     .eps = 1e-8,
     .weight_decay = 0.1,
     .momentum = 0.95,
     .nesterov = true},
    {.kind = TR_OPTIM_ADAFACTOR, .weight_decay = 0.1},
};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* After one step of LAMB each tensor has moved by lr times its own norm; one that was 0 by lr times
 * the direction's, all elements of which are about 1. */
static void steps_are_as_long_as_tensors(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        tensors t;
        run(&(layout){&models[m], optimizers[0], 1, 1, 2, 1}, &t);
        assert_true(t.count > 10);
        for (int k = 0; k < t.count; k++) {
            const double before = norm(t.value[k][0], NULL, t.size[k]);
            const double moved = norm(t.value[k][1], t.value[k][0], t.size[k]);
            if (before > 0 && fabs(moved - LR * before) > 1e-12 * before)
                fail_msg("%s moved by %.17g, not %.17g", t.name[k], moved, LR * before);
            if (before == 0 && !(moved > 0 && moved <= 1.0001 * LR * sqrt((double)t.size[k])))
                fail_msg("%s moved by %g", t.name[k], moved);
        }
        free_tensors(&t);
    }
}

/* After one step of Adafactor the root of a tensor's mean squared movement is at most lr times that
 * of its elements, or times 1e-3 if that is more: this is how far a tensor of zeros moves. */
static void steps_are_relative(void **state) {
    (void)state;
    tr_optim_config adafactor = optimizers[2];
    adafactor.weight_decay = 0;
    for (int m = 0; m < MODELS; m++) {
        tensors t;
        run(&(layout){&models[m], adafactor, 1, 1, 2, 1}, &t);
        for (int k = 0; k < t.count; k++) {
            if (!is_weight(&t, k)) continue;
            const double size = sqrt((double)t.size[k]);
            const double before = norm(t.value[k][0], NULL, t.size[k]) / size;
            const double moved = norm(t.value[k][1], t.value[k][0], t.size[k]) / size;
            const double most = LR * (before > 1e-3 ? before : 1e-3);
            if (!(moved > 0.1 * most && moved <= (1 + 1e-9) * most))
                fail_msg("%s moved by %.17g, of %.17g", t.name[k], moved, most);
        }
        free_tensors(&t);
    }
}

/* Fails when a part of a tensor has moved to another place than on one rank. */
static void check_part(const tensors *one, int k, const tensors *other, int64_t from, int64_t size,
                       const char *where) {
    int j = 0;
    while (strcmp(one->name[k], other->name[j]) != 0) j++;
    const double *began = one->value[k][0] + from, *ended = one->value[k][1] + from;
    const double off = norm(ended, other->value[j][1] + from, size);
    const double moved = norm(ended, began, size);
    if (!(off <= 1e-7 * moved))
        fail_msg("%s from %lld, %s: off by %g of %g", one->name[k], (long long)from, where, off,
                 moved);
}

/* Attention does not change with the biases of its keys: their gradients are rounding, which
 * Adafactor divides by its own size. They are compared for the other optimizers alone. */
static void check_tensor(const tensors *one, int k, const tensors *other, tr_optim_kind optimizer,
                         const char *where) {
    const int64_t size = one->size[k], part = size / 3;
    if (optimizer == TR_OPTIM_ADAFACTOR && strstr(one->name[k], "c_attn.bias")) {
        check_part(one, k, other, 0, part, where);
        check_part(one, k, other, 2 * part, part, where);
    } else {
        check_part(one, k, other, 0, size, where);
    }
}

static void layouts_agree(void **state) {
    (void)state;
    static const int mesh[][3] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 1, 2}, {1, 2, 2}, {1, 1, 4}};
    for (int m = 0; m < MODELS; m++)
        for (int o = 0; o < OPTIMIZERS; o++) {
            tensors one, other;
            char where[64];
            run(&(layout){&models[m], optimizers[o], 1, 1, 1, 3}, &one);
            for (size_t i = 0; i < sizeof mesh / sizeof *mesh; i++) {
                run(&(layout){&models[m], optimizers[o], mesh[i][0], mesh[i][1], mesh[i][2], 3},
                    &other);
                (void)snprintf(where, sizeof where, "optimizer %d, pp %d dp %d tp %d", o,
                               mesh[i][0], mesh[i][1], mesh[i][2]);
                assert_int_equal(one.count, other.count);
                for (int k = 0; k < one.count; k++)
                    check_tensor(&one, k, &other, optimizers[o].kind, where);
                free_tensors(&other);
            }
            free_tensors(&one);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_as_long_as_tensors),
                                       cmocka_unit_test(steps_are_relative),
                                       cmocka_unit_test(layouts_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
