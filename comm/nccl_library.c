#include "comm/nccl_library.h"

#include "base/library.h"

#define DEFINE(name) __typeof__(tr_##name) tr_##name;
TR_NCCL_FUNCTIONS(DEFINE)

#define TEXT(x)      #x
#define VERSION(x)   TEXT(x)
#define SYMBOL(name) {#name, &tr_##name},

tr_status tr_nccl_open_library(void) {
    static const tr_library_symbol symbols[] = {TR_NCCL_FUNCTIONS(SYMBOL)};
    return tr_library_open("libnccl.so." VERSION(NCCL_MAJOR), symbols,
                           sizeof symbols / sizeof *symbols);
}
