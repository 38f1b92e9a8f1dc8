/* Tests configs with random values and mutated files: what is printed loads to itself, and no file
 * crashes the parser. Usage: test_config_random [SEED] */
#include "base/philox.h"
#include "config/schema.h"
#include "support/same_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char good[] = "data.path: corpus.txt\n"
                           "model:\n"
                           "  preset: gpt2-124m\n"
                           "  layers: 6   # fewer\n"
                           "train: {steps: 200, batch: 32}\n"
                           "optim.lr: 3e-4\n";

static uint64_t seed, draws;

static uint64_t draw(void) {
    return tr_mix64(seed ^ tr_mix64(draws++));
}

static double draw_unit(void) {
    return (double)(draw() >> 11) / 9007199254740992.0;
}

/* Text of characters that YAML treats specially, controls and non-ASCII among them. */
static void draw_text(char *text, size_t size) {
    static const char *const piece[] = {"a",
                                        " ",
                                        ":",
                                        "#",
                                        "\"",
                                        "'",
                                        "\\",
                                        "\n",
                                        "\t",
                                        "-",
                                        "\x01",
                                        "\x7f",
                                        "\xc3\xa9",
                                        "\xc2\x85",
                                        "\xe2\x80\xa8",
                                        "{",
                                        "~",
                                        "\xef\xbb\xbf",
                                        "\xf0\x9f\x9a\xa3",
                                        "%",
                                        "null",
                                        "5"};
    text[0] = '\0';
    for (uint64_t n = 1 + draw() % 12; n > 0 && strlen(text) + 5 < size; n--)
        strcat(text, piece[draw() % (sizeof piece / sizeof *piece)]);
}

static void draw_value(const tr_key *key, tr_config *c) {
    void *field = (char *)c + key->offset;
    double x = key->min + (key->max - key->min) * draw_unit();
    switch (key->type) {
    case TR_KEY_INT:
    case TR_KEY_BYTES: *(int64_t *)field = (int64_t)x; break;
    case TR_KEY_FACTORS:
        ((int64_t *)field)[1] = 1 + (int64_t)(draw() % 8);
        ((int64_t *)field)[0] = ((int64_t *)field)[1] * (1 + (int64_t)(draw() % 8));
        break;
    case TR_KEY_FLOAT: *(double *)field = x; break;
    case TR_KEY_BOOL: *(bool *)field = draw() % 2; break;
    case TR_KEY_ANSWER: *(tr_answer *)field = draw() % 2 ? TR_YES : TR_NO; break;
    case TR_KEY_TEXT:
    case TR_KEY_PATTERNS:
    case TR_KEY_SCALES:
    case TR_KEY_PATHS: draw_text(field, key->size); break;
    case TR_KEY_SHARE:
        *(char *)field = 'x'; /* otherwise the text may be a number out of range */
        if (draw() % 2) (void)snprintf(field, key->size, "%.3f", x);
        else draw_text((char *)field + 1, key->size - 1);
        break;
    case TR_KEY_POINTS:
        (void)snprintf(field, key->size, "%d %d", 1 + (int)(draw() % 1000),
                       1001 + (int)(draw() % 1000));
        break;
    case TR_KEY_BATCHES:
        (void)snprintf(field, key->size, "%d %d %d %d", 1 + (int)(draw() % 1000),
                       1 + (int)(draw() % 1000), 1001 + (int)(draw() % 1000),
                       1001 + (int)(draw() % 1000));
        break;
    case TR_KEY_SCHEDULE:
    case TR_KEY_DEVICE:
    case TR_KEY_CHOICE: break; /* few values: keep the default */
    }
}

static void printed_configs_load_to_themselves(void **state) {
    (void)state;
    for (int round = 0; round < 500; round++) {
        tr_config c, again;
        assert_int_equal(tr_config_parse(good, strlen(good), "x.yaml", NULL, 0, &c), TR_OK);
        for (int k = 0; k < tr_schema_count; k++) draw_value(&tr_schema[k], &c);
        *(draw() % 2 ? c.preset : c.init_from) = '\0'; /* one of the two names the model */
        char *text;
        assert_int_equal(tr_config_text(&c, &text), TR_OK);
        if (tr_config_parse(text, strlen(text), "x.yaml", NULL, 0, &again) != TR_OK ||
            !same_config(&c, &again))
            fail_msg("seed %llu round %d: %s\n%s", (unsigned long long)seed, round,
                     tr_error_message(), text);
        free(text);
    }
}

static void mutated_files_never_crash(void **state) {
    (void)state;
    static const char alphabet[] = "\n :#{}[]'\"&*!|>%@`-?,.0159eE+~\t\\\xff\xc3"
                                   "abtruelayers";
    int loaded = 0;
    for (int round = 0; round < 5000; round++) {
        char text[sizeof good + 64];
        size_t length = sizeof good - 1;
        memcpy(text, good, length);
        for (uint64_t n = 1 + draw() % 6; n > 0; n--) {
            size_t at = draw() % length;
            char byte = alphabet[draw() % (sizeof alphabet - 1)];
            if (draw() % 3 == 0) {
                memmove(text + at, text + at + 1, length - at - 1);
                length--;
            } else if (draw() % 2 == 0) {
                memmove(text + at + 1, text + at, length - at);
                text[at] = byte;
                length++;
            } else {
                text[at] = byte;
            }
        }
        tr_config c;
        tr_status status = tr_config_parse(text, length, "x.yaml", NULL, 0, &c);
        loaded += status == TR_OK;
        if (status != TR_OK && status != TR_ERR_CONFIG)
            fail_msg("seed %llu round %d: status %d", (unsigned long long)seed, round, status);
        if (status != TR_OK && strncmp(tr_error_message(), "x.yaml:", 7) != 0)
            fail_msg("seed %llu round %d: '%s'", (unsigned long long)seed, round,
                     tr_error_message());
    }
    assert_in_range(loaded, 50, 4950);
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 20;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(printed_configs_load_to_themselves),
                                       cmocka_unit_test(mutated_files_never_crash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
