#include "partition/advice.h"

#include "base/memory.h"
#include "base/text.h"
#include "partition/offload_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tries a change with its fastest cut. */
static tr_status try_change(const tr_config *c, tr_device *device, bool *fits) {
    int stages;
    return tr_run_plan_try(c, device, fits, &stages);
}

/* Drops a cut that is given, because a change has another number of stages. */
static void choose_cut(tr_config *c) {
    (void)strcpy(c->parallel.cut, TR_LAYER_CUT_AUTO);
}

/* Tries a change with all cuts, of which training takes one that fits. */
static tr_status try_cuts(const tr_config *c, tr_device *device, bool *fits) {
    tr_run_plan *plan;
    *fits = false;
    const tr_status status = tr_run_plan_make(c, device, &plan);
    if (status != TR_OK) return status == TR_ERR_CONFIG || status == TR_ERR_FIT ? TR_OK : status;
    *fits = tr_run_plan_fits(plan);
    tr_run_plan_destroy(plan);
    return TR_OK;
}

/* Lets the cut be chosen, for the memory if need be. */
static tr_status find_cut(tr_config *c, tr_device *device, bool *fits) {
    *fits = false;
    if (!tr_config_cut(c)) return TR_OK;
    choose_cut(c);
    return try_cuts(c, device, fits);
}

/* Each of these finds the first value of one key that fits, starting at the config's, and sets it
 * in *c. */
static tr_status find_micro_batch(tr_config *c, tr_device *device, bool *fits) {
    int64_t share = c->train.batch / c->parallel.dp, from = c->train.micro_batch;
    *fits = false;
    for (int64_t b = from - 1; b >= 1 && !*fits; b--) {
        if (share % b) continue;
        c->train.micro_batch = b;
        TR_TRY(try_change(c, device, fits));
    }
    if (!*fits) c->train.micro_batch = from;
    return TR_OK;
}

typedef tr_status (*try_fn)(const tr_config *c, tr_device *device, bool *fits);

/* The modes, the cheapest first; one that is cheaper than the config's does not fit. */
static tr_status find_mode(tr_config *c, tr_device *device, try_fn try, bool *fits) {
    char from[TR_RECOMPUTE_TEXT];
    (void)snprintf(from, sizeof from, "%s", c->model.recompute);
    *fits = false;
    for (tr_recompute mode = TR_RECOMPUTE_SELECTIVE; mode <= TR_RECOMPUTE_FULL && !*fits; mode++) {
        if (strcmp(from, tr_recompute_name(mode)) == 0) continue;
        (void)snprintf(c->model.recompute, sizeof c->model.recompute, "%s",
                       tr_recompute_name(mode));
        TR_TRY(try(c, device, fits));
    }
    if (!*fits) (void)snprintf(c->model.recompute, sizeof c->model.recompute, "%s", from);
    return TR_OK;
}

static tr_status find_recompute(tr_config *c, tr_device *device, bool *fits) {
    return find_mode(c, device, try_change, fits);
}

/* The modes with the fastest cuts, and then with others. */
static tr_status find_recompute_and_cut(tr_config *c, tr_device *device, bool *fits) {
    TR_TRY(find_recompute(c, device, fits));
    return *fits || tr_config_cut(c) ? TR_OK : find_mode(c, device, try_cuts, fits);
}

/* Divides the optimizer's state, where there are ranks to divide it; then gradients, and then
 * parameters, too, in an order that has few of them at one time, with as many stages a rank as it
 * has blocks. */
