/* Data: the permutation is a bijection, samples are pure functions of their index, epochs cover the
 * training part and never the held-out part. */
#include "base/philox.h"
#include "data/data.h"
#include "layers/layer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const tr_flow tokens_flow = {.name = TR_STEP_INPUT_TOKENS},
                     labels_flow = {.name = TR_STEP_INPUT_LABELS};

static tr_data_options options_of(const char *file, const char *format, double validation,
                                  int64_t context, uint64_t seed) {
    return (tr_data_options){.path = file,
                             .format = format,
                             .validation = validation,
                             .context = context,
                             .vocab = 256,
                             .seed = seed,
                             .document_end = -1};
}

static tr_status open_as(const char *file, const char *format, double validation, int64_t context,
                         uint64_t seed, tr_data **out) {
    const tr_data_options options = options_of(file, format, validation, context, seed);
    return tr_data_open(&options, out);
}

/* Opens the same file, in which a document ends after every token `last`. */
static void reopen_packed(tr_data_options options, int32_t last, tr_data **data) {
    tr_data_close(*data);
    options.packed = true;
    options.document_end = last;
    assert_int_equal(tr_data_open(&options, data), TR_OK);
}

static tr_status sample(tr_data *data, int64_t index, int32_t *tokens, int32_t *labels) {
    const tr_fetch wanted[] = {{&tokens_flow, tokens}, {&labels_flow, labels}};
    return tr_data_sample(data, index, wanted, 2);
}

static tr_status held_sample(tr_data *data, int64_t index, int32_t *tokens, int32_t *labels) {
    const tr_fetch wanted[] = {{&labels_flow, labels}, {&tokens_flow, tokens}};
    return tr_data_validation_sample(data, index, wanted, 2);
}

static char path[] = "data-XXXXXX";

static int make_path(void **state) {
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

/* A file of n bytes; byte i is value(i). */
static void write_file(int64_t n, int (*value)(int64_t)) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int64_t i = 0; i < n; i++) (void)fputc(value(i), f);
    assert_int_equal(fclose(f), 0);
}

static int mixed(int64_t i) {
    return (int)(tr_mix64((uint64_t)i) & 255);
}

static int text_byte(int64_t i) {
    return "to be or not to be "[i % 19];
}

static void permutation_is_a_bijection(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4095, 4096, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint64_t key = 0; key < 5; key++) {
            char *seen = calloc((size_t)sizes[s], 1);
            assert_non_null(seen);
            for (int64_t i = 0; i < sizes[s]; i++) {
                int64_t to = tr_data_permute(key, sizes[s], i);
                assert_in_range(to, 0, sizes[s] - 1);
                assert_int_equal(seen[to]++, 0);
            }
            free(seen);
        }
}

/* Positions are well mixed: of n = 4096, a uniform permutation leaves about one in place and has a
 * mean distance of n/3 from the old place; 4 standard deviations of slack (n/sqrt(18 n)). */
static void permutation_mixes(void **state) {
    (void)state;
    int64_t n = 4096, fixed = 0;
    double distance = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t to = tr_data_permute(42, n, i);
        fixed += to == i;
        distance += fabs((double)(to - i));
    }
    assert_true(fixed < 8);
    double mean = distance / (double)n;
    assert_true(fabs(mean - (double)n / 3) < 4 * (double)n / sqrt(18.0 * (double)n));
}

