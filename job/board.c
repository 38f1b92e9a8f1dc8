#include "job/board.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "job/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { WAIT_WORDS = 6, MAX_RANKS = 65536 };
/* Changes with the layout below, because ranks and launcher must be of one build. */
static const uint64_t BOARD_MAGIC = 0x7472626f61726437u;
/* A rank writes a heartbeat four times a second; one from another host arrives once a second. */
static const int64_t SILENCE_NS = 1000000000, REMOTE_SILENCE_NS = 3000000000;

typedef struct board_wait {
    _Atomic int64_t since_ns; /* 0: no wait */
    _Atomic int32_t peer;
    _Atomic uint64_t what[WAIT_WORDS];
} board_wait;

/* Aligned to two cache lines, since neighbouring lines are fetched in pairs. */
typedef struct board_slot {
    _Alignas(128) _Atomic int64_t beat_ns;
    _Atomic int64_t step;      /* value + 1, so that zero means none */
    _Atomic uint64_t action;   /* stage + 1: 24 bits, micro-batch + 1: 32 bits, letter: 8 bits */
    _Atomic int64_t action_ns; /* begin of the action */
    _Atomic int32_t work;
    _Atomic int64_t work_done, work_total;
    /* The current wait is waits[turn & 1]. The writer fills the other one and then increments turn,
     * so a reader finds a complete wait even when the writer was stopped half-way. */
    _Atomic uint32_t turn;
    board_wait waits[2];
    /* Written once, before the state that publishes them. */
    _Alignas(128) _Atomic int32_t state;
    _Atomic int32_t pid;
    _Atomic uint64_t pid_start, pid_space;
    _Atomic int32_t exit_code;
    char host[64];
    char message[1024];
} board_slot;

/* What Ctrl-C does: it asks the job to stop; it interrupts the job; it has interrupted it. */
enum { INTERRUPT_OFF, INTERRUPT_READY, INTERRUPT_PENDING };

typedef struct board_header {
    _Alignas(128) _Atomic uint64_t magic;
    _Atomic int32_t ranks;
    _Atomic int32_t launcher;
    _Atomic int32_t reported;
    _Atomic int32_t ending;
    _Atomic int32_t columns;
    _Atomic int64_t stop_ns;
    _Atomic int32_t interrupt; /* one of the enum above */
    _Atomic int64_t saved;     /* step + 2; 1: none, 0: not known */
    _Atomic uint64_t failure;  /* (rank + 1) << 32 | code of the first failure */
    _Atomic int64_t failure_ns;
    _Atomic uint64_t id;
    _Atomic int32_t leader; /* rank + 1 */
    board_slot slots[];
} board_header;

struct tr_board {
    board_header *header;
    size_t bytes;
    int ranks;
    int rank;
    board_slot *mine;
    uint64_t pid_space; /* of this process */
    pthread_mutex_t lock;
    _Atomic double *stop_word; /* by the lock */
};

void tr_board_make_name(char *name, size_t size) {
    (void)snprintf(name, size, "/trireme-%ld-%ld-%llx", (long)getuid(), (long)getpid(),
                   (unsigned long long)tr_now_ns());
}

/* Claims an empty header for `ranks`; false when it belongs to something else. */
static bool adopt(board_header *header, int ranks) {
    uint64_t magic = 0;
    int32_t count = 0;
    if (!atomic_compare_exchange_strong(&header->ranks, &count, ranks) && count != ranks)
        return false;
    return atomic_compare_exchange_strong(&header->magic, &magic, BOARD_MAGIC) ||
           magic == BOARD_MAGIC;
}

/* Opens a name with that many bytes of shared memory behind it. */
static tr_status open_memory(const char *name, size_t bytes, int *out) {
    int fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return TR_FAIL(TR_ERR_DEVICE,
                       "shared memory %s cannot be opened: %s; make /dev/shm a writable tmpfs "
                       "(`trireme doctor` checks it)",
                       name, strerror(errno));
    /* Allocated now: a write to a hole in a full /dev/shm would be a bus error later. */
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    if (!error) {
        *out = fd;
        return TR_OK;
    }
    (void)close(fd);
    return TR_FAIL(
        TR_ERR_DEVICE,
        "%zu bytes of shared memory for %s cannot be reserved: %s; make room in /dev/shm", bytes,
        name, strerror(error));
}

