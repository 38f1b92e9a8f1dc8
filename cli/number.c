#include "base/digits.h"
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

tr_status cli_take_integer(const char *command, const char *option, const char *text, int64_t least,
                           int64_t most, int64_t *out) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    bool digits = end != text && !*end && strspn(text, "+-0123456789") == strlen(text);
    if (!digits || errno || n < least || n > most)
        return cli_usage(command,
                         "%s takes a whole number from %" PRId64 " to %" PRId64 ", not '%.80s'",
                         option, least, most, text);
    *out = n;
    return TR_OK;
}

tr_status cli_take_number(const char *command, const char *option, const char *text, double least,
                          double most, double *out) {
    double x;
    if (!tr_number_is(text, &x) || !(x >= least && x <= most))
        return cli_usage(command, "%s takes a number from %g to %g, not '%.80s'", option, least,
                         most, text);
    *out = x;
    return TR_OK;
}
