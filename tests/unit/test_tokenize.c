/* Tokenizing that is stopped at any place goes on there, and gives the same files. */
#include "base/philox.h"
#include "data/find_tokenizer.h"
#include "data/tokenize.h"
#include "support/scratch.h"
#include "support/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT = 9 << 20, LINES = 30000 };

static uint64_t seed, draws;

static uint64_t draw(void) {
    return tr_mix64(seed ^ tr_mix64(draws++));
}

static FILE *make(const char *name) {
    char path[64];
    (void)snprintf(path, sizeof path, "%s/%s", scratch, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    return f;
}

/* A byte-level tokenizer of the letters, space and newline, where "ab" is one token. */
static void write_tokenizer(void) {
    FILE *f = make("tokenizer.json");
    (void)fprintf(f,
                  "{\"added_tokens\": [{\"id\": 30, \"content\": \"<|endoftext|>\", \"special\": "
                  "true, \"normalized\": false}], \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                  "\"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": {\"type\": "
                  "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int i = 0; i < 26; i++) (void)fprintf(f, "\"%c\": %d, ", 'a' + i, i);
    (void)fprintf(f, "\"\\u0120\": 26, \"\\u010a\": 27, \"ab\": 28, \"\\u0120a\": 29, "
                     "\"<|endoftext|>\": 30}, \"merges\": [\"a b\", \"\\u0120 a\"]}}");
    assert_int_equal(fclose(f), 0);
}

static void write_texts(void) {
    static const char letters[] = "aabbcdefghij  \n";
    FILE *f = make("long.txt");
    for (int i = 0; i < TEXT; i++) (void)fputc(letters[draw() % (sizeof letters - 1)], f);
    assert_int_equal(fclose(f), 0);
    f = make("lines.jsonl");
    for (int i = 0; i < LINES; i++) {
        (void)fputs("{\"text\": \"", f);
        for (uint64_t n = draw() % 300; n > 0; n--) (void)fputc("abc d"[draw() % 5], f);
        (void)fputs("\"}\n", f);
    }
    assert_int_equal(fclose(f), 0);
}

static int calls_left;

static bool exits; /* or else asks to stop */
static double commit_s;
static const char *taken; /* a name that a directory takes meanwhile; NULL: none */

static bool stop(void *context, const tr_tokenize_progress *progress) {
    *(bool *)context = progress->continued;
    if (taken) (void)mkdir(path_of(taken), 0777);
    const bool last = calls_left-- == 0;
    if (last && exits) _exit(7);
    return !last;
}

/* Tokenizes long.txt, the file `middle` and long.txt again. */
static tr_status tokenize_with(const char *middle, const char *prefix, int threads,
                               bool *continued) {
    char path[4][64];
    const char *names[] = {"long.txt", middle, "tokenizer.json", prefix};
    for (int i = 0; i < 4; i++) (void)snprintf(path[i], sizeof path[i], "%s/%s", scratch, names[i]);
    const char *const files[] = {path[0], path[1], path[0]};
    tr_tokenizer *tokenizer;
    tr_tokenize_progress done;
    TR_TRY(tr_tokenizer_open(path[2], &tokenizer));
    const tr_tokenize_options options = {.files = files,
                                         .count = 3,
                                         .tokenizer = tokenizer,
                                         .key = "text",
                                         .prefix = path[3],
                                         .threads = threads,
                                         .commit_s = commit_s,
                                         .progress = stop,
                                         .context = continued};
    tr_status status = tr_tokenize(&options, &done);
    tr_tokenizer_close(tokenizer);
    return status;
}

static tr_status tokenize(const char *prefix, int threads, bool *continued) {
    return tokenize_with("lines.jsonl", prefix, threads, continued);
}

static bool same(const char *a, const char *b) {
    char command[200];
    (void)snprintf(command, sizeof command, "cmp %s/%s %s/%s", scratch, a, scratch, b);
    return system(command) == 0;
}

static void a_stopped_process_is_continued(void **state) {
    (void)state;
    bool continued;
    int stops = 0, resumed = 0;
    write_tokenizer();
    write_texts();
    calls_left = -1;
    must(tokenize("whole", 2, &continued));
    for (int code = 7; code == 7 && stops < 100; stops++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            exits = draw() % 2;
            /* So that each process commits at least once; one that is asked to stop commits
             * then. */
            calls_left = (int)(draw() % 3) + exits;
            tr_status status = tokenize("parts", 1, &continued);
            _exit(status == TR_OK ? (continued ? 1 : 0) : status == TR_ERR_STOPPED ? 7 : 99);
        }
        (void)draw();
        (void)draw();
        int result;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFEXITED(result));
        code = WEXITSTATUS(result);
        resumed = code;
    }
    assert_int_equal(resumed, 1);
    assert_in_range(stops, 3, 99);
    assert_true(same("whole.bin", "parts.bin") && same("whole.idx", "parts.idx"));
}

