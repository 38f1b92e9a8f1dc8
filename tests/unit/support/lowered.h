/* Programs and simulations of tests, which cannot fail. */
#pragma once

#include "pipeline/program/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline tr_program_set *lowered(const tr_schedule *s, const tr_stage_table *t) {
    tr_program_set *set = NULL;
    if (tr_lower(s, t, &set) != TR_OK) fail_msg("%s", tr_error_message());
    return set;
}

/* latency: of every message. */
static inline tr_simulation *simulated(const tr_program_set *set, const tr_stage_table *t,
                                       double latency) {
    const tr_simulated_links links = {.near.latency = latency};
    tr_simulation *simulation = NULL;
    if (tr_simulate(set, t->cost, &links, &simulation) != TR_OK) fail_msg("%s", tr_error_message());
    return simulation;
}
