/* Tests checkpoints: any layout loads what any other saved; a failed save leaves no files. Ranks
 * are threads of a local world. */
#include "base/code8.h"
#include "support/ckpt_rig.h"

#include <hdf5.h>

static void test_any_layout_loads_any_other(void **state) {
    (void)state;
    print_seed(__func__);
    char *root = path_of("run/ckpt");
    for (int trial = 0; trial < 12; trial++) {
        model m = random_model();
        layout saved = random_layout(&m, 1 + (int)random_below(MAX_RANKS));
        assert_good(save_model(root, trial, &m, &saved));
        for (int again = 0; again < 3; again++) {
            layout wanted = random_layout(&m, 1 + (int)random_below(MAX_RANKS));
            assert_good(load_model(root, again ? -1 : trial, trial, &m, &wanted));
            assert_string_equal(last_corrupt, "");
        }
        assert_int_equal(tr_ckpt_verify(root, trial), TR_OK);
        tr_ckpt_state s, want = state_of(trial);
        assert_int_equal(tr_ckpt_read_state(root, -1, &s), TR_OK);
        assert_memory_equal(&s, &want, offsetof(tr_ckpt_state, config));
        free_model(&m);
    }
    tr_ckpt_info *info;
    int count;
    assert_int_equal(tr_ckpt_list(root, &info, &count), TR_OK);
    assert_int_equal(count, 12);
    for (int i = 0; i < count; i++) {
        assert_int_equal(info[i].step, i);
        assert_true(info[i].valid);
        assert_true(info[i].bytes > 0 && info[i].shards >= 1 && info[i].shards <= MAX_RANKS);
    }
    free(info);
}

/* FP64 in memory, column by column, becomes FP32 in the file, and both types can load it. */
static void test_fp64_is_saved_as_fp32(void **state) {
    (void)state;
    enum { ROWS = 6, COLUMNS = 5, COUNT = ROWS * COLUMNS };
    tr_world *world;
    double columns[COUNT], loaded[COUNT];
    float narrow[COUNT];
    tr_box by_columns = {.extent = {ROWS, COLUMNS}, .local_stride = {1, ROWS}};
    tr_box by_rows = {.extent = {ROWS, COLUMNS}, .local_stride = {COLUMNS, 1}};
    tr_ckpt_tensor t = {.name = "weights/w",
                        .rank = 2,
                        .shape = {ROWS, COLUMNS},
                        .boxes = 1,
                        .box = &by_columns,
                        .local = columns,
                        .dtype = TR_F64,
                        .write = true};
    tr_ckpt_state s = state_of(1);
    for (int i = 0; i < COUNT; i++) columns[i] = 1.0 / (3 + i);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_good(tr_ckpt_save(world, path_of("wide"), &s, &t, 1));
    t.local = loaded;
    assert_good(tr_ckpt_load(world, path_of("wide"), 1, &t, 1, &s, NULL));
    t.local = narrow;
    t.dtype = TR_F32;
    t.box = &by_rows;
    assert_good(tr_ckpt_load(world, path_of("wide"), 1, &t, 1, &s, NULL));
    tr_world_close(world);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            const float rounded = (float)columns[c * ROWS + r];
            assert_true(loaded[c * ROWS + r] == (double)rounded);
            assert_true(narrow[r * COLUMNS + c] == rounded);
        }
}

static int syncs; /* of directories, until one fails; 0: none fails */

/* The linker sends calls of tr_folders_sync here. */
int __real_tr_folders_sync(const char *path);
int __wrap_tr_folders_sync(const char *path);
int __wrap_tr_folders_sync(const char *path) {
    return syncs > 0 && --syncs == 0 ? EIO : __real_tr_folders_sync(path);
}

