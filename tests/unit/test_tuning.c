/* Tests train.freeze and train.lr_scale with the engine: a run with frozen parameters equals, bit
 * for bit, one that trains all of them and takes back the changes of these; no operator of W runs
 * for them, memory falls as planned, and the learning rate is that of the name. */
#include "base/memory.h"
#include "device/device_impl.h"
#include "layers/tuning.h"
#include "support/generate_order.h"
#include "train/engine.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2, STEPS = 3, CONTEXT = 12, VOCAB = 61, BATCH = 8 };

/* A layout, and a model of which something is frozen. */
typedef struct layout {
    const char *family, *freeze, *schedule;
    int pp, dp, tp, chunks;
    const char *device;
    tr_dtype dtype;
    double dropout;
} layout;

typedef struct rank_state {
    const layout *l;
    tr_world *world[2]; /* of the engine that freezes, and of that which does not */
    tr_schedule *schedule;
    int rank;
    char error[512];
} rank_state;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) return TR_FAIL(TR_ERR_INTERNAL, "line %d: " #condition, __LINE__);       \
    } while (0)

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    (void)context, (void)validation;
    for (int k = 0; k < count; k++)
        for (int64_t t = 0; t < CONTEXT; t++)
            ((int32_t *)wanted[k].to)[t] =
                (int32_t)((7 * sample + 3 * t + t * t * (sample % 3)) % VOCAB);
    return TR_OK;
}

static tr_engine_desc describe(const layout *l, tr_world *world, tr_device *device,
                               const tr_schedule *schedule) {
    tr_engine_desc desc = {
        .world = world,
        .device = device,
        .model = {.layers = 4,
                  .width = 24,
                  .heads = 4,
                  .kv_heads = strcmp(l->family, "gpt2") ? 2 : 4,
                  .context = CONTEXT,
                  .vocab = VOCAB,
                  .dropout = l->dropout},
        .batch = BATCH,
        .micro_batch = 1,
        .dtype = l->dtype,
        .deterministic = true,
        .schedule = schedule,
        .seed = 5,
        .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
        .fetch = fetch};
    (void)snprintf(desc.model.family, sizeof desc.model.family, "%s", l->family);
    return desc;
}

/* --- tensors of two stores -------------------------------------------------------------------- */

static const tr_store_slot *slot_of(const tr_store *store, const char *name, int use, int *tensor) {
    for (int i = 0; i < store->slots; i++)
        for (int k = 0; k < store->slot[i].param->tensors; k++)
            if (store->slot[i].param->use == use &&
                !strcmp(store->slot[i].param->tensor[k].name, name)) {
                *tensor = k;
                return &store->slot[i];
            }
    return NULL;
}

/* Compares the boxes of one tensor, of elements of `size` bytes, or copies a's to b. */
static bool walk_boxes(const tr_global *a, char *memory_a, const tr_global *b, char *memory_b,
                       size_t size, bool copy) {
    bool same = a->boxes == b->boxes;
    for (int x = 0; x < a->boxes && same; x++) {
        const tr_box *p = &a->box[x], *q = &b->box[x];
        for (int64_t i = 0; i < p->extent[0]; i++)
            for (int64_t j = 0; j < p->extent[1]; j++) {
                char *at = memory_a + (size_t)(p->local_offset + i * p->local_stride[0] +
                                               j * p->local_stride[1]) *
                                          size;
                char *to = memory_b + (size_t)(q->local_offset + i * q->local_stride[0] +
                                               j * q->local_stride[1]) *
                                          size;
                if (copy) memcpy(to, at, size);
                else same &= memcmp(to, at, size) == 0;
            }
    }
    return same;
}

