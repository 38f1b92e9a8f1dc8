#include "pipeline/orders/csv.h"

#include "base/input.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger stage or micro-batch numbers are typing errors. */
enum { MOST = 1 << 20 };

static const struct {
    const char *name;
    bool whole_stage; /* takes no micro-batch */
} kinds[TR_CSV_KINDS] = {
    [TR_CSV_F] = {.name = "F"},
    [TR_CSV_I] = {.name = "I"},
    [TR_CSV_W] = {.name = "W"},
    [TR_CSV_B] = {.name = "B"},
    [TR_CSV_SEND_F] = {.name = "SEND_F"},
    [TR_CSV_RECV_F] = {.name = "RECV_F"},
    [TR_CSV_SEND_B] = {.name = "SEND_B"},
    [TR_CSV_RECV_B] = {.name = "RECV_B"},
    [TR_CSV_UNSHARD] = {.name = "UNSHARD", .whole_stage = true},
    [TR_CSV_RESHARD] = {.name = "RESHARD", .whole_stage = true},
    [TR_CSV_REDUCE_GRAD] = {.name = "REDUCE_GRAD", .whole_stage = true},
    [TR_CSV_BUBBLE] = {.name = ""},
};

/* --- table ------------------------------------------------------------------------------------ */

static tr_status add_row(tr_csv *csv, size_t *capacity) {
    size_t need = (size_t)csv->rows + 1, held = *capacity;
    TR_TRY(tr_grow(&csv->count, &held, need, sizeof *csv->count));
    held = *capacity;
    TR_TRY(tr_grow(&csv->cell, &held, need, sizeof *csv->cell));
    TR_TRY(tr_grow(&csv->capacity, capacity, need, sizeof *csv->capacity));
    csv->count[csv->rows] = 0;
    csv->cell[csv->rows] = NULL;
    csv->capacity[csv->rows] = 0;
    csv->rows++;
    return TR_OK;
}

tr_status tr_csv_create(const char *source, int rows, tr_csv **out) {
    tr_status status = TR_OK;
    tr_csv *csv = NULL;
    size_t capacity = 0;
    TR_TRY(tr_calloc(1, sizeof *csv, &csv));
    TR_TRY_OUT(tr_strdup(source, &csv->source));
    while (csv->rows < rows) TR_TRY_OUT(add_row(csv, &capacity));
    *out = csv;
    return TR_OK;
out:
    tr_csv_destroy(csv);
    return status;
}

void tr_csv_destroy(tr_csv *csv) {
    if (!csv) return;
    for (int r = 0; r < csv->rows; r++) free(csv->cell[r]);
    free(csv->cell);
    free(csv->capacity);
    free(csv->count);
    free(csv->source);
    free(csv);
}

tr_status tr_csv_add(tr_csv *csv, int row, tr_csv_cell cell) {
    TR_TRY(tr_grow(&csv->cell[row], &csv->capacity[row], (size_t)csv->count[row] + 1,
                   sizeof *csv->cell[row]));
    csv->cell[row][csv->count[row]++] = cell;
    if (cell.kind > TR_CSV_B && cell.kind != TR_CSV_BUBBLE) csv->comms = true;
    return TR_OK;
}

