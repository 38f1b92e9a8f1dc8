/* Tests the engine: a model that does not fit is refused before device memory is allocated, and a
 * step is enqueued without waiting for the device. */
#include "base/memory.h"
#include "base/minmax.h"
#include "device/device_impl.h"
#include "support/engine_ranks.h"
#include "support/small_engine.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include <cmocka.h>

/* Checks that the engine does not fit, for which the error has these words. */
static void refused_with(const tr_engine_desc *desc, const char *words) {
    tr_engine *engine;
    assert_int_equal(tr_engine_create(desc, &engine), TR_ERR_FIT);
    if (!strstr(tr_error_message(), words)) fail_msg("%s", tr_error_message());
}

/* Checks that the plan's classes are known to the byte before anything is allocated. */
static void test_refuses_what_does_not_fit(void **state) {
    (void)state;
    tr_world *world;
    tr_device *device;
    tr_engine *engine;
    tr_schedule *schedule = schedule_of("1f1b", 1, 4);
    tr_memory_plan plan;
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 2}, &device), TR_OK);
    tr_engine_desc desc = small(world, device, schedule);
    assert_int_equal(tr_engine_create(&desc, &engine), TR_OK);
    tr_engine_plan(engine, &plan);
    tr_engine_destroy(engine);
    size_t exact = plan.total;

    desc.memory = exact;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_OK);
    tr_engine_destroy(engine);

    size_t before = tr_memory_taken(device);
    const size_t too_small[] = {exact - 1, exact - plan.of[TR_MEMORY_ACTIVATIONS] - 1, 1};
    for (size_t i = 0; i < sizeof too_small / sizeof *too_small; i++) {
        desc.memory = too_small[i];
        assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_FIT);
        assert_non_null(strstr(tr_error_message(), "device.memory"));
        if (i == 0) assert_non_null(strstr(tr_error_message(), "(device.memory), 1 byte less: "));
        assert_non_null(strstr(tr_error_message(), "parallel.tp, set train.recompute, or lower"));
        assert_int_equal(tr_memory_taken(device), before);
    }
    (void)strcpy(desc.model.recompute, "full");
    assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_FIT);
    assert_null(strstr(tr_error_message(), "train.recompute"));
    /* Advice is what can still be changed. */
    desc.micro_batch = 1;
    desc.batch = 4;
    refused_with(&desc, " less: raise parallel.pp or parallel.tp (`trireme plan` finds values");
    desc.model.layers = 1;
    refused_with(&desc, " less: raise parallel.tp (`trireme plan` finds values");
    desc.model.heads = 1;
    refused_with(&desc, " less: give each rank more memory, or make model or context smaller");
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    tr_world_close(world);
}

/* A rank of a pipeline with this memory, and what it found. */
typedef struct tight_rank {
    tr_schedule *schedule;
    size_t memory, planned, taken;
    tr_status status;
} tight_rank;

static tr_status create_tight(engine_rank *r, void *state) {
    tight_rank *t = state;
    tr_memory_plan plan;
    tr_engine_desc desc = small(r->world, r->device, t->schedule);
    desc.memory = t->memory;
    TR_TRY(tr_mesh_make(2, 1, 1, r->rank, 2, &desc.mesh));
    t->status = tr_engine_create(&desc, &r->engine);
    for (int k = 0; k < TR_MEMORY_CLASSES; k++) t->taken += tr_device_peak(r->device, (tr_memory)k);
    if (t->status != TR_OK) return TR_OK;
    tr_engine_plan(r->engine, &plan);
    t->planned = plan.total;
    return TR_OK;
}

/* A rank for which the plan would fit has allocated nothing either, so another cut may follow. */
static void test_no_rank_allocates_what_does_not_fit_one(void **state) {
    (void)state;
    tr_schedule *schedule = schedule_of("1f1b", 2, 4);
    tight_rank rank[2] = {{.schedule = schedule}, {.schedule = schedule}};
    run_engine_ranks(2, "cpu", create_tight, rank, sizeof *rank);
    const size_t larger = tr_max_size(rank[0].planned, rank[1].planned);
    assert_true(rank[0].planned != rank[1].planned);
    for (int i = 0; i < 2; i++) rank[i] = (tight_rank){.schedule = schedule, .memory = larger - 1};
    run_engine_ranks(2, "cpu", create_tight, rank, sizeof *rank);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rank[i].status, TR_ERR_FIT);
        assert_int_equal(rank[i].taken, 0);
    }
    tr_schedule_destroy(schedule);
}

