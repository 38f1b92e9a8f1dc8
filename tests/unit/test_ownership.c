/* Tests ownership of parameters, with an invented model that has all the ways in which ranks can
 * hold them, on many meshes. Every number is a small integer, so sums of gradients, the norm and
 * the parameters after a step are the same bits on all meshes. */
#include "base/memory.h"
#include "base/philox.h"
#include "ckpt/ckpt.h"
#include "layers/param_impl.h"
#include "partition/rank_groups.h"
#include "support/elements.h"
#include "support/must.h"
#include "support/owned_model.h"
#include "train/optimizer.h"
#include "train/store_tensors.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- one rank --------------------------------------------------------------------------------- */

typedef struct team {
    int pp, dp, tp;
    tr_dtype dtype;
    int zero;                /* parallel.zero: what data ranks divide */
    const char *save, *load; /* load: what an earlier team saved; NULL: nothing */
    tr_world *world[MOST_RANKS];
    pthread_mutex_t lock;
    /* How many ranks count each element, and how many save it, for each kind. */
    int *counted, *saved;
    int written[MOST_RANKS];
    int parts[LAYERS * MOST_PARAMS][MOST_RANKS]; /* how many ranks count each part */
} team;

typedef struct member {
    team *team;
    int rank, spans;
    tr_mesh mesh;
    tr_device *device;
    tr_model *model;
    tr_mesh_groups *groups;
    tr_store *store;
    char *bucket[MOST_BUCKETS]; /* of whole gradients, as those in the arena; NULL: none */
    size_t bucket_bytes[MOST_BUCKETS];
    tr_optimizer *optimizer;
    tr_step_state state;
    char error[512];
} member;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) return TR_FAIL(TR_ERR_INTERNAL, "line %d: " #condition, __LINE__);       \
    } while (0)

static int bucket_of(const tr_store_slot *slot) {
    return slot->stage * LAYERS + slot->bucket;
}

/* Makes memory for the buckets, when the store has no memory for these. */
static tr_status open_buckets(member *m) {
    for (int i = 0; i < m->store->slots && m->store->in_arena; i++) {
        const tr_store_slot *slot = &m->store->slot[i];
        const size_t end = (slot->place + (size_t)slot->param->count) * sizeof(float);
        size_t *bytes = &m->bucket_bytes[bucket_of(slot)];
        EXPECT(!slot->param->grad);
        if (end > *bytes) *bytes = end;
    }
    for (int b = 0; b < MOST_BUCKETS; b++) {
        if (!m->bucket_bytes[b]) continue;
        TR_TRY(tr_calloc(m->bucket_bytes[b], 1, &m->bucket[b]));
        memset(m->bucket[b], 0xff, m->bucket_bytes[b]);
        tr_store_place_bucket(m->store, b / LAYERS, b % LAYERS, m->bucket[b]);
    }
    return TR_OK;
}

/* Overwrites the buckets with NaN, as other tensors may once the sums have been waited for. */
static void end_buckets(member *m) {
    for (int b = 0; b < MOST_BUCKETS; b++)
        if (m->bucket[b]) memset(m->bucket[b], 0xff, m->bucket_bytes[b]);
}

/* A walk over the elements of a slot. */
typedef struct walk {
    const tr_store_slot *slot;
    const tr_global *tensor;
    const tr_mesh *mesh;
    int64_t first;
    int *count;
    int wrong, seen;
} walk;

static int walk_slot(walk *w, tr_element_fn visit) {
    const tr_param *param = w->slot->param;
    for (int t = 0; t < param->tensors; t++) {
        w->tensor = &param->tensor[t];
        w->first = owned_first_of(w->tensor->name);
        tr_each_element(w->tensor, visit, w);
    }
    return w->wrong;
}

static void check_initial(void *context, int64_t global, int64_t local) {
    walk *w = context;
    const tr_param *param = w->slot->param;
    float expected = 1;
    if (param->init == TR_INIT_NORMAL)
        expected =
            param->init_std * tr_normal(SEED, tr_hash_name(w->tensor->name), (uint64_t)global);
    const int64_t place = local - w->slot->portion.begin;
    const bool owns = place >= 0 && place < w->slot->portion.extent;
    if (owns) w->wrong += memcmp((float *)w->slot->master + place, &expected, sizeof expected) != 0;
    if (!param->value && !owns) return; /* parallel.zero 3: it has its portion only */
    const void *value = param->value ? param->value : w->slot->value;
    const int64_t at = param->value ? local : place;
    if (param->dtype == TR_F32)
        w->wrong += memcmp((const float *)value + at, &expected, sizeof expected) != 0;
    else w->wrong += ((const uint16_t *)value)[at] != tr_f32_to_bf16(expected);
}

