#include "job/signals.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "job/terminal.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST_TEXT = 2048 };

/* Signals belong to the process, and so does what is known about them. */
static struct {
    sigset_t asks; /* the signals that ask to stop */
    pthread_mutex_t lock;
    tr_board *board;                         /* by the lock */
    bool asked;                              /* by the lock */
    int64_t urgent_ns;                       /* the first urgent signal; 0: none yet */
    bool launched, prints, refreshes, waits; /* waits: the thread that takes signals runs */
} self = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

void tr_signal_say(const char *sentence, bool refreshes) {
    char fitted[MOST_TEXT], line[MOST_TEXT + 32];
    const int bytes = snprintf(line, sizeof line, "%strireme: %s\n", refreshes ? "\r\x1b[K" : "",
                               tr_text_fit(fitted, sizeof fitted, sentence));
    (void)!write(STDERR_FILENO, line, (size_t)bytes);
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

/* Returns true when this rank is to say what the signal does. */
static bool ask(int signal, tr_board *board) {
    if (signal == SIGINT && tr_board_interrupt(board)) return false;
    bool again = self.asked;
    self.asked = true;
    if (tr_signal_is_urgent(signal)) {
        again = self.urgent_ns != 0;
        if (!again) self.urgent_ns = tr_now_ns();
        else if (!self.launched && tr_since_s(self.urgent_ns) > TR_SECOND_SIGNAL_S)
            abort_job(board);
    }
    tr_board_request_stop(board);
    /* When a rank has failed, mpirun signals the others, which are ending too. */
    return !again && self.prints && !(board && tr_board_first_failure(board, NULL, NULL));
}

static void on_signal(int signal) {
    (void)pthread_mutex_lock(&self.lock);
    bool says = ask(signal, self.board);
    (void)pthread_mutex_unlock(&self.lock);
    if (says) tr_signal_say(tr_signal_text(signal, true), self.refreshes); /* it may block */
}

/* The thread that takes signals: it ends with the process. */
static void *take(void *nothing) {
    int signal;
    for (;;)
        if (sigwait(&self.asks, &signal) == 0) on_signal(signal);
    return nothing;
}

static tr_status start_waiting(void) {
    pthread_t thread;
    if (self.waits) return TR_OK;
    TR_TRY(tr_thread_start(&thread, take, NULL, "signals"));
    (void)pthread_detach(thread);
    self.waits = true;
    return TR_OK;
}

void tr_signals_take(bool launched, bool prints) {
    self.launched = launched;
    self.prints = prints && !launched;
    self.refreshes = tr_signal_refreshes();
    (void)sigemptyset(&self.asks);
    const int asks[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        bool terminals = asks[i] == SIGINT || asks[i] == SIGHUP;
        if (launched && terminals) (void)signal(asks[i], SIG_IGN);
        else if (!tr_signal_is_ignored(asks[i])) (void)sigaddset(&self.asks, asks[i]);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)pthread_sigmask(SIG_BLOCK, &self.asks, NULL);
    if (start_waiting() != TR_OK) tr_error_clear(); /* tr_signals_use tries again */
}

tr_status tr_signals_use(tr_board *board) {
    (void)pthread_mutex_lock(&self.lock);
    self.board = board;
    if (self.asked) tr_board_request_stop(board);
    (void)pthread_mutex_unlock(&self.lock);
    TR_TRY(start_waiting());
    return TR_OK;
}