static void epochs_cover_the_training_part(void **state) {
    (void)state;
    enum { N = 1000, T = 16 };
    write_file(N, mixed);
    tr_data *data;
    assert_int_equal(open_as(path, "bytes", 0.1, T, 7, &data), TR_OK);
    assert_int_equal(tr_data_tokens(data, 0), N);
    assert_int_equal(tr_data_train_tokens(data, 0), 900);
    assert_int_equal(tr_data_windows_of(data, 0), (900 - T) / T);
    assert_int_equal(tr_data_validation_windows(data), 99 / T);
    int64_t windows = tr_data_windows_of(data, 0), first_order[64], changes = 0, phases = 0,
            phase0 = 0;
    for (int64_t epoch = 0; epoch < 20; epoch++) {
        char used[900] = {0};
        int64_t lowest = 900;
        for (int64_t i = 0; i < windows; i++) {
            int32_t tokens[T], labels[T];
            int64_t start = tr_data_window_start(data, epoch * windows + i, NULL);
            assert_int_equal(sample(data, epoch * windows + i, tokens, labels), TR_OK);
            assert_in_range(start, 0, 900 - T - 1);
            if (start < lowest) lowest = start;
            for (int64_t t = 0; t < T; t++) {
                assert_int_equal(tokens[t], mixed(start + t));
                assert_int_equal(labels[t], mixed(start + t + 1));
                assert_int_equal(used[start + t]++, 0); /* no token twice in an epoch */
            }
            if (epoch == 0) first_order[i] = start;
            changes += epoch > 0 && first_order[i] != start;
        }
        assert_in_range(lowest, 0, T - 1);
        if (epoch == 0) phase0 = lowest;
        phases += lowest != phase0;
    }
    assert_true(changes > 19 * windows / 2);
    assert_true(phases > 5);
    tr_data_close(data);
}

static void a_sample_depends_on_seed_and_index_alone(void **state) {
    (void)state;
    write_file(5000, mixed);
    tr_data *a, *b, *other;
    assert_int_equal(open_as(path, "bytes", 0.1, 10, 3, &a), TR_OK);
    assert_int_equal(open_as(path, "bytes", 0.1, 10, 3, &b), TR_OK);
    assert_int_equal(open_as(path, "bytes", 0.1, 10, 4, &other), TR_OK);
    int same = 0;
    for (int64_t i = 2000; i-- > 0;) { /* another order than b's first use */
        assert_int_equal(tr_data_window_start(a, i, NULL), tr_data_window_start(b, i, NULL));
        same += tr_data_window_start(a, i, NULL) == tr_data_window_start(other, i, NULL);
    }
    assert_true(same < 40);
    tr_data_close(a);
    tr_data_close(b);
    tr_data_close(other);
}

static void validation_is_read_in_order(void **state) {
    (void)state;
    write_file(1000, mixed);
    tr_data *data;
    assert_int_equal(open_as(path, "bytes", 0.2, 33, 3, &data), TR_OK);
    int64_t windows = tr_data_validation_windows(data);
    assert_int_equal(windows, 199 / 33);
    for (int64_t i = 0; i < windows + 2; i++) {
        int32_t tokens[33], labels[33];
        const bool held = i < windows;
        assert_int_equal(held_sample(data, i, tokens, labels), TR_OK);
        assert_int_equal(tokens[0], held ? mixed(800 + i * 33) : 0);
        for (int t = 0; t < 33; t++)
            assert_int_equal(labels[t], held ? mixed(800 + i * 33 + t + 1) : -1);
    }
    tr_data_close(data);
}

/* Every token of [from, to) that `windows` windows from `first` on read, once; returns the number
 * of windows that begin at or after `behind`. */
static int64_t read_epoch(tr_data *data, int64_t first, int64_t windows, int64_t behind,
                          int64_t context, int64_t bytes) {
    char *used = calloc((size_t)bytes, 1);
    assert_non_null(used);
    int64_t later = 0;
    for (int64_t i = first; i < first + windows; i++) {
        int64_t start = tr_data_window_start(data, i, NULL);
        assert_in_range(start, 0, bytes - context - 1);
        later += start >= behind;
        for (int64_t t = 0; t < context; t++) assert_int_equal(used[start + t]++, 0);
    }
    free(used);
    return later;
}

/* Growth: the epoch in progress and the held-out part stay as they were to the token, later epochs
 * read what was appended and never what is held out. */