/* Sizes with a product that overflows every integer type. */
static void test_refuses_absurd_sizes(void **state) {
    (void)state;
    tr_world *world;
    tr_device *device;
    tr_engine *engine;
    tr_schedule *schedule = schedule_of("1f1b", 1, 4);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    tr_engine_desc desc = small(world, device, schedule);
    desc.batch = INT64_C(1) << 40;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_CONFIG);
    desc.micro_batch = INT64_C(1) << 30;
    desc.model.context = INT32_MAX;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_CONFIG);
    desc = small(world, device, schedule);
    desc.memory = INT64_C(1) << 40;
    desc.model.width = 1 << 20;
    desc.model.layers = 4096;
    assert_int_equal(tr_engine_create(&desc, &engine), TR_ERR_FIT);
    assert_int_equal(tr_memory_taken(device), 0);
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    tr_world_close(world);
}

/* --- a step is enqueued ----------------------------------------------------------------------- */

enum { RANKS = 4, MOST_ACTIONS = 64 };

typedef struct names {
    char text[MOST_ACTIONS][32];
    int count;
} names;

typedef struct rank_state {
    tr_schedule *schedule;
    int dp, tp;
    tr_device_ops ops;    /* the device's, with marks */
    sem_t enqueued;       /* the whole step, except reading its result */
    bool waited;          /* the thread had to wait for the device */
    names actions, marks; /* of the step; names that the profiler got */
} rank_state;

static _Thread_local rank_state *thread_rank; /* the rank that this thread works for */

static void add_name(names *list, const char *name) {
    if (list->count < MOST_ACTIONS)
        (void)snprintf(list->text[list->count++], sizeof list->text[0], "%s", name);
}

/* Records the names that the profiler gets; only of F, I, W and B: "0F3". */
static void mark(const char *name) {
    if (thread_rank && name && strspn(name, "0123456789FIWB") == strlen(name))
        add_name(&thread_rank->marks, name);
}

/* Holds the device's stream before a step. */
static void hold(void *argument) {
    rank_state *r = thread_rank = argument;
    struct timespec end;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 120;
    while (!r->waited && sem_timedwait(&r->enqueued, &end) != 0) r->waited = errno == ETIMEDOUT;
}

static void on_observe(void *context, const tr_instr *instr, bool begin) {
    rank_state *r = context;
    char name[32];
    if (begin) return;
    if (tr_action_computes(instr->action)) {
        tr_action_print(instr->action, name, sizeof name);
        add_name(&r->actions, name);
    }
    if (instr->action.type == TR_ACTION_FINISH) (void)sem_post(&r->enqueued);
}

static tr_status take_held_step(engine_rank *rank, void *state) {
    rank_state *r = state;
    tr_step_result result;
    tr_engine_desc desc = small(rank->world, rank->device, r->schedule);
    r->ops = *rank->device->ops;
    r->ops.mark = mark;
    rank->device->ops = &r->ops;
    TR_TRY(tr_mesh_make(RANKS / r->dp / r->tp, r->dp, r->tp, rank->rank, RANKS, &desc.mesh));
    desc.fetch = fetch;
    desc.observe = on_observe;
    desc.observe_context = r;
    TR_TRY(tr_engine_create(&desc, &rank->engine));
    TR_TRY(tr_stream_sync(tr_device_compute(rank->device)));
    TR_TRY(tr_stream_call(tr_device_compute(rank->device), hold, r));
    return tr_engine_step(rank->engine, 1, 1, 0, 1e-3f, &result);
}

/* The training thread waits for nothing inside a step: the whole step, including transfers,
 * reductions and the optimizer, is enqueued while the devices of all ranks are held before it. Each
 * action is marked with its name. */