tr_status tr_csv_fail(const tr_csv *csv, int row, const tr_csv_cell *cell, const char *format,
                      ...) {
    char sentence[512], action[40] = "";
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    int column = cell ? cell->column : 1;
    if (column)
        return TR_FAIL(TR_ERR_CONFIG, "%s:%d:%d: %s", csv->source, row + 1, column, sentence);
    tr_csv_cell_print(cell, action, sizeof action);
    return TR_FAIL(TR_ERR_CONFIG, "%s: rank %d, %s: %s", csv->source, row, action, sentence);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* What is read: part of one line. */
typedef struct span {
    const char *at, *end;
} span;

typedef struct reader {
    tr_csv *csv;
    const char *line; /* its first byte */
    int row;
} reader;

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

/* The sentence names a piece of the file; bytes that are no printable ASCII are shown as '?'. */
static tr_status refuse(const reader *in, const char *at, span piece, const char *problem) {
    char shown[48];
    size_t length = 0;
    for (const char *c = piece.at; c < piece.end && length < sizeof shown - 1; c++)
        shown[length++] = (char)(*c >= ' ' && *c <= '~' ? *c : '?');
    shown[length] = '\0';
    if (piece.end - piece.at > (ptrdiff_t)length) memcpy(shown + length - 3, "...", 3);
    tr_csv_cell place = {.column = column_of(in, at)};
    return tr_csv_fail(in->csv, in->row, &place, "'%s' %s", shown, problem);
}

/* Decimal digits without leading zeros; *rest: what follows. */
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

static tr_status read_kind(const reader *in, span whole, span name, tr_csv_kind *kind) {
    size_t length = (size_t)(name.end - name.at);
    if (length == 2 && memcmp(name.at, "BW", 2) == 0)
        return refuse(in, name.at, whole,
                      "is PyTorch's old dialect, where B was the input gradient and BW both "
                      "gradients: write I for B and B for BW in the whole file");
    for (int k = 0; k < TR_CSV_BUBBLE; k++)
        if (strlen(kinds[k].name) == length && memcmp(kinds[k].name, name.at, length) == 0) {
            *kind = (tr_csv_kind)k;
            return TR_OK;
        }
    return refuse(in, name.at, whole,
                  "is no action: F, I, W, B, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD and "
                  "REDUCE_GRAD are known");
}

static tr_status read_action(const reader *in, span whole, tr_csv_cell *cell) {
    const char *at = whole.at;
    *cell = (tr_csv_cell){.micro_batch = -1, .column = column_of(in, at)};
    TR_TRY(read_number(in, whole, at, "stage", &cell->stage, &at));
    span name = {.at = at};
    while (at < whole.end && ((*at >= 'A' && *at <= 'Z') || *at == '_')) at++;
    name.end = at;
    TR_TRY(read_kind(in, whole, name, &cell->kind));
    if (!kinds[cell->kind].whole_stage)
        TR_TRY(read_number(in, whole, at, "micro-batch", &cell->micro_batch, &at));
    if (at < whole.end)
        return refuse(in, at, whole,
                      kinds[cell->kind].whole_stage ? "has something behind an action that takes "
                                                      "no micro-batch"
                                                    : "has something behind the action");
    return TR_OK;
}

static const char *find(span s, char c) {
    const char *found = s.at < s.end ? memchr(s.at, c, (size_t)(s.end - s.at)) : NULL;
    return found ? found : s.end;
}

/* "(0F7;7B3)OVERLAP_F_B": an F and an I or B. */
static tr_status read_pair(const reader *in, span whole) {
    static const char end[] = ")OVERLAP_F_B";
    const size_t end_length = sizeof end - 1;
    tr_csv_cell pair[2];
    if ((size_t)(whole.end - whole.at) <= end_length ||
        memcmp(whole.end - end_length, end, end_length) != 0)
        return refuse(in, whole.at, whole, "is no pair: it has the form (0F7;7B3)OVERLAP_F_B");
    span inside = {whole.at + 1, whole.end - end_length};
    const char *between = find(inside, ';');
    if (between == inside.end)
        return refuse(in, whole.at, whole, "overlaps nothing: a pair has two actions");
    if (find((span){between + 1, inside.end}, ';') != inside.end)
        return refuse(in, find((span){between + 1, inside.end}, ';'), whole,
                      "has more than two actions");
    TR_TRY(read_action(in, trim((span){inside.at, between}), &pair[0]));
    TR_TRY(read_action(in, trim((span){between + 1, inside.end}), &pair[1]));
    bool forward[2] = {pair[0].kind == TR_CSV_F, pair[1].kind == TR_CSV_F};
    for (int k = 0; k < 2; k++)
        if ((!forward[k] && pair[k].kind != TR_CSV_I && pair[k].kind != TR_CSV_B) ||
            forward[0] == forward[1])
            return refuse(in, in->line + pair[forward[0] ? 1 : k].column - 1, whole,
                          "does not overlap an F with an I or B");
    pair[0].overlap = true;
    TR_TRY(tr_csv_add(in->csv, in->row, pair[0]));
    return tr_csv_add(in->csv, in->row, pair[1]);
}

static tr_status read_cell(const reader *in, span cell) {
    cell = trim(cell);
    if (cell.end - cell.at >= 2 && *cell.at == '"' && cell.end[-1] == '"')
        cell = trim((span){cell.at + 1, cell.end - 1});
    if (cell.at == cell.end)
        return tr_csv_add(in->csv, in->row,
                          (tr_csv_cell){.kind = TR_CSV_BUBBLE,
                                        .stage = -1,
                                        .micro_batch = -1,
                                        .column = column_of(in, cell.at)});
    if (*cell.at == '(') return read_pair(in, cell);
    tr_csv_cell action;
    TR_TRY(read_action(in, cell, &action));
    return tr_csv_add(in->csv, in->row, action);
}

static tr_status read_line(const reader *in, const char *end) {
    /* A line without a byte is a row without cells, as csv readers have it. */
    if (in->line == end) return TR_OK;
    for (const char *at = in->line;; at++) {
        span cell = {at, find((span){at, end}, ',')};
        TR_TRY(read_cell(in, cell));
        at = cell.end;
        if (at == end) return TR_OK;
    }
}

/* compute_comms is run as it stands: a bubble has no meaning there. */
static tr_status refuse_bubbles(const tr_csv *csv) {
    for (int r = 0; csv->comms && r < csv->rows; r++)
        for (int k = 0; k < csv->count[r]; k++)
            if (csv->cell[r][k].kind == TR_CSV_BUBBLE)
                return tr_csv_fail(csv, r, &csv->cell[r][k],
                                   "an empty cell in a file with transfers (compute_comms)");
    return TR_OK;
}

tr_status tr_csv_parse(const char *text, size_t length, const char *source, tr_csv **out) {
    tr_status status = TR_OK;
    tr_csv *csv = NULL;
    size_t capacity = 0;
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s:1:1: the file begins with a byte order mark: save it as plain text",
                       source);
    TR_TRY(tr_csv_create(source, 0, &csv));
    const char *at = text, *end = text + length;
    while (at < end) {
        const char *eol = find((span){at, end}, '\n');
        reader in = {.csv = csv, .line = at, .row = csv->rows};
        if (csv->rows == MOST || eol - at > INT32_MAX) {
            status = TR_FAIL(TR_ERR_CONFIG, "%s:%d:1: the file is too long", source, csv->rows + 1);
            goto out;
        }
        TR_TRY_OUT(add_row(csv, &capacity));
        TR_TRY_OUT(read_line(&in, eol > at && eol < end && eol[-1] == '\r' ? eol - 1 : eol));
        at = eol < end ? eol + 1 : end;
    }
    if (!csv->rows) {
        status = TR_FAIL(TR_ERR_CONFIG, "%s:1:1: the file is empty: it has one row a rank", source);
        goto out;
    }
    TR_TRY_OUT(refuse_bubbles(csv));
    *out = csv;
    return TR_OK;
out:
    tr_csv_destroy(csv);
    return status;
}

