/* Tests that no action reads memory which has not been written since it was given to a tensor:
 * steps and validations have the same bits when every buffer of the arena is filled with ones, a
 * NaN in every floating-point type, before its tensor's life and after it, scratch before every
 * action, and gradients before every step. */
#include "partition/request.h"
#include "support/engine_ranks.h"
#include "support/seed.h"
#include "support/small_engine.h"
#include "train/engine_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3, BATCH = 8, KEYS = 15, MOST_VALUES = 6, MOST_RANKS = 4, DRAWS = 16 };

/* A rank's run, and what it found. */
typedef struct trial {
    const tr_config *config;
    const tr_orders *orders;
    bool fills;
    const tr_engine *engine;
    int64_t filled;             /* buffers */
    double found[STEPS + 1][2]; /* the loss and the norm of each step, and of a validation */
} trial;

/* Returns the rank's program of an instruction. */
static const tr_program *program_of(const tr_layout *layout, int rank, const tr_instr *instr) {
    for (int k = 0; k < TR_LAYOUT_PROGRAMS; k++) {
        const tr_program *p = &layout->program[k]->program[rank];
        if (instr >= p->instr && instr < p->instr + p->count) return p;
    }
    return NULL;
}

static void fill(trial *t, void *memory, size_t bytes) {
    const tr_engine *e = t->engine;
    (void)tr_stream_sync(tr_device_compute(e->desc.device)); /* a failure stays the stream's */
    t->filled++;
    memset(memory, 0xff, bytes);
}

/* Before an instruction, fills scratch and the buffers that come to life there. After it, fills
 * the buffers that are not needed any more. */
static void see_instr(void *context, const tr_instr *instr, bool begin) {
    trial *t = context;
    const tr_engine *e = t->engine;
    const tr_program *p = program_of(e->layout, e->desc.mesh.index[TR_AXIS_PP], instr);
    if (!t->fills || !p) return;
    const int at = (int)(instr - p->instr);
    const size_t *offset = p->offset;
    for (int i = 0; i < p->items; offset += p->item[i++].count) {
        const tr_arena_item *item = &p->item[i];
        if ((begin ? item->start : item->end) != at) continue;
        for (int b = 0; b < item->count; b++) fill(t, e->arena + offset[b], item->bytes);
    }
    if (begin && p->scratch_bytes && tr_action_computes(instr->action))
        fill(t, e->arena + p->scratch_offset, p->scratch_bytes);
}

static tr_status run(engine_rank *r, void *state) {
    trial *t = state;
    const tr_config *c = t->config;
    tr_engine_desc desc = {.world = r->world,
                           .device = r->device,
                           .model = c->model,
                           .batch = c->train.batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .schedule = t->orders->schedule,
                           .seed = 3,
                           .max_norm = c->optim.clip,
                           .optimizer = tr_optim_of(c),
                           .zero = (int)c->parallel.zero,
                           .reduce = tr_request_reduce(c),
                           .fetch = fetch,
                           .observe = see_instr,
                           .observe_context = t};
    TR_TRY(tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp, r->rank,
                        r->ranks, &desc.mesh));
    TR_TRY(tr_engine_create(&desc, &r->engine));
    t->engine = r->engine;
    TR_TRY(tr_store_init(tr_engine_store(r->engine), 1, NULL));
    const tr_store *store = tr_engine_store(r->engine);
    tr_memory_plan plan;
    tr_engine_plan(r->engine, &plan);
    tr_step_result result;
    for (int k = 0; k < STEPS; k++) {
        if (t->fills && store->grads) memset(store->grads, 0xff, plan.of[TR_MEMORY_GRADIENTS]);
        TR_TRY(tr_engine_step(r->engine, k + 1, k + 1, k * BATCH, 1e-2, &result));
        t->found[k][0] = result.loss;
        t->found[k][1] = result.grad_norm;
    }
    TR_TRY(tr_engine_validate(r->engine, 1, &result));
    t->found[STEPS][0] = result.loss;
    return TR_OK;
}

static int ranks_of(const tr_config *c) {
    return (int)(c->parallel.pp * c->parallel.dp * c->parallel.tp);
}

