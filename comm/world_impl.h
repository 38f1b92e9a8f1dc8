/* Internals of comm/: the world, waiting, and tasks in stream order. Private to comm/. */
#pragma once

#include "comm/comm.h"
#include "comm/transport.h"

#include <pthread.h>

typedef struct tr_task tr_task;
typedef struct tr_rounds tr_rounds;
typedef struct tr_task_chunk tr_task_chunk;

/* A call that runs in stream order: `run` and its arguments. */
struct tr_task {
    tr_status (*run)(const tr_task *task);
    void *object; /* the group or the channel */
    void *out;
    int64_t count; /* the number of a message or reduction */
    size_t bytes;
    /* Used by world.c, under the world's lock. */
    tr_world *world;
    pthread_t caller;
    tr_status status;
    bool finished, detached;
    tr_task *next;
};

struct tr_world {
    int rank, size;
    tr_transport *transport;
    tr_rounds *control;   /* all ranks */
    pthread_mutex_t lock; /* guards calls of the transport (transport.h), and the fields below */
    pthread_cond_t wake;  /* the progress thread sleeps here while nothing is outstanding */
    bool closing;
    int drivers;  /* callers that wait and poll; the progress thread does not poll meanwhile */
    bool idle;    /* the progress thread sleeps until a signal */
    double event; /* when something last moved or a caller last polled */
    tr_channel *channels; /* open ones */
    tr_group *groups;     /* open ones that the progress thread polls */
    tr_world_hook hook;
    tr_status failure; /* the first failure, which every later wait returns */
    char failure_message[1024];
    bool keeps_memory; /* see tr_world_keeps_memory */
    tr_task *free_tasks;
    tr_task_chunk *task_chunks;
    /* Used only by the caller's thread: */
    pthread_t poller;
    bool poller_runs;
    void (*before_close)(void *context, bool failed);
    void *before_close_context;
    double (*delay)(void *context, int group, size_t bytes);
    void *delay_context;
    const tr_device *nccl_device; /* the device with groups and channels over NCCL, or NULL */
    tr_own_sums own_sums;         /* of its groups */
    bool *shares;                 /* [size]: true for ranks with the same device memory; or NULL */
    struct tr_nccl_comm *nccl;    /* open communicators; the list changes under the lock */
    struct tr_nccl_call *call; /* the call of NCCL that the caller is in, or NULL; under the lock */
};

/* --- poller.c --------------------------------------------------------------------------------- */

/* Start and stop the progress thread of a world of two or more ranks. */
tr_status tr_poller_start(tr_world *world);
void tr_poller_stop(tr_world *world);
/* Tells the progress thread of a new send or receive. It handles a send at once, a receive at its
 * next poll. Under the lock. */
void tr_poller_wake(tr_world *world, bool sent);

/* A wait: `ready` is called under the lock, may test requests and may set `missing` to the world
 * rank that is still awaited. */
typedef struct tr_wait {
    bool (*ready)(struct tr_wait *wait);
    void *object;
    int64_t number;   /* of a channel's message; -1: none */
    const char *what; /* "message", "all_reduce": names the wait in messages, with number and peer
                         or group */
    int peer;         /* world rank, -1: a group */
    int missing;      /* -1: not known */
    int group;        /* id, when peer is -1 */
    double limit_s;   /* > 0: replaces the hook's deadline; exceeding it does not fail the world */
    int turn;         /* incremented when `ready` waits for another rank: restarts the time */
    bool alone;       /* does not wait for a rank at the moment, so no time counts */
} tr_wait;

/* How long a wait lasts; the waiting code asks often. */
typedef struct tr_lasting {
    double since, asked;
} tr_lasting;

tr_lasting tr_lasting_begin(void);
/* Returns the seconds since the begin, without those in which this process was stopped, as by
 * Ctrl-Z: the other ranks were stopped too, and are not late. */
double tr_lasting_seconds(tr_lasting *lasting);

/* Waits until ready, and makes progress meanwhile. Fails with TR_ERR_RANK after the deadline or an
 * abort, or when the world has failed. Takes the lock. */
tr_status tr_poller_wait(tr_world *world, tr_wait *wait);
/* Returns how many seconds closing waits for unfinished messages: the deadline, or 10 without one.
 * Takes the lock. */
double tr_world_close_limit(tr_world *world);
/* Writes the wait to text as the board shows it: "message 3 of the channel with rank 1". */
void tr_wait_describe(const tr_wait *wait, char *text, size_t size);
/* Fails with TR_ERR_RANK and the sentence of a wait that has exceeded its deadline. The failure
 * becomes the world's, unless the wait had its own limit. Under the lock. */
tr_status tr_wait_fail(tr_world *world, const tr_wait *wait, double seconds);

/* Returns true when NCCL carries the data of this device. */
bool tr_world_by_nccl(const tr_world *world, const tr_device *device);

/* Makes the world fail; the first failure stays. Under the lock. Returns status. */
tr_status tr_world_fail(tr_world *world, tr_status status, const char *message);
/* Returns the stored failure, as this thread's error. Under the lock. */
tr_status tr_world_failed(const tr_world *world);

/* Withdraws a message that is not done. From then on the world keeps memory if the transport may
 * still access the message's. Under the lock. */
void tr_world_withdraw(tr_world *world, tr_message *message);

/* --- stream order (world.c) ------------------------------------------------------------------- */

