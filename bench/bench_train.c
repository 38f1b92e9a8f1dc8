/* A training step as `trireme train` takes it (engine, pipeline, optimizer) on random tokens,
 * without files: what the scripts compare with PyTorch, and two ranks with one. One line for the
 * run (best and median step, model FLOP/s) and, with report=1, one for each rank: the seconds of
 * its best step by kind of instruction.
 *
 *   bench_train layers=6 width=384 heads=6 context=256 vocab=256 batch=8 micro_batch=8
 *               precision=fp32|bf16 pp=1 schedule=1f1b threads=1 steps=7 report=0 device=cpu
 * deterministic=1 Ranks: mpirun -q --bind-to none -n PP bench_train ... pp=PP. */
#include "base/memory.h"
#include "base/philox.h"
#include "layers/model.h"
#include "pipeline/open.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UP = 2, MAX_STEPS = 1 << 20 };

typedef struct options {
    int64_t layers, width, heads, context, vocab, batch, micro_batch, pp, threads, steps, report;
    int64_t deterministic;
    const char *precision, *schedule, *device;
} options;

/* Seconds of the instructions of one step, by kind. */
typedef struct step_time {
    double whole, kind[TR_INSTR_KINDS];
} step_time;

typedef struct bench {
    options o;
    step_time now; /* of this step, on this rank */
    double begun;
} bench;

static double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static tr_status parse(options *o, int argc, char **argv) {
    const struct {
        const char *name;
        int64_t *number;
        const char **text;
    } keys[] = {
        {"layers", &o->layers, NULL},
        {"width", &o->width, NULL},
        {"heads", &o->heads, NULL},
        {"context", &o->context, NULL},
        {"vocab", &o->vocab, NULL},
        {"batch", &o->batch, NULL},
        {"threads", &o->threads, NULL},
        {"micro_batch", &o->micro_batch, NULL},
        {"pp", &o->pp, NULL},
        {"steps", &o->steps, NULL},
        {"report", &o->report, NULL},
        {"precision", NULL, &o->precision},
        {"schedule", NULL, &o->schedule},
        {"deterministic", &o->deterministic, NULL},
        {"device", NULL, &o->device},
    };
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        size_t k = 0, n = sizeof keys / sizeof *keys;
        while (k < n && (!value || strlen(keys[k].name) != (size_t)(value - argv[i]) ||
                         strncmp(keys[k].name, argv[i], (size_t)(value - argv[i])) != 0))
            k++;
        if (k == n)
            return TR_FAIL(TR_ERR_USAGE, "'%s' is no option; see the head of the source", argv[i]);
        if (keys[k].text) *keys[k].text = value + 1;
        else *keys[k].number = atoll(value + 1);
    }
    if (o->steps < 1 || o->steps > MAX_STEPS)
        return TR_FAIL(TR_ERR_USAGE, "steps must be from 1 to %d", MAX_STEPS);
    return TR_OK;
}

static tr_status random_sample(void *context, bool validation, int64_t sample, int32_t *tokens,
                               int32_t *labels) {
    const bench *b = context;
    (void)validation;
    for (int64_t i = 0; i < b->o.context; i++) {
        tr_philox block = tr_philox4x32(1, (uint64_t)sample, (uint64_t)i);
        tokens[i] = (int32_t)(block.v[0] % (uint32_t)b->o.vocab);
        labels[i] = (int32_t)(block.v[1] % (uint32_t)b->o.vocab);
    }
    return TR_OK;
}

