#include "job/terminal.h"

#include "base/launched.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int tr_terminal_columns(FILE *file) {
    struct winsize window;
    const char *term = getenv("TERM");
    if (!isatty(fileno(file)) || !term || !strcmp(term, "dumb")) return 0;
    if (ioctl(fileno(file), TIOCGWINSZ, &window) || window.ws_col == 0) return 80;
    return window.ws_col;
}

/* The pseudo-terminal of a rank hides the real output, so plain mpirun counts as a pipe. */
int tr_terminal_told_columns(void) {
    const char *told = getenv(TR_TERMINAL_VARIABLE);
    if (!tr_is_launched()) return -1;
    const long columns = told ? strtol(told, NULL, 10) : 0;
    return columns > 0 && columns <= USHRT_MAX ? (int)columns : 0;
}

bool tr_terminal_shows(FILE *file) {
    const int told = tr_terminal_told_columns();
    return told < 0 ? tr_terminal_columns(file) > 0 : told > 0;
}
