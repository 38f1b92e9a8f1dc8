#include "base/digits.h"

#include <errno.h>
#include <stdlib.h>

bool tr_digits_read(const char **text, int64_t most, int64_t *out) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    errno = 0;
    *out = strtoll(*text, &end, 10);
    if (errno || *out > most) return false;
    *text = end;
    return true;
}