static void observe(void *context, const tr_instr *instr, bool begin) {
    bench *b = context;
    if (begin) b->begun = now_s();
    else b->now.kind[instr->kind] += now_s() - b->begun;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tr_status print_ranks(tr_world *world, const step_time *best) {
    int size = tr_world_size(world);
    step_time *all;
    TR_TRY(tr_calloc((size_t)size, sizeof *all, &all));
    tr_status status = tr_world_gather_all(world, best, all, sizeof *best);
    for (int r = 0; r < size && status == TR_OK && tr_world_rank(world) == 0; r++) {
        const double *k = all[r].kind;
        printf("rank %d: step %.1f ms = F %.1f + B %.1f + receive %.1f + send %.1f + finish %.1f + "
               "other %.1f\n",
               r, all[r].whole * 1e3, k[TR_INSTR_F] * 1e3, k[TR_INSTR_B] * 1e3,
               k[TR_INSTR_RECV] * 1e3, (k[TR_INSTR_SEND] + k[TR_INSTR_WAIT_SENT]) * 1e3,
               (k[TR_INSTR_FINISH] + k[TR_INSTR_REDUCE]) * 1e3,
               (all[r].whole - k[TR_INSTR_F] - k[TR_INSTR_B] - k[TR_INSTR_RECV] - k[TR_INSTR_SEND] -
                k[TR_INSTR_WAIT_SENT] - k[TR_INSTR_FINISH] - k[TR_INSTR_REDUCE]) *
                   1e3);
    }
    free(all);
    return status;
}

static tr_status take_steps(bench *b, tr_world *world, tr_engine *engine) {
    const options *o = &b->o;
    tr_step_result result;
    step_time best = {.whole = 1e30};
    double *seconds;
    TR_TRY(tr_calloc((size_t)o->steps, sizeof *seconds, &seconds));
    for (int64_t s = 0; s < o->steps + WARM_UP; s++) {
        if (s == WARM_UP && tr_world_rank(world) == 0 && o->report) {
            printf("ready\n"); /* for a script that waits for a busy twin */
            fflush(stdout);
        }
        b->now = (step_time){0};
        double start = now_s();
        tr_status status =
            tr_engine_step(engine, s + 1, s + 1, s * o->batch, 3e-4f, false, &result);
        b->now.whole = now_s() - start;
        if (status != TR_OK) {
            free(seconds);
            TR_TRY(status);
        }
        if (s < WARM_UP) continue;
        seconds[s - WARM_UP] = b->now.whole;
        if (b->now.whole < best.whole) best = b->now;
    }
    qsort(seconds, (size_t)o->steps, sizeof *seconds, compare);
    double median = seconds[o->steps / 2], tokens = (double)(o->batch * o->context);
    double flops = tokens * tr_model_flops_per_token(tr_engine_model(engine));
    if (tr_world_rank(world) == 0)
        printf("step best %.1f ms median %.1f ms; %.0f tok/s %.1f GFLOP/s (best); loss %.4f\n",
               seconds[0] * 1e3, median * 1e3, tokens / seconds[0], flops / seconds[0] * 1e-9,
               result.loss);
    free(seconds);
    return o->report ? print_ranks(world, &best) : TR_OK;
}

static tr_status run(bench *b, tr_world *world) {
    const options *o = &b->o;
    tr_status status = TR_OK;
    tr_engine *engine = NULL;
    tr_device *device = NULL;
    tr_schedule *schedule = NULL;
    tr_engine_desc desc = {
        .world = world,
        .model = {.family = "gpt2",
                  .layers = o->layers,
                  .width = o->width,
                  .heads = o->heads,
                  .context = o->context,
                  .vocab = o->vocab},
        .batch = o->batch,
        .micro_batch = o->micro_batch,
        .dtype = strcmp(o->precision, "bf16") == 0 ? TR_BF16 : TR_F32,
        .seed = 1,
        .max_norm = 1,
        .adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f},
        .fetch = random_sample,
        .fetch_context = b,
        .observe = observe,
        .observe_context = b};
    TR_TRY_OUT(
        tr_mesh_make((int)o->pp, 1, 1, tr_world_rank(world), tr_world_size(world), &desc.mesh));
    TR_TRY_OUT(tr_device_open(
        o->device,
        &(tr_device_options){.threads = (int)o->threads, .deterministic = o->deterministic != 0},
        &device));
    desc.device = device;
    tr_schedule_request request = {.name = o->schedule,
                                   .ranks = (int)o->pp,
                                   .micro_batches = (int)(o->batch / o->micro_batch),
                                   .chunks = 1};
    TR_TRY_OUT(tr_schedule_open(&request, &schedule));
    desc.schedule = schedule;
    TR_TRY_OUT(tr_engine_create(&desc, &engine));
    TR_TRY_OUT(tr_store_init(tr_engine_store(engine), desc.seed));
    TR_TRY_OUT(take_steps(b, world, engine));
out:
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    if (device) tr_device_close(device);
    return status;
}

int main(int argc, char **argv) {
    bench b = {.o = {.layers = 6,
                     .width = 384,
                     .heads = 6,
                     .context = 256,
                     .vocab = 256,
                     .batch = 8,
                     .micro_batch = 8,
                     .pp = 1,
                     .threads = 1,
                     .steps = 7,
                     .deterministic = 1,
                     .device = "cpu",
                     .precision = "fp32",
                     .schedule = "1f1b"}};
    tr_world *world = NULL;
    tr_status status = parse(&b.o, argc, argv);
    if (status == TR_OK) status = tr_world_open_mpi(&world);
    if (status == TR_OK) status = run(&b, world);
    if (status != TR_OK) fprintf(stderr, "bench_train: %s\n", tr_error_message());
    if (status != TR_OK && world) tr_world_abort(world, (int)status);
    tr_world_close(world);
    return (int)status;
}
