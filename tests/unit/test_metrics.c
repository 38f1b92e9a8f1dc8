/* Tests the metrics of a run directory: TensorBoard bytes, JSONL numbers bit for bit, resuming. */
#include "base/philox.h"
#include "support/same_config.h"
#include "support/scratch.h"
#include "train/metrics.h"
#include "train/tensorboard.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static tr_config config;

static void same_bytes(const unsigned char *got, size_t bytes, const char *hex) {
    assert_int_equal(2 * bytes, strlen(hex));
    for (size_t i = 0; i < bytes; i++) {
        char digits[3];
        (void)snprintf(digits, sizeof digits, "%02x", got[i]);
        if (strncmp(digits, hex + 2 * i, 2))
            fail_msg("byte %zu is %s, not %.2s", i, digits, hex + 2 * i);
    }
}

/* Compares with records that another program wrote. */
static void tensorboard_bytes_are_exact(void **state) {
    (void)state;
    unsigned char record[TR_TB_RECORD];
    assert_int_equal(tr_crc32c("123456789", 9), 0xE3069283);
    same_bytes(record, tr_tb_version_record(0, record),
               "1800000000000000a37f4b220900000000000000001a0d627261696e2e4576656e743a32eedf28a3");
    same_bytes(record, tr_tb_scalar_record(1.0, 7, "loss", 2.5f, record),
               "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f737315000020408"
               "7ccc43d");
    same_bytes(record, tr_tb_start_record(1.0, 301, record),
               "100000000000000095fbfe1809000000000000f03f10ad023a020801f6e86c77");
    char longest[200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_true(tr_tb_scalar_record(1.0, INT64_MAX, longest, 1, record) <= TR_TB_RECORD);
}

/* Makes a new config with the run directory <scratch>/<name>, which exists. */
static void use_directory(const char *name) {
    char text[256];
    (void)snprintf(text, sizeof text, "%s/%s", scratch, name);
    assert_int_equal(mkdir(text, 0755), 0);
    (void)snprintf(text, sizeof text, "{data.path: a, log.dir: %s/%s}", scratch, name);
    assert_int_equal(tr_config_parse(text, strlen(text), "x.yaml", NULL, 0, &config), TR_OK);
}

static double random_double(uint64_t i) {
    uint64_t bits = tr_mix64(i);
    double x;
    memcpy(&x, &bits, sizeof x);
    return isfinite(x) ? x : 1.0 / 3.0;
}

static tr_metrics_record record_of(int64_t step) {
    uint64_t s = (uint64_t)step * 8;
    return (tr_metrics_record){
        .step = step,
        .loss = random_double(s),
        .grad_norm = random_double(s + 1),
        .lr = random_double(s + 2),
        .tokens_per_s = random_double(s + 3),
        .val_loss = step % 3 ? NAN : random_double(s + 4),
        .noise = {step % 5 ? NAN : random_double(s + 5), step % 5 ? NAN : random_double(s + 6)},
        .noise_scale = step % 2 ? NAN : random_double(s + 7)};
}

static void write_steps(tr_metrics *m, int64_t from, int64_t to) {
    for (int64_t step = from; step <= to; step++) {
        tr_metrics_record r = record_of(step);
        assert_int_equal(tr_metrics_write(m, &r), TR_OK);
    }
}

static FILE *open_lines(const char *mode) {
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", config.log.dir);
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    return f;
}

static void same_number(const cJSON *object, const char *name, double want) {
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(object, name);
    if (isnan(want)) {
        assert_null(number);
        return;
    }
    assert_true(cJSON_IsNumber(number));
    assert_memory_equal(&number->valuedouble, &want, sizeof want);
}

/* Fails unless the file has steps 1..last, each once, with exactly the bits that were written. */
static void has_steps(int64_t last) {
    FILE *f = open_lines("r");
    char line[1024];
    int64_t step = 0;
    while (fgets(line, sizeof line, f)) {
        cJSON *object = cJSON_Parse(line);
        tr_metrics_record r = record_of(++step);
        same_number(object, "step", (double)step);
        same_number(object, "loss", r.loss);
        same_number(object, "grad_norm", r.grad_norm);
        same_number(object, "lr", r.lr);
        same_number(object, "tokens_per_s", r.tokens_per_s);
        same_number(object, "val_loss", r.val_loss);
        same_number(object, "grad_square", r.noise.square);
        same_number(object, "grad_variance", r.noise.variance);
        same_number(object, "noise_scale", r.noise_scale);
        cJSON_Delete(object);
    }
    assert_int_equal(step, last);
    (void)fclose(f);
}

static ino_t synced; /* the file that was synced last */
static int renamed;  /* files that were on the disk before they got their last name */

/* The linker sends calls of fsync and rename here. */
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    struct stat info;
    if (fstat(fd, &info) == 0) synced = info.st_ino;
    return __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    struct stat info;
    renamed += stat(from, &info) == 0 && info.st_ino == synced;
    return __real_rename(from, to);
}

