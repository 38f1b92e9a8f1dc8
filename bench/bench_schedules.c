/* Compares the program's orders with published numbers, by simulation:
 * bubble rates of the longest span with those of Zero Bubble Pipeline Parallelism (Qi et al. 2023),
 * Table 5, at the profiled times of Table 6; and makespans with those of the best public order at
 * equal memory, in 18 cases. Prints two tables in Markdown.
 *
 * Usage: bench_schedules [zb_table5_6.csv] */
#include "base/clock.h"
#include "pipeline/orders/estimate.h"
#include "pipeline/orders/make.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct outcome {
    double span_rate, overhead, peak; /* overhead: makespan over ideal, less 1 */
    double seconds;                   /* making and simulating */
} outcome;

/* Makes and simulates the schedule. Returns false when there is none of that name with that number
 * of chunks. */
static bool try_schedule(const tr_schedule_request *request, outcome *out) {
    tr_schedule *s = NULL;
    tr_estimate *e = NULL;
    tr_estimate_options options = {.share = request->share, .latency = request->latency};
    double start = tr_now_s();
    if (tr_schedule_make(request, &s) != TR_OK) return false;
    bool good = tr_estimate_order(s, &options, &e) == TR_OK;
    if (good) {
        const tr_stage_cost *c = &request->share;
        double ideal = request->micro_batches * (c->f + c->i + c->w);
        *out = (outcome){.span_rate = tr_bubble_rate(e->longest_span, ideal),
                         .overhead = e->makespan / ideal - 1,
                         .seconds = tr_now_s() - start};
        for (int r = 0; r < e->ranks; r++) out->peak = fmax(out->peak, e->peak[r]);
    }
    tr_estimate_destroy(e);
    tr_schedule_destroy(s);
    return good;
}

/* --- Table 5 ---------------------------------------------------------------------------------- */

enum { COLUMNS = 14 };

/* The columns of the file from 8 on: the paper's name of the schedule, and ours. The paper's time
 * of 1F1B-I leaves out p transfers of c. */
static const char *const table5[][2] = {{"1F1B", "1f1b"},   {"1F1B-I", "interleaved"},
                                        {"ZB-H1", "zb-h1"}, {"ZB-H2", "zb-h2"},
                                        {"ZB-1p", "zb-1p"}, {"ZB-2p", "zb-2p"}};
enum { PAPER = sizeof table5 / sizeof *table5 };

/* m_W / m_B of the paper at s = 1024, b = 1: m_B = 34 h + 5 a s, m_W = 32 h. */
static double weight_memory(const char *model) {
    static const struct {
        const char *name;
        double h, a;
    } models[] = {{"1.5B", 2304, 24}, {"6.2B", 4096, 32}, {"14.6B", 5120, 40}, {"28.3B", 6144, 48}};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        if (!strcmp(models[k].name, model))
            return 32 * models[k].h / (34 * models[k].h + 5 * models[k].a * 1024);
    return 0;
}

static void print_row(char *line) {
    char *cell[COLUMNS] = {NULL};
    int n = 0;
    for (char *at = strtok(line, ",\r\n"); at && n < COLUMNS; at = strtok(NULL, ",\r\n"))
        cell[n++] = at;
    if (n != COLUMNS) return;
    int p = atoi(cell[1]), m = atoi(cell[2]);
    tr_schedule_request request = {
        .ranks = p,
        .micro_batches = m,
        .share = {.f = atof(cell[3]), .i = atof(cell[4]), .w = atof(cell[5]), .m_b = 1},
        .latency = atof(cell[6])};
    request.share.m_w = weight_memory(cell[0]);
    (void)printf("| %s | %d | %d |", cell[0], p, m);
    for (int k = 0; k < PAPER; k++) {
        outcome o;
        request.name = table5[k][1];
        request.chunks = strcmp(request.name, "interleaved") == 0 ? atoi(cell[7]) : 0;
        request.cap = strcmp(request.name, "zb-2p") == 0 ? 2 * p : p;
        if (strncmp(request.name, "zb-", 3) != 0 || request.name[3] == 'h') request.cap = 0;
        if (try_schedule(&request, &o))
            (void)printf(" %.4f / %.4f |", atof(cell[8 + k]), o.span_rate);
        else (void)printf(" %.4f / - |", atof(cell[8 + k]));
    }
    (void)putchar('\n');
}

