#include "pipeline/orders/csv.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "pipeline/orders/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger stage or micro-batch numbers are typing errors. */
enum { MOST = 1 << 20 };

/* --- cells ------------------------------------------------------------------------------------ */

/* A part of one line. */
typedef struct span {
    const char *at, *end;
} span;

typedef struct reader {
    const char *source, *line; /* the line's first byte */
    int row;
    /* Takes the actions of the file in their order. */
    tr_status (*take)(struct reader *in, tr_action action, int column);
    /* While the file is measured: */
    int stages, micro_batches;
    bool backward;           /* some I, W or B */
    bool acts;               /* this row has an F, I, W or B */
    bool transfers;          /* some other action */
    int empty_row, empty_at; /* the last empty cell; empty_at 0: none */
    int *rank_of;            /* [stages], -1: not met */
    size_t capacity;
    /* While actions are added to a schedule, or the place of one is searched: */
    tr_schedule *schedule;
    int rank, skip, column;
} reader;

/* "file:line:column: sentence". */
__attribute__((format(printf, 4, 5))) static tr_status
fail_at(const char *source, int row, int column, const char *format, ...) {
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return TR_FAIL(TR_ERR_CONFIG, "%s:%d:%d: %s", source, row + 1, column, sentence);
}

static bool is_space(char c) {
    return c == ' ' || c == '\t';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static span trim(span s) {
    while (s.at < s.end && is_space(*s.at)) s.at++;
    while (s.at < s.end && is_space(s.end[-1])) s.end--;
    return s;
}

static int column_of(const reader *in, const char *at) {
    return (int)(at - in->line) + 1;
}

/* Fails with a sentence that quotes a piece of the file; bytes other than printable ASCII are shown
 * as '?'. */
static tr_status refuse(const reader *in, const char *at, span piece, const char *problem) {
    char shown[48];
    size_t length = 0;
    for (const char *c = piece.at; c < piece.end && length < sizeof shown - 1; c++)
        shown[length++] = (char)(*c >= ' ' && *c <= '~' ? *c : '?');
    shown[length] = '\0';
    if (piece.end - piece.at > (ptrdiff_t)length) memcpy(shown + length - 3, "...", 3);
    return fail_at(in->source, in->row, column_of(in, at), "'%s' %s", shown, problem);
}

/* Reads decimal digits without leading zeros; *rest points behind them. */
static tr_status read_number(const reader *in, span whole, const char *at, const char *what,
                             int *number, const char **rest) {
    char problem[96];
    int n = 0;
    const char *c = at;
    for (; c < whole.end && is_digit(*c); c++) {
        n = n * 10 + (*c - '0');
        if (n >= MOST) {
            (void)snprintf(problem, sizeof problem, "has a %s of %d or more", what, MOST);
            return refuse(in, at, whole, problem);
        }
    }
    if (c == at) {
        (void)snprintf(problem, sizeof problem, "lacks the number of its %s, as in 3F12", what);
        return refuse(in, at, whole, problem);
    }
    if (c - at > 1 && *at == '0') {
        (void)snprintf(problem, sizeof problem, "has a %s that begins with 0", what);
        return refuse(in, at, whole, problem);
    }
    *number = n;
    *rest = c;
    return TR_OK;
}

static tr_status read_type(const reader *in, span whole, span name, tr_action *action) {
    size_t length = (size_t)(name.end - name.at);
    if (length == 2 && memcmp(name.at, "BW", 2) == 0)
        return refuse(in, name.at, whole,
                      "is PyTorch's old form, where B was the input gradient and BW both "
                      "gradients: write I for B and B for BW in the whole file");
    for (int k = 0; k < 2 * TR_ACTION_TYPES; k++) {
        action->type = (tr_action_type)(k / 2);
        action->gradient = k % 2 && tr_action_transfers(*action);
        const char *known = tr_action_name(action->type, action->gradient);
        if (tr_action_is_added(*action)) continue;
        if (strlen(known) == length && memcmp(known, name.at, length) == 0) return TR_OK;
    }
    return refuse(in, name.at, whole,
                  "is not an action: use F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, "
                  "RESHARD or REDUCE_GRAD");
}

static tr_status read_action(const reader *in, span whole, tr_action *action) {
    const char *at = whole.at;
    *action = (tr_action){.micro_batch = -1};
    TR_TRY(read_number(in, whole, at, "stage", &action->stage, &at));
    span name = {.at = at};
    while (at < whole.end && ((*at >= 'A' && *at <= 'Z') || *at == '_')) at++;
    name.end = at;
    TR_TRY(read_type(in, whole, name, action));
    bool whole_stage = !tr_action_computes(*action) && !tr_action_transfers(*action);
    if (!whole_stage) TR_TRY(read_number(in, whole, at, "micro-batch", &action->micro_batch, &at));
    if (at < whole.end)
        return refuse(in, at, whole,
                      whole_stage ? "has characters after an action that takes no micro-batch"
                                  : "has characters after the action");
    return TR_OK;
}

static const char *find(span s, char c) {
    const char *found = s.at < s.end ? memchr(s.at, c, (size_t)(s.end - s.at)) : NULL;
    return found ? found : s.end;
}

/* "(0F7;7B3)OVERLAP_F_B": an F and an I or B. */
static tr_status read_pair(reader *in, span whole) {
    static const char end[] = ")OVERLAP_F_B";
    const size_t end_length = sizeof end - 1;
    tr_action pair[2];
    if ((size_t)(whole.end - whole.at) <= end_length ||
        memcmp(whole.end - end_length, end, end_length) != 0)
        return refuse(in, whole.at, whole, "is not a pair: it has the form (0F7;7B3)OVERLAP_F_B");
    span inside = {whole.at + 1, whole.end - end_length};
    const char *between = find(inside, ';');
    if (between == inside.end) return refuse(in, whole.at, whole, "has one action: a pair has two");
    if (find((span){between + 1, inside.end}, ';') != inside.end)
        return refuse(in, find((span){between + 1, inside.end}, ';'), whole,
                      "has more than two actions: a pair has two");
    span part[2] = {trim((span){inside.at, between}), trim((span){between + 1, inside.end})};
    for (int k = 0; k < 2; k++) TR_TRY(read_action(in, part[k], &pair[k]));
    bool forward = pair[0].type == TR_ACTION_F;
    for (int k = 0; k < 2; k++) {
        tr_action_type type = pair[forward ? 1 - k : k].type;
        if (k ? type != TR_ACTION_F : type != TR_ACTION_I && type != TR_ACTION_B)
            return refuse(in, part[forward].at, whole, "must overlap an F with an I or B");
    }
    pair[0].overlap = true;
    TR_TRY(in->take(in, pair[0], column_of(in, part[0].at)));
    return in->take(in, pair[1], column_of(in, part[1].at));
}

static tr_status read_cell(reader *in, span cell) {
    cell = trim(cell);
    if (cell.end - cell.at >= 2 && *cell.at == '"' && cell.end[-1] == '"')
        cell = trim((span){cell.at + 1, cell.end - 1});
    if (cell.at == cell.end) {
        in->empty_row = in->row;
        in->empty_at = column_of(in, cell.at);
        return TR_OK;
    }
    if (*cell.at == '(') return read_pair(in, cell);
    tr_action action;
    TR_TRY(read_action(in, cell, &action));
    return in->take(in, action, column_of(in, cell.at));
}

static tr_status read_line(reader *in, const char *end) {
    /* An empty line is a row without cells, as in other CSV readers. */
    if (in->line == end) return TR_OK;
    for (const char *at = in->line;; at++) {
        span cell = {at, find((span){at, end}, ',')};
        TR_TRY(read_cell(in, cell));
        at = cell.end;
        if (at == end) return TR_OK;
    }
}

/* --- files ------------------------------------------------------------------------------------ */

/* Passes the file's actions to in->take; in->row becomes the number of rows. */
static tr_status read_rows(reader *in, span text) {
    in->row = 0;
    for (const char *at = text.at; at < text.end; in->row++) {
        const char *eol = find((span){at, text.end}, '\n');
        in->line = at;
        if (in->row == MOST) return fail_at(in->source, in->row, 1, "the file has too many rows");
        in->acts = false;
        TR_TRY(read_line(in, eol > at && eol < text.end && eol[-1] == '\r' ? eol - 1 : eol));
        if (!in->acts)
            return fail_at(in->source, in->row, 1,
                           "rank %d has no action: remove the row, or give it actions", in->row);
        at = eol < text.end ? eol + 1 : text.end;
    }
    return TR_OK;
}

/* Updates the numbers of stages and micro-batches, and places the stage. */
static tr_status measure(reader *in, tr_action a, int column) {
    TR_TRY(tr_grow(&in->rank_of, &in->capacity, (size_t)a.stage + 1, sizeof *in->rank_of));
    while (in->stages <= a.stage) in->rank_of[in->stages++] = -1;
    int *rank = &in->rank_of[a.stage];
    if (*rank >= 0 && *rank != in->row)
        return fail_at(in->source, in->row, column,
                       "stage %d is also on rank %d: a stage has one owner", a.stage, *rank);
    *rank = in->row;
    if (tr_action_computes(a)) {
        in->acts = true;
        in->backward = in->backward || a.type != TR_ACTION_F;
        if (a.micro_batch >= in->micro_batches) in->micro_batches = a.micro_batch + 1;
    } else in->transfers = true;
    return TR_OK;
}

static tr_status add(reader *in, tr_action a, int column) {
    (void)column;
    in->acts = in->acts || tr_action_computes(a);
    return tr_schedule_add(in->schedule, in->row, a);
}

/* Finds the column of one rank's action by its index. */
static tr_status locate(reader *in, tr_action a, int column) {
    in->acts = in->acts || tr_action_computes(a);
    if (in->row == in->rank && in->skip-- == 0) in->column = column;
    return TR_OK;
}

static tr_status measure_file(reader *in, span text) {
    in->take = measure;
    TR_TRY(read_rows(in, text));
    if (!in->row)
        return fail_at(in->source, 0, 1, "the file is empty: it needs a row for each rank");
    if (in->transfers && in->empty_at)
        return fail_at(in->source, in->empty_row, in->empty_at,
                       "an empty cell is not allowed in a file with transfers (compute_comms)");
    for (int s = 0; s < in->stages; s++)
        if (in->rank_of[s] < 0)
            return TR_FAIL(TR_ERR_CONFIG, "%s: stage %d is missing, although stage %d exists",
                           in->source, s, in->stages - 1);
    return TR_OK;
}

/* Checks the order with tr_schedule_check, and adds the place in the file to a failure. */
static tr_status check_order(reader *in, span text) {
    tr_schedule_report report;
    tr_status status = tr_schedule_check(in->schedule, NULL, &report);
    if (status != TR_ERR_CONFIG || report.rank < 0) return status;
    char sentence[1024];
    (void)snprintf(sentence, sizeof sentence, "%s", tr_error_message());
    in->take = locate;
    in->rank = report.rank;
    in->skip = report.at;
    in->column = 1;
    TR_TRY(read_rows(in, text));
    return fail_at(in->source, report.rank, in->column, "%s", sentence);
}

tr_status tr_schedule_read(const char *text, size_t length, const char *source, tr_schedule **out) {
    tr_status status = TR_OK;
    reader in = {.source = source};
    span whole = {text + tr_utf8_mark(text, length), text + length};
    const char *slash = strrchr(source, '/');
    TR_TRY_OUT(measure_file(&in, whole));
    TR_TRY_OUT(tr_schedule_create(slash ? slash + 1 : source, in.row, in.stages, in.micro_batches,
                                  in.rank_of, &in.schedule));
    in.schedule->forward_only = !in.backward;
    in.take = add;
    TR_TRY_OUT(read_rows(&in, whole));
    TR_TRY_OUT(check_order(&in, whole));
    *out = in.schedule;
    in.schedule = NULL;
out:
    tr_schedule_destroy(in.schedule);
    free(in.rank_of);
    return status;
}

tr_status tr_schedule_load(const char *path, tr_schedule **out) {
    static const tr_input_limit limit = {.mib = 1024, .failure = TR_ERR_DATA};
    char *text;
    size_t length;
    TR_TRY(tr_input_load("the schedule file", path, limit, &text, &length));
    tr_status status = tr_schedule_read(text, length, path, out);
    free(text);
    return status;
}

tr_status tr_schedule_print(const tr_schedule *s, bool transfers, char **text) {
    enum { ENTRY = 64 }; /* an action with its half of "( ; )OVERLAP_F_B" and a comma */
    size_t entries = 0, used = 0;
    char *out = NULL;
    for (int r = 0; r < s->ranks; r++) entries += (size_t)s->count[r] + 1;
    TR_TRY(tr_calloc(entries, ENTRY, &out));
    for (int r = 0; r < s->ranks; r++) {
        const char *between = "";
        bool second = false;
        for (int k = 0; k < s->count[r]; k++) {
            tr_action a = s->action[r][k];
            char action[32];
            if (!transfers && !tr_action_computes(a)) continue;
            tr_action_print(a, action, sizeof action);
            used += (size_t)snprintf(out + used, ENTRY, "%s%s%s%s", between, a.overlap ? "(" : "",
                                     action, second ? ")OVERLAP_F_B" : "");
            second = a.overlap;
            between = second ? ";" : ",";
        }
        out[used++] = '\n';
    }
    *text = out;
    return TR_OK;
}
