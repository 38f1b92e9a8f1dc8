/* The cuda device: its opening, memory, streams and events. */
#include "base/memory.h"
#include "base/wait.h"
#include "device/cuda/cuda_impl.h"

#include <stdlib.h>

/* Selects the device, because threads other than the opener's (progress threads, workers, tests)
 * start on device 0. */
static tr_status use(tr_device *device) {
    TR_CUDA(cudaSetDevice(tr_cuda_device_of(device)->ordinal));
    return TR_OK;
}

/* --- memory ----------------------------------------------------------------------------------- */

static tr_status cuda_memory(tr_device *device, size_t *free_bytes, size_t *total_bytes) {
    TR_TRY(use(device));
    TR_CUDA(cudaMemGetInfo(free_bytes, total_bytes));
    return TR_OK;
}

/* Writes the GPU's place on the bus, which slices of one GPU share, and which NCCL compares,
 * too. */
static tr_status cuda_identity(tr_device *device, char *text, size_t size) {
    TR_TRY(use(device));
    TR_CUDA(cudaDeviceGetPCIBusId(text, (int)size, tr_cuda_device_of(device)->ordinal));
    return TR_OK;
}

static tr_status cuda_alloc(tr_device *device, size_t bytes, void **out) {
    TR_TRY(use(device));
    *out = NULL;
    size_t size = bytes > 0 ? bytes : 1;
    cudaError_t error = cudaMalloc(out, size);
    if (error == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total_bytes = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        return TR_FAIL(TR_ERR_FIT,
                       "device %s has no room for %zu bytes: %zu of %zu are free; use more ranks, "
                       "or end other programs on it",
                       device->name, size, free_bytes, total_bytes);
    }
    TR_CUDA(error);
    error = cudaMemset(*out, 0, size);
    if (error == cudaSuccess) error = cudaDeviceSynchronize(); /* zeroed for every stream */
    if (error != cudaSuccess) {
        (void)cudaFree(*out);
        *out = NULL;
    }
    TR_CUDA(error);
    return TR_OK;
}

static void cuda_free(tr_device *device, void *memory) {
    if (use(device) == TR_OK) (void)cudaFree(memory);
}

static tr_status cuda_staging_alloc(tr_device *device, size_t bytes, void **out) {
    TR_TRY(use(device));
    cudaError_t error = cudaMallocHost(out, bytes > 0 ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return TR_FAIL(TR_ERR_FIT, "the host has no %zu bytes of memory to pin: free memory on it",
                       bytes);
    }
    TR_CUDA(error);
    return TR_OK;
}

static void cuda_staging_free(tr_device *device, void *memory) {
    if (use(device) == TR_OK) (void)cudaFreeHost(memory);
}

/* --- streams and events ----------------------------------------------------------------------- */

static tr_stream *cuda_compute(tr_device *device) {
    return tr_cuda_device_of(device)->compute;
}

static tr_status cuda_stream_create(tr_device *device, tr_stream **out) {
    TR_TRY(use(device));
    tr_cuda_stream *stream;
    TR_TRY(tr_calloc(1, sizeof *stream, &stream));
    stream->base.device = device;
    cudaError_t error = cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking);
    if (error != cudaSuccess) free(stream);
    TR_CUDA(error);
    pthread_mutex_init(&stream->lock, NULL);
    tr_cond_init(&stream->freed);
    *out = &stream->base;
    return TR_OK;
}

static void cuda_stream_destroy(tr_stream *stream) {
    if (use(stream->device) == TR_OK) {
        (void)cudaStreamSynchronize(tr_cuda_stream_of(stream));
        (void)cudaStreamDestroy(tr_cuda_stream_of(stream));
    }
    pthread_mutex_destroy(&((tr_cuda_stream *)stream)->lock);
    pthread_cond_destroy(&((tr_cuda_stream *)stream)->freed);
    free(stream);
}

static void *cuda_stream_native(tr_stream *stream) {
    return tr_cuda_stream_of(stream);
}

static tr_status cuda_stream_sync(tr_stream *stream) {
    TR_TRY(use(stream->device));
    TR_CUDA(cudaStreamSynchronize(tr_cuda_stream_of(stream)));
    return TR_OK;
}

static tr_status cuda_stream_copy(tr_stream *stream, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return TR_OK;
    TR_TRY(use(stream->device));
    TR_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, tr_cuda_stream_of(stream)));
    return TR_OK;
}