/* Fails unless filled memory changes no loss and no norm of the config's steps. */
static void compare(const tr_config *config, const tr_orders *orders, const char *name) {
    trial rank[2][MOST_RANKS];
    const int ranks = ranks_of(config);
    memset(rank, 0, sizeof rank);
    for (int fills = 0; fills < 2; fills++) {
        for (int r = 0; r < ranks; r++)
            rank[fills][r] = (trial){.config = config, .orders = orders, .fills = fills};
        run_engine_ranks(ranks, "cpu", run, rank[fills], sizeof(trial));
    }
    for (int r = 0; r < ranks; r++) {
        assert_true(rank[1][r].filled > 0);
        for (int k = 0; k <= STEPS; k++) {
            assert_true(isfinite(rank[0][r].found[k][0]) && rank[0][r].found[k][0] > 0);
            if (memcmp(rank[0][r].found[k], rank[1][r].found[k], sizeof rank[0][r].found[k]))
                fail_msg("%s: rank %d, step %d: loss %.17g and norm %.17g, with filled memory "
                         "%.17g and %.17g",
                         name, r, k + 1, rank[0][r].found[k][0], rank[0][r].found[k][1],
                         rank[1][r].found[k][0], rank[1][r].found[k][1]);
        }
    }
}

/* What a draw chooses from, one of each line. */
static const char *const choices[KEYS][MOST_VALUES] = {
    {"model.family=gpt2", "model.family=llama", "model.family=qwen3"},
    {"parallel.pp=1", "parallel.pp=2", "parallel.pp=4"},
    {"parallel.tp=1", "parallel.tp=2"},
    {"parallel.dp=1", "parallel.dp=2"},
    {"parallel.zero=0", "parallel.zero=1", "parallel.zero=2", "parallel.zero=3"},
    {"parallel.sequence=false", "parallel.sequence=true"},
    {"parallel.schedule=1f1b", "parallel.schedule=gpipe", "parallel.schedule=zb-1p",
     "parallel.schedule=zbv", "parallel.schedule=interleaved", "parallel.schedule=auto"},
    {"train.recompute=none", "train.recompute=selective", "train.recompute=full"},
    {"train.precision=fp32", "train.precision=bf16", "train.precision=fp16"},
    {"train.micro_batch=1", "train.micro_batch=2"},
    {"model.dropout=0", "model.dropout=0.1"},
    {"optim.name=adamw", "optim.name=muon", "optim.name=adafactor", "optim.name=lamb"},
    {"optim.gradients=fp32", "optim.gradients=bf16"},
    {"model.window=0", "model.window=5"},
    {"model.tie=true", "model.tie=false"}};

static const char *draw_one(const char *const *of, uint64_t *random) {
    int64_t n = 0;
    while (n < MOST_VALUES && of[n]) n++;
    return of[tr_up_to(random, n) - 1];
}

/* Draws a config that is valid. */
static void draw(uint64_t *random, tr_config *config, char *name, size_t size) {
    static const char text[] = "data.path: x\n"
                               "model: {layers: 8, width: 32, heads: 4, context: 16, vocab: 256}\n"
                               "train: {batch: 8, threads: 1}\noptim: {clip: 1}\n";
    const char *keys[KEYS];
    for (bool valid = false; !valid;) {
        for (int k = 0; k < KEYS; k++) keys[k] = draw_one(choices[k], random);
        valid = tr_config_parse(text, strlen(text), "x.yaml", keys, KEYS, config) == TR_OK &&
                tr_config_check(config, 0) == TR_OK && ranks_of(config) <= MOST_RANKS;
    }
    tr_error_clear();
    size_t at = 0;
    for (int k = 0; k < KEYS; k++) at += (size_t)snprintf(name + at, size - at, "%s ", keys[k]);
}

static void stale_memory_changes_nothing(void **state) {
    (void)state;
    uint64_t random = tr_test_seed(1);
    char name[1024];
    tr_config config;
    tr_orders orders;
    tr_schedule_report report;
    for (int k = 0; k < tr_test_trials(DRAWS); k++) {
        draw(&random, &config, name, sizeof name);
        print_message("%s\n", name);
        assert_int_equal(tr_request_orders(&config, &orders, &report), TR_OK);
        compare(&config, &orders, name);
        tr_orders_close(&orders);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stale_memory_changes_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