static void test_enqueues_ahead(void **state) {
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        const int dp = 1 + layout, tp = 2 - layout;
        rank_state rank[RANKS];
        tr_schedule *schedule = schedule_of(layout ? "1f1b" : "zb-h1", 2, 4 / dp);
        for (int i = 0; i < RANKS; i++) {
            rank[i] = (rank_state){.schedule = schedule, .dp = dp, .tp = tp};
            assert_int_equal(sem_init(&rank[i].enqueued, 0, 0), 0);
        }
        run_engine_ranks(RANKS, "guarded", take_held_step, rank, sizeof *rank);
        for (int i = 0; i < RANKS; i++) {
            if (rank[i].waited) fail_msg("rank %d waits for its device inside a step", i);
            assert_true(rank[i].actions.count >= 2 * 4 / dp);
            assert_memory_equal(&rank[i].actions, &rank[i].marks, sizeof(names));
            assert_int_equal(sem_destroy(&rank[i].enqueued), 0);
        }
        tr_schedule_destroy(schedule);
    }
}

/* --- a rank without its samples --------------------------------------------------------------- */

typedef struct reader {
    tr_schedule *schedule;
    int rank, dp, failing; /* the rank without its samples; -1: none */
    int64_t without;       /* the fetch of training sample `without` fails, once; -1: none */
    bool held_out_without; /* the next fetch of validation fails */
    double loss;           /* of the step after the failed one */
} reader;

static tr_status fetch_or_fail(void *context, bool validation, int64_t sample,
                               const tr_fetch *wanted, int count) {
    reader *r = context;
    bool *fails = &r->held_out_without;
    if (validation ? *fails : sample >= r->without && r->without >= 0) {
        if (validation) *fails = false;
        else r->without = -1;
        return TR_FAIL(TR_ERR_DATA, "rank %d has no sample %d", r->rank, (int)sample);
    }
    return fetch(NULL, validation, sample, wanted, count);
}

/* Returns a hash of master weights and moments. */
static uint64_t hash_store(const tr_store *store) {
    uint64_t hash = 0;
    for (int i = 0; i < store->runs; i++) {
        const tr_run *run = &store->run[i];
        const size_t bytes = (size_t)run->count * sizeof(float);
        const char *part[] = {run->master, run->state[0], run->state[1]};
        for (int k = 0; k < 3; k++) hash = hash * 31 + XXH3_64bits(part[k], bytes);
    }
    return hash;
}

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) return TR_FAIL(TR_ERR_INTERNAL, "line %d: " #condition, __LINE__);       \
    } while (0)

/* Takes a step over gradients of NaN: their old contents do not matter, because each is written
 * before it is read. */
static tr_status step_over_nan(tr_engine *engine, int64_t step, int64_t optimizer_step,
                               int64_t first_sample, double lr, tr_step_result *out) {
    const tr_store *store = tr_engine_store(engine);
    for (int i = 0; i < store->slots; i++) {
        const tr_param *param = store->slot[i].param;
        memset(param->grad, 0xff, (size_t)param->count * sizeof(float));
    }
    return tr_engine_step(engine, step, optimizer_step, first_sample, lr, out);
}

/* Takes steps of which step 2 and the validation after it fail on rank r->failing. */
static tr_status take_unread_steps(engine_rank *rank, void *state) {
    char says[64];
    reader *r = state;
    tr_engine **out = &rank->engine;
    tr_step_result result;
    tr_engine_desc desc = small(rank->world, rank->device, r->schedule);
    TR_TRY(tr_mesh_make(RANKS / r->dp, r->dp, 1, r->rank, RANKS, &desc.mesh));
    desc.fetch = fetch_or_fail;
    desc.fetch_context = r;
    TR_TRY(tr_engine_create(&desc, out));
    TR_TRY(tr_store_init(tr_engine_store(*out), 1, NULL));
    r->without = r->rank == r->failing ? 8 : -1; /* of step 2, which is read during step 1 */
    TR_TRY(step_over_nan(*out, 1, 1, 0, 1e-3f, &result));
    EXPECT(result.finite && result.unread == TR_OK);
    (void)snprintf(says, sizeof says, "rank %d has no sample", r->failing);
    if (r->failing >= 0) {
        uint64_t before = hash_store(tr_engine_store(*out));
        TR_TRY(step_over_nan(*out, 2, 2, 8, 1e-3f, &result));
        EXPECT(result.unread == TR_ERR_DATA && !result.finite);
        EXPECT(strstr(tr_error_message(), says));
        EXPECT(hash_store(tr_engine_store(*out)) == before);
        r->held_out_without = r->rank == r->failing;
        TR_TRY(tr_engine_validate(*out, 3, &result));
        EXPECT(result.unread == TR_ERR_DATA && strstr(tr_error_message(), says));
    }
    TR_TRY(tr_engine_validate(*out, 3, &result));
    EXPECT(result.unread == TR_OK && isfinite(result.loss));
    TR_TRY(step_over_nan(*out, 2, 2, 8, 1e-3f, &result));
    EXPECT(result.finite && result.unread == TR_OK);
    TR_TRY(step_over_nan(*out, 3, 3, 16, 1e-3f, &result));
    r->loss = result.loss;
    return TR_OK;
}

