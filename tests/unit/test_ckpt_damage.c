/* Tests that damaged checkpoints are never loaded: each flip of a bit, files that are cut, longer,
 * swapped or missing; the newest step that is intact is found. */
#include "support/ckpt_rig.h"
#include "support/drawn.h"

/* One bit of every byte of every file that is drawn. A checksum covers every byte, so every flip is
 * found. */
static void test_every_flip_is_found(void **state) {
    (void)state;
    print_seed(__func__);
    model m = tiny_model();
    layout one = random_layout(&m, 1), l = {.ranks = 2, .pieces = {2, 2, 1}};
    l.piece[0][0] = (piece){0, 1, {0, 0}, {3, 3}};
    l.piece[0][1] = (piece){1, 2, {3, 0}, {1, 3}};
    l.piece[1][0] = (piece){0, 1, {0, 0}, {4, 1}};
    l.piece[1][1] = (piece){1, 2, {0, 1}, {4, 2}};
    l.piece[2][0] = (piece){1, 2, {0}, {0}};
    assert_good(save_model(path_of("c"), 3, &m, &l));
    static const char *const names[] = {"COMMIT", "index.h5", "shard-00000-of-00002.h5",
                                        "shard-00001-of-00002.h5"};
    for (int f = 0; f < 4; f++) {
        char *path = path_of("c/step-00000003/%s", names[f]);
        size_t size;
        char *bytes = read_bytes(path, &size);
        int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        for (size_t i = 0; i < size; i++) {
            if (!tr_test_drawn(i)) continue;
            char flipped = (char)(bytes[i] ^ (1 << random_below(8)));
            assert_int_equal(pwrite(fd, &flipped, 1, (off_t)i), 1);
            tr_status status = load_model(path_of("c"), 3, 3, &m, &one);
            if (status != TR_ERR_DATA)
                print_message("byte %zu of %s: %d %s\n", i, names[f], status, last_message);
            assert_int_equal(status, TR_ERR_DATA);
            assert_int_equal(pwrite(fd, &bytes[i], 1, (off_t)i), 1);
        }
        (void)close(fd);
        free(bytes);
    }
    assert_good(load_model(path_of("c"), 3, 3, &m, &one));
    free_model(&m);
}

static void expect_bad(const char *root, const model *m, const layout *l, const char *word) {
    tr_status status = load_model(root, 3, 3, m, l);
    if (status != TR_ERR_DATA || !strstr(last_message, word))
        print_message("status %d, \"%s\" lacks \"%s\"\n", status, last_message, word);
    assert_int_equal(status, TR_ERR_DATA);
    assert_non_null(strstr(last_message, word));
    /* The damaged step is not offered; the one before it is. */
    tr_ckpt_info skipped = {0};
    int64_t step;
    assert_good(load_model(root, -1, 2, m, l));
    assert_int_equal(tr_ckpt_newest(root, INT64_MAX, &step, &skipped), TR_OK);
    assert_int_equal(step, 2);
    assert_non_null(strstr(skipped.why, "step-00000003"));
}

