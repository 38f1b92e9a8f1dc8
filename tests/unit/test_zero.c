/* Tests data ranks that divide the updates (parallel.zero) with every optimizer: owners of whole
 * tensors are balanced; on every layout, and with every schedule, the bits are those of data ranks
 * that divide nothing, and planned bytes those taken; a checkpoint continues with another
 * parallel.zero. */
#include "base/memory.h"
#include "base/philox.h"
#include "partition/owners.h"
#include "support/drawn.h"
#include "support/engine_ranks.h"
#include "support/generate_order.h"
#include "support/scratch.h"
#include "train/store_tensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { BATCH = 12, CONTEXT = 8, VOCAB = 171, MOST_RANKS = MOST_ENGINE_RANKS, STEPS = 2 };

/* Tensors of a part of a block of the norm, of one and of several; of two tensor ranks only one has
 * a second block of the table of words. */
static const tr_model_config gpt2 = {.family = "gpt2",
                                     .layers = 3,
                                     .width = 48,
                                     .heads = 4,
                                     .kv_heads = 4,
                                     .context = CONTEXT,
                                     .vocab = VOCAB,
                                     .dropout = 0.1,
                                     .tie = TR_YES,
                                     .tuning = {.apart = true}};

/* --- the choice of owners --------------------------------------------------------------------- */

typedef struct owned {
    int64_t load[5], all, largest;
} owned;

static tr_status add_owned(void *context, int stage, tr_param *param, bool shares) {
    owned *o = context;
    (void)stage;
    if (!param->whole || shares) return TR_OK;
    o->load[param->owner] += param->count;
    o->all += param->count;
    if (param->count > o->largest) o->largest = param->count;
    return TR_OK;
}

/* Fails unless a tied table has one owner. */
static void check_ties(const tr_model *model) {
    const tr_layer *embedding = model->layers[0], *head = model->layers[model->count - 1];
    int uses = 0;
    for (int k = 0; k < head->params_count; k++) {
        const tr_param *use = &head->params[k];
        for (int j = 0; j < embedding->params_count; j++)
            if (use->use > 0 && embedding->params[j].turn == use->turn) {
                assert_int_equal(embedding->params[j].owner, use->owner);
                uses++;
            }
    }
    assert_int_equal(uses, 1);
}

/* The fullest data rank owns at most the mean and one tensor, on every pipeline rank; with twelve
 * blocks and two data ranks little more than the mean. Parameters
 * that AdamW steps, and all of lamb's, are cut. */
static void test_balance(void **state) {
    (void)state;
    static const tr_optim_kind kinds[] = {TR_OPTIM_MUON, TR_OPTIM_ADAFACTOR, TR_OPTIM_LAMB};
    static const int first[3][4] = {{0, 14}, {0, 5, 14}, {0, 2, 8, 14}}, owner[] = {0, 1, 2};
    tr_model_config config = gpt2;
    const tr_model_shape shape = {.batch = 1, .seq = CONTEXT, .dtype = TR_F32, .tp_size = 1};
    tr_model *model;
    config.layers = 12;
    config.vocab = 5000;
    must(tr_model_create(&config, &shape, &model));
    for (int dp = 2; dp <= 5; dp++)
        for (int pp = 1; pp <= 3; pp++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                const tr_placement p = {.stages = pp, .first = first[pp - 1], .owner = owner};
                const tr_mesh mesh = {.degree = {pp, dp, 1}};
                must(tr_owners_choose(model, &p, &mesh, kinds[k]));
                for (int r = 0; r < pp && kinds[k] != TR_OPTIM_LAMB; r++) {
                    owned o = {0};
                    must(tr_placement_visit(&p, model, r, add_owned, &o));
                    assert_true(o.all > 0);
                    for (int d = 0; d < dp; d++)
                        assert_in_range(o.load[d], 0, o.all / dp + o.largest);
                    const int64_t even = o.all / 2 + o.all / 40;
                    for (int d = 0; d < 2 && dp == 2 && pp == 1; d++)
                        assert_in_range(o.load[d], 0, even > o.largest ? even : o.largest);
                }
                if (kinds[k] == TR_OPTIM_ADAFACTOR) check_ties(model);
                for (int i = 0; i < model->count; i++)
                    for (int j = 0; j < model->layers[i]->params_count; j++) {
                        const tr_param *param = &model->layers[i]->params[j];
                        const bool whole = kinds[k] == TR_OPTIM_ADAFACTOR ||
                                           (kinds[k] == TR_OPTIM_MUON && param->is_linear);
                        assert_int_equal(param->whole, whole);
                    }
            }
    tr_model_destroy(model);
}

