#include "train/sampling.h"

#include "base/philox.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static int32_t most_probable(const double *logits, int64_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Penalises each token of the text once, however often the text has it. */
static void penalise(double penalty, double *logits, double *done, int64_t vocab,
                     const int32_t *seen, int64_t count) {
    if (penalty == 0 || penalty == 1) return;
    memset(done, 0, (size_t)vocab * sizeof *done);
    for (int64_t i = 0; i < count; i++) {
        const int32_t token = seen[i];
        if (done[token] != 0) continue;
        done[token] = 1;
        logits[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
    }
}

/* Returns the smallest logit, already divided by the temperature, that all rules keep. sorted: the
 * logits in descending order. */
static double threshold(const tr_sampling *o, const double *sorted, int64_t vocab) {
    const double top = sorted[0];
    double least = -INFINITY;
    if (o->top_k > 0 && o->top_k < vocab) least = sorted[o->top_k - 1];
    if (o->top_p > 0 && o->top_p < 1) {
        double sum = 0, part = 0;
        for (int64_t i = 0; i < vocab && sorted[i] >= least; i++) sum += exp(sorted[i] - top);
        int64_t last = 0;
        for (; last < vocab - 1; last++) {
            part += exp(sorted[last] - top);
            if (part >= o->top_p * sum) break;
        }
        if (sorted[last] > least) least = sorted[last];
    }
    if (o->min_p > 0) {
        /* min_p is of probabilities, and exp(x - top) is the share of the largest one. */
        double share = top + log(o->min_p < 1 ? o->min_p : 1);
        if (share > least) least = share;
    }
    return least;
}

static bool narrows(const tr_sampling *o, int64_t vocab) {
    return (o->top_k > 0 && o->top_k < vocab) || (o->top_p > 0 && o->top_p < 1) || o->min_p > 0;
}

int32_t tr_sampling_draw(const tr_sampling *o, double *logits, double *scratch, int64_t vocab,
                         const int32_t *seen, int64_t count, uint64_t row, uint64_t n) {
    for (int64_t i = 0; i < vocab; i++)
        if (!isfinite(logits[i])) return -1;
    penalise(o->repetition_penalty, logits, scratch, vocab, seen, count);
    const int32_t best = most_probable(logits, vocab);
    if (o->temperature <= 0) return best;
    const double top = logits[best];
    for (int64_t i = 0; i < vocab; i++) logits[i] = (logits[i] - top) / o->temperature;
    double least = -INFINITY, sum = 0;
    if (narrows(o, vocab)) {
        memcpy(scratch, logits, (size_t)vocab * sizeof *logits);
        qsort(scratch, (size_t)vocab, sizeof *scratch, descending);
        least = threshold(o, scratch, vocab);
    }
    for (int64_t i = 0; i < vocab; i++)
        if (logits[i] >= least) sum += exp(logits[i]);
    const tr_philox random = tr_philox4x32(tr_mix64(o->seed), n, row);
    double left = (double)tr_uniform(random.v[0]) * sum;
    int32_t token = best;
    for (int32_t i = 0; i < vocab && left > 0; i++) {
        if (logits[i] < least) continue;
        left -= exp(logits[i]);
        token = i;
    }
    return token;
}
