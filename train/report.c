#include "train/report.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/xml.h"
#include "config/batches.h"
#include "pipeline/draw/draw.h"
#include "train/plot.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The most rows of a table, and the most events of drawings, that a browser opens at once; the
 * width of the page's text in pixels, as in the style below. */
enum { PATH_SIZE = TR_CONFIG_PATH + 32, MOST_ROWS = 64, MOST_EVENTS = 20000, PAGE_WIDTH = 1180 };

typedef enum column { STEP, LOSS, NORM, LR, SPEED, VALIDATION, COLUMNS } column;
static const char *const keys[COLUMNS] = {"step", "loss",         "grad_norm",
                                          "lr",   "tokens_per_s", "val_loss"};

/* The records of a run by column; NAN: not known. Validations have their own steps. */
typedef struct curves {
    size_t count, capacity[COLUMNS];
    double *value[COLUMNS];
    size_t validations, validation_capacity;
    double *validation_step;
} curves;

/* Repeats rules that the style of a timeline, which applies to the whole page, would change. */
static const char *const head =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
    "<meta name=\"viewport\" content=\"width=device-width\"/>\n<style>\n"
    "body{font:14px/1.45 sans-serif;color:#222;background:#fff;max-width:1180px;margin:24px auto;"
    "padding:0 16px}\n"
    "h1{font-size:22px}h2{font-size:17px;margin:28px 0 8px}\n"
    ".charts{display:flex;flex-wrap:wrap;gap:16px}\n"
    ".scroll{overflow-x:auto}\n"
    "table{border-collapse:collapse;margin:8px 0}\n"
    "td,th{padding:3px 12px 3px 0;text-align:left;border-bottom:1px solid #e4e4e4}\n"
    "td.number,th.number{text-align:right;padding-left:12px;font-variant-numeric:tabular-nums}\n"
    ".note{color:#555}\n"
    "svg.timeline{max-width:100%;height:auto}\n"
    "svg.memory text{font:12px sans-serif;fill:#333}svg.memory rect{stroke:none}\n"
    "</style>\n<title>Trireme: ";

/* --- what there is to show -------------------------------------------------------------------- */

static void free_curves(curves *c) {
    for (int k = 0; k < COLUMNS; k++) free(c->value[k]);
    free(c->validation_step);
}

static tr_status add_record(curves *c, const cJSON *record) {
    double value[COLUMNS];
    for (int k = 0; k < COLUMNS; k++) {
        const cJSON *number = cJSON_GetObjectItemCaseSensitive(record, keys[k]);
        value[k] = cJSON_IsNumber(number) ? number->valuedouble : NAN;
    }
    if (!isfinite(value[STEP])) return TR_OK;
    for (int k = 0; k < VALIDATION; k++) {
        TR_TRY(tr_grow(&c->value[k], &c->capacity[k], c->count + 1, sizeof(double)));
        c->value[k][c->count] = value[k];
    }
    c->count++;
    if (!isfinite(value[VALIDATION])) return TR_OK;
    size_t n = c->validations + 1;
    TR_TRY(tr_grow(&c->value[VALIDATION], &c->capacity[VALIDATION], n, sizeof(double)));
    TR_TRY(tr_grow(&c->validation_step, &c->validation_capacity, n, sizeof(double)));
    c->value[VALIDATION][c->validations] = value[VALIDATION];
    c->validation_step[c->validations++] = value[STEP];
    return TR_OK;
}

static tr_status read_curves(const char *dir, curves *c) {
    char path[PATH_SIZE], *line = NULL;
    size_t size = 0;
    tr_status status = TR_OK;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f;
    TR_TRY(tr_input_stream(path, &f));
    if (!f) return TR_OK;
    while (status == TR_OK && getline(&line, &size, f) > 0) {
        cJSON *record = cJSON_Parse(line);
        status = add_record(c, record);
        cJSON_Delete(record);
    }
    if (status == TR_OK && !feof(f))
        status = TR_FAIL(TR_ERR_IO, "'%s' cannot be read: %s", path, strerror(errno));
    free(line);
    (void)fclose(f);
    return status;
}