/* Fails with TR_ERR_INTERNAL when the stream has no thread that may wait for other ranks. */
tr_status tr_world_check_stream(tr_stream *stream);
/* Runs a copy of `task` in stream order. On a device with its own memory it runs in the worker
 * thread of the compute stream's queue, where it may call the device. If it has run before this
 * returns (the compute stream of a host device), returns its status; otherwise its failure becomes
 * the world's. */
tr_status tr_world_enqueue(tr_world *world, tr_stream *stream, const tr_task *task);

/* --- channels --------------------------------------------------------------------------------- */

typedef struct tr_poll {
    bool outstanding; /* some message is still in flight */
    bool moved;       /* some message has moved */
    double next;      /* when the next delayed message may be sent */
} tr_poll;

typedef struct tr_channel_ops {
    tr_status (*send)(tr_channel *channel, tr_stream *stream, const void *buffer, size_t bytes,
                      int64_t *ticket);
    tr_status (*wait_sent)(tr_channel *channel, tr_stream *stream, int64_t ticket);
    /* NULL: sizes need not be known in advance. */
    tr_status (*expect)(tr_channel *channel, const size_t *sizes, int n);
    tr_status (*take)(tr_channel *channel, tr_stream *stream, void *to, size_t bytes);
    /* Called by the progress thread, under the lock. NULL: channels of this kind need no polls. */
    tr_status (*poll)(tr_channel *channel, tr_poll *poll);
    void (*close)(tr_channel *channel);
} tr_channel_ops;

/* Every kind of channel begins with this. */
struct tr_channel {
    const tr_channel_ops *ops;
    tr_channel *next; /* in the world's list */
    tr_world *world;
    tr_device *device;
    int peer;
    bool sending;
    size_t max_bytes;
};

typedef struct tr_channel_desc {
    tr_world *world;
    tr_device *device;
    int peer;
    bool sending;
    size_t max_bytes;
} tr_channel_desc;

tr_status tr_channel_make_host(const tr_channel_desc *desc, tr_channel **out);
tr_status tr_channel_make_staged(const tr_channel_desc *desc, tr_channel **out);

/* Polls one channel after a caller's change, and wakes the progress thread for the remaining work.
 * Under the lock. */
tr_status tr_channel_poke(tr_channel *channel);
/* Removes the channel from the progress thread's list. Under the lock. */
void tr_channel_unlist(tr_channel *channel);
/* Fails with TR_ERR_INTERNAL when a message's size is not the expected one. */
tr_status tr_channel_check_size(const tr_channel *channel, int64_t number, size_t bytes,
                                size_t expected);

/* --- groups ----------------------------------------------------------------------------------- */

/* The functions of a group of two or more ranks, with checked sizes and types. */
typedef struct tr_group_ops {
    /* drives: the caller waits for the ticket next, so no thread needs to wake for it. */
    tr_status (*start)(tr_group *group, tr_stream *stream, void *buffer, int64_t count,
                       tr_dtype dtype, tr_reduce op, bool drives, int64_t *ticket);
    tr_status (*scatter_ranges)(tr_group *group, tr_stream *stream, const tr_scatter_range *range,
                                int count, tr_dtype dtype, tr_reduce op, int64_t *ticket);
    /* held: the type of elements, which travel as `sent`; BF16 represents all FP32 elements that
     * travel so. */
    tr_status (*gather)(tr_group *group, tr_stream *stream, const tr_gather_range *range, int count,
                        tr_dtype held, tr_dtype sent, int64_t *ticket);
    tr_status (*scatter)(tr_group *group, tr_stream *stream, void *whole, void *part, int64_t count,
                         tr_dtype dtype, int64_t *ticket);
    tr_status (*gather_parts)(tr_group *group, tr_stream *stream, void *whole, int64_t count,
                              tr_dtype dtype, int64_t *ticket);
    tr_status (*wait)(tr_group *group, tr_stream *stream, int64_t ticket);
    /* Of a group of the same kind as `before`. */
    tr_status (*follow)(tr_group *group, tr_group *before, int64_t ticket);
    /* Called by the progress thread and by callers that wait, under the lock, which it may release
     * for a while. NULL: groups of this kind need no polls. */
    void (*poll)(tr_group *group, tr_poll *poll);
    void (*close)(tr_group *group);
} tr_group_ops;

/* Every kind of group begins with this. */
struct tr_group {
    const tr_group_ops *ops;
    tr_group *next; /* in the world's list */
    tr_world *world;
    int id, rank, n;
    double waited; /* seconds */
};

typedef struct tr_group_desc {
    tr_world *world;
    tr_device *device;
    const int *ranks; /* [n] */
    int n, id;
    int rank; /* this rank's place */
    size_t max_bytes;
} tr_group_desc;

/* Removes the group from those that are polled. Takes the lock. */
void tr_group_unlist(tr_group *group);
/* Makes a group over a host transport. With `staged` its memory is the device's, and each piece
 * goes through a pinned buffer. */
tr_status tr_group_make_host(const tr_group_desc *desc, bool staged, tr_group **out);
/* Adds source[n], or takes their maximum, element by element in this order, and rounds once to
 * to[count]; `to` may be one of them. */
void tr_reduce_sources(void *to, const void *const *source, int n, int64_t count, tr_dtype dtype,
                       tr_reduce op);
/* Rounds FP32 values[count] to BF16, in the first half of their memory; and widens them again. */
void tr_reduce_pack(void *values, int64_t count);
void tr_reduce_unpack(void *values, int64_t count);
