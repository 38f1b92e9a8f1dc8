/* Communication of one rank: the world, groups with stream-ordered collectives, and channels.
 *
 * A world has one of the transports mpi (processes) and local (ranks are threads of one process:
 * unit tests and sanitizers); NCCL may also carry the data of a GPU (tr_world_choose_data_plane).
 * Collectives add in group-rank order, in FP32 (f64 data in FP64), whatever the size or offset, and
 * round once, so their bits do not depend on the transport (over NCCL: tr_own_sums). The host
 * transports stage memory of a device that does not compute on the host in pinned buffers, unless
 * NCCL carries it. With staging only the compute stream takes messages, waits for sends and runs
 * collectives, through a queue (tr_device_start_queue): its worker thread waits for the other
 * ranks. A world that has failed (a deadline, an abort, a transport's error) stays failed: every
 * later wait returns that failure. */
#pragma once

#include "base/dtype.h"
#include "device/device.h"

typedef struct tr_world tr_world;
typedef struct tr_group tr_group;
typedef struct tr_channel tr_channel;

/* How the members of a group reduce the n values of an element. */
typedef enum tr_reduce {
    TR_REDUCE_SUM,
    TR_REDUCE_MAX,
    /* A sum of f32 that travels in BF16: half the bytes; bf16 travels as it is. Every value is
     * rounded to BF16, also that of the member that adds, because otherwise the bits would depend
     * on which member that is. The values are added in FP32 in group-rank order, and the sum is
     * rounded to BF16 once. */
    TR_REDUCE_SUM_BF16
} tr_reduce;

/* Returns the type in which elements of `dtype` travel in this reduction. */
static inline tr_dtype tr_reduce_wire(tr_reduce op, tr_dtype dtype) {
    return op == TR_REDUCE_SUM_BF16 ? TR_BF16 : dtype;
}

/* Which sums the groups of NCCL add by themselves, in rank order: the members exchange summands and
 * add them with an operator of the device. NCCL adds three or more values in an order of its
 * own. */
typedef struct tr_own_sums {
    bool ordered; /* those of three or more values */
    bool bf16;    /* TR_REDUCE_SUM_BF16, which NCCL does not have */
} tr_own_sums;

/* How the messages and collectives of a device travel: by the world's transport (staged, for a
 * device that does not compute on the host), or by NCCL. */
typedef enum tr_plane { TR_PLANE_AUTO, TR_PLANE_MPI, TR_PLANE_NCCL } tr_plane;

/* Shows on the watchdog's board what a rank does. `wait` is called at the begin and end of every
 * wait longer than a moment (begin true, then false). A wait that fails gets no end call, so that
 * the board still shows the awaited rank when the other ranks fail too. `peer` is a world rank or
 * -1 (a group). work: see tr_world_tell_work. Either may be NULL. Several threads of the rank call
 * them, also under the world's lock, so they must not call comm/. */
typedef struct tr_world_hook {
    void (*wait)(void *context, bool begin, const char *what, int peer);
    void (*work)(void *context, int64_t done, int64_t total);
    void *context;
    double deadline_s; /* a longer wait for a living rank fails with TR_ERR_RANK; 0: no deadline */
} tr_world_hook;

/* --- worlds ----------------------------------------------------------------------------------- */

/* Joins MPI (MPI_Init_thread when it has not been called; needs MPI_THREAD_SERIALIZED) and starts
 * the progress thread. One world per process. If a host has a CPU for every rank, ranks that may
 * use the same CPUs divide them, and this thread and those that it starts later use only this
 * rank's share. A process that no launcher started is a world of one without MPI. Fails with
 * TR_ERR_DEVICE when Slurm's or torchrun's variables announce several ranks but MPI has one, which
 * mpirun was not asked for; the message has the right command. */
tr_status tr_world_open_mpi(tr_world **out);
/* Returns the major version of Open MPI; 0 for another MPI. Does not start MPI. */
int tr_world_mpi_version(void);
/* Opens n worlds for n threads of this process in out[0..n). A send completes only when its receive
 * is posted (rendezvous), as the deadlock proof assumes. */
tr_status tr_world_open_local(int n, tr_world **out);
/* Closes the world after its groups and channels. Collective. Ends the progress thread, and MPI
 * (MPI_Finalize). After a failure it does not wait for other ranks: their waits fail (local), or
 * mpirun ends those ranks when this process ends without MPI_Finalize. */
void tr_world_close(tr_world *world);
/* Ends every rank of the world at once with this exit code (MPI_Abort; local: every wait of every
 * rank fails with TR_ERR_RANK). */
