#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

tr_status tr_library_open(const char *name, const tr_library_symbol *symbols, size_t count) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return TR_FAIL(TR_ERR_DEVICE,
                       "%s cannot be loaded (%s): install it, or add its folder to LD_LIBRARY_PATH",
                       name, dlerror());
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, symbols[i].name);
        if (!symbol)
            return TR_FAIL(TR_ERR_DEVICE, "%s has no function %s: install a later version", name,
                           symbols[i].name);
        /* ISO C has no cast from object to function pointers. */
        memcpy(symbols[i].pointer, &symbol, sizeof symbol);
    }
    return TR_OK;
}
