/* trireme schedule NAME|FILE ...: prints an order as CSV; check FILE.csv: proves that it can run;
 * show: draws it in the terminal, as SVG and as a trace. */
#include "base/output.h"
#include "cli/cli.h"
#include "cli/schedule_args.h"
#include "pipeline/draw/draw.h"
#include "pipeline/orders/auto.h"
#include "pipeline/orders/check.h"
#include "pipeline/orders/csv.h"
#include "pipeline/orders/transfers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_SHOWN = 16, USUAL_WIDTH = 120 };

typedef struct schedule_args {
    cli_schedule_args schedule;
    const char *name[MOST_SHOWN];
    int names;
    const char *output, *svg, *trace;
    bool comms;
} schedule_args;

/* Reads options and names. command: the part that is called, or "schedule" alone. */
static tr_status parse(int argc, char **argv, const char *command, schedule_args *a) {
    const bool show = !strcmp(command, "schedule show");
    *a = (schedule_args){0};
    cli_schedule_args_init(command, &a->schedule);
    for (int i = strchr(command, ' ') ? 2 : 1; i < argc; i++) {
        bool taken;
        TR_TRY(cli_schedule_args_take(&a->schedule, argc, argv, &i, &taken));
        if (taken) continue;
        if (!show && !strcmp(argv[i], "--comms")) {
            a->comms = true;
            continue;
        }
        const char **path = NULL;
        if (!show && !strcmp(argv[i], "-o")) path = &a->output;
        if (show && !strcmp(argv[i], "--svg")) path = &a->svg;
        if (show && !strcmp(argv[i], "--trace")) path = &a->trace;
        if (path) {
            if (i + 1 == argc) return cli_usage(command, "a file is missing after %s", argv[i]);
            *path = argv[++i];
        } else if (argv[i][0] == '-') return cli_unknown_option(command, argv[i]);
        else if (a->names == (show ? MOST_SHOWN : 1))
            return cli_usage(command, "more than one schedule: %s", argv[i]);
        else a->name[a->names++] = argv[i];
    }
    if (!a->names) return cli_usage(command, "no schedule was named");
    if (cli_is_stdout(a->output)) a->output = NULL;
    if (cli_is_stdout(a->svg) && cli_is_stdout(a->trace))
        return cli_usage(command, "--svg and --trace both write to stdout: name a file for one");
    return TR_OK;
}

/* A file for a drawing or an order. */
typedef struct output {
    const char *path;
    char opened[4200]; /* where it is written: in place, or PATH.tmp for a regular or a new file */
    FILE *file;
} output;

/* Opens the descriptor that a path like /dev/fd/3 names: the text goes where the shell's
 * redirection puts it, which may be at the end of a file. */
static FILE *open_descriptor(const char *path) {
    const int fd = dup(cli_descriptor(path));
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    const int cause = errno;
    if (fd >= 0 && !file) (void)close(fd);
    errno = cause;
    return file;
}

/* Opens a file by its name. A link, a pipe and a device are written in place, and also a file next
 * to which no other one can be made. */
static void open_path(const char *path, output *out) {
    struct stat info;
    const bool exists = lstat(path, &info) == 0, is_new = !exists && errno == ENOENT;
    bool in_place = !is_new;
    if (is_new || (exists && S_ISREG(info.st_mode))) {
        (void)snprintf(out->opened, sizeof out->opened, "%s.tmp", path);
        out->file = fopen(out->opened, "w");
        in_place = exists && (errno == EACCES || errno == EPERM || errno == ENAMETOOLONG);
    }
    if (out->file || !in_place) return;
    (void)snprintf(out->opened, sizeof out->opened, "%s", path);
    out->file = fopen(path, "w"); /* waits for the reader of a pipe */
}

static tr_status open_output(const char *path, output *out) {
    *out = (output){.path = path, .file = cli_is_stdout(path) ? stdout : NULL};
    if (out->file) return TR_OK;
    if (cli_descriptor(path) < 0) open_path(path, out);
    else {
        (void)snprintf(out->opened, sizeof out->opened, "%s", path);
        out->file = open_descriptor(path);
    }
    if (out->file) return TR_OK;
    if (errno == EISDIR) return TR_FAIL(TR_ERR_DATA, "'%s' is a directory: name a file", path);
    return TR_FAIL(TR_ERR_IO, "'%s' cannot be written: %s%s", path, strerror(errno),
                   errno == ENOENT    ? ": make its folder first"
                   : errno == ENOTDIR ? ": choose another path"
                                      : "");
}

/* A failure leaves the old file, or none, unless it is written in place. The error of stdout is
 * seen at the end of the command. */
static tr_status close_output(output *out, tr_status status) {
    if (out->file == stdout) return status;
    if (strcmp(out->opened, out->path) == 0) return tr_output_close(out->path, out->file, status);
    return tr_output_replace(out->opened, out->path, out->file, status);
}

/* Searches an order, and prints to stderr how far it is from the lower bound, because the order
 * itself may go to stdout. */
static tr_status search(const schedule_args *a, tr_schedule **out) {
    tr_schedule_request request = a->schedule.request;
    tr_auto_report report;
    if (!request.ranks || !request.micro_batches)
        return cli_schedule_open(&a->schedule, "auto", out);
    request.name = "auto";
    TR_TRY(tr_schedule_auto(&request, &report, out));
    (void)fprintf(
        a->output ? stdout : stderr,
        "auto: makespan %.6g, %.2f%% above the lower bound %.6g; %d stages a rank, %s%s\n",
        report.makespan, 100 * (report.gap > 1e-12 ? report.gap : 0), report.bound, report.chunks,
        strcmp(report.from, "list") ? "from " : "made for these costs",
        strcmp(report.from, "list") ? report.from : "");
    return TR_OK;
}