static tr_link divided(tr_link link, double unit) {
    return (tr_link){.latency = link.latency / unit, .per_byte = link.per_byte / unit};
}

tr_status tr_report_plan(const tr_program_set *programs, const tr_stage_table *table,
                         const tr_simulated_links *links, tr_timeline **out) {
    tr_status status = TR_OK;
    tr_stage_cost *cost = NULL;
    tr_simulation *simulation = NULL;
    double mean = 0;
    TR_TRY_OUT(tr_calloc((size_t)table->stages, sizeof *cost, &cost));
    for (int s = 0; s < table->stages; s++) mean += table->cost[s].f / table->stages;
    if (!(mean > 0)) mean = 1;
    for (int s = 0; s < table->stages; s++) {
        cost[s] = table->cost[s];
        cost[s].f /= mean;
        cost[s].i /= mean;
        cost[s].w /= mean;
    }
    tr_simulated_links scaled = *links;
    scaled.near = divided(links->near, mean);
    scaled.far = divided(links->far, mean);
    scaled.sum = divided(links->sum, mean);
    scaled.gather = divided(links->gather, mean);
    scaled.copy = divided(links->copy, mean);
    TR_TRY_OUT(tr_simulate(programs, cost, &scaled, &simulation));
    TR_TRY_OUT(tr_timeline_of_simulation("planned", programs, simulation, 0, out));
out:
    tr_simulation_destroy(simulation);
    free(cost);
    return status;
}

/* --- the summary ------------------------------------------------------------------------------ */

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Finds the median; NAN when no value is finite. */
static tr_status median(const double *value, size_t count, double *out) {
    double *sorted;
    size_t n = 0;
    TR_TRY(tr_calloc(count, sizeof *sorted, &sorted));
    for (size_t k = 0; k < count; k++)
        if (isfinite(value[k])) sorted[n++] = value[k];
    qsort(sorted, n, sizeof *sorted, compare_numbers);
    *out = n ? sorted[n / 2] : NAN;
    free(sorted);
    return TR_OK;
}

static void write_row(FILE *out, const char *name, const char *text) {
    (void)fprintf(out, "<tr><th>%s</th><td>", name);
    tr_xml_text(text, out);
    (void)fputs("</td></tr>\n", out);
}

static tr_status write_summary(const tr_report *r, const curves *c, FILE *out) {
    const tr_config *config = r->config;
    char text[TR_CONFIG_PATH + TR_CONFIG_MESH], mesh[TR_CONFIG_MESH];
    double speed = NAN;
    TR_TRY(median(c->value[SPEED], c->count, &speed));
    (void)fputs("<table>\n", out);
    (void)snprintf(text, sizeof text, "%s, %" PRId64 " layers, width %" PRId64 ", %s",
                   config->model.family, config->model.layers, config->model.width,
                   config->train.precision);
    write_row(out, "model", text);
    (void)snprintf(text, sizeof text, "%s, schedule %s",
                   tr_config_mesh_text(config, mesh, sizeof mesh), config->parallel.schedule);
    write_row(out, "layout", text);
    if (tr_config_batches_text(config, text, sizeof text)[0]) write_row(out, "batch", text);
    if (c->count) {
        size_t last = c->count - 1;
        (void)snprintf(text, sizeof text, "%.0f of %" PRId64, c->value[STEP][last],
                       config->train.steps);
        write_row(out, "steps", text);
        (void)snprintf(text, sizeof text, "%.4f nats a token", c->value[LOSS][last]);
        write_row(out, "last loss", isfinite(c->value[LOSS][last]) ? text : "not finite");
    }
    if (c->validations) {
        size_t last = c->validations - 1;
        (void)snprintf(text, sizeof text, "%.4f nats a token after step %.0f",
                       c->value[VALIDATION][last], c->validation_step[last]);
        write_row(out, "last validation", text);
    }
    (void)snprintf(text, sizeof text, "%.0f tokens/s", speed);
    if (isfinite(speed)) write_row(out, "median speed", text);
    (void)fputs("</table>\n", out);
    return TR_OK;
}

/* --- curves ----------------------------------------------------------------------------------- */

