#include "base/launched.h"
#include "base/nearest.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/elsewhere.h"
#include "job/relay.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool cli_is_help(const char *word) {
    return !strcmp(word, "--help") || !strcmp(word, "-h");
}

static const char *command_name(const void *names, int index) {
    return ((const cli_command *)names)[index].name;
}

const cli_command *cli_find_near(const char *name) {
    int near = tr_nearest(name, command_name, cli_commands, cli_command_count);
    return near < 0 ? NULL : &cli_commands[near];
}

const cli_command *cli_find_part(const char *name) {
    const size_t length = strlen(name);
    const bool is_word = *name >= 'a' && *name <= 'z'; /* FILE stands for another word */
    for (int i = 0; i < cli_command_count && is_word; i++)
        for (const char *at = cli_commands[i].arguments; (at = strstr(at, name)); at += length)
            if (at[length] == ' ' && (at == cli_commands[i].arguments ||
                                      (at > cli_commands[i].arguments + 2 && at[-2] == '|')))
                return &cli_commands[i];
    return NULL;
}

static const char BACKTRACE[] = "--backtrace";

static tr_status unknown_command(const char *name) {
    static const char *const options[] = {"--version", "--help", BACKTRACE};
    const cli_command *whole = cli_find_part(name);
    if (whole)
        return TR_FAIL(TR_ERR_USAGE, "unknown command '%s'; did you mean `trireme %s %s`?", name,
                       whole->name, name);
    const char *ours = tr_command_elsewhere(name);
    if (ours) return TR_FAIL(TR_ERR_USAGE, "unknown command '%s'; did you mean %s?", name, ours);
    const char *remark = tr_remark_elsewhere(name, "trireme");
    if (remark) return TR_FAIL(TR_ERR_USAGE, "unknown command '%s': %s", name, remark);
    const cli_command *command = cli_find_near(name);
    int option = tr_nearest(name, tr_word_at, options, 3);
    for (int i = 0; i < 3 && *name == '-' && name[1] && !name[2]; i++)
        if (options[i][2] == tolower((unsigned char)name[1])) option = i;
    const char *what = *name == '-' ? "option" : "command";
    if (tr_text_ends(name, ".yaml"))
        return TR_FAIL(TR_ERR_USAGE, "unknown command '%s'; did you mean `trireme train %s`?", name,
                       name);
    if (command || option >= 0)
        return TR_FAIL(TR_ERR_USAGE, "unknown %s '%s'; did you mean `trireme %s`?", what, name,
                       command ? command->name : options[option]);
    return TR_FAIL(TR_ERR_USAGE, "unknown %s '%s'; `trireme help` lists the commands", what, name);
}

const cli_command *cli_find(const char *name) {
    for (int i = 0; i < cli_command_count; i++)
        if (!strcmp(cli_commands[i].name, name)) return &cli_commands[i];
    return NULL;
}

static tr_status dispatch(cli_context *cli, int argc, char **argv) {
    if (argc < 2)
        return TR_FAIL(TR_ERR_USAGE, "no command was given; `trireme help` lists the commands");
    const char *name = argv[1];
    if (!strcmp(name, "--version")) {
        (void)printf("trireme %s\n", TRIREME_VERSION);
        return TR_OK;
    }
    if (!strcmp(name, "--trace"))
        return TR_FAIL(TR_ERR_USAGE, "--trace before a command is now --backtrace; `trireme "
                                     "train CONFIG --trace N` records N steps");
    if (cli_is_help(name)) name = "help";
    const cli_command *command = cli_find(name);
    if (!command) return unknown_command(name);
    if (argc == 3 && cli_is_help(argv[2])) { /* "train --help" is "help train" */
        char *help[] = {"help", argv[1], NULL};
        return cli_help(cli, 2, help);
    }
    return command->run(cli, argc - 1, argv + 1);
}

