/* Measures how fast initial values are drawn: nanoseconds a value on 1 and on 2 threads, and the
 * speed-up, for each rule. Rounds alternate between 1 and 2 threads; the best round counts.
 *
 * Usage: bench_param [rounds] */
#include "bench/measure.h"
#include "layers/param_impl.h"

#include <stdio.h>

enum { ROWS = 4096, COLUMNS = 1024, THREADS = 2 };

static void measure(const char *name, tr_init init, int rounds, float *values) {
    const int64_t shape[] = {ROWS, COLUMNS};
    double best[THREADS] = {1e9, 1e9};
    tr_param param;
    if (tr_param_describe(&param, 2, shape, init, 0.02f, "%s", name) != TR_OK) exit(70);
    for (int i = 0; i < rounds * THREADS; i++) {
        double start = tr_now_s();
        tr_param_init(&param, 1, i % THREADS + 1, values);
        double took = (tr_now_s() - start) / ((double)(ROWS * COLUMNS));
        if (took < best[i % THREADS]) best[i % THREADS] = took;
    }
    tr_params_release(&param, 1);
    printf("%-8s %10.2f %10.2f %8.2f\n", name, best[0] * 1e9, best[1] * 1e9, best[0] / best[1]);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 7;
    float *values = calloc((size_t)ROWS * COLUMNS, sizeof *values);
    if (!values || rounds < 1) {
        fprintf(stderr, "usage: bench_param [rounds, 1 or more]\n");
        return 64;
    }
    printf("%-8s %10s %10s %8s\n", "rule", "1: ns", "2: ns", "times");
    measure("normal", TR_INIT_NORMAL, rounds, values);
    measure("one", TR_INIT_ONE, rounds, values);
    measure("zero", TR_INIT_ZERO, rounds, values);
    free(values);
    return 0;
}