/* Calls for every tensor of `tuned`: gives `plain` the frozen ones, and compares all values. */
static tr_status compare(const tr_store *tuned, const tr_store *plain, bool restores) {
    const size_t size = tr_dtype_size(tuned->dtype), acc = tr_dtype_size(tuned->acc);
    for (int i = 0; i < tuned->slots; i++) {
        const tr_param *param = tuned->slot[i].param;
        for (int k = 0; k < param->tensors; k++) {
            int other;
            const tr_global *tensor = &param->tensor[k];
            const tr_store_slot *slot = slot_of(plain, tensor->name, param->use, &other);
            EXPECT(slot);
            const tr_global *theirs = &slot->param->tensor[other];
            if (restores && param->frozen && tuned->dtype == tuned->acc)
                walk_boxes(tensor, param->value, theirs, slot->master, acc, true);
            if (restores && param->frozen)
                walk_boxes(tensor, param->value, theirs, slot->param->value, size, true);
            if (!walk_boxes(tensor, param->value, theirs, slot->param->value, size, false))
                return TR_FAIL(TR_ERR_INTERNAL, "%s differs", tensor->name);
        }
    }
    return TR_OK;
}

/* Keeps a copy of the frozen values, or compares them with it. */
static tr_status watch_frozen(const tr_store *store, char **copy, bool compares) {
    for (int i = 0; i < store->slots; i++) {
        const tr_param *param = store->slot[i].param;
        const size_t bytes = (size_t)param->count * tr_dtype_size(store->dtype);
        if (!param->frozen) continue;
        EXPECT(!store->slot[i].state[0] && !store->slot[i].state[1] && !store->slot[i].sum);
        if (compares) {
            EXPECT(memcmp(copy[i], param->value, bytes) == 0);
            free(copy[i]);
        } else {
            TR_TRY(tr_calloc(bytes, 1, (void **)&copy[i]));
            memcpy(copy[i], param->value, bytes);
        }
    }
    return TR_OK;
}

/* Returns the norm of the gradients of a store on one rank, of those that are trained in
 * `tuned`. */
static double norm_of(const tr_store *tuned, const tr_store *plain) {
    double sum = 0;
    for (int i = 0; i < tuned->slots; i++) {
        const tr_param *param = tuned->slot[i].param;
        for (int k = 0; k < param->tensors && !param->frozen && param->use == 0; k++) {
            int other;
            const tr_store_slot *slot = slot_of(plain, param->tensor[k].name, 0, &other);
            const tr_global *t = &slot->param->tensor[other];
            for (int x = 0; x < t->boxes; x++)
                for (int64_t e = 0; e < t->box[x].extent[0] * t->box[x].extent[1]; e++) {
                    const tr_box *b = &t->box[x];
                    const int64_t at = b->local_offset + e / b->extent[1] * b->local_stride[0] +
                                       e % b->extent[1] * b->local_stride[1];
                    const double g = (double)((const float *)slot->param->grad)[at];
                    sum += g * g;
                }
        }
    }
    return sqrt(sum) / (BATCH * CONTEXT);
}

/* --- frozen parameters ------------------------------------------------------------------------ */

static tr_status open_device(const layout *l, tr_device **out) {
    return tr_device_open(l->device, &(tr_device_options){.threads = 1}, out);
}

static tr_status check_memory(const tr_engine *tuned, const tr_device *device,
                              const tr_engine *plain) {
    tr_memory_plan plan, whole;
    tr_engine_plan(tuned, &plan);
    tr_engine_plan(plain, &whole);
    const tr_memory_rank taken = tr_memory_measure(device, &plan);
    EXPECT(memcmp(taken.taken, plan.of, sizeof plan.of) == 0);
    EXPECT(plan.of[TR_MEMORY_OPTIMIZER] < whole.of[TR_MEMORY_OPTIMIZER]);
    EXPECT(plan.of[TR_MEMORY_GRADIENTS] < whole.of[TR_MEMORY_GRADIENTS]);
    return TR_OK;
}

