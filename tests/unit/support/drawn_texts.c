#include "support/drawn_texts.h"

#include "base/input.h"
#include "support/must.h"
#include "support/seed.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPACES = 33 /* the first fragments, each one white space */, REPEATS = 3 };

static const tr_input_limit limit = {.mib = 256, .failure = TR_ERR_DATA};

void drawn_path(const char *name, const char *end, char path[1024]) {
    const char *folder = getenv("TRIREME_GOLDEN_TOKENIZERS");
    (void)snprintf(path, 1024, "%s/%s%s", folder ? folder : TRIREME_TEST_GOLDEN "/tokenizers", name,
                   end);
}

void drawn_load(drawn_texts *texts) {
    char path[1024];
    size_t length;
    *texts = (drawn_texts){0};
    drawn_path("fragments", ".bin", path);
    must(tr_input_load("fragments", path, limit, &texts->bytes, &length));
    must(tr_input_load("prose", TRIREME_TEST_DATA "/devil.txt", limit, &texts->prose,
                       &texts->prose_length));
    for (size_t at = 0; at + 2 <= length && texts->count < 512;) {
        size_t bytes = (uint8_t)texts->bytes[at] | (size_t)(uint8_t)texts->bytes[at + 1] << 8;
        texts->fragment[texts->count] = texts->bytes + at + 2;
        texts->length[texts->count++] = bytes;
        at += 2 + bytes;
    }
}

void drawn_free(drawn_texts *texts) {
    free(texts->bytes);
    free(texts->prose);
}

size_t drawn_text(const drawn_texts *texts, uint64_t number, char out[DRAWN_MAX]) {
    uint64_t random = number;
    size_t length = 0;
    for (int64_t parts = tr_up_to(&random, 24) - 1; parts > 0; parts--) {
        int64_t kind = tr_up_to(&random, 10), repeats = 1, which;
        if (kind == 8) {
            uint32_t c = (uint32_t)tr_up_to(&random, 0x10FFFF);
            length +=
                tr_utf8_put(c < 0xD800 || c >= 0xE000 ? c : c - 0x800, (uint8_t *)out + length);
            continue;
        }
        if (kind > 8) {
            size_t at = (size_t)tr_up_to(&random, (int64_t)texts->prose_length - 40) - 1;
            size_t bytes = (size_t)tr_up_to(&random, 40);
            memcpy(out + length, texts->prose + at, bytes);
            length += bytes;
            continue;
        }
        which = tr_up_to(&random, kind <= 2 ? SPACES : texts->count) - 1;
        if (kind <= 2) repeats = tr_up_to(&random, REPEATS);
        for (; repeats > 0; repeats--) {
            memcpy(out + length, texts->fragment[which], texts->length[which]);
            length += texts->length[which];
        }
    }
    return length;
}