/* A sync that fails before the rename leaves nothing; after it, the whole step, and says so. */
static void test_directory_cannot_be_synced(void **state) {
    (void)state;
    tr_world *world;
    float w[4] = {1, 2, 3, 4};
    tr_box box = {.extent = {4}, .local_stride = {1}};
    tr_ckpt_tensor t = {.name = "weights/w",
                        .rank = 1,
                        .shape = {4},
                        .boxes = 1,
                        .box = &box,
                        .local = w,
                        .dtype = TR_F32,
                        .write = true};
    tr_ckpt_state s = state_of(1);
    char root[PATH_MAX];
    (void)snprintf(root, sizeof root, "%s", path_of("unsynced"));
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(mkdir(root, 0777), 0);
    int failed = 0, complete = 0;
    for (int k = 1; complete == 0; k++) {
        tr_ckpt_info *info;
        int count;
        syncs = k;
        assert_int_equal(tr_ckpt_save(world, root, &s, &t, 1), TR_ERR_IO);
        assert_int_equal(syncs, 0);
        complete =
            strstr(tr_error_message(), "step-00000001 is complete, but cannot fsync ") != NULL;
        assert_int_equal(tr_ckpt_list(root, &info, &count), TR_OK);
        assert_int_equal(count, complete);
        if (complete) assert_true(info[0].valid);
        free(info);
        failed++;
    }
    assert_int_equal(failed, 3); /* the root, the step's directory, the root */
    assert_good(tr_ckpt_load(world, root, 1, &t, 1, &s, NULL));
    tr_world_close(world);
}

/* Returns the bytes of a step's only shard. */
static size_t shard_bytes(const char *root) {
    size_t bytes;
    free(read_bytes(path_of("%s/step-00000001/shard-00000-of-00001.h5", root), &bytes));
    return bytes;
}

/* BF16 and 8 bits by block in memory become BF16 in the file, in several blocks. FP32 loads their
 * numbers, BF16 the same bits, and 8 bits the same codes; damage is found. */
static void test_narrow_types_are_saved_as_bf16(void **state) {
    (void)state;
    print_seed(__func__);
    enum { ROWS = 3, COLUMNS = 400000, COUNT = ROWS * COLUMNS };
    static float wide[COUNT];
    static uint16_t half[COUNT], turned[COUNT];
    static uint8_t codes[2][COUNT + TR_CODE8_BLOCK + COUNT / 32];
    const size_t bytes = tr_code8_bytes(COUNT), scales = tr_code8_scales(COUNT);
    tr_world *world;
    tr_device *device;
    tr_box by_rows = {.extent = {ROWS, COLUMNS}, .local_stride = {COLUMNS, 1}};
    tr_box by_columns = {.extent = {ROWS, COLUMNS}, .local_stride = {1, ROWS}};
    tr_ckpt_tensor t = {.name = "adam_v/w",
                        .rank = 2,
                        .shape = {ROWS, COLUMNS},
                        .boxes = 1,
                        .box = &by_rows,
                        .local = half,
                        .dtype = TR_BF16,
                        .count = COUNT,
                        .code = TR_CODE8_SQUARES,
                        .write = true};
    tr_ckpt_state s = state_of(1);
    assert_true(bytes <= sizeof codes[0]);
    for (int i = 0; i < COUNT; i++) half[i] = (uint16_t)(random_below(0x7f80) | i % 2 << 15);
    for (size_t i = 0; i < scales; i++) codes[0][i] = (uint8_t)random_below(256);
    for (size_t b = 0; b < (bytes - scales) / sizeof(float); b++) {
        /* A block's largest number is 1.875 scales, so that the codes are those of no other one. */
        const float scale = tr_code8_power((int)random_below(227) - 100);
        memcpy(codes[0] + scales + b * sizeof scale, &scale, sizeof scale);
        codes[0][b * TR_CODE8_BLOCK] = 255;
    }
    memset(codes[0] + COUNT, 0, scales - COUNT);
    assert_int_equal(tr_world_open_local(1, &world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device), TR_OK);

    assert_good(tr_ckpt_save(world, path_of("half"), &s, &t, 1));
    t.local = turned;
    t.box = &by_columns;
    assert_good(tr_ckpt_load(world, path_of("half"), 1, &t, 1, &s, NULL));
    t.local = wide;
    t.dtype = TR_F32;
    assert_good(tr_ckpt_load(world, path_of("half"), 1, &t, 1, &s, NULL));
    for (int i = 0; i < COUNT; i++) {
        const int there = i % COLUMNS * ROWS + i / COLUMNS;
        assert_int_equal(turned[there], half[i]);
        assert_true(wide[there] == tr_bf16_to_f32(half[i]));
    }
    assert_true(shard_bytes("half") < COUNT * sizeof *half + (1 << 14));

    t.box = &by_rows;
    t.local = codes[0];
    t.dtype = TR_U8;
    t.device = device;
    assert_good(tr_ckpt_save(world, path_of("codes"), &s, &t, 1));
    t.local = codes[1];
    assert_good(tr_ckpt_load(world, path_of("codes"), 1, &t, 1, &s, NULL));
    assert_memory_equal(codes[1], codes[0], bytes);
    t.local = wide;
    t.dtype = TR_F32;
    assert_good(tr_ckpt_load(world, path_of("codes"), 1, &t, 1, &s, NULL));
    for (int i = 0; i < COUNT; i++) {
        float scale;
        memcpy(&scale, codes[0] + scales + (size_t)(i / TR_CODE8_BLOCK) * sizeof scale,
               sizeof scale);
        assert_true(wide[i] == tr_code8_decode(codes[0][i], scale, TR_CODE8_SQUARES));
    }
    assert_true(shard_bytes("codes") < COUNT * sizeof *half + (1 << 14));

    assert_int_equal(tr_ckpt_verify(path_of("half"), 1), TR_OK);
    size_t size;
    char *shard = path_of("half/step-00000001/shard-00000-of-00001.h5");
    char *file = read_bytes(shard, &size);
    file[4096 + COUNT * sizeof *half - 1] ^= 1; /* the last element */
    write_bytes(shard, file, size);
    free(file);
    assert_int_equal(tr_ckpt_verify(path_of("half"), 1), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "block 1 of tensor adam_v/w"));
    tr_device_close(device);
    tr_world_close(world);
}

