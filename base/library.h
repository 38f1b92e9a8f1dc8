/* Shared libraries that are loaded when they are first needed, and not with the program: what a run
 * does not use costs it no memory and need not be installed. */
#pragma once

#include "base/status.h"

#include <stddef.h>

typedef struct tr_library_symbol {
    const char *name;
    void *pointer; /* to the function pointer that takes the address */
} tr_library_symbol;

/* Loads the library of that file name, which stays loaded, and looks up every symbol.
 * TR_ERR_DEVICE, with the loader's reason, when the library or one of the symbols is missing. */
tr_status tr_library_open(const char *name, const tr_library_symbol *symbols, size_t count);
