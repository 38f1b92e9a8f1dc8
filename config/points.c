#include "config/points.h"

#include "base/digits.h"

#include <string.h>

bool tr_config_read_above(const char **text, int64_t least, int64_t *out) {
    *text += strspn(*text, " ");
    return tr_digits_read(text, INT64_MAX, out) && *out > least && (!**text || **text == ' ');
}

int tr_config_points(const char *text, int64_t *point) {
    int count = 0;
    int64_t last = 0;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        if (count == TR_CONFIG_POINTS || !tr_config_read_above(&text, last, &last)) return -1;
        point[count++] = last;
    }
    return count;
}
