/* The options of commands, which are known from their usage texts. */
#include "base/digits.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "cli/cli.h"
#include "config/elsewhere.h"
#include "config/schema.h"

#include <limits.h>
#include <stdarg.h>
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

/* Returns what follows the option in a usage text: "" for a switch, "VALUE..." for an option with a
 * value. Returns NULL when the usage has no such option. */
static const char *after_option(const char *usage, const char *option, size_t length) {
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
    const char *after = after_option(command->arguments, word, (size_t)(equals - word));
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
            const char *after = after_option(command->arguments, argv[i], strlen(argv[i]));
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

/* A form of a command, like `trireme data tokenize FILES... --tokenizer FILE|DIR -o PREFIX`. */
typedef struct form {
    const cli_command *command;
    const char *name; /* of the command, and the part */
    char usage[768];  /* with the part, without the command */
} form;

static bool begins(const char *text, const char *word) {
    return strncmp(text, word, strlen(word)) == 0;
}

/* Finds the form that "COMMAND PART", or "COMMAND", names. Without a part of this name the form is
 * the one that begins with an operand, or else the whole usage. */
static form form_of(const char *name) {
    const size_t length = strcspn(name, " ");
    const char *part = name + length + (name[length] == ' ');
    form f = {.name = name};
    for (int i = 0; i < cli_command_count; i++)
        if (strlen(cli_commands[i].name) == length && !strncmp(cli_commands[i].name, name, length))
            f.command = &cli_commands[i];
    (void)snprintf(f.usage, sizeof f.usage, "%s", f.command->arguments);
    /* The bars between forms have blanks around them, and so has one within brackets. */
    int depth = 0;
    for (const char *at = f.command->arguments, *begin = at;; at++) {
        depth += (*at == '[') - (*at == ']');
        if (*at && (depth > 0 || strncmp(at, " | ", 3) != 0)) continue;
        const bool is_it = *part ? begins(begin, part) && begin[strlen(part)] == ' '
                                 : *begin >= 'A' && *begin <= 'Z';
        if (is_it) (void)snprintf(f.usage, sizeof f.usage, "%.*s", (int)(at - begin), begin);
        if (is_it || !*at) return f;
        begin = at + 3;
    }
}

tr_status cli_usage(const char *name, const char *format, ...) {
    char sentence[2 * PATH_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    const form f = form_of(name);
    const char *usage = strchr(name, ' ') ? f.usage : f.command->arguments;
    return TR_FAIL(TR_ERR_USAGE, "%s; usage: trireme %s%s%s", sentence, f.command->name,
                   *usage ? " " : "", usage);
}

/* Returns the option of another spelling, with one dash for two or the reverse; or NULL. */
static const char *with_other_dashes(const form *f, const char *option, char *text, size_t size) {
    const bool two = option[1] == '-';
    (void)snprintf(text, size, "%s%s", two ? "" : "-", option + two);
    return text[1] && after_option(f->usage, text, strlen(text)) ? text : NULL;
}

/* Returns true when the form takes this key: all that a config has, or those that the help of the
 * command names. */
static bool takes_key(const form *f, const char *key) {
    const char *details = f->command->details;
    return strstr(f->usage, "[key=value") &&
           (begins(f->usage, "CONFIG") || (details && strstr(details, key)));
}

/* Returns the nearest option of the form, or NULL. */
static const char *nearest_option(const form *f, const char *option,
                                  char known[MOST_OPTIONS][OPTION_SIZE]) {
    const int count = list_options(f->usage, known);
    int near = find_begun(option, known, count);
    if (near < 0) near = tr_nearest(option, option_name, known, count);
    return near < 0 ? NULL : known[near];
}

/* Fails for an option of run, or of another program's launcher, for the name of a key, and for an
 * option that has a remark. Returns TR_OK for other options. bare: without its dashes. */
static tr_status known_otherwise(const form *f, const char *option, const char *bare) {
    const cli_command *run = cli_find("run");
    const bool runs = !cli_is_of_one(f->name) && f->command != run;
    const bool of_run = after_option(run->arguments, option, strlen(option)) || !strcmp(bare, "np");
    const char *ours = tr_option_elsewhere(bare, run->arguments);
    if (runs && of_run)
        return TR_FAIL(TR_ERR_USAGE, "%s is an option of run, before the command: trireme run %s",
                       option, run->arguments);
    if (runs && ours)
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean `trireme run %s %s ...`?",
                       option, ours, f->name);
    if (tr_schema_find(bare) >= 0 && takes_key(f, bare))
        return TR_FAIL(TR_ERR_USAGE, "%s is a key: write it with its value, as %s=VALUE", option,
                       bare);
    ours = tr_key_elsewhere(bare);
    if (ours && takes_key(f, ours))
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean the key %s?", option, ours);
    ours = tr_remark_elsewhere(bare, f->command->name);
    return ours ? TR_FAIL(TR_ERR_USAGE, "unknown option %s: %s", option, ours) : TR_OK;
}

tr_status cli_unknown_option(const char *name, const char *word) {
    char known[MOST_OPTIONS][OPTION_SIZE], option[256], other[264];
    (void)snprintf(option, sizeof option, "%.*s", (int)strcspn(word, "="), word);
    const char *bare = option + strspn(option, "-");
    const form f = form_of(name);
    if (!strcmp(option, "--backtrace"))
        return TR_FAIL(TR_ERR_USAGE, "--backtrace goes before the command: trireme --backtrace %s",
                       name);
    if (cli_is_help(option))
        return TR_FAIL(TR_ERR_USAGE, "%s goes right after the command: trireme %s --help", option,
                       f.command->name);
    const char *after = after_option(f.usage, option, strlen(option)),
               *rest = word + strlen(option);
    if (after && *after && *rest)
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean %s %s?", word, option,
                       rest + 1);
    if (after) return TR_FAIL(TR_ERR_USAGE, "%s takes no value: leave %s out", option, rest);
    if (access(word, F_OK) == 0)
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; write ./%s for the file of this name",
                       word, word);
    const char *digits = option + 2, *value = option[1] ? after_option(f.usage, option, 2) : NULL;
    if (value && *value && *digits && !digits[strspn(digits, "0123456789")])
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean %.2s %s?", option, option,
                       digits);
    const char *ours = with_other_dashes(&f, option, other, sizeof other);
    if (!ours) ours = tr_option_elsewhere(bare, f.usage);
    if (ours && *ours != '-')
        return TR_FAIL(TR_ERR_USAGE,
                       "unknown option %s; write %s without an option, as in `trireme %s %s`",
                       option, ours, name, ours);
    if (!ours) TR_TRY(known_otherwise(&f, option, bare));
    if (!ours && bare[0] && bare[1]) ours = nearest_option(&f, option, known);
    if (ours) return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean %s?", option, ours);
    const int key = bare[0] && bare[1] ? tr_schema_nearest(bare) : -1;
    if (key >= 0 && takes_key(&f, tr_schema[key].name))
        return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean the key %s?", option,
                       tr_schema[key].name);
    ours = begins(f.usage, "CONFIG ") ? tr_command_elsewhere(bare) : NULL;
    if (ours) return TR_FAIL(TR_ERR_USAGE, "unknown option %s; did you mean %s?", option, ours);
    return TR_FAIL(TR_ERR_USAGE, "unknown option %s; usage: trireme %s %s", option, f.command->name,
                   f.usage);
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
    if (after_option(cli_find(name)->arguments, option, strlen(option)))
        return cli_usage(name, "a value is missing after %s", option);
    return cli_unknown_option(name, option);
}