tr_status tr_board_open(const char *name, int ranks, tr_board **out) {
    *out = NULL;
    if (ranks < 1 || ranks > MAX_RANKS)
        return TR_FAIL(TR_ERR_USAGE, "a job has between 1 and %d ranks, not %d: change -n",
                       MAX_RANKS, ranks);
    size_t bytes = sizeof(board_header) + (size_t)ranks * sizeof(board_slot);
    tr_status status = TR_OK;
    tr_board *board;
    int fd = -1;
    TR_TRY(tr_calloc(1, sizeof *board, &board));
    void *memory = MAP_FAILED;
    if (name) TR_TRY_OUT(open_memory(name, bytes, &fd));
    memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (name ? 0 : MAP_ANONYMOUS), fd, 0);
    if (memory == MAP_FAILED) {
        status = TR_FAIL(TR_ERR_DEVICE,
                         "%zu bytes of shared memory cannot be mapped: %s; raise the limit of "
                         "memory (ulimit -v)",
                         bytes, strerror(errno));
        goto out;
    }
    if (!adopt(memory, ranks)) {
        status = TR_FAIL(TR_ERR_DEVICE,
                         "shared memory %s is not a board of %d ranks of this build of Trireme: "
                         "remove /dev/shm%s",
                         name, ranks, name);
        goto out;
    }
    *board = (tr_board){.header = memory,
                        .bytes = bytes,
                        .ranks = ranks,
                        .rank = -1,
                        .pid_space = tr_process_space(),
                        .lock = PTHREAD_MUTEX_INITIALIZER};
    *out = board;
out:
    if (fd >= 0) (void)close(fd);
    if (status != TR_OK) {
        if (memory != MAP_FAILED) (void)munmap(memory, bytes);
        free(board);
    }
    return status;
}

tr_status tr_board_attach(tr_board *board, int rank) {
    if (rank < 0 || rank >= board->ranks)
        return TR_FAIL(TR_ERR_INTERNAL, "rank %d has no slot on a board of %d", rank, board->ranks);
    board_slot *slot = &board->header->slots[rank];
    if (atomic_load(&slot->state) != TR_RANK_ABSENT)
        return TR_FAIL(TR_ERR_DEVICE,
                       "rank %d of this job already runs as pid %d: unset TRIREME_BOARD, and start "
                       "the job again",
                       rank, atomic_load(&slot->pid));
    tr_process self;
    tr_process_look(getpid(), &self);
    if (gethostname(slot->host, sizeof slot->host - 1) != 0) slot->host[0] = '\0';
    atomic_store(&slot->pid, getpid());
    atomic_store(&slot->pid_start, self.start);
    atomic_store(&slot->pid_space, board->pid_space);
    atomic_store(&slot->beat_ns, tr_now_ns());
    atomic_store_explicit(&slot->state, TR_RANK_ALIVE, memory_order_release);
    board->mine = slot;
    board->rank = rank;
    return TR_OK;
}

void tr_board_close(tr_board *board) {
    if (!board) return;
    (void)munmap(board->header, board->bytes);
    free(board);
}

void tr_board_unlink(const char *name) {
    (void)shm_unlink(name);
}

int tr_board_ranks(const tr_board *board) {
    return board->ranks;
}

int tr_board_rank(const tr_board *board) {
    return board->rank;
}

uint64_t tr_board_id(tr_board *board) {
    uint64_t fresh = 0, none = 0;
    /* Without random numbers, time and process tell two boards apart. */
    if (getrandom(&fresh, sizeof fresh, GRND_NONBLOCK) != sizeof fresh || !fresh)
        fresh = (uint64_t)tr_now_ns() << 16 ^ (uint64_t)getpid();
    (void)atomic_compare_exchange_strong(&board->header->id, &none, fresh);
    return atomic_load(&board->header->id);
}

