#include "cli/schedule_args.h"

#include "base/digits.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/elsewhere.h"
#include "pipeline/orders/csv.h"
#include "pipeline/orders/make.h"

#include <string.h>
#include <unistd.h>

/* Of ranks, and of stages a rank: as of parallel.pp and parallel.virtual. */
enum { MOST = 1 << 24, MOST_RANKS = 4096 };
/* Within these limits sums over all actions of a schedule stay finite, and so do quotients of two
 * sums. */
static const double LEAST_COST = 1e-30, MOST_COST = 1e30;

void cli_schedule_args_init(const char *command, cli_schedule_args *args) {
    *args = (cli_schedule_args){.command = command,
                                .request = {.share = {.f = 1, .i = 1, .w = 1, .m_b = 1}}};
}

static tr_status take_count(const char *command, const char *option, const char *value, int most,
                            int *out) {
    int64_t n;
    TR_TRY(cli_take_integer(command, option, value, 1, most, &n));
    *out = (int)n;
    return TR_OK;
}

typedef struct field {
    const char *key;
    double *value;
} field;

/* Parses "F=1,W=0.5" and sets the fields that it names. */
static tr_status take_fields(const char *command, const char *option, const char *text,
                             const field *fields, int count) {
    char known[64] = "";
    for (int k = 0; k < count; k++) {
        if (k) (void)strcat(known, ", ");
        (void)strcat(known, fields[k].key);
    }
    for (const char *at = text;; at++) {
        size_t key = strcspn(at, "=,");
        int found = 0;
        while (found < count &&
               (strlen(fields[found].key) != key || strncmp(fields[found].key, at, key) != 0))
            found++;
        if (found == count || at[key] != '=')
            return cli_usage(command, "%s takes %s as in %s=1, not '%.*s'", option, known,
                             fields[0].key, (int)strcspn(at, ","), at);
        const char *number = at + key + 1, *end = number;
        double value = -1;
        bool number_ends = tr_number_read(&end, &value) && (!*end || *end == ',');
        if (!number_ends || !(value == 0 || (value >= LEAST_COST && value <= MOST_COST)))
            return cli_usage(command, "%s: %s must be 0 or between %g and %g, not '%.*s'", option,
                             fields[found].key, LEAST_COST, MOST_COST, (int)strcspn(number, ","),
                             number);
        *fields[found].value = value;
        at = end;
        if (!*at) return TR_OK;
    }
}

tr_status cli_schedule_args_take(cli_schedule_args *args, int argc, char **argv, int *at,
                                 bool *taken) {
    tr_schedule_request *r = &args->request;
    const field costs[] = {
        {"F", &r->share.f}, {"I", &r->share.i}, {"W", &r->share.w}, {"c", &r->latency}};
    const field memory[] = {{"mB", &r->share.m_b}, {"mW", &r->share.m_w}, {"cap", &r->cap}};
    const struct {
        const char *option;
        int *count, most;
    } counts[] = {{"-p", &r->ranks, MOST_RANKS},
                  {"-m", &r->micro_batches, MOST},
                  {"-v", &r->chunks, MOST_RANKS},
                  {"-N", &r->group, MOST}};
    const char *option = argv[*at];
    bool is_costs = !strcmp(option, "--costs"), is_memory = !strcmp(option, "--memory");
    int k = 0;
    while (k < 4 && strcmp(option, counts[k].option)) k++;
    *taken = is_costs || is_memory || k < 4;
    if (!*taken) return TR_OK;
    if (*at + 1 == argc) return cli_usage(args->command, "a value is missing after %s", option);
    const char *value = argv[++*at];
    if (k < 4) return take_count(args->command, option, value, counts[k].most, counts[k].count);
    if (is_memory) {
        TR_TRY(take_fields(args->command, option, value, memory, 3));
        return r->share.m_b > 0
                   ? TR_OK
                   : cli_usage(args->command,
                               "--memory: mB must be more than 0, because it is the unit");
    }
    TR_TRY(take_fields(args->command, option, value, costs, 4));
    if (r->share.f + r->share.i + r->share.w <= 0)
        return cli_usage(args->command, "--costs: one of F, I and W must be more than 0");
    return TR_OK;
}

static tr_status check_size(const cli_schedule_args *args, const char *name, const char *option,
                            int given, int size) {
    if (!given || given == size) return TR_OK;
    return cli_usage(args->command, "%s %d contradicts %s, which has %d: leave %s out", option,
                     given, name, size, option);
}

static tr_status open_file(const cli_schedule_args *args, const char *path, tr_schedule **out) {
    const tr_schedule_request *r = &args->request;
    tr_schedule *s = NULL;
    TR_TRY(tr_schedule_load(path, &s));
    tr_status status = check_size(args, path, "-p", r->ranks, s->ranks);
    if (status == TR_OK) status = check_size(args, path, "-m", r->micro_batches, s->micro_batches);
    if (status == TR_OK && r->chunks && (int64_t)r->chunks * s->ranks != s->stages)
        status = cli_usage(args->command,
                           "-v %d contradicts %s, which has %d stages on %d ranks: leave -v out",
                           r->chunks, path, s->stages, s->ranks);
    if (status != TR_OK) {
        tr_schedule_destroy(s);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *out = s;
    return TR_OK;
}

/* Fails with the schedule that the name probably means, or else with all of them. */
static tr_status unknown_name(const char *name) {
    const char *known[64];
    int count = 0;
    tr_schedule *none;
    while (count < 64 && (known[count] = tr_schedule_name(count, NULL))) count++;
    const tr_hint hint = tr_value_hint(name, known, count);
    if (*hint.text)
        return TR_FAIL(TR_ERR_CONFIG, "there is no file '%s'; unknown schedule '%s'%s", name, name,
                       hint.text);
    const tr_status status = tr_schedule_make(&(tr_schedule_request){.name = name}, &none);
    return TR_FAIL(status, "there is no file '%s'; %s", name, tr_error_message());
}

/* Returns true for the name of a known schedule. */
static bool is_name(const char *name) {
    const char *known;
    for (int k = 0; (known = tr_schedule_name(k, NULL)); k++)
        if (!strcmp(known, name)) return true;
    return false;
}

bool cli_schedule_is_file(const char *name) {
    return strchr(name, '/') || tr_text_ends(name, ".csv") ||
           (!is_name(name) && access(name, F_OK) == 0);
}

tr_status cli_schedule_open(const cli_schedule_args *args, const char *name, tr_schedule **out) {
    if (cli_schedule_is_file(name)) return open_file(args, name, out);
    if (is_name(name) && (!args->request.ranks || !args->request.micro_batches))
        return cli_usage(args->command, "schedule %s needs the ranks, -p, and micro-batches, -m",
                         name);
    if (!is_name(name)) return unknown_name(name);
    tr_schedule_request request = args->request;
    request.name = name;
    return tr_schedule_make(&request, out);
}

tr_status cli_schedule_estimate(const cli_schedule_args *args, const tr_schedule *schedule,
                                bool times, tr_estimate **out) {
    tr_estimate_options options = {
        .share = args->request.share, .latency = args->request.latency, .times = times};
    return tr_estimate_order(schedule, &options, out);
}