static tr_status find_zero(tr_config *c, tr_device *device, bool *fits) {
    const int64_t from = c->parallel.zero, virtual = c->parallel.virtual_stages;
    const int64_t stages = c->model.layers / c->parallel.pp;
    char schedule[TR_CONFIG_PATH];
    (void)snprintf(schedule, sizeof schedule, "%s", c->parallel.schedule);
    *fits = false;
    if (tr_config_near(c) < 2) return TR_OK;
    if (from == 0) {
        c->parallel.zero = 1;
        TR_TRY(try_change(c, device, fits));
    }
    for (int64_t zero = from < 3 ? 2 : 3; zero <= 3 && !*fits && stages > 2; zero++) {
        c->parallel.zero = zero;
        c->parallel.virtual_stages = stages;
        choose_cut(c);
        (void)snprintf(c->parallel.schedule, sizeof c->parallel.schedule, "bfs");
        TR_TRY(try_change(c, device, fits));
    }
    if (*fits) return TR_OK;
    c->parallel.zero = from;
    c->parallel.virtual_stages = virtual;
    (void)snprintf(c->parallel.schedule, sizeof c->parallel.schedule, "%s", schedule);
    return TR_OK;
}

/* Keeps the optimizer's state in the host's memory, if the device has another one, or activations
 * of as few neighbouring stages as suffice, or both, besides what is there already; or the state,
 * with the cheapest recompute that it needs then. */
static tr_status find_offload(tr_config *c, tr_device *device, bool *fits) {
    const tr_config_offloads *choice = tr_offload_choices;
    char from[sizeof c->device.offload];
    int stages = 0;
    *fits = false;
    memcpy(from, c->device.offload, sizeof from);
    for (int k = 0; k < TR_OFFLOAD_CHOICES; k++) {
        memcpy(c->device.offload, from, sizeof from);
        if (!tr_offload_adds(c, &choice[k])) continue;
        (void)tr_config_offload_text(&choice[k], c->device.offload, sizeof c->device.offload);
        TR_TRY(tr_run_plan_try(c, device, fits, &stages));
        if (*fits) return choice[k].stages > 0 ? tr_offload_narrow(c, device, stages) : TR_OK;
    }
    memcpy(c->device.offload, from, sizeof from);
    if (!tr_offload_adds(c, &choice[0])) return TR_OK;
    (void)tr_config_offload_text(&choice[0], c->device.offload, sizeof c->device.offload);
    TR_TRY(find_recompute(c, device, fits));
    if (!*fits) memcpy(c->device.offload, from, sizeof from);
    return TR_OK;
}

/* The same, unless the recompute that it needs suffices alone. */
static tr_status find_offload_that_helps(tr_config *c, tr_device *device, bool *fits) {
    char from[TR_RECOMPUTE_TEXT], asked[sizeof c->device.offload], found[sizeof asked];
    bool alone;
    memcpy(from, c->model.recompute, sizeof from);
    memcpy(asked, c->device.offload, sizeof asked);
    TR_TRY(find_offload(c, device, fits));
    if (!*fits || !strcmp(from, c->model.recompute)) return TR_OK;
    memcpy(found, c->device.offload, sizeof found);
    memcpy(c->device.offload, asked, sizeof asked);
    TR_TRY(try_cuts(c, device, &alone));
    memcpy(c->device.offload, found, sizeof found);
    *fits = !alone;
    return TR_OK;
}

/* The changes below take other numbers of ranks, and leave *c as tried when none fits. */
static tr_status find_pp(tr_config *c, tr_device *device, bool *fits) {
    int64_t pp;
    *fits = false;
    choose_cut(c);
    c->parallel.pp++;
    const tr_status status = tr_run_plan_fewest_ranks(c, device, &pp);
    *fits = status == TR_OK && pp <= c->model.layers;
    if (*fits) c->parallel.pp = pp;
    return status;
}

static tr_status find_tp(tr_config *c, tr_device *device, bool *fits) {
    *fits = false;
    for (int64_t tp = c->parallel.tp + 1; tp <= c->model.heads && !*fits; tp++) {
        if (c->model.heads % tp) continue;
        c->parallel.tp = tp;
        TR_TRY(try_change(c, device, fits));
    }
    return TR_OK;
}

