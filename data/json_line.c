#include "data/json_line.h"

#include "base/json_scan.h"

#include <string.h>

/* Reads the object's members, and the wanted one to out->text. */
static bool read_object(tr_scan *s, const char *key, char *buffer, tr_jsonl *out) {
    const size_t wanted = strlen(key);
    if (!tr_scan_take(s, '{', "a line is one JSON object, which begins with {")) return false;
    tr_scan_space(s);
    for (bool first = true; tr_scan_peek(s) != '}'; first = false) {
        size_t length;
        if (!first && !tr_scan_take(s, ',', "a comma is missing")) return false;
        /* A name never reaches the text, because the text is written where it is found again. */
        if (!tr_scan_string(s, buffer, &length)) return false;
        const bool found = length == wanted && memcmp(buffer, key, wanted) == 0;
        if (!tr_scan_take(s, ':', "a colon is missing")) return false;
        tr_scan_space(s);
        out->at = found ? s->at : out->at;
        if (found && tr_scan_peek(s) != '"') return tr_scan_wrong(s, "the value is not a string");
        if (!tr_scan_value(s, 1)) return false;
        if (found) out->text = buffer;
        tr_scan_space(s);
    }
    s->at++;
    tr_scan_space(s);
    return s->at == s->length || tr_scan_wrong(s, "text after the object");
}

bool tr_jsonl_read(const char *line, size_t length, const char *key, char *buffer, tr_jsonl *out) {
    tr_scan s = {.line = line, .length = length};
    *out = (tr_jsonl){0};
    bool good = read_object(&s, key, buffer, out);
    if (good && !out->text) {
        s.at = 0;
        good = tr_scan_wrong(&s, "the object does not have that key");
    }
    if (!good) {
        out->fault = s.fault;
        out->at = s.fault_at;
        return false;
    }
    s.at = out->at;
    return tr_scan_string(&s, buffer, &out->length);
}

bool tr_jsonl_is_empty(const char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}
