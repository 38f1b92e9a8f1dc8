/* Tests saves in the background: what is written is what the tensors held when the save began, on
 * devices in host memory and with memory of their own; a write that fails on one rank, and a save
 * that is given up, leave the older step. A write allocates a block, and of tensors in memory of
 * the device as much as the largest one that the rank writes. Ranks are threads of a local
 * world. */
#include "base/code8.h"
#include "base/memory.h"
#include "support/ckpt_rig.h"
#include "train/saver.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

enum { RANKS = 2, ROWS = 48, COLUMNS = 700, COUNT = ROWS / RANKS * COLUMNS };
enum { BLOCK = 4 << 20, CODES = BLOCK / (int)sizeof(float) + 3000 }; /* more than a block in FP32 */

/* Where the thread that writes waits until the test lets it begin. */
static sem_t gate;
static _Atomic int failing; /* how many writes fail */

/* Seconds by which this thread's clock is ahead. One of the first two writes takes DELAY longer. */
enum { DELAY = 1000 };
static _Thread_local time_t ahead;
static atomic_flag delayed = ATOMIC_FLAG_INIT;

/* What a write allocates: staging memory, and more than a block of the host's. */
static _Thread_local bool writes;
static _Thread_local size_t taken;
static _Atomic size_t taken_behind; /* in the background */

/* The linker sends calls of tr_ckpt_saving_write() here. */
tr_status __real_tr_ckpt_saving_write(tr_ckpt_saving *saving, tr_world *tell);
tr_status __wrap_tr_ckpt_saving_write(tr_ckpt_saving *saving, tr_world *tell);
tr_status __wrap_tr_ckpt_saving_write(tr_ckpt_saving *saving, tr_world *tell) {
    if (!tell) (void)sem_wait(&gate);
    if (failing > 0 && failing-- > 0)
        return TR_FAIL(TR_ERR_IO, "cannot write shard: No space left on device");
    writes = true;
    taken = 0;
    tr_status status = __real_tr_ckpt_saving_write(saving, tell);
    writes = false;
    if (!atomic_flag_test_and_set(&delayed)) ahead += DELAY;
    if (!tell && taken > 0) taken_behind = taken;
    return status;
}

/* And those of the clock and of the functions that allocate to those below. */
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    const int failed = __real_clock_gettime(clock, now);
    now->tv_sec += ahead;
    return failed;
}

tr_status __real_tr_device_staging_alloc(tr_device *device, size_t bytes, void **out);
tr_status __wrap_tr_device_staging_alloc(tr_device *device, size_t bytes, void **out);
tr_status __wrap_tr_device_staging_alloc(tr_device *device, size_t bytes, void **out) {
    if (writes) taken += bytes;
    return __real_tr_device_staging_alloc(device, bytes, out);
}

tr_status __real_tr_calloc(size_t count, size_t size, void *out);
tr_status __wrap_tr_calloc(size_t count, size_t size, void *out);
tr_status __wrap_tr_calloc(size_t count, size_t size, void *out) {
    if (writes && count * size > BLOCK) taken += count * size;
    return __real_tr_calloc(count, size, out);
}

typedef struct rank {
    tr_world *world;
    tr_device *device;
    const char *device_name, *root;
    int rank, failed; /* failed: a line */
    tr_box box, whole;
    tr_ckpt_tensor tensor[2];
    tr_saver *saver;
    float *weights; /* in staging memory, [COUNT] */
    uint8_t *codes;
} rank;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition) && !r->failed) r->failed = __LINE__;                                      \
    } while (0)

/* Sets the values of a step on the host: half of the rows each, and the same codes. */
static void draw(rank *r, int64_t step) {
    for (int64_t i = 0; i < COUNT; i++)
        r->weights[i] = (float)(step * 1000000 + r->rank * COUNT + i);
    for (size_t i = 0; i < tr_code8_bytes(CODES); i++)
        r->codes[i] = i < CODES ? (uint8_t)(i * (size_t)step % 251) : 0;
    const float scale = tr_code8_power(-3);
    for (size_t b = 0; b < CODES / TR_CODE8_BLOCK + 1; b++) {
        memcpy(r->codes + tr_code8_scales(CODES) + b * sizeof scale, &scale, sizeof scale);
        r->codes[b * TR_CODE8_BLOCK] = 255; /* so that the codes are those of no other scale */
    }
}

/* Copies the host's values to the tensors, or with `back` those of the tensors to the host. */
static void move(rank *r, bool back) {
    void *host[2] = {r->weights, r->codes};
    tr_stream *stream = tr_device_compute(r->device);
    for (int k = 0; k < 2; k++) {
        void *local = r->tensor[k].local;
        EXPECT(tr_stream_copy(stream, back ? host[k] : local, back ? local : host[k],
                              tr_ckpt_tensor_bytes(&r->tensor[k])) == TR_OK);
    }
    EXPECT(tr_stream_sync(stream) == TR_OK);
}

