/* The options of commands, which are known from their usage texts. */
#include "base/digits.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "cli/cli.h"
#include "config/elsewhere.h"
#include "config/schema.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_OPTIONS = 16, OPTION_SIZE = 32 };

static const char *option_name(const void *names, int index) {
    return ((const char(*)[OPTION_SIZE])names)[index];
}

/* Copies the long options of a usage text; returns their number. */
static int list_options(const char *usage, char option[MOST_OPTIONS][OPTION_SIZE]) {
    int count = 0;
    for (const char *at = usage; (at = strstr(at, "--")) && count < MOST_OPTIONS;) {
        size_t length = strcspn(at, " []=\"");
        if (length < OPTION_SIZE)
            (void)snprintf(option[count++], OPTION_SIZE, "%.*s", (int)length, at);
        at += length;
    }
    return count;
}

/* Returns what follows the option in the command's usage: "" for a switch, "VALUE..." for an option
 * with a value. Returns NULL when the command has no such option. */
static const char *after_option(const cli_command *command, const char *option, size_t length) {
    const char *usage = command->arguments;
    for (const char *at = usage; (at = strstr(at, "-")); at += strspn(at, "-")) {
        if (strncmp(at, option, length) || !strchr(" []", at[length])) continue; /* or its end */
        if (at > usage && !strchr(" [", at[-1])) continue;
        return at[length] == ' ' && !strchr("[|-", at[length + 1]) ? at + length + 1 : "";
    }
    return NULL;
}

/* Returns the '=' of "--option=value" if the command has this option, with a value; or NULL. */
static char *find_joint(const cli_command *command, char *word) {
    char *equals = strchr(word, '=');
    if (strncmp(word, "--", 2) || !equals) return NULL;
    const char *after = after_option(command, word, (size_t)(equals - word));
    return after && *after ? equals : NULL;
}

tr_status cli_split_options(int argc, char **argv, int *count, char ***out) {
    char **words;
    int n = 0;
    TR_TRY(tr_calloc(2 * (size_t)argc + 1, sizeof *words, &words));
    const cli_command *command = NULL;
    for (int i = 0; i < argc; i++) {
        const bool names = i > 0 && argv[i][0] != '-';
        if (!strcmp(argv[i], "--")) command = NULL; /* only files follow */
        char *equals = command ? find_joint(command, argv[i]) : NULL;
        words[n++] = argv[i];
        if (equals) {
            *equals = '\0';
            words[n++] = equals + 1;
        } else if (command) {
            const char *after = after_option(command, argv[i], strlen(argv[i]));
            if (after && *after && i + 1 < argc) words[n++] = argv[++i];
        }
        /* The first word is the command; that of run is followed by the command of the ranks. */
        const cli_command *named = names ? cli_find(argv[i]) : NULL;
        if (named && (i == 1 || (command && command->run == cli_run))) command = named;
    }
    *count = n;
    *out = words;
    return TR_OK;
}

/* Returns the number of the option that begins with this word, if there is one such option, or
 * -1. */
static int find_begun(const char *word, char known[MOST_OPTIONS][OPTION_SIZE], int count) {
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (strncmp(known[i], word, strlen(word)) != 0) continue;
        if (found >= 0 && strcmp(known[i], known[found]) != 0) return -1;
        found = i;
    }
    return found;
}

tr_status cli_unknown_option(const char *name, const char *word) {
    char known[MOST_OPTIONS][OPTION_SIZE], option[256];
    (void)snprintf(option, sizeof option, "%.*s", (int)strcspn(word, "="), word);
    if (!strcmp(option, "--backtrace"))
        return TR_FAIL(TR_ERR_USAGE, "--backtrace goes before the command: trireme --backtrace %s",
                       name);
    if (cli_is_help(option))
        return TR_FAIL(TR_ERR_USAGE, "%s goes right after the command: trireme %s --help", option,
                       name);
    const cli_command *run = cli_find("run");
    const bool of_run = after_option(run, option, strlen(option)) || !strcmp(option, "-np");
    if (of_run && strcmp(name, run->name) != 0)
        return TR_FAIL(TR_ERR_USAGE, "%s is an option of run, before the command: trireme run %s",
                       option, run->arguments);
    const bool is_long = strncmp(option, "--", 2) == 0 && option[2];
    if (is_long && tr_schema_find(option + 2) >= 0)
        return TR_FAIL(TR_ERR_USAGE, "%s is a key: write it with its value, as %s=VALUE", option,
                       option + 2);
    const cli_command *command = cli_find(name);
    const char *ours =
        is_long && command ? tr_option_elsewhere(option + 2, command->arguments) : NULL;
    if (ours) return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean %s?", option, ours);
    ours = is_long ? tr_option_elsewhere(option + 2, run->arguments) : NULL;
    if (ours)
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean `trireme run %s %s ...`?",
                       option, ours, name);
    const char *key = is_long ? tr_key_elsewhere(option + 2) : NULL;
    if (key)
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean the key %s?", option, key);
    if (command && after_option(command, option, strlen(option)))
        return TR_FAIL(TR_ERR_USAGE, "%s takes no value: leave %s out", option,
                       word + strlen(option));
    int count = command ? list_options(command->arguments, known) : 0;
    int near = is_long ? find_begun(option, known, count) : -1;
    if (near < 0 && is_long) near = tr_nearest(option, option_name, known, count);
    const int key_near = is_long ? tr_schema_nearest(option + 2) : -1;
    if (near < 0 && key_near >= 0 && command && strstr(command->arguments, "key=value"))
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean the key %s?", option,
                       tr_schema[key_near].name);
    if (near < 0 && access(word, F_OK) == 0)
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; write ./%s for the file of this name",
                       word, word);
    if (near < 0) return cli_usage(name, "unknown option %s", option);
    return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean %s?", option, known[near]);
}

bool cli_is_setting(const char *argument, bool first) {
    const char *equals = strchr(argument, '='), *point = strchr(argument, '.');
    /* Every key has a point. */
    if (!equals || (argument[0] == '-' && (!point || point > equals))) return false;
    return !(first && access(argument, F_OK) == 0);
}

int cli_descriptor(const char *path) {
    static const char *const names[] = {"/dev/stdin", "/dev/stdout", "/dev/stderr"};
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (!path) return -1;
    if (!strcmp(path, "-")) return STDOUT_FILENO;
    for (int fd = 0; fd < 3; fd++)
        if (!strcmp(path, names[fd])) return fd;
    for (int i = 0; i < 2; i++) {
        const size_t length = strlen(folders[i]);
        if (strncmp(path, folders[i], length) != 0) continue;
        const char *digits = path + length;
        int64_t fd;
        if (tr_digits_read(&digits, INT_MAX, &fd) && !*digits) return (int)fd;
    }
    return -1;
}

bool cli_is_stdout(const char *path) {
    return cli_descriptor(path) == STDOUT_FILENO;
}

tr_status cli_missing_value(const char *name, const char *option) {
    if (after_option(cli_find(name), option, strlen(option)))
        return cli_usage(name, "a value is missing after %s", option);
    return cli_unknown_option(name, option);
}
