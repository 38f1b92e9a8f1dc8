/* Communicators of NCCL, for its groups and channels. Private to comm/. A build without NCCL has
 * nccl_none.c. */
#pragma once

#include "comm/world_impl.h"

/* Multiprocessors that a channel's message, or a receive that waits for one, may occupy. */
enum { TR_NCCL_CHANNEL_UNITS = 2 };

/* An operation that was enqueued: on its communicator's stream up to `done`. */
typedef struct tr_nccl_op {
    const char *what;
    tr_event *done;
    tr_event *needed; /* the caller's stream has reached its wait for the end */
    bool waited;      /* `needed` is recorded */
} tr_nccl_op;

/* A call of NCCL in progress. If the communicator `meets`, the call waits for the other ranks;
 * otherwise it must return at once, or it is stuck. */
typedef struct tr_nccl_call {
    struct tr_nccl_comm *comm;
    tr_wait wait; /* describes its wait */
    tr_lasting lasting;
    bool shown;     /* through the hook */
    double aborted; /* when all communicators were aborted because it did not return; 0: they were
                       not */
} tr_nccl_call;

/* The calling thread of the world makes all calls of NCCL; a watchdog's thread aborts. */
typedef struct tr_nccl_comm {
    struct tr_nccl_comm *next; /* in the world's list */
    tr_world *world;
    void *handle; /* ncclComm_t; NULL once aborted; changes under the lock */
    tr_nccl_call call;
    bool meets; /* calls wait for the other ranks: while it is made, connected and ended */
    tr_stream *stream;
    int peer, group; /* world rank or -1; group's id: for messages */
    int other;       /* world rank of the other one of two, or -1 */
    /* Operations [0, over) have ended; number k of [over, begun) is op[k % slots]. */
    tr_nccl_op *op;
    int64_t slots, begun, over;
} tr_nccl_comm;

typedef struct tr_nccl_desc {
    tr_world *world;
    tr_device *device;
    const int *ranks; /* [n], the order of the communicator's ranks */
    int n, rank;      /* this rank's place */
    int tag, id;      /* of the host messages that carry the communicator's id */
    int peer;         /* of a channel, or -1 */
    int max_ctas;     /* 0: NCCL's choice */
} tr_nccl_desc;

/* Makes a communicator and its stream. All its ranks call it at the same time, and it waits for
 * them until the deadline. tr_nccl_close also closes a communicator that failed to open. */
tr_status tr_nccl_open(const tr_nccl_desc *desc, tr_nccl_comm *comm);
/* Waits until all enqueued work is done (up to the deadline, or 10 s without one) and the other
 * ranks close it too. After a failure aborts instead. */
void tr_nccl_close(tr_nccl_comm *comm);
/* Aborts a communicator that cannot complete its work. It must not be called afterwards. */
void tr_nccl_abort(tr_nccl_comm *comm);

/* Enclose an operation on the communicator's stream. enter: orders it after all work so far on
 * `after` (NULL: after nothing), and fails if the world has failed. */
tr_status tr_nccl_enter(tr_nccl_comm *comm, const char *what, tr_stream *after);
tr_status tr_nccl_leave(tr_nccl_comm *comm, int64_t *number);
/* Makes later work on `stream` wait for the end of operation `number`. */
tr_status tr_nccl_need(tr_nccl_comm *comm, int64_t number, tr_stream *stream);
/* Makes later work on the communicator's stream wait for the end of operation `number` of
 * another. */
tr_status tr_nccl_follow(tr_nccl_comm *comm, const tr_nccl_comm *before, int64_t number);
/* Enclose every call of NCCL, so that tr_nccl_look watches it. `name` is a literal. end gets the
 * call's ncclResult_t. A failure becomes the world's, and all communicators are aborted; if the
 * call was aborted, end returns the world's failure. */
void tr_nccl_begin(tr_nccl_comm *comm, const char *name);
tr_status tr_nccl_end(tr_nccl_comm *comm, int result);
/* Does tr_world_look's work for NCCL. */
bool tr_nccl_look(tr_world *world, char *sentence, size_t size);

/* Waits until the stream has done all queued work or a communicator has failed. Only the time
 * counts for the deadline in which the stream waits for an operation, or in which an operation of
 * `own` (may be NULL) runs; computing may take any time. Without a deadline it waits for operations
 * of `own` for 10 s. */
tr_status tr_nccl_sync(tr_world *world, tr_stream *stream, const tr_nccl_comm *own);
/* Returns NCCL's version; 0 in a build without it. */
int tr_nccl_version(void);

tr_status tr_group_make_nccl(const tr_group_desc *desc, tr_group **out);
tr_status tr_channel_make_nccl(const tr_channel_desc *desc, tr_channel **out);