/* Returns this rank's place among the copies along an axis with partial gradients, and sets their
 * number. */
static int place_along(const tr_param *param, const tr_mesh *mesh, tr_axis axis, int *places) {
    *places = param->copies[axis] ? param->copies[axis] : mesh->degree[axis];
    if (!(param->partial & TR_AXIS_BIT(axis))) *places = 1;
    return mesh->index[axis] % *places;
}

static void set_gradient(void *context, int64_t global, int64_t local) {
    walk *w = context;
    const tr_param *param = w->slot->param;
    int dp, tp;
    int d = place_along(param, w->mesh, TR_AXIS_DP, &dp);
    int t = place_along(param, w->mesh, TR_AXIS_TP, &tp);
    ((float *)param->grad)[local] =
        (float)owned_part_of_gradient(w->first + global, param->use, d * tp + t, dp * tp);
}

static void check_gradient(void *context, int64_t global, int64_t local) {
    walk *w = context;
    const tr_param *param = w->slot->param;
    const int64_t place = local - w->slot->portion.begin;
    if (place < 0 || place >= w->slot->portion.extent) return; /* another rank gets the sum */
    w->wrong +=
        ((float *)w->slot->grad)[place] != (float)owned_gradient(w->first + global, param->use);
}

static void count_element(void *context, int64_t global, int64_t local) {
    walk *w = context;
    (void)local;
    w->count[w->first + global]++;
    w->seen++;
}

static tr_status for_slots(member *m, tr_element_fn visit) {
    for (int i = 0; i < m->store->slots; i++) {
        walk w = {.slot = &m->store->slot[i], .mesh = &m->mesh};
        if (walk_slot(&w, visit))
            return TR_FAIL(TR_ERR_INTERNAL, "rank %d: %d elements of %s are wrong", m->rank,
                           w.wrong, tr_param_name(w.slot->param));
    }
    return TR_OK;
}

/* Fails unless joined parameters are adjacent in every kind of memory. */
static tr_status check_joined(const member *m) {
    for (int i = 1; i < m->store->slots; i++) {
        const tr_store_slot *slot = &m->store->slot[i], *before = slot - 1;
        const int64_t count = before->param->count;
        const size_t bytes = (size_t)count * tr_dtype_size(m->store->dtype);
        if (!slot->param->joined) continue;
        if (!m->store->divided) EXPECT(slot->master == (float *)before->master + count);
        for (int k = 0; k < TR_OPTIM_STATES && !m->store->divided; k++)
            EXPECT(slot->state[k] == (float *)before->state[k] + count);
        EXPECT(slot->param->grad == (float *)before->param->grad + count);
        EXPECT(slot->value_place == before->value_place + (size_t)count);
        if (m->store->divides_values) continue;
        EXPECT((char *)slot->param->value == (char *)before->param->value + bytes);
    }
    return TR_OK;
}

static tr_status take_step(member *m) {
    tr_stream *stream = tr_device_compute(m->device);
    TR_TRY(tr_optimizer_begin(m->optimizer, 1));
    TR_TRY(tr_stream_sync(stream));
    if (m->rank == 0) tr_optimizer_loss(m->optimizer, 1)[1] = 1; /* one token counts */
    TR_TRY(for_slots(m, set_gradient));
    for (int k = 0; k < 2 * m->store->slots; k++) { /* start all buckets, then wait for all */
        const tr_store_slot *slot = &m->store->slot[k % m->store->slots], *before = slot - 1;
        bool first = k % m->store->slots == 0 || before->stage != slot->stage ||
                     before->bucket != slot->bucket;
        if (!first) continue;
        TR_TRY((k < m->store->slots ? tr_optimizer_start
                                    : tr_optimizer_wait)(m->optimizer, slot->stage, slot->bucket));
    }
    TR_TRY(tr_stream_sync(stream));
    end_buckets(m);
    TR_TRY(for_slots(m, check_gradient));
    m->state = (tr_step_state){.step = 1,
                               .train = 1,
                               .loss_scale = 1,
                               .lr = 0.5f,
                               .bias_correction1 = 0.5f,
                               .bias_correction2 = 0.25f};
    TR_TRY(tr_optimizer_finish(m->optimizer, true));
    TR_TRY(tr_store_complete(m->store));
    TR_TRY(tr_stream_sync(stream));
    EXPECT(m->state.grad_norm == owned_norm());
    return TR_OK;
}

