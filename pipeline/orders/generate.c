#include "pipeline/orders/generate.h"

#include "base/memory.h"
#include "base/text.h"
#include "pipeline/orders/generate_impl.h"
#include "pipeline/walk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum placement { LOOP, V } placement;

/* The list of schedules. */
static const struct {
    const char *name;
    tr_status (*generate)(tr_schedule *schedule, const tr_schedule_request *request);
    int chunks; /* stages a rank; 0: any number */
    placement placement;
} generators[] = {
    {.name = "gpipe", .generate = tr_generate_bfs, .chunks = 1},
    {.name = "1f1b", .generate = tr_generate_1f1b, .chunks = 1},
    {.name = "interleaved", .generate = tr_generate_1f1b},
    {.name = "bfs", .generate = tr_generate_bfs},
    {.name = "zb-h1", .generate = tr_generate_zb_h1, .chunks = 1},
    {.name = "zb-h2", .generate = tr_generate_zb_h2, .chunks = 1},
    {.name = "zb-1p", .generate = tr_generate_zb_capped, .chunks = 1},
    {.name = "zb-2p", .generate = tr_generate_zb_capped, .chunks = 1},
    {.name = "interleaved-zb", .generate = tr_generate_zb_h1},
    {.name = "zbv", .generate = tr_generate_zbv, .chunks = 2, .placement = V},
    {.name = "v-half", .generate = tr_generate_v_capped, .chunks = 2, .placement = V},
    {.name = "v-min", .generate = tr_generate_v_capped, .chunks = 2, .placement = V},
    {.name = "1f1b-v", .generate = tr_generate_v_capped, .chunks = 2, .placement = V},
    {.name = "dualpipev", .generate = tr_generate_dualpipev, .chunks = 2, .placement = V},
    {.name = "auto"}, /* made by tr_schedule_auto */
    {.name = "forward", .generate = tr_generate_forward},
};
enum { GENERATORS = sizeof generators / sizeof generators[0] };

const char *tr_schedule_name(int index, bool *trains) {
    if (index < 0 || index >= GENERATORS) return NULL;
    if (trains) *trains = generators[index].generate != tr_generate_forward;
    return generators[index].name;
}

static tr_status find(const char *name, int *found) {
    for (int g = 0; g < GENERATORS; g++)
        if (strcmp(generators[g].name, name) == 0) {
            *found = g;
            return TR_OK;
        }
    char names[512] = "";
    for (int g = 0; g < GENERATORS; g++)
        tr_text_add(names, sizeof names, "%s%s", g ? ", " : "", generators[g].name);
    return TR_FAIL(TR_ERR_CONFIG, "unknown schedule '%s': use one of %s", name, names);
}

bool tr_generate_get(int index, const char **name, int *chunks) {
    if (index < 0 || index >= GENERATORS) return false;
    *name = generators[index].name;
    *chunks = generators[index].chunks;
    return true;
}

int tr_schedule_chunks(const char *name) {
    for (int g = 0; g < GENERATORS; g++)
        if (strcmp(generators[g].name, name) == 0) return generators[g].chunks;
    return 0;
}

double tr_generate_most_held(const char *name, int p) {
    if (!strcmp(name, "zb-1p")) return p;
    if (!strcmp(name, "zb-2p")) return 2 * p;
    if (!strcmp(name, "v-half")) return (double)((p + 2) / 2);
    if (!strcmp(name, "v-min")) return (double)((p + 4) / 3);
    if (!strcmp(name, "1f1b-v")) return p < 4 ? p : 0.5 * ((3 * p + 1) / 2);
    return INFINITY;
}

bool tr_schedule_is_capped(const char *name) {
    return tr_generate_most_held(name, 1) < INFINITY;
}

void tr_share_complete(tr_stage_cost *share) {
    if (share->f == 0 && share->i == 0 && share->w == 0) share->f = share->i = share->w = 1;
    if (share->m_b > 0) return;
    share->m_b = 1;
    share->m_w = 0;
}

tr_stage_cost tr_share_stage(const tr_stage_cost *share, int chunks) {
    return (tr_stage_cost){.f = share->f / chunks,
                           .i = share->i / chunks,
                           .w = share->w / chunks,
                           .m_b = share->m_b / chunks,
                           .m_w = share->m_w / chunks};
}

tr_status tr_generate_complete(const tr_schedule_request *request, tr_schedule_request *out) {
    *out = *request;
    if (request->ranks < 1 || request->micro_batches < 1 || request->chunks < 0 ||
        request->group < 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "a schedule needs at least one rank and micro-batch, and chunks and a group "
                       "of 0 or more, not %d, %d, %d and %d",
                       request->ranks, request->micro_batches, request->chunks, request->group);
    const tr_stage_cost *c = &request->share;
    if (!(c->f >= 0 && c->i >= 0 && c->w >= 0 && c->m_b >= 0 && c->m_w >= 0 &&
          request->latency >= 0 && request->cap >= 0))
        return TR_FAIL(TR_ERR_CONFIG, "costs and memory of schedule %s must be 0 or more",
                       request->name);
    tr_share_complete(&out->share);
    return TR_OK;
}

