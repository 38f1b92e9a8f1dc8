#include "train/sampling.h"

#include "base/philox.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* The largest logits, taken from a heap as far as they are asked for: mostly a few of a large
 * vocabulary. value[count - 1 - j] is the j-th largest for j < taken, and the others, in front of
 * them, are a heap with the largest first. */
typedef struct ranking {
    double *value;
    int64_t count, taken;
} ranking;

/* Moves the value at `at` down to its place in the heap of `count` values. */
static void sift_down(double *heap, int64_t count, int64_t at) {
    const double value = heap[at];
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static ranking begin_ranking(double *value, int64_t count) {
    for (int64_t at = count / 2 - 1; at >= 0; at--) sift_down(value, count, at);
    return (ranking){.value = value, .count = count};
}

/* Returns the j-th largest, from 0. */
static double ranked(ranking *r, int64_t j) {
    for (; r->taken <= j; r->taken++) {
        const int64_t last = r->count - 1 - r->taken;
        const double largest = r->value[0];
        r->value[0] = r->value[last];
        sift_down(r->value, last, 0);
        r->value[last] = largest;
    }
    return r->value[r->count - 1 - j];
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

/* Returns the smallest logit that all rules keep. logits: divided by the temperature, the largest
 * one 0; scratch[vocab] is used. */
static double threshold(const tr_sampling *o, const double *logits, double *scratch,
                        int64_t vocab) {
    const bool by_count = o->top_k > 0 && o->top_k < vocab;
    const bool by_mass = o->top_p > 0 && o->top_p < 1;
    double least = -INFINITY;
    ranking largest = {0};
    if (by_count || by_mass) {
        memcpy(scratch, logits, (size_t)vocab * sizeof *logits);
        largest = begin_ranking(scratch, vocab);
    }
    if (by_count) least = ranked(&largest, o->top_k - 1);
    if (by_mass) {
        double sum = 0, part = 0;
        for (int64_t i = 0; i < vocab; i++)
            if (logits[i] >= least) sum += exp(logits[i]);
        int64_t last = 0;
        for (; last < vocab - 1; last++) {
            part += exp(ranked(&largest, last));
            if (part >= o->top_p * sum) break;
        }
        least = fmax(least, ranked(&largest, last));
    }
    /* min_p is of probabilities, and exp of a logit is the share of the largest one. */
    if (o->min_p > 0) least = fmax(least, log(o->min_p < 1 ? o->min_p : 1));
    return least;
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
    const double least = threshold(o, logits, scratch, vocab);
    double sum = 0;
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