/* Changes what is trained, as a step does. */
static void take_step(rank *r, int64_t step) {
    draw(r, step);
    move(r, false);
}

/* Loads the newest step, and compares it with the values of `step`. */
static void expect_saved(rank *r, int64_t step) {
    float *drawn = malloc(COUNT * sizeof *drawn);
    uint8_t *coded = malloc(tr_code8_bytes(CODES));
    tr_ckpt_state state;
    EXPECT(tr_ckpt_load(r->world, r->root, -1, r->tensor, 2, &state, NULL) == TR_OK);
    EXPECT(state.step == step);
    draw(r, step);
    memcpy(drawn, r->weights, COUNT * sizeof *drawn);
    memcpy(coded, r->codes, tr_code8_bytes(CODES));
    move(r, true);
    EXPECT(memcmp(drawn, r->weights, COUNT * sizeof *drawn) == 0);
    EXPECT(memcmp(coded, r->codes, tr_code8_bytes(CODES)) == 0);
    free(drawn);
    free(coded);
}

static void open_rank(rank *r) {
    const tr_device_options options = {.threads = 1, .ranks = RANKS};
    EXPECT(tr_device_open(r->device_name, &options, &r->device) == TR_OK);
    r->box = (tr_box){.offset = {r->rank * (ROWS / RANKS), 0},
                      .extent = {ROWS / RANKS, COLUMNS},
                      .local_stride = {COLUMNS, 1}};
    r->whole = (tr_box){.extent = {CODES}, .local_stride = {1}};
    r->tensor[0] = (tr_ckpt_tensor){.name = "weights/w",
                                    .rank = 2,
                                    .shape = {ROWS, COLUMNS},
                                    .boxes = 1,
                                    .box = &r->box,
                                    .device = r->device,
                                    .count = COUNT,
                                    .write = true};
    r->tensor[1] = (tr_ckpt_tensor){.name = "adam_v/w",
                                    .rank = 1,
                                    .shape = {CODES},
                                    .boxes = 1,
                                    .box = &r->whole,
                                    .dtype = TR_U8,
                                    .code = TR_CODE8_SQUARES,
                                    .device = r->device,
                                    .count = CODES,
                                    .write = r->rank == 1};
    for (int k = 0; k < 2; k++)
        EXPECT(tr_device_alloc(r->device, TR_MEMORY_DATA, tr_ckpt_tensor_bytes(&r->tensor[k]),
                               &r->tensor[k].local) == TR_OK);
    EXPECT(tr_device_staging_alloc(r->device, COUNT * sizeof *r->weights, (void **)&r->weights) ==
           TR_OK);
    EXPECT(tr_device_staging_alloc(r->device, tr_code8_bytes(CODES), (void **)&r->codes) == TR_OK);
}

static tr_status open_saver(rank *r, size_t more) {
    size_t bytes = more;
    for (int k = 0; k < 2; k++)
        if (r->tensor[k].write) bytes += tr_align_up(tr_ckpt_tensor_bytes(&r->tensor[k]));
    const tr_saver_desc desc = {.world = r->world,
                                .device = r->device,
                                .root = r->root,
                                .tensors = r->tensor,
                                .count = 2,
                                .background = true,
                                .snapshot = bytes};
    tr_status status = tr_saver_open(&desc, &r->saver);
    if (status == TR_OK) EXPECT(tr_device_peak(r->device, TR_MEMORY_SNAPSHOT) == bytes);
    return status;
}

/* Lets one rank's thread write; all ranks call it. */
static void open_gate(rank *r) {
    (void)sem_post(&gate);
    EXPECT(tr_world_barrier(r->world) == TR_OK);
}

/* Step 2 is taken, and changes everything, before the thread has read anything of step 1. */
static void save_while_training(rank *r) {
    const tr_ckpt_state state = state_of(1);
    bool written = true;
    double seconds = 0;
    take_step(r, 1);
    EXPECT(!tr_saver_saves(r->saver));
    EXPECT(tr_saver_begin(r->saver, &state, true) == TR_OK);
    take_step(r, 2);
    EXPECT(tr_saver_saves(r->saver));
    EXPECT(tr_saver_look(r->saver, &written) == TR_OK && !written);
    if (r->rank == 0) (void)sem_post(&gate); /* one rank has written: not yet all */
    EXPECT(tr_saver_look(r->saver, &written) == TR_OK && !written);
    if (r->rank == 1) (void)sem_post(&gate);
    while (!written && !r->failed) EXPECT(tr_saver_look(r->saver, &written) == TR_OK);
    EXPECT(tr_saver_end(r->saver, &seconds) == TR_OK);
    EXPECT(seconds >= DELAY && seconds < 2 * DELAY); /* on every rank those of the slowest one */
    EXPECT(!tr_saver_saves(r->saver));
    expect_saved(r, 1);
}

