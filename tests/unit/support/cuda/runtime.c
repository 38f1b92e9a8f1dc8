/* The CUDA runtime of the emulation: two GPUs; their memory is the host's, and their streams are
 * those of host devices. It ends the process with a sentence when
 *   - an object of a GPU is used by a thread that is set to the other one;
 *   - a callback calls it, or more than a dozen of them wait in a stream;
 *   - a call waits for seconds for space in a stream that has as much queued work as a driver
 * accepts;
 *   - a call is made while cudaGetLastError() still has the error of an earlier one;
 *   - memory, a stream or an event is not released at the end of the process. */
#include "device/host_impl.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPUS = 2, MOST_CALLBACKS = 12, MOST_WORKS = 1000 };
static const size_t memory_bytes = (size_t)1 << 30;

static struct tr_device host; /* of the queues and events */
static atomic_size_t taken;
static atomic_int live;
static _Thread_local int current;
static _Thread_local bool in_callback;
static _Thread_local cudaError_t last;

/* The header of every piece of memory, stream and event. */
typedef struct owner {
    int gpu;
    size_t bytes;
    void *memory;
} owner;
typedef struct own_stream {
    struct tr_emulated_stream base;
    int gpu;
    atomic_int callbacks, works;
} own_stream;
struct tr_emulated_event {
    tr_event *event;
    int gpu;
};

typedef struct callback {
    own_stream *stream;
    void (*function)(void *argument);
    void *argument;
} callback;

static void require(bool holds, const char *what) {
    if (holds) return;
    (void)fprintf(stderr, "emulated CUDA: %s\n", what);
    abort();
}

static void enter(void) {
    require(!in_callback, "a callback calls CUDA");
    require(last == cudaSuccess, "the error of an earlier call was not read");
}

static void enter_for(int gpu) {
    enter();
    require(gpu == current, "the object is of another GPU than this thread has set");
}

static cudaError_t leave(cudaError_t error) {
    last = error;
    return error;
}

static void must(tr_status status) {
    require(status == TR_OK, tr_error_message());
}

__attribute__((destructor)) static void look_for_leaks(void) {
    if (live == 0) return;
    (void)fprintf(
        stderr, "emulated CUDA: %d pieces of memory, streams or events were not released\n", live);
    _exit(86);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "an error of the emulation";
}

/* --- devices ---------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    enter();
    *count = GPUS;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    enter();
    require(device >= 0 && device < GPUS, "there is no such GPU");
    current = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    enter_for(device);
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? 9
             : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                              : 4;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    enter();
    (void)snprintf(text, (size_t)size, "0000:%02x:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    enter();
    return cudaSuccess;
}

/* --- memory ----------------------------------------------------------------------------------- */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    enter();
    *total_bytes = memory_bytes;
    *free_bytes = memory_bytes - taken;
    return cudaSuccess;
}

/* Allocates memory with arbitrary contents and the owner in front of it. */
static cudaError_t allocate(void **out, size_t bytes, int gpu) {
    enum { FRONT = 256 };
    char *memory = NULL;
    enter();
    require(bytes > 0, "an allocation of 0 bytes");
    if (bytes > memory_bytes - taken) return leave(cudaErrorMemoryAllocation);
    require(posix_memalign((void **)&memory, FRONT, FRONT + bytes) == 0, "no memory");
    memset(memory, 0xff, FRONT + bytes);
    *(owner *)(void *)memory = (owner){gpu, bytes, memory};
    *out = memory + FRONT;
    taken += bytes;
    live++;
    return cudaSuccess;
}

static cudaError_t give_back(void *memory, int gpu) {
    if (!memory) return cudaSuccess;
    owner *own = (owner *)(void *)((char *)memory - 256);
    enter();
    require(own->gpu == gpu, "memory of another kind or GPU");
    taken -= own->bytes;
    live--;
    free(own);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    return allocate(out, bytes, current);
}
cudaError_t cudaFree(void *memory) {
    return give_back(memory, current);
}
cudaError_t cudaMallocHost(void **out, size_t bytes) {
    return allocate(out, bytes, -1);
}
cudaError_t cudaFreeHost(void *memory) {
    return give_back(memory, -1);
}
cudaError_t cudaMemset(void *memory, int value, size_t bytes) {
    enter();
    memset(memory, value, bytes);
    return cudaSuccess;
}

