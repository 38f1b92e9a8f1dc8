#include "cli/plan_search.h"

#include "cli/plan_host.h"
#include "cli/plan_traffic.h"

#include "base/cores.h"
#include "base/memory.h"
#include "base/text.h"
#include "partition/rate.h"
#include "partition/search.h"
#include "train/time_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double MIB = 1 << 20;

unsigned cli_plan_kept(const char *const *overrides, int count) {
    unsigned kept = 0;
    for (int k = 0; k < count; k++) {
        const char *name = overrides[k] + strspn(overrides[k], "-");
        for (int key = 0; key < TR_SEARCH_KEYS; key++) {
            const char *own = tr_search_key_name((tr_search_key)key);
            const size_t length = strlen(own);
            if (strncmp(name, own, length) == 0 && name[length] == '=') kept |= 1U << key;
        }
    }
    return kept;
}

double cli_shared_rate(double alone, const tr_device *device, int ranks) {
    double wanted = (double)ranks * device->threads, cores = tr_cores_count();
    return tr_device_on_host(device) && wanted > cores ? alone * cores / wanted : alone;
}

/* How fast a rank is. */
typedef struct rank_speed {
    tr_device *device;
    int ranks;
    double given; /* 0: it is measured with each micro-batch */
} rank_speed;

static tr_status rate_of(void *context, const tr_config *c, double *rate) {
    const rank_speed *s = context;
    bool busy;
    *rate = s->given;
    if (s->given > 0) return TR_OK;
    TR_TRY(tr_rate_measure(c, s->device, tr_time_step, rate, &busy));
    *rate = cli_shared_rate(*rate, s->device, s->ranks);
    return TR_OK;
}

static bool is_offloaded(const tr_layout_choice *x) {
    return x->offload.optimizer || x->offload.stages > 0;
}

/* Writes the number of ranks, or with several runs its two factors. Returns text. */
static const char *ranks_text(int64_t ranks, int64_t runs, char *text, size_t size) {
    const long long n = (long long)ranks, outer = (long long)runs;
    if (outer > 1) (void)snprintf(text, size, "%lldx%lld", outer, n / outer);
    else (void)snprintf(text, size, "%lld", n);
    return text;
}

/* Writes the chosen keys; device.offload if the choice or the config has one. */
static void write_keys(const tr_config *c, const tr_layout_choice *x, unsigned kept, char *text,
                       size_t size) {
    const struct {
        tr_search_key key;
        int64_t value;
    } number[] = {{TR_SEARCH_PP, x->pp},
                  {TR_SEARCH_TP, x->tp},
                  {TR_SEARCH_DP, x->dp},
                  {TR_SEARCH_ZERO, x->zero},
                  {TR_SEARCH_VIRTUAL, x->virtual_stages},
                  {TR_SEARCH_MICRO_BATCH, x->micro_batch}};
    char value[48], offload[TR_CONFIG_OFFLOAD];
    text[0] = '\0';
    for (size_t k = 0; k < sizeof number / sizeof *number; k++)
        if (!(kept & 1U << number[k].key))
            tr_text_add(text, size, " %s=%s", tr_search_key_name(number[k].key),
                        ranks_text(number[k].value, number[k].key == TR_SEARCH_DP ? x->copies : 1,
                                   value, sizeof value));
    if (!(kept & 1U << TR_SEARCH_SEQUENCE))
        tr_text_add(text, size, " %s=%s", tr_search_key_name(TR_SEARCH_SEQUENCE),
                    x->sequence ? "true" : "false");
    if (!(kept & 1U << TR_SEARCH_SCHEDULE))
        tr_text_add(text, size, " %s=%s", tr_search_key_name(TR_SEARCH_SCHEDULE), x->schedule);
    if (!(kept & 1U << TR_SEARCH_RECOMPUTE))
        tr_text_add(text, size, " %s=%s", tr_search_key_name(TR_SEARCH_RECOMPUTE),
                    tr_recompute_name(x->recompute));
    if (!(kept & 1U << TR_SEARCH_OFFLOAD) && (is_offloaded(x) || strcmp(c->device.offload, "none")))
        tr_text_add(text, size, " %s=%s", tr_search_key_name(TR_SEARCH_OFFLOAD),
                    tr_config_offload_text(&x->offload, offload, sizeof offload));
}

