/* Runs the threads of a block as fibers (cuda_runtime_api.h in this folder). */
#include <cuda_runtime_api.h>

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#else
static void __sanitizer_start_switch_fiber(void **, const void *, size_t) {}
static void __sanitizer_finish_switch_fiber(void *, const void **, size_t *) {}
#endif

tr_emulated_index threadIdx, blockIdx, blockDim, gridDim;
void *tr_emulated_block_memory;

namespace {

/* The stacks lie apart by no power of two, so that they do not share the sets of the cache. */
enum { WARP = 32, MAX_THREADS = 1024, STACK = (64 << 10) + 13 * 64 };
enum state { READY, AT_BARRIER, AT_SHUFFLE, LEFT };

/* Where a fiber stopped. */
struct place {
    ucontext_t context;
    jmp_buf jump; /* instead of the context, once it has stopped */
    bool stopped;
};

struct fiber {
    place at;
    void *fake; /* the address sanitizer's stack of this fiber */
    state now;
    int away;
    size_t bytes;
    uint64_t value; /* given to a shuffle, then taken from it */
};

fiber fibers[MAX_THREADS];
alignas(64) char stacks[MAX_THREADS][STACK];
place scheduler;
void *scheduler_fake;
const void *scheduler_stack;
size_t scheduler_bytes;
unsigned current;
void (*kernel)(void *);
void *kernel_argument;

[[noreturn]] void wrong(const char *what) {
    fprintf(stderr, "emulated kernel, block %u of %u threads: %s\n", blockIdx.x, blockDim.x, what);
    abort();
}

/* Continues at `to` until another call switches back to `from`. With the address sanitizer it uses
 * swapcontext(), the only way that the sanitizer follows; this also sets the signal mask and takes
 * three times as long. */
[[gnu::noinline]] void change(place *from, place *to) {
#if defined(__SANITIZE_ADDRESS__)
    swapcontext(&from->context, &to->context);
#else
    from->stopped = true;
    if (_setjmp(from->jump) != 0) return;
    if (to->stopped) _longjmp(to->jump, 1);
    setcontext(&to->context);
#endif
}

void enter(unsigned thread) {
    current = threadIdx.x = thread;
    __sanitizer_start_switch_fiber(&scheduler_fake, stacks[thread], STACK);
    change(&scheduler, &fibers[thread].at);
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
}

void leave(state why) {
    fiber *f = &fibers[current];
    f->now = why;
    __sanitizer_start_switch_fiber(&f->fake, scheduler_stack, scheduler_bytes);
    change(&f->at, &scheduler);
    __sanitizer_finish_switch_fiber(f->fake, NULL, NULL);
}

void start() {
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_bytes);
    for (;;) { /* the fiber then runs the thread of the next block */
        kernel(kernel_argument);
        leave(LEFT);
    }
}

[[gnu::noinline]] void make(unsigned thread) {
    ucontext_t *context = &fibers[thread].at.context;
    getcontext(context);
    context->uc_stack.ss_sp = stacks[thread];
    context->uc_stack.ss_size = STACK;
    context->uc_link = NULL;
    makecontext(context, start, 0);
}

/* Resumes a warp if all of its lanes have given their values; else returns false. */
bool exchange(fiber *lane) {
    uint64_t given[WARP];
    for (int i = 0; i < WARP; i++) {
        if (lane[i].now != AT_SHUFFLE) return false;
        if (lane[i].bytes != lane[0].bytes) wrong("the lanes of a warp are at different shuffles");
        given[i] = lane[i].value;
    }
    for (int i = 0; i < WARP; i++) {
        lane[i].value = given[(i ^ lane[i].away) % WARP];
        lane[i].now = READY;
    }
    return true;
}

unsigned count_at(unsigned threads, state where) {
    unsigned count = 0;
    for (unsigned t = 0; t < threads; t++) count += fibers[t].now == where;
    return count;
}

void run_block(unsigned threads, bool descending) {
    for (unsigned t = 0; t < threads; t++) {
        if (!fibers[t].at.context.uc_stack.ss_sp) make(t);
        fibers[t].now = READY;
    }
    for (;;) {
        for (unsigned i = 0; i < threads; i++) {
            unsigned t = descending ? threads - 1 - i : i;
            if (fibers[t].now == READY) enter(t);
        }
        if (count_at(threads, LEFT) == threads) return;
        bool moves = false;
        for (unsigned t = 0; t < threads; t += WARP) moves |= exchange(&fibers[t]);
        if (moves) continue;
        if (count_at(threads, AT_BARRIER) != threads)
            wrong("some threads wait at a barrier or shuffle that others do not reach");
        for (unsigned t = 0; t < threads; t++) fibers[t].now = READY;
    }
}

} // namespace

void __syncthreads(void) {
    leave(AT_BARRIER);
}

void tr_emulated_shuffle_xor(void *value, size_t bytes, int away) {
    fiber *f = &fibers[current];
    f->bytes = bytes;
    f->away = away;
    memcpy(&f->value, value, bytes);
    leave(AT_SHUFFLE);
    memcpy(value, &f->value, bytes);
}

cudaError_t tr_emulated_run(cudaStream_t stream, unsigned blocks, unsigned threads, size_t bytes,
                            void (*body)(void *), void *argument) {
    if (blocks == 0 || threads == 0 || threads > MAX_THREADS || threads % WARP != 0)
        return cudaErrorInvalidConfiguration;
    if (bytes > 0 && !(tr_emulated_block_memory = malloc(bytes))) return cudaErrorMemoryAllocation;
    tr_emulated_launches(stream);
    kernel = body;
    kernel_argument = argument;
    blockDim.x = threads;
    gridDim.x = blocks;
    for (unsigned b = 0; b < blocks; b++) {
        blockIdx.x = stream->descending ? blocks - 1 - b : b;
        if (bytes > 0) memset(tr_emulated_block_memory, 0xff, bytes);
        run_block(threads, stream->descending);
    }
    if (bytes > 0) free(tr_emulated_block_memory);
    tr_emulated_block_memory = NULL;
    return cudaSuccess;
}
