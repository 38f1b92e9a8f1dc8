#include "base/digits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool tr_digits_read(const char **text, int64_t most, int64_t *out) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    errno = 0;
    *out = strtoll(*text, &end, 10);
    if (errno || *out > most) return false;
    *text = end;
    return true;
}

bool tr_number_read(const char **text, double *out) {
    char *end;
    const char *digits = *text + (**text == '-' || **text == '+');
    if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) return false;
    digits += *digits == '.';
    if (*digits < '0' || *digits > '9') return false;
    *out = strtod(*text, &end);
    *text = end;
    return true;
}

bool tr_number_is(const char *text, double *out) {
    return tr_number_read(&text, out) && !*text;
}

int64_t tr_digits_unit(const char *unit) {
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {{"", 1},          {"KiB", 1 << 10},          {"MiB", 1 << 20},
                 {"GiB", 1 << 30}, {"TiB", INT64_C(1) << 40}, {"kB", 1000},
                 {"MB", 1000000},  {"GB", 1000000000},        {"TB", 1000000000000}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(unit, units[i].name)) return units[i].bytes;
    return 0;
}