/* Returns a checkpoint's tensor as a global tensor with its boxes. */
static tr_global global_of(const tr_ckpt_tensor *c) {
    tr_global tensor = {.rank = c->rank, .boxes = c->boxes, .box = (tr_box *)c->box};
    memcpy(tensor.shape, c->shape, sizeof tensor.shape);
    return tensor;
}

/* Records which elements this rank counts in the norm and which it writes. */
static void note_owned(member *m, const tr_ckpt_tensor *tensors, int count) {
    team *t = m->team;
    (void)pthread_mutex_lock(&t->lock);
    for (int i = 0; i < m->store->slots; i++) {
        walk w = {.slot = &m->store->slot[i], .count = t->counted};
        if (!w.slot->layout.counted) continue;
        (void)walk_slot(&w, count_element);
        t->parts[w.slot->param->index][w.slot->layout.part]++;
    }
    for (int i = 0; i < count; i++) {
        const tr_global tensor = global_of(&tensors[i]);
        walk w = {.first = owned_first_of(strchr(tensors[i].name, '/') + 1), .count = t->saved};
        if (tensors[i].write) tr_each_element(&tensor, count_element, &w);
        t->written[m->rank] += w.seen;
    }
    (void)pthread_mutex_unlock(&t->lock);
}

typedef struct difference {
    const float *a, *b;
    int count;
} difference;

static void compare_element(void *context, int64_t global, int64_t local) {
    difference *d = context;
    (void)global;
    d->count += memcmp(&d->a[local], &d->b[local], sizeof(float)) != 0;
}

/* Fails unless the tensors that an earlier team saved are those of this one, bit for bit, on every
 * rank. */
static tr_status compare_saved(member *m, tr_ckpt_tensor *tensors, int count) {
    float **mine = NULL;
    tr_ckpt_state *state = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)count, sizeof *mine, &mine));
    TR_TRY_OUT(tr_calloc(1, sizeof *state, &state));
    for (int i = 0; i < count; i++) {
        mine[i] = tensors[i].local;
        tensors[i].device = NULL;
        TR_TRY_OUT(tr_calloc((size_t)tensors[i].count, sizeof(float), &tensors[i].local));
    }
    status = tr_ckpt_load(m->team->world[m->rank], m->team->load, -1, tensors, count, state, NULL);
    for (int i = 0; i < count; i++) {
        const tr_global tensor = global_of(&tensors[i]);
        difference d = {.a = mine[i], .b = tensors[i].local};
        tr_each_element(&tensor, compare_element, &d);
        free(tensors[i].local);
        if (status == TR_OK && d.count)
            status = TR_FAIL(TR_ERR_INTERNAL, "%d elements of %s were saved with other values",
                             d.count, tensors[i].name);
    }
out:
    free(mine);
    free(state);
    return status;
}

/* Fails unless the values are equal on all ranks that hold them, also those that were gathered. */
static tr_status compare_replicas(member *m) {
    tr_ckpt_tensor *replicas;
    int count;
    TR_TRY(tr_store_list_replicas(m->store, &replicas, &count));
    tr_status status = tr_ckpt_compare_replicas(m->team->world[m->rank], replicas, count);
    free(replicas);
    return status;
}

static tr_status save_and_load(member *m) {
    static const tr_ckpt_state state = {
        .step = 1, .next_sample = 1, .optimizer_step = 1, .tokens_seen = 1};
    team *t = m->team;
    tr_ckpt_tensor *tensors;
    int count;
    TR_TRY(tr_store_list_tensors(m->store, &m->mesh, &tensors, &count));
    note_owned(m, tensors, count);
    tr_status status = compare_replicas(m);
    if (status == TR_OK) status = tr_ckpt_save(t->world[m->rank], t->save, &state, tensors, count);
    if (status == TR_OK && t->load) status = compare_saved(m, tensors, count);
    free(tensors);
    return status;
}

