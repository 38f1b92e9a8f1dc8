#include "support/pipeline_cases.h"

uint64_t test_next(test_random *r) {
    return tr_mix64(r->state++);
}

int test_between(test_random *r, int low, int high) {
    return low + (int)(test_next(r) % (uint64_t)(high - low + 1));
}

tr_edge test_edge(int from, int to, size_t bytes, tr_lifetime life) {
    return (tr_edge){.from = from, .to = to, .bytes = bytes, .life = life};
}

/* Makes each block one piece. */
static void test_table_pieces(tr_stage_table *t) {
    free(t->piece);
    if (tr_calloc((size_t)(TR_LIFE_SCRATCH * t->stages), sizeof *t->piece, &t->piece) != TR_OK)
        abort();
    for (int s = 0; s < t->stages; s++) {
        tr_stage_cost *c = &t->cost[s];
        c->pieces = TR_LIFE_SCRATCH;
        c->piece = &t->piece[TR_LIFE_SCRATCH * s];
        for (tr_lifetime life = TR_LIFE_FI; life < TR_LIFE_SCRATCH; life++)
            c->piece[life] = (tr_piece){.life = life, .bytes = c->bytes[life]};
    }
}

void test_table_chain(int stages, size_t fi, size_t fw, size_t iw, tr_stage_table *t) {
    *t = (tr_stage_table){.stages = stages, .edges = stages - 1};
    if (tr_calloc((size_t)stages, sizeof *t->cost, &t->cost) != TR_OK ||
        tr_calloc((size_t)stages, sizeof *t->edge, &t->edge) != TR_OK)
        abort();
    for (int k = 0; k < stages; k++)
        t->cost[k] = (tr_stage_cost){
            .f = 1,
            .i = 1,
            .w = 1,
            .bytes =
                {[TR_LIFE_FI] = fi, [TR_LIFE_FW] = fw, [TR_LIFE_IW] = iw, [TR_LIFE_SCRATCH] = 1000},
            .backward_iw = iw / 2};
    for (int e = 0; e < t->edges; e++) t->edge[e] = test_edge(e, e + 1, 256, TR_LIFE_FW);
    test_table_pieces(t);
}

/* Makes each block of every second stage one piece, and cuts those of the others into three or four
 * pieces each, some of no bytes, those of the blocks by turns. */
static void test_table_cut(test_random *r, tr_stage_table *t) {
    enum { MOST = 4 * TR_LIFE_SCRATCH };
    free(t->piece);
    if (tr_calloc((size_t)(MOST * t->stages), sizeof *t->piece, &t->piece) != TR_OK) abort();
    for (int s = 0; s < t->stages; s++) {
        tr_stage_cost *c = &t->cost[s];
        c->pieces = (s % 2 ? 1 : test_between(r, 3, 4)) * TR_LIFE_SCRATCH;
        c->piece = &t->piece[MOST * s];
        for (int k = 0; k < c->pieces; k++) {
            tr_lifetime life = (tr_lifetime)(k % TR_LIFE_SCRATCH);
            bool first = k < TR_LIFE_SCRATCH;
            size_t bytes = first ? c->bytes[life] : 8 * (size_t)test_between(r, 0, 90);
            c->piece[k] = (tr_piece){.life = life, .bytes = bytes};
            if (!first) c->bytes[life] += bytes;
        }
    }
}

void test_table_buckets(test_random *r, tr_stage_table *t) {
    if (tr_calloc((size_t)(TEST_BUCKETS * t->stages), sizeof *t->bucket, &t->bucket) != TR_OK)
        abort();
    const bool in_arena = test_between(r, 0, 1);
    const int gathers = test_between(r, 0, 2); /* nothing; divided values; updated ones */
    for (int s = 0; s < t->stages; s++) {
        tr_stage_cost *c = &t->cost[s];
        c->buckets = test_between(r, in_arena, TEST_BUCKETS);
        c->bucket = &t->bucket[TEST_BUCKETS * s];
        for (int k = 0; k < c->buckets; k++) {
            double part = (double)(k + test_between(r, 0, 1)) / c->buckets;
            size_t bytes = test_between(r, 0, 3) ? (size_t)test_between(r, 1, 100) : 0;
            c->bucket[k] = (tr_bucket){
                .bytes = bytes, .w = part, .b = (1 + part) / 2, .f = 1 - (k + 1.0) / c->buckets};
            if (gathers && test_between(r, 0, 3))
                *(gathers == 1 ? &c->bucket[k].values : &c->bucket[k].updated) =
                    c->bucket[k].gathered = (size_t)test_between(r, 1, 3000);
            if (!in_arena) continue;
            c->bucket[k].arena = (size_t)test_between(r, 1, 3000);
            c->bucket[k].in_forward = test_between(r, 0, 3) == 0;
        }
    }
}

