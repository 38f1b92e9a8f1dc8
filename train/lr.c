#include "train/lr.h"

#include <math.h>

double tr_lr_at(const tr_lr *lr, int64_t step) {
    if (step < lr->warmup) return lr->highest * (double)step / (double)lr->warmup;
    if (step == lr->warmup) return lr->highest;
    if (step >= lr->steps) return lr->lowest;
    double part = (double)(step - lr->warmup) / (double)(lr->steps - lr->warmup);
    return lr->lowest + 0.5 * (lr->highest - lr->lowest) * (1.0 + cos(M_PI * part));
}
