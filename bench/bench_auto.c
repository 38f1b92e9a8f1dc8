/* Compares the schedule `auto` with the best published ones at equal memory (a rank holds p
 * micro-batches, m_W = 0.94 m_B, at most four stages a rank), and times its search and
 * simulation. */
#include "base/clock.h"
#include "pipeline/orders/auto.h"
#include "pipeline/orders/estimate.h"

#include <stdio.h>

typedef struct profile {
    const char *name;
    tr_stage_cost share;
    double latency, peer[3]; /* best public schedule, percent over m (F + I + W) */
    const char *who;
} profile;

/* Costs of the Zero Bubble paper's Table 6 (milliseconds) and three round ones. The published
 * schedules' numbers come from replaying their own orders with these costs: PyTorch's
 * InterleavedZeroBubble with four stages a rank, and its ZBVZeroBubble where transfers are slow. */
static const profile profiles[] = {
    {"unit", {.f = 1, .i = 1, .w = 1}, 0, {3.125, 3.646, 1.823}, "InterleavedZB v=4"},
    {"1.5B", {.f = 18.513, .i = 18.086, .w = 9.331}, .626, {9.7, 10.9, 5.5}, "InterleavedZB v=4"},
    {"6.2B", {.f = 29.802, .i = 29.428, .w = 19.530}, .577, {6.9, 7.9, 3.9}, "InterleavedZB v=4"},
    {"28.3B", {.f = 10.408, .i = 10.204, .w = 7.703}, .408, {8.6, 9.7, 4.8}, "InterleavedZB v=4"},
    {"attention", {.f = 1, .i = 1.4, .w = .6}, .02, {7.6, 8.7, 4.4}, "InterleavedZB v=4"},
    {"slow p2p", {.f = 1, .i = 1, .w = 1}, .2, {17.1, 21.0, 10.5}, "ZBV"},
};
enum { PROFILES = sizeof profiles / sizeof profiles[0] };
static const int sizes[][2] = {{4, 8}, {8, 16}, {8, 32}};

static tr_status measure(const profile *c, int p, int m, double peer) {
    tr_schedule_request request = {.name = "auto",
                                   .ranks = p,
                                   .micro_batches = m,
                                   .share = c->share,
                                   .latency = c->latency,
                                   .cap = p};
    request.share.m_b = 1;
    request.share.m_w = 0.94;
    tr_auto_report report;
    tr_schedule *schedule = NULL;
    tr_estimate *estimate = NULL;
    tr_status status = TR_OK;
    double begin = tr_clock_s(CLOCK_PROCESS_CPUTIME_ID);
    TR_TRY_OUT(tr_schedule_auto(&request, &report, &schedule));
    tr_estimate_options options = {.share = request.share, .latency = request.latency};
    TR_TRY_OUT(tr_estimate_order(schedule, &options, &estimate));
    double seconds = tr_clock_s(CLOCK_PROCESS_CPUTIME_ID) - begin, peak = 0;
    for (int r = 0; r < p; r++) peak = estimate->peak[r] > peak ? estimate->peak[r] : peak;
    double ideal = m * (c->share.f + c->share.i + c->share.w);
    printf("%-10s %4d %4d  %7.3f", c->name, p, m, 100 * (estimate->makespan / ideal - 1));
    if (peer > 0) printf(" %7.1f", peer);
    else printf("       -");
    printf("  %7.3f %7.3f  %6.2f  v=%d %-14s %6.3f s\n", 100 * (report.shape_bound / ideal - 1),
           100 * (report.bound / ideal - 1), peak, report.chunks, report.from, seconds);
out:
    tr_estimate_destroy(estimate);
    tr_schedule_destroy(schedule);
    return status;
}

int main(void) {
    tr_status status = TR_OK;
    printf("percent over m (F + I + W)\n");
    printf("%-10s %4s %4s  %7s %7s  %7s %7s  %6s\n", "costs", "p", "m", "auto", "peer", "reach",
           "bound", "peak");
    for (int k = 0; k < PROFILES && status == TR_OK; k++)
        for (int n = 0; n < 3 && status == TR_OK; n++)
            status = measure(&profiles[k], sizes[n][0], sizes[n][1], profiles[k].peer[n]);
    for (int k = 0; k < PROFILES && status == TR_OK; k++)
        status = measure(&profiles[k], 32, 256, 0);
    if (status != TR_OK) fprintf(stderr, "bench_auto: %s\n", tr_error_message());
    return (int)status;
}
