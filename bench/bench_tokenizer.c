/* Encoding speed on one core.
 *
 * usage: bench_tokenizer TOKENIZER FILE [REPEATS]
 *
 * Prints the time to open the tokenizer, and the best and the median rate of encoding the file as
 * one text, in MB (10^6 bytes) per second of processor time. bench/encode_peers.py compares with
 * tiktoken and tokenizers. */
#include "base/input.h"
#include "bench/measure.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static tr_status measure(const tr_tokenizer *t, const char *text, size_t length, int repeats) {
    enum { MOST = 100 };
    double seconds[MOST];
    tr_encoder *encoder;
    tr_token_list ids = {0};
    tr_status status = TR_OK;
    if (repeats > MOST) repeats = MOST;
    for (int i = 0; i < repeats && status == TR_OK; i++) {
        TR_TRY(tr_encoder_open(t, &encoder)); /* an empty cache each time */
        ids.count = 0;
        double start = tr_clock_s(CLOCK_THREAD_CPUTIME_ID);
        status = tr_encoder_add(encoder, text, length, TR_ENCODE_NO_SPECIAL, &ids);
        seconds[i] = tr_clock_s(CLOCK_THREAD_CPUTIME_ID) - start;
        tr_encoder_close(encoder);
    }
    const double mb = 1e-6 * (double)length, median = bench_median(seconds, repeats);
    if (status == TR_OK)
        printf("encode   %.1f MB, %zu tokens: best %.1f MB/s, median %.1f MB/s\n", mb, ids.count,
               mb / seconds[0], mb / median);
    free(ids.id);
    return status;
}

int main(int argc, char **argv) {
    const tr_input_limit limit = {.mib = 4096, .failure = TR_ERR_DATA};
    tr_tokenizer *t = NULL;
    char *text = NULL;
    size_t length;
    int repeats = argc > 3 ? atoi(argv[3]) : 5;
    if (argc < 3 || repeats < 1) {
        (void)fprintf(stderr, "usage: bench_tokenizer TOKENIZER FILE [REPEATS]\n");
        return TR_ERR_USAGE;
    }
    double start = tr_clock_s(CLOCK_THREAD_CPUTIME_ID);
    tr_status status = tr_tokenizer_open(argv[1], &t);
    if (status == TR_OK) {
        printf("open     %d tokens, %.3f s\n", tr_tokenizer_size(t),
               tr_clock_s(CLOCK_THREAD_CPUTIME_ID) - start);
        status = tr_input_load("the text", argv[2], limit, &text, &length);
    }
    if (status == TR_OK) status = measure(t, text, length, repeats);
    if (status != TR_OK) (void)fprintf(stderr, "bench_tokenizer: %s\n", tr_error_message());
    free(text);
    tr_tokenizer_close(t);
    return (int)status;
}
