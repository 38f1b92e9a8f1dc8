/* Random texts of many scripts, white space, control characters and emoji: those that
 * tests/golden/make_tokenizers.py draws. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { DRAWN_MAX = 4096 /* bytes of a text */ };

/* Fragments, and the prose that texts are cut from. */
typedef struct drawn_texts {
    const char *fragment[512];
    size_t length[512];
    int count;
    char *bytes, *prose;
    size_t prose_length;
} drawn_texts;

/* Writes the path of a golden file of tokenizers; TRIREME_GOLDEN_TOKENIZERS names another
 * folder. */
void drawn_path(const char *name, const char *end, char path[1024]);

/* Loads the fragments and the prose; the caller frees them with drawn_free(). Fails the test. */
void drawn_load(drawn_texts *texts);
void drawn_free(drawn_texts *texts);

/* Draws text `number` as make_tokenizers.py does; returns its bytes. It is UTF-8. */
size_t drawn_text(const drawn_texts *texts, uint64_t number, char out[DRAWN_MAX]);
