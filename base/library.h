/* Shared libraries that are loaded at their first use instead of at start: a library that a run
 * does not use takes no memory and need not be installed. */
#pragma once

#include "base/status.h"

#include <stddef.h>

typedef struct tr_library_symbol {
    const char *name;
    void *pointer; /* points to the function pointer to set */
} tr_library_symbol;

/* Loads the library of that file name, which stays loaded, and looks up every symbol. Fails with
 * TR_ERR_DEVICE and the loader's reason when the library or a symbol is missing. */
tr_status tr_library_open(const char *name, const tr_library_symbol *symbols, size_t count);
