#include "base/memory.h"
#include "pipeline/draw/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL = 9, TAIL = 16, LEAST = 20 };

/* Background colours of F, I, W, B. */
static const char *const colour[TR_COMPUTE_TYPES] = {[TR_ACTION_F] = "\033[30;46m",
                                                     [TR_ACTION_I] = "\033[30;43m",
                                                     [TR_ACTION_W] = "\033[30;42m",
                                                     [TR_ACTION_B] = "\033[30;45m"};

tr_status tr_draw_check_events(size_t events) {
    if (events <= TR_DRAW_MOST) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "%zu events are too many for a drawing (at most %d): take fewer ranks, "
                   "micro-batches or steps",
                   events, TR_DRAW_MOST);
}

tr_status tr_draw_check(const tr_timeline *const *timelines, int count) {
    size_t events = 0;
    for (int k = 0; k < count; k++) events += timelines[k]->count;
    return tr_draw_check_events(events);
}

typedef struct canvas {
    int columns;
    double step;       /* time of a column */
    char *text;        /* [ranks * columns]: the characters; '.' idle */
    signed char *type; /* [ranks * columns]: -1 idle */
} canvas;

/* Returns the columns: if possible, enough for the shortest action to show its name. */
static int columns_of(const tr_timeline *t, int width) {
    double shortest = t->makespan;
    for (size_t k = 0; k < t->count; k++) {
        double length = t->bar[k].end - t->bar[k].start;
        if (tr_action_computes(t->bar[k].action) && length > 0 && length < shortest)
            shortest = length;
    }
    char digits[16];
    int name = 1 + snprintf(digits, sizeof digits, "%d", t->micro_batches - 1);
    int most = width - LABEL - TAIL;
    if (most < LEAST) most = LEAST;
    double wanted = shortest > 0 ? ceil(t->makespan / shortest * name) : most;
    return wanted < most ? (int)fmax(wanted, 1) : most;
}

/* Paints an action in the columns with their middle within it; '=' for a wait. */
static void paint(canvas *c, const tr_bar *bar) {
    int from = (int)ceil(bar->start / c->step - 0.5 - 1e-9);
    int to = (int)ceil(bar->end / c->step - 0.5 - 1e-9);
    if (from < 0) from = 0;
    if (to > c->columns) to = c->columns;
    const bool waits = tr_bar_waits(bar);
    char name[32];
    int length = snprintf(name, sizeof name, "%c%d", *tr_action_name(bar->action.type, false),
                          bar->action.micro_batch);
    for (int k = from; k < to; k++) {
        size_t at = (size_t)bar->rank * (size_t)c->columns + (size_t)k;
        bool named = to - from >= length;
        c->text[at] = waits ? '=' : !named ? name[0] : k - from < length ? name[k - from] : '-';
        c->type[at] = waits ? -1 : (signed char)bar->action.type;
    }
}

static void print_row(const canvas *c, int rank, bool colours, FILE *out) {
    int shown = -1;
    for (int k = 0; k < c->columns; k++) {
        size_t at = (size_t)rank * (size_t)c->columns + (size_t)k;
        /* The letter of an action's name marks its start, so adjacent actions of one type can be
         * told apart without colours. */
        if (colours && c->type[at] != shown) {
            (void)fputs(c->type[at] < 0 ? "\033[0m" : colour[c->type[at]], out);
            shown = c->type[at];
        }
        (void)fputc(c->text[at], out);
    }
    if (colours && shown >= 0) (void)fputs("\033[0m", out);
}

tr_status tr_draw_text(const tr_timeline *t, const tr_draw_text_options *options, FILE *out) {
    tr_status status = TR_OK;
    canvas c = {.columns = columns_of(t, options->width)};
    c.step = t->makespan > 0 ? t->makespan / c.columns : 1;
    size_t cells = (size_t)t->ranks * (size_t)c.columns;
    TR_TRY_OUT(tr_calloc(cells, sizeof *c.text, &c.text));
    TR_TRY_OUT(tr_calloc(cells, sizeof *c.type, &c.type));
    memset(c.text, '.', cells);
    memset(c.type, -1, cells);
    for (size_t k = 0; k < t->count; k++)
        if (tr_action_computes(t->bar[k].action) || tr_bar_waits(&t->bar[k])) paint(&c, &t->bar[k]);
    (void)fprintf(out, "%s: makespan %.6g\n", t->title, t->makespan);
    for (int r = 0; r < t->ranks; r++) {
        (void)fprintf(out, "rank %-3d ", r);
        print_row(&c, r, options->colour, out);
        double idle = t->makespan > 0 ? 1 - t->time[r].busy / t->makespan : 0;
        (void)fprintf(out, "  bubble %.1f%%\n", 100 * fmax(idle, 0));
    }
out:
    free(c.text);
    free(c.type);
    return status;
}
