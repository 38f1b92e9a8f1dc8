/* A libnccl.so.2 for tests, on the streams of host devices (guarded): it moves and sums data as
 * NCCL does, and checks NCCL's rules for callers. It ends the process with a sentence when
 *   - the ranks of a communicator make calls of different counts, types or operations;
 *   - a send meets a receive of another size or type, or the caller's own rank;
 *   - a communicator is used while another thread's call is in progress (except to abort it) or
 * after its end, or is never ended;
 *   - a communicator is configured as non-blocking, or one that sends outside of a group of calls
 * may use more than two multiprocessors (CTAs);
 *   - buffers overlap in a way that is not in place, or a receive's buffer overlaps another of its
 * group.
 * Calls enqueue and return. Three calls block until the other ranks make them too, or the
 * communicator is aborted: making a communicator, ending it, and the first message between two
 * ranks. Sends wait for their receives, in a group of calls for all of those at once; sums are from
 * the last rank down, so that their bits differ from sums in rank order, in FP32, rounded once.
 * Ranks exchange data in shared memory of one machine. NCCL_MOCK_STUCK=RANK:CALL blocks that rank
 * in that call until its communicator is aborted (CALL 0: forever, where its first communicator is
 * made); NCCL_MOCK_DEAF=RANK:CALL blocks it forever, also after an abort; NCCL_MOCK_ERROR=RANK:CALL
 * makes its communicator fail. */
#include "base/dtype.h"
#include "device/device_impl.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <nccl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8, WINDOW = 1 << 16, COMMS = 4096, HELD = 2 * MOST * 64 };

typedef enum kind { ALL_REDUCE, REDUCE, BROADCAST, SEND, RECV } kind;
static const char *const kinds[] = {"AllReduce", "Reduce", "Broadcast", "Send", "Recv"};

typedef struct call {
    kind kind;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* of a send or receive; the root of a broadcast or a reduction */
    uint64_t number, count;
} call;

/* A counter that only grows; threads sleep on it until it reaches a value. */
typedef _Atomic uint32_t counter;

/* One rank's side of the collectives: its step, the steps of the other ranks that it has read, its
 * window. */
typedef struct desk {
    counter published, read;
    call call;
    char window[WINDOW];
} desk;

/* The messages from one rank to another. */
typedef struct box {
    counter offered, asked, filled, emptied; /* calls of both ends; chunks */
    atomic_bool sender_called, receiver_called;
    call send, receive;
    char window[WINDOW];
} box;

typedef struct meeting {
    atomic_int ranks, open, attached, leaving, present[MOST];
    desk desk[MOST];
    box box[MOST][MOST];
} meeting;

typedef enum state { READY, FINALIZED, ENDED } state;

struct ncclComm {
    _Atomic state state;
    atomic_bool busy; /* a call is in progress */
    int n, rank, ctas;
    bool broken; /* by NCCL_MOCK_ERROR */
    const char *ended_by;
    char name[64];
    meeting *shared;
    atomic_bool aborted;
    atomic_int outstanding; /* pieces of work that are queued */
    uint64_t calls;         /* collectives */
    uint64_t sends[MOST], receives[MOST];
    uint64_t step; /* of the stream's work */
    uint64_t chunks_out[MOST], chunks_in[MOST];
    tr_stream *stream; /* all work of a communicator is on one */
    char *in, *out;    /* staging: [WINDOW] each */
    /* The call in progress: */
    call call;
    const char *from;
    char *to;
};

/* A send or receive of a group of calls that has not ended. */
typedef struct held {
    struct ncclComm *comm;
    call call;
    const void *from;
    void *to, *stream;
} held;

static struct ncclComm comms[COMMS];
static held held_calls[HELD];
static int held_count;
static bool in_group; /* of the thread that makes all calls */
static int used;
static atomic_int live;

__attribute__((noreturn, format(printf, 2, 3))) static void violation(const struct ncclComm *c,
                                                                      const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fprintf(stderr, "nccl mock: rank %d of %d of communicator %s: %s\n", c ? c->rank : -1,
                  c ? c->n : 0, c ? c->name : "?", text);
    (void)fflush(stderr);
    abort();
}

__attribute__((destructor)) static void look_for_leaks(void) {
    if (live == 0) return;
    (void)fprintf(stderr, "nccl mock: %d communicators were neither destroyed nor aborted\n", live);
    _exit(86);
}

