/* compute_comms files: every transfer there, where it belongs, and no deadlock in their order. */
#include "pipeline/orders/check.h"
#include "pipeline/orders/csv.h"
#include "pipeline/program/prove.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

enum { PER_MICRO_BATCH = TR_CSV_RECV_B + 1 }; /* kinds that have a micro-batch */

typedef struct checker {
    const tr_csv *csv;
    const tr_schedule *s;
    int *at;     /* [kind][stage][micro-batch]: its index in its row, -1: not there */
    int *number; /* the same, of SENDs: number on the channel */
    int *reduce; /* [stages]: index of REDUCE_GRAD, -1: none */
} checker;

static size_t index_of(const checker *c, tr_csv_kind kind, int stage, int micro_batch) {
    return ((size_t)kind * (size_t)c->s->stages + (size_t)stage) * (size_t)c->s->micro_batches +
           (size_t)micro_batch;
}

static int at(const checker *c, tr_csv_kind kind, int stage, int micro_batch) {
    return c->at[index_of(c, kind, stage, micro_batch)];
}

static bool is_forward(tr_csv_kind kind) {
    return kind == TR_CSV_F || kind == TR_CSV_SEND_F || kind == TR_CSV_RECV_F;
}

static bool is_transfer(tr_csv_kind kind) {
    return kind > TR_CSV_B && kind <= TR_CSV_RECV_B;
}

static bool is_send(tr_csv_kind kind) {
    return kind == TR_CSV_SEND_F || kind == TR_CSV_SEND_B;
}

/* The stage at the other end of a transfer; -1: there is none. */
static int other_stage(const checker *c, const tr_csv_cell *cell) {
    bool up = cell->kind == TR_CSV_SEND_F || cell->kind == TR_CSV_RECV_B;
    int stage = cell->stage + (up ? 1 : -1);
    return stage < c->s->stages ? stage : -1;
}

/* The SEND that a transfer is or takes. */
static size_t send_of(const checker *c, const tr_csv_cell *cell) {
    if (is_send(cell->kind)) return index_of(c, cell->kind, cell->stage, cell->micro_batch);
    return index_of(c, cell->kind == TR_CSV_RECV_F ? TR_CSV_SEND_F : TR_CSV_SEND_B,
                    other_stage(c, cell), cell->micro_batch);
}

/* Where the action that a transfer follows or feeds stands in its row. */
static int action_at(const checker *c, const tr_csv_cell *cell) {
    return at(c, is_forward(cell->kind) ? TR_CSV_F : TR_CSV_I, cell->stage, cell->micro_batch);
}

static tr_status note_cell(checker *c, int row, int k) {
    const tr_csv_cell *cell = &c->csv->cell[row][k];
    char text[40];
    tr_csv_cell_print(cell, text, sizeof text);
    if (cell->kind == TR_CSV_REDUCE_GRAD) {
        if (c->reduce[cell->stage] >= 0)
            return tr_csv_fail(c->csv, row, cell, "%s is done twice", text);
        c->reduce[cell->stage] = k;
    }
    if (cell->kind > TR_CSV_RECV_B) return TR_OK;
    if (is_transfer(cell->kind)) {
        if (cell->micro_batch >= c->s->micro_batches)
            return tr_csv_fail(c->csv, row, cell,
                               "%s: there is no micro-batch %d, they are 0 to %d", text,
                               cell->micro_batch, c->s->micro_batches - 1);
        if (at(c, cell->kind, cell->stage, cell->micro_batch) >= 0)
            return tr_csv_fail(c->csv, row, cell, "%s is done twice", text);
        int other = other_stage(c, cell);
        if (other < 0 || c->s->rank_of[other] == row)
            return tr_csv_fail(c->csv, row, cell, "%s: %s", text,
                               other < 0 ? "there is no stage at its other end"
                                         : "the stage at its other end is on the same rank");
    }
    c->at[index_of(c, cell->kind, cell->stage, cell->micro_batch)] = k;
    if (cell->kind == TR_CSV_B) {
        c->at[index_of(c, TR_CSV_I, cell->stage, cell->micro_batch)] = k;
        c->at[index_of(c, TR_CSV_W, cell->stage, cell->micro_batch)] = k;
    }
    return TR_OK;
}