static tr_status write_curves(const curves *c, FILE *out) {
    const double *x = c->value[STEP];
    const tr_series loss[] = {{"training", x, c->value[LOSS], c->count, false},
                              {.label = "validation",
                               .x = c->validation_step,
                               .y = c->value[VALIDATION],
                               .count = c->validations,
                               .points = c->validations <= 100}};
    const tr_series rate = {"rate", x, c->value[LR], c->count, false};
    const tr_series speed = {"speed", x, c->value[SPEED], c->count, false};
    const tr_series norm = {"norm", x, c->value[NORM], c->count, false};
    const tr_plot plots[] = {
        {"loss (nats a token)", "step", loss, c->validations ? 2 : 1, true, false},
        {"learning rate", "step", &rate, 1, true, true},
        {"tokens/s", "step", &speed, 1, true, true},
        {"gradient norm, before clipping", "step", &norm, 1, true, true}};
    (void)fputs("<h2>Curves</h2>\n<div class=\"charts\">\n", out);
    for (size_t k = 0; k < sizeof plots / sizeof *plots; k++) TR_TRY(tr_plot_svg(&plots[k], out));
    (void)fputs("</div>\n", out);
    return TR_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

enum { BAR_LEFT = 70, BAR_WIDTH = 800, BAR_ROW = 24 };
enum { DEVICE_CLASSES = TR_MEMORY_OFFLOAD }; /* without the last ones, which are the host's */
static const char *const class_colour[DEVICE_CLASSES] = {"#4c8cc7", "#e0a03c", "#67b36a", "#b07cc0",
                                                         "#c9625a", "#9a9a9a", "#5aa8a0"};
static const char *const snapshot_colour = "#8a7a5c"; /* where it is part of a rank's memory */

static double mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}

/* Draws one bar for each rank, and a mark at the bytes that it took. */
static void draw_memory(const tr_report *r, int rows, FILE *out) {
    size_t most = 1;
    for (int k = 0; k < rows; k++) {
        if (r->memory[k].plan.total > most) most = r->memory[k].plan.total;
        if (r->memory[k].taken_total > most) most = r->memory[k].taken_total;
    }
    double scale = (double)BAR_WIDTH / (double)most;
    int width = BAR_LEFT + BAR_WIDTH + 20, height = 30 + BAR_ROW * rows;
    (void)fprintf(out,
                  "<div class=\"scroll\"><svg xmlns=\"http://www.w3.org/2000/svg\" "
                  "class=\"memory\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n",
                  width, height, width, height);
    for (int k = 0; k < DEVICE_CLASSES; k++)
        (void)fprintf(out,
                      "<rect x=\"%d\" y=\"4\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                      "<text x=\"%d\" y=\"14\">%s</text>\n",
                      BAR_LEFT + 110 * k, class_colour[k], BAR_LEFT + 110 * k + 18,
                      tr_device_memory_name((tr_memory)k));
    (void)fprintf(out,
                  "<rect x=\"%d\" y=\"2\" width=\"2\" height=\"16\" fill=\"#111\"/>"
                  "<text x=\"%d\" y=\"14\">taken</text>\n",
                  BAR_LEFT + 110 * DEVICE_CLASSES, BAR_LEFT + 110 * DEVICE_CLASSES + 8);
    for (int rank = 0; rank < rows; rank++) {
        double x = BAR_LEFT;
        int y = 28 + BAR_ROW * rank;
        (void)fprintf(out, "<text x=\"4\" y=\"%d\">rank %d</text>\n", y + 13, rank);
        for (int k = 0; k < TR_MEMORY_CLASSES; k++) {
            const bool snapshot = k == TR_MEMORY_SNAPSHOT && !r->memory[rank].plan.apart;
            const size_t bytes = r->memory[rank].plan.of[k];
            if ((k >= DEVICE_CLASSES && !snapshot) || (snapshot && bytes == 0)) continue;
            (void)fprintf(out,
                          "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"18\" fill=\"%s\">"
                          "<title>%s %.2f MiB</title></rect>\n",
                          x, y, (double)bytes * scale, snapshot ? snapshot_colour : class_colour[k],
                          tr_device_memory_name((tr_memory)k), mib(bytes));
            x += (double)bytes * scale;
        }
        (void)fprintf(out, "<rect x=\"%.1f\" y=\"%d\" width=\"2\" height=\"22\" fill=\"#111\"/>\n",
                      (double)BAR_LEFT + (double)r->memory[rank].taken_total * scale - 1, y - 2);
    }
    (void)fputs("</svg></div>\n", out);
}