void tr_world_abort(tr_world *world, int code);

/* Makes all later waits of this rank, including those of closing, end at once with this thread's
 * error. A rank that fails by itself calls it before it closes groups and channels; otherwise its
 * last sends would wait for ranks that wait for it. The other ranks learn of the failure by
 * tr_world_abort or tr_world_close. */
void tr_world_give_up(tr_world *world, tr_status status);

/* Returns true after a failure when the transport may still access the memory of a message that
 * could not be withdrawn, such as a tensor that a closed channel was sending. Then such memory must
 * stay until the process ends. */
bool tr_world_keeps_memory(tr_world *world);

/* Returns the failure of an earlier call that ran later in stream order, or TR_OK. */
tr_status tr_world_check(tr_world *world);
/* Waits like tr_stream_sync until the stream has done all queued work, but also ends when that work
 * waits for a lost rank. Returns the failure of the queued work, or TR_OK. */
tr_status tr_world_sync(tr_world *world, tr_stream *stream);

/* Watches the world's calling thread; another thread calls this a few times a second. The calling
 * thread may be inside a call of NCCL that waits for a lost rank: shows such a wait through the
 * hook. Past the deadline the world fails, and NCCL's communicators are aborted, which ends the
 * call. Returns true, with a sentence, when the abort does not end the call: then the process must
 * end. Waits only for the abort. */
bool tr_world_look(tr_world *world, char *sentence, size_t size);

/* Chooses the data plane of `device`. Collective; call it before groups and channels of the device
 * are opened. AUTO chooses NCCL if every rank has its own GPU; when GPUs are staged instead,
 * note[size] says why (else ""). Fails with TR_ERR_CONFIG or TR_ERR_DEVICE when NCCL is wanted and
 * impossible. The device stays open as long as its groups and channels.
 *
 * With NCCL the ranks of a group and the two ends of a channel open it, and close it, at the same
 * time, and wait for each other; a rank that cannot open one gives up. Only the calling thread of
 * this world may use them, and the sum of three or more values has NCCL's order unless
 * tr_world_set_own_sums says otherwise. A lost rank is then noticed in tr_world_sync. */
tr_status tr_world_choose_data_plane(tr_world *world, tr_device *device, tr_plane want, char *note,
                                     size_t size);
bool tr_world_uses_nccl(const tr_world *world);
/* Sets which sums groups of NCCL that are opened later add by themselves; equal on all ranks.
 * tr_world_own_sums returns them, none without NCCL. */
void tr_world_set_own_sums(tr_world *world, tr_own_sums own);
tr_own_sums tr_world_own_sums(const tr_world *world);
/* Returns how many compute units of a GPU the posted receive of one channel occupies until its
 * message has come; 0 without NCCL. Call it after tr_world_choose_data_plane. */
int tr_world_receive_units(const tr_world *world);
/* Returns the receive units of a run of `ranks` ranks that has not begun, if each has a device like
 * this one to itself. */
int tr_world_expected_units(tr_device *device, tr_plane want, int ranks);
/* tr_world_shares returns true when that rank's device memory is also this rank's (the same GPU, or
 * the same machine's memory for devices that compute on the host); it is true for this rank itself.
 * tr_world_sharers returns the number of such ranks. Call them after tr_world_choose_data_plane. */
bool tr_world_shares(const tr_world *world, int rank);
int tr_world_sharers(const tr_world *world);
/* Writes "NCCL 2.28.9" to text[size]. */
void tr_world_nccl_text(char *text, size_t size);

int tr_world_rank(const tr_world *world);
int tr_world_size(const tr_world *world);
/* Returns this rank's place among the ranks on its host. */
int tr_world_host_rank(const tr_world *world);
/* Returns the cores that this rank has for its threads, at least 1: those that it may use, divided
 * by the ranks of its host that may use the same ones. All of these ranks get the same number. */
int tr_world_cores(const tr_world *world);
void tr_world_set_hook(tr_world *world, const tr_world_hook *hook);
/* Returns the hook, so that another one can call it. */
tr_world_hook tr_world_get_hook(tr_world *world);
/* Makes tr_world_close call `call` after its barrier, or at once after a failure, while messages
 * can still be sent. A later call replaces an earlier one. */
void tr_world_before_close(tr_world *world, void (*call)(void *context, bool failed),
                           void *context);
/* Tells the hook how much of a long piece of work this rank has done, in any unit (bytes of a
 * checkpoint, drawn values), for the progress line. Not collective; cheap. */