static void growth_counts_from_the_next_epoch(void **state) {
    (void)state;
    enum { OLD = 1000, NEW = 1500, T = 16 };
    tr_data *before, *after;
    write_file(OLD, mixed);
    assert_int_equal(open_as(path, "bytes", 0.1, T, 7, &before), TR_OK);
    int64_t windows = tr_data_windows_of(before, 0), now = 3 * windows + 5;
    tr_data_extent was = tr_data_extent_at(before, 0, now);
    assert_int_equal(was.epoch, 3);
    assert_int_equal(was.epoch_sample, 3 * windows);
    assert_int_equal(was.epoch_tokens, OLD);

    write_file(NEW, mixed);
    assert_int_equal(open_as(path, "bytes", 0.1, T, 7, &after), TR_OK);
    was.tokens = NEW;
    assert_int_equal(tr_data_use(after, 0, &was), TR_OK);
    assert_int_equal(tr_data_validation_windows(after), tr_data_validation_windows(before));
    int32_t tokens[T], labels[T];
    assert_int_equal(held_sample(after, 0, tokens, labels), TR_OK);
    assert_int_equal(tokens[0], mixed(900));
    int64_t next = 4 * windows, larger = tr_data_windows_of(after, 0);
    assert_int_equal(larger, windows + (NEW - OLD - T) / T);
    for (int64_t i = now; i < next; i++)
        assert_int_equal(tr_data_window_start(after, i, NULL),
                         tr_data_window_start(before, i, NULL));
    for (int64_t e = 0; e < 10; e++) {
        int64_t first = next + e * larger;
        tr_data_extent at = tr_data_extent_at(after, 0, first + larger - 1);
        assert_int_equal(at.epoch, 4 + e);
        assert_int_equal(at.epoch_sample, first);
        assert_int_equal(at.epoch_tokens, NEW);
        assert_int_equal(read_epoch(after, first, larger, OLD, T, NEW), larger - windows);
        for (int64_t i = first; i < first + larger; i++) {
            int64_t start = tr_data_window_start(after, i, NULL);
            assert_true(start + T < 900 || start >= OLD); /* labels too */
        }
    }
    /* The state that is saved in a later epoch gives the same samples. */
    tr_data_extent later = tr_data_extent_at(after, 0, next + larger + 3);
    assert_int_equal(tr_data_use(before, 0, &later),
                     TR_ERR_DATA); /* it was opened when it was short */
    tr_data_close(before);
    assert_int_equal(open_as(path, "bytes", 0.1, T, 7, &before), TR_OK);
    assert_int_equal(tr_data_use(before, 0, &later), TR_OK);
    for (int64_t i = next + larger + 3; i < next + 5 * larger; i++)
        assert_int_equal(tr_data_window_start(after, i, NULL),
                         tr_data_window_start(before, i, NULL));
    tr_data_close(before);
    tr_data_close(after);
}

static int64_t changed_at;
static int changed(int64_t i) {
    return i == changed_at ? mixed(i) ^ 1 : mixed(i);
}

static uint64_t hash_of_file(int64_t bytes) {
    tr_data *data;
    uint64_t hash;
    assert_int_equal(open_as(path, "bytes", 0, 4, 3, &data), TR_OK);
    assert_int_equal(tr_data_hash(data, 0, bytes, &hash), TR_OK);
    tr_data_close(data);
    return hash;
}

/* A short file is hashed whole; of a long one the first and the last block, and some between. */
static void the_hash_sees_a_change(void **state) {
    (void)state;
    enum { SHORT = 100000, LONG = 6000000 };
    write_file(SHORT, mixed);
    uint64_t whole = hash_of_file(SHORT);
    assert_true(hash_of_file(SHORT - 1) != whole);
    for (int64_t i = 0; i < 40; i++) {
        changed_at = (SHORT - 1) * i / 39;
        write_file(SHORT, changed);
        assert_true(hash_of_file(SHORT) != whole);
    }
    write_file(SHORT + 5000, mixed); /* grown: what was recorded is the same */
    assert_int_equal(hash_of_file(SHORT), whole);
    write_file(LONG, mixed);
    whole = hash_of_file(LONG);
    static const int64_t seen[] = {0, 65535, LONG - 65536, LONG - 1};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        changed_at = seen[i];
        write_file(LONG, changed);
        assert_true(hash_of_file(LONG) != whole);
    }
}

