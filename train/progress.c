#include "train/progress.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LINE_SIZE = 320 };
static const double refresh_s = 0.1; /* a terminal far away need not follow every step */

static const char *format_rate(double per_s, char *buffer, size_t size) {
    static const char *const unit[] = {"", "k", "M", "G"};
    int u = 0;
    for (; per_s >= 999.95 && u < 3; u++) per_s /= 1000;
    (void)snprintf(buffer, size, "%.*f%s", u ? 1 : 0, per_s, unit[u]);
    return buffer;
}

static const char *format_eta(double seconds, char *buffer, size_t size) {
    if (!(seconds >= 0 && seconds < 3.6e8)) {
        (void)snprintf(buffer, size, "?");
    } else {
        int64_t s = (int64_t)ceil(seconds);
        (void)snprintf(buffer, size, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, s / 3600,
                       s / 60 % 60, s % 60);
    }
    return buffer;
}

const char *tr_progress_format(const tr_progress_state *s, bool colour, char *buffer, size_t size) {
    char rate[32], eta[32], val[40] = "";
    bool large = s->memory_planned >= (size_t)1 << 30;
    double unit = large ? 1073741824.0 : 1048576.0;
    if (!isnan(s->val_loss)) (void)snprintf(val, sizeof val, " val %.4f", s->val_loss);
    (void)snprintf(buffer, size,
                   "step %" PRId64 "/%" PRId64 " loss %s%.4f%s%s gnorm %.3f lr %.2e %s tok/s mem "
                   "%.*f/%.*f %s eta %s",
                   s->step, s->steps, colour ? "\x1b[1m" : "", s->loss, colour ? "\x1b[0m" : "",
                   val, s->grad_norm, s->lr, format_rate(s->tokens_per_s, rate, sizeof rate),
                   large ? 1 : 0, (double)s->memory / unit, large ? 1 : 0,
                   (double)s->memory_planned / unit, large ? "GiB" : "MiB",
                   format_eta(s->eta_s, eta, sizeof eta));
    return buffer;
}

int tr_terminal_columns(FILE *file) {
    struct winsize window;
    const char *term = getenv("TERM");
    if (!isatty(fileno(file)) || !term || !strcmp(term, "dumb")) return 0;
    if (ioctl(fileno(file), TIOCGWINSZ, &window) || window.ws_col == 0) return 80;
    return window.ws_col;
}

/* A rank cannot see through the pseudo-terminal of its launcher: plain mpirun counts as a pipe. */
static bool has_launcher(void) {
    return getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK");
}

static int told_columns(void) {
    const char *told = getenv(TR_TERMINAL_VARIABLE);
    long columns = told ? strtol(told, NULL, 10) : 0;
    return columns > 0 && columns <= USHRT_MAX ? (int)columns : 0;
}

void tr_progress_open(FILE *file, int64_t every, int64_t steps_done, double now_s,
                      tr_progress *out) {
    const char *no_colour = getenv("NO_COLOR");
    int columns = has_launcher() ? told_columns() : 0;
    bool terminal = has_launcher() ? columns > 0 : tr_terminal_columns(file) > 0;
    *out = (tr_progress){.file = file,
                         .terminal = terminal,
                         .colour = terminal && !(no_colour && *no_colour),
                         .columns = columns,
                         .every = every,
                         .first_step = steps_done,
                         .first_s = now_s,
                         .shown_s = -INFINITY};
}

static void refresh(tr_progress *p, const tr_progress_state *state) {
    char line[LINE_SIZE];
    int now = p->columns ? p->columns : tr_terminal_columns(p->file); /* windows change size */
    int columns = now > 1 ? now : 80;
    /* A line that wraps cannot be refreshed: one that is too long is cut, and then without colour,
     * whose codes have no width. */
    bool whole = strlen(tr_progress_format(state, false, line, sizeof line)) < (size_t)columns;
    if (whole) (void)tr_progress_format(state, p->colour, line, sizeof line);
    (void)fprintf(p->file, "\r%.*s\x1b[K", whole ? LINE_SIZE : columns - 1, line);
    p->open_line = true;
}

void tr_progress_show(tr_progress *p, tr_progress_state *state, double now_s) {
    int64_t done = state->step - p->first_step;
    bool ends = done <= 1 || state->step >= state->steps;
    state->eta_s =
        done > 0 ? (now_s - p->first_s) / (double)done * (double)(state->steps - state->step) : -1;
    if (p->terminal) {
        if (!ends && now_s - p->shown_s < refresh_s) return;
        p->shown_s = now_s;
        refresh(p, state);
    } else {
        if (!ends && state->step % p->every != 0) return;
        char line[LINE_SIZE];
        (void)fprintf(p->file, "%s\n", tr_progress_format(state, false, line, sizeof line));
    }
    (void)fflush(p->file);
}

void tr_progress_close(tr_progress *p) {
    if (p->open_line) (void)fputc('\n', p->file);
    p->open_line = false;
    (void)fflush(p->file);
}