void tr_world_tell_work(tr_world *world, int64_t done, int64_t total);
/* Delays every channel message (group -1) and every collective of a group (its id) by
 * delay(context, group, bytes) seconds after its send or start, for tests and benchmarks. The
 * collectives of a group follow each other, and so do their delays. Called on the sender, and on
 * every rank of the group. NULL: no delay. NCCL's are not delayed. */
void tr_world_set_delay(tr_world *world, double (*delay)(void *context, int group, size_t bytes),
                        void *context);

/* --- control plane: host memory, blocking, for set-up, checkpoints and agreement --------------
 *
 * When a call fails only on one rank (no memory), that rank gives up, and the other ranks stop
 * waiting. */

tr_status tr_world_barrier(tr_world *world);
/* Copies `bytes` from root's buffer into every rank's. */
tr_status tr_world_broadcast(tr_world *world, int root, void *buffer, size_t bytes);
/* Gathers every rank's `bytes` in rank order in all[size * bytes]. */
tr_status tr_world_gather_all(tr_world *world, const void *mine, void *all, size_t bytes);
/* Gathers different sizes: *all (malloc'd, the caller frees it) holds the ranks' bytes in rank
 * order, and sizes[size] their sizes. */
tr_status tr_world_gather_all_v(tr_world *world, const void *mine, size_t bytes, void **all,
                                size_t *sizes);
/* Agrees on an outcome: every rank returns the status of the lowest rank that failed, with that
 * rank's message, or TR_OK when all succeeded. So an error on one rank ends all ranks with one
 * message, and tr_error_is_agreed() is true for it. */
tr_status tr_world_agree(tr_world *world, tr_status mine);
/* Allocates a zeroed array in *out on every rank, like tr_calloc, or on none: when one rank has no
 * memory, all fail with TR_ERR_FIT, and *out is NULL. The sizes may differ. */
tr_status tr_world_calloc(tr_world *world, size_t count, size_t size, void *out);

/* --- groups ----------------------------------------------------------------------------------- */

/* The ticket of a collective that does nothing; waiting for it does nothing. */
enum { TR_GROUP_NO_TICKET = -1 };

/* Opens a group of world ranks, in the given order, for memory of `device`. Only its members call
 * it, all with the same list and the same `id` (unique in the world, >= 0). An all-reduce of a
 * group of one returns at once. max_bytes is the size of one piece of an all-reduce; a larger one
 * runs in pieces. Allocates all scratch, and a landing buffer in the device's memory where NCCL's
 * groups add by themselves. */
tr_status tr_group_open(tr_world *world, tr_device *device, const int *ranks, int n, int id,
                        size_t max_bytes, tr_group **out);
void tr_group_close(tr_group *group);
/* Returns the bytes of the landing buffer (TR_MEMORY_TRANSFERS) of a group of n ranks; 0: none.
 * own: as of tr_world_own_sums. */
size_t tr_group_landing_bytes(int n, size_t max_bytes, tr_own_sums own);
/* Begins to reduce buffer[count] over the members, in place, for f32, bf16, f16 and f64, after all
 * work enqueued so far on `stream`; returns at once, except that on CPUs the calling thread may
 * first round one piece of a sum that travels in BF16. The buffer must not be used until later work
 * has waited for *ticket, the reduction's number. The reductions of a group run in the order of
 * their starts; those of different groups do not wait for each other. All members make the same
 * calls in the same order, on one stream at a time. A failure that happens after the call has
 * returned becomes the world's failure. */
tr_status tr_group_start(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                         tr_dtype dtype, tr_reduce op, int64_t *ticket);
/* Makes later work on `stream` wait until reduction `ticket`, and all before it, are complete.
 * Tickets may be waited for in any order, and more than once. */
tr_status tr_group_wait(tr_group *group, tr_stream *stream, int64_t ticket);
/* Makes the next collective of `group` that is started begin only when collective `ticket` of
 * `before`, another group for the same device, is complete; without a call between the two. Over
 * host transports `before` may close meanwhile. */
tr_status tr_group_follow(tr_group *group, tr_group *before, int64_t ticket);
/* Returns the seconds in which streams have waited for the group's collectives; with NCCL 0. A host
 * device's calling thread may ask, and others while its streams are idle. */
double tr_group_waited(const tr_group *group);
/* Starts a reduction and waits for it. */
tr_status tr_group_all_reduce(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                              tr_dtype dtype, tr_reduce op);