/* Completes the request, also with the chunks of a generator, and checks its size. */
static tr_status complete(const tr_schedule_request *request, int g, tr_schedule_request *out) {
    TR_TRY(tr_generate_complete(request, out));
    int chunks = generators[g].chunks;
    if (!out->chunks) out->chunks = chunks ? chunks : 1;
    TR_TRY(tr_schedule_check_size((int64_t)out->ranks * out->chunks, out->micro_batches));
    if (chunks && out->chunks != chunks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "schedule %s has %s, but %d stages on %d ranks were requested: set "
                       "parallel.virtual (or -v) to %d",
                       request->name, chunks == 1 ? "one stage a rank" : "two stages a rank",
                       out->chunks * out->ranks, out->ranks, chunks);
    return TR_OK;
}

tr_status tr_generate_order(const tr_schedule_request *request, tr_schedule **out) {
    int g = 0;
    tr_status status = TR_OK;
    tr_schedule *s = NULL;
    tr_schedule_request full;
    int *rank_of = NULL;
    TR_TRY(find(request->name, &g));
    TR_TRY(complete(request, g, &full));
    const int stages = full.ranks * full.chunks;
    if (generators[g].placement == V) {
        TR_TRY(tr_calloc((size_t)stages, sizeof *rank_of, &rank_of));
        for (int k = 0; k < stages; k++) rank_of[k] = k < full.ranks ? k : stages - 1 - k;
    }
    TR_TRY_OUT(tr_schedule_create(full.name, full.ranks, stages, full.micro_batches, rank_of, &s));
    TR_TRY_OUT(generators[g].generate(s, &full));
    TR_TRY_OUT(tr_generate_repair(s, full.table));
    *out = s;
    s = NULL;
out:
    tr_schedule_destroy(s);
    free(rank_of);
    return status;
}

tr_status tr_schedule_forward_of(const tr_schedule *like, const tr_stage_table *table,
                                 int micro_batches, tr_schedule **out) {
    tr_schedule *s = NULL;
    tr_schedule_request request = {.table = table};
    TR_TRY(
        tr_schedule_create("forward", like->ranks, like->stages, micro_batches, like->rank_of, &s));
    tr_status status = tr_generate_forward(s, &request);
    if (status != TR_OK) tr_schedule_destroy(s);
    else *out = s;
    return status;
}

tr_status tr_generate_add(tr_schedule *s, int stage, tr_action_type type, int micro_batch) {
    tr_action action = {.stage = stage, .type = type, .micro_batch = micro_batch};
    return tr_schedule_add(s, s->rank_of[stage], action);
}

/* --- repair ----------------------------------------------------------------------------------- */

typedef struct repairer {
    tr_schedule *s;
    tr_graph graph;
    tr_walk walk;
    int *ran[3]; /* F, I, W: [stages], executed; each in ascending order */
} repairer;

static bool is_ready(const repairer *p, tr_action a) {
    tr_action need;
    tr_action_type type = a.type == TR_ACTION_B ? TR_ACTION_I : a.type;
    if (p->ran[type][a.stage] != a.micro_batch) return false;
    for (int n = 0; tr_action_need(&p->graph, a, n, &need); n++)
        if (p->ran[need.type][need.stage] <= need.micro_batch) return false;
    return true;
}

static tr_status step(void *context, int rank, int at, int *done) {
    repairer *p = context;
    const tr_action *a = &p->s->action[rank][at];
    int actions = a->overlap ? 2 : 1;
    if (!is_ready(p, a[0]) || (actions == 2 && !is_ready(p, a[1]))) return TR_OK;
    for (int k = 0; k < actions; k++) {
        bool both = a[k].type == TR_ACTION_B;
        p->ran[both ? TR_ACTION_I : a[k].type][a[k].stage]++;
        if (both) p->ran[TR_ACTION_W][a[k].stage]++;
    }
    *done = actions;
    return TR_OK;
}

/* Moves the first ready action of a kind to the front of its rank's remaining actions, and splits
 * pairs that it leaves or interrupts. Returns false when no rank has one. */
static bool move_one(repairer *p, bool forward) {
    for (int r = p->s->ranks - 1; r >= 0; r--) {
        tr_action *action = p->s->action[r];
        int next = p->walk.next[r];
        for (int k = next; k < p->s->count[r]; k++) {
            tr_action a = action[k];
            if ((a.type == TR_ACTION_F) != forward || !is_ready(p, a)) continue;
            a.overlap = false;
            if (k > next) action[k - 1].overlap = false;
            memmove(&action[next + 1], &action[next], (size_t)(k - next) * sizeof *action);
            action[next] = a;
            return true;
        }
    }
    return false;
}

tr_status tr_generate_repair(tr_schedule *s, const tr_stage_table *table) {
    tr_status status = TR_OK;
    repairer p = {.s = s, .walk = {.name = s->name, .context = &p, .step = step}};
    TR_TRY_OUT(tr_graph_open(table, s->stages, &p.graph));
    TR_TRY_OUT(tr_walk_open(&p.walk, s->ranks, s->count));
    for (int type = 0; type < 3; type++)
        TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof(int), &p.ran[type]));
    for (bool ended = false; !ended;) {
        TR_TRY_OUT(tr_walk_advance(&p.walk, &ended));
        if (ended || move_one(&p, false) || move_one(&p, true)) continue;
        status = TR_FAIL(TR_ERR_INTERNAL, "the order of schedule %s is missing actions", s->name);
        goto out;
    }
out:
    for (int type = 0; type < 3; type++) free(p.ran[type]);
    tr_walk_close(&p.walk);
    tr_graph_close(&p.graph);
    return status;
}