/* More than one block in a part, columns split, so that blocks begin inside rows. */
static void test_several_blocks(void **state) {
    (void)state;
    print_seed(__func__);
    model m = {0};
    add_tensor(&m, "weights/wide", 2, (int64_t[]){1500, 1501});
    layout one = {.ranks = 1, .pieces = {1}}, two = {.ranks = 2, .pieces = {2}};
    one.piece[0][0] = (piece){0, 1, {0, 0}, {1500, 1501}};
    two.piece[0][0] = (piece){0, 1, {0, 0}, {1500, 700}};
    two.piece[0][1] = (piece){1, 2, {0, 700}, {1500, 801}};
    assert_good(save_model(path_of("big"), 1, &m, &one));
    assert_good(save_model(path_of("big"), 2, &m, &two));
    assert_good(load_model(path_of("big"), 1, 1, &m, &two));
    assert_good(load_model(path_of("big"), 2, 2, &m, &one));

    /* Two exchanged blocks are found, and so is a page of zeros. */
    char *shard = path_of("big/step-00000001/shard-00000-of-00001.h5");
    size_t size;
    char *bytes = read_bytes(shard, &size), *page = malloc(size);
    assert_non_null(page);
    const size_t block = 4u << 20, start = 4096;
    memcpy(page, bytes, size);
    memcpy(page + start, bytes + start + block, block);
    memcpy(page + start + block, bytes + start, block);
    write_bytes(shard, page, size);
    assert_int_equal(load_model(path_of("big"), 1, 1, &m, &one), TR_ERR_DATA);
    memcpy(page, bytes, size);
    memset(page + (6u << 20), 0, 4096);
    write_bytes(shard, page, size);
    assert_int_equal(load_model(path_of("big"), 1, 1, &m, &two), TR_ERR_DATA);
    assert_int_equal(tr_ckpt_verify(path_of("big"), 1), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "weights/wide"));
    free(page);
    free(bytes);
    free_model(&m);
}