static int count_events(void) {
    int n = 0;
    DIR *d = opendir(config.log.dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += !strncmp(e->d_name, "events.out.tfevents.", 20);
    (void)closedir(d);
    return n;
}

static int is_events(const struct dirent *e) {
    return !strncmp(e->d_name, "events.out.tfevents.", 20);
}

/* Reads the bytes of the next event; returns 0 at the end of the file. */
static size_t read_event(FILE *f, unsigned char event[TR_TB_RECORD]) {
    uint64_t bytes;
    uint32_t crc;
    if (fread(&bytes, sizeof bytes, 1, f) != 1) return 0;
    assert_int_equal(fread(&crc, sizeof crc, 1, f), 1);
    assert_true(bytes <= TR_TB_RECORD);
    assert_int_equal(fread(event, 1, bytes, f), bytes);
    assert_int_equal(fread(&crc, sizeof crc, 1, f), 1);
    return bytes;
}

/* Counts the losses of each step, as TensorBoard reads the event files: a start, except the first,
 * drops those of its step and later ones. */
static void count_losses(FILE *f, bool *started, int *losses, int64_t most) {
    unsigned char event[TR_TB_RECORD];
    for (size_t bytes; (bytes = read_event(f, event)) > 0;) {
        int64_t step = event[9] == 0x10 ? event[10] & 0x7f : 0;
        const unsigned char *what = event + 11;
        if (event[10] & 0x80) step |= (int64_t)*what++ << 7; /* no step here is longer */
        assert_true(step <= most);
        if (event[9] == 0x10 && *what == 0x3a) {
            for (int64_t k = step; k <= most && *started; k++) losses[k] = 0;
            *started = true;
        }
        losses[step] += memmem(event, bytes, "\x0a\x04loss", 6) != NULL;
    }
}

/* Fails unless TensorBoard shows steps 1..last, each once. */
static void shows_steps(int64_t last) {
    enum { MOST = 400 };
    int losses[MOST + 1] = {0};
    struct dirent **name;
    bool started = false;
    const int files = scandir(config.log.dir, &name, is_events, alphasort);
    assert_true(files > 0);
    for (int i = 0; i < files; i++) {
        char path[2048];
        (void)snprintf(path, sizeof path, "%s/%s", config.log.dir, name[i]->d_name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        count_losses(f, &started, losses, MOST);
        (void)fclose(f);
        free(name[i]);
    }
    free(name);
    for (int64_t step = 0; step <= MOST; step++)
        assert_int_equal(losses[step], step > 0 && step <= last);
}

static void lines_keep_bits_and_resume_cuts(void **state) {
    (void)state;
    tr_metrics *m;
    use_directory("lines");
    assert_int_equal(tr_metrics_open(&config, -1, &m), TR_OK);
    assert_int_equal(renamed, 1); /* config.yaml */
    write_steps(m, 1, 200);
    tr_metrics_close(m);
    has_steps(200);
    assert_int_equal(count_events(), 1);

    FILE *f = open_lines("a"); /* the writer died within a line */
    (void)fputs("{\"step\":201,\"lo", f);
    (void)fclose(f);
    assert_int_equal(tr_metrics_open(&config, 300, &m), TR_OK);
    write_steps(m, 201, 210);
    tr_metrics_close(m);
    has_steps(210);
    f = open_lines("a"); /* and just before the line's end */
    (void)fputs("{\"step\":211}", f);
    (void)fclose(f);
    assert_int_equal(tr_metrics_open(&config, 300, &m), TR_OK);
    write_steps(m, 211, 220);
    tr_metrics_close(m);
    has_steps(220);
    assert_int_equal(tr_metrics_open(&config, 50, &m), TR_OK);
    has_steps(50);
    write_steps(m, 51, 60);
    tr_metrics_close(m);
    has_steps(60);
    shows_steps(60);
    assert_int_equal(count_events(), 4);

    char path[1200];
    tr_config saved;
    (void)snprintf(path, sizeof path, "%s/config.yaml", config.log.dir);
    assert_int_equal(tr_config_load(path, NULL, 0, &saved), TR_OK);
    assert_true(same_config(&config, &saved));
}

static void write_text(const char *name, const char *text) {
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/%s", config.log.dir, name);
    write_file(path, text, strlen(text));
}

static ino_t inode_of(const char *name) {
    char path[1200];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/%s", config.log.dir, name);
    assert_int_equal(stat(path, &info), 0);
    return info.st_ino;
}

/* Fails unless the event file has this tag. */
static void has_tag(const char *tag) {
    char path[2048];
    struct dirent **name;
    unsigned char event[TR_TB_RECORD];
    bool found = false;
    assert_int_equal(scandir(config.log.dir, &name, is_events, alphasort), 1);
    (void)snprintf(path, sizeof path, "%s/%s", config.log.dir, name[0]->d_name);
    free(name[0]);
    free(name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const size_t length = strlen(tag);
    const unsigned char head[] = {0x0a, (unsigned char)length};
    for (size_t bytes; (bytes = read_event(f, event)) > 0;) {
        const unsigned char *at = memmem(event + 11, bytes - 11, head, sizeof head);
        found = found || (at && memcmp(at + 2, tag, length) == 0);
    }
    (void)fclose(f);
    if (!found) fail_msg("no tag %s", tag);
}

/* A path is cut in front of a character, and what is not UTF-8 becomes '?': otherwise no reader
 * opens the files. */
static void paths_become_utf8(void **state) {
    (void)state;
    tr_metrics *m;
    char line[2048];
    const tr_choices_score score = {.questions = 1};
    use_directory("utf8");
    (void)snprintf(config.train.eval, sizeof config.train.eval, "x");
    assert_int_equal(tr_metrics_open(&config, -1, &m), TR_OK);
    /* 31 characters of two bytes: 62 bytes, and a tag has 63 with "acc/" or "acc_norm/". */
    static const char path[] =
        "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"
        "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"
        "\u00e9\u00e9\u00e9";
    assert_int_equal(tr_metrics_write_answers(m, 1, path, &score), TR_OK);
    assert_int_equal(tr_metrics_write_answers(m, 1, "folder/x\xff\xc3.jsonl", &score), TR_OK);
    tr_metrics_close(m);
    (void)snprintf(line, sizeof line, "acc/%s", path + 4);
    has_tag(line);
    (void)snprintf(line, sizeof line, "acc_norm/%s", path + 8);
    has_tag(line);
    has_tag("acc/folder/x??.jsonl");
    (void)snprintf(line, sizeof line, "%s/eval.jsonl", config.log.dir);
    FILE *f = fopen(line, "r");
    assert_non_null(f);
    assert_true(fgets(line, sizeof line, f) && strstr(line, path));
    assert_true(fgets(line, sizeof line, f) && strstr(line, "\"eval\":\"folder/x??.jsonl\""));
    (void)fclose(f);
}

static void a_sync_reaches_each_file(void **state) {
    (void)state;
    static const char *const names[] = {"metrics.jsonl", "eval.jsonl", "samples.jsonl"};
    use_directory("synced");
    for (int i = 0; i < 3; i++) {
        tr_metrics *m;
        write_text(names[i], "");
        assert_int_equal(tr_metrics_open(&config, 3, &m), TR_OK);
        assert_int_equal(tr_metrics_sync(m), TR_OK);
        assert_int_equal(synced, inode_of(names[i])); /* the last one that is open */
        tr_metrics_close(m);
    }
}

/* What cannot be read now may be whole, so it is not cut. */
static void an_unreadable_file_is_not_cut(void **state) {
    (void)state;
    char path[1200];
    tr_metrics *m;
    use_directory("unreadable");
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", config.log.dir);
    assert_int_equal(symlink("/proc/self/mem", path), 0); /* its first page cannot be read */
    assert_int_equal(tr_metrics_open(&config, 5, &m), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), "metrics.jsonl' cannot be read: "));
}

/* Going back opens and makes no file, because a disk may be full, and a record that fails after it
 * leaves whole records. */
static void going_back_cuts(void **state) {
    (void)state;
    tr_metrics *m;
    char taken[1200];
    struct rlimit before, small;
    struct stat info;
    use_directory("back");
    assert_int_equal(tr_metrics_open(&config, -1, &m), TR_OK);
    write_steps(m, 1, 60);
    (void)snprintf(taken, sizeof taken, "%s/config.yaml.tmp", config.log.dir);
    assert_int_equal(mkdir(taken, 0777), 0);
    assert_int_equal(tr_metrics_go_back(m, 50), TR_OK);
    has_steps(50);
    (void)snprintf(taken, sizeof taken, "%s/metrics.jsonl", config.log.dir);
    assert_int_equal(stat(taken, &info), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = (rlim_t)info.st_size + 10;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const tr_metrics_record r = record_of(51);
    const tr_status full = tr_metrics_write(m, &r);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(full, TR_ERR_IO);
    has_steps(50);
    write_steps(m, 51, 60);
    tr_metrics_close(m);
    has_steps(60);
    shows_steps(60);
    assert_int_equal(count_events(), 1);
}

static void metrics_of_a_run_that_saved_nothing_are_kept(void **state) {
    (void)state;
    tr_metrics *m;
    bool moved;
    char old[1200];
    use_directory("twice");
    (void)snprintf(old, sizeof old, "%s/metrics.old.jsonl", config.log.dir);
    for (int i = 0; i < 2; i++) { /* no metrics, or none in them */
        assert_int_equal(tr_metrics_set_aside(config.log.dir, &moved), TR_OK);
        assert_false(moved);
        assert_int_equal(tr_metrics_open(&config, -1, &m), TR_OK);
        if (i == 1) write_steps(m, 1, 7);
        tr_metrics_close(m);
    }
    write_text("eval.jsonl", "{\"step\":2}\n");
    assert_int_equal(tr_metrics_set_aside(config.log.dir, &moved), TR_OK);
    assert_true(moved);
    assert_int_equal(tr_metrics_open(&config, -1, &m), TR_OK);
    has_steps(0);
    shows_steps(0);
    tr_metrics_close(m);
    FILE *f = open_lines("r");
    assert_int_equal(fgetc(f), EOF);
    (void)fclose(f);
    struct stat info;
    assert_int_equal(stat(old, &info), 0);
    assert_true(info.st_size > 0);
    (void)snprintf(old, sizeof old, "%s/eval.old.jsonl", config.log.dir);
    assert_int_equal(stat(old, &info), 0);
}

static void what_cannot_be_written_is_named(void **state) {
    (void)state;
    tr_metrics *m;
    tr_append full;
    use_directory("file");
    assert_int_equal(rmdir(config.log.dir), 0);
    FILE *f = fopen(config.log.dir, "w");
    assert_non_null(f);
    (void)fclose(f);
    assert_int_equal(tr_metrics_open(&config, -1, &m), TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), config.log.dir));
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(tr_append_open("/dev/full", -1, &full), TR_OK);
        assert_int_equal(tr_append_write(&full, "x", 1), TR_ERR_IO);
        tr_append_close(&full);
    }
}

