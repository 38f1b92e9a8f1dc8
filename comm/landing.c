#include "comm/landing.h"

#include "base/memory.h"

size_t tr_landing_bytes(size_t max_bytes) {
    return TR_CHANNEL_LANDINGS * tr_align_up(max_bytes);
}

tr_status tr_landing_alloc(tr_device *device, size_t max_bytes, void **landing) {
    for (int i = 0; i < TR_CHANNEL_LANDINGS; i++)
        TR_TRY(tr_device_alloc(device, TR_MEMORY_TRANSFERS, max_bytes, &landing[i]));
    return TR_OK;
}

void tr_landing_free(tr_device *device, void **landing) {
    for (int i = 0; i < TR_CHANNEL_LANDINGS; i++) tr_device_free(device, landing[i]);
}
