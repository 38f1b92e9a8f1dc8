#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

tr_status tr_calloc(size_t count, size_t size, void *out) {
    void *p = calloc(count ? count : 1, size ? size : 1);
    if (!p)
        return TR_FAIL(TR_ERR_FIT,
                       "out of host memory: no room for %zu elements of %zu bytes; free memory on "
                       "this host, or spread the ranks over more hosts",
                       count, size);
    memcpy(out, &p, sizeof p);
    return TR_OK;
}

tr_status tr_grow(void *array, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return TR_OK;
    size_t wanted = *capacity ? *capacity : 8;
    while (wanted < need) wanted *= 2;
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    size_t bytes;
    if (!tr_mul_size(wanted, size, &bytes) || !(grown = realloc(old, bytes)))
        return TR_FAIL(TR_ERR_FIT,
                       "out of host memory: no room for %zu elements of %zu bytes; free memory on "
                       "this host, or spread the ranks over more hosts",
                       wanted, size);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return TR_OK;
}

tr_status tr_strdup(const char *text, char **out) {
    size_t bytes = strlen(text) + 1;
    TR_TRY(tr_calloc(bytes, 1, out));
    memcpy(*out, text, bytes);
    return TR_OK;
}
