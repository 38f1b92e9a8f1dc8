#include "base/nearest.h"

#include "base/minmax.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 63 };

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

int tr_edit_distance(const char *a, const char *b) {
    int n = (int)strnlen(a, LONGEST), m = (int)strnlen(b, LONGEST);
    int row[3][LONGEST + 1];
    int *before = row[0], *last = row[1], *now = row[2];
    for (int j = 0; j <= m; j++) last[j] = j;
    memcpy(before, last, sizeof row[0]);
    for (int i = 1; i <= n; i++) {
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int cost = lower(a[i - 1]) != lower(b[j - 1]);
            now[j] = tr_min_int(tr_min_int(last[j], now[j - 1]) + 1, last[j - 1] + cost);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                now[j] = tr_min_int(now[j], before[j - 2] + 1);
        }
        int *oldest = before;
        before = last;
        last = now;
        now = oldest;
    }
    return last[m];
}

/* Returns how many characters the two have in common at their beginning. */
static int common_start(const char *a, const char *b) {
    int n = 0;
    while (a[n] && lower(a[n]) == lower(b[n])) n++;
    return n;
}

int tr_nearest(const char *word, const char *(*name)(const void *names, int index),
               const void *names, int count) {
    int best = -1, best_distance = 0, best_start = 0;
    for (int i = 0; i < count; i++) {
        const int d = tr_edit_distance(word, name(names, i)),
                  s = common_start(word, name(names, i));
        if (best >= 0 && (d > best_distance || (d == best_distance && s <= best_start))) continue;
        best = i;
        best_distance = d;
        best_start = s;
    }
    return best >= 0 && best_distance <= (int)strnlen(word, LONGEST) / 3 ? best : -1;
}

const char *tr_word_at(const void *words, int index) {
    return ((const char *const *)words)[index];
}

tr_hint tr_hint_at(const char *word) {
    tr_hint hint;
    (void)snprintf(hint.text, sizeof hint.text, "; did you mean '%s'?", word);
    return hint;
}

tr_hint tr_nearest_hint(const char *value, size_t length, const char *const *words, int count) {
    char word[LONGEST + 1];
    static const tr_hint none = {.text = ""};
    if (length == 0 || length > LONGEST) return none;
    (void)snprintf(word, sizeof word, "%.*s", (int)length, value);
    int near = tr_nearest(word, tr_word_at, words, count);
    for (int i = 0; near < 0 && i < count; i++) /* gpt2 is gpt2-124m */
        if (strncmp(words[i], word, length) == 0) near = i;
    return near >= 0 && strcmp(words[near], word) != 0 ? tr_hint_at(words[near]) : none;
}
