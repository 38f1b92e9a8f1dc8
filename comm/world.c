/* Worlds: opening and closing, stream-ordered tasks, the control plane. */
#include "base/launched.h"
#include "base/memory.h"
#include "base/wait.h"
#include "comm/nccl_impl.h"
#include "comm/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TASKS = 32 };

struct tr_task_chunk {
    tr_task_chunk *next;
    tr_task task[TASKS];
};

/* --- opening and closing --------------------------------------------------------------------- */

static void world_free(tr_world *world, bool failed) {
    if (world->before_close) world->before_close(world->before_close_context, failed);
    tr_poller_stop(world);
    tr_rounds_close(world->control);
    for (tr_task_chunk *c = world->task_chunks; c;) {
        tr_task_chunk *next = c->next;
        free(c);
        c = next;
    }
    world->transport->ops->close(world->transport, failed);
    pthread_cond_destroy(&world->wake);
    pthread_mutex_destroy(&world->lock);
    free(world->shares);
    free(world);
}

/* Makes a world that owns the transport, without its progress thread; closes the transport on
 * failure. */
static tr_status world_make(tr_transport *transport, tr_world **out) {
    tr_world *world;
    tr_status status = tr_calloc(1, sizeof *world, &world);
    if (status != TR_OK) {
        transport->ops->close(transport, true);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    world->transport = transport;
    world->rank = transport->rank;
    world->size = transport->size;
    pthread_mutex_init(&world->lock, NULL);
    tr_cond_init(&world->wake);
    TR_TRY_OUT(tr_rounds_open(world, NULL, world->size, -1, TR_TAG_CONTROL, &world->control));
    *out = world;
    return TR_OK;
out:
    world_free(world, true);
    return status;
}

tr_status tr_world_open_local(int n, tr_world **out) {
    if (n < 1) return TR_FAIL(TR_ERR_INTERNAL, "a world cannot have %d ranks", n);
    tr_transport **transports;
    TR_TRY(tr_calloc((size_t)n, sizeof(tr_transport *), &transports));
    tr_status status = TR_OK;
    int made = 0;
    TR_TRY_OUT(tr_transport_open_local(n, transports));
    for (; made < n; made++) {
        status = world_make(transports[made], &out[made]);
        if (status != TR_OK) break;
        status = tr_poller_start(out[made]);
        if (status != TR_OK) {
            world_free(out[made], true);
            break;
        }
    }
    if (status != TR_OK) {
        (void)tr_trace_at(__FILE__, __LINE__, status);
        for (int i = made + 1; i < n; i++) transports[i]->ops->close(transports[i], true);
        while (made > 0) world_free(out[--made], true);
    }
out:
    free(transports);
    return status;
}

/* Returns the variable in which a launcher announced several processes, and their number; else
 * NULL, and 1. Ask before MPI starts, which sets mpirun's variable. That one decides where it is
 * set: mpirun starts one rank in a batch job for several, too. */
static const char *announced(long *ranks) {
    static const char *const name[] = {"OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS",
                                       "SLURM_STEP_NUM_TASKS", "WORLD_SIZE", "PMI_SIZE"};
    const size_t names = getenv(name[0]) ? 1 : sizeof name / sizeof *name;
    for (size_t i = 0; i < names; i++) {
        const char *text = getenv(name[i]);
        *ranks = text ? strtol(text, NULL, 10) : 0;
        if (*ranks > 1) return name[i];
    }
    *ranks = 1;
    return NULL;
}

/* Fails when a launcher announced several ranks (name; NULL: none did) but MPI sees one: each
 * process would train by itself. */
static tr_status check_launch(const char *name, long ranks) {
    if (!name) return TR_OK;
    if (strncmp(name, "SLURM", 5) == 0)
        return TR_FAIL(
            TR_ERR_DEVICE,
            "%s=%ld, but MPI sees one rank: start with 'srun --mpi=pmix -n %ld trireme "
            "...' or 'mpirun -n %ld trireme ...' (one rank on purpose: 'env -u %s trireme "
            "...')",
            name, ranks, ranks, ranks, name);
    return TR_FAIL(
        TR_ERR_DEVICE,
        "%s=%ld, but MPI sees one rank (torchrun and other launchers do not start MPI): "
        "start with 'trireme run -n %ld ...' or 'mpirun -n %ld trireme ...' (one rank on "
        "purpose: 'env -u %s trireme ...')",
        name, ranks, ranks, ranks, name);
}

tr_status tr_world_open_mpi(tr_world **out) {
    long ranks;
    const char *name = announced(&ranks);
    /* A single process needs no MPI, which takes a third of a second to start. */
    if (!tr_is_launched()) {
        TR_TRY(check_launch(name, ranks));
        TR_TRY(tr_world_open_local(1, out));
        return TR_OK;
    }
    tr_transport *transport;
    tr_device_set_environment(ranks > 1 ? 2 : 1); /* an MPI library may start CUDA */
    TR_TRY(tr_transport_open_mpi(&transport));
    if (transport->size == 1) {
        tr_status status = check_launch(name, ranks);
        if (status != TR_OK) {
            transport->ops->close(transport, false);
            return tr_trace_at(__FILE__, __LINE__, status);
        }
    }
    tr_world *world;
    TR_TRY(world_make(transport, &world));
    tr_status status = tr_world_agree(world, tr_poller_start(world)); /* waiting ranks poll */
    if (status != TR_OK) world_free(world, !tr_error_is_agreed());
    else *out = world;
    return status;
}

void tr_world_close(tr_world *world) {
    if (!world) return;
    /* A rank that is early must make progress on messages until all ranks have come. */
    bool failed = tr_world_barrier(world) != TR_OK;
    world_free(world, failed);
}

void tr_world_abort(tr_world *world, int code) {
    /* A call that is stuck, or that withdraws many messages, holds the lock for longer. Then this
     * rank ends without it. */
    const bool locked = tr_lock_within(&world->lock, 1000000000);
    world->transport->ops->abort(world->transport, code);
    if (locked) pthread_mutex_unlock(&world->lock);
}

void tr_world_give_up(tr_world *world, tr_status status) {
    pthread_mutex_lock(&world->lock);
    (void)tr_world_fail(world, status, tr_error_message());
    pthread_mutex_unlock(&world->lock);
}

void tr_world_withdraw(tr_world *world, tr_message *message) {
    tr_transport *t = world->transport;
    if (!t->ops->cancel(t, message)) world->keeps_memory = true;
}

bool tr_world_keeps_memory(tr_world *world) {
    pthread_mutex_lock(&world->lock);
    const bool keeps = world->keeps_memory;
    pthread_mutex_unlock(&world->lock);
    return keeps;
}

tr_status tr_world_check(tr_world *world) {
    pthread_mutex_lock(&world->lock);
    tr_status status = world->failure != TR_OK ? tr_world_failed(world) : TR_OK;
    pthread_mutex_unlock(&world->lock);
    return status;
}

tr_status tr_world_sync(tr_world *world, tr_stream *stream) {
    if (world->nccl) {
        TR_TRY(tr_nccl_sync(world, stream, NULL));
        return TR_OK;
    }
    TR_TRY(tr_stream_sync(stream)); /* its waits for other ranks have their own deadlines */
    TR_TRY(tr_world_check(world));
    return TR_OK;
}

bool tr_world_look(tr_world *world, char *sentence, size_t size) {
    return tr_nccl_look(world, sentence, size);
}

int tr_world_rank(const tr_world *world) {
    return world->rank;
}

int tr_world_host_rank(const tr_world *world) {
    return world->transport->host_rank;
}

int tr_world_cores(const tr_world *world) {
    return world->transport->cores;
}

int tr_world_size(const tr_world *world) {
    return world->size;
}

void tr_world_set_hook(tr_world *world, const tr_world_hook *hook) {
    pthread_mutex_lock(&world->lock);
    world->hook = hook ? *hook : (tr_world_hook){0};
    pthread_mutex_unlock(&world->lock);
}

tr_world_hook tr_world_get_hook(tr_world *world) {
    pthread_mutex_lock(&world->lock);
    const tr_world_hook hook = world->hook;
    pthread_mutex_unlock(&world->lock);
    return hook;
}

void tr_world_before_close(tr_world *world, void (*call)(void *context, bool failed),
                           void *context) {
    world->before_close = call;
    world->before_close_context = context;
}

void tr_world_tell_work(tr_world *world, int64_t done, int64_t total) {
    if (!world) return;
    const tr_world_hook hook = tr_world_get_hook(world);
    if (hook.work) hook.work(hook.context, done, total);
}

void tr_world_set_delay(tr_world *world, double (*delay)(void *context, int group, size_t bytes),
                        void *context) {
    world->delay = delay;
    world->delay_context = context;
}

/* --- tasks in stream order -------------------------------------------------------------------- */

static void task_release(tr_world *world, tr_task *task) {
    task->next = world->free_tasks;
    world->free_tasks = task;
}

static void task_main(void *argument) {
    tr_task *task = argument;
    tr_world *world = task->world;
    tr_status status = task->run(task);
    pthread_mutex_lock(&world->lock);
    task->status = status;
    task->finished = true;
    /* The caller may have returned, so the world keeps the failure for the next wait. */
    if (status != TR_OK && !pthread_equal(task->caller, pthread_self()))
        (void)tr_world_fail(world, status, tr_error_message());
    if (task->detached) task_release(world, task);
    pthread_mutex_unlock(&world->lock);
}

/* Takes a free task, or makes one (none in a steady state). Under the lock. */
static tr_status task_take(tr_world *world, tr_task **out) {
    if (!world->free_tasks) {
        tr_task_chunk *chunk;
        TR_TRY(tr_calloc(1, sizeof *chunk, &chunk));
        chunk->next = world->task_chunks;
        world->task_chunks = chunk;
        for (int i = 0; i < TASKS; i++) task_release(world, &chunk->task[i]);
    }
    *out = world->free_tasks;
    world->free_tasks = (*out)->next;
    return TR_OK;
}

tr_status tr_world_check_stream(tr_stream *stream) {
    tr_device *device = tr_stream_device(stream);
    if (tr_device_on_host(device) || stream == tr_device_compute(device)) return TR_OK;
    return TR_FAIL(TR_ERR_INTERNAL, "only the compute stream of device %s may wait for other ranks",
                   device->name);
}

tr_status tr_world_enqueue(tr_world *world, tr_stream *stream, const tr_task *task) {
    tr_task *own = NULL;
    TR_TRY(tr_world_check_stream(stream));
    pthread_mutex_lock(&world->lock);
    tr_status status = world->failure != TR_OK ? tr_world_failed(world) : task_take(world, &own);
    pthread_mutex_unlock(&world->lock);
    TR_TRY(status);
    *own = *task;
    own->world = world;
    own->caller = pthread_self();
    status = tr_stream_call(stream, task_main, own);
    pthread_mutex_lock(&world->lock);
    if (status != TR_OK || own->finished) {
        if (status == TR_OK) status = own->status;
        if (status != TR_OK && world->failure != TR_OK) status = tr_world_failed(world);
        task_release(world, own);
    } else own->detached = true;
    pthread_mutex_unlock(&world->lock);
    TR_TRY(status);
    return TR_OK;
}

/* --- control plane --------------------------------------------------------------------------- */

tr_status tr_world_barrier(tr_world *world) {
    TR_TRY(tr_rounds_barrier(world->control));
    return TR_OK;
}

tr_status tr_world_broadcast(tr_world *world, int root, void *buffer, size_t bytes) {
    TR_TRY(tr_rounds_broadcast(world->control, root, buffer, bytes));
    return TR_OK;
}

/* Allocates memory for a collective call. On failure this rank gives up, so that the other ranks
 * do not wait. */
static tr_status take_memory(tr_world *world, size_t count, size_t size, void *out) {
    tr_status status = tr_calloc(count, size, out);
    if (status != TR_OK) tr_world_give_up(world, status);
    return status;
}

/* Releases the memory of a collective call's messages. */
static void release_memory(tr_world *world, void *memory) {
    if (!tr_world_keeps_memory(world)) free(memory);
}

/* The messages do not use the caller's memory, which may be on its stack. */
tr_status tr_world_gather_all(tr_world *world, const void *mine, void *all, size_t bytes) {
    const size_t ranks = (size_t)world->size, own = (size_t)world->rank * bytes;
    size_t *sizes;
    unsigned char *data;
    TR_TRY(take_memory(world, ranks, sizeof *sizes, &sizes));
    tr_status status = take_memory(world, ranks, bytes, &data);
    if (status == TR_OK) {
        for (size_t r = 0; r < ranks; r++) sizes[r] = bytes;
        if (bytes > 0) memcpy(data + own, mine, bytes);
        status = tr_rounds_gather(world->control, data, sizes);
        if (status == TR_OK && bytes > 0) memcpy(all, data, ranks * bytes);
        release_memory(world, data);
    }
    free(sizes);
    TR_TRY(status);
    return TR_OK;
}

tr_status tr_world_gather_all_v(tr_world *world, const void *mine, size_t bytes, void **all,
                                size_t *sizes) {
    TR_TRY(tr_world_gather_all(world, &bytes, sizes, sizeof bytes));
    size_t before = 0, total = 0;
    unsigned char *data;
    for (int r = 0; r < world->size; r++) {
        if (r < world->rank) before += sizes[r];
        total += sizes[r];
    }
    TR_TRY(take_memory(world, total, 1, &data));
    if (bytes > 0) memcpy(data + before, mine, bytes);
    tr_status status = tr_rounds_gather(world->control, data, sizes);
    if (status == TR_OK) *all = data;
    else release_memory(world, data);
    TR_TRY(status);
    return TR_OK;
}

tr_status tr_world_agree(tr_world *world, tr_status mine) {
    char message[1024];
    (void)snprintf(message, sizeof message, "%s", mine == TR_OK ? "" : tr_error_message());
    tr_status *all;
    TR_TRY(take_memory(world, (size_t)world->size, sizeof *all, &all));
    tr_status status = tr_world_gather_all(world, &mine, all, sizeof *all);
    int first = 0;
    while (status == TR_OK && first < world->size && all[first] == TR_OK) first++;
    tr_status code = status == TR_OK && first < world->size ? all[first] : TR_OK;
    free(all);
    TR_TRY(status);
    if (code == TR_OK) return TR_OK;
    TR_TRY(tr_world_broadcast(world, first, message, sizeof message));
    /* The failed rank itself keeps its trace. */
    if (first != world->rank) mine = TR_FAIL(code, "%s", message);
    tr_error_set_agreed();
    return mine;
}

tr_status tr_world_calloc(tr_world *world, size_t count, size_t size, void *out) {
    void *memory = NULL;
    tr_status status = tr_world_agree(world, tr_calloc(count, size, &memory));
    if (status != TR_OK) {
        free(memory);
        memory = NULL;
    }
    memcpy(out, &memory, sizeof memory);
    TR_TRY(status);
    return TR_OK;
}