static tr_status check_transfer(const checker *c, int row, int k) {
    const tr_csv_cell *cell = &c->csv->cell[row][k];
    char text[40];
    tr_csv_cell_print(cell, text, sizeof text);
    int action = action_at(c, cell);
    if (is_send(cell->kind) ? k < action : k > action)
        return tr_csv_fail(c->csv, row, cell, "%s stands %s", text,
                           is_send(cell->kind) ? "before the action whose result it sends"
                                               : "behind the action that needs it");
    return TR_OK;
}

/* The transfers that an action with a neighbour on another rank must have. */
static tr_status check_action(const checker *c, int row, const tr_csv_cell *cell) {
    bool forward = cell->kind == TR_CSV_F;
    int next = forward ? cell->stage + 1 : cell->stage - 1;
    int last = forward ? cell->stage - 1 : cell->stage + 1;
    tr_csv_cell send = *cell, recv = *cell;
    send.kind = forward ? TR_CSV_SEND_F : TR_CSV_SEND_B;
    recv.kind = forward ? TR_CSV_RECV_F : TR_CSV_RECV_B;
    const struct {
        const tr_csv_cell *transfer;
        int other;
    } need[] = {{&send, next}, {&recv, last}};
    for (int k = 0; k < 2; k++) {
        int other = need[k].other;
        if (other < 0 || other >= c->s->stages || c->s->rank_of[other] == row) continue;
        if (at(c, need[k].transfer->kind, cell->stage, cell->micro_batch) >= 0) continue;
        char text[40], missing[40];
        tr_csv_cell_print(cell, text, sizeof text);
        tr_csv_cell_print(need[k].transfer, missing, sizeof missing);
        return tr_csv_fail(c->csv, row, cell, "%s lacks its %s", text, missing);
    }
    return TR_OK;
}

static tr_status check_reduce(const checker *c, int row, int k) {
    const tr_csv_cell *cell = &c->csv->cell[row][k];
    if (c->s->forward_only)
        return tr_csv_fail(c->csv, row, cell, "%dREDUCE_GRAD in a file without gradients",
                           cell->stage);
    for (int mb = 0; mb < c->s->micro_batches; mb++)
        if (at(c, TR_CSV_W, cell->stage, mb) > k)
            return tr_csv_fail(c->csv, row, cell,
                               "%dREDUCE_GRAD stands before the W of micro-batch %d: gradients are "
                               "reduced when they are complete",
                               cell->stage, mb);
    return TR_OK;
}

static tr_status check_cells(checker *c) {
    const tr_csv *csv = c->csv;
    for (int r = 0; r < csv->rows; r++)
        for (int k = 0; k < csv->count[r]; k++) TR_TRY(note_cell(c, r, k));
    for (int r = 0; r < csv->rows; r++)
        for (int k = 0; k < csv->count[r]; k++) {
            const tr_csv_cell *cell = &csv->cell[r][k];
            if (cell->kind == TR_CSV_REDUCE_GRAD) TR_TRY(check_reduce(c, r, k));
            if (is_transfer(cell->kind)) TR_TRY(check_transfer(c, r, k));
            if (cell->kind <= TR_CSV_B && cell->kind != TR_CSV_W) TR_TRY(check_action(c, r, cell));
        }
    return TR_OK;
}

static tr_status number_messages(checker *c) {
    int *sent;
    TR_TRY(tr_calloc((size_t)c->csv->rows, sizeof *sent, &sent));
    for (int r = 0; r < c->csv->rows; r++) {
        for (int to = 0; to < c->csv->rows; to++) sent[to] = 0;
        for (int k = 0; k < c->csv->count[r]; k++) {
            const tr_csv_cell *cell = &c->csv->cell[r][k];
            if (is_send(cell->kind))
                c->number[send_of(c, cell)] = sent[c->s->rank_of[other_stage(c, cell)]]++;
        }
    }
    free(sent);
    return TR_OK;
}