/* Tensor ranks that advice goes up to next to more pipeline ranks: they should share a host. */
static const int64_t most_tensor_ranks = 8;
/* Ranks that more of both go up to where neither suffices alone. */
static const int64_t most_ranks = 4096;

/* Tries to divide the model among `factor` times as many ranks, a power of two: with the fewest
 * more tensor ranks for which it fits, and pipeline ranks. both: more of each. */
static tr_status try_factor(tr_config *c, tr_device *device, int64_t factor, bool both,
                            bool *fits) {
    const int64_t pp = c->parallel.pp, tp = c->parallel.tp, most = both ? factor / 2 : factor;
    *fits = false;
    choose_cut(c);
    for (int64_t more = both ? 2 : 1; more <= most && !*fits; more *= 2) {
        c->parallel.tp = tp * more;
        c->parallel.pp = pp * (factor / more);
        if ((more > 1 && c->parallel.tp > most_tensor_ranks) ||
            c->model.heads % c->parallel.tp != 0 || c->parallel.pp > c->model.layers)
            continue;
        TR_TRY(try_change(c, device, fits));
    }
    if (*fits) return TR_OK;
    c->parallel.pp = pp;
    c->parallel.tp = tp;
    return TR_OK;
}

/* Divides the model among some of the data ranks, so that the number of ranks stays. */
static tr_status find_trade(tr_config *c, tr_device *device, bool *fits) {
    const int64_t dp = c->parallel.dp;
    *fits = false;
    if (c->parallel.copies > 1) return TR_OK;
    for (int64_t factor = 2; dp % factor == 0 && !*fits; factor *= 2) {
        c->parallel.dp = dp / factor;
        TR_TRY(try_factor(c, device, factor, false, fits));
    }
    return TR_OK;
}

/* Each of these sets a key to the value that was asked for. */
static void undo_zero(tr_config *c, const tr_config *asked) {
    c->parallel.zero = asked->parallel.zero;
    c->parallel.virtual_stages = asked->parallel.virtual_stages;
    memcpy(c->parallel.schedule, asked->parallel.schedule, sizeof c->parallel.schedule);
    memcpy(c->parallel.cut, asked->parallel.cut, sizeof c->parallel.cut);
}

static void undo_recompute(tr_config *c, const tr_config *asked) {
    memcpy(c->model.recompute, asked->model.recompute, sizeof c->model.recompute);
}

static void undo_micro_batch(tr_config *c, const tr_config *asked) {
    c->train.micro_batch = asked->train.micro_batch;
}

static void undo_offload(tr_config *c, const tr_config *asked) {
    memcpy(c->device.offload, asked->device.offload, sizeof c->device.offload);
}

/* Sets keys that fit together: the optimizer's state divided, recompute, smaller micro-batches, and
 * at last gradients and parameters divided, or the host's memory; each micro-batch as large as it
 * fits with the other keys. */
static tr_status gather_keys(tr_config *c, tr_device *device, bool *fits) {
    const int64_t micro_batch = c->train.micro_batch;
    if (tr_config_near(c) > 1 && c->parallel.zero == 0) c->parallel.zero = 1;
    TR_TRY(find_recompute(c, device, fits));
    if (*fits) return TR_OK;
    TR_TRY(find_micro_batch(c, device, fits));
    if (*fits) return TR_OK;
    c->train.micro_batch = 1;
    TR_TRY(find_recompute(c, device, fits));
    if (!*fits) {
        (void)snprintf(c->model.recompute, sizeof c->model.recompute, "full");
        TR_TRY(find_zero(c, device, fits));
        if (!*fits) TR_TRY(find_offload(c, device, fits));
    }
    if (!*fits || micro_batch == 1) return TR_OK;
    bool larger;
    c->train.micro_batch = micro_batch;
    TR_TRY(find_micro_batch(c, device, &larger));
    if (!larger) c->train.micro_batch = 1;
    return TR_OK;
}

typedef void (*undo_fn)(tr_config *c, const tr_config *asked);