/* --- runs ------------------------------------------------------------------------------------- */

typedef struct layout {
    const char *schedule;
    int pp, dp, tp;
    int chunks; /* 0: the schedule's own number */
    int near;   /* data ranks that divide and sum first; 0: all */
} layout;

typedef struct optimizer {
    tr_optim_kind kind;
    tr_dtype dtype, moments, gradients;
    const char *freeze, *family; /* NULL: nothing, gpt2 */
    bool noise, no_master;
} optimizer;

/* What a run is, and from which checkpoint it begins; NULL: from the start. */
typedef struct job {
    layout layout;
    optimizer optimizer;
    int zero;
    int layers; /* 0: gpt2's */
    const char *load, *save;
    const tr_schedule *schedule;
} job;

typedef struct member {
    const job *job;
    tr_world *world;
    tr_engine *engine;
    double losses[STEPS + 1], norms[STEPS + 1], noise[STEPS + 1];
    uint64_t hash; /* a sum over all values that it keeps */
    size_t owned;  /* bytes of the optimizer's state */
} member;

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    (void)context, (void)validation;
    for (int k = 0; k < count; k++) {
        int32_t *to = wanted[k].to;
        const bool labels = strcmp(wanted[k].input->name, TR_STEP_INPUT_LABELS) == 0;
        for (int64_t i = 0; i < CONTEXT; i++)
            to[i] = (int32_t)((sample * 7 + (i + labels) * (i + labels)) % VOCAB);
    }
    return TR_OK;
}

static tr_status take_steps(member *m, int64_t first) {
    for (int k = 1; k <= STEPS; k++) {
        tr_step_result result;
        const int64_t step = first + k;
        TR_TRY(tr_engine_step(m->engine, step, step, step * BATCH, 1e-2, &result));
        m->losses[k] = result.loss;
        m->norms[k] = result.grad_norm;
        m->noise[k] = result.noise.variance;
    }
    return TR_OK;
}

static tr_status save_or_load(member *m, const tr_mesh *mesh, bool load) {
    const tr_store *store = tr_engine_store(m->engine);
    tr_ckpt_state *state = NULL;
    tr_ckpt_tensor *tensors = NULL;
    int count;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc(1, sizeof *state, &state));
    TR_TRY_OUT(tr_store_list_tensors(store, mesh, &tensors, &count));
    state->step = state->optimizer_step = STEPS;
    state->next_sample = STEPS * BATCH;
    state->tokens_seen = STEPS * BATCH * CONTEXT;
    status = load ? tr_ckpt_load(m->world, m->job->load, -1, tensors, count, state, NULL)
                  : tr_ckpt_save(m->world, m->job->save, state, tensors, count);
    if (load && status == TR_OK) status = tr_store_publish(tr_engine_store(m->engine));
out:
    free(tensors);
    free(state);
    return status;
}

static void hash_values(member *m) {
    const tr_store *store = tr_engine_store(m->engine);
    const int64_t halves = (int64_t)tr_dtype_size(store->dtype) / 2;
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        const bool part = store->divides_values;
        const uint16_t *half = part ? slot->value : slot->param->value;
        const int64_t first = part ? slot->portion.begin * halves : 0;
        const int64_t count = (part ? slot->portion.extent : slot->param->count) * halves;
        for (int64_t k = 0; k < count; k++)
            m->hash += tr_mix64(tr_mix64(tr_mix64((uint64_t)i) + (uint64_t)(first + k)) ^ half[k]);
    }
}

