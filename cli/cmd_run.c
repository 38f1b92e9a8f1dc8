#include "base/input.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/elsewhere.h"
#include "job/hosts.h"
#include "job/launch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Splits text (which it changes) at blanks into words[max], NULL-terminated; false when too
 * many. */
static bool split(char *text, char **words, size_t max) {
    size_t n = 0;
    char *rest = NULL;
    for (char *w = strtok_r(text, " \t\n", &rest); w; w = strtok_r(NULL, " \t\n", &rest)) {
        if (n + 1 == max) return false;
        words[n++] = w;
    }
    words[n] = NULL;
    return true;
}

static tr_status parse_count(const char *option, const char *text, int least, int *count) {
    int64_t n;
    TR_TRY(cli_take_integer("run", option, text, least, 65536, &n));
    *count = (int)n;
    return TR_OK;
}

/* Reads the options before the command; *first is the command's index in argv. */
static tr_status parse_options(int argc, char **argv, tr_launch *launch, size_t max, int *first) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *option = argv[i];
        bool ranks = !strcmp(option, "-n") || !strcmp(option, "-np");
        bool hostfile = !strcmp(option, "--hostfile"), mpi = !strcmp(option, "--mpi");
        bool restarts = !strcmp(option, "--restarts");
        if (!ranks && !hostfile && !mpi && !restarts) return cli_unknown_option("run", option);
        if (++i == argc) return cli_usage("run", "a value is missing after %s", option);
        if (ranks) TR_TRY(parse_count("-n", argv[i], 1, &launch->ranks));
        if (restarts) TR_TRY(parse_count("--restarts", argv[i], 0, &launch->restarts));
        if (hostfile) launch->hostfile = argv[i];
        if (mpi && !split(argv[i], launch->mpirun_options, max)) {
            return cli_usage("run", "--mpi has more than %zu words", max - 1);
        }
    }
    if (launch->ranks == 0) return cli_usage("run", "the number of ranks is missing: give -n");
    if (i == argc) return cli_usage("run", "the command for the ranks is missing");
    *first = i;
    return TR_OK;
}

/* The command of a restart. */
typedef struct again {
    char **command; /* of the ranks, as given */
    int ranks;
    char **words; /* NULL-terminated, with room for one more: the same, and perhaps `dp` */
    int count;
    char dp[48]; /* a setting, for fewer hosts */
} again;

/* Copies the arguments of the command for a restart. The caller frees the list, not the words. */
static tr_status make_again(tr_launch *launch, again *out) {
    *out = (again){.command = launch->command, .ranks = launch->ranks};
    while (launch->command[out->count]) out->count++;
    TR_TRY(tr_calloc((size_t)out->count + 2, sizeof *out->words, &out->words));
    memcpy(out->words, launch->command, (size_t)out->count * sizeof *out->words);
    launch->again = out->words;
    return TR_OK;
}

/* Sets the largest parallel.dp for which there are slots; of two factors, 2x4, with fewer runs of
 * as many neighbours. (tr_launch.fit) */
static bool fit(void *context, int slots, int *ranks, char *text, size_t size) {
    again *a = context;
    tr_config config;
    int words = 0;
    a->words[a->count] = NULL;
    *ranks = a->ranks;
    if (slots >= a->ranks) return true;
    char **train = a->command + !strcmp(a->command[0], "--backtrace");
    while (train[words]) words++;
    if (slots <= 0) {
        (void)snprintf(text, size,
                       "the slots of the others are not known: say slots=N in the hostfile");
        return false;
    }
    if (cli_train_config(words, train, &config) != TR_OK) {
        (void)snprintf(text, size, "%s", tr_error_message());
        tr_error_clear();
        return false;
    }
    const int64_t line = config.parallel.pp * config.parallel.tp;
    const int64_t unit = config.parallel.copies > 1 ? tr_config_near(&config) : 1;
    char given[48], dp[48];
    (void)tr_config_dp_text(&config, given, sizeof given);
    while ((config.parallel.dp -= unit) > 0) {
        if (config.parallel.copies > 1) config.parallel.copies--;
        const int64_t needed = line * config.parallel.dp;
        if (needed > slots || tr_config_check(&config, (int)needed) != TR_OK) continue;
        *ranks = (int)needed;
        (void)snprintf(a->dp, sizeof a->dp, "parallel.dp=%s",
                       tr_config_dp_text(&config, dp, sizeof dp));
        (void)snprintf(text, size, "%s instead of %s", a->dp, given);
        a->words[a->count] = a->dp;
        return true;
    }
    tr_error_clear();
    (void)snprintf(text, size,
                   "the others have %d slots, and no smaller parallel.dp fits them and the batch",
                   slots);
    return false;
}

