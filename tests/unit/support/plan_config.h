/* A small model, of which tests make plans, and the schedules that they go through. */
#pragma once

#include "config/config.h"
#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const tr_device_options one_thread = {.threads = 1};

/* Tensor ranks cannot divide this vocabulary evenly, so they take different numbers of bytes. */
static const char planned_model[] =
    "data.path: x\n"
    "model: {layers: 4, width: 32, heads: 4, context: 16, vocab: 4099}\n"
    "train: {batch: 16, micro_batch: 2, threads: 1}\n";

static inline void read_config(tr_config *config, int count, const char *const *overrides) {
    assert_int_equal(tr_config_parse(planned_model, strlen(planned_model), "model.yaml", overrides,
                                     count, config),
                     TR_OK);
}

static const char *const schedules[] = {
    "gpipe",  "1f1b", "interleaved",    "bfs",    "zb-h1", "zb-h2",    "zb-1p", "zb-2p", "v-min",
    "v-half", "zbv",  "interleaved-zb", "1f1b-v", "auto",  "dualpipev"};
enum { SCHEDULES = sizeof schedules / sizeof schedules[0] };
