/* Tests offload on the guarded device. Of the optimizer: the bits of steps that the device takes,
 * on layouts of every kind and with every type of state, when a step is skipped, too. Of
 * activations: the bits of a run without it, with every schedule. All of its memory is planned, in
 * its class, and the device's falls. */
#include "base/memory.h"
#include "device/device_impl.h"
#include "partition/adafactor.h"
#include "partition/offload.h"
#include "pipeline/orders/make.h"
#include "support/engine_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* The table of words has more elements than the buffers of the offload hold at one time. */
enum {
    BATCH = 4,
    CONTEXT = 8,
    WIDTH = 64,
    VOCAB = 15000,
    MOST_RANKS = 2,
    STEPS = 4,
    SKIPPED = 2,
    LAYERS = 4,
    PART = 1 << 18 /* elements that travel at one time */
};
/* Of runs that offload activations. */
enum { LONG_BATCH = 8, SMALL_VOCAB = 300 };

typedef struct offload_case {
    const char *schedule;
    int pp, dp, tp, zero;
    tr_dtype dtype, moments, gradients;
    tr_optim_kind kind;
    bool no_master;
    const char *freeze;
    bool activations; /* not the optimizer's state */
    bool late;        /* copies are late */
} offload_case;

static int batch_of(const offload_case *c) {
    return c->activations ? LONG_BATCH : BATCH;
}

static int vocab_of(const offload_case *c) {
    return c->activations ? SMALL_VOCAB : VOCAB;
}

#define TYPES(d, m, g) .dtype = (d), .moments = (m), .gradients = (g)
static const offload_case cases[] = {
    {"1f1b", 1, 1, 1, 0, TYPES(TR_F32, TR_F32, TR_F32), .late = true},
    {"1f1b", 1, 1, 1, 0, TYPES(TR_BF16, TR_F32, TR_F32), .late = true},
    {"1f1b", 1, 1, 1, 0, TYPES(TR_BF16, TR_U8, TR_BF16), .no_master = true},
    {"zb-h1", 2, 1, 1, 0, TYPES(TR_F32, TR_BF16, TR_BF16), .kind = TR_OPTIM_LION},
    {"gpipe", 2, 1, 1, 0, TYPES(TR_F16, TR_F32, TR_BF16), .freeze = "*.wpe.weight *.h.1.*"},
    {"1f1b", 1, 2, 1, 1, TYPES(TR_BF16, TR_BF16, TR_F32)},
    {"1f1b", 1, 2, 1, 1, TYPES(TR_F32, TR_U8, TR_F32)},
    {"bfs", 1, 2, 1, 2, TYPES(TR_F16, TR_F32, TR_F32)},
    {"bfs", 1, 2, 1, 3, TYPES(TR_BF16, TR_F32, TR_F32)},
    {"1f1b", 1, 1, 2, 0, TYPES(TR_BF16, TR_F32, TR_F32), .kind = TR_OPTIM_SGD},
    {"1f1b", 1, 1, 1, 0, TYPES(TR_BF16, TR_F32, TR_F32), .kind = TR_OPTIM_LAMB, .late = true},
    {"1f1b", 1, 1, 1, 0, TYPES(TR_F32, TR_F32, TR_BF16), .kind = TR_OPTIM_MUON, .late = true},
    {"1f1b", 1, 1, 2, 0, TYPES(TR_BF16, TR_F32, TR_F32), .kind = TR_OPTIM_ADAFACTOR, .late = true},
    {"1f1b", 1, 2, 1, 1, TYPES(TR_BF16, TR_U8, TR_BF16), .kind = TR_OPTIM_LAMB},
    {"bfs", 1, 2, 1, 3, TYPES(TR_F16, TR_BF16, TR_F32), .kind = TR_OPTIM_MUON},
    {"gpipe", 2, 1, 1, 0, TYPES(TR_BF16, TR_F32, TR_BF16), .kind = TR_OPTIM_ADAFACTOR,
     .no_master = true},
    {"1f1b", 1, 1, 2, 0, TYPES(TR_BF16, TR_U8, TR_BF16), .kind = TR_OPTIM_LAMB, .no_master = true},
};

