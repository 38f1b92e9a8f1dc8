#include "text/added.h"

#include "base/memory.h"
#include "text/unicode.h"

#include <stdlib.h>

/* A node of the tree of texts: the children of a node are a chain. Node 0 is the root. */
typedef struct node {
    uint32_t child, sibling; /* 0: none */
    int32_t token;           /* that ends here; -1: none */
    uint8_t byte;
} node;

struct tr_added_set {
    const uint8_t *table;
    node *nodes;
    size_t count, capacity;
    tr_added_token *tokens;
    size_t token_count, token_capacity;
    uint32_t first[256]; /* the root's children */
    /* Bytes that are neighbours in a token, and those of its ends where a cut may matter. */
    uint64_t neighbours[256][4];
    bool begins[256], ends[256];
    bool takes_space; /* a token takes the white space next to it along */
};

tr_status tr_added_open(const uint8_t *table, tr_added_set **out) {
    TR_TRY(tr_calloc(1, sizeof **out, out));
    (*out)->table = table;
    tr_status status = tr_grow(&(*out)->nodes, &(*out)->capacity, 1, sizeof(node));
    if (status != TR_OK) {
        free(*out);
        *out = NULL;
        return status;
    }
    (*out)->nodes[0] = (node){.token = -1};
    (*out)->count = 1;
    return TR_OK;
}

void tr_added_close(tr_added_set *set) {
    if (!set) return;
    free(set->nodes);
    free(set->tokens);
    free(set);
}

static uint32_t child_of(const tr_added_set *set, uint32_t at, uint8_t byte) {
    if (at == 0) return set->first[byte];
    uint32_t child = set->nodes[at].child;
    while (child && set->nodes[child].byte != byte) child = set->nodes[child].sibling;
    return child;
}

static void note_bytes(tr_added_set *set, const uint8_t *text, size_t length,
                       const tr_added_token *token) {
    for (size_t i = 0; i + 1 < length; i++)
        set->neighbours[text[i]][text[i + 1] / 64] |= (uint64_t)1 << text[i + 1] % 64;
    set->begins[text[0]] |= token->single_word || token->lstrip;
    set->ends[text[length - 1]] = true; /* text behind a token gets what is put in front of texts */
    set->takes_space |= token->lstrip || token->rstrip;
}

bool tr_added_keeps_apart(const tr_added_set *set, uint8_t left, bool left_is_space,
                          uint8_t right) {
    if (!set) return true;
    return !(set->neighbours[left][right / 64] >> right % 64 & 1) && !set->begins[right] &&
           !set->ends[left] && !(set->takes_space && left_is_space);
}

tr_status tr_added_add(tr_added_set *set, const char *text, size_t length,
                       const tr_added_token *token) {
    if (!length) return TR_OK;
    uint32_t at = 0;
    note_bytes(set, (const uint8_t *)text, length, token);
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i];
        uint32_t child = child_of(set, at, byte);
        if (!child) {
            TR_TRY(tr_grow(&set->nodes, &set->capacity, set->count + 1, sizeof *set->nodes));
            child = (uint32_t)set->count++;
            set->nodes[child] =
                (node){.sibling = at ? set->nodes[at].child : 0, .token = -1, .byte = byte};
            if (at) set->nodes[at].child = child;
            else set->first[byte] = child;
        }
        at = child;
    }
    if (set->nodes[at].token >= 0) return TR_OK;
    TR_TRY(tr_grow(&set->tokens, &set->token_capacity, set->token_count + 1, sizeof *set->tokens));
    set->tokens[set->token_count] = *token;
    set->nodes[at].token = (int32_t)set->token_count++;
    return TR_OK;
}

/* Finds the longest token at `at`; returns its bytes, 0 for none. */
static size_t longest_at(const tr_added_search *s, size_t at, const tr_added_token **token) {
    size_t bytes = 0;
    uint32_t from = 0;
    for (size_t i = at; i < s->length; i++) {
        from = child_of(s->set, from, s->text[i]);
        if (!from) break;
        if (s->set->nodes[from].token < 0) continue;
        bytes = i + 1 - at;
        *token = &s->set->tokens[s->set->nodes[from].token];
    }
    return bytes;
}

static unsigned set_after(const tr_added_search *s, size_t at, size_t *bytes) {
    uint32_t cp;
    *bytes = tr_utf8_next(s->text + at, s->text + s->length, &cp);
    return s->set->table[cp];
}

static unsigned set_before(const tr_added_search *s, size_t at, size_t *bytes) {
    uint32_t cp;
    for (size_t back = 4; back > 1; back--)
        if (back <= at && tr_utf8_next(s->text + at - back, s->text + at, &cp) == back) {
            *bytes = back;
            return s->set->table[cp];
        }
    *bytes = 1;
    (void)tr_utf8_next(s->text + at - 1, s->text + at, &cp);
    return s->set->table[cp];
}

static bool is_single_word(const tr_added_search *s, size_t from, size_t to) {
    size_t bytes;
    return !(from > 0 && set_before(s, from, &bytes) & TR_CP_WORD) &&
           !(to < s->length && set_after(s, to, &bytes) & TR_CP_WORD);
}

int32_t tr_added_next(tr_added_search *s, size_t *from, size_t *to) {
    *from = s->done;
    while (s->at < s->length) {
        const tr_added_token *token = NULL;
        size_t start = s->at, bytes = 0;
        if (s->set->first[s->text[start]]) bytes = longest_at(s, start, &token);
        if (!bytes) {
            s->at++;
            continue;
        }
        size_t end = start + bytes;
        s->at = end; /* the next search begins here, whatever becomes of this token */
        if (s->no_special && token->special) continue;
        if (token->single_word && !is_single_word(s, start, end)) continue;
        if (token->lstrip)
            while (start > s->done && set_before(s, start, &bytes) & TR_CP_SPACE) start -= bytes;
        if (token->rstrip)
            while (end < s->length && set_after(s, end, &bytes) & TR_CP_SPACE) end += bytes;
        if (token->lstrip && start < s->done) start = s->done;
        if (start >= end) continue; /* the token before it took all of its text along */
        *to = start > s->done ? start : s->done;
        s->done = end;
        return token->id;
    }
    *to = s->length > s->done ? s->length : s->done;
    s->done = s->length;
    return -1;
}

int32_t tr_added_find(const tr_added_set *set, const char *text, size_t length) {
    uint32_t at = 0;
    for (size_t i = 0; i < length; i++) {
        at = child_of(set, at, (uint8_t)text[i]);
        if (!at) return -1;
    }
    return at && set->nodes[at].token >= 0 ? set->tokens[set->nodes[at].token].id : -1;
}
