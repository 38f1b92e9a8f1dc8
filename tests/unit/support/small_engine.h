/* A small engine of one rank, for tests. */
#pragma once

#include "support/generate_order.h"
#include "train/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static inline tr_schedule *schedule_of(const char *name, int ranks, int micro_batches) {
    tr_schedule *schedule;
    assert_int_equal(generate_order(name, ranks, ranks, micro_batches, &schedule), TR_OK);
    return schedule;
}

static inline tr_engine_desc small(tr_world *world, tr_device *device, tr_schedule *schedule) {
    tr_engine_desc desc = {
        .world = world,
        .device = device,
        .model =
            {.family = "gpt2", .layers = 2, .width = 32, .heads = 2, .context = 16, .vocab = 256},
        .batch = 8,
        .micro_batch = 2,
        .dtype = TR_BF16,
        .schedule = schedule,
        .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f}};
    assert_int_equal(tr_mesh_make(1, 1, 1, 0, 1, &desc.mesh), TR_OK);
    return desc;
}

/* Samples of ascending tokens. */
static inline tr_status fetch(void *context, bool validation, int64_t sample,
                              const tr_fetch *wanted, int count) {
    (void)context, (void)validation;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < 16; i++) ((int32_t *)wanted[k].to)[i] = (int32_t)((sample + i) % 256);
    return TR_OK;
}
