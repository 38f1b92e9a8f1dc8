#include "layers/recompute.h"

#include "base/digits.h"
#include "base/nearest.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Of the modes, and behind them the word that stands alone. */
static const char *const names[] = {"none", "selective", "full", TR_RECOMPUTE_AUTO};
static const char separators[] = ", \t\r\n", word_ends[] = ":, \t\r\n";
static const int64_t most_block = 999999999;

const char *tr_recompute_name(tr_recompute mode) {
    return names[mode];
}

/* A part of the text: a mode, and its blocks. */
typedef struct item {
    const char *begin;
    size_t length;
    tr_recompute mode;
    int64_t first, last;
    bool all;      /* a mode without blocks: all of them */
    bool reversed; /* malformed only in that the first block is after the last */
} item;

/* Reads the mode at *text, and moves behind it. */
static bool read_mode(const char **text, tr_recompute *out) {
    for (int m = 0; m < TR_RECOMPUTE_MODES; m++) {
        const size_t length = strlen(names[m]);
        if (strncmp(*text, names[m], length) != 0) continue;
        *out = (tr_recompute)m;
        *text += length;
        return true;
    }
    return false;
}

/* Reads the next item of *text, and moves behind it. Returns false after the last one, and with
 * *good false when it is malformed. */
static bool next_item(const char **text, item *out, bool *good) {
    const char *at = *text + strspn(*text, separators);
    *out = (item){.begin = at, .length = strcspn(at, separators)};
    const char *end = at + out->length;
    *text = end;
    if (out->length == 0) return false;
    *good = read_mode(&at, &out->mode);
    if (*good && at == end) {
        out->all = true;
        return true;
    }
    *good = *good && *at++ == ':' && tr_digits_read(&at, most_block, &out->first);
    out->last = out->first;
    if (*good && *at == '-') {
        at++;
        *good = tr_digits_read(&at, most_block, &out->last);
    }
    *good = *good && at == end;
    out->reversed = *good && out->first > out->last;
    *good = *good && !out->reversed;
    return *good;
}

tr_recompute tr_recompute_of(const char *text, int64_t block) {
    bool good = true;
    item part;
    while (next_item(&text, &part, &good))
        if (part.all || (part.first <= block && block <= part.last)) return part.mode;
    return TR_RECOMPUTE_NONE;
}

/* Fails when an earlier item of `text` names a block of this one. */
static tr_status check_overlap(const char *text, const item *own) {
    bool good = true;
    item other;
    while (next_item(&text, &other, &good) && other.begin < own->begin)
        if (own->all || other.all || (other.first <= own->last && own->first <= other.last))
            return TR_FAIL(TR_ERR_CONFIG,
                           "train.recompute names a block in '%.*s' and again in '%.*s': name each "
                           "block once",
                           (int)other.length, other.begin, (int)own->length, own->begin);
    return TR_OK;
}

tr_status tr_recompute_check(const char *text, int64_t blocks) {
    const char *rest = text;
    bool good = true;
    item part;
    if (strcmp(text, TR_RECOMPUTE_AUTO) == 0) return TR_OK;
    while (next_item(&rest, &part, &good)) {
        if (!part.all && part.last >= blocks)
            return TR_FAIL(TR_ERR_CONFIG,
                           "train.recompute names block %lld in '%.*s', but model.layers is %lld: "
                           "blocks are numbered from 0 to %lld",
                           (long long)part.last, (int)part.length, part.begin, (long long)blocks,
                           (long long)blocks - 1);
        TR_TRY(check_overlap(text, &part));
    }
    if (good) return TR_OK;
    if (part.reversed)
        return TR_FAIL(TR_ERR_CONFIG,
                       "train.recompute has its blocks in reverse in '%.*s': write %s:%lld-%lld",
                       (int)part.length, part.begin, names[part.mode], (long long)part.last,
                       (long long)part.first);
    return TR_FAIL(
        TR_ERR_CONFIG,
        "train.recompute must be none, selective, full, auto, or a list by block like "
        "full:0-5,selective:6-11, not '%.80s'%s",
        text,
        tr_nearest_hint(part.begin, strcspn(part.begin, word_ends), names, TR_RECOMPUTE_MODES + 1)
            .text);
}

tr_status tr_recompute_print(const uint8_t *mode, int64_t blocks, char text[TR_RECOMPUTE_TEXT]) {
    size_t used = 0;
    text[0] = '\0';
    for (int64_t first = 0, last; first < blocks; first = last + 1) {
        for (last = first; last + 1 < blocks && mode[last + 1] == mode[first];) last++;
        if (mode[first] == TR_RECOMPUTE_NONE) continue;
        int n;
        const char *comma = used > 0 ? "," : "", *name = names[mode[first]];
        const size_t room = TR_RECOMPUTE_TEXT - used;
        if (first == 0 && last == blocks - 1) n = snprintf(text, room, "%s", name);
        else if (first == last)
            n = snprintf(text + used, room, "%s%s:%lld", comma, name, (long long)first);
        else
            n = snprintf(text + used, room, "%s%s:%lld-%lld", comma, name, (long long)first,
                         (long long)last);
        if (n < 0 || (size_t)n >= room)
            return TR_FAIL(TR_ERR_CONFIG,
                           "the blocks' modes of train.recompute need more than %d characters: use "
                           "one mode for all blocks",
                           TR_RECOMPUTE_TEXT - 1);
        used += (size_t)n;
    }
    if (used == 0) (void)snprintf(text, TR_RECOMPUTE_TEXT, "%s", names[TR_RECOMPUTE_NONE]);
    return TR_OK;
}