/* offload: with what is kept in a host's memory. */
static void print_row(const tr_config *c, unsigned kept, bool offload, const tr_found *f) {
    char step[32], dp[48], key[TR_CONFIG_OFFLOAD], host[TR_CONFIG_OFFLOAD + 8] = "";
    const tr_layout_choice *x = &f->choice;
    const bool listed = (kept & 1U << TR_SEARCH_RECOMPUTE) != 0;
    if (offload)
        (void)snprintf(host, sizeof host, "  %s",
                       tr_config_offload_text(&x->offload, key, sizeof key));
    (void)printf(
        "%4lld %4lld %4s %4lld  %-8s %-14s %7lld %11lld  %-9s %10.1f %6.2f%%  %-8s %*.0f%s\n",
        (long long)x->pp, (long long)x->tp, ranks_text(x->dp, x->copies, dp, sizeof dp),
        (long long)x->zero, x->sequence ? "true" : "false", x->schedule,
        (long long)x->virtual_stages, (long long)x->micro_batch,
        listed ? "as set" : tr_recompute_name(x->recompute), (double)f->bytes / MIB,
        100 * f->bubble, cli_duration(f->seconds, step, sizeof step), offload ? -8 : 0,
        (double)(c->train.batch * c->model.context) / f->seconds, host);
}

/* Fails with TR_ERR_FIT, because what fits the ranks' memory does not fit a host's. */
static tr_status refuse_host(const tr_config *c, const tr_search *s, unsigned kept) {
    const bool chosen = is_offloaded(&s->host_choice);
    char keeper[192];
    tr_config *with;
    TR_TRY(tr_calloc(1, sizeof *with, &with));
    *with = *c;
    tr_layout_choice_apply(&s->host_choice, kept, with);
    const char *keeps = cli_plan_keeper(with, keeper, sizeof keeper);
    free(with);
    return TR_FAIL(TR_ERR_FIT,
                   "none of them fits: %s at least %.1f MiB in the memory of a host, and its ranks "
                   "may take %.1f MiB there (%s); %s, or put fewer ranks on a host "
                   "(device.host_ranks)",
                   keeps, (double)s->host_bytes / MIB, (double)s->host_limit / MIB,
                   c->device.host_memory ? "device.host_memory" : "free memory",
                   c->checkpoint.background ? "set checkpoint.background to false"
                   : chosen                 ? "use more ranks"
                                            : "offload less");
}

/* Fails with TR_ERR_FIT, because no layout fits. */
static tr_status refuse(const tr_config *c, const tr_search *s, unsigned kept) {
    const bool more = (kept & 1U << TR_SEARCH_OFFLOAD) != 0 && !tr_config_on_host(c);
    char keys[512];
    if (s->host_bytes > 0) return refuse_host(c, s, kept);
    write_keys(c, &s->least_choice, kept, keys, sizeof keys);
    return TR_FAIL(TR_ERR_FIT,
                   "none of them fits the %.1f MiB that a rank may use (%s): the one that needs "
                   "least takes %.1f MiB a rank (%s); use more ranks%s",
                   (double)s->limit / MIB, c->device.memory ? "device.memory" : "free memory",
                   s->least / MIB, keys[0] ? keys + 1 : "all keys are given",
                   more ? ", or another device.offload"
                   : c->checkpoint.background && tr_config_on_host(c)
                       ? ", or set checkpoint.background to false"
                       : "");
}

tr_status cli_plan_search(const tr_config *c, tr_device *device, int ranks, unsigned kept,
                          bool here, double rate) {
    char keys[512];
    tr_search found;
    if (rate == 0 && !here)
        return TR_FAIL(TR_ERR_DEVICE,
                       "the search needs a rank's speed, and this machine has no device %s: give "
                       "it with --rate GFLOP/s",
                       c->device.name);
    rank_speed speed = {.device = device, .ranks = ranks, .given = rate};
    const tr_search_request request = {.config = c,
                                       .device = device,
                                       .ranks = ranks,
                                       .kept = kept,
                                       .rate = rate_of,
                                       .context = &speed};
    TR_TRY(tr_search_make(&request, &found));
    (void)printf("search   %lld layout%s of %d rank%s, %lld plan%s\n", (long long)found.layouts,
                 found.layouts == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s",
                 (long long)found.plans, found.plans == 1 ? "" : "s");
    if (found.count == 0) return refuse(c, &found, kept);
    (void)printf("limit    %.1f MiB a rank (%s)\n\n", (double)found.limit / MIB,
                 c->device.memory ? "device.memory" : "free memory here, divided among the ranks");
    bool offload = false;
    for (int k = 0; k < found.count; k++) offload |= is_offloaded(&found.found[k].choice);
    (void)printf("%4s %4s %4s %4s  %-8s %-14s %7s %11s  %-9s %10s %7s  %-8s %s\n", "pp", "tp", "dp",
                 "zero", "sequence", "schedule", "virtual", "micro_batch", "recompute", "MiB",
                 "bubble", "step", offload ? "tok/s     offload" : "tok/s");
    for (int k = 0; k < found.count; k++) print_row(c, kept, offload, &found.found[k]);
    write_keys(c, &found.found[0].choice, kept, keys, sizeof keys);
    if (tr_config_cut(c)) tr_text_add(keys, sizeof keys, " parallel.cut=%s", TR_LAYER_CUT_AUTO);
    (void)printf("\n");
    cli_plan_links(c, ranks);
    (void)printf("best    %s\n", keys);
    return TR_OK;
}