/* Resets each of these keys that a change which fits does not need. */
static tr_status give_back(tr_config *c, const tr_config *asked, tr_device *device) {
    static const undo_fn undo[] = {undo_offload, undo_recompute, undo_zero, undo_micro_batch};
    tr_config *before;
    TR_TRY(tr_calloc(1, sizeof *before, &before));
    tr_status status = TR_OK;
    for (size_t k = 0; status == TR_OK && k < sizeof undo / sizeof *undo; k++) {
        bool fits;
        *before = *c;
        undo[k](c, asked);
        status = try_change(c, device, &fits);
        if (!fits) *c = *before;
    }
    free(before);
    return status;
}

/* Finds keys that fit together on the same ranks. */
static tr_status find_together(tr_config *c, tr_device *device, bool *fits) {
    tr_config *asked;
    TR_TRY(tr_calloc(1, sizeof *asked, &asked));
    *asked = *c;
    tr_status status = gather_keys(c, device, fits);
    if (status == TR_OK && *fits) status = give_back(c, asked, device);
    free(asked);
    return status;
}

/* Finds the fewest stages, at the smallest tensor degree for which there are any, with the keys
 * that save most on the same ranks. */
static tr_status find_smallest(tr_config *c, tr_device *device, bool *fits) {
    const int64_t pp = c->parallel.pp, tp = c->parallel.tp;
    tr_config *asked;
    *fits = false;
    TR_TRY(tr_calloc(1, sizeof *asked, &asked));
    *asked = *c;
    if (tr_config_near(c) > 1 && c->parallel.zero == 0) c->parallel.zero = 1;
    c->train.micro_batch = 1;
    (void)snprintf(c->model.recompute, sizeof c->model.recompute, "full");
    tr_status status = TR_OK;
    for (int64_t more = tp; more <= c->model.heads && !*fits && status == TR_OK; more++) {
        if (c->model.heads % more) continue;
        c->parallel.tp = more;
        c->parallel.pp = pp - (more > tp); /* the search begins above it */
        status = find_pp(c, device, fits);
    }
    if (status == TR_OK && *fits) status = give_back(c, asked, device);
    free(asked);
    return status;
}

typedef struct advice {
    char *text;
    size_t size;
    int changes;
    int64_t ranks; /* the fewest of a change that needs more; INT64_MAX: there is none */
} advice;

/* Adds the keys in which `to` differs from `from`, each after a blank, and the number of ranks if
 * it differs. */
static void add_change(advice *a, const tr_config *from, const tr_config *to) {
    const struct {
        const char *key;
        int64_t from, to;
    } change[] = {{"parallel.zero", from->parallel.zero, to->parallel.zero},
                  {"train.micro_batch", from->train.micro_batch, to->train.micro_batch},
                  {"parallel.dp", from->parallel.dp, to->parallel.dp},
                  {"parallel.pp", from->parallel.pp, to->parallel.pp},
                  {"parallel.tp", from->parallel.tp, to->parallel.tp},
                  {"parallel.virtual", from->parallel.virtual_stages, to->parallel.virtual_stages}};
    const struct {
        const char *key, *from, *to;
    } named[] = {{"parallel.schedule", from->parallel.schedule, to->parallel.schedule},
                 {"parallel.cut", from->parallel.cut, to->parallel.cut},
                 {"train.recompute", from->model.recompute, to->model.recompute},
                 {"device.offload", from->device.offload, to->device.offload}};
    char text[TR_CONFIG_PATH + 160] = "";
    const size_t size = sizeof text;
    for (size_t i = 0; i < sizeof change / sizeof *change; i++)
        if (change[i].from != change[i].to)
            tr_text_add(text, size, " %s=%lld", change[i].key, (long long)change[i].to);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strcmp(named[i].from, named[i].to) != 0)
            tr_text_add(text, size, " %s=%s", named[i].key, named[i].to);
    int64_t ranks = to->parallel.pp * to->parallel.tp * to->parallel.dp;
    if (ranks != from->parallel.pp * from->parallel.tp * from->parallel.dp) {
        tr_text_add(text, size, " on %lld ranks", (long long)ranks);
        if (ranks < a->ranks) a->ranks = ranks;
    }
    tr_text_add(a->text, a->size, "%s%s", a->changes ? ", or" : "it fits with", text);
    a->changes++;
}

