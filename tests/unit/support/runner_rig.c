#include "support/runner_rig.h"

static uint64_t fold(uint64_t a, uint64_t b) {
    return tr_mix64(a * 31 + b);
}

static void fill(char *memory, size_t bytes, uint64_t value) {
    uint64_t *word = (uint64_t *)(void *)memory;
    for (size_t k = 0; k < bytes / 8; k++) word[k] = k ? value ^ (k * 0x9E3779B97F4A7C15u) : value;
}

/* Returns the word that the memory was filled with, or one that no buffer contains. */
static uint64_t read_back(const char *memory, size_t bytes) {
    const uint64_t *word = (const uint64_t *)(const void *)memory;
    for (size_t k = 1; k < bytes / 8; k++)
        if (word[k] != (word[0] ^ (k * 0x9E3779B97F4A7C15u))) return 0xBADBADBADu + k;
    return word[0];
}

/* The values of the model: the same functions for stages and for the serial evaluation. */
static uint64_t value_h(int stage, int k, int step) {
    return fold(fold((uint64_t)stage + 1, (uint64_t)k + 1), (uint64_t)step + 1);
}

static uint64_t value_out(uint64_t h, int edge) {
    return fold(h, 1000 + (uint64_t)edge);
}

static uint64_t value_fi(uint64_t h) {
    return fold(h, 1);
}

static uint64_t value_fw(uint64_t h) {
    return fold(h, 2);
}

static uint64_t value_iw(uint64_t g) {
    return fold(g, 3);
}

/* Returns the gradient of an edge, from the h of the F and the g of the I of the stage that reads
 * it. */
static uint64_t value_din(const tr_stage_table *t, int edge, uint64_t h, uint64_t g) {
    return fold(t->edge[edge].f_writes_gradient ? h : g, 2000 + (uint64_t)edge);
}

static void pause_at_random(word_stage *s) {
    if (s->slow && test_next(&s->random) % 4 == 0)
        (void)usleep((useconds_t)(test_next(&s->random) % 60));
}

static void fill_own(const word_stage *s, const tr_stage_io *io, tr_lifetime life, uint64_t value) {
    const tr_stage_cost *cost = &s->t->cost[s->stage.index];
    for (int k = 0; k < cost->pieces; k++) {
        tr_piece piece = cost->piece[k];
        if (piece.life != life || !piece.bytes) continue;
        fill(io->piece[k], piece.bytes, value + (uint64_t)k);
    }
}

static uint64_t read_own(const word_stage *s, const tr_stage_io *io, tr_lifetime life) {
    const tr_stage_cost *cost = &s->t->cost[s->stage.index];
    uint64_t value = 0;
    bool first = true;
    for (int k = 0; k < cost->pieces; k++) {
        tr_piece piece = cost->piece[k];
        if (piece.life != life || !piece.bytes) continue;
        uint64_t found = read_back(io->piece[k], piece.bytes) - (uint64_t)k;
        if (!first && found != value) return ~value; /* the pieces are of different words */
        value = found;
        first = false;
    }
    return value;
}

static void spoil_scratch(word_stage *s, const tr_stage_io *io) {
    size_t bytes = s->t->cost[s->stage.index].bytes[TR_LIFE_SCRATCH];
    memset(io->scratch, 0x55, bytes);
}

/* Folds the inputs that are still alive: all, or only those with lifetime F..W. */
static uint64_t read_inputs(const word_stage *s, const tr_stage_io *io, uint64_t h, bool all) {
    for (int e = 0; e < s->t->edges; e++) {
        const tr_edge *edge = &s->t->edge[e];
        if (edge->to != s->stage.index || (!all && edge->life != TR_LIFE_FW)) continue;
        h = fold(h, read_back(io->in[e], edge->bytes));
    }
    return h;
}

/* Asks for the values of a bucket. Fails unless they are there then, and those of layers that an
 * action which waits has not come to are not. */
