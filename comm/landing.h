/* The landing buffers of a channel's receiving end: how many there are, how large they are, and
 * when one is free. The channels of every transport keep to these rules, and the simulation of
 * programs (pipeline/program/simulate.h) times messages by them. */
#pragma once

#include "device/device.h"

enum { TR_CHANNEL_LANDINGS = 2 };

/* Returns the landing buffer in which message number `message` of a channel lands. */
static inline int tr_landing_of(int64_t message) {
    return (int)(message % TR_CHANNEL_LANDINGS);
}

/* Returns the message that lands in the same buffer before this one; negative: none does. */
static inline int64_t tr_landing_before(int64_t message) {
    return message - TR_CHANNEL_LANDINGS;
}

/* Returns true when the landing buffer of this message is free: the `taken` messages that have been
 * taken include the one before it in the same buffer. */
static inline bool tr_landing_is_free(int64_t message, int64_t taken) {
    return tr_landing_before(message) < taken;
}

/* Returns the bytes of device memory (TR_MEMORY_TRANSFERS) of the landing buffers of a channel with
 * messages of at most max_bytes. */
size_t tr_landing_bytes(size_t max_bytes);
/* Allocates the landing buffers in landing[TR_CHANNEL_LANDINGS], which is zeroed. After a failure
 * the caller frees those that it made. */
tr_status tr_landing_alloc(tr_device *device, size_t max_bytes, void **landing);
void tr_landing_free(tr_device *device, void **landing);
