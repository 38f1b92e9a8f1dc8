#include "data/paths.h"

#include "base/memory.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MILLION = 1000000, MOST_WEIGHT = 1000000 };

static const char separators[] = " \t\r\n";

/* Copies the next word of *text to `word`, which has room for all of it, without its quotes; moves
 * *text behind it. Sets *quoted when a character was protected. */
static tr_status next_word(const char *key, const char **text, char *word, bool *quoted) {
    const char *s = *text;
    char open = 0;
    *quoted = false;
    for (; *s && (open || !strchr(separators, *s)); s++) {
        if (open ? *s == open : *s == '\'' || *s == '"') {
            open = open ? 0 : *s;
            *quoted = true;
        } else if (*s == '\\' && open != '\'' && s[1]) {
            *word++ = *++s;
            *quoted = true;
        } else {
            *word++ = *s;
        }
    }
    *word = '\0';
    *text = s;
    if (!open) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "%s has a quote %c that does not end: close it, or write \\ before it", key,
                   open);
}

/* Reads a weight in millionths. Returns false when the word is not a number. */
static bool is_weight(const char *word, int64_t *weight, bool *good) {
    static const char digits[] = "0123456789";
    size_t whole = strspn(word, digits), decimals = 0;
    const char *rest = word + whole;
    if (*rest == '.') decimals = strspn(++rest, digits);
    if (whole + decimals == 0 || rest[decimals]) return false;
    *weight = 0;
    *good = whole <= 7 && decimals <= 6;
    for (size_t i = 0; i < whole && *good; i++) *weight = 10 * *weight + (word[i] - '0');
    for (size_t i = 0; i < 6 && *good; i++)
        *weight = 10 * *weight + (i < decimals ? rest[i] - '0' : 0);
    *good = *good && *weight > 0 && *weight <= (int64_t)MOST_WEIGHT * MILLION;
    return true;
}

static tr_status add_word(tr_data_words *part, size_t *capacity, const char *word) {
    TR_TRY(tr_grow(&part->word, capacity, (size_t)part->count + 1, sizeof *part->word));
    TR_TRY(tr_strdup(word, &part->word[part->count]));
    part->count++;
    return TR_OK;
}

/* Begins a corpus with that weight. */
static tr_status add_part(const char *key, int64_t weight, tr_data_paths *out) {
    if (out->parts == TR_DATA_PARTS)
        return TR_FAIL(TR_ERR_CONFIG, "%s mixes more than %d corpora: join some of them", key,
                       TR_DATA_PARTS);
    if (out->parts > 0 && out->part[out->parts - 1].count == 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s has a weight without a file after it: write WEIGHT PATH "
                       "WEIGHT PATH, like '0.7 a.bin 0.3 b.bin'",
                       key);
    out->part[out->parts++].weight = weight;
    return TR_OK;
}

static tr_status split(const char *key, const char *text, char *word, tr_data_paths *out) {
    size_t capacity = 0;
    for (text += strspn(text, separators); *text; text += strspn(text, separators)) {
        bool quoted, good = true;
        int64_t weight = 0;
        TR_TRY(next_word(key, &text, word, &quoted));
        bool weighted = out->parts > 0 && out->part[0].weight > 0;
        bool number = !quoted && (out->parts == 0 || weighted) && is_weight(word, &weight, &good);
        if (!good)
            return TR_FAIL(TR_ERR_CONFIG,
                           "%s has the weight %.40s: a weight is above 0, at most %d, and has at "
                           "most 6 decimals",
                           key, word, MOST_WEIGHT);
        if (number || out->parts == 0) {
            capacity = 0;
            TR_TRY(add_part(key, weight, out));
        }
        if (!number) TR_TRY(add_word(&out->part[out->parts - 1], &capacity, word));
    }
    if (out->parts == 0) return TR_FAIL(TR_ERR_CONFIG, "%s names no file", key);
    return out->part[out->parts - 1].count > 0 ? TR_OK : add_part(key, 1, out);
}

tr_status tr_data_paths_parse(const char *key, const char *text, tr_data_paths *out) {
    *out = (tr_data_paths){0};
    if (access(text, F_OK) == 0) {
        size_t capacity = 0;
        out->parts = 1;
        return add_word(&out->part[0], &capacity, text);
    }
    char *word;
    TR_TRY(tr_calloc(strlen(text) + 1, 1, &word));
    tr_status status = split(key, text, word, out);
    free(word);
    return status;
}

void tr_data_paths_free(tr_data_paths *paths) {
    for (int p = 0; p < paths->parts; p++) {
        for (int w = 0; w < paths->part[p].count; w++) free(paths->part[p].word[w]);
        free(paths->part[p].word);
    }
    *paths = (tr_data_paths){0};
}

void tr_data_paths_free_files(char **files, int count) {
    for (int i = 0; i < count; i++) free(files[i]);
    free(files);
}

static tr_status add_file(const char *path, char ***files, size_t *capacity, int *count) {
    TR_TRY(tr_grow(files, capacity, (size_t)*count + 1, sizeof **files));
    TR_TRY(tr_strdup(path, &(*files)[*count]));
    ++*count;
    return TR_OK;
}

tr_status tr_data_paths_expand(const char *key, const tr_data_words *words, char ***files,
                               int *count) {
    size_t capacity = 0;
    *files = NULL;
    *count = 0;
    for (int w = 0; w < words->count; w++) {
        const char *word = words->word[w];
        glob_t found = {0};
        tr_status status = TR_OK;
        bool pattern = strpbrk(word, "*?[") && access(word, F_OK) != 0;
        if (!pattern) {
            TR_TRY(add_file(word, files, &capacity, count));
            continue;
        }
        int result = glob(word, 0, NULL, &found);
        for (size_t i = 0; result == 0 && i < found.gl_pathc && status == TR_OK; i++)
            status = add_file(found.gl_pathv[i], files, &capacity, count);
        globfree(&found);
        if (result != 0)
            return TR_FAIL(result == GLOB_NOSPACE ? TR_ERR_FIT : TR_ERR_NOFILE,
                           "no file matches '%.512s' (%s)", word, key);
        TR_TRY(status);
    }
    return TR_OK;
}

bool tr_data_paths_quote(const char *path, char *text, size_t size) {
    size_t used = strlen(text);
    bool plain = *path && !path[strcspn(path, " \t\r\n'\"\\")];
    int64_t weight;
    bool good;
    if (plain) plain = !is_weight(path, &weight, &good);
    const size_t before = used;
    if (used > 0 && used + 1 < size) text[used++] = ' ';
    if (!plain && used + 1 < size) text[used++] = '"';
    for (const char *s = path; *s; s++) {
        if (used + 2 >= size) {
            text[before] = '\0';
            return false;
        }
        if (!plain && (*s == '"' || *s == '\\')) text[used++] = '\\';
        text[used++] = *s;
    }
    if (used + 1 >= size) {
        text[before] = '\0';
        return false;
    }
    if (!plain) text[used++] = '"';
    text[used] = '\0';
    return true;
}
