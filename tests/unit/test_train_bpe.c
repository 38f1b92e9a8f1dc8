/* Training of a tokenizer on more words and pairs than its tables begin with, against merges that
 * count all pairs again each time. */
#include "base/json.h"
#include "base/philox.h"
#include "support/must.h"
#include "text/train_bpe.h"

#include <stdlib.h>
#include <string.h>

enum {
    WORDS =
        40000, /* different ones: the table of words begins with 65,536 places, half of them used */
    SHORTEST = 5,
    LONGEST = 9,
    LETTERS = 26,
    MERGES = 500, /* which make over 32,768 different pairs, half of the first places */
    TOKENS = LETTERS + MERGES
};

/* A word's tokens: letters, and from LETTERS on merges. */
typedef struct word {
    int length;
    int token[LONGEST];
} word;

/* The text of a token. */
typedef struct name {
    char text[LONGEST + 1];
} name;

/* The words of a text: number k in base 26 behind random letters, so all differ. */
static word *draw_words(void) {
    word *words = calloc(WORDS, sizeof *words);
    uint64_t draws = 7;
    assert_non_null(words);
    for (int k = 0; k < WORDS; k++) {
        word *w = &words[k];
        w->length = SHORTEST + (int)(tr_mix64(draws++) % (LONGEST - SHORTEST + 1));
        for (int j = 0; j < w->length; j++) w->token[j] = (int)(tr_mix64(draws++) % LETTERS);
        for (int j = 0, rest = k; j < 4; j++, rest /= LETTERS) w->token[j] = rest % LETTERS;
    }
    return words;
}

/* Returns the most frequent pair, left * TOKENS + right; of equal ones that with the smaller ids.
 */
static int best_pair(const word *words, int *count) {
    int best = 0;
    memset(count, 0, (size_t)TOKENS * TOKENS * sizeof *count);
    for (int k = 0; k < WORDS; k++)
        for (int j = 0; j + 1 < words[k].length; j++)
            count[words[k].token[j] * TOKENS + words[k].token[j + 1]]++;
    for (int pair = 1; pair < TOKENS * TOKENS; pair++)
        if (count[pair] > count[best]) best = pair;
    return best;
}

static void merge(word *w, int left, int right, int id) {
    int to = 0;
    for (int from = 0; from < w->length; from++, to++) {
        const bool pair =
            from + 1 < w->length && w->token[from] == left && w->token[from + 1] == right;
        w->token[to] = pair ? id : w->token[from];
        from += pair;
    }
    w->length = to;
}

/* Adds all words, a line each, to the trainer. */
static void add_words(tr_bpe_trainer *trainer, const word *words) {
    char *text = malloc((size_t)WORDS * (LONGEST + 1)), *end = text;
    assert_non_null(text);
    for (int k = 0; k < WORDS; k++) {
        for (int j = 0; j < words[k].length; j++) *end++ = (char)('a' + words[k].token[j]);
        *end++ = '\n';
    }
    must(tr_bpe_trainer_add(trainer, text, (size_t)(end - text)));
    free(text);
}

static void test_tables_grow(void **state) {
    (void)state;
    static name names[TOKENS];
    tr_bpe_trainer *trainer;
    tr_byte_list json = {0};
    cJSON *ours;
    int32_t tokens;
    int *count = calloc((size_t)TOKENS * TOKENS, sizeof *count), different = 0;
    char *seen = calloc((size_t)TOKENS * TOKENS, 1);
    word *words = draw_words();
    assert_true(count && seen);
    must(tr_bpe_trainer_open(TR_PATTERN_GPT2, &trainer));
    for (int turn = 0; turn < 2; turn++) {
        add_words(trainer, words);
        assert_int_equal(tr_bpe_trainer_pieces(trainer), WORDS + 1); /* and the line break */
    }
    must(tr_bpe_trainer_finish(trainer, 256 + MERGES, NULL, 0, NULL, NULL, &json, &tokens));
    assert_int_equal(tokens, 256 + MERGES);
    must(tr_json_parse(json.byte, json.count, "ours", &ours));
    const cJSON *merged = tr_json_get(tr_json_get(ours, "model"), "merges")->child;
    for (int k = 0; k < LETTERS; k++) names[k].text[0] = (char)('a' + k);
    for (int id = LETTERS; id < TOKENS; id++, merged = merged->next) {
        const int best = best_pair(words, count), left = best / TOKENS, right = best % TOKENS;
        for (int pair = 0; pair < TOKENS * TOKENS; pair++) {
            different += count[pair] > 0 && !seen[pair];
            seen[pair] |= count[pair] > 0;
        }
        assert_non_null(merged);
        assert_string_equal(merged->child->valuestring, names[left].text);
        assert_string_equal(merged->child->next->valuestring, names[right].text);
        name joined = names[left];
        strcat(joined.text, names[right].text);
        names[id] = joined;
        for (int k = 0; k < WORDS; k++) merge(&words[k], left, right, id);
    }
    assert_null(merged);
    assert_true(different > 32768);
    cJSON_Delete(ours);
    free(json.byte);
    free(words);
    free(seen);
    free(count);
    tr_bpe_trainer_close(trainer);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables_grow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