static tr_status train_both(rank_state *r, tr_device *device[2], tr_engine *engine[2]) {
    const layout *l = r->l;
    char *copy[256] = {0};
    tr_step_result result[2];
    tr_engine_desc desc = describe(l, r->world[0], device[0], r->schedule);
    TR_TRY(tr_mesh_make(l->pp, l->dp, l->tp, r->rank, l->pp * l->dp * l->tp, &desc.mesh));
    desc.device = device[1];
    desc.world = r->world[1];
    TR_TRY(tr_engine_create(&desc, &engine[1]));
    (void)snprintf(desc.model.tuning.freeze, sizeof desc.model.tuning.freeze, "%s", l->freeze);
    desc.device = device[0];
    desc.world = r->world[0];
    TR_TRY(tr_engine_create(&desc, &engine[0]));
    const tr_store *tuned = tr_engine_store(engine[0]), *plain = tr_engine_store(engine[1]);
    for (int k = 0; k < 2; k++) TR_TRY(tr_store_init(tr_engine_store(engine[k]), 3, NULL));
    TR_TRY(compare(tuned, plain, false));
    TR_TRY(watch_frozen(tuned, copy, false));
    for (int step = 1; step <= STEPS; step++) {
        for (int k = 0; k < 2; k++)
            TR_TRY(tr_engine_step(engine[k], step, step, (step - 1) * BATCH, 1e-2, &result[k]));
        if (result[0].loss != result[1].loss)
            return TR_FAIL(TR_ERR_INTERNAL, "the losses of step %d differ: %.9g and %.9g", step,
                           result[0].loss, result[1].loss);
        if (l->pp * l->dp * l->tp == 1 && tuned->dtype == TR_F32)
            EXPECT(fabs(result[0].grad_norm / (norm_of(tuned, plain)) - 1) < 1e-6);
        EXPECT(result[0].grad_norm < result[1].grad_norm);
        TR_TRY(compare(tuned, plain, true));
    }
    TR_TRY(watch_frozen(tuned, copy, true));
    return check_memory(engine[0], device[0], engine[1]);
}

static void *rank_main(void *argument) {
    rank_state *r = argument;
    tr_device *device[2] = {0};
    tr_engine *engine[2] = {0};
    tr_status status = open_device(r->l, &device[0]);
    if (status == TR_OK) status = open_device(r->l, &device[1]);
    if (status == TR_OK) status = train_both(r, device, engine);
    if (status != TR_OK) {
        (void)snprintf(r->error, sizeof r->error, "%s (%s)", tr_error_message(), tr_error_trace());
        for (int k = 0; k < 2; k++) tr_world_abort(r->world[k], TR_ERR_INTERNAL);
    }
    for (int k = 0; k < 2; k++) {
        tr_engine_destroy(engine[k]);
        if (device[k]) tr_device_close(device[k]);
        tr_world_close(r->world[k]);
    }
    return NULL;
}

static tr_schedule *schedule_of(const layout *l) {
    tr_schedule *schedule;
    const int stages = l->pp * l->chunks;
    assert_int_equal(generate_order(l->schedule, l->pp, stages, BATCH / l->dp, &schedule), TR_OK);
    return schedule;
}

/* Patterns that freeze whole local matrices, parts of them, and one of two that an operator writes
 * together. */
#define LLAMA "*.embed_tokens.* *.k_proj.weight *.layers.1.mlp.* *.layers.[23].mlp.up_proj.weight"
#define QWEN2 "*.v_proj.bias *.o_proj.weight *.layers.0.* lm_head.weight"
#define QWEN3 "*.q_norm.weight *_layernorm.weight *.q_proj.weight *.mlp.*"
#define GPT2  "*.wte.weight *.c_attn.weight *.ln_1.weight *.h.1.*"

