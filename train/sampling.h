/* The choice of the next token from the logits of all tokens. */
#pragma once

#include <stdint.h>

/* The values that switch a rule off are in brackets. The rules apply in this order, as in
 * transformers, and min_p, top_k and top_p keep at least the most probable token. */
typedef struct tr_sampling {
    /* A logit of a token that the text already has is divided by this if it is positive, and
     * multiplied if negative (Keskar et al. 2019, section 4.1) [1; 0 means 1]. */
    double repetition_penalty;
    double temperature; /* divides the logits; 0: the most probable token, the first of equals */
    int64_t top_k;      /* keeps the tokens with a logit of at least the k-th largest [0] */
    /* Keeps the fewest tokens that have at least top_p of the probability together, and all that
     * are as probable as the last of them (Holtzman et al. 2020, section 3.1) [1; 0 means 1]. */
    double top_p;
    /* Keeps tokens with at least this share of the largest probability (Nguyen et al. 2024) [0]. */
    double min_p;
    uint64_t seed;
} tr_sampling;

/* Draws the n-th token of text `row`: a function of the arguments. logits[vocab] is changed;
 * scratch[vocab] is used. seen[count]: the tokens of the text so far, within 0..vocab-1. Returns -1
 * when a logit is NaN or infinite. */
int32_t tr_sampling_draw(const tr_sampling *options, double *logits, double *scratch, int64_t vocab,
                         const int32_t *seen, int64_t count, uint64_t row, uint64_t n);
