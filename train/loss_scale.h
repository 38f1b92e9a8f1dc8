/* The loss scale of train.precision fp16.
 *
 * FP16 has no numbers below 2^-24, so gradients of activations would vanish in it. Backward
 * therefore begins with a power of two instead of 1 for every token, and the step divides the sums
 * of gradients, which are FP32, by it: that is exact. The scale changes as in Micikevicius et al.
 * 2018 (section 3.2), with the factors and the number of steps of PyTorch's GradScaler: a step in
 * which a gradient was not finite is skipped and halves it, and TR_LOSS_SCALE_STEPS steps without
 * one double it. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"

enum {
    TR_LOSS_SCALE_FIRST = 1 << 12,
    TR_LOSS_SCALE_MOST = 1 << 15, /* a gradient of a token's logits is up to the scale, and the
                                     largest number of FP16 is 65504 */
    TR_LOSS_SCALE_STEPS = 2000    /* without an overflow, after which it doubles */
};

/* Returns true when the config's runs scale their loss. */
bool tr_loss_scaled(const tr_config *config);
/* Returns the scale of the next step, which is 1 in other precisions; sets that of the first. */
double tr_loss_scale_next(const tr_config *config, tr_ckpt_scale *scale);
/* Changes the scale after a step with it; does nothing in other precisions. */
void tr_loss_scale_judge(const tr_config *config, bool finite, tr_ckpt_scale *scale);
