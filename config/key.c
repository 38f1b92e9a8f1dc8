/* The values of keys: parsing, printing, and what a key takes. */
#include "base/digits.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/batches.h"
#include "config/elsewhere.h"
#include "config/points.h"
#include "config/schema.h"
#include "device/device.h"
#include "pipeline/orders/make.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 64 }; /* choices of a key */

static void *field(const tr_key *key, tr_config *config) {
    return (char *)config + key->offset;
}

/* Returns the next schedule that trains, and moves *index past it; NULL after the last one. */
static const char *next_schedule(int *index) {
    bool trains = false;
    const char *name;
    do name = tr_schedule_name((*index)++, &trains);
    while (name && !trains);
    return name;
}

const char *tr_key_describe(const tr_key *key, char *buffer, size_t size) {
    switch (key->type) {
    case TR_KEY_INT: (void)snprintf(buffer, size, "an integer"); break;
    case TR_KEY_FACTORS: (void)snprintf(buffer, size, "an integer or two factors"); break;
    case TR_KEY_FLOAT: (void)snprintf(buffer, size, "a number"); break;
    case TR_KEY_BOOL:
    case TR_KEY_ANSWER: (void)snprintf(buffer, size, "true or false"); break;
    case TR_KEY_TEXT:
    case TR_KEY_PATTERNS:
    case TR_KEY_SCALES:
    case TR_KEY_PATHS: (void)snprintf(buffer, size, "text"); break;
    case TR_KEY_SHARE: (void)snprintf(buffer, size, "a number or a path"); break;
    case TR_KEY_POINTS: (void)snprintf(buffer, size, "ascending steps above 0"); break;
    case TR_KEY_BATCHES:
        (void)snprintf(buffer, size, "pairs of a batch and its last step, both ascending");
        break;
    case TR_KEY_BYTES:
        (void)snprintf(buffer, size,
                       "a whole number of bytes, kB, KiB, MB, MiB, GB, GiB, TB or TiB");
        break;
    case TR_KEY_DEVICE: (void)snprintf(buffer, size, "cpu, cuda, cuda:N or ref"); break;
    case TR_KEY_SCHEDULE: {
        int index = 0;
        (void)snprintf(buffer, size, "one of ");
        for (const char *name; (name = next_schedule(&index));)
            tr_text_add(buffer, size, "%s, ", name);
        tr_text_add(buffer, size, "or a path that ends in .csv");
        break;
    }
    case TR_KEY_CHOICE: {
        size_t used = (size_t)snprintf(buffer, size, "one of ");
        for (const char *c = key->choices; *c && used + 3 < size; c++) {
            if (*c == ' ') buffer[used++] = ',';
            buffer[used++] = *c;
        }
        buffer[used] = '\0';
    }
    }
    return buffer;
}

/* Fails with "KEY must be WHAT, not 'value'", and a hint at one of the words. */
static tr_status wrong_word(const tr_key *key, const char *value, const char *const *words,
                            int count) {
    char takes[512], example[80] = "";
    bool shows = key->type != TR_KEY_BOOL && key->type != TR_KEY_ANSWER &&
                 key->type != TR_KEY_CHOICE && key->type != TR_KEY_SCHEDULE &&
                 key->type != TR_KEY_DEVICE;
    if (shows)
        (void)snprintf(example, sizeof example, " (for example %s)",
                       key->example ? key->example : key->fallback);
    return TR_FAIL(TR_ERR_CONFIG, "%s must be %s%s, not '%.80s'%s", key->name,
                   tr_key_describe(key, takes, sizeof takes), example, value,
                   tr_value_hint(value, words, count).text);
}

static tr_status wrong_type(const tr_key *key, const char *value) {
    return wrong_word(key, value, NULL, 0);
}

static tr_status out_of_range(const tr_key *key, const char *value) {
    /* An integer limit is printed with all its digits. */
    bool whole =
        key->type == TR_KEY_INT || key->type == TR_KEY_FACTORS || key->type == TR_KEY_BYTES;
    const char *format = whole ? "%.0f" : "%.15g";
    char low[40], high[40];
    (void)snprintf(low, sizeof low, format, key->min);
    (void)snprintf(high, sizeof high, format, key->max);
    return TR_FAIL(TR_ERR_CONFIG, "%s must be between %s and %s, not %.80s", key->name, low, high,
                   value);
}

