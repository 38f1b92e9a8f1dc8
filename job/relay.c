#include "job/relay.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "job/mpi_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 1 << 16, LOSS = 14 };
static const char loss_begins[LOSS + 1] = "trireme: lost ";
static const int64_t SILENCE_NS = 1000000000;

struct tr_relay {
    int from, to;
    pthread_t thread;
    const tr_relay *line_of; /* to the same terminal; may be NULL */
    atomic_bool ended, writing;
    atomic_bool open_line;    /* the last byte copied was not a newline */
    atomic_bool has_copied;   /* any bytes */
    atomic_bool lost;         /* bytes could not be written */
    atomic_bool printed;      /* a sentence of this program was copied */
    atomic_bool printed_loss; /* one that names a lost rank or host */
    _Atomic int64_t read_ns;  /* when bytes came last */
    _Atomic int notices;      /* a file that mpirun's notices are written to; -1: none */
    bool after_notice;        /* see tr_mpi_output_clean */
    atomic_bool drops;        /* `dropped` is set: lines that contain one of these are dropped */
    char dropped[2][320];
    char seam[2 * LOSS]; /* the last bytes copied, and the first ones of the next chunk */
    size_t copied;       /* of them */
    char chunk[CHUNK];
};

/* Writes a chunk; false when it cannot be written and is dropped. */
static bool put(int to, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(to, data, bytes);
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) { /* another process made the terminal non-blocking */
            (void)poll(&(struct pollfd){.fd = to, .events = POLLOUT}, 1, -1);
        } else if (n == 0 || errno != EINTR) {
            return false;
        }
    }
    return true;
}

/* Waits briefly for the end of an unfinished line, and else ends it: an error message must begin a
 * new row. */
static void let_line_end(const tr_relay *r) {
    const struct timespec moment = {.tv_nsec = 10 * 1000000};
    for (int i = 0; i < 10 && atomic_load(&r->line_of->open_line); i++)
        (void)nanosleep(&moment, NULL);
    if (atomic_load(&r->line_of->open_line)) (void)put(r->to, "\n", 1);
}

enum { NOTICE_MS = 2000 }; /* how long the next line of a notice may take */

/* Reads on while a notice is not complete, which comes line by line; returns the bytes there are.
 */
static size_t complete_notice(tr_relay *r, size_t bytes) {
    struct pollfd more = {.fd = r->from, .events = POLLIN};
    while (bytes < CHUNK && tr_mpi_notice_is_open(r->chunk, bytes) &&
           poll(&more, 1, NOTICE_MS) > 0) {
        ssize_t n = read(r->from, r->chunk + bytes, CHUNK - bytes);
        if (n <= 0) break;
        bytes += (size_t)n;
    }
    return bytes;
}

/* Returns true when a sentence that names a loss begins in these bytes, or began in the last ones
 * and goes on here. */
static bool has_loss(tr_relay *r, size_t bytes) {
    const size_t first = bytes < LOSS ? bytes : LOSS, all = r->copied + first;
    memcpy(r->seam + r->copied, r->chunk, first);
    const bool found =
        memmem(r->seam, all, loss_begins, LOSS) || memmem(r->chunk, bytes, loss_begins, LOSS);
    const char *end = bytes < LOSS ? r->seam + all : r->chunk + bytes;
    r->copied = bytes < LOSS && all < LOSS ? all : LOSS - 1;
    memmove(r->seam, end - r->copied, r->copied);
    return found;
}

static void *copy(void *argument) {
    tr_relay *r = argument;
    for (;;) {
        (void)poll(&(struct pollfd){.fd = r->from, .events = POLLIN}, 1, -1);
        atomic_store(&r->writing, true); /* set before tr_relay_ended can see the pipe empty */
        ssize_t n = read(r->from, r->chunk, CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        atomic_store(&r->read_ns, tr_now_ns());
        size_t left = complete_notice(r, (size_t)n);
        left = tr_mpi_output_clean(r->chunk, left, atomic_load(&r->notices), &r->after_notice);
        for (int i = 0; i < 2 && atomic_load(&r->drops); i++)
            left = tr_drop_lines(r->chunk, left, r->dropped[i]);
        if (memmem(r->chunk, left, "trireme: ", 9)) atomic_store(&r->printed, true);
        if (has_loss(r, left)) atomic_store(&r->printed_loss, true);
        if (left > 0) {
            if (r->line_of) let_line_end(r);
            if (!put(r->to, r->chunk, left)) atomic_store(&r->lost, true);
            atomic_store(&r->has_copied, true);
            atomic_store(&r->open_line, r->chunk[left - 1] != '\n');
        }
        atomic_store(&r->writing, false);
    }
    atomic_store(&r->ended, true);
    return NULL;
}

static tr_status start(tr_relay *r, int *input) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return TR_FAIL(TR_ERR_DEVICE,
                       "cannot make a pipe for the ranks' output: %s; raise the limit of open "
                       "files (ulimit -n)",
                       strerror(errno));
    r->from = ends[0];
    atomic_store(&r->read_ns, tr_now_ns());
    const tr_status status = tr_thread_start(&r->thread, copy, r, "the ranks' output");
    if (status == TR_OK) {
        *input = ends[1];
    } else {
        (void)close(ends[0]);
        (void)close(ends[1]);
    }
    return status;
}

tr_status tr_relay_open(int to, const tr_relay *line_of, int *input, tr_relay **out) {
    tr_relay *r;
    TR_TRY(tr_calloc(1, sizeof *r, &r));
    r->to = to;
    r->line_of = line_of;
    atomic_store(&r->notices, -1);
    tr_status status = start(r, input);
    if (status != TR_OK) free(r);
    else *out = r;
    return status;
}

void tr_relay_keep_notices(tr_relay *r, int file) {
    if (file >= 0) atomic_store(&r->notices, fcntl(file, F_DUPFD_CLOEXEC, 0));
}

void tr_relay_drop_from(tr_relay *r, pid_t pid) {
    char host[256] = "";
    (void)gethostname(host, sizeof host - 1);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(r->dropped[i], sizeof r->dropped[i], "[%s:%05d] ", host, (int)pid);
        host[strcspn(host, ".")] = '\0'; /* as in the trace of a crash */
    }
    atomic_store(&r->drops, true);
}

bool tr_relay_ended(const tr_relay *r) {
    if (atomic_load(&r->ended)) return true;
    /* The thread may not have run yet: check the pipe first, and then that the thread is not
     * writing. */
    if (poll(&(struct pollfd){.fd = r->from, .events = POLLIN}, 1, 0) != 0) return false;
    return !atomic_load(&r->writing) && tr_now_ns() - atomic_load(&r->read_ns) > SILENCE_NS;
}

bool tr_relay_has_copied(const tr_relay *r) {
    return r && atomic_load(&r->has_copied);
}

bool tr_relay_lost(const tr_relay *r) {
    return r && atomic_load(&r->lost);
}

bool tr_relay_printed_loss(const tr_relay *r) {
    return r && atomic_load(&r->printed_loss);
}

bool tr_relay_printed(const tr_relay *r) {
    return r && atomic_load(&r->printed);
}

bool tr_relay_close(tr_relay *r) {
    if (!r) return true;
    if (!atomic_load(&r->ended)) return false;
    (void)pthread_join(r->thread, NULL);
    (void)close(r->from);
    if (atomic_load(&r->notices) >= 0) (void)close(atomic_load(&r->notices));
    free(r);
    return true;
}
