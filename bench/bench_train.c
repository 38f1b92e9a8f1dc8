/* A training step as `trireme train` takes it (engine, pipeline, optimizer, with deterministic=0
 * measured plans) on random tokens that are drawn before the first step, without files. Scripts use
 * it to compare with PyTorch, and several ranks with one. Prints one line for the run (best and
 * median step, model FLOP/s of all ranks) and, with report=1, the least processor time of a step of
 * rank 0, for a busy machine, and a line for each rank: the seconds of its best step by kind of
 * instruction.
 *
 *   bench_train layers=6 width=384 heads=6 context=256 vocab=256 batch=8 micro_batch=8
 *               precision=fp32|bf16|fp16 pp=1 dp=1 zero=0 tp=1 schedule=1f1b
 *               transport=auto|nccl|mpi threads=1 steps=7 report=0 device=cpu
 *               deterministic=1 recompute=none|selective|full plans=
 *   bench_train preset=llama-3.2-1b layers=2 context=256 batch=4 micro_batch=4 ...
 *   bench_train data=tokens format=megatron pairs=20 ...
 *
 * With `plans`, measured plans are written to plans.txt in that folder, and read where it has
 * them already: under a profiler, which slows launches, other plans would be the fastest.
 *
 * With `data`, `pairs` blocks of steps on random tokens take turns with as many on the tokens of
 * that file, and one more line compares the median steps.
 *
 * Every key `model.*` of the config is an option here (family, kv_heads, mlp_width, ...), with its
 * default; the sizes above hold without a preset. `optim.gradients=bf16`, and other keys of
 * optimizer and sums, are written whole. context: tokens of a sequence; batch: sequences
 * of a step; micro_batch: of one micro-batch on one data rank; threads=0: the rank's share of the
 * host's cores. Ranks: mpirun --bind-to none -n PP*DP*TP bench_train ...; device=cuda gives each
 * rank of a host a GPU of its own, and NCCL carries the messages. */
#include "base/memory.h"
#include "bench/measure.h"
#include "config/config.h"
#include "data/data.h"
#include "pipeline/orders/make.h"
#include "train/engine.h"
#include "train/plans.h"

#include <stdio.h>
#include <string.h>

/* POOL: batches of different tokens; later steps use them again. BLOCK: steps in a row on tokens of
 * one origin. The step after the next one is read during a step, so of a block only the steps
 * before its last one, and not its first one, are compared. */
enum { WARM_UP = 2, MAX_STEPS = 1 << 20, POOL = 16, WORDS = 32, WORD = 96, BLOCK = 5 };

/* The model's sizes without a preset. */
static const char *const sizes[] = {"layers=6", "width=384", "heads=6", "context=256", "vocab=256"};
enum { SIZES = sizeof sizes / sizeof *sizes };

typedef struct options {
    int64_t batch, micro_batch, pp, dp, zero, tp, threads, steps;
    int64_t report, deterministic;
    const char *precision, *schedule, *transport, *device, *recompute;
    const char *plans; /* NULL: in no folder */
    int64_t pairs;
    const char *data, *format; /* data NULL: random tokens alone */
} options;

/* Seconds of the instructions of one step, by kind. */
typedef struct step_time {
    double whole, processor; /* processor: time of all threads of this rank */
    double kind[TR_ACTION_TYPES];
} step_time;

typedef struct bench {
    options o;
    tr_config config; /* of operators with measured plans */
    tr_model_config model;
    int64_t samples; /* in the pool */
    int32_t *pool;   /* (samples, 2, context): tokens and labels of each */
    tr_data *data;   /* NULL: none */
    step_time now;   /* of this step, on this rank */
    double begun;
} bench;

