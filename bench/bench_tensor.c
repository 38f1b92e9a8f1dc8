/* usage: bench_tensor [muon]
 *
 * Measures what delayed sums of input gradients cost a step of two tensor ranks (threads, local
 * transport): GPT-2 with 6 layers of width 512, 1024 tokens, fp32. B starts the sum of a part's
 * input gradient, runs the part's W and waits. Every such sum is delayed by 3 ms, less than the
 * shortest W. Steps without and with the delays take turns. Prints their medians, and the median of
 * the share of the delays that a pair of steps hides. muon: delays the sums of muon's products
 * in 2 layers instead, by less than the shortest of its steps. */
#include "bench/measure.h"
#include "pipeline/orders/make.h"
#include "train/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, LAYERS = 6, WIDTH = 512, SEQ = 128, BATCH = 8, PAIRS = 30 };
static const double DELAY = 3e-3;

/* The sums of a step, in their order: of tensors of the hidden size, those of F, then two of each
 * block's B, which are delayed; or five of each of a block's four matrices, all delayed. */
typedef struct sums {
    size_t bytes;
    int layers, late; /* late: how many are delayed */
    bool delayed;
    int seen, in_step; /* in_step: of a whole step; 0 in the first */
} sums;

static const sums of_gradients = {
    .bytes = sizeof(float) * BATCH * SEQ * WIDTH, .layers = LAYERS, .late = 2 * LAYERS};
static const sums of_muon = {
    .bytes = sizeof(float) * WIDTH * WIDTH, .layers = 2, .late = 5 * 4 * 2};

typedef struct rank_state {
    tr_world *world;
    int rank;
    bool muon;
    double seconds[2][PAIRS]; /* of steps without delays, and with them */
    tr_status status;
} rank_state;

static double delay_of(void *context, int group, size_t bytes) {
    sums *s = context;
    (void)group;
    if (bytes != s->bytes) return 0;
    return s->seen++ >= s->in_step - s->late && s->delayed ? DELAY : 0;
}

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    (void)context, (void)validation;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < SEQ; i++)
            ((int32_t *)wanted[k].to)[i] = (int32_t)((sample * 31 + i * 7) % 256);
    return TR_OK;
}

static tr_status take_step(rank_state *r, tr_engine *engine, sums *s, int step, double *seconds) {
    tr_step_result result;
    s->delayed = step % 2 == 1;
    s->seen = 0;
    TR_TRY(tr_world_barrier(r->world));
    const double start = tr_now_s();
    TR_TRY(tr_engine_step(engine, step + 1, step + 1, step * BATCH, 3e-4, &result));
    *seconds = tr_now_s() - start;
    s->in_step = s->seen;
    return tr_world_barrier(r->world);
}

/* The first pair, which does not count, counts the sums. */
static tr_status take_steps(rank_state *r, tr_engine *engine, sums *s) {
    double none;
    for (int step = 0; step < 2; step++) TR_TRY(take_step(r, engine, s, step, &none));
    for (int step = 2; step < 2 + 2 * PAIRS; step++)
        TR_TRY(take_step(r, engine, s, step, &r->seconds[step % 2][step / 2 - 1]));
    return TR_OK;
}

static tr_status run_rank(rank_state *r) {
    tr_status status = TR_OK;
    tr_engine *engine = NULL;
    tr_schedule *schedule = NULL;
    sums s = r->muon ? of_muon : of_gradients;
    const tr_schedule_request request = {
        .name = "1f1b", .ranks = 1, .micro_batches = 1, .chunks = 1};
    tr_engine_desc desc = {.world = r->world,
                           .model = {.family = "gpt2",
                                     .layers = s.layers,
                                     .width = WIDTH,
                                     .heads = 8,
                                     .context = SEQ,
                                     .vocab = 256},
                           .batch = BATCH,
                           .micro_batch = BATCH,
                           .dtype = TR_F32,
                           .seed = 1,
                           .fetch = fetch,
                           .optimizer = {.kind = r->muon ? TR_OPTIM_MUON : TR_OPTIM_ADAMW,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .eps = 1e-8f}};
    tr_world_set_delay(r->world, delay_of, &s);
    TR_TRY_OUT(tr_mesh_make(1, 1, RANKS, r->rank, RANKS, &desc.mesh));
    TR_TRY_OUT(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &desc.device));
    TR_TRY_OUT(tr_schedule_make(&request, &schedule));
    desc.schedule = schedule;
    TR_TRY_OUT(tr_engine_create(&desc, &engine));
    TR_TRY_OUT(tr_store_init(tr_engine_store(engine), desc.seed, NULL));
    TR_TRY_OUT(take_steps(r, engine, &s));
out:
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    if (desc.device) tr_device_close(desc.device);
    return status;
}

static void *rank_main(void *argument) {
    rank_state *r = argument;
    r->status = run_rank(r);
    if (r->status != TR_OK) {
        fprintf(stderr, "bench_tensor: rank %d: %s\n", r->rank, tr_error_message());
        tr_world_abort(r->world, (int)r->status);
    }
    tr_world_close(r->world);
    return NULL;
}

int main(int argc, char **argv) {
    const bool muon = argc > 1 && strcmp(argv[1], "muon") == 0;
    tr_world *world[RANKS];
    pthread_t thread[RANKS];
    rank_state rank[RANKS];
    if (tr_world_open_local(RANKS, world) != TR_OK) return TR_ERR_INTERNAL;
    for (int r = 0; r < RANKS; r++) {
        rank[r] = (rank_state){.world = world[r], .rank = r, .muon = muon};
        if (pthread_create(&thread[r], NULL, rank_main, &rank[r]) != 0) abort();
    }
    for (int r = 0; r < RANKS; r++) (void)pthread_join(thread[r], NULL);
    if (rank[0].status != TR_OK) return (int)rank[0].status;
    const double delays = (muon ? of_muon : of_gradients).late * DELAY;
    double hidden[PAIRS];
    for (int k = 0; k < PAIRS; k++)
        hidden[k] = 1 - (rank[0].seconds[1][k] - rank[0].seconds[0][k]) / delays;
    printf("step %.1f ms; with %.0f ms of delays %.1f ms: %.1f%% of them hidden\n",
           1e3 * bench_median(rank[0].seconds[0], PAIRS), delays * 1e3,
           1e3 * bench_median(rank[0].seconds[1], PAIRS), 100 * bench_median(hidden, PAIRS));
    return 0;
}