static void the_smallest_data_has_one_window(void **state) {
    (void)state;
    write_file(17, mixed);
    tr_data *data;
    int32_t tokens[16], labels[16];
    assert_int_equal(open_as(path, "bytes", 0, 16, 3, &data), TR_OK);
    assert_int_equal(tr_data_windows_of(data, 0), 1);
    for (int64_t i = 0; i < 5; i++) assert_int_equal(tr_data_window_start(data, i, NULL), 0);
    assert_int_equal(sample(data, 3, tokens, labels), TR_OK);
    assert_int_equal(labels[15], mixed(16));
    tr_data_close(data);
}

static void bad_data_is_refused(void **state) {
    (void)state;
    tr_data *data;
    write_file(16, mixed);
    assert_int_equal(open_as(path, "bytes", 0, 16, 3, &data), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "17 tokens"));
    assert_non_null(strstr(tr_error_message(), "16 tokens"));
    write_file(100, mixed);
    assert_int_equal(open_as(path, "bytes", 0.1, 16, 3, &data), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "held-out part"));
    assert_non_null(strstr(tr_error_message(), "10 tokens"));
    write_file(0, mixed);
    assert_int_equal(open_as(path, "bytes", 0, 1, 3, &data), TR_ERR_DATA);
    assert_int_equal(open_as("no/such/file", "bytes", 0, 1, 3, &data), TR_ERR_NOFILE);
    assert_int_equal(open_as(".", "bytes", 0, 1, 3, &data), TR_ERR_DATA);
    assert_int_equal(open_as(path, "tokens", 0, 1, 3, &data), TR_ERR_CONFIG);
}

/* In "to be or not to be " repeated, the model's numbers can be counted by hand: with alpha = 0 the
 * entropy of the follower of a letter under the training counts. */
static void bigram_counts_pairs(void **state) {
    (void)state;
    write_file(19 * 100, text_byte);
    tr_data *data;
    tr_data_facts facts, uniform;
    const tr_data_options options = options_of(path, "bytes", 0.5, 8, 3);
    assert_int_equal(tr_data_open(&options, &data), TR_OK);
    assert_int_equal(tr_data_examine(data, 0, 1e-9, &facts), TR_OK);
    assert_int_equal(facts.distinct, 7);
    /* After 't': 'o' 2 of 3, ' ' 1 of 3. After 'o': ' ' 2 of 4, 'r' 1, 't' 1. After ' ': b 2, t 2,
     * o 1, n 1 of 6. After r, n, b, e: certain. 19 pairs a period; the repeat joins ' ' and 't'. */
    double t = 3 * log(3) - 2 * log(2), o = 4 * log(4) - 2 * log(2), s = 6 * log(6) - 4 * log(2);
    assert_true(fabs(facts.bigram_nats - (t + o + s) / 19) < 2e-3);
    assert_int_equal(tr_data_examine(data, 0, 1e12, &uniform), TR_OK);
    assert_true(uniform.bigram_nats >
                facts.bigram_nats + 0.5); /* heavy smoothing: the unigram model */
    assert_int_equal(facts.documents, 1);
    /* Where ' ' ends a document, the 6 pairs that begin with it have no label. */
    reopen_packed(options, ' ', &data);
    assert_int_equal(tr_data_examine(data, 0, 1e-9, &facts), TR_OK);
    assert_true(fabs(facts.bigram_nats - (t + o) / 13) < 2e-3);
    assert_int_equal(facts.documents, 600);
    reopen_packed(options, 'r', &data);
    assert_int_equal(tr_data_examine(data, 0, 1, &facts), TR_OK);
    assert_int_equal(facts.documents, 101); /* the last one has not ended */
    tr_data_close(data);
    assert_int_equal(open_as(path, "bytes", 0, 8, 3, &data), TR_OK);
    assert_int_equal(tr_data_examine(data, 0, 1, &facts), TR_OK);
    assert_true(facts.distinct == 7 && isnan(facts.bigram_nats));
    tr_data_close(data);
}

/* Samples behind the new end fail with the file's name; those in front of it are read as before,
 * also when the file has a new name, and bytes that come back can be read again. */
