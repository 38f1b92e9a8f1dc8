#include "job/terminal.h"

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