bool test_reduces(const tr_stage_table *t, int stage, int bucket) {
    const tr_stage_cost *c = &t->cost[stage];
    return c->buckets
               ? bucket < c->buckets && (c->bucket[bucket].bytes > 0 || c->bucket[bucket].arena > 0)
               : bucket == 0;
}

void test_table_random(test_random *r, int stages, int extra, tr_stage_table *t) {
    test_table_chain(stages, 0, 0, 0, t);
    free(t->edge);
    t->edges = stages - 1 + (stages > 1 ? extra : 0);
    if (tr_calloc((size_t)t->edges, sizeof *t->edge, &t->edge) != TR_OK) abort();
    for (int e = 0; e < t->edges; e++) {
        int from = e, to = e + 1;
        if (e >= stages - 1) {
            from = test_between(r, 0, stages - 2);
            to = test_between(r, from + 1, stages - 1);
        }
        tr_lifetime life = test_between(r, 0, 1) ? TR_LIFE_FI : TR_LIFE_FW;
        size_t bytes = 8 * (size_t)test_between(r, 1, 100);
        t->edge[e] = test_edge(from, to, bytes, life);
        t->edge[e].f_writes_gradient = test_between(r, 0, 1);
        t->edge[e].w_reads_gradient = test_between(r, 0, 1);
    }
    for (int k = 0; k < stages; k++) {
        tr_stage_cost *c = &t->cost[k];
        c->f = test_between(r, 1, 9);
        c->i = test_between(r, 1, 9);
        c->w = test_between(r, 1, 9);
        /* Each block has at least eight bytes, for the stage's word. */
        for (int life = 0; life < TR_LIFE_SCRATCH; life++)
            c->bytes[life] = 8 * (size_t)test_between(r, 1, 300);
        c->bytes[TR_LIFE_SCRATCH] = 8 * (size_t)test_between(r, 1, 300);
        c->backward_iw = 8 * (size_t)test_between(r, 1, (int)(c->bytes[TR_LIFE_IW] / 8));
        c->offload = test_between(r, 0, 1);
    }
    test_table_cut(r, t);
    test_table_buckets(r, t);
}

static unsigned test_done(const test_order *o, int stage, int k) {
    return o->done[stage * o->s->micro_batches + k];
}

static bool test_is_ready(const test_order *o, int stage, int k, tr_action_type *type) {
    unsigned done = test_done(o, stage, k);
    bool forward = !(done & 1u);
    if (done == 7) return false;
    if (done == 3) {
        *type = TR_ACTION_W;
        return true;
    }
    for (int e = 0; e < o->t->edges; e++) {
        const tr_edge *edge = &o->t->edge[e];
        if (forward && edge->to == stage && !(test_done(o, edge->from, k) & 1u)) return false;
        if (!forward && edge->from == stage && !(test_done(o, edge->to, k) & 2u)) return false;
    }
    *type = forward                                     ? TR_ACTION_F
            : o->split[stage * o->s->micro_batches + k] ? TR_ACTION_I
                                                        : TR_ACTION_B;
    return true;
}

/* Chooses a random ready action of `rank` (-1: of any rank) and, when `other` is not NULL, of the
 * types that can overlap with *other. Returns false when there is none. */
static bool test_choose(const test_order *o, test_random *r, int rank, const tr_action *other,
                        tr_action *chosen) {
    int ready = 0;
    for (int stage = 0; stage < o->t->stages; stage++)
        for (int k = 0; k < o->s->micro_batches; k++) {
            tr_action_type type;
            if (rank >= 0 && o->s->rank_of[stage] != rank) continue;
            if (!test_is_ready(o, stage, k, &type)) continue;
            if (other &&
                (type == TR_ACTION_W || (type == TR_ACTION_F) == (other->type == TR_ACTION_F)))
                continue;
            if (test_between(r, 0, ready++) == 0)
                *chosen = (tr_action){.stage = stage, .type = type, .micro_batch = k};
        }
    return ready > 0;
}