tr_status tr_csv_load(const char *path, tr_csv **out) {
    static const tr_input_limit limit = {.mib = 1024, .failure = TR_ERR_DATA};
    char *text;
    size_t length;
    TR_TRY(tr_input_load("the schedule file", path, limit, &text, &length));
    tr_status status = tr_csv_parse(text, length, path, out);
    free(text);
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

void tr_csv_cell_print(const tr_csv_cell *cell, char *text, size_t size) {
    text[0] = '\0';
    if (cell->kind == TR_CSV_BUBBLE || (unsigned)cell->kind >= TR_CSV_KINDS) return;
    const char *name = kinds[cell->kind].name;
    if (kinds[cell->kind].whole_stage) (void)snprintf(text, size, "%d%s", cell->stage, name);
    else (void)snprintf(text, size, "%d%s%d", cell->stage, name, cell->micro_batch);
}

tr_status tr_csv_text(const tr_csv *csv, char **text) {
    enum { ENTRY = 64 }; /* an action with its half of "( ; )OVERLAP_F_B" and a comma */
    size_t entries = 0;
    for (int r = 0; r < csv->rows; r++) entries += (size_t)csv->count[r] + 1;
    char *out = NULL;
    TR_TRY(tr_calloc(entries, ENTRY, &out));
    size_t used = 0;
    for (int r = 0; r < csv->rows; r++) {
        const tr_csv_cell *cell = csv->cell[r];
        for (int k = 0; k < csv->count[r]; k++) {
            char action[40];
            bool second = k && cell[k - 1].overlap, first = cell[k].overlap && !second;
            tr_csv_cell_print(&cell[k], action, sizeof action);
            int n = snprintf(out + used, ENTRY, "%s%s%s%s",
                             second ? ";"
                             : k    ? ","
                                    : "",
                             first ? "(" : "", action, second ? ")OVERLAP_F_B" : "");
            used += (size_t)n;
        }
        /* One empty cell is not a row without cells. */
        if (csv->count[r] == 1 && cell[0].kind == TR_CSV_BUBBLE) {
            memcpy(out + used, "\"\"", 2);
            used += 2;
        }
        out[used++] = '\n';
    }
    *text = out;
    return TR_OK;
}
