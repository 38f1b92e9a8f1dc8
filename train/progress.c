#include "train/progress.h"

#include "base/wait.h"
#include "job/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const double refresh_s = 0.1; /* a remote terminal need not show every step */
static const double tick_s = 0.25;   /* between two looks of the thread */
static const double patience_s =
    1.5; /* of silence before work is shown, so that it is shown within 2 s */
static const double pipe_s = 10; /* between two such lines in a pipe */
static const double bytes_s = 5; /* how long a line in a pipe waits for the first bytes */

/* --- the terminal ----------------------------------------------------------------------------- */

/* Returns the columns that a line may fill: all except the last, because the terminal would wrap.
 * Asks every time, because windows change their size. */
static int room(const tr_progress *p) {
    int now =
        p->columns ? tr_board_columns(p->options.board) : tr_terminal_columns(p->options.file);
    if (now <= 0) now = p->columns;
    return now > 1 ? now - 1 : 79;
}

static void end_line(tr_progress *p) {
    if (p->open_line) (void)fputc('\n', p->options.file);
    p->open_line = false;
    if (p->options.file) (void)fflush(p->options.file);
}

static void refresh(tr_progress *p, const char *line) {
    (void)fprintf(p->options.file, "\r%s\x1b[K", line);
    (void)fflush(p->options.file);
    p->open_line = true;
}

static void write_line(tr_progress *p, const char *line) {
    (void)fprintf(p->options.file, "%s\n", line);
    (void)fflush(p->options.file);
}

/* --- opening and closing ---------------------------------------------------------------------- */

void tr_progress_open(const tr_progress_options *options, double now_s, tr_progress *p) {
    const char *no_colour = getenv("NO_COLOR");
    const int told = tr_terminal_told_columns();
    const bool terminal = tr_terminal_shows(options->file);
    *p = (tr_progress){.options = *options,
                       .terminal = terminal,
                       .colour = terminal && !(no_colour && *no_colour),
                       .columns = told > 0 ? told : 0,
                       .said_s = now_s,
                       .shown_s = -INFINITY,
                       .activity_s = -INFINITY};
    (void)pthread_mutex_init(&p->lock, NULL);
    tr_cond_init(&p->wake);
}

static void tick(tr_progress *p, double now_s);

