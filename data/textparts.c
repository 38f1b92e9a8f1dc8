#include "data/textparts.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK = 1 << 12,     /* bytes behind a part that are searched for a cut at first */
    MOST_TEXT = 1 << 29 /* of a part */
};

tr_status tr_textparts_open(const char *path, tr_textparts *parts) {
    tr_textfile_close(parts->input);
    parts->input = NULL;
    parts->path = path;
    parts->json = tr_textfile_is_json_lines(path);
    parts->at_end = false;
    parts->rest.count = 0;
    return tr_textfile_open(path, &parts->input);
}

void tr_textparts_close(tr_textparts *parts) {
    tr_textfile_close(parts->input);
    free(parts->rest.byte);
    *parts = (tr_textparts){.read = parts->read};
}

bool tr_textparts_at_end(const tr_textparts *parts) {
    return parts->at_end && parts->rest.count == 0;
}

/* Reads until `want` bytes wait for a part, or the file ends. */
static tr_status read_more(tr_textparts *p, size_t want) {
    tr_byte_list *rest = &p->rest;
    if (p->at_end || rest->count >= want) return TR_OK;
    size_t got, missing = want - rest->count;
    TR_TRY(tr_grow(&rest->byte, &rest->capacity, want, 1));
    TR_TRY(tr_textfile_read(p->input, rest->byte + rest->count, missing, &got));
    rest->count += got;
    p->read += (int64_t)got;
    p->at_end = got < missing;
    return TR_OK;
}

tr_status tr_textparts_find(tr_textparts *p, tr_encoder *encoder, unsigned flags, size_t *bytes,
                            unsigned *next) {
    size_t from = TR_TEXTPART;
    *next = 0;
    for (size_t want = TR_TEXTPART + LOOK;; want *= 2) {
        TR_TRY(read_more(p, want));
        const char *text = p->rest.byte;
        const size_t count = *bytes = p->rest.count;
        if (p->at_end && (p->json || count <= TR_TEXTPART)) return TR_OK;
        if (p->json) {
            const char *line = memrchr(text, '\n', count);
            if (line) *bytes = (size_t)(line + 1 - text);
        } else {
            TR_TRY(tr_textparts_failed(
                tr_encoder_find_cut(encoder, text, count, from, flags, bytes, next), p->path, 0));
            from = count - LOOK / 2; /* the rest was too near to the end to be judged */
        }
        if (*bytes < count || (p->json && *bytes > 0 && text[*bytes - 1] == '\n') || p->at_end)
            return TR_OK;
        if (want > MOST_TEXT)
            return TR_FAIL(TR_ERR_DATA, "'%s' has %zu bytes of text without a %s: divide them",
                           p->path, count,
                           p->json ? "line end" : "place where this tokenizer allows a cut");
    }
}

tr_status tr_textparts_failed(tr_status status, const char *path, int64_t line) {
    if (status != TR_ERR_DATA) return status;
    char where[32] = "", why[1024];
    if (line > 0) (void)snprintf(where, sizeof where, ", line %" PRId64, line);
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    return TR_FAIL(TR_ERR_DATA, "'%s'%s: %s", path, where, why);
}

void tr_textparts_take(tr_textparts *p, size_t bytes) {
    p->rest.count -= bytes;
    if (p->rest.count > 0) memmove(p->rest.byte, p->rest.byte + bytes, p->rest.count);
}
