/* trireme ckpt import FROM RUN
 * trireme ckpt export RUN FOLDER [--adapter] [--dtype TYPE] [--step N] [--max-shard-size SIZE]
 *
 * They run on one rank, or on several under `trireme run`. */
#include "cli/ckpt_transfer.h"

#include "base/digits.h"
#include "base/launched.h"
#include "cli/ranks.h"
#include "config/elsewhere.h"
#include "job/rank_process.h"
#include "train/transfer.h"

#include <stdio.h>
#include <string.h>

typedef struct request {
    bool imports;
    const char *from, *to;
    tr_export_options options;
} request;

/* Returns the name of the part, for messages. */
static const char *part_of(const request *r) {
    return r->imports ? "ckpt import" : "ckpt export";
}

static tr_status take_size(const char *text, int64_t *bytes) {
    const char *unit = text;
    int64_t n;
    if (tr_digits_read(&unit, INT64_MAX, &n) && n > 0 && tr_digits_unit(unit) &&
        !__builtin_mul_overflow(n, tr_digits_unit(unit), bytes))
        return TR_OK;
    return cli_usage("ckpt export",
                     "--max-shard-size must be a whole number of bytes, kB, KiB, MB, MiB, GB, GiB, "
                     "TB or TiB, like 5GB, not '%.80s'",
                     text);
}

static tr_status take_option(const char *option, const char *value, request *r) {
    static const char *const known[] = {"--step", "--max-shard-size", "--dtype"};
    static const char *const types[] = {"fp32", "bf16", "fp16"};
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known = is_known || !strcmp(option, known[i]);
    if (!is_known || r->imports) return cli_unknown_option(part_of(r), option);
    if (!value) return cli_usage("ckpt export", "a value is missing after %s", option);
    if (!strcmp(option, "--step"))
        return cli_take_integer("ckpt export", option, value, 0, INT64_MAX, &r->options.step);
    if (!strcmp(option, "--max-shard-size")) return take_size(value, &r->options.shard_bytes);
    r->options.dtype = value;
    for (int i = 0; i < 3; i++)
        if (!strcmp(value, types[i])) return TR_OK;
    return cli_usage("ckpt export", "--dtype must be fp32, bf16 or fp16, not '%.80s'%s", value,
                     tr_value_hint(value, types, 3).text);
}

static tr_status parse(int argc, char **argv, request *r) {
    *r = (request){.imports = !strcmp(argv[1], "import"),
                   .options = {.step = -1, .shard_bytes = 5000000000}};
    for (int i = 2; i < argc; i++) {
        if (!r->imports && !strcmp(argv[i], "--adapter")) r->options.adapter = true;
        else if (argv[i][0] == '-') {
            TR_TRY(take_option(argv[i], argv[i + 1], r)); /* argv ends in NULL */
            i++;
        } else if (!r->from) r->from = argv[i];
        else if (!r->to) r->to = argv[i];
        else return cli_usage(part_of(r), "more than two paths: %s", argv[i]);
    }
    if (!r->from || !r->to || !*r->from || !*r->to)
        return cli_usage(part_of(r), "%s takes two paths, where from and where to", part_of(r));
    r->options.run = r->from;
    r->options.folder = r->to;
    return TR_OK;
}

static tr_status transfer(tr_world *world, tr_board *board, const request *r) {
    if (r->imports) return tr_import(world, board, r->from, r->to, stdout);
    if (r->options.step < 0 && tr_world_rank(world) == 0) cli_warn_of_skipped(r->from);
    return tr_export(world, board, &r->options, stdout);
}

/* One process without a launcher needs no MPI. */
static tr_status open_world(tr_world **world) {
    return tr_is_launched() ? tr_world_open_mpi(world) : tr_world_open_local(1, world);
}

static tr_status run(cli_context *cli, const request *r) {
    tr_world *world = NULL;
    tr_rank_process *process = NULL;
    /* It does not say that a signal finishes a step and saves, because there is none. */
    tr_status status = tr_rank_process_enter(false, &process);
    if (status == TR_OK) status = open_world(&world);
    if (status != TR_OK) {
        (void)tr_rank_process_end(process, status, cli->backtrace, &(bool){false});
        return status;
    }
    status = tr_rank_process_begin(process, world, 0);
    if (status == TR_OK) status = transfer(world, tr_rank_process_board(process), r);
    cli_leave(cli, process, world, status);
    tr_world_close(world);
    return status;
}

tr_status cli_ckpt_transfer(cli_context *cli, int argc, char **argv) {
    request r;
    TR_TRY(parse(argc, argv, &r));
    return run(cli, &r);
}
