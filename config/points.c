#include "config/points.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int tr_config_points(const char *text, int64_t *point) {
    int count = 0;
    int64_t last = 0;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        char *end;
        errno = 0;
        if (count == TR_CONFIG_POINTS || *text < '0' || *text > '9') return -1;
        const long long step = strtoll(text, &end, 10);
        if (errno || step <= last || (*end && *end != ' ')) return -1;
        point[count++] = last = step;
        text = end;
    }
    return count;
}