/* Leaves an output that is complete except the index and the names of its files. */
static void stop_before_the_names(const char *prefix) {
    bool continued;
    char path[64];
    (void)snprintf(path, sizeof path, "%s/%s.idx.tmp", scratch, prefix);
    assert_int_equal(mkdir(path, 0777), 0);
    calls_left = -1;
    assert_int_equal(tokenize(prefix, 2, &continued), TR_ERR_DATA); /* a directory has the name */
    assert_int_equal(rmdir(path), 0);
}

/* All text is committed, then the index cannot be written: the next process adds no document. */
static void an_index_that_failed_is_written_later(void **state) {
    (void)state;
    bool continued;
    stop_before_the_names("late");
    must(tokenize("late", 2, &continued));
    assert_true(continued);
    assert_true(same("whole.bin", "late.bin") && same("whole.idx", "late.idx"));
}

static void a_process_that_ended_between_the_names_is_continued(void **state) {
    (void)state;
    bool continued;
    char part[64], named[64];
    stop_before_the_names("named");
    (void)snprintf(part, sizeof part, "%s/named.bin.part", scratch);
    (void)snprintf(named, sizeof named, "%s/named.bin", scratch);
    assert_int_equal(rename(part, named), 0);
    must(tokenize("named", 2, &continued));
    assert_true(continued);
    assert_true(same("whole.bin", "named.bin") && same("whole.idx", "named.idx"));
}

/* Also one that was too fast to commit before. */
static void a_fast_process_that_ended_between_the_names_is_continued(void **state) {
    (void)state;
    bool continued;
    calls_left = -1;
    commit_s = 1e9;
    taken = "fast.idx";
    refused(tokenize("fast", 2, &continued), TR_ERR_IO, "fast.idx");
    taken = NULL;
    assert_int_equal(rmdir(path_of("fast.idx")), 0);
    assert_int_equal(access(path_of("fast.bin"), F_OK), 0);
    must(tokenize("fast", 2, &continued));
    commit_s = 0;
    assert_true(continued);
    assert_true(same("whole.bin", "fast.bin") && same("whole.idx", "fast.idx"));
}

static void without_its_parts_the_work_begins_again(void **state) {
    (void)state;
    bool continued;
    char part[64];
    stop_before_the_names("again");
    (void)snprintf(part, sizeof part, "%s/again.bin.part", scratch);
    assert_int_equal(unlink(part), 0);
    must(tokenize("again", 2, &continued));
    assert_false(continued);
    assert_true(same("whole.bin", "again.bin") && same("whole.idx", "again.idx"));
    /* A finished pair of somebody else is never taken. */
    assert_int_equal(tokenize("again", 2, &continued), TR_ERR_USAGE);
}

/* Writes a number of `digits` nines to a line of the state. */
static void damage_state(const char *prefix, const char *line, int digits) {
    char path[64], text[1024];
    (void)snprintf(path, sizeof path, "%s/%s.part", scratch, prefix);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const size_t length = fread(text, 1, sizeof text - 1, f);
    (void)fclose(f);
    text[length] = '\0';
    char *at = strstr(text, line);
    assert_non_null(at);
    f = fopen(path, "w");
    assert_non_null(f);
    (void)fprintf(f, "%.*s%s%.*s%s", (int)(at - text), text, line, digits, "9999999999999999999",
                  strchr(at + 1, '\n'));
    assert_int_equal(fclose(f), 0);
}