static tr_status ask_for(const word_stage *s, const tr_stage_io *io, int b, int next) {
    const tr_stage_cost *cost = &s->t->cost[s->stage.index];
    const tr_bucket *bucket = &cost->bucket[b];
    const bool gathers = bucket->values > 0 || (bucket->updated > 0 && !io->forward_only);
    if (io->need) TR_TRY(io->need(io->need_context, b));
    const bool early = io->need && next >= 0 && next < cost->buckets && s->gathered[next] == 2;
    if ((gathers && s->gathered[b] != 2) || early)
        return TR_FAIL(TR_ERR_INTERNAL, "stage %d, bucket %d: %d, %d", s->stage.index, b,
                       s->gathered[b], early);
    return TR_OK;
}

/* Asks for the values of all layers, in the order in which F, or a gradient, comes to them. */
static tr_status ask_for_values(const word_stage *s, const tr_stage_io *io, bool forward) {
    const int buckets = s->t->cost[s->stage.index].buckets;
    for (int i = 0; i < buckets && s->tells; i++) {
        const int b = forward ? buckets - 1 - i : i;
        TR_TRY(ask_for(s, io, b, b + (forward ? -1 : 1)));
    }
    return TR_OK;
}

tr_status forward(tr_stage *stage, const tr_stage_io *io) {
    word_stage *s = (word_stage *)stage;
    TR_TRY(ask_for_values(s, io, true));
    uint64_t h = read_inputs(s, io, value_h(stage->index, io->micro_batch, s->step), true);
    spoil_scratch(s, io);
    fill_own(s, io, TR_LIFE_FI, value_fi(h));
    fill_own(s, io, TR_LIFE_FW, value_fw(h));
    pause_at_random(s);
    for (int e = 0; e < s->t->edges; e++)
        if (s->t->edge[e].from == stage->index)
            fill(io->out[e], s->t->edge[e].bytes, value_out(h, e));
    for (int e = 0; e < s->t->edges && !io->forward_only; e++)
        if (s->t->edge[e].to == stage->index && s->t->edge[e].f_writes_gradient)
            fill(io->din[e], s->t->edge[e].bytes, value_din(s->t, e, h, 0));
    s->seen = fold(io->adds ? s->seen : 0, h);
    return TR_OK;
}

static uint64_t input_gradient(word_stage *s, const tr_stage_io *io) {
    int stage = s->stage.index;
    uint64_t g = fold(read_own(s, io, TR_LIFE_FI), read_own(s, io, TR_LIFE_FW));
    g = read_inputs(s, io, g, true);
    for (int e = 0; e < s->t->edges; e++)
        if (s->t->edge[e].from == stage) g = fold(g, read_back(io->dout[e], s->t->edge[e].bytes));
    spoil_scratch(s, io);
    pause_at_random(s);
    for (int e = 0; e < s->t->edges; e++)
        if (s->t->edge[e].to == stage && !s->t->edge[e].f_writes_gradient)
            fill(io->din[e], s->t->edge[e].bytes, value_din(s->t, e, 0, g));
    return g;
}

static tr_status weight_gradient(word_stage *s, const tr_stage_io *io, uint64_t iw) {
    s->sum = fold(io->adds ? s->sum : 0, fold(read_own(s, io, TR_LIFE_FW), iw));
    s->sum = read_inputs(s, io, s->sum, false);
    for (int e = 0; e < s->t->edges; e++)
        if (s->t->edge[e].from == s->stage.index && s->t->edge[e].w_reads_gradient)
            s->sum = fold(s->sum, read_back(io->dout[e], s->t->edge[e].bytes));
    spoil_scratch(s, io);
    for (int b = 0; b < TEST_BUCKETS; b++) {
        s->part[b] = fold(s->sum, (uint64_t)b);
        if (s->tells && io->complete) TR_TRY(io->complete(io->complete_context, b));
    }
    return TR_OK;
}

static tr_status grad_input(tr_stage *stage, const tr_stage_io *io) {
    word_stage *s = (word_stage *)stage;
    TR_TRY(ask_for_values(s, io, false));
    fill_own(s, io, TR_LIFE_IW, value_iw(input_gradient(s, io)));
    return TR_OK;
}

static tr_status grad_weight(tr_stage *stage, const tr_stage_io *io) {
    word_stage *s = (word_stage *)stage;
    TR_TRY(ask_for_values(s, io, false));
    return weight_gradient(s, io, read_own(s, io, TR_LIFE_IW));
}