/* --- this rank's slot ------------------------------------------------------------------------- */

static void put(_Atomic int64_t *where, int64_t value) {
    atomic_store_explicit(where, value, memory_order_relaxed);
}

void tr_board_beat(tr_board *board) {
    if (board && board->mine) put(&board->mine->beat_ns, tr_now_ns());
}

void tr_board_set_step(tr_board *board, int64_t step) {
    if (board && board->mine) put(&board->mine->step, step + 1);
}

void tr_board_set_saved(tr_board *board, int64_t step) {
    if (board) put(&board->header->saved, step + 2);
}

bool tr_board_saved(const tr_board *board, int64_t *step) {
    int64_t value = atomic_load_explicit(&board->header->saved, memory_order_relaxed);
    *step = value - 2;
    return value != 0;
}

static uint64_t pack_action(int stage, int64_t micro_batch, char action) {
    return ((uint64_t)(stage + 1) & 0xffffff) << 40 |
           ((uint64_t)(micro_batch + 1) & 0xffffffff) << 8 | (unsigned char)action;
}

void tr_board_begin_work(tr_board *board, int work) {
    tr_board_set_work(board, 0, 0);
    if (board && board->mine) atomic_store_explicit(&board->mine->work, work, memory_order_release);
}

/* A reader between the two stores sees an old total, and shows a wrong share for a moment. */
void tr_board_set_work(tr_board *board, int64_t done, int64_t total) {
    if (!board || !board->mine) return;
    put(&board->mine->work_done, done);
    put(&board->mine->work_total, total);
}

void tr_board_set_action(tr_board *board, int stage, int64_t micro_batch, char action) {
    if (!board || !board->mine) return;
    put(&board->mine->action_ns, tr_now_ns());
    atomic_store_explicit(&board->mine->action, pack_action(stage, micro_batch, action),
                          memory_order_relaxed);
}

/* since_ns 0: the wait ends. */
static void write_wait(board_slot *slot, int64_t since_ns, const char *what, int peer) {
    uint32_t next = atomic_load_explicit(&slot->turn, memory_order_relaxed) + 1;
    board_wait *wait = &slot->waits[next & 1];
    if (since_ns) {
        uint64_t words[WAIT_WORDS] = {0};
        if (what) memcpy(words, what, strnlen(what, sizeof words - 1));
        for (int i = 0; i < WAIT_WORDS; i++)
            atomic_store_explicit(&wait->what[i], words[i], memory_order_release);
        atomic_store_explicit(&wait->peer, peer, memory_order_release);
    }
    atomic_store_explicit(&wait->since_ns, since_ns, memory_order_release);
    atomic_store_explicit(&slot->turn, next, memory_order_release);
}

void tr_board_set_wait(tr_board *board, bool begin, const char *what, int peer) {
    if (board && board->mine) write_wait(board->mine, begin ? tr_now_ns() : 0, what, peer);
}

void tr_board_finish(tr_board *board, int code, const char *message) {
    if (!board || !board->mine) return;
    board_slot *slot = board->mine;
    if (atomic_load(&slot->state) == TR_RANK_FINISHED) return;
    (void)tr_text_fit(slot->message, sizeof slot->message, message ? message : "");
    atomic_store(&slot->exit_code, code);
    uint64_t none = 0;
    if (code != 0 && code != TR_ERR_STOPPED &&
        atomic_compare_exchange_strong(&board->header->failure, &none,
                                       (uint64_t)(board->rank + 1) << 32 | (uint32_t)code)) {
        put(&board->header->failure_ns, tr_now_ns());
    }
    atomic_store_explicit(&slot->state, TR_RANK_FINISHED, memory_order_release);
}

/* --- ranks of other hosts --------------------------------------------------------------------- */

