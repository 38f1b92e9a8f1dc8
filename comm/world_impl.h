/* The inside of comm/: the world, waiting, and jobs in stream order. Private to comm/. */
#pragma once

#include "comm/comm.h"
#include "comm/transport.h"

#include <pthread.h>

typedef struct tr_job tr_job;
typedef struct tr_job_chunk tr_job_chunk;

/* A call that runs in stream order: `run` and what it needs. */
struct tr_job {
    tr_status (*run)(const tr_job *job);
    void *object; /* the group or the channel */
    const void *in;
    void *out;
    int64_t count; /* elements, bytes or a message's number */
    size_t bytes;
    tr_dtype dtype;
    tr_reduce op;
    int root;
    /* Of the machinery, under the world's lock. */
    tr_world *world;
    pthread_t caller;
    tr_status status;
    bool finished, detached;
    tr_job *next;
};

struct tr_world {
    int rank, size, host_ranks;
    tr_transport *transport;
    pthread_mutex_t lock; /* guards all below and every call of the transport but pause */
    pthread_cond_t wake;  /* the engine sleeps here while nothing is outstanding */
    pthread_t engine;
    bool engine_runs, closing;
    int drivers;          /* callers that wait, and poll meanwhile: the engine leaves it to them */
    bool idle;            /* the engine sleeps until a signal */
    double event;         /* when something last moved or a caller last polled */
    tr_channel *channels; /* open ones */
    tr_wait_hook hook;
    double (*delay)(void *context, size_t bytes);
    void *delay_context;
    tr_status failure; /* the first failure: it stays, and every later wait returns it */
    char failure_message[1024];
    tr_job *free_jobs;
    tr_job_chunk *job_chunks;
    tr_group *control; /* all ranks */
};

double tr_now(void); /* seconds of the monotonic clock */

/* --- engine.c --------------------------------------------------------------------------------- */

/* Starts the progress thread of a world of two or more ranks; stops it. */
tr_status tr_engine_start(tr_world *world);
void tr_engine_stop(tr_world *world);
/* Something has become outstanding: a send that is not complete, or a receive. The engine turns to
 * a send at once, to a receive at its next poll. Under the lock. */
void tr_engine_wake(tr_world *world, bool sent);

/* A wait: `ready` is called under the lock, may test requests and may set `missing` to the world
 * rank that is still awaited. */
typedef struct tr_wait {
    bool (*ready)(struct tr_wait *wait);
    void *object;
    int64_t number;
    const char *what; /* "message", "all_reduce": with number and place it makes the sentence */
    int peer;         /* world rank, -1: a group */
    int missing;
    int group;      /* id, when peer is -1 */
    double limit_s; /* > 0: instead of the hook's deadline; passing it is not the world's failure */
} tr_wait;

/* Waits until ready, driving progress. TR_ERR_RANK past the deadline, after an abort or when the
 * world has failed. Takes the lock. */
tr_status tr_engine_wait(tr_world *world, tr_wait *wait);

/* The failure that ends this world's use; the first one stays. Under the lock. Returns status. */
tr_status tr_world_fail(tr_world *world, tr_status status, const char *message);
/* The stored failure as this thread's error. Under the lock. */
tr_status tr_world_failed(const tr_world *world);

/* --- stream order (world.c) ------------------------------------------------------------------- */

/* Runs a copy of `job` in stream order. When it has run before this returns (the compute stream of
 * a host device), its status is returned; else its failure becomes the world's. */
tr_status tr_world_enqueue(tr_world *world, tr_stream *stream, const tr_job *job);

/* --- channels (channel.c), under the lock ----------------------------------------------------- */

typedef struct tr_poll {
    bool outstanding; /* something can still happen */
    bool moved;       /* something has happened */
    double next;      /* a held-back message may go at this time */
} tr_poll;
tr_status tr_channel_poll(tr_channel *channel, tr_poll *poll);
tr_channel *tr_channel_next(tr_channel *channel);

/* --- groups (group.c), blocking -------------------------------------------------------------- */

/* A group of all ranks with the control plane's tag. */
tr_status tr_group_open_control(tr_world *world, tr_group **out);
tr_status tr_group_run_barrier(tr_group *group);
tr_status tr_group_run_broadcast(tr_group *group, int root, void *buffer, size_t bytes);
/* Rank r's sizes[r] bytes at offsets[r] of `all`; mine is in place already. */
tr_status tr_group_run_gather(tr_group *group, void *all, const size_t *offsets,
                              const size_t *sizes, const char *what);
