/* The rules of UPDATE as constants. Private to the kernels. */
#pragma once

#include "device/op.h"

#include <cuda_runtime_api.h>

template <tr_update_rule RULE> struct tr_rule_constant {
    static constexpr tr_update_rule rule = RULE;
};

/* Calls launch(constant) with the rule as a constant. */
template <typename F> static inline cudaError_t tr_dispatch_rule(tr_update_rule rule, F launch) {
    switch (rule) {
    case TR_UPDATE_SGD: return launch(tr_rule_constant<TR_UPDATE_SGD>{});
    case TR_UPDATE_MOMENTUM: return launch(tr_rule_constant<TR_UPDATE_MOMENTUM>{});
    case TR_UPDATE_LION: return launch(tr_rule_constant<TR_UPDATE_LION>{});
    case TR_UPDATE_ROOT: return launch(tr_rule_constant<TR_UPDATE_ROOT>{});
    default: return launch(tr_rule_constant<TR_UPDATE_ADAMW>{});
    }
}