typedef tr_status (*find_fn)(tr_config *c, tr_device *device, bool *fits);

static tr_status add_found(advice *a, const tr_config *asked, tr_device *device, find_fn find) {
    bool fits;
    tr_config *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    *c = *asked;
    tr_status status = find(c, device, &fits);
    if (status == TR_OK && fits) add_change(a, asked, c);
    free(c);
    return status;
}

/* Adds more stages together with more tensor ranks, if they take no more ranks than one of the two
 * alone. */
static tr_status add_both(advice *a, const tr_config *asked, tr_device *device) {
    const int64_t ranks = asked->parallel.pp * asked->parallel.tp * asked->parallel.dp;
    const int64_t most = a->ranks == INT64_MAX ? most_ranks : a->ranks;
    bool fits = false;
    tr_config *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    *c = *asked;
    tr_status status = TR_OK;
    for (int64_t factor = 4; factor <= most / ranks && !fits && status == TR_OK; factor *= 2)
        status = try_factor(c, device, factor, true, &fits);
    if (status == TR_OK && fits) add_change(a, asked, c);
    free(c);
    return status;
}

/* Adds several keys with more ranks, if they take fewer ranks than every other change. */
static tr_status add_smallest(advice *a, const tr_config *asked, tr_device *device) {
    bool fits;
    tr_config *c;
    TR_TRY(tr_calloc(1, sizeof *c, &c));
    *c = *asked;
    const tr_status status = find_smallest(c, device, &fits);
    if (status == TR_OK && fits && c->parallel.pp * c->parallel.tp * c->parallel.dp < a->ranks)
        add_change(a, asked, c);
    free(c);
    return status;
}

static tr_status add_changes(advice *a, const tr_config *asked, tr_device *device) {
    static const find_fn find[] = {
        find_cut,  find_zero, find_recompute_and_cut, find_micro_batch, find_offload_that_helps,
        find_trade};
    for (size_t i = 0; i < sizeof find / sizeof *find; i++)
        TR_TRY(add_found(a, asked, device, find[i]));
    if (!a->changes) TR_TRY(add_found(a, asked, device, find_together));
    const bool same_ranks = a->changes > 0;
    TR_TRY(add_found(a, asked, device, find_pp));
    TR_TRY(add_found(a, asked, device, find_tp));
    TR_TRY(add_both(a, asked, device));
    return same_ranks ? TR_OK : add_smallest(a, asked, device);
}

tr_status tr_advice_make(const tr_config *config, const tr_run_plan *plan, tr_device *device,
                         char *text, size_t size) {
    advice a = {.text = text, .size = size, .ranks = INT64_MAX};
    tr_config *asked;
    text[0] = '\0';
    TR_TRY(tr_calloc(1, sizeof *asked, &asked));
    *asked = *config;
    tr_run_plan_limit_host(plan, asked);
    tr_status status = add_changes(&a, asked, device);
    free(asked);
    if (status != TR_OK || a.changes) return status;
    char most[32] = "";
    if (tr_run_plan_most_ranks(config) < config->model.layers)
        (void)snprintf(most, sizeof most, " up to %lld", (long long)tr_run_plan_most_ranks(config));
    (void)snprintf(text, size,
                   "no train.recompute, no larger parallel.pp%s or parallel.tp and no smaller "
                   "train.micro_batch makes it fit: give each rank more memory, make the model "
                   "smaller, or let `trireme plan CONFIG --search RANKS` combine all keys on more "
                   "ranks",
                   most);
    return TR_OK;
}