static tr_status work(member *m) {
    team *t = m->team;
    tr_world *world = t->world[m->rank];
    tr_group *everyone;
    const int first[] = {0, t->pp == 1 ? LAYERS : 2, LAYERS}, owner[] = {0, 1};
    const tr_placement placement = {.stages = t->pp, .first = first, .owner = owner};
    TR_TRY(tr_mesh_make(t->pp, t->dp, t->tp, m->rank, tr_world_size(world), &m->mesh));
    TR_TRY(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &m->device));
    TR_TRY(owned_model_make(&m->mesh, t->dtype, &m->model));
    TR_TRY(tr_mesh_groups_create(world, m->device, &m->mesh, &m->groups));
    tr_mesh_part everywhere = tr_mesh_self(&m->mesh);
    for (tr_axis axis = 0; axis < TR_AXIS_COUNT; axis++)
        TR_TRY(tr_mesh_widen(&m->mesh, axis, 0, &everywhere));
    TR_TRY(tr_mesh_groups_get(m->groups, &everywhere, &everyone));
    TR_TRY(tr_rank_groups_open(m->groups, &m->mesh, m->model, &placement, t->zero, false));
    TR_TRY(tr_store_create(&(tr_store_desc){.device = m->device,
                                            .world = world,
                                            .mesh = &m->mesh,
                                            .model = m->model,
                                            .placement = &placement,
                                            .dtype = t->dtype,
                                            .groups = m->groups,
                                            .zero = t->zero},
                           &m->store));
    TR_TRY(open_buckets(m));
    tr_optimizer_desc desc = {.device = m->device,
                              .store = m->store,
                              .model = m->model,
                              .mesh = &m->mesh,
                              .world = everyone,
                              .state = &m->state,
                              .micro_batches = 1,
                              .config = {.beta1 = 0.5f, .beta2 = 0.75f, .eps = 1e-8f}};
    TR_TRY(tr_optimizer_create(&desc, &m->optimizer));
    TR_TRY(tr_store_init(m->store, SEED, NULL));
    TR_TRY(for_slots(m, check_initial));
    TR_TRY(check_joined(m));
    TR_TRY(take_step(m));
    m->spans = m->store->spans;
    return save_and_load(m);
}

static void *member_main(void *argument) {
    member *m = argument;
    tr_world *world = m->team->world[m->rank];
    if (work(m) != TR_OK) {
        (void)snprintf(m->error, sizeof m->error, "%s (%s)", tr_error_message(), tr_error_trace());
        tr_world_abort(world, TR_ERR_INTERNAL);
    }
    tr_optimizer_destroy(m->optimizer);
    tr_store_destroy(m->store);
    for (int b = 0; b < MOST_BUCKETS; b++) free(m->bucket[b]);
    tr_mesh_groups_destroy(m->groups);
    tr_model_destroy(m->model);
    if (m->device) tr_device_close(m->device);
    tr_world_close(world);
    return NULL;
}

/* --- teams ------------------------------------------------------------------------------------ */

static void run_team(team *t, member *rank) {
    const int ranks = t->pp * t->dp * t->tp;
    const int64_t elements = owned_all.first[owned_all.tensors];
    pthread_t thread[MOST_RANKS];
    must(tr_world_open_local(ranks, t->world));
    must(tr_calloc((size_t)elements, sizeof *t->counted, &t->counted));
    must(tr_calloc((size_t)elements, sizeof *t->saved, &t->saved));
    assert_int_equal(pthread_mutex_init(&t->lock, NULL), 0);
    for (int r = 0; r < ranks; r++) {
        rank[r] = (member){.team = t, .rank = r};
        assert_int_equal(pthread_create(&thread[r], NULL, member_main, &rank[r]), 0);
    }
    for (int r = 0; r < ranks; r++) assert_int_equal(pthread_join(thread[r], NULL), 0);
    for (int r = 0; r < ranks; r++)
        if (rank[r].error[0])
            fail_msg("pp %d dp %d tp %d, rank %d: %s", t->pp, t->dp, t->tp, r, rank[r].error);
    for (int64_t e = 0; e < elements; e++) {
        assert_int_equal(t->counted[e], 1);
        assert_int_equal(t->saved[e], 3); /* weight and two moments */
    }
    /* Each part has its own number, so exactly one rank writes its entry among the norms. */
    for (int p = 0; p < LAYERS * MOST_PARAMS; p++)
        for (int k = 0; k < MOST_RANKS; k++) assert_in_range(t->parts[p][k], 0, 1);
    free(t->counted);
    free(t->saved);
}

/* Fails unless data ranks that hold the same parameters write about the same number of elements:
 * they may differ by a part of the largest tensor, and by the difference of unequal parts. */
static void check_balance(const team *t) {
    const int line = t->dp * t->tp;
    for (int r = 0; r < t->pp * line; r++) {
        const int other = r / line * line + r % t->tp;
        int more = t->written[r] - t->written[other];
        if (abs(more) > 48 * WIDTH / t->tp + 8 * WIDTH)
            fail_msg("rank %d writes %d elements and rank %d %d", r, t->written[r], other,
                     t->written[other]);
    }
}