/* Prints the order with its transfers. A file that already has them (compute_comms) keeps its
 * own. */
static tr_status print_comms(const tr_schedule *s, char **text) {
    tr_schedule *listed = NULL;
    if (s->listed) return tr_schedule_print(s, true, text);
    TR_TRY(tr_schedule_list_transfers(s, NULL, &listed));
    tr_status status = tr_schedule_print(listed, true, text);
    tr_schedule_destroy(listed);
    return status;
}

static tr_status make(int argc, char **argv) {
    schedule_args a;
    tr_schedule *s = NULL;
    char *text = NULL;
    output out;
    tr_status status = TR_OK;
    TR_TRY(parse(argc, argv, "schedule", &a));
    if (!strcmp(a.name[0], "auto")) TR_TRY_OUT(search(&a, &s));
    else TR_TRY_OUT(cli_schedule_open(&a.schedule, a.name[0], &s));
    TR_TRY_OUT(a.comms ? print_comms(s, &text) : tr_schedule_print(s, false, &text));
    if (!a.output) (void)fputs(text, stdout);
    else {
        TR_TRY_OUT(open_output(a.output, &out));
        (void)fputs(text, out.file);
        TR_TRY_OUT(close_output(&out, TR_OK));
    }
out:
    free(text);
    tr_schedule_destroy(s);
    return status;
}

static tr_status check(int argc, char **argv) {
    schedule_args a;
    tr_schedule *s = NULL;
    tr_schedule_report report;
    tr_status status = TR_OK;
    TR_TRY(parse(argc, argv, "schedule check", &a));
    if (a.output || a.comms) return cli_usage("schedule check", "check does not write an order");
    TR_TRY_OUT(cli_schedule_open(&a.schedule, a.name[0], &s));
    TR_TRY_OUT(tr_schedule_check(s, NULL, &report));
    (void)printf("%s: %d ranks, %d stages, %d micro-batches%s; every action occurs once, and the "
                 "order runs to its end\n",
                 a.name[0], s->ranks, s->stages, s->micro_batches,
                 s->forward_only ? ", forward only" : "");
    if (*report.note) (void)printf("note: %s\n", report.note);
out:
    tr_schedule_destroy(s);
    return status;
}

/* --- show ------------------------------------------------------------------------------------- */

static tr_draw_text_options terminal(void) {
    const char *no_colour = getenv("NO_COLOR"), *columns = getenv("COLUMNS");
    struct winsize size = {0};
    tr_draw_text_options options = {.width = USUAL_WIDTH};
    bool is_terminal = isatty(STDOUT_FILENO);
    if (columns && atoi(columns) > 0) options.width = atoi(columns);
    else if (is_terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        options.width = size.ws_col;
    options.colour = is_terminal && !(no_colour && *no_colour);
    return options;
}

static tr_status plan(const schedule_args *a, const char *name, tr_timeline **out) {
    tr_schedule *s = NULL;
    tr_estimate *e = NULL;
    tr_status status = TR_OK;
    TR_TRY_OUT(cli_schedule_open(&a->schedule, name, &s));
    TR_TRY_OUT(cli_schedule_estimate(&a->schedule, s, true, &e));
    TR_TRY_OUT(tr_timeline_of_estimate(name, s, NULL, e, out));
out:
    tr_estimate_destroy(e);
    tr_schedule_destroy(s);
    return status;
}

static tr_status draw_to(const char *path, const tr_timeline *const *timelines, int count,
                         tr_status (*draw)(const tr_timeline *const *, int, FILE *)) {
    output out;
    if (!path) return TR_OK;
    TR_TRY(tr_draw_check(timelines, count));
    TR_TRY(open_output(path, &out));
    return close_output(&out, draw(timelines, count, out.file));
}

static tr_status draw_svg(const tr_timeline *const *timelines, int count, FILE *out) {
    return tr_draw_svg(timelines, count, &(tr_draw_svg_options){0}, out);
}

static tr_status show(int argc, char **argv) {
    schedule_args a;
    tr_timeline *timelines[MOST_SHOWN] = {NULL};
    tr_status status = TR_OK;
    TR_TRY(parse(argc, argv, "schedule show", &a));
    /* A file that goes to stdout is alone there. */
    const bool draws = !cli_is_stdout(a.svg) && !cli_is_stdout(a.trace);
    const tr_timeline *const *drawn = (const tr_timeline *const *)timelines;
    tr_draw_text_options options = terminal();
    for (int k = 0; k < a.names; k++) TR_TRY_OUT(plan(&a, a.name[k], &timelines[k]));
    TR_TRY_OUT(draw_to(a.svg, drawn, a.names, draw_svg));
    TR_TRY_OUT(draw_to(a.trace, drawn, a.names, tr_draw_trace));
    for (int k = 0; k < a.names && draws; k++) {
        if (k) (void)putchar('\n');
        TR_TRY_OUT(tr_draw_text(timelines[k], &options, stdout));
    }
out:
    for (int k = 0; k < a.names; k++) tr_timeline_destroy(timelines[k]);
    return status;
}

tr_status cli_schedule(cli_context *cli, int argc, char **argv) {
    (void)cli;
    if (argc > 1 && !strcmp(argv[1], "check")) return check(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "show")) return show(argc, argv);
    return make(argc, argv);
}