static void test_same_state_same_bytes(void **state) {
    (void)state;
    print_seed(__func__);
    model m = random_model();
    layout l = random_layout(&m, 3);
    assert_good(save_model(path_of("a"), 5, &m, &l));
    (void)sleep(1); /* time stamps would differ now */
    assert_good(save_model(path_of("b"), 5, &m, &l));
    DIR *dir = opendir(path_of("a/step-00000005"));
    assert_non_null(dir);
    int files = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        size_t na, nb;
        char *a = read_bytes(path_of("a/step-00000005/%s", e->d_name), &na);
        char *b = read_bytes(path_of("b/step-00000005/%s", e->d_name), &nb);
        assert_int_equal(na, nb);
        if (strcmp(e->d_name, "COMMIT") == 0) {
            /* all but the lines with the uuid and with the file's own checksum */
            char *ua = strstr(a, "uuid="), *ub = strstr(b, "uuid=");
            assert_memory_not_equal(ua, ub, 37);
            memcpy(ua, ub, 37);
            assert_memory_equal(a, b, na - strlen("xxh3=0123456789abcdef\n"));
        } else {
            assert_memory_equal(a, b, na);
        }
        free(a);
        free(b);
        files++;
    }
    (void)closedir(dir);
    assert_true(files >= 3);
    free_model(&m);
}

static void test_other_model_is_listed(void **state) {
    (void)state;
    print_seed(__func__);
    model m = {0}, other = {0};
    add_tensor(&m, "weights/a", 2, (int64_t[]){4, 6});
    add_tensor(&m, "weights/b", 1, (int64_t[]){4});
    add_tensor(&m, "weights/gone", 1, (int64_t[]){4});
    add_tensor(&m, "adam_m/a", 1, (int64_t[]){4});
    add_tensor(&other, "weights/a", 2, (int64_t[]){4, 7});
    add_tensor(&other, "weights/b", 1, (int64_t[]){4});
    add_tensor(&other, "weights/new", 1, (int64_t[]){4});
    layout l = random_layout(&m, 2), wanted = random_layout(&other, 3);
    assert_good(save_model(path_of("g"), 1, &m, &l));
    assert_int_equal(load_model(path_of("g"), -1, 1, &other, &wanted), TR_ERR_DATA);
    assert_non_null(strstr(last_message, "3 tensors differ"));
    assert_non_null(strstr(last_message, "weights/a is (4, 6) in the file, (4, 7) in the model"));
    assert_non_null(strstr(last_message, "weights/new is missing"));
    assert_non_null(strstr(last_message, "weights/gone is not in the model"));
    /* A model may leave out a whole group: weights without moments. */
    m.count = 3;
    layout weights = random_layout(&m, 2);
    assert_good(load_model(path_of("g"), -1, 1, &m, &weights));
    m.count = 4;
    free_model(&m);
    free_model(&other);
}

static void test_nothing_there(void **state) {
    (void)state;
    print_seed(__func__);
    model m = tiny_model();
    layout l = random_layout(&m, 2);
    assert_int_equal(load_model(path_of("none/ckpt"), -1, 0, &m, &l), TR_ERR_NOFILE);
    assert_int_equal(load_model(path_of("none"), -1, 0, &m, &l), TR_ERR_DATA);
    assert_int_equal(load_model(path_of("none"), 7, 0, &m, &l), TR_ERR_NOFILE);
    tr_ckpt_info *info;
    int count;
    assert_int_equal(tr_ckpt_list(path_of("none"), &info, &count), TR_OK);
    assert_int_equal(count, 0);
    free(info);
    assert_int_equal(mkdir(path_of("only"), 0777), 0);
    assert_int_equal(mkdir(path_of("only/step-00000004"), 0777), 0);
    assert_int_equal(load_model(path_of("only"), -1, 0, &m, &l), TR_ERR_DATA);
    free_model(&m);
}