static void test_frozen_equals_discarded(void **state) {
    (void)state;
    static const layout layouts[] = {
        {"llama", LLAMA, "1f1b", 1, 1, 1, 1, "ref", TR_F32, 0},
        {"llama", LLAMA, "1f1b", 1, 1, 1, 1, "cpu", TR_F32, 0.1},
        {"qwen3", QWEN3, "zb-h1", 2, 1, 1, 1, "ref", TR_F32, 0},
        {"qwen2", QWEN2, "interleaved", 2, 1, 1, 2, "cpu", TR_F32, 0},
        {"gpt2", GPT2, "zbv", 2, 1, 1, 2, "ref", TR_F32, 0.1},
        {"gpt2", GPT2, "1f1b", 1, 1, 1, 1, "ref", TR_F32, 0},
        {"gpt2", "*.bias *.ln_?.* *.ln_f.*", "1f1b", 1, 1, 1, 1, "ref", TR_F32, 0},
        {"gpt2", "*.c_*.weight *.wpe.*", "1f1b", 1, 1, 2, 1, "cpu", TR_F32, 0},
        {"qwen2", QWEN2, "1f1b", 1, 1, 2, 1, "ref", TR_F32, 0},
        {"qwen3", QWEN3, "1f1b", 1, 2, 1, 1, "cpu", TR_F32, 0},
        {"llama", LLAMA, "1f1b", 1, 2, 1, 1, "ref", TR_F64, 0},
        /* Layers without backward; over stages: run.lora, since the cut is another one. */
        {"llama", "*.layers.[012].* *.embed_tokens.weight", "zb-h1", 1, 1, 1, 1, "cpu", TR_F32, 0},
        {"gpt2", "*.wte.weight *.wpe.weight *.h.[01].*", "1f1b", 1, 1, 1, 1, "cpu", TR_BF16, 0.1},
        {"gpt2", "*.wpe.weight *.h.[01].*", "1f1b", 1, 2, 1, 1, "ref", TR_BF16, 0},
        {"qwen3", "*.embed_tokens.weight *.layers.0.*", "1f1b", 1, 1, 2, 1, "cpu", TR_BF16, 0},
        {"llama", "*.layers.* *.norm.weight *.embed_tokens.weight", "gpipe", 2, 1, 1, 1, "cpu",
         TR_F32, 0},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        const int ranks = l->pp * l->dp * l->tp;
        rank_state rank[RANKS];
        pthread_t thread[RANKS];
        tr_world *world[2][RANKS];
        tr_schedule *schedule = schedule_of(l);
        for (int k = 0; k < 2; k++) assert_int_equal(tr_world_open_local(ranks, world[k]), TR_OK);
        for (int k = 0; k < ranks; k++) {
            rank[k] = (rank_state){
                .l = l, .world = {world[0][k], world[1][k]}, .schedule = schedule, .rank = k};
            assert_int_equal(pthread_create(&thread[k], NULL, rank_main, &rank[k]), 0);
        }
        for (int k = 0; k < ranks; k++) assert_int_equal(pthread_join(thread[k], NULL), 0);
        for (int k = 0; k < ranks; k++)
            if (rank[k].error[0]) fail_msg("layout %zu, rank %d: %s", i, k, rank[k].error);
        tr_schedule_destroy(schedule);
    }
}

/* --- one engine on one rank ------------------------------------------------------------------- */

typedef struct one {
    tr_world *world;
    tr_device *device;
    tr_device_ops ops;
    tr_schedule *schedule;
    tr_engine *engine;
} one;

static void open_one(one *o, const layout *l) {
    *o = (one){.schedule = schedule_of(l)};
    assert_int_equal(tr_world_open_local(1, &o->world), TR_OK);
    assert_int_equal(open_device(l, &o->device), TR_OK);
}

static void make_engine(one *o, const layout *l, const char *lr_scale) {
    tr_engine_desc desc = describe(l, o->world, o->device, o->schedule);
    (void)snprintf(desc.model.tuning.freeze, TR_TUNING_TEXT, "%s", l->freeze);
    (void)snprintf(desc.model.tuning.lr_scale, TR_TUNING_TEXT, "%s", lr_scale);
    assert_int_equal(tr_mesh_make(1, 1, 1, 0, 1, &desc.mesh), TR_OK);
    assert_int_equal(tr_engine_create(&desc, &o->engine), TR_OK);
    assert_int_equal(tr_store_init(tr_engine_store(o->engine), 3, NULL), TR_OK);
}

static void close_one(one *o) {
    tr_engine_destroy(o->engine);
    tr_device_close(o->device);
    tr_world_close(o->world);
    tr_schedule_destroy(o->schedule);
}

/* Runs of operators of W, and of products of I. */
static int weight_runs, input_runs;
static tr_status (*prepare_real[TR_OP_COUNT])(const tr_op_context *, const tr_op_desc *, tr_op **);
enum { MOST_OPERATORS = 256 };
static struct {
    const tr_op *op;
    tr_status (*run)(tr_op *, tr_stream *, const tr_op_args *);
} counted[MOST_OPERATORS];
static int counted_operators;

