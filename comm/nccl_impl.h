/* Communicators of NCCL: what its groups and channels share. Private to comm/; in a build without
 * NCCL nccl_none.c says so. */
#pragma once

#include "comm/world_impl.h"

/* Of a channel: multiprocessors that a message, or a receive which waits for one, may hold. */
enum { TR_NCCL_CHANNEL_UNITS = 2 };

/* An operation that was enqueued: on its communicator's stream up to `done`. */
typedef struct tr_nccl_op {
    const char *what;
    tr_event *done;
    tr_event *needed; /* the caller's stream has come to where it waits for the end */
    bool waited;      /* `needed` is recorded */
} tr_nccl_op;

/* A call of NCCL in progress. Where the communicator `meets`, the call waits for the other ranks;
 * else it returns at once, and a call that does not is stuck. */
typedef struct tr_nccl_call {
    struct tr_nccl_comm *comm;
    tr_wait wait; /* what it waits for */
    double since;
    bool shown;     /* through the hook */
    double aborted; /* when all communicators were, because it did not return; 0: not */
} tr_nccl_call;

/* The calling thread of the world makes all calls of NCCL; a watchdog's thread aborts. */
typedef struct tr_nccl_comm {
    struct tr_nccl_comm *next; /* in the world's list */
    tr_world *world;
    void *handle; /* ncclComm_t; NULL once aborted; changes under the lock */
    tr_nccl_call call;
    bool meets; /* its calls wait for the other ranks: while it is made, connected and ended */
    tr_stream *stream;
    int peer, group; /* world rank or -1; group's id: for messages */
    int other;       /* world rank of the other one of two, or -1 */
    /* Operations [0, over) are over; number k of [over, begun) is op[k % slots]. */
    tr_nccl_op *op;
    int64_t slots, begun, over;
} tr_nccl_comm;

typedef struct tr_nccl_desc {
    tr_world *world;
    tr_device *device;
    const int *ranks; /* [n], the order of the communicator's ranks */
    int n, rank;      /* this rank's place */
    int tag, id;      /* of the host messages that make the communicator known */
    int peer;         /* of a channel, or -1 */
    int max_ctas;     /* 0: NCCL's choice */
} tr_nccl_desc;

/* Makes a communicator and a stream for it: called by its ranks at the same time, waits for them
 * until the deadline. tr_nccl_close also takes what failed half way. */
tr_status tr_nccl_open(const tr_nccl_desc *desc, tr_nccl_comm *comm);
/* Waits until what was enqueued is done (up to the deadline, 10 s without one) and the other ranks
 * close it too, or aborts after a failure. */
void tr_nccl_close(tr_nccl_comm *comm);
/* Aborts a communicator whose work will not be completed; it takes no call afterwards. */
void tr_nccl_abort(tr_nccl_comm *comm);

/* An operation is what lies between enter and leave on the communicator's stream. enter: it comes
 * after what `after` has done so far (NULL: after nothing). The world's failure if there is one. */
tr_status tr_nccl_enter(tr_nccl_comm *comm, const char *what, tr_stream *after);
tr_status tr_nccl_leave(tr_nccl_comm *comm, int64_t *number);
/* Orders the end of operation `number` before what is enqueued next on `stream`. */
tr_status tr_nccl_need(tr_nccl_comm *comm, int64_t number, tr_stream *stream);
/* Around every call of NCCL: between the two tr_nccl_look watches it. `name` is a literal. end
 * takes what the call returned, an ncclResult_t: a failure becomes the world's, and all
 * communicators are aborted; if the call was aborted, the world's failure is returned. */
void tr_nccl_begin(tr_nccl_comm *comm, const char *name);
tr_status tr_nccl_end(tr_nccl_comm *comm, int result);
/* tr_world_look for NCCL. */
bool tr_nccl_look(tr_world *world, char *sentence, size_t size);

/* Waits until the stream has done everything queued or a communicator has failed. Only the time in
 * which the stream waits for an operation, or any time an operation of `own` (may be NULL) takes,
 * counts for the deadline: how long a device computes is never judged. */
tr_status tr_nccl_sync(tr_world *world, tr_stream *stream, const tr_nccl_comm *own);
/* NCCL's version; 0 in a build without it. */
int tr_nccl_version(void);

tr_status tr_group_make_nccl(const tr_group_desc *desc, tr_group **out);
tr_status tr_channel_make_nccl(const tr_channel_desc *desc, tr_channel **out);