enum { READERS = 2, READINGS = 200 };

typedef struct reading {
    const char *root;
    int64_t step;
    int wrong;
} reading;

static void *read_states(void *arg) {
    reading *r = arg;
    for (int k = 0; k < READINGS; k++) {
        tr_ckpt_state *s = calloc(1, sizeof *s);
        r->wrong += !s || tr_ckpt_read_state(r->root, r->step, s) != TR_OK || s->step != r->step;
        free(s);
    }
    return NULL;
}

/* Ranks may be threads of one process, each of which opens indexes. */
static void test_threads_read_different_steps(void **state) {
    (void)state;
    print_seed(__func__);
    model m = random_model();
    layout l = random_layout(&m, 1);
    pthread_t thread[READERS];
    reading work[READERS];
    hbool_t safe = false;
    assert_true(H5is_library_threadsafe(&safe) >= 0);
    if (!safe) {
        print_message("this HDF5 is not thread-safe\n");
        skip();
    }
    for (int k = 0; k < READERS; k++) {
        work[k] = (reading){path_of("p"), k + 1, 0};
        assert_good(save_model(work[k].root, k + 1, &m, &l));
    }
    for (int k = 0; k < READERS; k++)
        assert_int_equal(pthread_create(&thread[k], NULL, read_states, &work[k]), 0);
    for (int k = 0; k < READERS; k++) {
        assert_int_equal(pthread_join(thread[k], NULL), 0);
        assert_int_equal(work[k].wrong, 0);
    }
    free_model(&m);
}

static void test_bad_lists_are_refused(void **state) {
    (void)state;
    print_seed(__func__);
    model m = {0};
    add_tensor(&m, "weights/a", 1, (int64_t[]){10});
    layout l = {.ranks = 2, .pieces = {2}};
    l.piece[0][0] = (piece){0, 1, {0}, {5}};
    l.piece[0][1] = (piece){1, 2, {4}, {6}};
    assert_int_equal(save_model(path_of("h"), 1, &m, &l), TR_ERR_INTERNAL); /* overlap */
    l.piece[0][1] = (piece){1, 2, {6}, {4}};
    assert_int_equal(save_model(path_of("h"), 1, &m, &l), TR_ERR_INTERNAL); /* a gap */
    l.piece[0][1] = (piece){1, 2, {5}, {6}};
    assert_int_equal(save_model(path_of("h"), 1, &m, &l), TR_ERR_INTERNAL); /* outside */
    l.piece[0][0] = (piece){-1, 3, {0}, {10}};
    l.pieces[0] = 1;
    assert_int_equal(save_model(path_of("h"), 1, &m, &l), TR_ERR_INTERNAL); /* no rank writes */
    assert_int_equal(count_entries(path_of("h"), ""), 0);
    free_model(&m);
}

static void test_existing_step(void **state) {
    (void)state;
    print_seed(__func__);
    model m = tiny_model(), other = tiny_model();
    layout l = random_layout(&m, 2);
    assert_good(save_model(path_of("i"), 1, &m, &l));
    assert_int_equal(save_model(path_of("i"), 1, &other, &l), TR_ERR_IO);
    assert_non_null(strstr(last_message, "never overwritten"));
    assert_good(load_model(path_of("i"), 1, 1, &m, &l));
    assert_int_equal(count_entries(path_of("i"), ""), 1);
    /* An existing step that fails its checks is replaced, because the run has reached that step
     * again. */
    assert_int_equal(truncate(path_of("i/step-00000001/index.h5"), 100), 0);
    assert_good(save_model(path_of("i"), 1, &other, &l));
    assert_good(load_model(path_of("i"), 1, 1, &other, &l));
    assert_int_equal(count_entries(path_of("i"), ""), 1);
    free_model(&m);
    free_model(&other);
}

