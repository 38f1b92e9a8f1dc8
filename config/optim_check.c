/* Checks of the keys of the optimizer and its schedule. */
#include "config/config_impl.h"
#include "config/points.h"

#include <inttypes.h>

int64_t tr_config_horizon(const tr_config *c) {
    return c->optim.horizon ? c->optim.horizon : c->train.steps;
}

tr_status tr_config_check_optim(const tr_config *c) {
    int64_t point[TR_CONFIG_POINTS];
    const int restarts = tr_config_points(c->optim.restarts, point);
    if (restarts > 0 && point[restarts - 1] >= tr_config_horizon(c))
        REFUSE("optim.restarts",
               "optim.restarts has step %" PRId64 ", but the schedule ends at step %" PRId64
               " (optim.horizon, which is train.steps unless it is set): raise optim.horizon, or "
               "leave that step out",
               point[restarts - 1], tr_config_horizon(c));
    if (c->optim.min_lr > c->optim.lr)
        REFUSE("optim.min_lr", "optim.min_lr %g is above optim.lr %g", c->optim.min_lr,
               c->optim.lr);
    return TR_OK;
}