/* Takes `name=value` and returns true when it is an option of this program. */
static bool take_option(options *o, const char *word) {
    const struct {
        const char *name;
        int64_t *number;
        const char **text;
    } keys[] = {
        {"batch", &o->batch, NULL},
        {"threads", &o->threads, NULL},
        {"micro_batch", &o->micro_batch, NULL},
        {"pp", &o->pp, NULL},
        {"dp", &o->dp, NULL},
        {"zero", &o->zero, NULL},
        {"tp", &o->tp, NULL},
        {"steps", &o->steps, NULL},
        {"report", &o->report, NULL},
        {"precision", NULL, &o->precision},
        {"schedule", NULL, &o->schedule},
        {"transport", NULL, &o->transport},
        {"deterministic", &o->deterministic, NULL},
        {"device", NULL, &o->device},
        {"pairs", &o->pairs, NULL},
        {"data", NULL, &o->data},
        {"format", NULL, &o->format},
        {"recompute", NULL, &o->recompute},
        {"plans", NULL, &o->plans},
    };
    const size_t length = strcspn(word, "=");
    if (!word[length]) return false;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        if (strlen(keys[k].name) != length || strncmp(keys[k].name, word, length) != 0) continue;
        if (keys[k].text) *keys[k].text = word + length + 1;
        else *keys[k].number = atoll(word + length + 1);
        return true;
    }
    return false;
}

enum { TRAIN_KEYS = 5 };

/* Writes the config's keys of these options to text[TRAIN_KEYS]. */
static void print_train_keys(const options *o, char text[][WORD]) {
    (void)snprintf(text[0], WORD, "train.batch=%lld", (long long)o->batch);
    (void)snprintf(text[1], WORD, "train.micro_batch=%lld", (long long)o->micro_batch);
    (void)snprintf(text[2], WORD, "train.precision=%s", o->precision);
    (void)snprintf(text[3], WORD, "train.deterministic=%s", o->deterministic ? "true" : "false");
    (void)snprintf(text[4], WORD, "parallel.zero=%lld", (long long)o->zero);
}

/* Reads the model from the keys model.WORD, and what the options say of training. */
static tr_status read_config(bench *b, char **words, int count) {
    static char text[SIZES + WORDS + TRAIN_KEYS][WORD];
    const char *overrides[SIZES + WORDS + TRAIN_KEYS];
    int n = 0;
    bool preset = false;
    for (int i = 0; i < count; i++) preset |= strncmp(words[i], "preset=", 7) == 0;
    for (int i = preset ? SIZES : 0; i < SIZES + count; i++) {
        const char *word = i < SIZES ? sizes[i] : words[i - SIZES];
        const bool whole = memchr(word, '.', strcspn(word, "=")) != NULL;
        (void)snprintf(text[n], WORD, "%s%s", whole ? "" : "model.", word);
        overrides[n] = text[n];
        n++;
    }
    print_train_keys(&b->o, &text[n]);
    for (int k = 0; k < TRAIN_KEYS; k++) overrides[n + k] = text[n + k];
    TR_TRY(tr_config_parse("", 0, "bench_train", overrides, n + TRAIN_KEYS, &b->config));
    if (b->o.plans) (void)snprintf(b->config.log.dir, sizeof b->config.log.dir, "%s", b->o.plans);
    tr_model_config *model = &b->config.model;
    (void)snprintf(model->recompute, sizeof model->recompute, "%s", b->o.recompute);
    TR_TRY(tr_model_complete(model));
    b->model = *model;
    return TR_OK;
}

static tr_status parse(bench *b, int argc, char **argv) {
    options *o = &b->o;
    char *words[WORDS];
    int count = 0;
    for (int i = 1; i < argc; i++) {
        if (take_option(o, argv[i])) continue;
        if (count == WORDS || strlen(argv[i]) + sizeof "model." > WORD)
            return TR_FAIL(TR_ERR_USAGE, "'%s' is too long, or one word too many", argv[i]);
        words[count++] = argv[i];
    }
    TR_TRY(read_config(b, words, count));
    if (o->data && (o->pairs < 1 || o->pairs > MAX_STEPS / (2 * BLOCK)))
        return TR_FAIL(TR_ERR_USAGE, "pairs must be from 1 to %d", MAX_STEPS / (2 * BLOCK));
    if (o->data) o->steps = o->pairs * 2 * BLOCK;
    if (o->steps < 1 || o->steps > MAX_STEPS)
        return TR_FAIL(TR_ERR_USAGE, "steps must be from 1 to %d", MAX_STEPS);
    if (o->batch < 1 || o->micro_batch < 1 || o->dp < 1 || o->batch % (o->micro_batch * o->dp) != 0)
        return TR_FAIL(TR_ERR_USAGE, "batch must be a multiple of micro_batch * dp");
    return TR_OK;
}