static tr_status train(engine_rank *r, void *state) {
    member *m = state;
    const job *j = m->job;
    const layout *l = &j->layout;
    tr_engine_desc desc = {.world = r->world,
                           .device = r->device,
                           .model = gpt2,
                           .batch = BATCH,
                           .micro_batch = 1,
                           .dtype = j->optimizer.dtype,
                           .deterministic = true,
                           .schedule = j->schedule,
                           .max_norm = 1,
                           .optimizer = {.beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .eps = 1e-8,
                                         .weight_decay = 0.1,
                                         .momentum = 0.95,
                                         .l2 = 0.001,
                                         .kind = j->optimizer.kind,
                                         .moments = j->optimizer.moments,
                                         .gradients = j->optimizer.gradients,
                                         .no_master = j->optimizer.no_master},
                           .noise = j->optimizer.noise,
                           .zero = j->zero,
                           .fetch = fetch};
    tr_memory_plan plan;
    if (j->layers) desc.model.layers = j->layers;
    if (j->optimizer.freeze)
        (void)snprintf(desc.model.tuning.freeze, sizeof desc.model.tuning.freeze, "%s",
                       j->optimizer.freeze);
    if (j->optimizer.family) {
        strcpy(desc.model.family, j->optimizer.family);
        desc.model.kv_heads = 1; /* which two tensor ranks share */
        desc.model.tie = TR_UNSET;
    }
    TR_TRY(tr_mesh_make(l->pp, l->dp, l->tp, r->rank, r->ranks, &desc.mesh));
    desc.mesh.near = l->near;
    TR_TRY(tr_engine_create(&desc, &r->engine));
    m->world = r->world;
    m->engine = r->engine;
    TR_TRY(tr_store_init(tr_engine_store(m->engine), 1, NULL));
    if (j->load) TR_TRY(save_or_load(m, &desc.mesh, true));
    TR_TRY(take_steps(m, j->load ? STEPS : 0));
    TR_TRY(tr_engine_complete(m->engine));
    if (j->save) TR_TRY(save_or_load(m, &desc.mesh, false));
    hash_values(m);
    tr_engine_plan(m->engine, &plan);
    m->owned = plan.of[TR_MEMORY_OPTIMIZER];
    return check_planned_memory(r);
}

static tr_status train_and_name(engine_rank *r, void *state) {
    const job *j = ((const member *)state)->job;
    const tr_status status = train(r, state);
    if (status != TR_OK)
        print_message("optimizer %d, zero %d, pp %d dp %d tp %d, rank %d fails\n",
                      j->optimizer.kind, j->zero, j->layout.pp, j->layout.dp, j->layout.tp,
                      r->rank);
    return status;
}

static void run(job j, member of[MOST_RANKS]) {
    const layout *l = &j.layout;
    const int ranks = l->pp * l->dp * l->tp;
    tr_schedule *schedule;
    must(generate_order(l->schedule, l->pp, l->pp * l->chunks, BATCH / l->dp, &schedule));
    j.schedule = schedule;
    for (int i = 0; i < ranks; i++) of[i] = (member){.job = &j};
    run_engine_ranks(ranks, "cpu", train_and_name, of, sizeof *of);
    tr_schedule_destroy(schedule);
}