static int print_table5(const char *path) {
    FILE *file = fopen(path, "r");
    char line[512];
    if (!file) {
        (void)fprintf(stderr, "%s cannot be opened\n", path);
        return 1;
    }
    (void)printf("| model | p | m |");
    for (int k = 0; k < PAPER; k++) (void)printf(" %s |", table5[k][0]);
    (void)printf("\n|---|---|---|---|---|---|---|---|---|\n");
    bool columns = true; /* the first line names them */
    for (; fgets(line, sizeof line, file); columns = false)
        if (!columns) print_row(line);
    (void)fclose(file);
    return 0;
}

/* --- equal memory ----------------------------------------------------------------------------- */

typedef struct profile {
    const char *name;
    tr_stage_cost share;
    double latency, peer[3]; /* percent over ideal at p 4 m 8, p 8 m 16, p 8 m 32 */
} profile;

/* Best of the orders of PyTorch, sail-sg, Megatron-LM and DeepSeek with v <= 4 and a simulated peak
 * that at m_W = 0.94 m_B is at most p m_B. */
static const profile profiles[] = {
    {"unit", {.f = 1, .i = 1, .w = 1}, 0, {3.1, 3.6, 1.8}},
    {"1.5B", {.f = 18.513, .i = 18.086, .w = 9.331}, 0.626, {9.7, 10.9, 5.5}},
    {"6.2B", {.f = 29.802, .i = 29.428, .w = 19.530}, 0.577, {6.9, 7.9, 3.9}},
    {"28.3B", {.f = 10.408, .i = 10.204, .w = 7.703}, 0.408, {8.6, 9.7, 4.8}},
    {"attention-heavy", {.f = 1, .i = 1.4, .w = 0.6}, 0.02, {7.6, 8.7, 4.4}},
    {"slow transfers", {.f = 1, .i = 1, .w = 1}, 0.2, {17.1, 21.0, 10.5}},
};
static const int cells[3][2] = {{4, 8}, {8, 16}, {8, 32}};

/* Finds the best of our generators that stay under the cap, and its name. */
static double best_generator(tr_schedule_request request, char *which, size_t size) {
    bool trains;
    double best = INFINITY;
    for (int k = 0; (request.name = tr_schedule_name(k, &trains)); k++) {
        if (!trains || !strcmp(request.name, "auto")) continue;
        for (request.chunks = 1; request.chunks <= 4; request.chunks++) {
            outcome o;
            if (!try_schedule(&request, &o) || o.peak > request.cap * (1 + 1e-9)) continue;
            if (o.overhead >= best - 1e-12) continue;
            best = o.overhead;
            (void)snprintf(which, size, "%s v=%d", request.name, request.chunks);
        }
    }
    return best;
}

static void print_cell(const profile *of, int k) {
    int p = cells[k][0], m = cells[k][1];
    tr_schedule_request request = {
        .ranks = p, .micro_batches = m, .share = of->share, .latency = of->latency, .cap = p};
    request.share.m_b = 1;
    request.share.m_w = 0.94;
    char which[64] = "none";
    double best = best_generator(request, which, sizeof which);
    (void)printf("| %s | %d | %d | +%.1f %% | +%.2f %% | %s |", of->name, p, m, of->peer[k],
                 100 * best, which);
    outcome o;
    request.name = "auto";
    request.chunks = 0;
    if (try_schedule(&request, &o))
        (void)printf(" +%.2f %% | %.2f | %.0f ms |\n", 100 * o.overhead, o.peak, 1e3 * o.seconds);
    else (void)printf(" - | - | - |\n");
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "tests/data/zb_table5_6.csv";
    (void)printf("Bubble rate of the longest span: published / ours\n\n");
    if (print_table5(path)) return 1;
    (void)printf("\nMakespan over ideal at a peak of at most p (m_W = 0.94 m_B)\n\n"
                 "| costs | p | m | best public order | our best generator | which | auto | its "
                 "peak | its time |\n|---|---|---|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < sizeof profiles / sizeof *profiles; k++)
        for (int c = 0; c < 3; c++) print_cell(&profiles[k], c);
    return 0;
}