/* The timed steps only copy samples, as training does. */
static tr_status draw_samples(bench *b) {
    const options *o = &b->o;
    const int64_t batches = o->steps + WARM_UP < POOL ? o->steps + WARM_UP : POOL;
    b->samples = batches * o->batch;
    TR_TRY(tr_calloc((size_t)(b->samples * 2 * b->model.context), sizeof *b->pool, &b->pool));
    for (int64_t s = 0; s < b->samples; s++) {
        int32_t *tokens = b->pool + s * 2 * b->model.context, *labels = tokens + b->model.context;
        for (int64_t i = 0; i < b->model.context; i++) {
            tr_philox block = tr_philox4x32(1, (uint64_t)s, (uint64_t)i);
            tokens[i] = (int32_t)(block.v[0] % (uint32_t)b->model.vocab);
            labels[i] = (int32_t)(block.v[1] % (uint32_t)b->model.vocab);
        }
    }
    return TR_OK;
}

/* Returns true when the step takes its tokens from the files. */
static bool is_from_files(const bench *b, int64_t step) {
    return b->data && step >= WARM_UP && (step - WARM_UP) / BLOCK % 2 == 1;
}

static tr_status copy_sample(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                             int count) {
    const bench *b = context;
    if (is_from_files(b, sample / b->o.batch))
        return tr_data_sample(b->data, sample, wanted, count);
    const size_t length = (size_t)b->model.context;
    const int32_t *from = b->pool + (size_t)(sample % b->samples) * 2 * length;
    (void)validation;
    for (int k = 0; k < count; k++) {
        bool labels = strcmp(wanted[k].input->name, TR_STEP_INPUT_LABELS) == 0;
        memcpy(wanted[k].to, from + (labels ? length : 0), length * sizeof *from);
    }
    return TR_OK;
}

static void observe(void *context, const tr_instr *instr, bool begin) {
    bench *b = context;
    if (begin) b->begun = tr_now_s();
    else b->now.kind[instr->action.type] += tr_now_s() - b->begun;
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
               r, all[r].whole * 1e3, k[TR_ACTION_F] * 1e3, k[TR_ACTION_B] * 1e3,
               k[TR_ACTION_RECV] * 1e3, (k[TR_ACTION_SEND] + k[TR_ACTION_WAIT_SENT]) * 1e3,
               (k[TR_ACTION_FINISH] + k[TR_ACTION_REDUCE_WAIT]) * 1e3,
               (all[r].whole - k[TR_ACTION_F] - k[TR_ACTION_B] - k[TR_ACTION_RECV] -
                k[TR_ACTION_SEND] - k[TR_ACTION_WAIT_SENT] - k[TR_ACTION_FINISH] -
                k[TR_ACTION_REDUCE_WAIT]) *
                   1e3);
    }
    free(all);
    return status;
}

/* Prints the medians of the steps on random tokens and on the files' tokens. seconds[o.steps], in
 * the order of the steps. */
static tr_status compare(const bench *b, const double *seconds) {
    const int64_t most = b->o.pairs * BLOCK;
    double *kind[2];
    int n[2] = {0};
    TR_TRY(tr_calloc((size_t)(2 * most), sizeof **kind, &kind[0]));
    kind[1] = kind[0] + most;
    for (int64_t s = 0; s < b->o.steps; s++) {
        const int k = is_from_files(b, s + WARM_UP);
        if (s % BLOCK > 0 && s % BLOCK < BLOCK - 1) kind[k][n[k]++] = seconds[s];
    }
    const double random = bench_median(kind[0], n[0]), files = bench_median(kind[1], n[1]);
    printf("%d pairs of blocks: random tokens %.2f ms, files %.2f ms: %.3f times\n",
           (int)b->o.pairs, random * 1e3, files * 1e3, files / random);
    free(kind[0]);
    return TR_OK;
}