/* host: a column for the host's memory follows. */
static void write_classes(const size_t *bytes, size_t all, bool host, const char *peak, FILE *out) {
    for (int k = 0; k < DEVICE_CLASSES; k++)
        (void)fprintf(out, "<td class=\"number\">%.2f</td>", mib(bytes[k]));
    (void)fprintf(out, "<td class=\"number\">%.2f</td><td class=\"number\">%s</td>", mib(all),
                  peak);
    if (host)
        (void)fprintf(out, "<td class=\"number\">%.2f</td>",
                      mib(bytes[TR_MEMORY_OFFLOAD] + bytes[TR_MEMORY_SNAPSHOT]));
    (void)fputs("</tr>\n", out);
}

/* Returns true when a rank keeps something in the host's memory. */
static bool uses_host(const tr_report *r) {
    bool uses = false;
    for (int k = 0; k < r->ranks; k++)
        uses |= r->memory[k].plan.of[TR_MEMORY_OFFLOAD] + r->memory[k].plan.of[TR_MEMORY_SNAPSHOT];
    return uses;
}

static void write_memory(const tr_report *r, FILE *out) {
    int rows = r->ranks < MOST_ROWS ? r->ranks : MOST_ROWS;
    const bool host = uses_host(r);
    if (!r->ranks) return;
    (void)fputs("<h2>Memory</h2>\n", out);
    draw_memory(r, rows, out);
    (void)fputs("<div class=\"scroll\"><table>\n<tr><th>MiB</th>", out);
    for (int k = 0; k < DEVICE_CLASSES; k++)
        (void)fprintf(out, "<th class=\"number\">%s</th>", tr_device_memory_name((tr_memory)k));
    (void)fprintf(out, "<th class=\"number\">all</th><th class=\"number\">live peak</th>%s</tr>\n",
                  !host                     ? ""
                  : r->memory[0].plan.apart ? "<th class=\"number\">in host memory</th>"
                                            : "<th class=\"number\">of all, snapshot</th>");
    for (int rank = 0; rank < rows; rank++) {
        const tr_memory_rank *m = &r->memory[rank];
        char peak[32];
        (void)snprintf(peak, sizeof peak, "%.2f", mib(m->plan.live_peak));
        (void)fprintf(out, "<tr><th>rank %d planned</th>", rank);
        write_classes(m->plan.of, m->plan.total, host, peak, out);
        (void)fprintf(out, "<tr><th>rank %d taken</th>", rank);
        write_classes(m->taken, m->taken_total, host, "", out);
    }
    (void)fputs(
        "</table></div>\n<p class=\"note\">Planned before the first step, and the most "
        "that was taken; live peak: the most bytes of activations that are alive at one time.",
        out);
    if (rows < r->ranks) (void)fprintf(out, " %d more ranks are not shown.", r->ranks - rows);
    (void)fputs("</p>\n", out);
}

/* --- waits ------------------------------------------------------------------------------------ */

/* A run of one rank waits for none. */
static void write_waits(const tr_report *r, FILE *out) {
    const int rows = r->ranks < MOST_ROWS ? r->ranks : MOST_ROWS;
    if (!r->waits || r->ranks < 2 || r->waits[0].steps <= 0) return;
    (void)fputs(
        "<h2>Waiting</h2>\n<div class=\"scroll\"><table>\n<tr><th></th>"
        "<th class=\"number\">messages</th><th class=\"number\">sums and gathers of data ranks</th>"
        "<th class=\"number\">sums over tensor ranks</th></tr>\n",
        out);
    for (int rank = 0; rank < rows; rank++) {
        const tr_waits *w = &r->waits[rank];
        (void)fprintf(out,
                      "<tr><th>rank %d waits</th><td class=\"number\">%.1f%%</td>"
                      "<td class=\"number\">%.1f%%</td><td class=\"number\">%.1f%%</td></tr>\n",
                      rank, 100 * w->messages / w->steps, 100 * w->gradients / w->steps,
                      100 * w->tensor / w->steps);
    }
    (void)fputs("</table></div>\n<p class=\"note\">Measured, in % of the time of the training "
                "steps since the run began or was resumed. A rank also waits for messages while "
                "the pipeline fills and drains.",
                out);
    if (rows < r->ranks) (void)fprintf(out, " %d more ranks are not shown.", r->ranks - rows);
    (void)fputs("</p>\n", out);
}

