#include "data/conversation.h"

#include "base/json_scan.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct role_word {
    const char *word;
    tr_role role;
} role_word;

static const role_word roles[] = {
    {"system", TR_ROLE_SYSTEM},       {"user", TR_ROLE_USER},     {"human", TR_ROLE_USER},
    {"assistant", TR_ROLE_ASSISTANT}, {"gpt", TR_ROLE_ASSISTANT},
};

/* A string of the object that may be missing. */
typedef struct text {
    const char *begin; /* NULL: missing */
    size_t length;
} text;

typedef struct reader {
    tr_scan scan;
    char *to; /* the next string's place: never ahead of the scanner's place in the line */
    tr_conversation *out;
    tr_status status; /* of memory */
    bool messages;    /* the object has a list of them */
    text prompt, answer;
    const char *no_text; /* what is wrong with prompt or answer; it counts without messages */
    size_t no_text_at;
} reader;

static bool is(const text *t, const char *word) {
    return t->length == strlen(word) && memcmp(t->begin, word, t->length) == 0;
}

static bool read_text(reader *r, text *out) {
    out->begin = r->to;
    if (!tr_scan_string(&r->scan, r->to, &out->length)) return false;
    r->to += out->length;
    return true;
}

/* Reads the name of a member, which the next string may overwrite, and the colon. */
static bool read_name(reader *r, text *name) {
    char *before = r->to;
    bool good = read_text(r, name) && tr_scan_take(&r->scan, ':', "a colon is missing");
    tr_scan_space(&r->scan);
    r->to = before;
    return good;
}

static bool read_role(reader *r, tr_role *role) {
    char *before = r->to;
    text word;
    const size_t at = r->scan.at;
    if (!read_text(r, &word)) return false;
    r->to = before;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (is(&word, roles[i].word)) {
            *role = roles[i].role;
            return true;
        }
    r->scan.at = at;
    return tr_scan_wrong(&r->scan, "a role is system, user or assistant");
}

static bool read_message(reader *r) {
    tr_scan *s = &r->scan;
    const size_t begin = s->at;
    text name, content = {0};
    tr_role role = TR_ROLE_SYSTEM;
    bool more, has_role = false;
    if (!tr_scan_take(s, '{', "a message is an object, which begins with {")) return false;
    for (bool first = true; tr_scan_next(s, '}', first, &more) && more; first = false) {
        if (!read_name(r, &name)) return false;
        const bool is_role = is(&name, "role") || is(&name, "from");
        const bool is_content = is(&name, "content") || is(&name, "value");
        if (is_content && tr_scan_peek(s) != '"')
            return tr_scan_wrong(s, "the content of a message is not a string");
        if (is_role) has_role = true;
        if (!(is_role      ? read_role(r, &role)
              : is_content ? read_text(r, &content)
                           : tr_scan_value(s, 3)))
            return false;
    }
    if (s->fault) return false;
    if (!has_role || !content.begin) {
        s->at = begin;
        return tr_scan_wrong(s, "a message needs a role and a content");
    }
    tr_conversation *c = r->out;
    r->status = tr_grow(&c->turn, &c->capacity, c->count + 1, sizeof *c->turn);
    if (r->status != TR_OK) return false;
    c->turn[c->count++] = (tr_turn){role, content.begin, content.length};
    return true;
}

static bool read_messages(reader *r) {
    bool more;
    r->out->count = 0;
    r->messages = true;
    if (!tr_scan_take(&r->scan, '[', "messages are a list, which begins with [")) return false;
    for (bool first = true; tr_scan_next(&r->scan, ']', first, &more) && more; first = false) {
        tr_scan_space(&r->scan);
        if (!read_message(r)) return false;
    }
    return !r->scan.fault;
}

/* Reads prompt or answer; a value that is no string counts only without messages. */
static bool read_side(reader *r, text *side) {
    if (tr_scan_peek(&r->scan) == '"') return read_text(r, side);
    r->no_text = "prompt and answer must be strings";
    r->no_text_at = r->scan.at;
    return tr_scan_value(&r->scan, 1);
}

static bool read_object(reader *r) {
    tr_scan *s = &r->scan;
    text name;
    bool more;
    if (!tr_scan_take(s, '{', "a line is one JSON object, which begins with {")) return false;
    for (bool first = true; tr_scan_next(s, '}', first, &more) && more; first = false) {
        if (!read_name(r, &name)) return false;
        const bool answers =
            is(&name, "answer") || is(&name, "completion") || is(&name, "response");
        if (!(is(&name, "messages") || is(&name, "conversations") ? read_messages(r)
              : is(&name, "prompt")                               ? read_side(r, &r->prompt)
              : answers                                           ? read_side(r, &r->answer)
                                                                  : tr_scan_value(s, 1)))
            return false;
    }
    if (s->fault) return false;
    tr_scan_space(s);
    return s->at == s->length || tr_scan_wrong(s, "text after the object");
}

/* Makes the prompt and the answer two turns. */
static bool take_pair(reader *r) {
    const char *fault = r->no_text;
    r->scan.at = fault ? r->no_text_at : 0;
    if (!fault && !r->prompt.begin && !r->answer.begin)
        fault = "the object has neither \"messages\" nor \"prompt\" and \"answer\"";
    else if (!fault && !r->prompt.begin) fault = "the object has an answer without \"prompt\"";
    else if (!fault && !r->answer.begin)
        fault = "the object has \"prompt\" without \"answer\", \"completion\" or \"response\"";
    if (fault) return tr_scan_wrong(&r->scan, fault);
    tr_conversation *c = r->out;
    r->status = tr_grow(&c->turn, &c->capacity, 2, sizeof *c->turn);
    if (r->status != TR_OK) return false;
    c->turn[0] = (tr_turn){TR_ROLE_USER, r->prompt.begin, r->prompt.length};
    c->turn[1] = (tr_turn){TR_ROLE_ASSISTANT, r->answer.begin, r->answer.length};
    c->count = 2;
    c->pair = true;
    return true;
}

tr_status tr_conversation_read(const char *line, size_t length, tr_conversation *out) {
    out->count = 0;
    out->pair = false;
    TR_TRY(tr_grow(&out->buffer, &out->room, length + 1, 1));
    reader r = {.scan = {.line = line, .length = length}, .to = out->buffer, .out = out};
    if (read_object(&r) && (r.messages || take_pair(&r))) return TR_OK;
    TR_TRY(r.status);
    return TR_FAIL(TR_ERR_DATA, "byte %zu: %s", r.scan.fault_at + 1, r.scan.fault);
}

void tr_conversation_free(tr_conversation *c) {
    free(c->turn);
    free(c->buffer);
    *c = (tr_conversation){0};
}

const char *tr_role_name(tr_role role) {
    static const char *const names[] = {"system", "user", "assistant"};
    return names[role];
}