static tr_status take_steps(bench *b, tr_world *world, tr_engine *engine) {
    const options *o = &b->o;
    tr_step_result result;
    step_time best = {.whole = 1e30};
    double least = 1e30;
    double *seconds;
    TR_TRY(tr_calloc((size_t)o->steps, sizeof *seconds, &seconds));
    for (int64_t s = 0; s < o->steps + WARM_UP; s++) {
        if (s == WARM_UP && tr_world_rank(world) == 0 && o->report) {
            printf("ready\n"); /* a script waits for this line when it starts two runs at once */
            fflush(stdout);
        }
        b->now = (step_time){0};
        double start = tr_now_s(), processor = tr_clock_s(CLOCK_PROCESS_CPUTIME_ID);
        tr_status status = tr_engine_step(engine, s + 1, s + 1, s * o->batch, 3e-4f, &result);
        b->now.whole = tr_now_s() - start;
        b->now.processor = tr_clock_s(CLOCK_PROCESS_CPUTIME_ID) - processor;
        if (status != TR_OK) {
            free(seconds);
            TR_TRY(status);
        }
        if (s < WARM_UP) continue;
        seconds[s - WARM_UP] = b->now.whole;
        if (b->now.processor < least) least = b->now.processor;
        if (b->now.whole < best.whole) best = b->now;
    }
    if (o->report && tr_world_rank(world) == 0)
        printf("processor time of a step on rank 0: at least %.1f ms\n", least * 1e3);
    tr_status compared = b->data && tr_world_rank(world) == 0 ? compare(b, seconds) : TR_OK;
    double median = bench_median(seconds, (int)o->steps),
           tokens = (double)(o->batch * b->model.context);
    double flops = tokens * tr_model_flops_per_token(tr_engine_model(engine));
    if (tr_world_rank(world) == 0)
        printf("step best %.1f ms median %.1f ms; %.0f tok/s %.1f GFLOP/s (best); loss %.4f\n",
               seconds[0] * 1e3, median * 1e3, tokens / seconds[0], flops / seconds[0] * 1e-9,
               result.loss);
    free(seconds);
    TR_TRY(compared);
    return o->report ? print_ranks(world, &best) : TR_OK;
}

static tr_status open_data(bench *b) {
    const tr_data_options files = {.path = b->o.data,
                                   .format = b->o.format,
                                   .context = b->model.context,
                                   .vocab = b->model.vocab,
                                   .seed = 1,
                                   .packed = true,
                                   .document_end = -1};
    return b->o.data ? tr_data_open(&files, &b->data) : TR_OK;
}

/* Opens this rank's device and chooses what carries messages between the ranks, as `trireme train`
 * does. */
static tr_status open_device(const options *o, tr_world *world, tr_device **out) {
    const tr_plane want = strcmp(o->transport, "nccl") == 0  ? TR_PLANE_NCCL
                          : strcmp(o->transport, "mpi") == 0 ? TR_PLANE_MPI
                                                             : TR_PLANE_AUTO;
    const int64_t threads = o->threads ? o->threads : tr_world_cores(world);
    const tr_device_options how = {.threads = (int)threads,
                                   .host_rank = tr_world_host_rank(world),
                                   .ranks = tr_world_size(world)};
    char note[256] = "";
    TR_TRY(tr_device_open(o->device, &how, out));
    TR_TRY(tr_world_choose_data_plane(world, *out, want, note, sizeof note));
    tr_world_set_own_sums(world, (tr_own_sums){.ordered = o->deterministic != 0});
    if (tr_world_size(world) == 1 || tr_world_rank(world) != 0) return TR_OK;
    if (tr_world_uses_nccl(world)) tr_world_nccl_text(note, sizeof note);
    printf("%d ranks, messages: %s\n", tr_world_size(world), *note ? note : "MPI");
    return TR_OK;
}