/* Removes --backtrace before the command from the arguments; returns their new number. */
static int take_backtrace(int argc, char **argv, bool *backtrace) {
    while (argc > 1 && !strcmp(argv[1], BACKTRACE)) {
        *backtrace = true;
        argc--;
        for (int i = 1; i <= argc; i++) argv[i] = argv[i + 1]; /* argv ends in NULL */
    }
    return argc;
}

void cli_report(cli_context *cli, tr_status code) {
    if (cli->silent || !*tr_error_message()) return;
    (void)fprintf(stderr, "trireme: %s%s\n", tr_error_message(), tr_error_remedy(code));
    if (cli->backtrace) (void)fprintf(stderr, "  at %s\n", tr_error_trace());
    cli->silent = true;
}

/* Limits how long OpenMP's threads spin at the end of a parallel loop. By default they spin for
 * milliseconds, and when another process takes one of their cores, all wait for it; training was
 * measured 20 times slower. A thousand turns bridge the gap between two loops and cost little.
 * libgomp reads the number once, while the program is loaded, so a command that computes starts
 * itself again with it; ranks inherit it from `run`. A value that the user has set stays. */
static void limit_spinning(char **argv) {
    static const char *const computing[] = {"train", "plan", "sample", "eval"};
    bool computes = false;
    char self[4096];
    int at = 1;
    while (argv[at] && !strcmp(argv[at], BACKTRACE)) at++;
    const char *command = argv[at] ? argv[at] : "";
    const bool launches = !strcmp(command, "run");
    for (size_t i = 0; i < sizeof computing / sizeof *computing; i++)
        computes |= !strcmp(command, computing[i]);
    if (!(computes || launches) || getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", "1000", 1) || launches) return;
    self[length] = '\0';
    (void)execv(self, argv); /* returns only on failure, and then training is only slower */
}

/* Sets HOME for a user that has neither HOME nor an entry in the list of users, as in a container
 * that runs under any number: the library that starts MPI's processes would crash. */
static void set_home(void) {
    if (!getenv("HOME") && !getpwuid(geteuid())) (void)setenv("HOME", "/", 1);
}

/* Opens /dev/null for each standard file that is closed. Otherwise the next file would get its
 * number, and progress lines would go into a checkpoint. It is opened in the wrong direction, so
 * that reads and writes still fail. */
static void open_closed_files(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* Whether the parent ignores SIGHUP, as nohup does. UCX, which Open MPI 5 loads, handles that
 * signal before main runs. */
static bool ignores_hangup;

/* The linker puts this before the start of all libraries, sanitizers included: it may only ask the
 * kernel. The answer begins with the handler. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void read_hangup(void) {
    unsigned long answer[8] = {0};
    (void)syscall(SYS_rt_sigaction, SIGHUP, NULL, answer, sizeof(unsigned long));
    ignores_hangup = answer[0] == (unsigned long)SIG_IGN;
}
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(void) = read_hangup;

int main(int argc, char **argv) {
    (void)signal(SIGHUP, ignores_hangup ? SIG_IGN : SIG_DFL);
    /* A parent that ignores it passes that on, and the kernel then keeps no exit status of
     * mpirun. */
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_IGN); /* a write beyond ulimit -f fails with EFBIG instead */
    open_closed_files();
    set_home();
    if (argc > 1) limit_spinning(argv);
    const char *backtrace = getenv("TRIREME_BACKTRACE");
    cli_context cli = {.backtrace = backtrace && !strcmp(backtrace, "1"),
                       .silent = tr_launched_rank() > 0}; /* the first one speaks */
    argc = take_backtrace(argc, argv, &cli.backtrace);
    char **words = NULL;
    tr_status code = cli_split_options(argc, argv, &argc, &words);
    if (code == TR_OK) code = dispatch(&cli, argc, words);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0 && !cli.keeps_output)
        code = TR_FAIL(TR_ERR_IO, TR_STDOUT_LOST);
    if (code != 0) cli_report(&cli, code);
    free(words);
    return (int)code;
}