static bool is_weight_gradient(const tr_op_desc *d) {
    return (d->kind == TR_OP_MATMUL && d->matmul.trans_a) || d->kind == TR_OP_BIAS_GRAD ||
           d->kind == TR_OP_LAYERNORM_WGRAD || d->kind == TR_OP_RMSNORM_WGRAD ||
           d->kind == TR_OP_EMBED_WGRAD || d->kind == TR_OP_POSITION_WGRAD;
}

static tr_status count_run(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    weight_runs += is_weight_gradient(&op->desc);
    input_runs += op->desc.kind == TR_OP_MATMUL && !op->desc.matmul.trans_a &&
                  !op->desc.matmul.trans_b; /* Llama's weights are [out, in] */
    int i = counted_operators - 1; /* the last one, since memory of an earlier one may be reused */
    while (counted[i].op != op) i--;
    return counted[i].run(op, stream, args);
}

static tr_status prepare_counted(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    TR_TRY(prepare_real[desc->kind](context, desc, out));
    if (!*out) return TR_OK; /* it runs in parts, which are counted */
    assert_true(counted_operators < MOST_OPERATORS);
    counted[counted_operators].op = *out;
    counted[counted_operators++].run = (*out)->run;
    (*out)->run = count_run;
    return TR_OK;
}

/* Returns the runs of operators of W for one micro-batch. */
static int count_weight_runs(const char *family, const char *freeze) {
    const layout l = {family, freeze, "1f1b", 1, 1, 1, 1, "ref", TR_F32, 0};
    one o;
    tr_step_result result;
    open_one(&o, &l);
    o.ops = *o.device->ops;
    for (int k = 0; k < TR_OP_COUNT; k++) {
        prepare_real[k] = o.ops.prepare[k];
        if (o.ops.prepare[k]) o.ops.prepare[k] = prepare_counted;
    }
    o.device->ops = &o.ops;
    counted_operators = 0;
    make_engine(&o, &l, "");
    weight_runs = input_runs = 0;
    assert_int_equal(tr_engine_step(o.engine, 1, 1, 0, 1e-2, &result), TR_OK);
    close_one(&o);
    input_runs /= BATCH;
    return weight_runs / BATCH;
}

/* Backward ends at the first layer that is trained. Of each of 4 blocks: qkv, out, gate and up,
 * down; the head. */