/* Prints one line when operators of this rank run without the device's libraries, as `trireme
 * train` does. */
static void tell_fallbacks(const tr_world *world, const tr_device *device) {
    char text[256];
    int count = tr_device_fallbacks(device, text, sizeof text);
    if (count > 0 && tr_world_rank(world) == 0)
        printf("slow     %d operators not run whole by cuBLASLt, cuDNN or oneDNN: %s\n", count,
               text);
}

static tr_status run(bench *b, tr_world *world) {
    const options *o = &b->o;
    tr_status status = TR_OK;
    tr_engine *engine = NULL;
    tr_device *device = NULL;
    tr_schedule *schedule = NULL;
    tr_plans plans = {0};
    tr_engine_desc desc = {.world = world,
                           .model = b->model,
                           .batch = o->batch,
                           .micro_batch = o->micro_batch,
                           .dtype = strcmp(o->precision, "bf16") == 0   ? TR_BF16
                                    : strcmp(o->precision, "fp16") == 0 ? TR_F16
                                                                        : TR_F32,
                           .deterministic = o->deterministic != 0,
                           .seed = 1,
                           .max_norm = 1,
                           .optimizer = tr_optim_of(&b->config),
                           .reduce = tr_request_reduce(&b->config),
                           .zero = (int)o->zero,
                           .fetch = copy_sample,
                           .fetch_context = b,
                           .observe = observe,
                           .observe_context = b};
    TR_TRY_OUT(tr_mesh_make((int)o->pp, (int)o->dp, (int)o->tp, tr_world_rank(world),
                            tr_world_size(world), &desc.mesh));
    TR_TRY_OUT(open_device(o, world, &device));
    TR_TRY_OUT(draw_samples(b));
    TR_TRY_OUT(open_data(b));
    desc.device = device;
    tr_schedule_request request = {.name = o->schedule,
                                   .ranks = (int)o->pp,
                                   .micro_batches = (int)(o->batch / (o->micro_batch * o->dp)),
                                   .chunks = 1};
    TR_TRY_OUT(tr_schedule_open(&request, &schedule));
    desc.schedule = schedule;
    const tr_orders orders = {.schedule = schedule};
    TR_TRY_OUT(
        tr_plans_settle(world, &b->config, device, &desc.mesh, &orders, o->plans != NULL, &plans));
    if (o->plans && tr_world_rank(world) == 0) TR_TRY_OUT(tr_plans_write(&plans, &b->config));
    desc.plans = plans.book;
    TR_TRY_OUT(tr_engine_create(&desc, &engine));
    tell_fallbacks(world, device);
    TR_TRY_OUT(tr_store_init(tr_engine_store(engine), desc.seed, NULL));
    TR_TRY_OUT(take_steps(b, world, engine));
out:
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    tr_plan_book_destroy(plans.book); /* after the operators, which name it */
    if (device) tr_device_close(device);
    tr_data_close(b->data);
    free(b->pool);
    return status;
}

int main(int argc, char **argv) {
    bench b = {.o = {.batch = 8,
                     .micro_batch = 8,
                     .pp = 1,
                     .dp = 1,
                     .tp = 1,
                     .threads = 1,
                     .steps = 7,
                     .deterministic = 1,
                     .device = "cpu",
                     .pairs = 20,
                     .format = "u16",
                     .precision = "fp32",
                     .schedule = "1f1b",
                     .transport = "auto",
                     .recompute = "none"}};
    tr_world *world = NULL;
    tr_status status = parse(&b, argc, argv);
    if (status == TR_OK) status = tr_world_open_mpi(&world);
    if (status == TR_OK) status = run(&b, world);
    if (status != TR_OK) fprintf(stderr, "bench_train: %s\n", tr_error_message());
    if (status != TR_OK && world) tr_world_abort(world, (int)status);
    tr_world_close(world);
    return (int)status;
}