/* --- work on the stream ----------------------------------------------------------------------- */

/* Waits until the counter reaches the value; false after an abort, for which it looks from time to
 * time, because an abort wakes no sleeper. */
static bool reach(struct ncclComm *c, counter *of, uint64_t value) {
    const struct timespec nap_time = {.tv_nsec = 20000000};
    for (;;) {
        uint32_t now = *of;
        if (now >= value) return true;
        if (c->aborted) return false;
        (void)syscall(SYS_futex, of, FUTEX_WAIT, now, &nap_time, NULL, 0);
    }
}

static void set(counter *of, uint64_t value) {
    *of = (uint32_t)value;
    (void)syscall(SYS_futex, of, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static size_t size_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8: return 1;
    case ncclBfloat16:
    case ncclFloat16: return 2;
    case ncclFloat32: return 4;
    case ncclFloat64: return 8;
    default: return 0;
    }
}

static void describe(const call *k, char *text, size_t size) {
    (void)snprintf(text, size, "%s number %llu of %llu elements of type %d, operation %d, peer %d",
                   kinds[k->kind], (unsigned long long)k->number, (unsigned long long)k->count,
                   k->type, k->op, k->peer);
}

static bool same(const call *a, const call *b) {
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->peer == b->peer &&
           a->number == b->number && a->count == b->count;
}

static double load(const char *p, ncclDataType_t type) {
    if (type == ncclFloat64) return *(const double *)(const void *)p;
    if (type == ncclFloat32) return (double)*(const float *)(const void *)p;
    return (double)tr_narrow_load(type == ncclFloat16 ? TR_F16 : TR_BF16,
                                  *(const uint16_t *)(const void *)p);
}

static void store(char *p, ncclDataType_t type, double x) {
    if (type == ncclFloat64) *(double *)(void *)p = x;
    else if (type == ncclFloat32) *(float *)(void *)p = (float)x;
    else *(uint16_t *)(void *)p = tr_narrow_round(type == ncclFloat16 ? TR_F16 : TR_BF16, (float)x);
}

static void reduce(const struct ncclComm *c, const call *k, uint64_t count) {
    size_t e = size_of(k->type);
    for (uint64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = c->n - 1; r >= 0; r--) {
            double x = load(c->shared->desk[r].window + i * e, k->type);
            if (r == c->n - 1) sum = x;
            else if (k->op == ncclMax) sum = x > sum || x != x ? x : sum;
            else if (k->type == ncclFloat64) sum += x;
            else sum = (double)((float)sum + (float)x);
        }
        store(c->out + i * e, k->type, sum);
    }
}

typedef struct piece {
    struct ncclComm *comm;
    call call;
    size_t bytes;   /* that this rank gives or takes in this step */
    uint64_t count; /* of elements of the result, in a reduction */
    bool first;
} piece;

/* Runs one step of a collective: every rank writes its window and reads those of all ranks. */
static void meet(struct ncclComm *c, const piece *p) {
    desk *mine = &c->shared->desk[c->rank];
    uint64_t step = ++c->step;
    for (int r = 0; r < c->n; r++) /* my last window was read by all */
        if (!reach(c, &c->shared->desk[r].read, step - 1)) return;
    mine->call = p->call;
    memcpy(mine->window, c->in, p->bytes);
    set(&mine->published, step);
    for (int r = 0; r < c->n; r++) {
        if (!reach(c, &c->shared->desk[r].published, step)) return;
        if (same(&c->shared->desk[r].call, &p->call)) continue;
        char a[128], b[128];
        describe(&p->call, a, sizeof a);
        describe(&c->shared->desk[r].call, b, sizeof b);
        violation(c, "calls %s, and rank %d calls %s", a, r, b);
    }
    if (p->call.kind == BROADCAST) memcpy(c->out, c->shared->desk[p->call.peer].window, p->bytes);
    else reduce(c, &p->call, p->count);
    set(&mine->read, step);
}

static void compare_ends(struct ncclComm *c, const call *send, const call *receive) {
    if (send->type == receive->type && send->count == receive->count &&
        send->number == receive->number)
        return;
    char a[128], b[128];
    describe(send, a, sizeof a);
    describe(receive, b, sizeof b);
    violation(c, "%s meets %s", a, b);
}

