/* pty_run RECORD COLUMNSxROWS [ACTION...] -- COMMAND [ARGUMENT...]
 *
 * Runs a command in a pseudo-terminal of that size, which is its controlling terminal, and performs
 * the actions in order while it runs:
 *
 * - wait:REGEX waits until the output since the last match matches (extended, one line);
 * - size:COLUMNSxROWS resizes the terminal: the foreground processes get SIGWINCH;
 * - keys:TEXT types; ^C is Ctrl-C, and ^Z, ^D and ^\ likewise;
 * - do:SHELL runs a shell command, in which $child is the command's process;
 * - hangup closes the terminal;
 * - limit:SECONDS limits the time of all later actions and of the command itself (120 s at first),
 *   after which every process of the session is killed.
 *
 * Writes the output to RECORD. Each action except wait and limit is in it as a string that
 * terminals ignore: ESC _ ACTION ESC \. RECORD.screen gets what the terminal shows at the end,
 * including what has scrolled away.
 *
 * Exit code: the command's, or 128 + its signal; 124 after the limit; 125 when the command ended
 * before an action; 64 for wrong arguments. */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <regex.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SEEN = 1 << 16, EXIT_LIMIT = 124, EXIT_EARLY = 125, EXIT_USAGE = 64 };

/* What the terminal shows, including the rows that have scrolled away. */
typedef struct screen {
    char **row;
    size_t rows, columns, at; /* the cursor is in the last row */
} screen;

typedef struct session {
    int terminal;
    pid_t child;
    FILE *record;
    screen screen;
    char seen[MOST_SEEN + 1]; /* what was written since the last match */
    size_t seen_length;
    double deadline;
    bool closed; /* no process has the terminal open any more */
    char escape[64];
    size_t escape_length; /* of the control sequence that is being read */
} session;