static double loss_with(int failing, int dp) {
    reader rank[RANKS];
    tr_schedule *schedule = schedule_of("1f1b", RANKS / dp, 4 / dp);
    for (int i = 0; i < RANKS; i++)
        rank[i] =
            (reader){.schedule = schedule, .rank = i, .dp = dp, .failing = failing, .without = -1};
    run_engine_ranks(RANKS, "cpu", take_unread_steps, rank, sizeof *rank);
    tr_schedule_destroy(schedule);
    return rank[0].loss;
}

/* A rank that cannot read its samples ends the step on all ranks with its sentence. Nothing has
 * changed, so the same step can be taken later. */
static void test_a_rank_without_samples_changes_nothing(void **state) {
    (void)state;
    for (int dp = 2; dp <= 4; dp *= 2) {
        double usual = loss_with(-1, dp);
        for (int failing = 0; failing < RANKS; failing++)
            assert_true(loss_with(failing, dp) == usual);
    }
}

/* --- a rank that fails alone ------------------------------------------------------------------ */

typedef enum denial { DENY_NONE, DENY_GROUP, DENY_CHANNEL } denial;

static _Thread_local denial denied; /* what this thread's rank cannot open */

/* The linker sends calls of tr_group_open and tr_channel_open here. */
tr_status __real_tr_group_open(tr_world *world, tr_device *device, const int *ranks, int n, int id,
                               size_t max_bytes, tr_group **out);
tr_status __wrap_tr_group_open(tr_world *world, tr_device *device, const int *ranks, int n, int id,
                               size_t max_bytes, tr_group **out);
tr_status __wrap_tr_group_open(tr_world *world, tr_device *device, const int *ranks, int n, int id,
                               size_t max_bytes, tr_group **out) {
    if (denied == DENY_GROUP) return TR_FAIL(TR_ERR_FIT, "no memory for a group");
    return __real_tr_group_open(world, device, ranks, n, id, max_bytes, out);
}

tr_status __real_tr_channel_open(tr_world *world, tr_device *device, int peer, bool sending,
                                 size_t max_bytes, tr_channel **out);
tr_status __wrap_tr_channel_open(tr_world *world, tr_device *device, int peer, bool sending,
                                 size_t max_bytes, tr_channel **out);
tr_status __wrap_tr_channel_open(tr_world *world, tr_device *device, int peer, bool sending,
                                 size_t max_bytes, tr_channel **out) {
    if (denied == DENY_CHANNEL) return TR_FAIL(TR_ERR_FIT, "no memory for a channel");
    return __real_tr_channel_open(world, device, peer, sending, max_bytes, out);
}

typedef struct denied_rank {
    tr_schedule *schedule;
    denial denied;
} denied_rank;

/* A denied rank has given up when it returns: closing what it has opened over NCCL would otherwise
 * wait for the other ranks, which wait for it. */
static tr_status create_denied(engine_rank *r, void *state) {
    const denied_rank *d = state;
    tr_engine *engine;
    tr_engine_desc desc = small(r->world, r->device, d->schedule);
    TR_TRY(tr_mesh_make(2, 1, 1, r->rank, 2, &desc.mesh));
    denied = d->denied;
    const tr_status status = tr_engine_create(&desc, &engine);
    if (!d->denied) {
        EXPECT(status == TR_ERR_RANK);
        return TR_OK;
    }
    EXPECT(status == TR_ERR_FIT && !tr_error_is_agreed());
    EXPECT(tr_world_check(r->world) == TR_ERR_FIT);
    tr_world_abort(r->world, (int)status);
    return TR_OK;
}