/* Sends a chunk once its receive has been called. */
static void offer(struct ncclComm *c, const piece *p) {
    box *b = &c->shared->box[c->rank][p->call.peer];
    if (p->first) {
        if (!reach(c, &b->emptied, c->chunks_out[p->call.peer])) return;
        b->send = p->call;
        set(&b->offered, p->call.number);
        if (!reach(c, &b->asked, p->call.number)) return;
        compare_ends(c, &b->send, &b->receive);
    }
    uint64_t chunk = ++c->chunks_out[p->call.peer];
    if (!reach(c, &b->emptied, chunk - 1)) return;
    memcpy(b->window, c->in, p->bytes);
    set(&b->filled, chunk);
    (void)reach(c, &b->emptied, chunk);
}

static void fetch(struct ncclComm *c, const piece *p) {
    box *b = &c->shared->box[p->call.peer][c->rank];
    if (p->first) {
        b->receive = p->call;
        set(&b->asked, p->call.number);
        if (!reach(c, &b->offered, p->call.number)) return;
        compare_ends(c, &b->send, &b->receive);
    }
    uint64_t chunk = ++c->chunks_in[p->call.peer];
    if (!reach(c, &b->filled, chunk)) return;
    memcpy(c->out, b->window, p->bytes);
    set(&b->emptied, chunk);
}

static void work(void *argument) {
    piece *p = argument;
    struct ncclComm *c = p->comm;
    if (!c->aborted) {
        if (p->call.kind == SEND) offer(c, p);
        else if (p->call.kind == RECV) fetch(c, p);
        else meet(c, p);
    }
    c->outstanding--;
    free(p);
}

static void copy(struct ncclComm *c, void *to, const void *from, size_t bytes) {
    if (bytes > 0 && c->stream->device->ops->stream_copy(c->stream, to, from, bytes) != TR_OK)
        violation(c, "a buffer is not in device memory");
}

static void enqueue(struct ncclComm *c, size_t bytes, uint64_t count, bool first) {
    piece *p = malloc(sizeof *p);
    if (!p) abort();
    *p = (piece){.comm = c, .call = c->call, .bytes = bytes, .count = count, .first = first};
    c->outstanding++;
    if (c->stream->device->ops->stream_work(c->stream, work, p) != TR_OK) abort();
}

/* Cuts the call into pieces of a window each. */
static void start(struct ncclComm *c) {
    const call *k = &c->call;
    size_t e = size_of(k->type), total = k->count * e;
    for (size_t at = 0; at < total; at += WINDOW) {
        size_t bytes = total - at < WINDOW ? total - at : WINDOW;
        if (k->kind != RECV) copy(c, c->in, c->from + at, bytes);
        enqueue(c, bytes, bytes / e, at == 0);
        if (k->kind != SEND && c->to && (k->kind != REDUCE || k->peer == c->rank))
            copy(c, c->to + at, c->out, bytes);
    }
}

/* --- calls ------------------------------------------------------------------------------------ */

static void enter(struct ncclComm *c, const char *what) {
    if (!c || c < comms || c >= comms + used) violation(NULL, "%s without a communicator", what);
    if (c->state == ENDED) violation(c, "%s after %s", what, c->ended_by);
    if (c->state == FINALIZED) violation(c, "%s after ncclCommFinalize", what);
    if (atomic_exchange(&c->busy, true)) violation(c, "%s while a call is in progress", what);
}

static void check_buffers(struct ncclComm *c, const call *k, const char *from, const char *to) {
    size_t bytes = k->count * size_of(k->type);
    if (k->kind < SEND && to && from != to && from < to + bytes && to < from + bytes)
        violation(c, "%s: buffers overlap and are not in place", kinds[k->kind]);
}

/* Returns the flag that is set when one end of a send or receive has called. */
static atomic_bool *called(struct ncclComm *c, const call *k, kind end) {
    box *b =
        k->kind == SEND ? &c->shared->box[c->rank][k->peer] : &c->shared->box[k->peer][c->rank];
    return end == SEND ? &b->sender_called : &b->receiver_called;
}

/* Returns true when the environment's `variable` is "RANK:CALL" with this rank and the number of
 * its calls so far. */
static bool fault_is_due(const char *variable, int calls) {
    const char *given = getenv(variable), *mine = getenv("OMPI_COMM_WORLD_RANK");
    char *end;
    if (!given || !mine || strtol(given, &end, 10) != strtol(mine, NULL, 10)) return false;
    return *end == ':' && calls >= strtol(end + 1, NULL, 10);
}