/* Refuses what every rank would refuse, before they are started. Another host may have a config
 * that this one has not. */
static tr_status check_train(int argc, char **argv, const tr_launch *launch) {
    tr_config config;
    tr_status status = cli_train_config(argc, argv, &config);
    if (status == TR_OK) return tr_config_check(&config, launch->ranks);
    if (status != TR_ERR_NOFILE || !launch->hostfile) return status;
    tr_error_clear();
    return TR_OK;
}

bool cli_is_of_one(const char *name) {
    static const char *const of_one[] = {"data",     "plan",    "schedule",
                                         "simulate", "ckpt ls", "ckpt verify"};
    for (size_t i = 0; i < sizeof of_one / sizeof *of_one; i++) {
        const size_t length = strlen(of_one[i]);
        if (!strncmp(name, of_one[i], length) && strchr(" ", name[length])) return true;
    }
    return false;
}

/* trireme run -n RANKS [--hostfile FILE] [--mpi "OPTIONS"] [--restarts N] COMMAND [ARGUMENTS] */
tr_status cli_run(cli_context *cli, int argc, char **argv) {
    enum { MAX_OPTIONS = 64 };
    char *options[MAX_OPTIONS] = {NULL};
    tr_launch launch = {.mpirun_options = options};
    int first = 0;
    TR_TRY(parse_options(argc, argv, &launch, MAX_OPTIONS, &first));
    if (!cli_find(argv[first]) || !strcmp(argv[first], "run")) {
        const cli_command *near = cli_find_near(argv[first]);
        const char *ours = tr_command_elsewhere(argv[first]);
        if (ours)
            return TR_FAIL(TR_ERR_USAGE, "ranks cannot run '%s'; did you mean %s?", argv[first],
                           ours);
        if (near && strcmp(near->name, "run") != 0)
            return TR_FAIL(TR_ERR_USAGE, "ranks cannot run '%s'; did you mean '%s'?", argv[first],
                           near->name);
        if (tr_text_ends(argv[first], ".yaml"))
            return TR_FAIL(TR_ERR_USAGE, "ranks cannot run '%s'; did you mean 'train %s'?",
                           argv[first], argv[first]);
        return TR_FAIL(TR_ERR_USAGE, "ranks cannot run '%s'; `trireme help` lists the commands",
                       argv[first]);
    }
    char name[64];
    (void)snprintf(name, sizeof name, "%s %s", argv[first], argv[first + 1] ? argv[first + 1] : "");
    if (launch.ranks > 1 && cli_is_of_one(name))
        return TR_FAIL(TR_ERR_USAGE,
                       "every rank would do all of `trireme %s`: call it without `run -n %d`",
                       argv[first], launch.ranks);
    launch.saves = strcmp(argv[first], "train") == 0;
    launch.shows = strcmp(argv[first], "sample") == 0 || strcmp(argv[first], "eval") == 0;
    for (int i = first; strcmp(argv[first], "sample") == 0 && i < argc; i++)
        launch.reads |= strcmp(argv[i], "--interactive") == 0;
    static char backtrace[] = "--backtrace";
    if (cli->backtrace)
        argv[--first] = backtrace; /* overwrites a word of run's own options, so the ranks get it */
    launch.command = argv + first;
    if (launch.restarts > 0 && !launch.saves)
        return cli_usage("run", "only train can be started again: leave --restarts out");
    if (launch.hostfile) {
        int fd;
        int64_t bytes;
        TR_TRY(tr_input_open("the hostfile", launch.hostfile, &fd, &bytes)); /* mpirun reads it */
        (void)close(fd);
        tr_hosts hosts;
        const bool none = tr_hosts_read(launch.hostfile, &hosts) == TR_OK && hosts.count == 0;
        tr_hosts_free(&hosts);
        tr_error_clear();
        if (none)
            return TR_FAIL(TR_ERR_DATA,
                           "the hostfile '%s' names no host: write one a line, like node1 slots=8",
                           launch.hostfile);
    }
    const bool traced = cli->backtrace; /* and in front of the command */
    if (launch.saves) TR_TRY(check_train(argc - first - traced, argv + first + traced, &launch));
    again restart = {0};
    if (launch.restarts > 0) TR_TRY(make_again(&launch, &restart));
    launch.fit = fit;
    launch.fit_context = &restart;
    cli->silent = true; /* the launcher or a rank prints the error */
    const int code = tr_launch_run(&launch);
    free(restart.words);
    return (tr_status)code;
}