/* --- events ----------------------------------------------------------------------------------- */

/* A row's cells, and the end of the step. */
static int count_cells(const void *context, int rank) {
    return ((const checker *)context)->csv->count[rank] + 1;
}

static tr_event event_of_cell(const void *context, int rank, int index) {
    const checker *c = context;
    if (index == c->csv->count[rank]) return (tr_event){TR_EVENT_MEET, rank, c->s->stages};
    const tr_csv_cell *cell = &c->csv->cell[rank][index];
    if (cell->kind == TR_CSV_REDUCE_GRAD) return (tr_event){TR_EVENT_MEET, rank, cell->stage};
    if (!is_transfer(cell->kind)) return (tr_event){.kind = TR_EVENT_STEP};
    return (tr_event){is_send(cell->kind) ? TR_EVENT_SEND : TR_EVENT_RECV,
                      c->s->rank_of[other_stage(c, cell)], c->number[send_of(c, cell)]};
}

static void print_cell(const void *context, int rank, int index, char *text, size_t size) {
    const checker *c = context;
    if (index == c->csv->count[rank]) {
        (void)snprintf(text, size, "its end");
        return;
    }
    const tr_csv_cell *cell = &c->csv->cell[rank][index];
    char action[40];
    tr_csv_cell_print(cell, action, sizeof action);
    if (cell->column) (void)snprintf(text, size, "%s (%d:%d)", action, rank + 1, cell->column);
    else (void)snprintf(text, size, "%s", action);
}

/* The order as tr_schedule_check judges it; a failure gets its place in the file. */
static tr_status check_order(const tr_csv *csv, const tr_schedule *s) {
    tr_schedule_report report;
    tr_status status = tr_schedule_check(s, NULL, &report);
    if (status != TR_ERR_CONFIG || report.rank < 0) return status;
    const tr_csv_cell *cell = NULL;
    for (int k = 0, action = 0; k < csv->count[report.rank] && !cell; k++)
        if (csv->cell[report.rank][k].kind <= TR_CSV_B && action++ == report.at)
            cell = &csv->cell[report.rank][k];
    char sentence[512];
    (void)snprintf(sentence, sizeof sentence, "%s", tr_error_message());
    return tr_csv_fail(csv, report.rank, cell, "%s", sentence);
}

tr_status tr_csv_check(const tr_csv *csv) {
    tr_status status = TR_OK;
    tr_schedule *s = NULL;
    checker c = {.csv = csv};
    TR_TRY_OUT(tr_csv_schedule(csv, &s));
    TR_TRY_OUT(check_order(csv, s));
    if (!csv->comms) goto out;
    c.s = s;
    size_t cells = PER_MICRO_BATCH * (size_t)s->stages * (size_t)s->micro_batches;
    TR_TRY_OUT(tr_calloc(cells, sizeof *c.at, &c.at));
    TR_TRY_OUT(tr_calloc(cells, sizeof *c.number, &c.number));
    TR_TRY_OUT(tr_calloc((size_t)s->stages, sizeof *c.reduce, &c.reduce));
    for (size_t k = 0; k < cells; k++) c.at[k] = -1;
    for (int k = 0; k < s->stages; k++) c.reduce[k] = -1;
    TR_TRY_OUT(check_cells(&c));
    TR_TRY_OUT(number_messages(&c));
    tr_event_lists lists = {.name = csv->source,
                            .ranks = csv->rows,
                            .meetings = s->stages + 1,
                            .count = count_cells,
                            .event = event_of_cell,
                            .print = print_cell,
                            .context = &c};
    TR_TRY_OUT(tr_prove_ends(&lists));
out:
    free(c.reduce);
    free(c.number);
    free(c.at);
    tr_schedule_destroy(s);
    return status;
}
