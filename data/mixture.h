/* The sequence of corpora of a mixture: after any number n of samples, a corpus with share s has
 * given more than s n - 1 and fewer than s n + 1 of them.
 *
 * Sample m of a corpus (from 0) with share s may come from place floor(m / s) on, and must come
 * before place ceil((m + 1) / s). Of the samples that may come, the one with the earliest end comes
 * next. A sequence that meets all these limits exists, since the shares add up to 1, and this rule
 * finds it (Baruah, Cohen, Plaxton & Varvel 1996: proportionate progress). The sequence repeats
 * after as many samples as the weights, in lowest terms, add up to. */
#pragma once

#include "base/status.h"
#include "data/paths.h"

#include <stdint.h>

/* A place in the sequence. A copy is another place. */
typedef struct tr_mixture {
    int parts;
    int64_t weight[TR_DATA_PARTS], total; /* in lowest terms */
    int64_t at, taken[TR_DATA_PARTS];     /* the place, and each corpus's samples before it */
} tr_mixture;

/* The longest sequence without a repetition: it is walked to find a place in it. */
enum { TR_MIXTURE_PERIOD = 10000000 };

/* Begins a sequence with these weights (>= 0, and one of them above 0; one corpus may have any). A
 * corpus of several with weight 0 has no samples. Fails with TR_ERR_CONFIG when the sequence
 * repeats after more than TR_MIXTURE_PERIOD samples. */
tr_status tr_mixture_begin(const int64_t *weight, int parts, tr_mixture *out);
/* Moves to a place; forward it takes as many steps as places, at most a period. */
void tr_mixture_seek(tr_mixture *mixture, int64_t place);
/* Returns the corpus of the sample at this place; its number among the corpus's samples is
 * mixture->taken[corpus]. */
int tr_mixture_part(const tr_mixture *mixture);
