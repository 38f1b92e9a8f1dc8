/* The rate at which one core reads memory: the best of ROUNDS sums over a buffer that no cache
 * holds. The bound of decoding one text, which reads every weight once a token.
 *
 *   bench_read */
#include "base/memory.h"
#include "bench/measure.h"

#include <stdint.h>
#include <stdio.h>

enum { MIB = 1024, ROUNDS = 9, LANES = 16 };

int main(void) {
    const size_t count = (size_t)MIB << 20 >> 3;
    uint64_t *words, sum[LANES] = {0}, all = 0;
    double best = 1e30;
    if (tr_calloc(count, sizeof *words, &words) != TR_OK) {
        fprintf(stderr, "bench_read: %s\n", tr_error_message());
        return 1;
    }
    for (size_t i = 0; i < count; i++) words[i] = i;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = tr_now_s();
        for (size_t i = 0; i < count; i += LANES)
            for (size_t k = 0; k < LANES; k++) sum[k] += words[i + k];
        const double seconds = tr_now_s() - start;
        if (seconds < best) best = seconds;
    }
    for (size_t k = 0; k < LANES; k++) all += sum[k];
    printf("read %.2f GB/s (sum %llx)\n", (double)(count * sizeof *words) / best * 1e-9,
           (unsigned long long)all);
    free(words);
    return 0;
}