static tr_status backward(tr_stage *stage, const tr_stage_io *io) {
    word_stage *s = (word_stage *)stage;
    size_t bytes = s->t->cost[stage->index].backward_iw;
    TR_TRY(ask_for_values(s, io, false));
    fill(io->backward, bytes, value_iw(input_gradient(s, io)));
    return weight_gradient(s, io, read_back(io->backward, bytes));
}

static const tr_stage_ops word_ops = {
    .forward = forward, .grad_input = grad_input, .grad_weight = grad_weight, .backward = backward};

/* Returns the gradient of an edge in the serial evaluation. */
static uint64_t serial_gradient(const tr_stage_table *t, const words *v, int edge, int k) {
    int at = t->edge[edge].to * v->m + k;
    return value_din(t, edge, v->h[at], v->g[at]);
}

static void serial_values(const tr_stage_table *t, int m, int step, words *v) {
    v->m = m;
    if (tr_calloc((size_t)(t->stages * m), 8, &v->h) != TR_OK ||
        tr_calloc((size_t)(t->stages * m), 8, &v->g) != TR_OK)
        abort();
    for (int k = 0; k < m; k++) {
        for (int s = 0; s < t->stages; s++) {
            uint64_t h = value_h(s, k, step);
            for (int e = 0; e < t->edges; e++)
                if (t->edge[e].to == s) h = fold(h, value_out(v->h[t->edge[e].from * m + k], e));
            v->h[s * m + k] = h;
        }
        for (int s = t->stages - 1; s >= 0; s--) {
            uint64_t h = v->h[s * m + k], g = fold(value_fi(h), value_fw(h));
            for (int e = 0; e < t->edges; e++)
                if (t->edge[e].to == s) g = fold(g, value_out(v->h[t->edge[e].from * m + k], e));
            for (int e = 0; e < t->edges; e++)
                if (t->edge[e].from == s) g = fold(g, serial_gradient(t, v, e, k));
            v->g[s * m + k] = g;
        }
    }
}

/* Computes what stage `stage` must have summed after the schedule: `sum` over W, `seen` over F. */
static void serial_sums(const tr_schedule *s, const tr_stage_table *t, const words *v, int stage,
                        uint64_t *sum, uint64_t *seen) {
    int rank = s->rank_of[stage];
    *sum = *seen = 0;
    for (int k = 0; k < s->count[rank]; k++) {
        tr_action a = s->action[rank][k];
        if (a.stage != stage) continue;
        int at = stage * v->m + a.micro_batch;
        if (a.type == TR_ACTION_F) *seen = fold(*seen, v->h[at]);
        if (a.type != TR_ACTION_W && a.type != TR_ACTION_B) continue;
        *sum = fold(*sum, fold(value_fw(v->h[at]), value_iw(v->g[at])));
        for (int e = 0; e < t->edges; e++)
            if (t->edge[e].to == stage && t->edge[e].life == TR_LIFE_FW)
                *sum = fold(*sum, value_out(v->h[t->edge[e].from * v->m + a.micro_batch], e));
        for (int e = 0; e < t->edges; e++)
            if (t->edge[e].from == stage && t->edge[e].w_reads_gradient)
                *sum = fold(*sum, serial_gradient(t, v, e, a.micro_batch));
    }
}

static tr_status on_reduce_start(void *context, int stage, int bucket) {
    rank_state *r = context;
    int at = r->step * r->c->t->stages + stage;
    r->c->result[at].reduced[bucket] = r->stage[stage].part[bucket];
    r->c->result[at].starts[bucket]++;
    return TR_OK;
}

static tr_status on_reduce_wait(void *context, int stage, int bucket) {
    rank_state *r = context;
    int at = r->step * r->c->t->stages + stage;
    r->c->result[at].waits[bucket] += r->c->result[at].starts[bucket];
    return TR_OK;
}

/* Makes the state of a bucket's gather `to`. Updated values have memory of their own and are
 * gathered once. */