static void *watch(void *argument) {
    tr_progress *p = argument;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        /* Sleeps until the next look, or until tr_progress_close wakes it. */
        (void)tr_cond_wait_until(&p->wake, &p->lock, tr_now_ns() + (int64_t)(tick_s * 1e9));
        if (!p->stop) tick(p, tr_now_s());
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

void tr_progress_watch(tr_progress *p) {
    p->watched = pthread_create(&p->thread, NULL, watch, p) == 0;
}

void tr_progress_close(tr_progress *p) {
    (void)pthread_mutex_lock(&p->lock);
    p->stop = true;
    (void)pthread_cond_signal(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    if (p->watched) (void)pthread_join(p->thread, NULL);
    end_line(p);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
}

void tr_progress_hold(tr_progress *p) {
    (void)pthread_mutex_lock(&p->lock);
    end_line(p);
}

/* Output of the caller counts, too: long work is shown only a while after it. */
void tr_progress_release(tr_progress *p) {
    p->said_s = tr_now_s();
    p->activity_s = -INFINITY;
    if (p->options.file) (void)fflush(p->options.file);
    (void)pthread_mutex_unlock(&p->lock);
}

/* --- work in progress ------------------------------------------------------------------------- */

void tr_progress_phase(tr_progress *p, tr_activity_phase phase, int64_t step, double now_s) {
    (void)pthread_mutex_lock(&p->lock);
    p->phase = phase;
    p->phase_step = step;
    p->phase_s = now_s;
    (void)pthread_mutex_unlock(&p->lock);
}

void tr_progress_set_micro_batches(tr_progress *p, int64_t micro_batches) {
    (void)pthread_mutex_lock(&p->lock);
    p->options.micro_batches = micro_batches;
    (void)pthread_mutex_unlock(&p->lock);
}

void tr_progress_start(tr_progress *p, int64_t done, double now_s) {
    (void)pthread_mutex_lock(&p->lock);
    p->first_step = done;
    p->first_s = now_s;
    (void)pthread_mutex_unlock(&p->lock);
}

static tr_activity look(const tr_progress *p, double now_s) {
    tr_activity a = {.phase = p->phase,
                     .step = p->phase_step,
                     .first = p->state.steps == 0,
                     .micro_batch = -1,
                     .micro_batches = p->options.micro_batches,
                     .seconds = now_s - p->phase_s};
    tr_rank_view view;
    if (!p->options.board) return a;
    tr_board_read(p->options.board, tr_board_rank(p->options.board), &view);
    tr_board_sum_work(p->options.board, (int)p->phase, &a.done, &a.total);
    if (view.work == (int)p->phase) a.micro_batch = view.micro_batch;
    return a;
}

/* Shows the last step's line with the work in progress, and counts its time left down. */
static void refresh_activity(tr_progress *p, const tr_activity *activity, double now_s) {
    char line[TR_LINE_SIZE];
    tr_progress_state state = p->state;
    if (state.steps == 0) {
        refresh(p, tr_line_activity(activity, room(p), line));
        return;
    }
    if (state.eta_s > 0) state.eta_s = fmax(0, state.eta_s - (now_s - p->step_s));
    refresh(p, tr_line_step(&state, activity, room(p), p->colour, line));
}

/* Returns true once the job is ending, because its error must stay the last line. */
static bool job_ends(const tr_progress *p) {
    const tr_board *board = p->options.board;
    return board && (tr_board_ending(board) || tr_board_first_failure(board, NULL, NULL));
}

static void tick(tr_progress *p, double now_s) {
    char line[TR_LINE_SIZE];
    bool usual = p->phase == TR_ACTIVITY_STEP && p->state.steps > 0; /* not the first step */
    double patience = usual && !p->terminal ? pipe_s : patience_s;
    double pause = p->terminal ? 2 * tick_s : pipe_s;
    if (p->phase == TR_ACTIVITY_NONE || now_s - p->said_s < patience ||
        now_s - p->activity_s < pause || job_ends(p))
        return;
    tr_activity activity = look(p, now_s);
    /* The first of the lines in a pipe waits until there are bytes and a rate. */
    bool early = tr_activity_counts_bytes(p->phase) && !activity.done && activity.seconds < bytes_s;
    if (early && !p->terminal) return;
    p->activity_s = now_s;
    if (p->terminal) refresh_activity(p, &activity, now_s);
    else write_line(p, tr_line_activity(&activity, 0, line));
}

void tr_progress_tick(tr_progress *p, double now_s) {
    (void)pthread_mutex_lock(&p->lock);
    tick(p, now_s);
    (void)pthread_mutex_unlock(&p->lock);
}

/* --- steps ------------------------------------------------------------------------------------ */

static bool is_first_or_last(const tr_progress *p, int64_t step, int64_t steps) {
    return step - p->first_step <= 1 || step >= steps;
}

bool tr_progress_is_due(const tr_progress *p, int64_t step, int64_t steps) {
    return is_first_or_last(p, step, steps) || step % p->options.every == 0;
}

int64_t tr_progress_paced_from(const tr_progress *p, int64_t step) {
    return p->first_step + (step > p->first_step + 1);
}

/* Returns the estimated seconds of the steps after this one; -1: not known. */
static double time_left(tr_progress *p, const tr_progress_state *state, double now_s) {
    const int64_t from = tr_progress_paced_from(p, state->step);
    const double left = state->left > 0 ? state->left : (double)(state->steps - state->step);
    if (state->step <= from) return -1;
    if (from == p->first_step) p->paced_s = now_s;
    const double begin = from == p->first_step ? p->first_s : p->paced_s;
    return (now_s - begin) / (double)(state->step - from) * left;
}

static void show(tr_progress *p, const tr_progress_state *state, double now_s) {
    char line[TR_LINE_SIZE];
    p->state = *state;
    p->state.eta_s = time_left(p, state, now_s);
    p->step_s = p->said_s = now_s;
    p->phase = TR_ACTIVITY_NONE;
    if (job_ends(p)) return;
    if (p->terminal) {
        bool ends = is_first_or_last(p, state->step, state->steps);
        if (!ends && now_s - p->shown_s < refresh_s) return;
        p->shown_s = now_s;
        refresh(p, tr_line_step(&p->state, NULL, room(p), p->colour, line));
    } else if (tr_progress_is_due(p, state->step, state->steps)) {
        p->activity_s = -INFINITY;
        write_line(p, tr_line_step(&p->state, NULL, 0, false, line));
    }
}

void tr_progress_show(tr_progress *p, const tr_progress_state *state, double now_s) {
    (void)pthread_mutex_lock(&p->lock);
    show(p, state, now_s);
    (void)pthread_mutex_unlock(&p->lock);
}