tr_schedule *test_schedule_random(test_random *r, const tr_stage_table *t, int ranks,
                                  int micro_batches) {
    static const unsigned bits[TR_COMPUTE_TYPES] = {1, 2, 4, 6};
    int *rank_of = NULL;
    test_order o = {.t = t};
    size_t cells = (size_t)t->stages * (size_t)micro_batches;
    if (tr_calloc((size_t)t->stages, sizeof *rank_of, &rank_of) != TR_OK ||
        tr_calloc(cells, 1, &o.done) != TR_OK || tr_calloc(cells, 1, &o.split) != TR_OK)
        abort();
    for (int k = 0; k < t->stages; k++) rank_of[k] = k < ranks ? k : test_between(r, 0, ranks - 1);
    for (size_t k = 0; k < cells; k++) o.split[k] = (unsigned char)test_between(r, 0, 1);
    if (tr_schedule_create("random", ranks, t->stages, micro_batches, rank_of, &o.s) != TR_OK)
        abort();
    tr_action cell[2];
    while (test_choose(&o, r, -1, NULL, cell)) {
        int rank = rank_of[cell[0].stage], actions = 1;
        if (cell[0].type != TR_ACTION_W && test_between(r, 0, 2) == 0 &&
            test_choose(&o, r, rank, cell, cell + 1)) {
            cell[0].overlap = true;
            actions = 2;
        }
        for (int k = 0; k < actions; k++) {
            if (tr_schedule_add(o.s, rank, cell[k]) != TR_OK) abort();
            unsigned char *done = &o.done[cell[k].stage * micro_batches + cell[k].micro_batch];
            *done = (unsigned char)(*done | bits[cell[k].type]);
        }
    }
    free(rank_of);
    free(o.done);
    free(o.split);
    return o.s;
}

tr_schedule *test_schedule_named(test_random *r, int ranks) {
    int known = 0;
    while (tr_schedule_name(known, NULL)) known++;
    tr_schedule_request request = {.name = tr_schedule_name(test_between(r, 0, known - 1), NULL),
                                   .ranks = test_between(r, 1, ranks),
                                   .micro_batches = test_between(r, 1, 7),
                                   .chunks = test_between(r, 0, 3)};
    tr_schedule *s = NULL;
    if (tr_schedule_make(&request, &s) != TR_OK) {
        request.chunks = 0;
        if (tr_schedule_make(&request, &s) != TR_OK) abort();
    }
    return s;
}

bool test_add_row(tr_schedule *s, int rank, const char *row) {
    while (*row) {
        char *end;
        tr_action a = {.stage = (int)strtol(row, &end, 10)};
        static const char letters[] = "FIWB";
        const char *letter = *end ? strchr(letters, *end) : NULL;
        if (!letter) return false;
        a.type = (tr_action_type)(letter - letters);
        a.micro_batch = (int)strtol(end + 1, &end, 10);
        a.overlap = *end == '&';
        if (tr_schedule_add(s, rank, a) != TR_OK) return false;
        row = *end == ',' || *end == '&' ? end + 1 : end;
    }
    return true;
}

tr_schedule *test_schedule_v(void) {
    static const int rank_of[] = {0, 1, 1, 0};
    tr_schedule *s = NULL;
    if (tr_schedule_create("v", 2, 4, 3, rank_of, &s) != TR_OK ||
        !test_add_row(s, 0, "0F0,0F1,3F0,3I0,3W0,3F1,3B1,0F2,0I0,3F2,0W0,3B2,0B1,0B2") ||
        !test_add_row(s, 1, "1F0,2F0,1F1,2F1,2I0,1I0,2W0,2B1,1F2,1W0,2F2,1B1,2B2,1B2"))
        abort();
    return s;
}

void test_relink(tr_program *p) {
    for (int k = 0; k < p->count; k++) {
        tr_instr *wait = &p->instr[k];
        if (wait->action.type != TR_ACTION_WAIT_SENT) continue;
        for (int j = 0; j < p->count; j++)
            if (p->instr[j].action.type == TR_ACTION_SEND && p->instr[j].peer == wait->peer &&
                p->instr[j].message == wait->message)
                wait->send = j;
    }
}

void test_program_change(test_random *r, tr_program *p, bool (*of)(tr_action a), int most) {
    int at[256], n = 0;
    for (int k = 0; k < p->count && n < 256; k++)
        if (of(p->instr[k].action)) at[n++] = k;
    if (n == 0) return;
    p->instr = realloc(p->instr, ((size_t)p->count + 1) * sizeof *p->instr);
    if (!p->instr) abort();
    int a = at[test_between(r, 0, n - 1)], b = at[test_between(r, 0, n - 1)];
    const tr_instr kept = p->instr[a];
    int to = test_between(r, 0, p->count - 1), kind = test_between(r, 0, 5);
    if (kind == 0 || kind == 3) /* without it; elsewhere */
        memmove(&p->instr[a], &p->instr[a + 1], (size_t)(--p->count - a) * sizeof kept);
    if (kind == 1 || kind == 3) { /* again; elsewhere */
        memmove(&p->instr[to + 1], &p->instr[to], (size_t)(p->count++ - to) * sizeof kept);
        p->instr[to] = kept;
    }
    if (kind == 2) p->instr[a].action.micro_batch = test_between(r, 0, most);
    if (kind > 3) { /* two of them change places */
        p->instr[a] = p->instr[b];
        p->instr[b] = kept;
    }
    test_relink(p);
}
