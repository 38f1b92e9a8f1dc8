/* The transport over MPI: processes, host memory. The world's lock serialises all calls of a rank,
 * so MPI_THREAD_SERIALIZED is enough. */
#include "base/cores.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "comm/transport.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct tr_transport_mpi {
    tr_transport base;
    MPI_Comm comm; /* a duplicate, so that other code's messages cannot match */
    bool finalize; /* MPI was initialised here */
} tr_transport_mpi;

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request is kept in a pointer's place");

static tr_transport_mpi *self_of(tr_transport *transport) {
    return (tr_transport_mpi *)transport;
}

static tr_status fail_mpi(int code, const char *call, int peer) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return TR_FAIL(TR_ERR_RANK, "%s with rank %d: %s", call, peer, text);
}

/* Returns true for the code with which Open MPI 5 says that the other process has died. Such a
 * message stays pending, as under version 4: the launcher names the rank that was lost. */
static bool is_dead_peer(int code) {
    static const char begin[] = "MPI_ERR_PROC_FAILED";
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return strncmp(text, begin, sizeof begin - 1) == 0;
}

/* MPI counts are int. A larger message is one element of a type made of blocks and a rest. Its
 * signature is that of as many MPI_BYTEs, so any receive that is large enough matches. */
static int type_make(size_t bytes, int *count, MPI_Datatype *type) {
    enum { BLOCK = 1 << 30 };
    if (bytes <= INT_MAX) {
        *count = (int)bytes;
        *type = MPI_BYTE;
        return MPI_SUCCESS;
    }
    MPI_Datatype block;
    int code = MPI_Type_contiguous(BLOCK, MPI_BYTE, &block);
    if (code != MPI_SUCCESS) return code;
    int lengths[2] = {(int)(bytes / BLOCK), (int)(bytes % BLOCK)};
    MPI_Aint places[2] = {0, (MPI_Aint)(bytes - bytes % BLOCK)};
    MPI_Datatype types[2] = {block, MPI_BYTE};
    *count = 1;
    code = MPI_Type_create_struct(2, lengths, places, types, type);
    MPI_Type_free(&block);
    if (code == MPI_SUCCESS) code = MPI_Type_commit(type);
    return code;
}

static void type_release(MPI_Datatype *type) {
    if (*type != MPI_BYTE)
        MPI_Type_free(type); /* MPI keeps the type until its messages are complete */
}

/* Posts a message of `bytes` at `buffer`: a send, or a receive of at most that many. */
static tr_status post(const tr_transport_mpi *self, bool send, int peer, int tag, void *buffer,
                      size_t bytes, tr_message *request) {
    int count;
    MPI_Datatype type;
    MPI_Request handle = MPI_REQUEST_NULL;
    int code = type_make(bytes, &count, &type);
    if (code != MPI_SUCCESS) return fail_mpi(code, "MPI datatype of a message", peer);
    code = send ? MPI_Isend(buffer, count, type, peer, tag, self->comm, &handle)
                : MPI_Irecv(buffer, count, type, peer, tag, self->comm, &handle);
    type_release(&type);
    const bool dead = code != MPI_SUCCESS && is_dead_peer(code);
    if (code != MPI_SUCCESS && !dead) return fail_mpi(code, send ? "MPI_Isend" : "MPI_Irecv", peer);
    *request = (tr_message){
        .buffer = send ? NULL : buffer, .bytes = bytes, .peer = peer, .tag = tag, .dead = dead};
    memcpy(&request->handle, &handle, sizeof handle);
    return TR_OK;
}

static tr_status mpi_post_send(tr_transport *transport, int peer, int tag, const void *buffer,
                               size_t bytes, tr_message *request) {
    return post(self_of(transport), true, peer, tag, (void *)(uintptr_t)buffer, bytes, request);
}

static tr_status mpi_post_recv(tr_transport *transport, int peer, int tag, void *buffer,
                               size_t bytes, tr_message *request) {
    return post(self_of(transport), false, peer, tag, buffer, bytes, request);
}

static tr_status mpi_test(tr_transport *transport, tr_message *request, bool *done) {
    (void)transport;
    *done = request->done;
    if (request->done || request->dead) return TR_OK;
    MPI_Request handle;
    MPI_Status status;
    int flag = 0;
    memcpy(&handle, &request->handle, sizeof handle);
    int code = MPI_Test(&handle, &flag, &status);
    memcpy(&request->handle, &handle, sizeof handle);
    int class = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE) {
        request->truncated = true;
        flag = 1;
    } else if (code != MPI_SUCCESS && is_dead_peer(code)) {
        request->dead = true;
        return TR_OK;
    } else if (code != MPI_SUCCESS) return fail_mpi(code, "MPI_Test", request->peer);
    if (flag && request->buffer && !request->truncated) {
        MPI_Count elements = 0;
        MPI_Get_elements_x(&status, MPI_BYTE, &elements);
        request->bytes = (size_t)elements;
    }
    request->done = *done = flag;
    return TR_OK;
}