static void test_a_rank_that_fails_alone_gives_up(void **state) {
    (void)state;
    tr_schedule *schedule = schedule_of("1f1b", 2, 4);
    for (int what = DENY_GROUP; what <= DENY_CHANNEL; what++) {
        denied_rank rank[2] = {{.schedule = schedule}, {schedule, (denial)what}};
        run_engine_ranks(2, "cpu", create_denied, rank, sizeof *rank);
    }
    tr_schedule_destroy(schedule);
}

/* --- step inputs ------------------------------------------------------------------------------ */

typedef struct asker {
    tr_schedule *schedule;
    int tokens, labels, others; /* how often each was asked for */
    tr_memory_rank memory;
} asker;

static tr_status count_fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                             int count) {
    asker *a = context;
    for (int k = 0; k < count; k++)
        if (strcmp(wanted[k].input->name, TR_STEP_INPUT_TOKENS) == 0) a->tokens++;
        else if (strcmp(wanted[k].input->name, TR_STEP_INPUT_LABELS) == 0) a->labels++;
        else a->others++;
    return fetch(NULL, validation, sample, wanted, count);
}

static tr_status ask(engine_rank *r, void *state) {
    asker *a = state;
    tr_step_result result;
    tr_memory_plan plan;
    tr_engine_desc desc = small(r->world, r->device, a->schedule);
    desc.model.layers = RANKS;
    desc.fetch = count_fetch;
    desc.fetch_context = a;
    TR_TRY(tr_mesh_make(RANKS, 1, 1, r->rank, RANKS, &desc.mesh));
    TR_TRY(tr_engine_create(&desc, &r->engine));
    TR_TRY(tr_store_init(tr_engine_store(r->engine), 1, NULL));
    TR_TRY(tr_engine_step(r->engine, 1, 1, 0, 1e-3f, &result));
    tr_engine_plan(r->engine, &plan);
    a->memory = tr_memory_measure(r->device, &plan);
    return TR_OK;
}

/* A rank reads and keeps what its layers ask for: the first rank tokens, the last one labels, the
 * ranks between them nothing. It allocates exactly the planned bytes. */
static void test_reads_what_layers_ask_for(void **state) {
    (void)state;
    enum { SAMPLES = 8, INPUT_BYTES = SAMPLES * 16 * sizeof(int32_t) };
    asker rank[RANKS];
    tr_schedule *schedule = schedule_of("1f1b", RANKS, 4);
    for (int i = 0; i < RANKS; i++) rank[i] = (asker){.schedule = schedule};
    run_engine_ranks(RANKS, "cpu", ask, rank, sizeof *rank);
    const size_t least = rank[1].memory.plan.of[TR_MEMORY_DATA];
    for (int i = 0; i < RANKS; i++) {
        const asker *a = &rank[i];
        bool end = i == 0 || i == RANKS - 1;
        /* And those of the next step, as far as they were read ahead. */
        assert_in_range(a->tokens, i == 0 ? SAMPLES : 0, i == 0 ? 2 * SAMPLES : 0);
        assert_in_range(a->labels, i == RANKS - 1 ? SAMPLES : 0, i == RANKS - 1 ? 2 * SAMPLES : 0);
        assert_int_equal(a->others, 0);
        assert_int_equal(a->memory.plan.of[TR_MEMORY_DATA], least + (end ? INPUT_BYTES : 0));
        assert_memory_equal(a->memory.taken, a->memory.plan.of, sizeof a->memory.taken);
    }
    tr_schedule_destroy(schedule);
}

/* --- batches of several sizes ----------------------------------------------------------------- */

enum { SIZED = 2, SIZED_STEPS = 4 };

/* What a data rank takes steps with. */
/* --- messages that cannot be withdrawn -------------------------------------------------------- */

static bool keeps_memory;
static tr_engine *kept; /* for tools that look for lost memory */

bool __real_tr_world_keeps_memory(tr_world *world);
bool __wrap_tr_world_keeps_memory(tr_world *world);
bool __wrap_tr_world_keeps_memory(tr_world *world) {
    return keeps_memory || __real_tr_world_keeps_memory(world);
}

