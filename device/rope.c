#include "device/rope.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Llama 3.1's scaling (Grattafiori et al. 2024, as published with the model): wavelengths longer
 * than original / low_factor are stretched by `factor`, those shorter than original / high_factor
 * stay, and between the two the frequency goes linearly in original / wavelength. */
static double llama3_frequency(const tr_rope_scaling *s, double frequency) {
    double turns = (double)s->original * frequency / (2 * pi);
    if (turns < s->low_factor) return frequency / s->factor;
    if (turns > s->high_factor) return frequency;
    double kept = (turns - s->low_factor) / (s->high_factor - s->low_factor);
    return (1 - kept) * frequency / s->factor + kept * frequency;
}

/* The pair, as a real number, that makes `rotations` turns within the original context (Peng et al.
 * 2023, "YaRN", section 3.2). */
static double yarn_pair(const tr_rope_desc *d, double rotations) {
    return (double)d->head_size * log((double)d->scaling.original / (rotations * 2 * pi)) /
           (2 * log(d->theta));
}

/* YaRN: pairs that turn more than beta_fast times stay, those that turn less than beta_slow times
 * are stretched, and between the two the share is linear in the pair's index, with integer
 * limits. */
static double yarn_frequency(const tr_rope_desc *d, int64_t pair, double frequency) {
    const tr_rope_scaling *s = &d->scaling;
    double low = fmax(floor(yarn_pair(d, s->beta_fast > 0 ? s->beta_fast : 32)), 0);
    double high =
        fmin(ceil(yarn_pair(d, s->beta_slow > 0 ? s->beta_slow : 1)), (double)(d->head_size - 1));
    if (low == high) high += 0.001;
    double stretched = fmin(fmax(((double)pair - low) / (high - low), 0), 1);
    return frequency / s->factor * stretched + frequency * (1 - stretched);
}

double tr_rope_frequency(const tr_rope_desc *desc, int64_t pair) {
    double frequency = pow(desc->theta, -2 * (double)pair / (double)desc->head_size);
    switch (desc->scaling.kind) {
    case TR_ROPE_LINEAR: return frequency / desc->scaling.factor;
    case TR_ROPE_LLAMA3: return llama3_frequency(&desc->scaling, frequency);
    case TR_ROPE_YARN: return yarn_frequency(desc, pair, frequency);
    default: return frequency;
    }
}

double tr_rope_magnitude(const tr_rope_desc *desc) {
    const tr_rope_scaling *s = &desc->scaling;
    if (s->kind != TR_ROPE_YARN) return 1;
    if (s->attention_factor > 0) return s->attention_factor;
    return s->factor > 1 ? 0.1 * log(s->factor) + 1 : 1;
}

void tr_rope_turns(const tr_rope_desc *desc, uint64_t *turns) {
    for (int64_t i = 0; i < desc->head_size / 2; i++) {
        double of_turn = tr_rope_frequency(desc, i) / (2 * pi);
        turns[i] = (uint64_t)ldexp(of_turn - floor(of_turn), 64);
    }
}