static double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *must(void *memory) {
    if (!memory) {
        fputs("pty_run: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* --- the screen ------------------------------------------------------------------------------- */

enum { MOST_COLUMNS = 512 };

static void new_row(screen *s) {
    s->row = must(realloc(s->row, (s->rows + 1) * sizeof *s->row));
    s->row[s->rows] = must(calloc(MOST_COLUMNS + 1, 1));
    s->rows++;
    s->at = 0;
}

static void put(screen *s, char c) {
    char *row = s->row[s->rows - 1];
    if (c == '\r') {
        s->at = 0;
    } else if (c == '\n') {
        size_t at = s->at;
        new_row(s);
        s->at = at;
    } else if ((unsigned char)c >= ' ') {
        if (s->at >= s->columns) {
            new_row(s);
            row = s->row[s->rows - 1];
        }
        for (size_t k = strlen(row); k < s->at; k++) row[k] = ' ';
        row[s->at++] = c;
    }
}

/* Applies a control sequence: ESC [ K clears to the end of the row; all others do nothing. */
static void control(screen *s, const char *sequence, size_t length) {
    char *row = s->row[s->rows - 1];
    if (sequence[length - 1] == 'K' && s->at < strlen(row))
        memset(row + s->at, 0, MOST_COLUMNS + 1 - s->at);
}

static void show(session *t, char c) {
    if (t->escape_length) {
        t->escape[t->escape_length++] = c;
        bool ends = t->escape_length > 2 && c >= '@' && c <= '~';
        if (ends) control(&t->screen, t->escape, t->escape_length);
        if (ends || t->escape_length == sizeof t->escape) t->escape_length = 0;
    } else if (c == '\x1b') {
        t->escape[t->escape_length++] = c;
    } else {
        put(&t->screen, c);
    }
}

static bool write_screen(const screen *s, const char *record) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s.screen", record);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    for (size_t r = 0; r < s->rows; r++)
        if (r + 1 < s->rows || s->row[r][0]) (void)fprintf(f, "%s\n", s->row[r]);
    return fclose(f) == 0;
}

/* --- the terminal ----------------------------------------------------------------------------- */

static void take_in(session *t, const char *bytes, size_t count) {
    (void)fwrite(bytes, 1, count, t->record);
    (void)fflush(t->record); /* a test may read it while the command runs */
    for (size_t k = 0; k < count; k++) {
        show(t, bytes[k]);
        if (t->seen_length == MOST_SEEN) { /* the newer half is kept */
            t->seen_length = MOST_SEEN / 2;
            memmove(t->seen, t->seen + MOST_SEEN - t->seen_length, t->seen_length);
        }
        if (bytes[k]) t->seen[t->seen_length++] = bytes[k];
    }
    t->seen[t->seen_length] = '\0';
}

/* Waits at most that long for output. Returns false once no process has the terminal open. */
static bool read_some(session *t, double seconds) {
    char bytes[4096];
    struct pollfd from = {.fd = t->terminal, .events = POLLIN};
    if (t->closed) return false;
    if (poll(&from, 1, (int)(seconds * 1000)) <= 0) return true;
    ssize_t n = read(t->terminal, bytes, sizeof bytes);
    if (n > 0) take_in(t, bytes, (size_t)n);
    else if (n == 0 || errno == EIO) t->closed = true;
    return !t->closed;
}

/* Kills the process groups of the command's session that are known, and returns 124. */
static int give_up(session *t, const char *waiting) {
    fprintf(stderr, "pty_run: the time limit has passed; %s\n", waiting);
    pid_t front = tcgetpgrp(t->terminal);
    if (front > 0) (void)kill(-front, SIGKILL);
    (void)kill(-t->child, SIGKILL);
    (void)waitpid(t->child, NULL, 0);
    return EXIT_LIMIT;
}

/* --- actions ---------------------------------------------------------------------------------- */

static bool parse_size(const char *text, struct winsize *size) {
    unsigned columns, rows;
    char end;
    if (sscanf(text, "%ux%u%c", &columns, &rows, &end) != 2 || columns < 1 ||
        columns > MOST_COLUMNS || rows < 1 || rows > 10000)
        return false;
    *size = (struct winsize){.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
    return true;
}

static int wait_for(session *t, const char *pattern) {
    regex_t regex;
    regmatch_t match;
    int code = 0;
    if (regcomp(&regex, pattern, REG_EXTENDED | REG_NEWLINE)) {
        fprintf(stderr, "pty_run: '%s' is not a regular expression\n", pattern);
        return EXIT_USAGE;
    }
    while (regexec(&regex, t->seen, 1, &match, 0)) {
        if (now_s() > t->deadline) code = give_up(t, pattern);
        else if (!read_some(t, 0.05)) {
            fprintf(stderr, "pty_run: the command ended before it wrote '%s'\n", pattern);
            code = EXIT_EARLY;
        }
        if (code) goto out;
    }
    t->seen_length -= (size_t)match.rm_eo;
    memmove(t->seen, t->seen + match.rm_eo, t->seen_length + 1);
out:
    regfree(&regex);
    return code;
}

static void type(const session *t, const char *text) {
    for (; *text; text++) {
        bool controlled = text[0] == '^' && text[1];
        if (controlled) text++;
        char key = controlled ? (char)(*text & 0x1f) : *text;
        (void)!write(t->terminal, &key, 1);
    }
}

/* Performs one action. Returns 0, or the exit code with which pty_run ends. */
static int act(session *t, const char *action) {
    const char *colon = strchr(action, ':'), *value = colon ? colon + 1 : "";
    size_t name = colon ? (size_t)(colon - action) : strlen(action);
    struct winsize size;
    if (!strncmp(action, "wait:", 5)) return wait_for(t, value);
    if (!strncmp(action, "limit:", 6)) {
        t->deadline = now_s() + atof(value);
        return 0;
    }
    fprintf(t->record, "\x1b_%s\x1b\\", action);
    if (!strncmp(action, "size", name) && parse_size(value, &size)) {
        t->screen.columns = size.ws_col;
        (void)ioctl(t->terminal, TIOCSWINSZ, &size);
    } else if (!strncmp(action, "keys", name)) {
        type(t, value);
    } else if (!strncmp(action, "do", name)) {
        if (system(value)) fprintf(stderr, "pty_run: '%s' failed\n", value);
    } else if (!strcmp(action, "hangup")) {
        (void)close(t->terminal);
        t->closed = true;
    } else {
        fprintf(stderr, "pty_run: '%s' is not an action\n", action);
        return EXIT_USAGE;
    }
    return 0;
}

/* Returns the command's exit code, after reading the rest of its output, also when a child of it
 * keeps running. */
static int wait_for_end(session *t) {
    int status = 0;
    double ended = 0;
    for (;;) {
        bool open = read_some(t, 0.05);
        if (ended == 0 && waitpid(t->child, &status, WNOHANG) == t->child) ended = now_s();
        if (ended != 0 && (!open || now_s() - ended > 1)) break;
        if (ended == 0 && now_s() > t->deadline) return give_up(t, "the command still runs");
        if (!open) (void)usleep(20000);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    static session t = {.terminal = -1};
    struct winsize size;
    int first = 3, code = 0;
    while (first < argc && strcmp(argv[first], "--") != 0) first++;
    if (first + 1 >= argc || !parse_size(argv[2], &size)) {
        fputs("usage: pty_run RECORD COLUMNSxROWS [ACTION...] -- COMMAND [ARGUMENT...]\n", stderr);
        return EXIT_USAGE;
    }
    t.record = fopen(argv[1], "wb");
    if (!t.record) {
        fprintf(stderr, "pty_run: %s: %s\n", argv[1], strerror(errno));
        return 66;
    }
    t.screen.columns = size.ws_col;
    new_row(&t.screen);
    t.deadline = now_s() + 120;
    t.child = forkpty(&t.terminal, NULL, NULL, &size);
    if (t.child < 0) {
        fprintf(stderr, "pty_run: no pseudo-terminal: %s\n", strerror(errno));
        return 69;
    }
    if (t.child == 0) {
        /* As a login does: a job in a script's background ignores them. */
        (void)signal(SIGINT, SIG_DFL);
        (void)signal(SIGQUIT, SIG_DFL);
        (void)execvp(argv[first + 1], argv + first + 1);
        fprintf(stderr, "pty_run: %s: %s\n", argv[first + 1], strerror(errno));
        _exit(127);
    }
    char child[32];
    (void)snprintf(child, sizeof child, "%ld", (long)t.child);
    (void)setenv("child", child, 1);
    for (int a = 3; a < first && !code; a++) code = act(&t, argv[a]);
    if (code == EXIT_USAGE) (void)kill(-t.child, SIGKILL);
    if (code != EXIT_LIMIT) {
        int end = wait_for_end(&t);
        if (!code) code = end;
    }
    (void)fclose(t.record);
    return write_screen(&t.screen, argv[1]) ? code : 74;
}