static tr_status on_gather(rank_state *r, int stage, int bucket, const void *memory, int to) {
    unsigned char *state = &r->gathered[stage * TEST_BUCKETS + bucket];
    const bool again = memory && to == 1 && *state == 2;
    if ((memory == NULL) != (r->c->t->cost[stage].bucket[bucket].updated > 0) ||
        (*state != to - 1 && !again))
        return TR_FAIL(TR_ERR_INTERNAL, "stage %d, bucket %d: the gather is at %d, not %d", stage,
                       bucket, *state, to - 1);
    *state = (unsigned char)to;
    return TR_OK;
}

static tr_status on_gather_start(void *context, int stage, int bucket, void *memory) {
    return on_gather(context, stage, bucket, memory, 1);
}

static tr_status on_gather_wait(void *context, int stage, int bucket, void *memory) {
    return on_gather(context, stage, bucket, memory, 2);
}

/* Fails unless the step has gathered all values of this rank's stages; validation no updated
 * ones. */
static tr_status check_gathers(const rank_state *r, bool forward_only) {
    for (int s = 0; s < r->c->t->stages; s++)
        for (int b = 0; b < r->c->t->cost[s].buckets; b++) {
            const tr_bucket *bucket = &r->c->t->cost[s].bucket[b];
            const bool gathers = bucket->values > 0 || (bucket->updated > 0 && !forward_only);
            const bool here = r->c->schedule[0]->rank_of[s] == r->rank;
            if (r->gathered[s * TEST_BUCKETS + b] != (gathers && here ? 2 : 0))
                return TR_FAIL(TR_ERR_INTERNAL, "stage %d, bucket %d: not gathered", s, b);
        }
    return TR_OK;
}

static tr_status on_finish(void *context) {
    rank_state *r = context;
    r->finishes++;
    return TR_OK;
}

static void on_observe(void *context, const tr_instr *instr, bool begin) {
    rank_state *r = context;
    (void)instr;
    r->observed += begin ? 1 : -1;
}

static double random_delay(void *context, int group, size_t bytes) {
    (void)group;
    (void)bytes;
    test_random *random = context;
    return test_next(random) % 3 ? 0 : (double)(test_next(random) % 300) * 1e-6;
}

/* Returns 1, the forward-only program, in step 1; otherwise 0, training. */
static int program_of(int step) {
    return step == 1;
}

static tr_status run_steps(rank_state *r, tr_runner *const runner[2]) {
    run_case *c = r->c;
    for (r->step = 0; r->step < STEPS; r->step++) {
        for (int s = 0; s < c->t->stages; s++) {
            r->stage[s].step = r->step;
            if (c->schedule[program_of(r->step)]->forward_only) r->stage[s].sum = 0;
        }
        memset(r->gathered, 0, (size_t)(c->t->stages * TEST_BUCKETS));
        TR_TRY(tr_runner_step(runner[program_of(r->step)]));
        TR_TRY(check_gathers(r, c->schedule[program_of(r->step)]->forward_only));
        for (int s = 0; s < c->t->stages; s++)
            if (c->schedule[0]->rank_of[s] == r->rank) {
                c->result[r->step * c->t->stages + s].sum = r->stage[s].sum;
                c->result[r->step * c->t->stages + s].seen = r->stage[s].seen;
            }
    }
    return r->finishes == STEPS && r->observed == 0
               ? TR_OK
               : TR_FAIL(TR_ERR_INTERNAL, "%d finishes, %d open observations", r->finishes,
                         r->observed);
}

