#include "train/loss_scale.h"

bool tr_loss_scaled(const tr_config *c) {
    return tr_config_dtype(c) == TR_F16;
}

double tr_loss_scale_next(const tr_config *c, tr_ckpt_scale *s) {
    if (!tr_loss_scaled(c)) return 1;
    if (s->value == 0) s->value = TR_LOSS_SCALE_FIRST;
    return s->value;
}

void tr_loss_scale_judge(const tr_config *c, bool finite, tr_ckpt_scale *s) {
    if (!tr_loss_scaled(c)) return;
    s->steps = finite ? s->steps + 1 : 0;
    if (!finite && s->value > 1) s->value /= 2;
    if (s->steps < TR_LOSS_SCALE_STEPS) return;
    s->steps = 0;
    if (s->value < TR_LOSS_SCALE_MOST) s->value *= 2;
}