/* Parses decimal digits with an optional sign. Returns false when there are none. An integer too
 * large for int64_t becomes INT64_MAX or INT64_MIN. *rest points behind the digits. */
static bool parse_integer(const char *text, int64_t *out, const char **rest) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits < '0' || *digits > '9') return false;
    char *end;
    long long n = strtoll(text, &end, 10);
    *out = n;
    *rest = end;
    return true;
}

static tr_status set_integer(const tr_key *key, const char *value, tr_config *config) {
    int64_t n;
    const char *rest;
    if (!parse_integer(value, &n, &rest)) return wrong_type(key, value);
    const int64_t factor = key->type == TR_KEY_BYTES || !*rest ? tr_digits_unit(rest) : 0;
    if (!factor) return wrong_type(key, value);
    if (key->type == TR_KEY_BYTES && factor == 1 && n > 0 && n < 4096)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s %.80s is a number of bytes: write its unit, as in %.80sGiB", key->name,
                       value, value);
    /* Compared as integers: as a double, 2^53 + 1 would equal a limit of 2^53. */
    int64_t all, low = (int64_t)key->min, high = (int64_t)key->max;
    if (__builtin_mul_overflow(n, factor, &all) || all < low || all > high)
        return out_of_range(key, value);
    *(int64_t *)field(key, config) = all;
    return TR_OK;
}

/* 8, or 2x4. */
static tr_status set_factors(const tr_key *key, const char *value, tr_config *config) {
    int64_t *product = field(key, config), first = 1, last, all;
    const char *rest;
    if (!parse_integer(value, &last, &rest)) return wrong_type(key, value);
    if (*rest == 'x') {
        first = last;
        if (!parse_integer(rest + 1, &last, &rest)) return wrong_type(key, value);
    }
    if (*rest) return wrong_type(key, value);
    if (first < 1 || last < 1 || __builtin_mul_overflow(first, last, &all) ||
        (double)all > key->max)
        return out_of_range(key, value);
    product[0] = all;
    product[1] = first;
    return TR_OK;
}

static tr_status set_text(const tr_key *key, const char *value, tr_config *config);

/* Stores `value` if it is one of the words, and else fails with all of them and the nearest. */
static tr_status set_word(const tr_key *key, const char *value, const char *const *words, int count,
                          tr_config *config) {
    for (int i = 0; i < count; i++)
        if (!strcmp(words[i], value)) return set_text(key, value, config);
    return wrong_word(key, value, words, count);
}

static tr_status set_choice(const tr_key *key, const char *value, tr_config *config) {
    char choices[512], *rest = NULL;
    const char *words[MOST_WORDS];
    int count = 0;
    (void)snprintf(choices, sizeof choices, "%s", key->choices);
    for (char *word = strtok_r(choices, " ", &rest); word && count < MOST_WORDS;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    return set_word(key, value, words, count, config);
}

static tr_status set_schedule(const tr_key *key, const char *value, tr_config *config) {
    const char *words[MOST_WORDS], *name;
    int count = 0, index = 0;
    if (tr_schedule_is_path(value)) return set_text(key, value, config);
    while (count < MOST_WORDS && (name = next_schedule(&index))) words[count++] = name;
    return set_word(key, value, words, count, config);
}

/* Returns whether one of the words of a value begins as a path of the user's home folder does in a
 * shell. */
static bool begins_at_home(const char *value) {
    for (const char *at = value; (at = strstr(at, "~/")); at++)
        if (at == value || at[-1] == ' ' || at[-1] == '"') return true;
    return false;
}

static tr_status set_text(const tr_key *key, const char *value, tr_config *config) {
    if (!*value) return wrong_type(key, value);
    if (strlen(value) >= key->size)
        return TR_FAIL(TR_ERR_CONFIG, "%s must not be longer than %zu characters", key->name,
                       key->size - 1);
    if (!tr_utf8_is_valid((const uint8_t *)value, strlen(value)))
        return TR_FAIL(TR_ERR_CONFIG, "%s must be valid UTF-8", key->name);
    if (begins_at_home(value))
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s: only shells replace ~ in a path, and none has replaced it in '%.512s': "
                       "write the home folder's path",
                       key->name, value);
    memcpy(field(key, config), value, strlen(value) + 1);
    return TR_OK;
}