void tr_board_show_remote(tr_board *board, int rank, const tr_rank_view *view) {
    board_slot *slot = &board->header->slots[rank];
    int32_t state = atomic_load(&slot->state);
    if (state != TR_RANK_ABSENT && state != TR_RANK_REMOTE) return;
    if (state == TR_RANK_ABSENT) {
        (void)snprintf(slot->host, sizeof slot->host, "%s", view->host);
        atomic_store(&slot->pid, view->pid);
    }
    put(&slot->beat_ns, view->beat_ns);
    put(&slot->step, view->step + 1);
    put(&slot->action_ns, view->action_ns);
    atomic_store_explicit(&slot->action, pack_action(view->stage, view->micro_batch, view->action),
                          memory_order_relaxed);
    write_wait(slot, view->waiting ? view->wait_ns : 0, view->wait_what, view->wait_peer);
    atomic_store_explicit(&slot->state, TR_RANK_REMOTE, memory_order_release);
}

void tr_board_drop_remote(tr_board *board, int rank) {
    int32_t remote = TR_RANK_REMOTE;
    (void)atomic_compare_exchange_strong(&board->header->slots[rank].state, &remote,
                                         TR_RANK_ABSENT);
}

void tr_board_set_leader(tr_board *board, int rank) {
    atomic_store(&board->header->leader, rank + 1);
}

int tr_board_leader(const tr_board *board) {
    return atomic_load(&board->header->leader) - 1;
}

/* --- the job ---------------------------------------------------------------------------------- */

void tr_board_request_stop(tr_board *board) {
    int64_t none = 0;
    if (!board) return;
    (void)atomic_compare_exchange_strong(&board->header->stop_ns, &none, tr_now_ns());
    (void)pthread_mutex_lock(&board->lock);
    if (board->stop_word) atomic_store(board->stop_word, 1);
    (void)pthread_mutex_unlock(&board->lock);
}

void tr_board_set_stop_word(tr_board *board, _Atomic double *word) {
    if (!board) return;
    (void)pthread_mutex_lock(&board->lock);
    board->stop_word = word;
    (void)pthread_mutex_unlock(&board->lock);
    if (word && tr_board_stop_requested(board)) atomic_store(word, 1);
}

void tr_board_tell_ranks(const tr_board *board) {
    for (int rank = 0; rank < board->ranks; rank++) {
        tr_rank_view v;
        tr_process process;
        tr_board_read(board, rank, &v);
        if (v.state != TR_RANK_ALIVE || v.hidden) continue;
        tr_process_look(v.pid, &process);
        bool same = process.state == '?' || process.start == v.pid_start;
        if (same) (void)kill(v.pid, SIGUSR1);
    }
}

bool tr_board_stop_requested(const tr_board *board) {
    return tr_board_stop_ns(board) != 0;
}

int64_t tr_board_stop_ns(const tr_board *board) {
    return board ? atomic_load(&board->header->stop_ns) : 0;
}

void tr_board_set_interruptible(tr_board *board) {
    if (board) atomic_store(&board->header->interrupt, INTERRUPT_READY);
}

/* Replaces one state of the interrupt by another; returns false when it is not in the first. */
static bool move_interrupt(tr_board *board, int32_t from, int32_t to) {
    return board && atomic_compare_exchange_strong(&board->header->interrupt, &from, to);
}

bool tr_board_interrupt(tr_board *board) {
    return move_interrupt(board, INTERRUPT_READY, INTERRUPT_PENDING);
}

bool tr_board_take_interrupt(tr_board *board) {
    return move_interrupt(board, INTERRUPT_PENDING, INTERRUPT_READY);
}

bool tr_board_claim_report(tr_board *board) {
    return atomic_exchange(&board->header->reported, 1) == 0;
}

void tr_board_end_all(tr_board *board, int code) {
    int32_t none = 0;
    (void)atomic_compare_exchange_strong(&board->header->ending, &none, code);
}

int tr_board_ending(const tr_board *board) {
    return atomic_load(&board->header->ending);
}

bool tr_board_any_done(const tr_board *board) {
    for (int rank = 0; rank < board->ranks; rank++) {
        const board_slot *slot = &board->header->slots[rank];
        if (atomic_load(&slot->state) != TR_RANK_FINISHED) continue;
        int code = atomic_load(&slot->exit_code);
        if (code == 0 || code == TR_ERR_STOPPED) return true;
    }
    return false;
}

