/* The commands of the program `trireme`: one file each, one row each in the table in commands.c. */
#pragma once

#include "base/status.h"
#include "config/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_context {
    bool backtrace; /* --backtrace before the command, or TRIREME_BACKTRACE=1 */
    /* This process does not print the error that ends it, because another rank prints the same.
     * main sets it from the launcher's rank number; a command clears it when its ranks have not
     * agreed on the error. */
    bool silent;
    /* The command also writes its output to a file, so a closed stdout is not an error. */
    bool keeps_output;
} cli_context;

typedef struct cli_command {
    const char *name;
    const char *arguments; /* "CONFIG [key=value ...]" */
    const char *summary;   /* one line */
    /* Runs the command; argv[0] is its name. Returns the exit code; when it is not 0, main prints
     * this thread's error, if there is one. */
    tr_status (*run)(cli_context *cli, int argc, char **argv);
    const char *details; /* NULL, or lines that `trireme help NAME` adds; defaults in brackets */
} cli_command;

extern const cli_command cli_commands[];
extern const int cli_command_count;

/* Returns the command of that name, or NULL. */
const cli_command *cli_find(const char *name);

/* Fails with TR_ERR_USAGE: "<sentence>; usage: trireme NAME ARGUMENTS". name: of a command, or of a
 * part ("data tokenize"), the form of which is then the usage. */
tr_status cli_usage(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns true for --help and -h. */
bool cli_is_help(const char *word);
/* Makes two words of each "--option=value" where the command's usage has this option with a value.
 * argv[1] names the command, and for `run` the first word after its options names that of the
 * ranks. Keys, the values of other options and what follows "--" stay. Writes into the words; the
 * caller frees the list *out[*count], which ends in NULL, and not the words. */
tr_status cli_split_options(int argc, char **argv, int *count, char ***out);
/* Fails with TR_ERR_USAGE for an option that a command, or a part of it ("data tokenize"), does not
 * have: names what the user probably meant, or else the usage. option: may have "=VALUE". */
tr_status cli_unknown_option(const char *name, const char *option);
/* Returns true for a command, or a part ("ckpt ls"), that one process does as a whole. */
bool cli_is_of_one(const char *name);
/* Fails with TR_ERR_USAGE: says that a value is missing after the option, or that the command has
 * no such option. */
tr_status cli_missing_value(const char *name, const char *option);
/* Returns the command with a part of that name ("tokenize" of data), or NULL. */
const cli_command *cli_find_part(const char *name);
/* Returns the command that a user probably meant, or NULL. */
const cli_command *cli_find_near(const char *name);

/* Returns true for "key=value" and "--key=value", but not for "--option=value", which has no point
 * before the '='. The first argument of a command is its config if a file has that name. */
bool cli_is_setting(const char *argument, bool first);
/* Returns the number N of an open file that a path names, as /dev/fd/N does; 1 for "-", and -1 for
 * other paths and NULL. To open such a path again could empty a file to which the shell appends. */
int cli_descriptor(const char *path);
/* Returns true for "-", /dev/stdout and its other names; false for NULL. */
bool cli_is_stdout(const char *path);

/* Reads the value of a command's option: decimal, within both limits. Fails with TR_ERR_USAGE,
 * which names the limits. */
tr_status cli_take_integer(const char *command, const char *option, const char *text, int64_t least,
                           int64_t most, int64_t *out);
tr_status cli_take_number(const char *command, const char *option, const char *text, double least,
                          double most, double *out);

/* Warns on stderr when the newest checkpoint of a run is not valid, so that an older one is used.
 * Does nothing for a folder without checkpoints. */
void cli_warn_of_skipped(const char *run);

/* Says on stderr which of the keys that were given to sample or eval ("key=value") only training
 * reads. */
void cli_note_idle_keys(const char *command, const char *const *setting, int count);

/* Prints this thread's failure, once in a process, unless another rank does. Ranks call it before
 * they leave the world: at the first exit code other than 0 mpirun ends the job, including ranks
 * that have not printed yet. */
void cli_report(cli_context *cli, tr_status code);

/* Runs `data tokenize`; argv[0] is "data", argv[1] "tokenize". */
tr_status cli_data_tokenize(int argc, char **argv);
/* Trains a byte-level BPE on files and writes a tokenizer.json; argv[0] is "train-bpe". */
tr_status cli_data_train_bpe(int argc, char **argv);

tr_status cli_help(cli_context *cli, int argc, char **argv);
tr_status cli_ckpt(cli_context *cli, int argc, char **argv);
tr_status cli_data(cli_context *cli, int argc, char **argv);
tr_status cli_doctor(cli_context *cli, int argc, char **argv);
tr_status cli_eval(cli_context *cli, int argc, char **argv);
tr_status cli_plan(cli_context *cli, int argc, char **argv);
tr_status cli_run(cli_context *cli, int argc, char **argv);
tr_status cli_sample(cli_context *cli, int argc, char **argv);
tr_status cli_schedule(cli_context *cli, int argc, char **argv);
tr_status cli_simulate(cli_context *cli, int argc, char **argv);
tr_status cli_train(cli_context *cli, int argc, char **argv);
/* Loads the config that train with these arguments would load. */
tr_status cli_train_config(int argc, char **argv, tr_config *config);