/* One rank cannot write: all ranks say why, and step 1 stays. */
static void fail_to_write(rank *r) {
    const tr_ckpt_state state = state_of(2);
    double seconds = 0;
    take_step(r, 2);
    if (r->rank == 0) failing = 1;
    EXPECT(tr_saver_begin(r->saver, &state, true) == TR_OK);
    open_gate(r);
    EXPECT(tr_saver_end(r->saver, &seconds) == TR_ERR_IO && tr_error_is_agreed());
    EXPECT(strcmp(tr_error_message(), "cannot write shard: No space left on device") == 0);
    EXPECT(!tr_saver_saves(r->saver));
    EXPECT(tr_world_barrier(r->world) == TR_OK); /* rank 0 has removed the directory */
    EXPECT(count_entries(r->root, ".tmp-") == 0);
    expect_saved(r, 1);
}

/* The last save of a run is not in the background. */
static void save_at_once(rank *r) {
    const tr_ckpt_state state = state_of(3);
    const tr_ckpt_tensor *largest = &r->tensor[r->tensor[1].write];
    double seconds = 0;
    take_step(r, 3);
    EXPECT(tr_saver_begin(r->saver, &state, false) == TR_OK);
    EXPECT(tr_saver_end(r->saver, &seconds) == TR_OK && seconds > 0);
    EXPECT(taken == (tr_device_on_host(r->device) ? 0 : tr_ckpt_tensor_bytes(largest)));
    EXPECT(taken_behind == 0);
    expect_saved(r, 3);
}

/* A run that has failed closes the saver while the thread writes. */
static void give_up(rank *r) {
    const tr_ckpt_state state = state_of(4);
    take_step(r, 4);
    EXPECT(tr_saver_begin(r->saver, &state, true) == TR_OK);
    open_gate(r);
    tr_saver_close(r->saver);
    EXPECT(tr_world_barrier(r->world) == TR_OK);
    EXPECT(count_entries(r->root, ".tmp-") == 1);
    EXPECT(tr_world_barrier(r->world) == TR_OK);
    if (r->rank == 0) EXPECT(tr_ckpt_retain(r->root, 2, 0) == TR_OK);
    EXPECT(tr_world_barrier(r->world) == TR_OK);
    EXPECT(count_entries(r->root, ".tmp-") == 0);
    expect_saved(r, 3);
}

/* A write that is not needed any more ends before the next block. */
static void leave_write(rank *r) {
    const tr_ckpt_state state = state_of(5);
    tr_ckpt_saving *saving = NULL;
    EXPECT(tr_ckpt_saving_begin(r->world, r->root, &state, r->tensor, 2, &saving) == TR_OK);
    tr_ckpt_saving_leave(saving);
    EXPECT(tr_ckpt_saving_write(saving, r->world) == TR_ERR_STOPPED);
    tr_ckpt_saving_abandon(saving);
}

static void *rank_main(void *argument) {
    rank *r = argument;
    open_rank(r);
    EXPECT(open_saver(r, 64) == TR_ERR_INTERNAL); /* not the planned bytes */
    EXPECT(open_saver(r, 0) == TR_OK);
    save_while_training(r);
    fail_to_write(r);
    save_at_once(r);
    give_up(r);
    leave_write(r);
    for (int k = 0; k < 2; k++) tr_device_free(r->device, r->tensor[k].local);
    tr_device_staging_free(r->device, r->weights);
    tr_device_staging_free(r->device, r->codes);
    tr_device_close(r->device);
    tr_world_close(r->world);
    return NULL;
}

static void save_on(const char *device) {
    static rank ranks[RANKS];
    tr_world *world[RANKS];
    pthread_t thread[RANKS];
    char root[300];
    (void)snprintf(root, sizeof root, "%s", path_of("%s", device));
    assert_int_equal(sem_init(&gate, 0, 0), 0);
    atomic_flag_clear(&delayed);
    assert_int_equal(tr_world_open_local(RANKS, world), TR_OK);
    for (int k = 0; k < RANKS; k++) {
        ranks[k] = (rank){.world = world[k], .device_name = device, .root = root, .rank = k};
        assert_int_equal(pthread_create(&thread[k], NULL, rank_main, &ranks[k]), 0);
    }
    for (int k = 0; k < RANKS; k++) (void)pthread_join(thread[k], NULL);
    for (int k = 0; k < RANKS; k++) assert_int_equal(ranks[k].failed, 0);
    (void)sem_destroy(&gate);
}

static void test_on_host_memory(void **state) {
    (void)state;
    save_on("cpu");
}

static void test_on_memory_of_its_own(void **state) {
    (void)state;
    save_on("guarded");
}

int main(void) {
    const char *base = getenv("TMPDIR");
    (void)snprintf(scratch, sizeof scratch, "%s/trireme-test-saver-%d", base ? base : "/tmp",
                   (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_on_host_memory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_on_memory_of_its_own, set_up, tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
