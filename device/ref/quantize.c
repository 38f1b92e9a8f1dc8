/* QUANTIZE, and the rounding of optimizer states to BF16 and to codes. */
#include "device/elementwise.h"
#include "device/ref/ref_impl.h"

/* Returns the bits by which element i of X is rounded. */
static uint32_t draw_of(const tr_quantize_desc *d, int use, const tr_op_args *args, int64_t i) {
    const tr_quantize_box *box;
    int64_t adjacent;
    const int64_t at = tr_quantize_place(d, args->element + i, &box, &adjacent);
    const tr_philox r = tr_rounding_bits(tr_rounding_key(args->state->seed, box->name, use),
                                         (uint64_t)(at / TR_QUANTIZE_SHARERS),
                                         tr_rounding_counter(args->state->step, args->sample));
    return tr_rounding_draw(tr_philox_half(r, at % TR_QUANTIZE_SHARERS), use);
}

/* Returns the next number of BF16 towards 0, which is x itself if x is one. */
static float towards_zero(float x) {
    return tr_bf16_to_f32((uint16_t)(tr_float_bits(x) >> 16));
}

static float away_from_zero(float x) {
    return tr_bf16_to_f32((uint16_t)((tr_float_bits(x) >> 16) + 1));
}

/* Returns the code of x: of one of the two numbers next to it. */
static uint8_t number_of(double x, float scale, tr_code8 code, uint32_t draw) {
    const int most = tr_code8_largest(code);
    const double size = fabs(x);
    int number = isnan(x) ? most : 0;
    while (number < most && (double)tr_code8_decode((uint8_t)(number + 1), scale, code) <= size)
        number++;
    const double low = (double)tr_code8_decode((uint8_t)number, scale, code);
    if (number < most && size > low) {
        const double high = (double)tr_code8_decode((uint8_t)(number + 1), scale, code);
        /* As many bits of the part that is cut off as FP32 has behind a number's fraction. */
        const double parts = exp2(23 - tr_code8_fraction(code));
        const double part = nearbyint((size - low) / (high - low) * parts) / parts;
        number += part + (double)(draw >> 8) * 0x1p-24 >= 1;
    }
    if (code == TR_CODE8_SQUARES) return (uint8_t)(number == 0 && size > 0 ? 1 : number);
    return (uint8_t)(number | (signbit(x) ? 0x80 : 0));
}

void tr_ref_encode(const tr_quantize_desc *d, int use, tr_code8 code, const tr_op_args *args,
                   int64_t from, int64_t n, const double *x, uint8_t *y, float *scale) {
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf((float)x[i]));
    *scale = tr_code8_scale(largest);
    for (int64_t i = 0; i < n; i++)
        y[i] = *scale > 0 || isnan(x[i])
                   ? number_of(x[i], *scale, code, tr_code8_draw(draw_of(d, use, args, from + i)))
                   : 0;
}

uint16_t tr_ref_round_drawn(const tr_quantize_desc *d, int use, const tr_op_args *args, int64_t i,
                            float x) {
    if (!isfinite(x)) return tr_f32_to_bf16(x);
    const double low = (double)towards_zero(x), high = (double)away_from_zero(x);
    /* The part that is cut off, of 2^16, and as many equally likely draws. Beyond the largest
     * number is infinity, as if it were the next one. */
    const double gap = isfinite(high) ? high - low : copysign(0x1p120, low);
    const double draw = (double)draw_of(d, use, args, i);
    return tr_f32_to_bf16(((double)x - low) / gap * 65536 + draw >= 65536 ? (float)high
                                                                          : (float)low);
}

tr_status tr_ref_quantize(tr_op *op, const tr_op_args *args) {
    const tr_quantize_desc *d = &op->desc.quantize;
    if (args->state->skip) return TR_OK;
    for (int64_t i = 0; i < d->count; i++) {
        uint16_t *kept = (uint16_t *)args->t[TR_QUANTIZE_Y].data + i;
        float x = ((const float *)args->t[TR_QUANTIZE_X].data)[i];
        if (args->adds) x += tr_bf16_to_f32(*kept);
        *kept = tr_ref_round_drawn(d, d->use, args, i, x);
    }
    return TR_OK;
}