static void test_retention(void **state) {
    (void)state;
    print_seed(__func__);
    model m = tiny_model();
    layout l = random_layout(&m, 1);
    char *root = path_of("j");
    for (int step = 1; step <= 6; step++) assert_good(save_model(root, step, &m, &l));
    assert_int_equal(truncate(path_of("j/step-00000005/index.h5"), 10), 0);
    assert_int_equal(mkdir(path_of("j/.tmp-step-00000009.dead"), 0777), 0);
    write_bytes(path_of("j/.tmp-step-00000009.dead/index.h5"), "x", 1);
    assert_int_equal(mkdir(path_of("j/.tmp-step-00000009.alive"), 0777), 0);
    assert_int_equal(mkdir(path_of("j/.trash-step-00000009.x"), 0777), 0);
    assert_int_equal(mkdir(path_of("j/mine"), 0777), 0);
    int lock = open(path_of("j/.tmp-step-00000009.alive"), O_RDONLY);
    assert_int_equal(flock(lock, LOCK_EX), 0);

    assert_int_equal(tr_ckpt_retain(root, 3, 0), TR_OK);
    assert_int_equal(count_entries(root, ".tmp-"), 1); /* its process is alive */
    assert_int_equal(count_entries(root, ".trash-"), 0);
    assert_int_equal(count_entries(root, "mine"), 1);
    tr_ckpt_info *info;
    int count;
    assert_int_equal(tr_ckpt_list(root, &info, &count), TR_OK);
    assert_int_equal(count, 4); /* 3, 4, the invalid 5, 6 */
    assert_int_equal(info[0].step, 3);
    assert_false(info[2].valid);
    free(info);
    (void)close(lock);
    for (int keep = 1; keep >= -1; keep--) {
        assert_int_equal(tr_ckpt_retain(root, keep, 0), TR_OK);
        assert_int_equal(tr_ckpt_list(root, &info, &count), TR_OK);
        assert_int_equal(count, 3);
        assert_true(info[0].valid && info[0].step == 4 && info[2].valid);
        free(info);
    }
    assert_int_equal(count_entries(root, ".tmp-"), 0);
    free_model(&m);
}

/* Multiples of a number stay, whatever their age: also one that is damaged or of a later format,
 * since one that cannot be read for some time looks like it. */
static void test_retention_of_multiples(void **state) {
    (void)state;
    static const char later[] = "trireme checkpoint\nformat=2\n";
    static const int64_t kept[] = {2, 4, 6, 8, 10, 11};
    print_seed(__func__);
    model m = tiny_model();
    layout l = random_layout(&m, 1);
    char *root = path_of("o");
    for (int step = 1; step <= 11; step++) {
        assert_good(save_model(root, step, &m, &l));
        if (step == 4) assert_int_equal(truncate(path_of("o/step-00000004/index.h5"), 10), 0);
        if (step == 6) write_bytes(path_of("o/step-00000006/COMMIT"), later, sizeof later - 1);
        assert_int_equal(tr_ckpt_retain(root, 2, 2), TR_OK);
    }
    tr_ckpt_info *info;
    int count;
    assert_int_equal(tr_ckpt_list(root, &info, &count), TR_OK);
    assert_int_equal(count, 6);
    for (int k = 0; k < count; k++) assert_int_equal(info[k].step, kept[k]);
    free(info);
    free_model(&m);
}

static void expect_full(const char *root, const model *small, const model *large, const layout *ls,
                        const layout *ll) {
    assert_int_equal(save_model(root, 2, large, ll), TR_ERR_IO);
    assert_non_null(strstr(last_message, root));
    assert_non_null(strstr(last_message, strerror(ENOSPC)));
    assert_non_null(
        strstr(last_message, "a checkpoint of this run takes at least 2000000 bytes: "));
    assert_int_equal(count_entries(root, ""), 1);
    assert_good(load_model(root, -1, 1, small, ls));
}