static void test_no_backward_below_what_is_trained(void **state) {
    (void)state;
    static const struct {
        const char *freeze;
        int runs;
    } cases[] = {{"", 4 * 4 + 1},
                 {"*.layers.*", 4 * 4 + 1},
                 {"*.embed_*", 4 * 4 + 1},
                 {"*.embed_* *.layers.0.*", 3 * 4 + 1},
                 {"*.embed_* *.layers.0.* *.layers.2.*", 3 * 4 + 1},
                 {"*.embed_* *.layers.*", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        (void)count_weight_runs("llama", cases[i].freeze);
        assert_int_equal(input_runs, cases[i].runs);
    }
}

static void test_no_operator_of_w_runs(void **state) {
    (void)state;
    /* Of each of 4 blocks: qkv, out, gate and up, down, two norms; the head's table and norm, the
     * words. */
    assert_int_equal(count_weight_runs("llama", ""), 4 * 6 + 3);
    assert_int_equal(count_weight_runs("llama", "*.layers.*"), 3);
    assert_int_equal(count_weight_runs("llama", "*.layers.* *.norm.weight *.embed_*"), 1);
    assert_int_equal(count_weight_runs("llama", "*.[qkv]_proj.weight"), 4 * 5 + 3);
    assert_int_equal(count_weight_runs("llama", "*.[qk]_proj.weight"), 4 * 6 + 3);
    /* GPT-2: 4 products, their biases and 2 norms; the tied table twice, positions, a norm. */
    assert_int_equal(count_weight_runs("gpt2", ""), 4 * (4 + 4 + 2) + 4);
    assert_int_equal(count_weight_runs("gpt2", "*.wte.weight"), 4 * (4 + 4 + 2) + 2);
    assert_int_equal(count_weight_runs("gpt2", "*.c_*.weight *.c_fc.bias"), 4 * (3 + 2) + 4);
    assert_int_equal(count_weight_runs("gpt2", "*.weight"), 4 * (4 + 2) + 1);
}

/* After one step: tensors that the scale names equal those of a run with that learning rate, and
 * the others those of a run with the common one. */
static void check_scales(const char *family, const char *lr_scale, double scale,
                         const char *pattern) {
    const layout l = {family, "", "1f1b", 1, 1, 1, 1, "ref", TR_F32, 0};
    const tr_tuning tuning = {.lr_scale = ""};
    one run[3];
    tr_tuning named = tuning;
    (void)snprintf(named.freeze, sizeof named.freeze, "%s", pattern);
    for (int k = 0; k < 3; k++) {
        tr_step_result result;
        open_one(&run[k], &l);
        make_engine(&run[k], &l, k == 0 ? lr_scale : "");
        assert_int_equal(
            tr_engine_step(run[k].engine, 1, 1, 0, k == 2 ? 1e-2 * scale : 1e-2, &result), TR_OK);
    }
    const tr_store *scaled = tr_engine_store(run[0].engine);
    int matched = 0;
    for (int i = 0; i < scaled->slots; i++) {
        const tr_store_slot *slot = &scaled->slot[i];
        for (int k = 0; k < slot->param->tensors; k++) {
            int other;
            const char *name = slot->param->tensor[k].name;
            const bool is_named = !tr_tuning_alike(&named, name, "-");
            const tr_store_slot *like = slot_of(tr_engine_store(run[is_named ? 2 : 1].engine), name,
                                                slot->param->use, &other);
            matched += is_named;
            if (!walk_boxes(&slot->param->tensor[k], slot->param->value,
                            &like->param->tensor[other], like->param->value, sizeof(float), false))
                fail_msg("%s, %s: %s", family, lr_scale, name);
        }
    }
    assert_true(matched > 0);
    for (int k = 0; k < 3; k++) close_one(&run[k]);
}

static void test_learning_rate_by_name(void **state) {
    (void)state;
    check_scales("llama", "0.5 *.k_proj.weight *.embed_tokens.weight", 0.5,
                 "*.k_proj.weight *.embed_tokens.weight");
    check_scales("gpt2", "0.125 *.wte.* 1 *.h.0.* 0.125 *.ln_?.*", 0.125,
                 "*.wte.* *.h.[1-9].ln_?.* *.ln_f.*");
}

/* Tensors that are both frozen may be in one parameter, whatever train.lr_scale says of them. */
static void test_alike(void **state) {
    static const struct {
        const char *freeze, *lr_scale;
        bool alike;
    } cases[] = {{"", "", true},      {"a b", "", true},    {"a", "", false},
                 {"", "2 a", false},  {"", "2 a b", true},  {"a b", "2 a", true},
                 {"a", "2 b", false}, {"a", "2 a b", false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_tuning t = {0};
        (void)strcpy(t.freeze, cases[i].freeze);
        (void)strcpy(t.lr_scale, cases[i].lr_scale);
        assert_int_equal(tr_tuning_alike(&t, "a", "b"), cases[i].alike);
    }
}

/* --- what a model counts, and bad patterns ---------------------------------------------------- */

static tr_status make(const char *family, const char *freeze, const char *lr_scale,
                      tr_model **out) {
    const layout l = {.family = family, .dtype = TR_F32};
    tr_engine_desc desc = describe(&l, NULL, NULL, NULL);
    const tr_model_shape shape = {.batch = 1, .seq = CONTEXT, .dtype = TR_F32, .tp_size = 1};
    (void)snprintf(desc.model.tuning.freeze, TR_TUNING_TEXT, "%s", freeze);
    (void)snprintf(desc.model.tuning.lr_scale, TR_TUNING_TEXT, "%s", lr_scale);
    return tr_model_create(&desc.model, &shape, out);
}

static void test_counts(void **state) {
    (void)state;
    tr_model *plain, *tuned;
    assert_int_equal(make("gpt2", "", "", &plain), TR_OK);
    assert_int_equal(make("gpt2", "*.wte.weight *.c_fc.weight", "", &tuned), TR_OK);
    const int64_t words = VOCAB * 24, mlp = 4 * 24 * 96;
    assert_int_equal(tr_model_parameters(tuned), tr_model_parameters(plain));
    assert_int_equal(tr_model_trained_parameters(plain), tr_model_parameters(plain));
    assert_int_equal(tr_model_trained_parameters(tuned), tr_model_parameters(plain) - words - mlp);
    /* The table is also the head's weight. */
    assert_true(tr_model_flops_per_token(tuned) ==
                tr_model_flops_per_token(plain) - 2 * (double)(words + mlp));
    double w[2] = {0};
    for (int i = 0; i < plain->count; i++) {
        w[0] += plain->layers[i]->flops_w;
        w[1] += tuned->layers[i]->flops_w;
    }
    assert_true(w[0] - w[1] == 2.0 * CONTEXT * (double)mlp);
    assert_true(tuned->layers[5]->flops_f / plain->layers[5]->flops_f == 2.0 / 3);
    tr_model_destroy(tuned);

    /* Layers without backward: 2 FLOPs a weight instead of 6, a third of attention's. */
    tr_model *whole, *some;
    assert_int_equal(make("llama", "", "", &whole), TR_OK);
    assert_int_equal(make("llama", "*.embed_* *.layers.[01].*", "", &some), TR_OK);
    for (int i = 0; i < whole->count; i++) {
        assert_true(some->layers[i]->no_backward == (i < 3));
        assert_true((some->layers[i]->flops_i > 0) == (i >= 3 && i < 5));
    }
    double products = 0;
    for (int i = 1; i < 3; i++)
        for (int j = 0; j < whole->layers[i]->params_count; j++)
            for (int k = 0; k < whole->layers[i]->params[j].tensors; k++)
                if (whole->layers[i]->params[j].tensor[k].rank == 2)
                    products += (double)tr_global_count(&whole->layers[i]->params[j].tensor[k]);
    const tr_model_config *c = &whole->config;
    const double scores = 12.0 * CONTEXT / 2 * (double)(c->heads * c->head_size);
    const double less = tr_model_flops_per_token(whole) - tr_model_flops_per_token(some);
    assert_true(fabs(less - (4 * products + 2 * 2.0 / 3 * scores)) < 1e-6 * less);
    tr_model_destroy(some);
    tr_model_destroy(whole);
    tr_model_destroy(plain);
}

static void refused(const char *freeze, const char *lr_scale, const char *sentence) {
    tr_model *model;
    assert_int_equal(make("llama", freeze, lr_scale, &model), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(), sentence);
}

static void test_bad_patterns(void **state) {
    (void)state;
    refused("*.norm.weight *.k_prj.weight", "",
            "train.freeze: '*.k_prj.weight' matches no parameter of this model; the nearest names "
            "are model.layers.0.self_attn.k_proj.weight, model.layers.1.self_attn.k_proj.weight, "
            "model.layers.2.self_attn.k_proj.weight");
    refused("lm_heed.weight", "",
            "train.freeze: 'lm_heed.weight' matches no parameter of this model; the nearest names "
            "are lm_head.weight, model.norm.weight, model.embed_tokens.weight");
    refused("*", "",
            "train.freeze matches every parameter, so there is nothing to train: leave out a "
            "pattern");
    refused("", "0.1 lm_heed.*",
            "train.lr_scale: 'lm_heed.*' matches no parameter of this model; the nearest names are "
            "lm_head.weight, model.embed_tokens.weight, model.layers.0.input_layernorm.weight");
    refused("", "0 lm_head.*",
            "train.lr_scale is 0: name parameters that are not to change in train.freeze instead");
    refused("", "-1 lm_head.*", "train.lr_scale must be above 0 and at most 1e6, not -1");
    static const char *const bad[] = {"lm_head.*", "0.1", "0.1 0.2 lm_head.*", "0.1 lm_head.* 0.2",
                                      "  "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char sentence[200];
        (void)snprintf(sentence, sizeof sentence,
                       "train.lr_scale must be a scale and its patterns, like '0.1 *.wte.weight', "
                       "not '%s'",
                       bad[i]);
        refused("", bad[i], sentence);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen_equals_discarded),
        cmocka_unit_test(test_no_operator_of_w_runs),
        cmocka_unit_test(test_no_backward_below_what_is_trained),
        cmocka_unit_test(test_learning_rate_by_name),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_bad_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