/* Also where the bytes of so many tokens overflow a size. */
static void with_a_damaged_state_the_work_begins_again(void **state) {
    (void)state;
    static const char *const lines[] = {"\ntokens ", "\ndocuments "};
    for (int i = 0; i < 2; i++)
        for (int digits = 18; digits <= 19; digits++) {
            bool continued;
            char prefix[32];
            (void)snprintf(prefix, sizeof prefix, "bad%d-%d", i, digits);
            stop_before_the_names(prefix);
            damage_state(prefix, lines[i], digits);
            calls_left = -1;
            must(tokenize(prefix, 2, &continued));
            assert_false(continued);
        }
}

/* Each call commits after every batch. */
static void a_damaged_file_leaves_no_parts(void **state) {
    (void)state;
    static const char *const endings[] = {".part", ".bin.part", ".idx.part", ".bin", ".idx"};
    bool continued;
    write_file(path_of("broken.jsonl"), "{\"text\": \"a\"}\n{\n", 16);
    calls_left = -1;
    refused(tokenize_with("broken.jsonl", "broken", 1, &continued), TR_ERR_DATA, "line 2, byte 2");
    for (int i = 0; i < 5; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "broken%s", endings[i]);
        assert_int_not_equal(access(path_of(name), F_OK), 0);
    }
}

/* Tokens are read without the tokenizer of model.init_from, and without one next to the data; text
 * is not. */
static void a_found_tokenizer_may_be_unreadable(void **state) {
    (void)state;
    char origin[64], data[64], note[TR_DATA_NOTE];
    tr_tokenizer *tokenizer;
    (void)snprintf(origin, sizeof origin, "%s/origin", scratch);
    (void)snprintf(data, sizeof data, "%s/long.txt", scratch);
    assert_int_equal(mkdir(origin, 0777), 0);
    assert_int_equal(fclose(make("origin/tokenizer.json")), 0); /* an empty file */
    must(tr_data_find_tokenizer("", data, origin, 100, false, note, &tokenizer));
    assert_null(tokenizer);
    assert_non_null(strstr(note, "/origin"));
    assert_int_not_equal(tr_data_find_tokenizer("", data, origin, 100, true, note, &tokenizer),
                         TR_OK);
    assert_int_not_equal(tr_data_find_tokenizer(origin, data, "", 100, false, note, &tokenizer),
                         TR_OK);
    /* One with more tokens than the model. */
    write_tokenizer();
    char command[256];
    (void)snprintf(command, sizeof command,
                   "rm %s/origin/tokenizer.json && cp %s/tokenizer.json %s", scratch, scratch,
                   origin);
    assert_int_equal(system(command), 0);
    must(tr_data_find_tokenizer("", data, origin, 30, false, note, &tokenizer));
    assert_null(tokenizer);
    refused(tr_data_find_tokenizer("", data, origin, 30, true, note, &tokenizer), TR_ERR_CONFIG,
            "tokens: use one with at most 30 tokens");
    refused(
        tr_data_find_tokenizer(path_of("tokenizer.json"), data, origin, 30, true, note, &tokenizer),
        TR_ERR_CONFIG, "/origin', or another one with at most 30 tokens");
    must(tr_data_find_tokenizer("", data, origin, 31, false, note, &tokenizer));
    assert_non_null(tokenizer);
    assert_string_equal(note, "");
    tr_tokenizer_close(tokenizer);
    /* One next to the data goes before it. */
    write_file(path_of("long.txt.tokenizer.json"), "{", 1);
    must(tr_data_find_tokenizer("", data, origin, 31, false, note, &tokenizer));
    assert_null(tokenizer);
    assert_non_null(strstr(note, "long.txt.tokenizer.json"));
    refused(tr_data_find_tokenizer("", data, origin, 31, true, note, &tokenizer), TR_ERR_DATA,
            "long.txt.tokenizer.json");
    remove_all(path_of("long.txt.tokenizer.json"));
}

int main(void) {
    seed = tr_test_seed(11);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_process_is_continued),
        cmocka_unit_test(an_index_that_failed_is_written_later),
        cmocka_unit_test(a_process_that_ended_between_the_names_is_continued),
        cmocka_unit_test(a_fast_process_that_ended_between_the_names_is_continued),
        cmocka_unit_test(with_a_damaged_state_the_work_begins_again),
        cmocka_unit_test(without_its_parts_the_work_begins_again),
        cmocka_unit_test(a_damaged_file_leaves_no_parts),
        cmocka_unit_test(a_found_tokenizer_may_be_unreadable)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