bool tr_key_share(const char *text, double *share) {
    return tr_number_is(text, share);
}

/* Copies a list without the quotes that a file may have around its items. Returns the copy, or NULL
 * if it is too long. */
static const char *copy_bare(const char *value, char *bare, size_t size) {
    size_t length = 0;
    if (strlen(value) >= size) return NULL;
    for (; *value; value++)
        if (*value != '"') bare[length++] = *value;
    bare[length] = '\0';
    return bare;
}

/* Stores the steps with one space between them. */
static tr_status set_points(const tr_key *key, const char *value, tr_config *config) {
    int64_t point[TR_CONFIG_POINTS];
    char bare[TR_CONFIG_POINTS * 24], *text = field(key, config);
    const char *list = copy_bare(value, bare, sizeof bare);
    const int count = list ? tr_config_points(list, point) : -1;
    if (count < 0) return wrong_type(key, list ? list : value);
    text[0] = '\0';
    for (int i = 0; i < count; i++)
        tr_text_add(text, key->size, "%s%" PRId64, i ? " " : "", point[i]);
    return TR_OK;
}

/* Stores the pairs with one space between their numbers. */
static tr_status set_batches(const tr_key *key, const char *value, tr_config *config) {
    tr_batch_size batch[TR_CONFIG_WARMUPS];
    char bare[TR_CONFIG_WARMUPS * 48], *text = field(key, config);
    const char *list = copy_bare(value, bare, sizeof bare);
    const int count = list ? tr_config_warmup(list, batch) : -1;
    if (count < 0) return wrong_type(key, list ? list : value);
    text[0] = '\0';
    for (int i = 0; i < count; i++)
        tr_text_add(text, key->size, "%s%" PRId64 " %" PRId64, i ? " " : "", batch[i].batch,
                    batch[i].until);
    return TR_OK;
}

static tr_status set_share(const tr_key *key, const char *value, tr_config *config) {
    double share;
    char *end;
    if (tr_key_share(value, &share) && !(share >= key->min && share <= key->max))
        return out_of_range(key, value);
    if (strtod(value, &end) > 0 && strcmp(end, "%") == 0) return wrong_type(key, value);
    return set_text(key, value, config);
}

static tr_status set_device(const tr_key *key, const char *value, tr_config *config) {
    static const char *const words[] = {"cpu", "cuda", "ref"};
    if (tr_device_is_known(value)) return set_text(key, value, config);
    return wrong_word(key, value, words, 3);
}

bool tr_key_is_text(const tr_key *key) {
    return key->type != TR_KEY_INT && key->type != TR_KEY_FACTORS && key->type != TR_KEY_BYTES &&
           key->type != TR_KEY_FLOAT && key->type != TR_KEY_BOOL && key->type != TR_KEY_ANSWER;
}

bool tr_key_takes(const tr_key *key, tr_yaml_kind kind) {
    switch (kind) {
    case TR_YAML_SECTION: return false;
    case TR_YAML_TEXT: return true;
    case TR_YAML_LIST:
        return key->type == TR_KEY_PATHS || key->type == TR_KEY_PATTERNS ||
               key->type == TR_KEY_POINTS;
    case TR_YAML_WEIGHTS: return key->type == TR_KEY_PATHS;
    case TR_YAML_SCALES: return key->type == TR_KEY_SCALES;
    case TR_YAML_BATCHES: return key->type == TR_KEY_BATCHES;
    }
    return false;
}