/* Tensors that the transport may still access stay when the engine is destroyed. */
static void test_keeps_what_messages_access(void **state) {
    (void)state;
    tr_world *world;
    tr_device *device;
    tr_schedule *schedule = schedule_of("1f1b", 1, 4);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);
    tr_engine_desc desc = small(world, device, schedule);
    for (int keeps = 0; keeps < 2; keeps++) {
        assert_int_equal(tr_engine_create(&desc, &kept), TR_OK);
        keeps_memory = keeps;
        tr_engine_destroy(kept);
        keeps_memory = false;
        for (int k = TR_MEMORY_PARAMETERS; k <= TR_MEMORY_ACTIVATIONS; k++)
            assert_true((device->live[k] > 0) == keeps);
    }
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    tr_world_close(world);
}

typedef struct sizer {
    tr_schedule *schedule, *less; /* of 4 and of 2 micro-batches */
    bool foresees;                /* reads ahead for the batch that comes */
    double loss[SIZED_STEPS];
} sizer;

/* Takes steps of 16, 8, 8 and 16 sequences. The order of the smaller batch holds more at a time. */
static tr_status take_sizes(engine_rank *r, void *state) {
    sizer *z = state;
    tr_engine **out = &r->engine;
    static const int64_t batch[SIZED_STEPS + 1] = {16, 8, 8, 16, 16};
    tr_step_result result;
    tr_memory_plan plan;
    int64_t first = 0;
    const tr_smaller_batch smaller = {.batch = 8, .schedule = z->less};
    tr_engine_desc desc = small(r->world, r->device, z->schedule);
    TR_TRY(tr_mesh_make(1, SIZED, 1, r->rank, SIZED, &desc.mesh));
    desc.batch = 16;
    desc.smaller = &smaller;
    desc.smaller_count = 1;
    desc.noise = true;
    desc.fetch = fetch;
    TR_TRY(tr_engine_create(&desc, out));
    const size_t arena = tr_engine_programs(*out, 8)->program[0].arena_bytes;
    tr_engine_plan(*out, &plan);
    EXPECT(arena > tr_engine_programs(*out, 16)->program[0].arena_bytes);
    EXPECT(plan.of[TR_MEMORY_ACTIVATIONS] >= arena && plan.live_peak <= arena);
    TR_TRY(tr_store_init(tr_engine_store(*out), 1, NULL));
    for (int k = 0; k < SIZED_STEPS; k++) {
        const int64_t other = batch[k] == 8 ? 16 : 8;
        tr_engine_set_batch(*out, batch[k], z->foresees ? batch[k + 1] : other);
        TR_TRY(tr_engine_step(*out, k + 1, k + 1, first, 1e-2, &result));
        EXPECT(result.finite && result.tokens == (double)(batch[k] * 16));
        EXPECT(isfinite(result.noise.variance));
        z->loss[k] = result.loss;
        first += batch[k];
        if (k != 1) continue;
        TR_TRY(tr_engine_validate(*out, 1, &result)); /* of the whole batch */
        EXPECT(result.tokens == 16 * 16);
    }
    return check_planned_memory(r);
}

/* A step takes the samples of its batch, also when another batch was foreseen for it, as before a
 * run goes back; and the memory is the planned one. */
static void test_batches_of_several_sizes(void **state) {
    (void)state;
    sizer rank[2][SIZED];
    tr_schedule *schedule = schedule_of("1f1b", 1, 4), *less = schedule_of("gpipe", 1, 2);
    for (int foresees = 0; foresees < 2; foresees++) {
        for (int i = 0; i < SIZED; i++)
            rank[foresees][i] = (sizer){.schedule = schedule, .less = less, .foresees = foresees};
        run_engine_ranks(SIZED, "cpu", take_sizes, rank[foresees], sizeof **rank);
    }
    for (int k = 0; k < SIZED_STEPS; k++)
        assert_true(rank[0][0].loss[k] == rank[1][0].loss[k] &&
                    rank[0][0].loss[k] == rank[0][1].loss[k]);
    tr_schedule_destroy(schedule);
    tr_schedule_destroy(less);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses_what_does_not_fit),
        cmocka_unit_test(test_no_rank_allocates_what_does_not_fit_one),
        cmocka_unit_test(test_refuses_absurd_sizes),
        cmocka_unit_test(test_enqueues_ahead),
        cmocka_unit_test(test_a_rank_without_samples_changes_nothing),
        cmocka_unit_test(test_a_rank_that_fails_alone_gives_up),
        cmocka_unit_test(test_keeps_what_messages_access),
        cmocka_unit_test(test_reads_what_layers_ask_for),
        cmocka_unit_test(test_batches_of_several_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