static void test_full_disk(void **state) {
    (void)state;
    print_seed(__func__);
    model small = tiny_model(), large = {0};
    add_tensor(&large, "weights/large", 1, (int64_t[]){500000});
    layout ls = random_layout(&small, 2), ll = {.ranks = 2, .pieces = {2}};
    ll.piece[0][0] = (piece){0, 1, {0}, {1000}};
    ll.piece[0][1] = (piece){1, 2, {1000}, {499000}};
    assert_good(save_model(path_of("k"), 1, &small, &ls));

    /* A limit on the file size that is hit when space is reserved, and between payload and
     * layout. */
    struct rlimit limit, old;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    static const rlim_t sizes[] = {100000, 499000 * 4 + 100};
    for (int i = 0; i < 2; i++) {
        limit = old;
        limit.rlim_cur = sizes[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(save_model(path_of("k"), 2, &large, &ll), TR_ERR_IO);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_non_null(strstr(last_message, strerror(EFBIG)));
        assert_non_null(strstr(last_message, "at least 2000000 bytes: raise the limit"));
        assert_non_null(strstr(last_message, "shard-00001-of-00002.h5"));
        assert_int_equal(count_entries(path_of("k"), ""), 1);
        assert_good(load_model(path_of("k"), -1, 1, &small, &ls));
    }
    (void)signal(SIGXFSZ, SIG_DFL);

    char *disk = path_of("disk");
    assert_int_equal(mkdir(disk, 0777), 0);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=1m") != 0) {
        print_message("no full disk tested: mount says %s\n", strerror(errno));
    } else {
        char *root = path_of("disk/ckpt");
        bool good = save_model(root, 1, &small, &ls) == TR_OK;
        if (good) expect_full(root, &small, &large, &ls, &ll);
        assert_int_equal(umount(disk), 0);
        assert_true(good);
    }
    free_model(&small);
    free_model(&large);
}

/* HDF5's own tools read global tensors. */
static void test_hdf5_tools_show_global_tensors(void **state) {
    (void)state;
    print_seed(__func__);
    if (system("h5dump --version >/dev/null 2>&1") != 0) {
        print_message("h5dump is missing (package hdf5-tools)\n");
        skip();
    }
    model m = random_model();
    layout l = random_layout(&m, 4);
    assert_good(save_model(path_of("l"), 1, &m, &l));
    /* The directory may be moved. */
    assert_int_equal(rename(path_of("l"), path_of("moved")), 0);
    char command[2000], listing[20000];
    for (int t = 0; t < m.count; t++) {
        (void)snprintf(command, sizeof command, "h5dump -d /%s -b LE -o %s %s >/dev/null 2>&1",
                       m.tensor[t].name, path_of("out.bin"),
                       path_of("moved/step-00000001/index.h5"));
        assert_int_equal(system(command), 0);
        size_t size;
        char *bytes = read_bytes(path_of("out.bin"), &size);
        assert_int_equal(size, (size_t)m.tensor[t].elements * sizeof(float));
        assert_memory_equal(bytes, m.tensor[t].value, size);
        free(bytes);
    }
    (void)snprintf(command, sizeof command, "h5ls -r %s 2>&1",
                   path_of("moved/step-00000001/index.h5"));
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t used = fread(listing, 1, sizeof listing - 1, pipe);
    listing[used] = '\0';
    assert_int_equal(pclose(pipe), 0);
    for (int t = 0; t < m.count; t++) assert_non_null(strstr(listing, m.tensor[t].name));
    free_model(&m);
}

int main(void) {
    const char *base = getenv("TMPDIR");
    (void)snprintf(scratch, sizeof scratch, "%s/trireme-test-ckpt-%d", base ? base : "/tmp",
                   (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_any_layout_loads_any_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fp64_is_saved_as_fp32, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_directory_cannot_be_synced, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_narrow_types_are_saved_as_bf16, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_several_blocks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_same_state_same_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_model_is_listed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nothing_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_threads_read_different_steps, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_lists_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_existing_step, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_retention, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_retention_of_multiples, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_hdf5_tools_show_global_tensors, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