static void a_shortened_file_is_an_error(void **state) {
    (void)state;
    write_file(1000, mixed);
    tr_data *data;
    tr_data_facts facts;
    int32_t tokens[16], labels[16];
    int failed = 0;
    assert_int_equal(open_as(path, "bytes", 0.2, 16, 3, &data), TR_OK);
    assert_int_equal(truncate(path, 500), 0);
    for (int64_t i = 0; i < tr_data_windows_of(data, 0); i++) {
        bool inside = tr_data_window_start(data, i, NULL) + 17 <= 500;
        tr_status status = sample(data, i, tokens, labels);
        assert_int_equal(status, inside ? TR_OK : TR_ERR_DATA);
        if (inside) assert_int_equal(tokens[0], mixed(tr_data_window_start(data, i, NULL)));
        else assert_non_null(strstr(tr_error_message(), path));
        failed += !inside;
    }
    assert_in_range(failed, 1, tr_data_windows_of(data, 0) - 1);
    assert_int_equal(held_sample(data, 0, tokens, labels), TR_ERR_DATA);
    assert_int_equal(tr_data_examine(data, 0, 1, &facts), TR_ERR_DATA);
    write_file(1000, mixed);
    assert_int_equal(held_sample(data, 0, tokens, labels), TR_OK);
    assert_int_equal(tokens[0], mixed(800));
    tr_data_close(data);
}

/* With a time limit: a FIFO or an endless device must not hang. */
static void only_regular_files_are_data(void **state) {
    (void)state;
    tr_data *data;
    (void)alarm(300);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(open_as(path, "bytes", 0, 1, 3, &data), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "is a pipe: name a regular file (data.path)"));
    assert_int_equal(open_as("/dev/zero", "bytes", 0, 1, 3, &data), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "'/dev/zero' is a device"));
    (void)alarm(0);
}

/* Document starts are read where they are asked for, and nothing else is then. The label of a
 * document's last token does not count. */
static void test_documents(void **state) {
    (void)state;
    enum { T = 16 };
    const tr_flow flow = {.name = TR_STEP_INPUT_DOCUMENT_STARTS}, image = {.name = "image"};
    tr_data *data;
    int32_t starts[T], tokens[T], labels[T], counted[T];
    const tr_fetch wanted = {&flow, starts}, unknown = {&image, starts};
    write_file(1000, mixed);
    const tr_data_options options = options_of(path, "bytes", 0.2, T, 3);
    assert_int_equal(tr_data_open(&options, &data), TR_OK);
    assert_int_equal(tr_data_sample(data, 2, &wanted, 1), TR_OK);
    for (int t = 0; t < T; t++) assert_int_equal(starts[t], 0);
    assert_int_equal(sample(data, 2, tokens, labels), TR_OK);
    for (int last = 0; last < T; last++) {
        int32_t start = 0;
        reopen_packed(options, tokens[last], &data);
        assert_int_equal(tr_data_sample(data, 2, &wanted, 1), TR_OK);
        assert_int_equal(sample(data, 2, tokens, counted), TR_OK);
        for (int t = 0; t < T; t++) {
            bool ends = tokens[t] == tokens[last];
            assert_int_equal(starts[t], start);
            assert_int_equal(counted[t], ends ? -1 : labels[t]);
            if (ends) start = t + 1;
        }
        assert_true(start > 0);
    }
    assert_int_equal(tr_data_sample(data, 2, &unknown, 1), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "image"));
    tr_data_close(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(permutation_is_a_bijection),
        cmocka_unit_test(permutation_mixes),
        cmocka_unit_test(epochs_cover_the_training_part),
        cmocka_unit_test(a_sample_depends_on_seed_and_index_alone),
        cmocka_unit_test(validation_is_read_in_order),
        cmocka_unit_test(growth_counts_from_the_next_epoch),
        cmocka_unit_test(the_hash_sees_a_change),
        cmocka_unit_test(the_smallest_data_has_one_window),
        cmocka_unit_test(bad_data_is_refused),
        cmocka_unit_test(bigram_counts_pairs),
        cmocka_unit_test(a_shortened_file_is_an_error),
        cmocka_unit_test(only_regular_files_are_data),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