static tr_status cuda_stream_zero(tr_stream *stream, void *memory, size_t bytes) {
    if (bytes == 0) return TR_OK;
    TR_TRY(use(stream->device));
    TR_CUDA(cudaMemsetAsync(memory, 0, bytes, tr_cuda_stream_of(stream)));
    return TR_OK;
}

static void free_call(tr_cuda_call *call) {
    tr_cuda_stream *stream = call->stream;
    pthread_mutex_lock(&stream->lock);
    call->stream = NULL;
    pthread_cond_signal(&stream->freed);
    pthread_mutex_unlock(&stream->lock);
}

/* Runs in a thread of the driver. */
static void run_call(void *argument) {
    tr_cuda_call *call = argument;
    call->function(call->argument);
    free_call(call);
}

/* Returns the stream's failure. After a failure of the device callbacks do not run any more. */
static tr_status stream_status(const tr_cuda_stream *stream) {
    cudaError_t error = cudaStreamQuery(stream->handle);
    if (error == cudaErrorNotReady) (void)cudaGetLastError(); /* not an error */
    else TR_CUDA(error);
    return TR_OK;
}

static tr_cuda_call *find_free_call(tr_cuda_stream *stream) {
    for (int i = 0; i < TR_CUDA_CALLS; i++)
        if (!stream->call[i].stream) return &stream->call[i];
    return NULL;
}

/* Takes a slot for a callback; waits until one is free, outside of the driver. */
static tr_status take_call(tr_cuda_stream *stream, tr_cuda_call **out) {
    tr_status status = TR_OK;
    pthread_mutex_lock(&stream->lock);
    while (!(*out = find_free_call(stream)) && status == TR_OK) {
        if (tr_cond_wait_until(&stream->freed, &stream->lock, tr_now_ns() + 1000000000)) continue;
        pthread_mutex_unlock(&stream->lock);
        status = stream_status(stream);
        pthread_mutex_lock(&stream->lock);
    }
    if (status == TR_OK) (*out)->stream = stream;
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* The function must not call CUDA. */
static tr_status cuda_stream_call(tr_stream *stream, void (*function)(void *), void *argument) {
    tr_cuda_call *call;
    TR_TRY(use(stream->device));
    TR_TRY(take_call((tr_cuda_stream *)stream, &call));
    call->function = function;
    call->argument = argument;
    cudaError_t error = cudaLaunchHostFunc(tr_cuda_stream_of(stream), run_call, call);
    if (error != cudaSuccess) free_call(call);
    TR_CUDA(error);
    return TR_OK;
}

static cudaEvent_t event_of(tr_event *event) {
    return ((tr_cuda_event *)event)->handle;
}

static tr_status cuda_stream_wait(tr_stream *stream, tr_event *event) {
    TR_TRY(use(stream->device));
    TR_CUDA(cudaStreamWaitEvent(tr_cuda_stream_of(stream), event_of(event), 0));
    return TR_OK;
}

static tr_status cuda_event_create(tr_device *device, tr_event **out) {
    TR_TRY(use(device));
    tr_cuda_event *event;
    TR_TRY(tr_calloc(1, sizeof *event, &event));
    event->base.device = device;
    cudaError_t error = cudaEventCreateWithFlags(&event->handle, cudaEventDisableTiming);
    if (error != cudaSuccess) free(event);
    TR_CUDA(error);
    *out = &event->base;
    return TR_OK;
}

static void cuda_event_destroy(tr_event *event) {
    if (use(event->device) == TR_OK) (void)cudaEventDestroy(event_of(event));
    free(event);
}

static tr_status cuda_event_record(tr_event *event, tr_stream *stream) {
    TR_TRY(use(stream->device));
    TR_CUDA(cudaEventRecord(event_of(event), tr_cuda_stream_of(stream)));
    return TR_OK;
}

/* Returns true when the event is reached. After a failure of the device every event counts as
 * reached: the next call on a stream returns the failure, and no thread waits for work that cannot
 * finish. */
static bool cuda_event_reached(tr_event *event) {
    if (use(event->device) != TR_OK) return true;
    if (cudaEventQuery(event_of(event)) != cudaErrorNotReady) return true;
    (void)cudaGetLastError(); /* not an error, but CUDA stores it as one */
    return false;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void cuda_close(tr_device *device) {
    tr_cuda_device *cuda = tr_cuda_device_of(device);
    (void)use(device); /* the libraries free memory of this GPU */
    /* cuDNN's handle is bound to the stream, so it goes first. */
    if (cuda->compute) (void)cudaStreamSynchronize(tr_cuda_stream_of(cuda->compute));
    if (cuda->dnn) (void)cudnnDestroy(cuda->dnn);
    if (cuda->blas) (void)cublasLtDestroy(cuda->blas);
    if (cuda->compute) cuda_stream_destroy(cuda->compute);
    free(cuda);
}

static tr_status open_libraries(tr_cuda_device *cuda) {
    TR_TRY(tr_cuda_open_libraries());
    TR_TRY(use(&cuda->base));
    TR_CUDA(
        cudaDeviceGetAttribute(&cuda->base.units, cudaDevAttrMultiProcessorCount, cuda->ordinal));
    TR_CUDA(cudaDeviceGetAttribute(&cuda->shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                   cuda->ordinal));
    int major, minor;
    TR_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal));
    TR_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cuda->ordinal));
    cuda->capability = 10 * major + minor;
    if (cuda->capability < 80)
        return TR_FAIL(TR_ERR_DEVICE,
                       "GPU %d has compute capability %d.%d; Trireme needs 8.0 or later",
                       cuda->ordinal, major, minor);
    TR_TRY(cuda_stream_create(&cuda->base, &cuda->compute));
    if (cublasLtCreate(&cuda->blas) != CUBLAS_STATUS_SUCCESS)
        return TR_FAIL(TR_ERR_DEVICE,
                       "cuBLASLt could not be started on GPU %d: see with nvidia-smi whether its "
                       "memory is in use",
                       cuda->ordinal);
    cudnnStatus_t status = cudnnCreate(&cuda->dnn);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnSetStream(cuda->dnn, tr_cuda_stream_of(cuda->compute));
    if (status != CUDNN_STATUS_SUCCESS)
        return TR_FAIL(TR_ERR_DEVICE, "cuDNN could not be started on GPU %d: %s", cuda->ordinal,
                       cudnnGetErrorString(status));
    return TR_OK;
}