/* Numbers that every member of a group has computed a summand of. */
typedef struct tr_scatter_range {
    void *data;
    int64_t count;
    /* The members that get the sum: a run of `ranks` neighbours from this place on. Runs begin at
     * multiples of their length, which is the same for all ranges of a call. */
    int rank, ranks;
} tr_scatter_range;
/* Begins a reduce-scatter: sums each range over all members, in the memory of the members that get
 * it; the memory of the other members becomes undefined. The bits are those of tr_group_start,
 * except where NCCL adds three or more values. op: a sum. All members name ranges of the same sizes
 * and ranks, in the same order; they do not overlap. Ranges and array must not be used until later
 * work has waited for *ticket. Takes its turn among the group's reductions; see tr_group_start. */
tr_status tr_group_scatter_ranges(tr_group *group, tr_stream *stream, const tr_scatter_range *range,
                                  int count, tr_dtype dtype, tr_reduce op, int64_t *ticket);

/* Memory that every member of a group has, with contents that one of them computed. */
typedef struct tr_gather_range {
    void *data;
    size_t bytes;
    int rank; /* that member's place in the group */
} tr_gather_range;
/* Begins to copy each range from the member that computed it to the other members, after all work
 * enqueued so far on `stream`; returns at once. All members name ranges of the same sizes and
 * ranks, in the same order; they do not overlap. Ranges and array must not be used until later work
 * has waited for *ticket. Takes its turn among the group's reductions; see tr_group_start. */
tr_status tr_group_gather(tr_group *group, tr_stream *stream, const tr_gather_range *range,
                          int count, int64_t *ticket);
/* The same of sums with elements of `dtype` that reductions with `op` have made: they travel as
 * these do (tr_reduce_wire), with the same bits. */
tr_status tr_group_gather_sums(tr_group *group, tr_stream *stream, const tr_gather_range *range,
                               int count, tr_dtype dtype, tr_reduce op, int64_t *ticket);

/* tr_group_scatter begins to sum whole[n * count] over the n members, and sets part[count], which
 * is outside `whole`, to the elements of the sum from this member's place * count on; it may change
 * nothing else. The bits are those of tr_group_start, except where NCCL adds three or more values.
 * tr_group_gather_parts begins to fill whole[n * count], of which every member has the elements
 * from its place * count on, with those of the other members. Both return at once and take their
 * turn among the group's reductions; their memory must not be used until later work has waited for
 * *ticket. */
tr_status tr_group_scatter(tr_group *group, tr_stream *stream, void *whole, void *part,
                           int64_t count, tr_dtype dtype, int64_t *ticket);
tr_status tr_group_gather_parts(tr_group *group, tr_stream *stream, void *whole, int64_t count,
                                tr_dtype dtype, int64_t *ticket);

/* --- channels --------------------------------------------------------------------------------- */

/* One FIFO per directed pair of ranks. The sending end and the receiving end are opened by their
 * ranks with the same max_bytes. A receiving end has landing buffers of this size in device memory
 * (comm/landing.h): receive k+1 is posted as soon as k has arrived and its buffer is free,
 * independent of compute. */
tr_status tr_channel_open(tr_world *world, tr_device *device, int peer, bool sending,
                          size_t max_bytes, tr_channel **out);
/* Closes an end. A sending end waits for its messages (up to the deadline, or 10 s without one); a
 * receiving end withdraws its receive. Before the pair is opened again there must be a barrier. */
void tr_channel_close(tr_channel *channel);

/* Sends `bytes` at `buffer` after all work enqueued so far on `stream`; returns at once. The buffer
 * must stay unchanged until the message is complete. *ticket is the message's number. */
tr_status tr_channel_send(tr_channel *channel, tr_stream *stream, const void *buffer, size_t bytes,
                          int64_t *ticket);
/* Makes later work on `stream` wait until message `ticket`, and all before it, are complete; that
 * work may write the buffer again. When the wait fails, later work that is already enqueued runs
 * all the same: what then arrives of the message is undefined, but a step that uses it cannot end,
 * since its last collective needs all ranks. */
tr_status tr_channel_wait_sent(tr_channel *channel, tr_stream *stream, int64_t ticket);
/* Announces the sizes of the next n messages, after those of earlier calls, so that a transport
 * that needs them in advance (nccl) can receive before the takes. */
tr_status tr_channel_expect(tr_channel *channel, const size_t *sizes, int n);
/* Takes the next message, in sending order, and copies it to `to` in stream order; its landing
 * buffer is free after the copy. Fails with TR_ERR_INTERNAL when its size is not `bytes`. */
tr_status tr_channel_take(tr_channel *channel, tr_stream *stream, void *to, size_t bytes);