/* spans: of the first stage's rank. Its groups: the rank alone; the data line; parts of the tensor
 * line, with or without the data line. Unless neighbours share key heads, the gradients of a
 * layer that one group sums are adjacent among those that decay, and among the others. */
static const struct {
    int pp, dp, tp;
    tr_dtype dtype;
    int spans;
} teams[] = {
    /* wte; each of two blocks: decays, stays; the head's wte */
    {1, 1, 1, TR_F32, 6},   {1, 1, 2, TR_F32, 8}, /* and each block: q_norm over the tensor line */
    {1, 2, 2, TR_BF16, 10},                       /* and each block: experts, of the rank alone */
    {1, 1, 4, TR_BF16, 14}, {2, 1, 4, TR_F32, 6},  {1, 2, 4, TR_F32, 16},
    {2, 2, 1, TR_BF16, 4},  {2, 2, 4, TR_BF16, 8}, {1, 2, 1, TR_F32, 8},
};

static void test_every_mesh(void **state) {
    (void)state;
    enum { TEAMS = sizeof teams / sizeof *teams };
    char root[] = "/tmp/trireme-ownership.XXXXXX", folder[4 * TEAMS][64], command[128];
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < 4 * TEAMS; i++) { /* with each parallel.zero */
        static member rank[MOST_RANKS];
        const int k = i % TEAMS;
        team t = {.pp = teams[k].pp, .dp = teams[k].dp, .tp = teams[k].tp, .zero = i / TEAMS};
        (void)snprintf(folder[i], sizeof folder[i], "%s/%d", root, i);
        t.dtype = teams[k].dtype;
        t.save = folder[i];
        if (i > 0) t.load = folder[i - 1];
        run_team(&t, rank);
        if (!t.zero) check_balance(&t);
        assert_int_equal(rank[0].spans, teams[k].spans);
    }
    (void)snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

/* Parameters that cannot be joined, and copies that no mesh can have. */
static void test_refused(void **state) {
    (void)state;
    tr_param param[2];
    tr_mesh mesh;
    tr_param_layout layout;
    const int64_t shape[] = {4, 4};
    must(tr_mesh_make(1, 1, 4, 0, 4, &mesh));
    for (int i = 0; i < 2; i++)
        must(tr_param_describe(&param[i], 2, shape, TR_INIT_ONE, 0, "w.%d", i));
    param[0].joined = true;
    assert_int_equal(tr_params_check(param, 2), TR_ERR_INTERNAL);
    param[0].joined = false;
    param[1].joined = true;
    assert_int_equal(tr_params_check(param, 2), TR_OK);
    param[0].use = 1;
    assert_int_equal(tr_params_check(param, 2), TR_ERR_INTERNAL);
    param[0].use = 0;
    param[0].decay = false;
    assert_int_equal(tr_params_check(param, 2), TR_ERR_INTERNAL);
    param[1].copies[TR_AXIS_TP] = 3;
    assert_int_equal(tr_param_layout_make(&param[1], &mesh, &layout), TR_ERR_INTERNAL);
    tr_params_release(param, 2);
}

/* The store names a stage as programs do, also after one without parameters. */
static void test_stage_without_parameters(void **state) {
    (void)state;
    const int first[] = {0, 1, 2, LAYERS}, owner[] = {0, 0, 0};
    const tr_placement placement = {.stages = 3, .first = first, .owner = owner};
    tr_mesh mesh;
    tr_device *device;
    tr_model *model;
    tr_store *store;
    must(tr_mesh_make(1, 1, 1, 0, 1, &mesh));
    must(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device));
    must(owned_model_make(&mesh, TR_F32, &model));
    const tr_layer *embedding = model->layers[0];
    const int count = model->layers[1]->params_count;
    model->layers[1]->params_count = 0;
    must(tr_store_create(&(tr_store_desc){.device = device,
                                          .mesh = &mesh,
                                          .model = model,
                                          .placement = &placement,
                                          .dtype = TR_F32},
                         &store));
    assert_true(store->slots > embedding->params_count);
    for (int i = 0; i < store->slots; i++)
        assert_int_equal(store->slot[i].stage, i < embedding->params_count ? 0 : 2);
    tr_store_destroy(store);
    model->layers[1]->params_count = count;
    tr_model_destroy(model);
    tr_device_close(device);
}

int main(void) {
    owned_list_tensors();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_mesh),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stage_without_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