/* One rank of a run. */
typedef struct member {
    const offload_case *of;
    const tr_schedule *schedule;
    bool offload;
    double losses[STEPS], norms[STEPS];
    bool skipped[STEPS];
    uint64_t hash; /* of all that a checkpoint saves */
    size_t bytes[TR_MEMORY_CLASSES], total;
} member;

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    const offload_case *c = context;
    (void)validation;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < CONTEXT; i++)
            ((int32_t *)wanted[k].to)[i] = (int32_t)((sample * 701 + i * i * 97) % vocab_of(c));
    return TR_OK;
}

static void nap(void *unused) {
    (void)unused;
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Copies late on streams other than the compute stream, so that work which does not wait for a copy
 * comes before it. */
static tr_status copy_late(tr_stream *stream, void *to, const void *from, size_t bytes) {
    if (stream != tr_device_compute(stream->device))
        TR_TRY(tr_device_ops_guarded.stream_call(stream, nap, NULL));
    return tr_device_ops_guarded.stream_copy(stream, to, from, bytes);
}

static tr_device_ops late; /* the guarded device's, with late copies */

/* Hashes memory of the device or of the host, which the host can read from a copy. */
static tr_status hash_memory(engine_rank *r, const void *memory, size_t bytes, uint64_t *hash) {
    uint8_t *copy;
    tr_stream *stream = tr_device_compute(r->device);
    if (!memory || bytes == 0) return TR_OK;
    TR_TRY(tr_device_staging_alloc(r->device, bytes, (void **)&copy));
    tr_status status = tr_stream_copy(stream, copy, memory, bytes);
    if (status == TR_OK) status = tr_stream_sync(stream);
    for (size_t i = 0; i < bytes && status == TR_OK; i++)
        *hash = (*hash ^ copy[i]) * 1099511628211u;
    tr_device_staging_free(r->device, copy);
    return status;
}

static tr_status hash_store(engine_rank *r, uint64_t *hash) {
    const tr_store *store = tr_engine_store(r->engine);
    for (int i = 0; i < store->slots; i++) {
        const tr_store_slot *slot = &store->slot[i];
        tr_dtype dtype;
        tr_range held;
        const void *saved = tr_store_slot_saved(store, slot, &dtype, &held);
        TR_TRY(hash_memory(r, saved, (size_t)held.extent * tr_dtype_size(dtype), hash));
        TR_TRY(hash_memory(r, slot->value,
                           (size_t)slot->portion.extent * tr_dtype_size(store->dtype), hash));
        for (int k = 0; k < TR_OPTIM_STATES; k++) {
            const int64_t numbers =
                tr_optim_state_count(slot->optimizer, slot->param, k, slot->portion.extent);
            TR_TRY(hash_memory(r, slot->state[k],
                               tr_memory_moments_length(store->state_dtype, numbers) *
                                   tr_dtype_size(store->state_dtype),
                               hash));
        }
    }
    return TR_OK;
}

static tr_status take_steps(engine_rank *r, member *m) {
    int64_t taken = 0;
    for (int t = 0; t < STEPS; t++) {
        tr_step_result result;
        tr_engine_set_loss_scale(r->engine, t == SKIPPED ? 0x1p200 : 1); /* overflows */
        TR_TRY(tr_engine_step(r->engine, t + 1, taken + 1, t * batch_of(m->of), 1e-2, &result));
        m->losses[t] = result.loss;
        m->norms[t] = result.grad_norm;
        m->skipped[t] = result.skipped;
        taken += !result.skipped;
    }
    return TR_OK;
}

static tr_status train(engine_rank *r, void *state) {
    member *m = state;
    const offload_case *c = m->of;
    tr_memory_plan plan;
    tr_engine_desc desc = {.world = r->world,
                           .device = r->device,
                           .model = {.family = "gpt2",
                                     .layers = LAYERS,
                                     .width = WIDTH,
                                     .heads = 2,
                                     .kv_heads = 2,
                                     .context = CONTEXT,
                                     .vocab = vocab_of(c),
                                     .dropout = 0.1f,
                                     .tie = TR_YES,
                                     .tuning = {.apart = tr_optim_row_of(c->kind)->by_tensor}},
                           .batch = batch_of(c),
                           .micro_batch = 1,
                           .dtype = c->dtype,
                           .deterministic = true,
                           .schedule = m->schedule,
                           .max_norm = 0.5,
                           .optimizer = {.beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .eps = 1e-8f,
                                         .weight_decay = 0.1,
                                         .kind = c->kind,
                                         .moments = c->moments,
                                         .gradients = c->gradients,
                                         .no_master = c->no_master,
                                         .offload = m->offload && !c->activations},
                           .zero = c->zero,
                           .offload_stages = m->offload && c->activations ? 64 : 0,
                           .fetch = fetch,
                           .fetch_context = (void *)(uintptr_t)c};
    if (c->freeze)
        (void)snprintf(desc.model.tuning.freeze, sizeof desc.model.tuning.freeze, "%s", c->freeze);
    if (m->offload && c->late) r->device->ops = &late;
    TR_TRY(tr_mesh_make(c->pp, c->dp, c->tp, r->rank, r->ranks, &desc.mesh));
    TR_TRY(tr_engine_create(&desc, &r->engine));
    TR_TRY(tr_store_init(tr_engine_store(r->engine), 1, NULL));
    TR_TRY(take_steps(r, m));
    TR_TRY(hash_store(r, &m->hash));
    tr_engine_plan(r->engine, &plan);
    memcpy(m->bytes, plan.of, sizeof m->bytes);
    m->total = plan.total;
    return check_planned_memory(r);
}

/* Runs a case. */
static void run(const offload_case *c, bool offload, member of[MOST_RANKS]) {
    tr_schedule *schedule;
    const tr_schedule_request request = {
        .name = c->schedule,
        .ranks = c->pp,
        .micro_batches = batch_of(c) / c->dp,
        .chunks = strcmp(c->schedule, "auto") == 0 ? LAYERS / c->pp : 0}; /* its own are more */
    assert_int_equal(tr_schedule_make(&request, &schedule), TR_OK);
    for (int i = 0; i < MOST_RANKS; i++)
        of[i] = (member){.of = c, .schedule = schedule, .offload = offload};
    run_engine_ranks(c->pp * c->dp * c->tp, "guarded", train, of, sizeof *of);
    tr_schedule_destroy(schedule);
}

/* Returns the bytes of the host's memory that a rank needs besides masters and states: those of the
 * parts that travel, and of the step state. */
static size_t travelling_bytes(const offload_case *c) {
    const bool directs = tr_optim_row_of(c->kind)->by_tensor && c->gradients == TR_BF16;
    const size_t element =
        tr_dtype_size(c->gradients) + tr_dtype_size(c->dtype) + (directs ? sizeof(float) : 0);
    return TR_OFFLOAD_BUFFERS * PART * element + tr_align_up(sizeof(tr_step_state));
}

/* The device keeps its values and gradients. The host has what the device had of state and of
 * masters, and besides that the parts that travel. The device has the moments of adafactor's
 * largest matrix while it takes them. */
static void compare_memory(const offload_case *c, const member *with, const member *without) {
    const tr_adafactor matrix = {.rows = VOCAB / c->tp, .cols = WIDTH, .dtype = TR_F32};
    const size_t moments = c->kind == TR_OPTIM_ADAFACTOR ? tr_adafactor_moments_bytes(&matrix) : 0;
    const size_t *have = with->bytes, *had = without->bytes;
    const size_t moved =
        had[TR_MEMORY_OPTIMIZER] + had[TR_MEMORY_PARAMETERS] - have[TR_MEMORY_PARAMETERS];
    assert_int_equal(have[TR_MEMORY_OPTIMIZER], 0);
    assert_int_equal(had[TR_MEMORY_OFFLOAD], 0);
    assert_int_equal(have[TR_MEMORY_GRADIENTS], had[TR_MEMORY_GRADIENTS]);
    assert_int_equal(have[TR_MEMORY_ACTIVATIONS], had[TR_MEMORY_ACTIVATIONS]);
    assert_int_equal(have[TR_MEMORY_DATA], had[TR_MEMORY_DATA] + moments);
    assert_int_equal(without->total - with->total,
                     moved + had[TR_MEMORY_DATA] - have[TR_MEMORY_DATA]);
    assert_int_equal(have[TR_MEMORY_OFFLOAD], moved + travelling_bytes(c));
}

/* Compares both runs of a case. */
static void compare(const offload_case *c, const member *with, const member *without) {
    for (int r = 0; r < c->pp * c->dp * c->tp; r++) {
        const member *a = &with[r], *b = &without[r];
        for (int t = 0; t < STEPS; t++) {
            assert_int_equal(a->skipped[t], t == SKIPPED);
            assert_int_equal(b->skipped[t], t == SKIPPED);
            if (t != SKIPPED && (a->losses[t] != b->losses[t] || a->norms[t] != b->norms[t]))
                fail_msg("%s, rank %d, step %d: loss %.17g and norm %.17g, not %.17g and %.17g",
                         c->schedule, r, t, a->losses[t], a->norms[t], b->losses[t], b->norms[t]);
        }
        if (a->hash != b->hash) fail_msg("%s, rank %d: other parameters or states", c->schedule, r);
    }
}

static void has_the_bits_of_the_device(void **state) {
    (void)state;
    static member with[MOST_RANKS], without[MOST_RANKS];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const offload_case *c = &cases[k];
        run(c, false, without);
        run(c, true, with);
        compare(c, with, without);
        for (int r = 0; r < c->pp * c->dp * c->tp; r++) compare_memory(c, &with[r], &without[r]);
    }
}