int tr_board_first_failure(const tr_board *board, int *rank, int64_t *since_ns) {
    uint64_t failure = atomic_load(&board->header->failure);
    if (rank) *rank = (int)(failure >> 32) - 1;
    if (since_ns) *since_ns = atomic_load(&board->header->failure_ns);
    return (int)(failure & 0xffffffff);
}

void tr_board_set_launcher(tr_board *board, pid_t pid) {
    atomic_store(&board->header->launcher, pid);
}

pid_t tr_board_launcher(const tr_board *board) {
    return atomic_load(&board->header->launcher);
}

void tr_board_set_columns(tr_board *board, int columns) {
    atomic_store(&board->header->columns, columns);
}

int tr_board_columns(const tr_board *board) {
    return board ? atomic_load(&board->header->columns) : 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Reads again when the writer has changed the turn meanwhile: it may be writing this wait again. */
static void read_wait(const board_slot *slot, tr_rank_view *view) {
    uint64_t words[WAIT_WORDS];
    for (int attempt = 0; attempt < 1000; attempt++) {
        uint32_t before = atomic_load_explicit(&slot->turn, memory_order_acquire);
        const board_wait *wait = &slot->waits[before & 1];
        for (int i = 0; i < WAIT_WORDS; i++)
            words[i] = atomic_load_explicit(&wait->what[i], memory_order_acquire);
        view->wait_peer = atomic_load_explicit(&wait->peer, memory_order_acquire);
        view->wait_ns = atomic_load_explicit(&wait->since_ns, memory_order_acquire);
        if (atomic_load_explicit(&slot->turn, memory_order_acquire) == before) break;
    }
    view->waiting = view->wait_ns != 0;
    memcpy(view->wait_what, words, sizeof view->wait_what);
    view->wait_what[sizeof view->wait_what - 1] = '\0';
}

void tr_board_read(const tr_board *board, int rank, tr_rank_view *view) {
    const board_slot *slot = &board->header->slots[rank];
    int32_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
    *view = (tr_rank_view){
        .state = (tr_rank_state)state, .step = -1, .stage = -1, .micro_batch = -1, .wait_peer = -1};
    if (view->state == TR_RANK_ABSENT) return;
    view->pid = atomic_load(&slot->pid);
    view->pid_start = atomic_load(&slot->pid_start);
    view->hidden = state != TR_RANK_REMOTE && atomic_load(&slot->pid_space) != board->pid_space;
    memcpy(view->host, slot->host, sizeof view->host);
    view->beat_ns = atomic_load(&slot->beat_ns);
    view->step = atomic_load(&slot->step) - 1;
    uint64_t action = atomic_load(&slot->action);
    view->stage = (int)(action >> 40) - 1;
    view->micro_batch = (int64_t)(action >> 8 & 0xffffffff) - 1;
    view->action = (char)(action & 0xff);
    view->action_ns = atomic_load(&slot->action_ns);
    view->work = atomic_load(&slot->work);
    view->work_done = atomic_load(&slot->work_done);
    view->work_total = atomic_load(&slot->work_total);
    read_wait(slot, view);
    if (view->state == TR_RANK_FINISHED) {
        view->exit_code = atomic_load(&slot->exit_code);
        memcpy(view->message, slot->message, sizeof view->message);
    }
}

void tr_board_sum_work(const tr_board *board, int work, int64_t *done, int64_t *total) {
    *done = *total = 0;
    for (int rank = 0; board && rank < board->ranks; rank++) {
        const board_slot *slot = &board->header->slots[rank];
        if (atomic_load(&slot->state) != TR_RANK_ALIVE || atomic_load(&slot->work) != work)
            continue;
        *done += atomic_load(&slot->work_done);
        *total += atomic_load(&slot->work_total);
    }
}

static const char *action_name(char action) {
    switch (action) {
    case 'F': return "forward (F)";
    case 'I': return "input gradient (I)";
    case 'W': return "weight gradient (W)";
    case 'B': return "backward (B)";
    case 'R': return "receive";
    case 'S': return "send";
    case 'G': return "sum of gradients";
    case 'C': return "copy to or from the host's memory";
    case 'P': return "gather of parameters";
    case 'O': return "optimizer step";
    case 'T': return "next token";
    case 'L': return "reading the model";
    case 'E': return "evaluation";
    default: return "unknown action";
    }
}

const char *tr_board_describe(const tr_board *board, int rank, char *buf, size_t size) {
    if (size == 0) return buf;
    buf[0] = '\0';
    if (!board || rank < 0 || rank >= board->ranks) {
        tr_text_add(buf, size, "rank %d (not on the board)", rank);
        return buf;
    }
    tr_rank_view v;
    tr_board_read(board, rank, &v);
    if (v.state == TR_RANK_ABSENT) {
        tr_text_add(buf, size, "rank %d (not on the board of this host)", rank);
        return buf;
    }
    tr_text_add(buf, size, "rank %d (host %s, pid %ld): ", rank, v.host, (long)v.pid);
    if (v.state == TR_RANK_FINISHED) {
        tr_text_add(buf, size, "finished with exit code %d", v.exit_code);
        return buf;
    }
    if (v.step >= 0) tr_text_add(buf, size, "step %lld, ", (long long)v.step);
    if (v.stage >= 0) tr_text_add(buf, size, "stage %d, ", v.stage);
    if (v.micro_batch >= 0)
        tr_text_add(buf, size, "%s %lld, ", v.action == 'E' ? "batch" : "micro-batch",
                    (long long)v.micro_batch);
    if (v.action)
        tr_text_add(buf, size, "%s for %.1f s", action_name(v.action), tr_since_s(v.action_ns));
    else tr_text_add(buf, size, v.step >= 0 ? "between actions" : "before its first step");
    if (v.waiting) {
        tr_text_add(buf, size, ", waits for ");
        if (v.wait_peer >= 0) tr_text_add(buf, size, "rank %d (%s)", v.wait_peer, v.wait_what);
        else tr_text_add(buf, size, "its group (%s)", v.wait_what);
        tr_text_add(buf, size, " for %.1f s", tr_since_s(v.wait_ns));
    }
    return buf;
}

static bool is_alive(const tr_rank_view *v) {
    return v->state == TR_RANK_ALIVE || v->state == TR_RANK_REMOTE;
}

/* A rank that stopped during a wait counts as silent, not as waiting: the other ranks wait for
 * it. */
static bool is_silent(const tr_rank_view *v) {
    int64_t limit = v->state == TR_RANK_REMOTE ? REMOTE_SILENCE_NS : SILENCE_NS;
    return is_alive(v) && tr_now_ns() - v->beat_ns > limit;
}

int tr_board_longest_working(const tr_board *board, int except) {
    int found = -1;
    bool silent = false;
    int64_t oldest = INT64_MAX;
    for (int r = 0; r < board->ranks; r++) {
        if (r == except) continue;
        tr_rank_view v;
        tr_board_read(board, r, &v);
        bool now_silent = is_silent(&v);
        if (!is_alive(&v) || (v.waiting && !now_silent)) continue;
        int64_t since = now_silent ? v.beat_ns : v.action_ns;
        if (silent != now_silent ? silent : since >= oldest) continue;
        found = r;
        silent = now_silent;
        oldest = since;
    }
    return found;
}

int tr_board_late_rank(const tr_board *board, int rank) {
    int at = rank;
    for (int hops = 0; hops < board->ranks; hops++) {
        tr_rank_view v;
        tr_board_read(board, at, &v);
        if (!v.waiting || !is_alive(&v) || is_silent(&v)) return at;
        if (v.wait_peer < 0) {
            int working = tr_board_longest_working(board, -1);
            return working >= 0 ? working : at;
        }
        if (v.wait_peer >= board->ranks) return at;
        at = v.wait_peer;
    }
    return at;
}
