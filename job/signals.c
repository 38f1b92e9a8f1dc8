#include "job/signals.h"

#include "base/clock.h"
#include "job/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TEXT = 1024 };

/* A signal handler takes no context argument. */
static struct {
    _Atomic(tr_board *) board;
    atomic_bool asked;         /* to stop */
    _Atomic int64_t urgent_ns; /* the first urgent signal; 0: none yet */
    bool launched, speaks, refreshes;
} self;

bool tr_signal_is_urgent(int signal) {
    return signal == SIGINT || signal == SIGTERM;
}

bool tr_signal_is_ignored(int signal) {
    struct sigaction now;
    return sigaction(signal, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

const char *tr_signal_text(int signal, bool saves) {
    if (!saves)
        return signal == SIGINT ? "Ctrl-C: stopping; press Ctrl-C again to abort immediately"
                                : "stopping on a signal";
    switch (signal) {
    case SIGINT:
        return "Ctrl-C: finishing this step and saving; press Ctrl-C again to abort immediately";
    case SIGTERM:
        return "SIGTERM: finishing this step and saving; a second SIGTERM aborts immediately";
    case SIGHUP: return "SIGHUP: finishing this step and saving";
    default: return "SIGUSR1: finishing this step and saving";
    }
}

const char *tr_signal_abort_text(const tr_board *board) {
    int64_t step;
    if (!board || !tr_board_saved(board, &step))
        return "aborted by a second signal, without saving";
    if (step < 0) return "aborted by a second signal; nothing was saved: start again";
    return "aborted by a second signal, without saving; --resume continues from the last "
           "checkpoint";
}

/* Appends what fits. */
static size_t put(char *line, size_t used, const char *text) {
    size_t length = strlen(text);
    if (length > MOST_TEXT - used) length = MOST_TEXT - used;
    memcpy(line + used, text, length);
    return used + length;
}

void tr_signal_say(const char *sentence, bool refreshes) {
    char line[MOST_TEXT + 1];
    size_t used = put(line, 0, refreshes ? "\r\x1b[Ktrireme: " : "trireme: ");
    used = put(line, used, sentence);
    line[used++] = '\n';
    (void)!write(STDERR_FILENO, line, used);
}

bool tr_signal_refreshes(void) {
    return tr_terminal_columns(stdout) > 0 && isatty(STDERR_FILENO);
}

/* Aborts the job after a second urgent signal: the other ranks of this host end too. */
static void abort_job(tr_board *board) {
    if (board && tr_board_any_done(board)) return;
    if (!board || tr_board_claim_report(board))
        tr_signal_say(tr_signal_abort_text(board), self.refreshes);
    if (board) tr_board_end_all(board, TR_ERR_RANK);
    _exit(TR_ERR_RANK);
}

static void on_signal(int signal) {
    int error = errno;
    int64_t now = tr_now_ns(), first = 0;
    tr_board *board = atomic_load(&self.board);
    if (signal == SIGINT && tr_board_interrupt(board)) return;
    bool urgent = tr_signal_is_urgent(signal), again = atomic_exchange(&self.asked, true);
    if (urgent) {
        again = !atomic_compare_exchange_strong(&self.urgent_ns, &first, now);
        if (again && !self.launched && (double)(now - first) * 1e-9 > TR_SECOND_SIGNAL_S)
            abort_job(board);
    }
    tr_board_request_stop(board);
    if (!again && self.speaks) tr_signal_say(tr_signal_text(signal, true), self.refreshes);
    errno = error;
}

static void handle(int signal, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(signal, &action, NULL);
}

void tr_signals_take(bool launched, bool speaks) {
    self.launched = launched;
    self.speaks = speaks && !launched;
    self.refreshes = tr_signal_refreshes();
    const int asks[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        bool terminals = asks[i] == SIGINT || asks[i] == SIGHUP;
        if (launched && terminals) handle(asks[i], SIG_IGN);
        else if (!tr_signal_is_ignored(asks[i])) handle(asks[i], on_signal);
    }
    handle(SIGPIPE, SIG_IGN);
}

void tr_signals_use(tr_board *board) {
    atomic_store(&self.board, board);
    if (atomic_load(&self.asked)) tr_board_request_stop(board);
}