static bool same(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Returns the hash of the values that a rank has, or with parallel.zero 3 that its data ranks have
 * together. */
static uint64_t hash_of(const layout *l, const member *of, int rank, bool divided) {
    uint64_t sum = 0;
    const int near = l->near ? l->near : l->dp;
    const int first = rank / (near * l->tp) * near * l->tp + rank % l->tp;
    for (int d = 0; d < near && divided; d++) sum += of[first + d * l->tp].hash;
    return divided ? sum : of[rank].hash;
}

/* Fails unless both runs have the same losses, norms and values; the first one is the job's. */
static void compare(const job *j, const member *a, const member *b, bool values) {
    const layout *l = &j->layout;
    for (int r = 0; r < l->pp * l->dp * l->tp; r++) {
        bool equal = !values || hash_of(l, a, r, j->zero == 3) == hash_of(l, b, r, false);
        for (int k = 1; k <= STEPS; k++)
            equal &= isfinite(a[r].losses[k]) && same(a[r].losses[k], b[r].losses[k]) &&
                     same(a[r].norms[k], b[r].norms[k]) && same(a[r].noise[k], b[r].noise[k]);
        if (!equal)
            fail_msg("optimizer %d (dtype %d, moments %d, gradients %d), zero %d, pp %d dp %d tp "
                     "%d, rank %d: losses %.17g, norm %.17g, not %.17g, %.17g",
                     j->optimizer.kind, j->optimizer.dtype, j->optimizer.moments,
                     j->optimizer.gradients, j->zero, l->pp, l->dp, l->tp, r, a[r].losses[STEPS],
                     a[r].norms[STEPS], b[r].losses[STEPS], b[r].norms[STEPS]);
    }
}

static const layout layouts[] = {{"1f1b", 1, 2, 1, 1, 0}, {"gpipe", 1, 3, 1, 1, 0},
                                 {"1f1b", 1, 6, 1, 1, 2}, {"zb-h1", 2, 2, 1, 1, 0},
                                 {"bfs", 1, 2, 1, 3, 0},  {"1f1b", 1, 2, 2, 1, 0},
                                 {"1f1b", 2, 3, 1, 1, 0}, {"1f1b", 2, 2, 2, 1, 0}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* Tied gradients that are measured; masters and rounded moments; data ranks that own nothing of the
 * optimizer; optimizers that step element by element; sums of gradients in BF16, which have
 * directions bucket by bucket; parameters without masters. */
enum { BY_TENSOR = 3 };
static const optimizer optimizers[] = {
    {.kind = TR_OPTIM_LAMB, .noise = true},
    {.kind = TR_OPTIM_MUON, .noise = true},
    {.kind = TR_OPTIM_ADAFACTOR, .noise = true},
    {.kind = TR_OPTIM_LAMB, .dtype = TR_BF16, .moments = TR_U8},
    {.kind = TR_OPTIM_MUON, .dtype = TR_BF16, .moments = TR_BF16},
    {.kind = TR_OPTIM_ADAFACTOR, .dtype = TR_BF16},
    {.kind = TR_OPTIM_MUON, .freeze = "transformer.h.0.* *.attn.*"},
    {.kind = TR_OPTIM_ADAFACTOR, .freeze = "transformer.w* transformer.h.0.* *.attn.* *bias"},
    {.kind = TR_OPTIM_SGD},
    {.kind = TR_OPTIM_MOMENTUM, .dtype = TR_BF16},
    {.kind = TR_OPTIM_LION, .moments = TR_U8},
    {.kind = TR_OPTIM_ADAM, .noise = true},
    {.kind = TR_OPTIM_ADAMW, .gradients = TR_BF16},
    {.kind = TR_OPTIM_LION, .dtype = TR_BF16, .gradients = TR_BF16, .family = "llama"},
    {.kind = TR_OPTIM_LAMB, .family = "llama"},
    {.kind = TR_OPTIM_MUON, .family = "llama"},
    {.kind = TR_OPTIM_ADAFACTOR, .family = "llama", .dtype = TR_BF16},
    {.kind = TR_OPTIM_LAMB, .gradients = TR_BF16, .noise = true},
    {.kind = TR_OPTIM_MUON, .gradients = TR_BF16, .moments = TR_U8, .family = "llama"},
    {.kind = TR_OPTIM_ADAFACTOR, .gradients = TR_BF16},
    {.kind = TR_OPTIM_LAMB, .dtype = TR_BF16, .no_master = true, .family = "llama"},
    {.kind = TR_OPTIM_LAMB,
     .dtype = TR_BF16,
     .gradients = TR_BF16,
     .moments = TR_U8,
     .no_master = true},
    {.kind = TR_OPTIM_MUON, .dtype = TR_BF16, .gradients = TR_BF16, .no_master = true},
    {.kind = TR_OPTIM_ADAFACTOR,
     .dtype = TR_BF16,
     .gradients = TR_BF16,
     .no_master = true,
     .freeze = "transformer.h.0.* *.attn.*"},
};

/* Returns the fullest of the ranks' optimizer states. */
static size_t most_owned(const member *m, int ranks) {
    size_t most = 0;
    for (int r = 0; r < ranks; r++)
        if (m[r].owned > most) most = m[r].owned;
    return most;
}

static void test_bits(void **state) {
    (void)state;
    static member plain[MOST_RANKS], divided[MOST_RANKS];
    for (size_t o = 0; o < sizeof optimizers / sizeof *optimizers; o++)
        for (size_t k = 0; k < LAYOUTS; k++) {
            job j = {.layout = layouts[k], .optimizer = optimizers[o]};
            const int ranks = j.layout.pp * j.layout.dp * j.layout.tp;
            /* The later ones each with some of the layouts; shared key heads with tensor ranks. */
            if (o >= BY_TENSOR && (k + o) % 4 && !(j.optimizer.family && k == 5)) continue;
            if (!tr_test_drawn(o * LAYOUTS + k)) continue;
            run(j, plain);
            for (j.zero = 1; j.zero <= 3; j.zero++) {
                run(j, divided);
                compare(&j, divided, plain, true);
                /* Small vectors are of one block, which lamb's ranks do not cut. */
                if (o == 1 && j.layout.dp == 2)
                    assert_in_range(most_owned(divided, ranks), 1,
                                    most_owned(plain, ranks) * 3 / 4);
            }
        }
}

/* Every schedule has the losses and norms of the first one, and with every parallel.zero the values
 * that it has without. */
static void test_every_schedule(void **state) {
    (void)state;
    static member first[MOST_RANKS], plain[MOST_RANKS], divided[MOST_RANKS];
    int ran = 0;
    bool trains;
    for (int k = 0; tr_schedule_name(k, &trains); k++) {
        job j = {.layout = {.schedule = tr_schedule_name(k, NULL), .pp = 2, .dp = 2, .tp = 1},
                 .optimizer = {.kind = TR_OPTIM_ADAMW},
                 .layers = 8};
        if (!trains) continue;
        run(j, ran == 0 ? first : plain);
        if (ran++ == 0) memcpy(plain, first, sizeof plain);
        compare(&j, plain, first, false);
        for (j.zero = 1; j.zero <= 3; j.zero++) {
            run(j, divided);
            compare(&j, divided, plain, true);
        }
    }
    assert_true(ran > 12);
}

/* Checkpoints of all values of parallel.zero, continued with all of them on other data ranks. */
static void test_continue(void **state) {
    (void)state;
    static const layout from = {"1f1b", 1, 4, 1, 1, 2}, to = {"1f1b", 2, 2, 1, 1, 0};
    static member first[MOST_RANKS], plain[MOST_RANKS], divided[MOST_RANKS];
    for (size_t o = 1; o <= BY_TENSOR; o++) {
        char folder[4][32];
        for (int zero = 0; zero < 4; zero++) {
            (void)snprintf(folder[zero], sizeof folder[zero], "%zu-%d", o, zero);
            run((job){.layout = from,
                      .optimizer = optimizers[o],
                      .zero = zero,
                      .save = path_of(folder[zero])},
                first);
        }
        job j = {.layout = to, .optimizer = optimizers[o], .load = path_of(folder[0])};
        run(j, plain);
        for (int zero = 1; zero < 4; zero++) {
            j.zero = 0;
            j.load = path_of(folder[zero]);
            run(j, divided);
            compare(&j, divided, plain, true);
            j.zero = zero % 3 + 1;
            run(j, divided);
            compare(&j, divided, plain, true);
        }
        j.zero = 3;
        j.load = path_of(folder[0]);
        run(j, divided);
        compare(&j, divided, plain, true);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_balance), cmocka_unit_test(test_bits),
                                       cmocka_unit_test(test_every_schedule),
                                       cmocka_unit_test(test_continue)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