static tr_status cuda_open(int ordinal, const tr_device_options *options, tr_device **out) {
    tr_device_set_environment(options->ranks);
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return TR_FAIL(TR_ERR_DEVICE,
                       "no GPU can be used here (%s): install NVIDIA's driver, or set "
                       "device.name=cpu",
                       cudaGetErrorString(error));
    }
    if (ordinal < 0) ordinal = count > 0 ? options->host_rank % count : 0;
    if (ordinal >= count)
        return TR_FAIL(TR_ERR_DEVICE, "there is no GPU %d: this machine has %d, counted from 0",
                       ordinal, count);
    tr_cuda_device *cuda;
    TR_TRY(tr_calloc(1, sizeof *cuda, &cuda));
    cuda->base.ops = &tr_device_ops_cuda;
    cuda->base.threads = options->threads;
    cuda->ordinal = ordinal;
    cuda->warms = options->ranks > 1;
    tr_status status = open_libraries(cuda);
    if (status != TR_OK) {
        cuda_close(&cuda->base);
        return status;
    }
    *out = &cuda->base;
    return TR_OK;
}

const tr_device_ops tr_device_ops_cuda = {
    .kind = "cuda",
    .speed = TR_CUDA_SPEED,
    .open = cuda_open,
    .close = cuda_close,
    .enter = use,
    .memory = cuda_memory,
    .identity = cuda_identity,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .staging_alloc = cuda_staging_alloc,
    .staging_free = cuda_staging_free,
    .compute = cuda_compute,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_native = cuda_stream_native,
    .stream_sync = cuda_stream_sync,
    .stream_copy = cuda_stream_copy,
    .stream_zero = cuda_stream_zero,
    .stream_call = cuda_stream_call,
    .stream_wait = cuda_stream_wait,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_reached = cuda_event_reached,
    .mark = tr_cuda_mark,
    .fuses = true,
    .prepare =
        {
#define TR_CUDA_ENTRY(UPPER, lower) [TR_OP_##UPPER] = tr_cuda_prepare_##lower,
            TR_OP_LIST(TR_CUDA_ENTRY)
#undef TR_CUDA_ENTRY
        },
};