tr_status tr_key_set(const tr_key *key, const char *value, tr_config *config) {
    static const char *const answers[] = {"true", "false"};
    switch (key->type) {
    case TR_KEY_INT:
    case TR_KEY_BYTES: TR_TRY(set_integer(key, value, config)); break;
    case TR_KEY_FACTORS: TR_TRY(set_factors(key, value, config)); break;
    case TR_KEY_FLOAT: {
        double x = 0;
        if (!tr_number_is(value, &x)) TR_TRY(wrong_type(key, value));
        if (!(x >= key->min && x <= key->max)) TR_TRY(out_of_range(key, value));
        *(double *)field(key, config) = x;
        break;
    }
    case TR_KEY_BOOL:
    case TR_KEY_ANSWER: {
        bool yes = !strcmp(value, "true");
        if (!yes && strcmp(value, "false")) TR_TRY(wrong_word(key, value, answers, 2));
        if (key->type == TR_KEY_BOOL) *(bool *)field(key, config) = yes;
        else *(tr_answer *)field(key, config) = yes ? TR_YES : TR_NO;
        break;
    }
    case TR_KEY_PATTERNS:
    case TR_KEY_SCALES: /* nothing is a list without items, which has one text */
        if (!*value && key->fallback) value = key->fallback;
        if (!*value) *(char *)field(key, config) = '\0';
        else TR_TRY(set_text(key, value, config));
        break;
    case TR_KEY_TEXT:
    case TR_KEY_PATHS: TR_TRY(set_text(key, value, config)); break;
    case TR_KEY_SHARE: TR_TRY(set_share(key, value, config)); break;
    case TR_KEY_POINTS: TR_TRY(set_points(key, value, config)); break;
    case TR_KEY_BATCHES: TR_TRY(set_batches(key, value, config)); break;
    case TR_KEY_CHOICE: TR_TRY(set_choice(key, value, config)); break;
    case TR_KEY_SCHEDULE: TR_TRY(set_schedule(key, value, config)); break;
    case TR_KEY_DEVICE: TR_TRY(set_device(key, value, config)); break;
    }
    return TR_OK;
}

/* Prints text in double quotes, and escapes what YAML would not read back unchanged. */
static void print_quoted(const char *text, FILE *f) {
    const char *end = text + strlen(text);
    (void)fputc('"', f);
    for (int length; text < end; text += length) {
        uint32_t p;
        length = (int)tr_utf8_next((const uint8_t *)text, (const uint8_t *)end, &p);
        bool break_or_control = p < 0x20 || (p >= 0x7f && p < 0xa0) || p == 0x2028 || p == 0x2029 ||
                                p == 0xfeff || (p >= 0xfffe && p < 0x10000);
        if (break_or_control) (void)fprintf(f, "\\u%04" PRIX32, p);
        else (void)fprintf(f, "%s%.*s", p == '"' || p == '\\' ? "\\" : "", length, text);
    }
    (void)fputc('"', f);
}

tr_status tr_key_text(const tr_key *key, const tr_config *config, char **text) {
    size_t size;
    *text = NULL;
    FILE *f = open_memstream(text, &size);
    if (!f) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    const void *value = (const char *)config + key->offset;
    switch (key->type) {
    case TR_KEY_INT:
    case TR_KEY_BYTES: (void)fprintf(f, "%" PRId64, *(const int64_t *)value); break;
    case TR_KEY_FACTORS: {
        const int64_t *n = value;
        if (n[1] > 1) (void)fprintf(f, "%" PRId64 "x%" PRId64, n[1], n[0] / n[1]);
        else (void)fprintf(f, "%" PRId64, n[0]);
        break;
    }
    case TR_KEY_FLOAT: {
        char digits[40];
        for (int precision = 15; precision <= 17;
             precision++) { /* the shortest text that reads back as the same number */
            (void)snprintf(digits, sizeof digits, "%.*g", precision, *(const double *)value);
            if (strtod(digits, NULL) == *(const double *)value) break;
        }
        (void)fputs(digits, f);
        break;
    }
    case TR_KEY_BOOL: (void)fputs(*(const bool *)value ? "true" : "false", f); break;
    case TR_KEY_ANSWER:
        (void)fputs(*(const tr_answer *)value == TR_YES ? "true" : "false", f);
        break;
    case TR_KEY_TEXT:
    case TR_KEY_PATTERNS:
    case TR_KEY_SCALES:
    case TR_KEY_POINTS:
    case TR_KEY_BATCHES:
    case TR_KEY_DEVICE:
    case TR_KEY_PATHS: print_quoted(value, f); break;
    case TR_KEY_SHARE: {
        double share;
        if (tr_key_share(value, &share)) (void)fputs(value, f);
        else print_quoted(value, f);
        break;
    }
    case TR_KEY_SCHEDULE:
        if (tr_schedule_is_path(value)) print_quoted(value, f);
        else (void)fputs(value, f);
        break;
    case TR_KEY_CHOICE: (void)fputs(value, f); break;
    }
    if (fclose(f) != 0) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    return TR_OK;
}