static void activations_have_the_same_bits(void **state) {
    (void)state;
    static member with[MOST_RANKS], without[MOST_RANKS];
    int ran = 0, fell = 0;
    bool trains;
    for (int k = 0; tr_schedule_name(k, &trains); k++) {
        const offload_case c = {.schedule = tr_schedule_name(k, NULL),
                                .pp = 2,
                                .dp = 1,
                                .tp = 1,
                                TYPES(k % 2 ? TR_BF16 : TR_F32, TR_F32, TR_F32),
                                .activations = true};
        if (!trains) continue;
        run(&c, false, without);
        run(&c, true, with);
        compare(&c, with, without);
        for (int r = 0; r < MOST_RANKS; r++) {
            const size_t *have = with[r].bytes, *had = without[r].bytes;
            for (int class = 0; class < TR_MEMORY_OFFLOAD; class ++)
                if (class != TR_MEMORY_ACTIVATIONS) assert_int_equal(have[class], had[class]);
            assert_int_equal(had[TR_MEMORY_OFFLOAD], 0);
            assert_true(have[TR_MEMORY_ACTIVATIONS] <= had[TR_MEMORY_ACTIVATIONS]);
            fell += have[TR_MEMORY_OFFLOAD] > 0 &&
                    have[TR_MEMORY_ACTIVATIONS] < had[TR_MEMORY_ACTIVATIONS];
        }
        /* All micro-batches wait for their backward: a rank keeps those of a few actions. */
        if (!strcmp(c.schedule, "gpipe"))
            assert_true(with[1].bytes[TR_MEMORY_ACTIVATIONS] <
                        without[1].bytes[TR_MEMORY_ACTIVATIONS] * 2 / 3);
        ran++;
    }
    assert_true(ran == 15 && fell > 10);
}

int main(void) {
    late = tr_device_ops_guarded;
    late.stream_copy = copy_late;
    const struct CMUnitTest tests[] = {cmocka_unit_test(has_the_bits_of_the_device),
                                       cmocka_unit_test(activations_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
