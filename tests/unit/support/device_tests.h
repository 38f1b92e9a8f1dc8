/* Shared by the tests of a device (test_device.c, device_queue.c). */
#pragma once

#include "device/device_impl.h"
#include "support/must.h"

#include <stdatomic.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

/* Allocate `count` values in staging memory and in device memory. */
static inline uint32_t *staging(tr_device *device, size_t count) {
    uint32_t *memory;
    must(tr_device_staging_alloc(device, count * sizeof *memory, (void **)&memory));
    return memory;
}

static inline uint32_t *on_device(tr_device *device, size_t count) {
    uint32_t *memory;
    must(tr_device_alloc(device, TR_MEMORY_DATA, count * sizeof *memory, (void **)&memory));
    return memory;
}

/* Waits, as a stream's call, until the flag is set, for 10 s at most. */
static inline void on_held(void *argument) {
    for (int i = 0; i < 20000 && !atomic_load((atomic_bool *)argument); i++) usleep(500);
}

/* Starts the device's queue and runs its tests; returns how many failed. */
int test_device_queue(tr_device *device);