static void nap(void) {
    (void)nanosleep(&(const struct timespec){.tv_nsec = 200000}, NULL);
}

/* Simulates what a fault does to a job: a call does not return, or fails. */
static void inject_fault(struct ncclComm *c) {
    static int calls;
    calls++;
    while (fault_is_due("NCCL_MOCK_STUCK", calls) && !c->aborted) nap();
    if (fault_is_due("NCCL_MOCK_DEAF", calls)) (void)sleep(3600);
    if (fault_is_due("NCCL_MOCK_ERROR", calls)) c->broken = true;
}

/* The first message waits for the other rank's call. */
static bool meets(struct ncclComm *c, const call *k) {
    if (k->kind < SEND || k->number > 1) return true;
    *called(c, k, k->kind) = true;
    while (!c->aborted && !(*called(c, k, SEND) && *called(c, k, RECV))) nap();
    return !c->aborted;
}

static ncclResult_t operate(struct ncclComm *c, call k, const void *from, void *to, void *stream) {
    enter(c, kinds[k.kind]);
    if (size_of(k.type) == 0) violation(c, "%s of type %d", kinds[k.kind], k.type);
    if ((k.kind == BROADCAST || k.kind == REDUCE) && (k.peer < 0 || k.peer >= c->n))
        violation(c, "%s with root %d", kinds[k.kind], k.peer);
    if (k.kind >= SEND && (k.peer < 0 || k.peer >= c->n || k.peer == c->rank))
        violation(c, "%s with rank %d", kinds[k.kind], k.peer);
    if (k.kind >= SEND && !in_group && (c->ctas < 1 || c->ctas > 2))
        violation(c, "%s may take %d CTAs", kinds[k.kind], c->ctas);
    check_buffers(c, &k, from, to);
    inject_fault(c);
    k.number = k.kind == SEND   ? ++c->sends[k.peer]
               : k.kind == RECV ? ++c->receives[k.peer]
                                : ++c->calls;
    if (!c->stream) {
        tr_device *device = ((tr_stream *)stream)->device;
        if (!device->ops->stream_work)
            violation(c, "%s on a device that does not compute on the host", kinds[k.kind]);
        c->stream = stream;
        if (device->ops->staging_alloc(device, WINDOW, (void **)&c->in) != TR_OK ||
            device->ops->staging_alloc(device, WINDOW, (void **)&c->out) != TR_OK)
            abort();
    }
    if (c->stream != stream) violation(c, "%s on another stream", kinds[k.kind]);
    c->call = k;
    c->from = from;
    c->to = to;
    if (c->aborted || !meets(c, &k)) return ncclRemoteError;
    start(c);
    c->busy = false;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    call k = {.kind = ALL_REDUCE, .type = type, .op = op, .count = count};
    return operate(comm, k, from, to, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    call k = {.kind = BROADCAST, .type = type, .peer = root, .count = count};
    return operate(comm, k, from, to, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    call k = {.kind = REDUCE, .type = type, .op = op, .peer = root, .count = count};
    return operate(comm, k, from, to, stream);
}

/* Every rank's part is broadcast. */
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    const size_t bytes = count * size_of(type);
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < comm->n && result == ncclSuccess; r++)
        result = ncclBroadcast(from, (char *)to + (size_t)r * bytes, count, type, r, comm, stream);
    return result;
}

/* Every part is summed, and a rank gets its own. */
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    const size_t bytes = count * size_of(type);
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < comm->n && result == ncclSuccess; r++)
        result = ncclAllReduce((const char *)from + (size_t)r * bytes, r == comm->rank ? to : NULL,
                               count, type, op, comm, stream);
    return result;
}

/* nccl.h declares these two without prototypes. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclGroupStart(void) {
    if (in_group) violation(NULL, "ncclGroupStart in a group");
    in_group = true;
    return ncclSuccess;
}

/* Runs the group's sends and receives in the order of (sender, receiver), which is one order for
 * all ranks, so that no two wait for each other. */
ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result = ncclSuccess;
    if (!in_group) violation(NULL, "ncclGroupEnd without a group");
    for (int from = 0; from < MOST; from++)
        for (int to = 0; to < MOST; to++)
            for (int i = 0; i < held_count && result == ncclSuccess; i++) {
                const held *h = &held_calls[i];
                const bool sends = h->call.kind == SEND;
                if ((sends ? h->comm->rank : h->call.peer) == from &&
                    (sends ? h->call.peer : h->comm->rank) == to)
                    result = operate(h->comm, h->call, h->from, h->to, h->stream);
            }
    in_group = false;
    held_count = 0;
    return result;
}

