/* trireme simulate --schedule FILE|NAME ...: times, bubbles and memory of a schedule. */
#include "cli/cli.h"
#include "cli/schedule_args.h"
#include "pipeline/orders/auto.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct simulate_args {
    cli_schedule_args schedule;
    const char *name;
    bool json;
} simulate_args;

static tr_status parse(int argc, char **argv, simulate_args *a) {
    *a = (simulate_args){0};
    cli_schedule_args_init("simulate", &a->schedule);
    for (int i = 1; i < argc; i++) {
        bool taken;
        TR_TRY(cli_schedule_args_take(&a->schedule, argc, argv, &i, &taken));
        if (taken) continue;
        if (!strcmp(argv[i], "--json")) a->json = true;
        else if (!strcmp(argv[i], "--schedule")) {
            if (i + 1 == argc) return cli_usage("simulate", "a value is missing after --schedule");
            a->name = argv[++i];
        } else if (argv[i][0] == '-') return cli_unknown_option("simulate", argv[i]);
        else if (a->name) return cli_usage("simulate", "more than one schedule: %s", argv[i]);
        else return cli_usage("simulate", "name the schedule with --schedule %s", argv[i]);
    }
    if (!a->name) return cli_usage("simulate", "--schedule FILE|NAME is missing");
    return TR_OK;
}

/* Returns 0 for a rest from rounding: a difference much smaller than the numbers' size `scale`. */
static double tidy(double value, double scale) {
    return fabs(value) < 1e-12 * scale ? 0 : value;
}

/* Prints twelve digits, so that a sum of three thirds prints as 1. */
static void print_list(const char *key, const tr_estimate *e, bool span) {
    (void)printf("\"%s\": [", key);
    for (int r = 0; r < e->ranks; r++)
        (void)printf("%s%.12g", r ? ", " : "", span ? e->time[r].span : e->peak[r]);
    (void)printf("]");
}

static void print_json(const tr_estimate *e, double ideal) {
    (void)printf("{\"makespan\": %.12g, ", e->makespan);
    print_list("span", e, true);
    (void)printf(", \"bubble_makespan\": %.12g, \"bubble_span\": %.12g, ",
                 tr_bubble_rate(e->makespan, ideal), tr_bubble_rate(e->longest_span, ideal));
    print_list("peak", e, false);
    (void)printf("}\n");
}

static void print_bound(const tr_schedule *s, const tr_estimate *e, const tr_schedule_request *r) {
    double v = (double)s->stages / s->ranks;
    double bound = tr_auto_bound(s->ranks, s->micro_batches, v, &r->share, r->latency);
    (void)printf("bound     %.6g with %g stages a rank: the makespan is %.2f%% above it\n", bound,
                 v, 100 * tidy(e->makespan / bound - 1, 1));
}

/* bounded: a named schedule, which has a lower bound; a file may place stages anywhere. */
static void print_table(const tr_schedule *s, const tr_estimate *e, double ideal,
                        const tr_schedule_request *r, bool bounded) {
    double scale = e->makespan, most = 0;
    (void)printf("schedule  %s: %d ranks, %d stages, %d micro-batches\n", s->name, s->ranks,
                 s->stages, s->micro_batches);
    (void)printf("makespan  %.6g, without bubbles %.6g: bubble %.2f%%\n", e->makespan, ideal,
                 100 * tr_bubble_rate(e->makespan, ideal));
    if (bounded && !s->forward_only) print_bound(s, e, r);
    (void)printf("span      %.6g at most: bubble %.2f%%\n\n", e->longest_span,
                 100 * tr_bubble_rate(e->longest_span, ideal));
    (void)printf("rank %10s %10s %10s %10s %10s %10s %10s\n", "busy", "fill", "drain", "waiting",
                 "imbalance", "span", "peak");
    for (int k = 0; k < e->ranks; k++) {
        const tr_rank_time *t = &e->time[k];
        (void)printf("%4d %10.6g %10.6g %10.6g %10.6g %10.6g %10.6g %10.6g\n", k, t->busy,
                     tidy(t->fill, scale), tidy(t->drain, scale), tidy(t->waiting, scale),
                     tidy(t->imbalance, scale), t->span, e->peak[k]);
        most = fmax(most, e->peak[k]);
    }
    if (r->cap > 0 && most > r->cap * (1 + 1e-12))
        (void)printf("\nover the cap: %.6g of at most %.6g\n", most, r->cap);
}

tr_status cli_simulate(cli_context *cli, int argc, char **argv) {
    (void)cli;
    simulate_args a;
    tr_schedule *s = NULL;
    tr_estimate *e = NULL;
    tr_status status = TR_OK;
    TR_TRY(parse(argc, argv, &a));
    TR_TRY_OUT(cli_schedule_open(&a.schedule, a.name, &s));
    TR_TRY_OUT(cli_schedule_estimate(&a.schedule, s, false, &e));
    const tr_schedule_request *r = &a.schedule.request;
    const tr_stage_cost *c = &r->share;
    double ideal = s->micro_batches * (s->forward_only ? c->f : c->f + c->i + c->w);
    if (a.json) print_json(e, ideal);
    else print_table(s, e, ideal, r, !cli_schedule_is_file(a.name));
out:
    tr_estimate_destroy(e);
    tr_schedule_destroy(s);
    return status;
}