static void test_truncated_and_appended(void **state) {
    (void)state;
    print_seed(__func__);
    model m = tiny_model();
    layout l = random_layout(&m, 1);
    char *root = path_of("d");
    assert_good(save_model(root, 2, &m, &l));
    assert_good(save_model(root, 3, &m, &l));
    static const char *const names[] = {"COMMIT", "index.h5", "shard-00000-of-00001.h5"};
    for (int f = 0; f < 3; f++) {
        char *path = path_of("d/step-00000003/%s", names[f]);
        size_t size;
        char *bytes = read_bytes(path, &size);
        const size_t points[] = {0, 1, size / 3, size / 2, size - 1};
        for (int p = 0; p < 5; p++) {
            write_bytes(path, bytes, points[p]);
            expect_bad(root, &m, &l, names[f]);
        }
        char *longer = calloc(size + 4096, 1);
        assert_non_null(longer);
        memcpy(longer, bytes, size);
        write_bytes(path, longer, size + 1);
        expect_bad(root, &m, &l, names[f]);
        write_bytes(path, longer, size + 4096);
        expect_bad(root, &m, &l, names[f]);
        free(longer);
        assert_int_equal(unlink(path), 0);
        expect_bad(root, &m, &l, "missing");
        assert_int_equal(symlink("/etc/passwd", path), 0);
        expect_bad(root, &m, &l, "symbolic link");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkfifo(path, 0666), 0);
        expect_bad(root, &m, &l, "regular file");
        assert_int_equal(unlink(path), 0);
        write_bytes(path, bytes, size);
        free(bytes);
        assert_good(load_model(root, -1, 3, &m, &l));
    }
    /* A COMMIT of a later format, of another step, with other line ends. */
    char *path = path_of("d/step-00000003/COMMIT");
    write_bytes(path, "trireme checkpoint\nformat=2\n", 28);
    expect_bad(root, &m, &l, "format 2");
    tr_ckpt_info skipped = {0};
    int64_t newest;
    assert_int_equal(tr_ckpt_newest(root, INT64_MAX, &newest, &skipped), TR_OK);
    assert_int_equal(tr_ckpt_newest(root, 2, &newest, &skipped), TR_ERR_DATA); /* 2 is not loaded */
    assert_null(strstr(tr_error_message(), "start again"));
    size_t size;
    char *bytes = read_bytes(path_of("d/step-00000002/COMMIT"), &size);
    write_bytes(path, bytes, size);
    expect_bad(root, &m, &l, "renamed");
    free(bytes);
    free_model(&m);
}

/* Flips a bit of the first element of tensor 0 in a file that holds it whole. */
static void damage_payload(const char *path, const model *m) {
    size_t size;
    char *bytes = read_bytes(path, &size);
    char *at = memmem(bytes, size, m->tensor[0].value, 4 * sizeof(float));
    assert_non_null(at);
    *at ^= 1;
    write_bytes(path, bytes, size);
    free(bytes);
}

/* Damage of the payload is found only when it is read: every rank gets the cause, and the sentence
 * names the step before. */
static void test_damaged_newest_step(void **state) {
    (void)state;
    print_seed(__func__);
    model m = tiny_model();
    layout wanted = random_layout(&m, 3), one = {.ranks = 1, .pieces = {1, 1, 1}};
    one.piece[0][0] = one.piece[1][0] = (piece){0, 1, {0, 0}, {4, 3}};
    one.piece[2][0] = (piece){0, 1, {0}, {0}};
    for (int step = 1; step <= 3; step++) assert_good(save_model(path_of("n"), step, &m, &one));
    damage_payload(path_of("n/step-00000003/shard-00000-of-00001.h5"), &m);
    assert_int_equal(load_model(path_of("n"), -1, 3, &m, &wanted), TR_ERR_DATA);
    assert_non_null(strstr(last_corrupt, "weights/a"));
    assert_null(strstr(last_corrupt, "the newest valid step before it"));
    assert_non_null(strstr(last_message, "weights/a"));
    assert_non_null(strstr(last_message, "the newest valid step before it is 2"));
    assert_int_equal(tr_ckpt_verify(path_of("n"), -1), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "before it is 2"));

    assert_int_equal(truncate(path_of("n/step-00000002/index.h5"), 100), 0);
    assert_int_equal(load_model(path_of("n"), 3, 3, &m, &one), TR_ERR_DATA);
    assert_non_null(strstr(last_message, "before it is 1"));
    assert_int_equal(load_model(path_of("n"), 2, 2, &m, &one), TR_ERR_DATA);
    assert_string_equal(last_corrupt, ""); /* incomplete: found before the payload is read */
    assert_int_equal(rename(path_of("n/step-00000003"), path_of("damaged")), 0);
    assert_good(load_model(path_of("n"), -1, 1, &m, &wanted));

    damage_payload(path_of("n/step-00000001/shard-00000-of-00001.h5"), &m);
    assert_int_equal(load_model(path_of("n"), -1, 1, &m, &wanted), TR_ERR_DATA);
    assert_non_null(strstr(last_message, "no valid step before it"));
    free_model(&m);
}

/* A step that is marked as corrupt is not taken by itself, is not one of those that are kept, and
 * can be saved again; by its number it is loaded as long as its bytes are right. */
