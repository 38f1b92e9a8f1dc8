#include "data/mixture.h"

#include <inttypes.h>

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

tr_status tr_mixture_begin(const int64_t *weight, int parts, tr_mixture *out) {
    int64_t divisor = 0;
    *out = (tr_mixture){.parts = parts};
    for (int p = 0; p < parts; p++) divisor = common_divisor(weight[p], divisor);
    for (int p = 0; p < parts; p++) {
        out->weight[p] = parts == 1 ? 1 : weight[p] / divisor;
        out->total += out->weight[p];
    }
    if (out->total > TR_MIXTURE_PERIOD)
        return TR_FAIL(TR_ERR_CONFIG,
                       "the weights of data.path repeat only after %" PRId64
                       " samples: write them with fewer digits",
                       out->total);
    return TR_OK;
}

int tr_mixture_part(const tr_mixture *m) {
    int best = -1;
    int64_t end = 0;
    const int64_t period = m->at / m->total,
                  at = m->at % m->total; /* so that no product overflows */
    for (int p = 0; p < m->parts; p++) {
        const int64_t weight = m->weight[p], taken = m->taken[p] - period * weight;
        if (taken * m->total >= (at + 1) * weight) continue; /* taken / share < at + 1 */
        int64_t limit = ((taken + 1) * m->total + weight - 1) / weight;
        if (best >= 0 && limit >= end) continue;
        best = p;
        end = limit;
    }
    return best;
}

void tr_mixture_seek(tr_mixture *m, int64_t place) {
    const int64_t period = place / m->total;
    if (place < m->at || period > m->at / m->total) {
        /* Before the first sample of a period every corpus has its exact share. */
        m->at = period * m->total;
        for (int p = 0; p < m->parts; p++) m->taken[p] = period * m->weight[p];
    }
    while (m->at < place) {
        m->taken[tr_mixture_part(m)]++;
        m->at++;
    }
}