static void mpi_pause(tr_transport *transport, double seconds) {
    (void)transport;
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static bool mpi_cancel(tr_transport *transport, tr_message *request) {
    if (request->done) return true;
    if (request->dead) return request->done = true; /* MPI has given it up */
    /* A send that has begun cannot be withdrawn: Open MPI would never complete the cancel. */
    if (!request->buffer) return false;
    MPI_Request handle;
    memcpy(&handle, &request->handle, sizeof handle);
    if (MPI_Cancel(&handle) != MPI_SUCCESS) return false;
    /* An unmatched receive ends at once; one that is being filled needs its sender to continue. */
    for (int i = 0; i < 1000; i++) {
        int flag = 0;
        (void)MPI_Test(&handle, &flag, MPI_STATUS_IGNORE);
        if (flag) return request->done = true;
        mpi_pause(transport, 1e-3);
    }
    return false;
}

static tr_status mpi_progress(tr_transport *transport) {
    (void)transport; /* every MPI_Test makes progress on all messages */
    return TR_OK;
}

static void mpi_abort(tr_transport *transport, int code) {
    MPI_Abort(self_of(transport)->comm, code);
}

static void mpi_close(tr_transport *transport, bool failed) {
    tr_transport_mpi *self = self_of(transport);
    /* After a failure a rank may be gone, and MPI_Finalize would wait for it. So the process ends
     * without MPI_Finalize, and mpirun ends the other ranks. */
    if (!failed) {
        MPI_Comm_free(&self->comm);
        if (self->finalize) MPI_Finalize();
    }
    free(self);
}

static const tr_transport_ops ops = {
    .name = "mpi",
    .post_send = mpi_post_send,
    .post_recv = mpi_post_recv,
    .test = mpi_test,
    .cancel = mpi_cancel,
    .progress = mpi_progress,
    .pause = mpi_pause,
    .abort = mpi_abort,
    .close = mpi_close,
};

/* Returns true when the kernel lets processes read each other's memory, so that Open MPI copies a
 * message once. Containers often forbid it, and Open MPI 4 notices that too late; version 5 copies
 * twice then. */
static bool can_copy_between_processes(void) {
    char from = 'x', to = 0;
    struct iovec local = {.iov_base = &to, .iov_len = 1},
                 remote = {.iov_base = &from, .iov_len = 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

/* Returns true when Open MPI's launcher started all ranks on this host. */
static bool is_one_host(void) {
    const char *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE"), *all = getenv("OMPI_COMM_WORLD_SIZE");
    return here && all && strcmp(here, all) == 0;
}

static tr_status init_mpi(bool *initialised_here) {
    int initialised = 0, level = 0;
    MPI_Initialized(&initialised);
    *initialised_here = !initialised;
    if (initialised) {
        MPI_Query_thread(&level);
    } else {
        /* Ranks may share cores, and without this a rank inside MPI_Init or MPI_Finalize spins. */
        (void)setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
        /* The number of pieces of a message in flight. Both ends sleep between polls, so every
         * round of pieces costs a sleep of each: with Open MPI's 3 pieces of 32 KiB a message of 1
         * MiB took eleven rounds. */
        (void)setenv("OMPI_MCA_pml_ob1_send_pipeline_depth", "32", 0);
        /* Otherwise Open MPI 5 asks the kernel for the route to each rank, complains of each rank
         * of this host, and uses shared memory then. */
        (void)setenv("OMPI_MCA_reachable", "weighted", 0);
        /* Otherwise a rank of Open MPI 5 aborts when the connection to a dead rank closes, and the
         * first rank that died is not known. */
        if (!is_one_host()) (void)setenv("OMPI_MCA_mpi_ft_enable", "1", 0);
        /* Otherwise Open MPI asks every library for networks first, which takes 0.2 s. */
        if (is_one_host()) (void)setenv("OMPI_MCA_pml", "ob1", 0);
        if (!can_copy_between_processes())
            (void)setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
            return TR_FAIL(TR_ERR_DEVICE, "MPI_Init_thread failed: see why with `trireme doctor`");
    }
    if (level < MPI_THREAD_SERIALIZED)
        return TR_FAIL(TR_ERR_DEVICE,
                       "this MPI gives thread level %d, but MPI_THREAD_SERIALIZED "
                       "(%d) is needed: use an MPI built with threads",
                       level, MPI_THREAD_SERIALIZED);
    return TR_OK;
}

/* Divides CPUs among the ranks of a host that may use the same ones. Ranks that got different CPUs
 * from a launcher keep them. Returns the share of each rank. Allocates nothing, because a rank that
 * failed here would leave the others in MPI's collective. */
static int divide_cores(MPI_Comm host) {
    int sharers, index;
    tr_cores mine;
    MPI_Comm same;
    tr_cores_usable(&mine);
    MPI_Comm_split(host, (int)(XXH3_64bits(&mine, sizeof mine) & INT_MAX), 0, &same);
    MPI_Comm_size(same, &sharers);
    MPI_Comm_rank(same, &index);
    MPI_Comm_free(&same);
    const int count = tr_cores_count();
    if (sharers > 1 && mine.count >= sharers) {
        tr_cores_share(&mine, index, sharers, &mine);
        tr_cores_keep_to(&mine);
    }
    return count > sharers ? count / sharers : 1;
}

int tr_world_mpi_version(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length, version = 0;
    MPI_Get_library_version(text, &length);
    return sscanf(text, "Open MPI v%d.", &version) == 1 ? version : 0;
}

tr_status tr_transport_open_mpi(tr_transport **out) {
    tr_transport_mpi *self;
    TR_TRY(tr_calloc(1, sizeof *self, &self));
    tr_status status = TR_OK;
    TR_TRY_OUT(init_mpi(&self->finalize));
    MPI_Comm_dup(MPI_COMM_WORLD, &self->comm);
    MPI_Comm_set_errhandler(self->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(self->comm, &self->base.rank);
    MPI_Comm_size(self->comm, &self->base.size);
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &self->base.host_rank);
    self->base.cores = divide_cores(host);
    MPI_Comm_free(&host);
    int *limit = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    self->base.tag_limit = found ? *limit : 32767; /* the smallest limit that the standard allows */
    self->base.ops = &ops;
    *out = &self->base;
    return TR_OK;
out:
    free(self);
    return status;
}