/* Keeps a send or receive until its group ends. */
static ncclResult_t hold(struct ncclComm *c, call k, const void *from, void *to, void *stream) {
    const size_t bytes = k.count * size_of(k.type);
    const char *data = to ? to : from;
    if (held_count == HELD) violation(c, "a group of more than %d sends and receives", HELD);
    for (int i = 0; i < held_count; i++) {
        const held *h = &held_calls[i];
        const char *other = h->to ? h->to : h->from;
        if ((to || h->to) && data < other + h->call.count * size_of(h->call.type) &&
            other < data + bytes)
            violation(c, "%s: its buffer overlaps one of a %s in its group", kinds[k.kind],
                      kinds[h->call.kind]);
    }
    held_calls[held_count++] = (held){c, k, from, to, stream};
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    call k = {.kind = SEND, .type = type, .peer = peer, .count = count};
    return (in_group ? hold : operate)(comm, k, from, NULL, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    call k = {.kind = RECV, .type = type, .peer = peer, .count = count};
    return (in_group ? hold : operate)(comm, k, NULL, to, stream);
}

/* --- communicators ---------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    uint64_t random; /* a killed run may leave its memory to a process of the same number */
    if (getrandom(&random, sizeof random, 0) != sizeof random) violation(NULL, "no random bits");
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "/nccl-mock-%016" PRIx64, random);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    if (used == COMMS || n < 1 || n > MOST) violation(NULL, "%d ranks, or too many calls", n);
    struct ncclComm *c = &comms[used++];
    c->n = n;
    c->rank = rank;
    (void)snprintf(c->name, sizeof c->name, "%.*s", (int)sizeof c->name - 1, id.internal);
    if (!config || config->magic != 0xcafebeef || config->size != sizeof *config)
        violation(c, "a config without NCCL_CONFIG_INITIALIZER");
    if (config->blocking != 1) violation(c, "a non-blocking communicator");
    c->ctas = config->maxCTAs;
    int file = shm_open(c->name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(meeting)) != 0) violation(c, "no shared memory");
    void *memory = mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (memory == MAP_FAILED) violation(c, "no shared memory");
    c->shared = memory;
    int others = 0;
    if (!atomic_compare_exchange_strong(&c->shared->ranks, &others, n) && others != n)
        violation(c, "another rank says that there are %d", others);
    if (rank < 0 || rank >= n || atomic_exchange(&c->shared->present[rank], 1))
        violation(c, "a rank is out of range or has been opened already");
    if (++c->shared->open == n) (void)shm_unlink(c->name);
    if (fault_is_due("NCCL_MOCK_STUCK", 0)) (void)sleep(3600);
    c->shared->attached++;
    while (c->shared->attached < n) nap();
    live++;
    *out = c;
    return ncclSuccess;
}

static void leave(struct ncclComm *c, const char *by) {
    c->state = ENDED;
    c->ended_by = by;
    live--;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
    struct ncclComm *c = comm;
    if (!c || c < comms || c >= comms + used)
        violation(NULL, "ncclCommGetAsyncError without a communicator");
    if (c->state == ENDED) violation(c, "ncclCommGetAsyncError after %s", c->ended_by);
    *result = c->broken ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    enter(comm, "ncclCommFinalize");
    comm->shared->leaving++;
    while (!comm->aborted && (comm->outstanding > 0 || comm->shared->leaving < comm->n)) nap();
    if (comm->aborted) return ncclRemoteError;
    comm->state = FINALIZED;
    comm->busy = false;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm->state == ENDED) violation(comm, "ncclCommDestroy after %s", comm->ended_by);
    if (comm->state != FINALIZED)
        violation(comm, "ncclCommDestroy before ncclCommFinalize is done");
    leave(comm, "ncclCommDestroy");
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm->state == ENDED) violation(comm, "ncclCommAbort after %s", comm->ended_by);
    comm->shared->leaving++;
    leave(comm, "ncclCommAbort");
    comm->aborted = true;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : "an error of the mock";
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "";
}
