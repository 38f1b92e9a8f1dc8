/* trireme train CONFIG [--resume[=auto]] [--time-limit T] [--trace N] [--debug-nan]
 *               [key=value ...] */
#include "base/clock.h"
#include "base/memory.h"
#include "cli/ranks.h"
#include "job/launch.h"
#include "job/process.h"
#include "train/time_limit.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct request {
    const char *config;
    tr_resume resume;
    int trace;
    bool debug_nan;
    double time_limit_s; /* 0: none */
    const char *time_limit;
    const char **overrides;
    int count;
} request;

enum { MOST_TRACED = 1000 };

/* How long a rank of the job before a restart may hold log.dir. */
static const double PATIENCE_S = 60;

static tr_status parse_trace(int argc, char **argv, int *at, int *trace) {
    if (*at + 1 == argc) return cli_usage("train", "--trace takes the number of steps to record");
    int64_t n;
    TR_TRY(cli_take_integer("train", "--trace", argv[++*at], 1, MOST_TRACED, &n));
    *trace = (int)n;
    return TR_OK;
}

static tr_status parse_time_limit(int argc, char **argv, int *at, request *r) {
    if (*at + 1 == argc) return cli_usage("train", "--time-limit takes a duration, such as 1h30m");
    r->time_limit = argv[++*at];
    if (tr_time_limit_parse(r->time_limit, &r->time_limit_s) == TR_OK) return TR_OK;
    return cli_usage("train", "%s", tr_error_message());
}

/* Returns the seconds since the launcher began, so with the jobs before a restart; without a
 * launcher, since this process began. A rank on another host adds the launcher's age at the start
 * of mpirun to its own. */
static double age_s(tr_board *board) {
    pid_t launcher = tr_board_launcher(board);
    const char *elapsed = getenv(TR_ELAPSED_VARIABLE);
    if (launcher) return tr_process_age_s(launcher);
    return tr_process_age_s(getpid()) + (elapsed ? strtod(elapsed, NULL) : 0);
}

static tr_status parse(int argc, char **argv, request *r) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--resume") == 0) r->resume = TR_RESUME_YES;
        else if (strcmp(argv[i], "--resume=auto") == 0) r->resume = TR_RESUME_AUTO;
        else if (strncmp(argv[i], "--resume=", 9) == 0)
            return cli_usage("train",
                             "--resume takes =auto or nothing, not '%s': it continues the run in "
                             "log.dir",
                             argv[i] + 8);
        else if (strcmp(argv[i], "--debug-nan") == 0) r->debug_nan = true;
        else if (strcmp(argv[i], "--trace") == 0) TR_TRY(parse_trace(argc, argv, &i, &r->trace));
        else if (strcmp(argv[i], "--time-limit") == 0) TR_TRY(parse_time_limit(argc, argv, &i, r));
        else if (cli_is_setting(argv[i], !r->config && !r->count))
            r->overrides[r->count++] = argv[i];
        else if (argv[i][0] == '-') return cli_unknown_option("train", argv[i]);
        else if (r->config && r->resume == TR_RESUME_YES && !strcmp(argv[i - 1], "--resume"))
            return cli_usage("train", "--resume continues the run in log.dir: write log.dir=%s",
                             argv[i]);
        else if (r->config)
            return cli_usage("train", "more than one config, or a key without its value: %s",
                             argv[i]);
        else r->config = argv[i];
    }
    if (!r->config)
        return cli_usage("train", "no config was given: name a YAML file, which may be empty when "
                                  "arguments set its keys");
    return TR_OK;
}

static tr_status load(const request *r, tr_config *config) {
    TR_TRY(tr_config_load(r->config, r->overrides, r->count, config));
    return tr_config_check_data(config);
}

tr_status cli_train_config(int argc, char **argv, tr_config *config) {
    request r = {0};
    TR_TRY(tr_calloc((size_t)argc + 1, sizeof *r.overrides, &r.overrides));
    tr_status status = parse(argc, argv, &r);
    if (status == TR_OK) status = tr_config_load(r.config, r.overrides, r.count, config);
    free(r.overrides);
    return status;
}

/* Trains on one rank. */
static tr_status train(cli_context *cli, tr_rank_process *process, tr_world *world, int argc,
                       char **argv) {
    tr_config config;
    request r = {0};
    /* Every rank reads the command and the config; rank 0 reports for all when one is wrong. */
    tr_status status = tr_calloc((size_t)argc + 1, sizeof *r.overrides, &r.overrides);
    if (status == TR_OK) status = parse(argc, argv, &r);
    status = tr_world_agree(world, status);
    if (status == TR_OK) status = tr_world_agree(world, load(&r, &config));
    /* Set before the run's config is recorded, because another number of threads may change the
     * bits of sums. */
    if (status == TR_OK && config.train.threads == 0) config.train.threads = tr_world_cores(world);
    if (status == TR_OK) status = tr_rank_process_begin(process, world, config.parallel.deadline);
    if (status == TR_OK) {
        tr_board *board = tr_rank_process_board(process);
        const char *restarted = getenv(TR_RESTART_VARIABLE);
        tr_train_options options = {.resume = r.resume,
                                    .trace = r.trace,
                                    .debug_nan = r.debug_nan,
                                    .time_limit = r.time_limit,
                                    .time_end_s = tr_now_s() + r.time_limit_s - age_s(board),
                                    .patience_s = restarted ? PATIENCE_S : 0,
                                    .job = restarted ? restarted : getenv(TR_BOARD_VARIABLE),
                                    .board = board,
                                    .out = stdout,
                                    .warnings = stderr};
        status = tr_train(&config, world, &options);
    }
    cli_leave(cli, process, world, status);
    free(r.overrides);
    return status;
}

tr_status cli_train(cli_context *cli, int argc, char **argv) {
    cli->keeps_output = true; /* log.dir/log.txt */
    return cli_on_ranks(cli, !cli->silent, train, argc, argv);
}
