#include "support/all_layouts.h"

#include <string.h>

typedef struct visitor {
    const tr_config *config;
    void (*visit)(void *context, const tr_layout_choice *choice);
    void *context;
} visitor;

/* With each micro-batch and recomputation, with and without parallel.sequence. */
static void each_share(const visitor *v, tr_layout_choice x) {
    for (int64_t b = 1; b <= 8 && b <= v->config->train.batch / x.dp; b *= 2)
        for (int r = 0; r < (x.tp > 1 ? 2 : 1) * TR_RECOMPUTE_MODES; r++) {
            x.micro_batch = b;
            x.recompute = (tr_recompute)(r % TR_RECOMPUTE_MODES);
            x.sequence = r >= TR_RECOMPUTE_MODES;
            v->visit(v->context, &x);
        }
}

/* Returns true when data ranks in this many runs divide something inside hosts, and larger runs do
 * not fit a host. */
static bool follows_hosts(const visitor *v, const tr_layout_choice *x, int ranks, int64_t runs) {
    const int64_t host = v->config->device.host_ranks;
    bool larger = false;
    if (runs == 1) return true;
    if (host == 0 || host >= ranks || x->zero == 0 || x->dp % runs || x->dp == runs) return false;
    for (int64_t fewer = 1; fewer < runs; fewer++)
        larger |= x->dp % fewer == 0 && host % (x->dp / fewer * x->tp) == 0;
    return !larger && host % (x->dp / runs * x->tp) == 0;
}

/* With data ranks in one run and in several. */
static void each_run(const visitor *v, tr_layout_choice x) {
    const int ranks = (int)(x.pp * x.tp * x.dp);
    for (x.copies = 1; x.copies <= x.dp; x.copies++)
        if (follows_hosts(v, &x, ranks, x.copies)) each_share(v, x);
}

/* With each order. */
static void each_order(const visitor *v, tr_layout_choice x) {
    static const struct {
        const char *name;
        bool pipeline, chunks;
    } orders[] = {{"1f1b", false, false},         {"interleaved", true, true},
                  {"interleaved-zb", true, true}, {"zb-h1", true, false},
                  {"zbv", true, false},           {"bfs", false, true}};
    const int64_t blocks = v->config->model.layers / x.pp;
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        const bool bfs = strcmp(orders[o].name, "bfs") == 0;
        if ((orders[o].pipeline && x.pp == 1) || (bfs && (x.dp == 1 || blocks < 3))) continue;
        for (int64_t n = orders[o].chunks ? 2 : 0; n <= (orders[o].chunks ? blocks : 0); n++) {
            if (bfs ? n != blocks : (n & (n - 1)) != 0 || n > 8) continue;
            x.schedule = orders[o].name;
            x.virtual_stages = n;
            for (x.zero = bfs ? 2 : 0; x.zero <= (bfs ? 3 : x.dp > 1); x.zero++) each_run(v, x);
        }
    }
}

void tr_test_each_layout(const tr_config *config, int ranks,
                         void (*visit)(void *context, const tr_layout_choice *choice),
                         void *context) {
    const visitor v = {.config = config, .visit = visit, .context = context};
    for (int64_t pp = 1; pp <= ranks; pp++)
        for (int64_t tp = 1; pp * tp <= ranks; tp++)
            if (ranks % (pp * tp) == 0)
                each_order(&v, (tr_layout_choice){.pp = pp, .tp = tp, .dp = ranks / (pp * tp)});
}
