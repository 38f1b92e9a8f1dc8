/* Encodes records with a tokenizer, for comparisons with other programs by hand.
 *
 * usage: token_ids TOKENIZER RECORDS [--no-special] [--template] [--decode] >IDS
 *
 * RECORDS: for each text its length (4 bytes, little-endian) and its bytes. IDS: for each text the
 * number of its ids and the ids, 4 bytes each. --decode: checks that decoding gives the text back,
 * and writes texts as RECORDS has them instead. */
#include "base/input.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tr_status convert(const tr_tokenizer *t, const char *records, size_t length, unsigned flags,
                         bool decodes) {
    tr_encoder *encoder;
    tr_token_list ids = {0};
    tr_byte_list text = {0};
    TR_TRY(tr_encoder_open(t, &encoder));
    tr_status status = TR_OK;
    for (size_t at = 0; at + 4 <= length && status == TR_OK;) {
        uint32_t bytes;
        memcpy(&bytes, records + at, sizeof bytes);
        at += sizeof bytes;
        if (bytes > length - at) break;
        ids.count = text.count = 0;
        status = tr_encoder_add(encoder, records + at, bytes, flags, &ids);
        if (status == TR_OK) status = tr_tokenizer_decode(t, ids.id, ids.count, 0, &text);
        uint32_t count = (uint32_t)(decodes ? text.count : ids.count);
        (void)fwrite(&count, sizeof count, 1, stdout);
        if (decodes) (void)fwrite(text.byte, 1, text.count, stdout);
        else (void)fwrite(ids.id, sizeof *ids.id, ids.count, stdout);
        at += bytes;
    }
    tr_encoder_close(encoder);
    free(ids.id);
    free(text.byte);
    return status;
}

int main(int argc, char **argv) {
    const tr_input_limit limit = {.mib = 4096, .failure = TR_ERR_DATA};
    tr_tokenizer *t = NULL;
    char *records = NULL;
    size_t length;
    unsigned flags = 0;
    bool decodes = false;
    if (argc < 3) return TR_ERR_USAGE;
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--no-special")) flags |= TR_ENCODE_NO_SPECIAL;
        if (!strcmp(argv[i], "--template")) flags |= TR_ENCODE_TEMPLATE;
        if (!strcmp(argv[i], "--decode")) decodes = true;
    }
    tr_status status = tr_tokenizer_open(argv[1], &t);
    if (status == TR_OK) status = tr_input_load("the records", argv[2], limit, &records, &length);
    if (status == TR_OK) status = convert(t, records, length, flags, decodes);
    if (status != TR_OK) (void)fprintf(stderr, "token_ids: %s\n", tr_error_message());
    free(records);
    tr_tokenizer_close(t);
    return (int)status;
}
