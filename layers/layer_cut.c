#include "layers/layer_cut.h"

#include "base/digits.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What was read so far. */
typedef struct reader {
    const char *text; /* the whole value, for messages */
    int64_t blocks;
    int *first; /* [blocks + 3]: a stage has a layer, so there are at most blocks + 2 */
    int stages; /* that have ended */
    int layers;
} reader;

static tr_status refuse_form(const reader *r) {
    static const char *const word = TR_LAYER_CUT_AUTO;
    return TR_FAIL(TR_ERR_CONFIG,
                   "parallel.cut must be auto, or the layers of every stage like 'Et*3|(t*4|)*2tL' "
                   "(E the embedding, t a block, L the head, | the end of a stage), not '%.80s'%s",
                   r->text, tr_nearest_hint(r->text, strlen(r->text), &word, 1).text);
}

static tr_status refuse_ends(const reader *r) {
    return TR_FAIL(TR_ERR_CONFIG,
                   "parallel.cut must begin with E, the embedding, and end with L, the head, not "
                   "'%.80s'",
                   r->text);
}

static tr_status end_stage(reader *r) {
    if (r->layers == r->first[r->stages])
        return TR_FAIL(TR_ERR_CONFIG,
                       "stage %d of parallel.cut has no layer: give it a block (t), or leave out "
                       "a '|'",
                       r->stages);
    r->first[++r->stages] = r->layers;
    return TR_OK;
}

/* Adds a layer, which must be the model's next one. */
static tr_status add_layer(reader *r, char letter) {
    const int64_t head = r->blocks + 1;
    const char next = r->layers == 0 ? 'E' : r->layers < head ? 't' : r->layers == head ? 'L' : '|';
    if (letter == next) {
        r->layers++;
        return TR_OK;
    }
    if (letter == 'L' && next == 't')
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.cut has %d block%s (t), but model.layers is %lld: give it as many",
                       r->layers - 1, r->layers == 2 ? "" : "s", (long long)r->blocks);
    if (letter == 't' && next == 'L')
        return TR_FAIL(TR_ERR_CONFIG,
                       "parallel.cut has more blocks (t) than model.layers, which is %lld: give it "
                       "as many",
                       (long long)r->blocks);
    return refuse_ends(r);
}

/* Reads "*NUMBER" at *text, which may be missing, and moves behind it. */
static bool read_times(const char **text, int64_t *times) {
    *times = 1;
    if (**text != '*') return true;
    ++*text;
    return tr_digits_read(text, 999999999, times) && *times > 0;
}

/* Reads letters, each perhaps with its number, up to `end`. */
static tr_status read_letters(reader *r, const char *text, const char *end) {
    while (text < end) {
        const char letter = *text++;
        int64_t times;
        if (!strchr("EtL|", letter) || !read_times(&text, &times) || text > end)
            return refuse_form(r);
        for (int64_t k = 0; k < times; k++)
            TR_TRY(letter == '|' ? end_stage(r) : add_layer(r, letter));
    }
    return TR_OK;
}

/* Reads a value without commas. */
static tr_status read_groups(reader *r, const char *text) {
    while (*text) {
        const char *end = text + strcspn(text, "(");
        TR_TRY(read_letters(r, text, end));
        if (!*end) break;
        const char *body = end + 1;
        end = body + strcspn(body, ")");
        int64_t times;
        text = *end ? end + 1 : end;
        if (end == body || *text != '*' || !read_times(&text, &times)) return refuse_form(r);
        for (int64_t k = 0; k < times; k++) TR_TRY(read_letters(r, body, end));
    }
    return TR_OK;
}

/* first[blocks + 3] */
static tr_status read_cut(const char *text, int64_t blocks, int *first, int *stages) {
    char bare[TR_LAYER_CUT_TEXT];
    reader r = {.text = text, .blocks = blocks, .first = first};
    size_t used = 0;
    for (const char *c = text; *c; c++) {
        if (*c == ',') continue;
        if (used + 1 == sizeof bare) return refuse_form(&r);
        bare[used++] = *c;
    }
    bare[used] = '\0';
    TR_TRY(read_groups(&r, bare));
    if (r.layers <= blocks) TR_TRY(add_layer(&r, 'L')); /* says what is missing */
    if (r.layers == blocks + 1 || r.layers == first[r.stages]) return refuse_ends(&r);
    TR_TRY(end_stage(&r));
    *stages = r.stages;
    return TR_OK;
}

tr_status tr_layer_cut_count(const char *text, int64_t blocks, int *stages) {
    int *first;
    TR_TRY(tr_calloc((size_t)blocks + 3, sizeof *first, &first));
    const tr_status status = read_cut(text, blocks, first, stages);
    free(first);
    return status;
}

tr_status tr_layer_cut_read(const char *text, int64_t blocks, int stages, int *first) {
    int *read, count;
    TR_TRY(tr_calloc((size_t)blocks + 3, sizeof *read, &read));
    tr_status status = read_cut(text, blocks, read, &count);
    if (status == TR_OK && count != stages)
        status =
            TR_FAIL(TR_ERR_CONFIG,
                    "parallel.cut has %d stage%s, but the schedule has %d: give it as many, or "
                    "set parallel.cut=auto",
                    count, count == 1 ? "" : "s", stages);
    if (status == TR_OK) memcpy(first, read, ((size_t)stages + 1) * sizeof *first);
    free(read);
    return status;
}

/* Adds a letter with its number. */
static void print_times(char *text, size_t size, const char *letter, int times) {
    if (times > 1) tr_text_add(text, size, "%s*%d", letter, times);
    else if (times == 1) tr_text_add(text, size, "%s", letter);
}

void tr_layer_cut_print(const int *first, int stages, char *text, size_t size) {
    const int head = first[stages] - 1;
    text[0] = '\0';
    for (int s = 0, end; s < stages; s = end) {
        const int layers = first[s + 1] - first[s];
        const bool begins = s == 0, ends = s == stages - 1;
        for (end = s + 1; !begins && end < stages - 1 && first[end + 1] - first[end] == layers;)
            end++;
        const bool repeats = end - s > 1;
        tr_text_add(text, size, "%s%s", repeats ? "(" : "", begins ? "E" : "");
        print_times(text, size, "t", (ends ? head : first[s + 1]) - (begins ? 1 : first[s]));
        tr_text_add(text, size, "%s", ends ? "L" : "|");
        if (repeats) tr_text_add(text, size, ")*%d", end - s);
    }
    if (strlen(text) + 1 >= size) text[0] = '\0'; /* perhaps cut off */
}