/* --- traffic ---------------------------------------------------------------------------------- */

static const char *const traffic_names[TR_TRAFFIC_KINDS] = {
    [TR_TRAFFIC_MESSAGES] = "messages between stages",
    [TR_TRAFFIC_SUMS] = "sums of gradients over data ranks",
    [TR_TRAFFIC_TIES] = "sums of a tied table's gradients",
    [TR_TRAFFIC_GATHERS] = "gathers of parameters from data ranks",
    [TR_TRAFFIC_TENSOR] = "sums over tensor ranks",
    [TR_TRAFFIC_PRODUCTS] = "sums of muon's products over tensor ranks",
    [TR_TRAFFIC_COPIES] = "copies of activations to the host and back",
    [TR_TRAFFIC_STEPS] = "the optimizer on the host"};

/* A step in which nothing travels has no table. */
static void write_traffic(const tr_step_traffic *all, FILE *out) {
    int64_t count = 0;
    for (int k = 0; all && k < TR_TRAFFIC_KINDS; k++) count += all->of[k].count;
    if (count == 0) return;
    (void)fputs("<h2>Traffic of a planned step</h2>\n<div class=\"scroll\"><table>\n<tr><th></th>"
                "<th class=\"number\">count</th><th class=\"number\">MiB</th>"
                "<th class=\"number\">moving</th><th class=\"number\">exposed</th></tr>\n",
                out);
    for (int k = 0; k < TR_TRAFFIC_KINDS; k++) {
        const tr_traffic *t = &all->of[k];
        if (t->count == 0) continue;
        (void)fprintf(out,
                      "<tr><th>%s</th><td class=\"number\">%" PRId64
                      "</td><td class=\"number\">%.2f</td><td class=\"number\">%.1f%%</td>"
                      "<td class=\"number\">%.1f%%</td></tr>\n",
                      traffic_names[k], t->count, t->bytes / (1 << 20),
                      100 * t->moving / all->makespan, 100 * t->exposed / all->makespan);
    }
    (void)fputs("</table></div>\n<p class=\"note\">Of the pipeline rank that waits longest for it, "
                "in % of a step with all of it and the optimizer, at the device's usual rate and "
                "those of the links "
                "(device.link, device.network). Messages: of the rank that sends longest; exposed "
                "is by how much they make the step longer.</p>\n",
                out);
}

/* --- the pipeline ----------------------------------------------------------------------------- */

/* Returns the time in which a rank waited for sums of gradients and gathers of values. */
static double exposed_of(const tr_timeline *t, int rank) {
    double sum = 0;
    for (size_t k = 0; k < t->count; k++)
        if (t->bar[k].rank == rank && tr_bar_awaits_ranks(&t->bar[k]))
            sum += t->bar[k].end - t->bar[k].start;
    return sum;
}

static void write_bubbles(const tr_timeline *t, FILE *out) {
    int rows = t->ranks < MOST_ROWS ? t->ranks : MOST_ROWS;
    double part = t->span > 0 ? 100 / t->span : 0;
    (void)fputs("<div class=\"scroll\"><table>\n<tr><th>", out);
    tr_xml_text(t->title, out);
    (void)fputs("</th><th class=\"number\">busy</th><th class=\"number\">bubble</th>"
                "<th class=\"number\">fill</th><th class=\"number\">drain</th>"
                "<th class=\"number\">waiting</th><th class=\"number\">imbalance</th>"
                "<th class=\"number\">exposed sums and gathers</th></tr>\n",
                out);
    for (int r = 0; r < rows; r++) {
        const tr_rank_time *time = &t->time[r];
        const double share[] = {time->busy,      fmax(t->span - time->busy, 0),
                                time->fill,      time->drain,
                                time->waiting,   time->imbalance,
                                exposed_of(t, r)};
        (void)fprintf(out, "<tr><th>rank %d</th>", r);
        for (size_t k = 0; k < sizeof share / sizeof *share; k++)
            (void)fprintf(out, "<td class=\"number\">%.1f%%</td>", fabs(share[k] * part));
        (void)fputs("</tr>\n", out);
    }
    (void)fputs("</table></div>\n", out);
    if (rows < t->ranks)
        (void)fprintf(out, "<p class=\"note\">%d more ranks are not shown.</p>\n", t->ranks - rows);
}