/* --- streams ---------------------------------------------------------------------------------- */

static tr_stream *queue_of(cudaStream_t stream) {
    enter_for(((own_stream *)stream)->gpu);
    return stream->queue;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    enter();
    require(flags == cudaStreamNonBlocking, "a stream that synchronizes with the default stream");
    own_stream *stream = calloc(1, sizeof *stream);
    require(stream != NULL, "no memory");
    stream->gpu = current;
    must(tr_host_stream_create(&host, &stream->base.queue));
    live++;
    *out = &stream->base;
    return cudaSuccess;
}

static cudaStream_t bound; /* cuDNN's */

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    require(stream != bound, "a stream is destroyed to which cuDNN is bound");
    tr_host_stream_destroy(queue_of(stream));
    free(stream);
    live--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    must(tr_host_stream_sync(queue_of(stream)));
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    (void)queue_of(stream);
    return leave(cudaErrorNotReady);
}

static void end_work(void *argument) {
    ((own_stream *)argument)->works--;
}

/* Counts work at the end of the stream. */
static void count_work(cudaStream_t stream) {
    own_stream *own = (own_stream *)stream;
    own->works++;
    for (int i = 0; own->works > MOST_WORKS; i++) {
        require(i < 20000, "a call waits forever because its stream is full");
        usleep(100);
    }
    must(tr_host_stream_call(stream->queue, end_work, own));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    require(kind == cudaMemcpyDefault, "a copy with a direction other than cudaMemcpyDefault");
    must(tr_host_stream_copy(queue_of(stream), to, from, bytes));
    count_work(stream);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    require(value == 0, "a fill with a value other than 0");
    must(tr_host_stream_zero(queue_of(stream), memory, bytes));
    count_work(stream);
    return cudaSuccess;
}

static void call_back(void *argument) {
    callback *call = argument;
    in_callback = true;
    call->function(call->argument);
    in_callback = false;
    call->stream->callbacks--;
    free(call);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void *), void *argument) {
    callback *call = malloc(sizeof *call);
    require(call != NULL, "no memory");
    *call = (callback){(own_stream *)stream, function, argument};
    require(++call->stream->callbacks <= MOST_CALLBACKS, "too many callbacks wait");
    must(tr_host_stream_call(queue_of(stream), call_back, call));
    return cudaSuccess;
}

void tr_emulated_launches(cudaStream_t stream) {
    if (stream->queue) must(tr_host_stream_sync(queue_of(stream)));
}

/* --- events ----------------------------------------------------------------------------------- */

static tr_event *event_of(cudaEvent_t event) {
    enter_for(event->gpu);
    return event->event;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    require(flags == 0, "a wait with flags");
    must(tr_host_stream_wait(queue_of(stream), event_of(event)));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    enter();
    require(flags == cudaEventDisableTiming, "an event that records times");
    cudaEvent_t event = calloc(1, sizeof *event);
    require(event != NULL, "no memory");
    event->gpu = current;
    must(tr_host_event_create(&host, &event->event));
    live++;
    *out = event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    tr_host_event_destroy(event_of(event));
    free(event);
    live--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    must(tr_host_event_record(event_of(event), queue_of(stream)));
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return leave(tr_host_event_reached(event_of(event)) ? cudaSuccess : cudaErrorNotReady);
}

/* --- libraries -------------------------------------------------------------------------------- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *out) {
    static char handle;
    *out = (cudnnHandle_t)(void *)&handle;
    live++;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    require(handle != NULL, "no cuDNN");
    bound = NULL;
    live--;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    require(handle && stream && stream->queue, "cuDNN without a stream");
    bound = stream;
    return CUDNN_STATUS_SUCCESS;
}
const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS ? "no error" : "an error of the emulation";
}

void tr_cuda_mark(const char *name);
void tr_cuda_mark(const char *name) {
    (void)name;
}