static void test_marked_as_corrupt(void **state) {
    (void)state;
    print_seed(__func__);
    model m = random_model();
    layout l = random_layout(&m, 2);
    char *root = path_of("m");
    tr_ckpt_info *info, skipped = {0};
    int64_t newest;
    int count;
    for (int step = 1; step <= 4; step++) assert_good(save_model(root, step, &m, &l));
    assert_int_equal(tr_ckpt_mark_corrupt(root, 4, "a cause"), TR_OK);
    assert_int_equal(tr_ckpt_mark_corrupt(root, 3, ""), TR_OK);
    assert_int_equal(tr_ckpt_newest(root, INT64_MAX, &newest, &skipped), TR_OK);
    assert_int_equal(newest, 2);
    assert_string_equal(skipped.why, "a cause");
    assert_int_equal(tr_ckpt_newest(root, 2, &newest, &skipped), TR_OK);
    assert_int_equal(newest, 1);
    assert_string_equal(skipped.why, "a cause");
    assert_int_equal(tr_ckpt_newest(root, 1, &newest, &skipped), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "the newest: a cause"));
    assert_good(load_model(root, -1, 2, &m, &l));
    assert_good(load_model(root, 4, 4, &m, &l));
    assert_int_equal(tr_ckpt_verify(root, 4), TR_OK);

    assert_int_equal(tr_ckpt_retain(root, 2, 0), TR_OK);
    assert_int_equal(tr_ckpt_list(root, &info, &count), TR_OK);
    assert_int_equal(count, 4);
    assert_true(info[0].valid && info[1].valid && !info[2].valid && !info[3].valid);
    assert_non_null(strstr(info[2].why, "m/step-00000003/CORRUPT says"));
    free(info);

    assert_good(save_model(root, 4, &m, &l));
    assert_int_equal(count_entries(path_of("m/step-00000004"), "CORRUPT"), 0);
    assert_good(load_model(root, -1, 4, &m, &l));
    assert_int_equal(save_model(root, 4, &m, &l), TR_ERR_IO);
    assert_int_equal(count_entries(root, ".trash-"), 0);
    free_model(&m);
}

static void test_swapped_and_foreign_shards(void **state) {
    (void)state;
    print_seed(__func__);
    model m = {0}, other = {0};
    add_tensor(&m, "weights/a", 1, (int64_t[]){10});
    add_tensor(&other, "weights/a", 1, (int64_t[]){10});
    layout l = {.ranks = 2, .pieces = {2}}, one = random_layout(&m, 1);
    l.piece[0][0] = (piece){0, 1, {0}, {5}};
    l.piece[0][1] = (piece){1, 2, {5}, {5}};
    assert_good(save_model(path_of("e"), 2, &m, &l));
    assert_good(save_model(path_of("e"), 3, &m, &l));
    assert_good(save_model(path_of("f"), 3, &other, &l));
    char *a = path_of("e/step-00000003/shard-00000-of-00002.h5");
    char *b = path_of("e/step-00000003/shard-00001-of-00002.h5");
    char *foreign = path_of("f/step-00000003/shard-00000-of-00002.h5");
    assert_int_equal(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE), 0);
    assert_int_equal(load_model(path_of("e"), 3, 3, &m, &one), TR_ERR_DATA);
    assert_int_equal(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE), 0);
    assert_good(load_model(path_of("e"), 3, 3, &m, &one));
    assert_int_equal(rename(foreign, a), 0);
    assert_int_equal(load_model(path_of("e"), 3, 3, &m, &one), TR_ERR_DATA);
    assert_non_null(strstr(last_message, "another checkpoint"));
    assert_int_equal(tr_ckpt_verify(path_of("e"), 3), TR_ERR_DATA);
    /* The rank that reads only the other shard could load it; all ranks fail together. */
    assert_int_equal(load_model(path_of("e"), 3, 3, &m, &l), TR_ERR_DATA);
    free_model(&m);
    free_model(&other);
}

int main(void) {
    const char *base = getenv("TMPDIR");
    (void)snprintf(scratch, sizeof scratch, "%s/trireme-test-ckpt-damage-%d", base ? base : "/tmp",
                   (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_flip_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_truncated_and_appended, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damaged_newest_step, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_marked_as_corrupt, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_swapped_and_foreign_shards, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