tr_status run_rank(rank_state *r) {
    run_case *c = r->c;
    tr_status status = TR_OK;
    tr_device *device = NULL;
    tr_links *links = NULL;
    tr_runner *runner[2] = {NULL, NULL};
    tr_stage **stages = NULL;
    void *arena = NULL, *host = NULL;
    int line[MOST_RANKS] = {0, 1, 2, 3}, stage_count = c->t->stages;
    test_random random = {(uint64_t)r->rank + SEED};
    tr_device_options device_options = {.threads = 1};
    tr_world *world = c->world[r->rank];
    if (c->slow) tr_world_set_delay(world, random_delay, &random);
    TR_TRY_OUT(tr_calloc((size_t)stage_count, sizeof *r->stage, &r->stage));
    TR_TRY_OUT(tr_calloc((size_t)(stage_count * TEST_BUCKETS), 1, &r->gathered));
    TR_TRY_OUT(tr_calloc((size_t)stage_count, sizeof(tr_stage *), &stages));
    TR_TRY_OUT(tr_device_open("ref", &device_options, &device));
    TR_TRY_OUT(tr_links_open(world, device, c->t, c->schedule[0]->rank_of, line, c->set[0]->ranks,
                             r->rank, &links));
    for (int s = 0; s < stage_count; s++) {
        r->stage[s] = (word_stage){.stage = {.ops = &word_ops, .index = s},
                                   .tells = s % 3 != 2,
                                   .gathered = r->gathered + s * TEST_BUCKETS,
                                   .t = c->t,
                                   .slow = c->slow,
                                   .random = {(uint64_t)s + SEED}};
        if (c->schedule[0]->rank_of[s] == r->rank) stages[s] = &r->stage[s].stage;
    }
    size_t bytes = c->set[0]->program[r->rank].arena_bytes;
    if (c->set[1]->program[r->rank].arena_bytes > bytes)
        bytes = c->set[1]->program[r->rank].arena_bytes;
    TR_TRY_OUT(tr_device_alloc(device, TR_MEMORY_ACTIVATIONS, bytes, &arena));
    TR_TRY_OUT(tr_device_kept_alloc(device, TR_MEMORY_OFFLOAD,
                                    c->set[0]->program[r->rank].host_bytes + 1, &host));
    for (int k = 0; k < 2; k++) {
        tr_runner_options options = {.device = device,
                                     .links = links,
                                     .program = &c->set[k]->program[r->rank],
                                     .stages = stages,
                                     .arena = arena,
                                     .host = host,
                                     .hooks = {.reduce_start = on_reduce_start,
                                               .reduce_wait = on_reduce_wait,
                                               .gather_start = on_gather_start,
                                               .gather_wait = on_gather_wait,
                                               .finish = on_finish,
                                               .observe = on_observe,
                                               .context = r}};
        TR_TRY_OUT(tr_runner_create(&options, &runner[k]));
    }
    TR_TRY_OUT(run_steps(r, runner));
out:
    for (int k = 0; k < 2; k++) tr_runner_destroy(runner[k]);
    tr_links_close(links);
    if (arena) tr_device_free(device, arena);
    if (device) tr_device_kept_free(device, host);
    if (device) tr_device_close(device);
    free(stages);
    free(r->stage);
    free(r->gathered);
    return status;
}

void expect_results(const run_case *c, int rank) {
    for (int step = 0; step < STEPS; step++) {
        const tr_schedule *s = c->schedule[program_of(step)];
        words v;
        serial_values(c->t, s->micro_batches, step, &v);
        for (int stage = 0; stage < c->t->stages; stage++) {
            uint64_t sum, seen;
            if (rank >= 0 && s->rank_of[stage] != rank) continue;
            int at = step * c->t->stages + stage;
            serial_sums(s, c->t, &v, stage, &sum, &seen);
            if (c->result[at].sum != sum || c->result[at].seen != seen)
                fail_msg("%s, step %d, stage %d: the result differs from the serial evaluation",
                         s->name, step, stage);
            for (int b = 0; b < TEST_BUCKETS; b++) {
                int reduces = !s->forward_only && test_reduces(c->t, stage, b);
                assert_int_equal(c->result[at].starts[b], reduces);
                assert_int_equal(c->result[at].waits[b], reduces);
                if (reduces) assert_true(c->result[at].reduced[b] == fold(sum, (uint64_t)b));
            }
        }
        free(v.h);
        free(v.g);
    }
}

const runner_schedule runner_schedules[RUNNER_SCHEDULES] = {
    {"interleaved", 1, 3}, {"bfs", 1, 3},    {"zb-h1", 1, 1},     {"zb-h2", 1, 1},
    {"zb-1p", 1, 1},       {"zb-2p", 1, 1},  {"zbv", 2, 2},       {"v-half", 2, 2},
    {"v-min", 2, 2},       {"1f1b-v", 2, 2}, {"dualpipev", 2, 2}, {"interleaved-zb", 1, 3}};