static void write_note(const tr_report *r, int drawn, FILE *out) {
    const tr_timeline *first = r->timelines[0];
    (void)fputs("<p class=\"note\">", out);
    if (first->seconds > 0)
        (void)fputs("The recorded steps of all ranks: as planned, with the mean measured times of "
                    "each stage in the step, and sums, gathers and copies at the rates of the "
                    "links (device.link, device.network), and as they ran. A step's makespan is "
                    "from its first action to its last, without reductions and the optimizer "
                    "(grey).",
                    out);
    else
        (void)fputs("One step of the ranks of a pipeline as planned, with the computed costs of "
                    "the layers; the unit is the mean forward of a stage. Messages, sums of "
                    "gradients and copies to the host's memory (grey, below the actions) take the "
                    "times of the links between ranks (device.link, device.network). For measured "
                    "times use train --trace N.",
                    out);
    if (drawn == 1 && first->steps > 1)
        (void)fprintf(out, " The first of %d steps is drawn; the numbers are of all.",
                      first->steps);
    else if (drawn < first->steps)
        (void)fprintf(out, " The first %d of %d steps are drawn; the numbers are of all.", drawn,
                      first->steps);
    (void)fputs(" Rest the pointer on an action for its name.</p>\n", out);
}

static tr_status write_timelines(const tr_report *r, FILE *out) {
    const tr_draw_svg_options options = {.width = PAGE_WIDTH};
    size_t events;
    int drawn;
    if (!r->timelines_count) return TR_OK;
    tr_draw_svg_size(r->timelines, r->timelines_count, &options, &drawn, &events);
    (void)fputs("<h2>Pipeline</h2>\n", out);
    write_note(r, drawn, out);
    if (events <= MOST_EVENTS) {
        TR_TRY(tr_draw_svg(r->timelines, r->timelines_count, &options, out));
    } else (void)fprintf(out, "<p>%zu events are too many to draw.</p>\n", events);
    for (int k = 0; k < r->timelines_count; k++) write_bubbles(r->timelines[k], out);
    return TR_OK;
}

/* --- the file --------------------------------------------------------------------------------- */

static tr_status write_page(const tr_report *r, const curves *c, FILE *out) {
    (void)fputs(head, out);
    tr_xml_text(r->config->log.dir, out);
    (void)fputs("</title>\n</head>\n<body>\n<h1>Run ", out);
    tr_xml_text(r->config->log.dir, out);
    (void)fputs("</h1>\n", out);
    TR_TRY(write_summary(r, c, out));
    TR_TRY(write_curves(c, out));
    write_memory(r, out);
    write_waits(r, out);
    write_traffic(r->traffic, out);
    TR_TRY(write_timelines(r, out));
    (void)fputs("</body>\n</html>\n", out);
    return TR_OK;
}

tr_status tr_report_write(const tr_report *r) {
    char path[PATH_SIZE], temporary[PATH_SIZE + 8];
    curves c = {0};
    FILE *out = NULL;
    tr_status status = TR_OK;
    (void)snprintf(path, sizeof path, "%s/report.html", r->config->log.dir);
    (void)snprintf(temporary, sizeof temporary, "%s.tmp", path);
    TR_TRY_OUT(read_curves(r->config->log.dir, &c));
    TR_TRY_OUT(tr_output_open_for(path, temporary, &out));
    status = tr_output_replace(temporary, path, out, write_page(r, &c, out));
out:
    free_curves(&c);
    return status;
}
