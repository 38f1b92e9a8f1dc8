/* The activations and their derivatives. */
#include "device/ref/ref_impl.h"

#include <math.h>

/* gelu(x) = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3). */
static const double slope = 0.7978845608028654, cubic = 0.044715;

/* The normal distribution function, exact on its left side too, and its density. */
static double normal_below(double x) {
    return 0.5 * erfc(-x * sqrt(0.5));
}
static double normal_density(double x) {
    return 0.3989422804014327 * exp(-0.5 * x * x);
}

double tr_ref_activate(tr_activation activation, double x) {
    switch (activation) {
    case TR_ACTIVATION_GELU: return 0.5 * x * (1 + tanh(slope * (x + cubic * x * x * x)));
    case TR_ACTIVATION_GELU_ERF: return x * normal_below(x);
    case TR_ACTIVATION_SILU: return x / (1 + exp(-x));
    default: return x < 0 ? 0 : x * x; /* a NaN stays one */
    }
}

double tr_ref_slope(tr_activation activation, double x) {
    double t = tanh(slope * (x + cubic * x * x * x)), s = 1 / (1 + exp(-x));
    switch (activation) {
    case TR_ACTIVATION_GELU:
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * cubic * x * x);
    case TR_ACTIVATION_GELU_ERF: return normal_below(x) + x * normal_density(x);
    case TR_ACTIVATION_SILU: return s + x * s * (1 - s);
    default: return x < 0 ? 0 : 2 * x;
    }
}