static void what_is_not_finite_is_null(void **state) {
    (void)state;
    tr_metrics *m;
    use_directory("nan");
    assert_int_equal(tr_metrics_open(&config, -1, &m), TR_OK);
    tr_metrics_record r = {.step = 1,
                           .loss = NAN,
                           .grad_norm = INFINITY,
                           .lr = 1,
                           .val_loss = NAN,
                           .noise = {NAN, NAN},
                           .noise_scale = NAN};
    assert_int_equal(tr_metrics_write(m, &r), TR_OK);
    tr_metrics_close(m);
    char line[256];
    FILE *f = open_lines("r");
    assert_non_null(fgets(line, sizeof line, f));
    (void)fclose(f);
    assert_string_equal(
        line, "{\"step\":1,\"loss\":null,\"grad_norm\":null,\"lr\":1,\"tokens_per_s\":0}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensorboard_bytes_are_exact),
        cmocka_unit_test(lines_keep_bits_and_resume_cuts),
        cmocka_unit_test(paths_become_utf8),
        cmocka_unit_test(a_sync_reaches_each_file),
        cmocka_unit_test(an_unreadable_file_is_not_cut),
        cmocka_unit_test(going_back_cuts),
        cmocka_unit_test(metrics_of_a_run_that_saved_nothing_are_kept),
        cmocka_unit_test(what_cannot_be_written_is_named),
        cmocka_unit_test(what_is_not_finite_is_null),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
