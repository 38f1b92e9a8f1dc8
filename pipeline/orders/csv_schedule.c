/* Tables and schedules: from a file to an order, back, and with transfers. */
#include "pipeline/orders/csv.h"

#include "base/memory.h"
#include "pipeline/orders/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEN_F = 1, SEEN_I = 2, SEEN_W = 4 };

static const unsigned seen_bits[TR_ACTION_TYPES] = {[TR_ACTION_F] = SEEN_F,
                                                    [TR_ACTION_I] = SEEN_I,
                                                    [TR_ACTION_W] = SEEN_W,
                                                    [TR_ACTION_B] = SEEN_I | SEEN_W};

static bool is_action(const tr_csv_cell *cell) {
    return cell->kind <= TR_CSV_B;
}

/* --- file to schedule ------------------------------------------------------------------------- */

typedef struct extent {
    int stages, micro_batches;
    bool backward; /* some I, W or B */
    int *rank_of;  /* [stages], -1: not met */
} extent;

static tr_status measure(const tr_csv *csv, extent *e) {
    for (int r = 0; r < csv->rows; r++) {
        int actions = 0;
        for (int k = 0; k < csv->count[r]; k++) {
            const tr_csv_cell *cell = &csv->cell[r][k];
            if (cell->stage >= e->stages) e->stages = cell->stage + 1;
            if (!is_action(cell)) continue;
            actions++;
            if (cell->micro_batch >= e->micro_batches) e->micro_batches = cell->micro_batch + 1;
            if (cell->kind != TR_CSV_F) e->backward = true;
        }
        if (!actions)
            return tr_csv_fail(csv, r, NULL, "rank %d has no action: every row is a rank", r);
    }
    return TR_OK;
}

static tr_status place_stages(const tr_csv *csv, extent *e) {
    TR_TRY(tr_calloc((size_t)e->stages, sizeof *e->rank_of, &e->rank_of));
    for (int s = 0; s < e->stages; s++) e->rank_of[s] = -1;
    for (int r = 0; r < csv->rows; r++)
        for (int k = 0; k < csv->count[r]; k++) {
            const tr_csv_cell *cell = &csv->cell[r][k];
            if (cell->kind == TR_CSV_BUBBLE) continue;
            int *rank = &e->rank_of[cell->stage];
            if (*rank >= 0 && *rank != r)
                return tr_csv_fail(csv, r, cell,
                                   "stage %d is on rank %d too: a stage has one owner", cell->stage,
                                   *rank);
            *rank = r;
        }
    for (int s = 0; s < e->stages; s++)
        if (e->rank_of[s] < 0)
            return TR_FAIL(TR_ERR_CONFIG, "%s: stage %d is on no rank, the highest is %d",
                           csv->source, s, e->stages - 1);
    return TR_OK;
}

static tr_status add_actions(const tr_csv *csv, unsigned char *seen, tr_schedule *s) {
    for (int r = 0; r < csv->rows; r++)
        for (int k = 0; k < csv->count[r]; k++) {
            const tr_csv_cell *cell = &csv->cell[r][k];
            if (!is_action(cell)) continue;
            tr_action a = {.stage = cell->stage,
                           .type = (tr_action_type)cell->kind,
                           .micro_batch = cell->micro_batch,
                           .overlap = cell->overlap};
            unsigned char *had =
                &seen[(size_t)a.stage * (size_t)s->micro_batches + (size_t)a.micro_batch];
            if (*had & seen_bits[a.type]) {
                char text[40];
                tr_csv_cell_print(cell, text, sizeof text);
                return tr_csv_fail(csv, r, cell, "%s is done twice%s", text,
                                   a.type == TR_ACTION_W || a.type == TR_ACTION_B
                                       ? ": B is I and W together (in PyTorch's old dialect B was "
                                         "the input gradient, now written I)"
                                       : "");
            }
            *had = (unsigned char)(*had | seen_bits[a.type]);
            TR_TRY(tr_schedule_add(s, r, a));
        }
    return TR_OK;
}

static tr_status copy(const tr_csv *csv, tr_csv **out) {
    tr_csv *c = NULL;
    tr_status status = TR_OK;
    TR_TRY(tr_csv_create(csv->source, csv->rows, &c));
    for (int r = 0; r < csv->rows; r++)
        for (int k = 0; k < csv->count[r]; k++) TR_TRY_OUT(tr_csv_add(c, r, csv->cell[r][k]));
    *out = c;
    return TR_OK;
out:
    tr_csv_destroy(c);
    return status;
}

tr_status tr_csv_schedule(const tr_csv *csv, tr_schedule **out) {
    tr_status status = TR_OK;
    extent e = {0};
    tr_schedule *s = NULL;
    unsigned char *seen = NULL;
    const char *slash = strrchr(csv->source, '/');
    TR_TRY_OUT(measure(csv, &e));
    TR_TRY_OUT(place_stages(csv, &e));
    TR_TRY_OUT(tr_schedule_create(slash ? slash + 1 : csv->source, csv->rows, e.stages,
                                  e.micro_batches, e.rank_of, &s));
    s->forward_only = !e.backward;
    TR_TRY_OUT(tr_calloc((size_t)e.stages * (size_t)e.micro_batches, 1, &seen));
    TR_TRY_OUT(add_actions(csv, seen, s));
    if (csv->comms) TR_TRY_OUT(copy(csv, &s->list));
    *out = s;
    s = NULL;
out:
    free(seen);
    free(e.rank_of);
    tr_schedule_destroy(s);
    return status;
}

/* --- schedule to table ------------------------------------------------------------------------ */

tr_status tr_csv_of(const tr_schedule *s, tr_csv **out) {
    tr_csv *csv = NULL;
    TR_TRY(tr_csv_create(s->name, s->ranks, &csv));
    for (int r = 0; r < s->ranks; r++)
        for (int k = 0; k < s->count[r]; k++) {
            tr_action a = s->action[r][k];
            tr_status status = tr_csv_add(csv, r,
                                          (tr_csv_cell){.kind = (tr_csv_kind)a.type,
                                                        .stage = a.stage,
                                                        .micro_batch = a.micro_batch,
                                                        .overlap = a.overlap});
            if (status != TR_OK) {
                tr_csv_destroy(csv);
                return tr_trace_at(__FILE__, __LINE__, status);
            }
        }
    *out = csv;
    return TR_OK;
}

tr_status tr_schedule_print(const tr_schedule *schedule, char **text) {
    tr_csv *csv = NULL;
    TR_TRY(tr_csv_of(schedule, &csv));
    tr_status status = tr_csv_text(csv, text);
    tr_csv_destroy(csv);
    return status;
}

/* --- transfers -------------------------------------------------------------------------------- */

enum { READY_F = 1, READY_B = 2 };

typedef struct lister {
    const tr_csv *in;
    const tr_schedule *s;
    tr_csv *out;
    unsigned char *ready; /* [stages * micro_batches]: inputs listed on the stage's rank */
} lister;

static unsigned char *ready_of(const lister *l, int stage, int micro_batch) {
    return &l->ready[(size_t)stage * (size_t)l->s->micro_batches + (size_t)micro_batch];
}

static bool is_ready(const lister *l, const tr_csv_cell *cell) {
    if (cell->kind == TR_CSV_BUBBLE || cell->kind == TR_CSV_W) return true;
    bool forward = cell->kind == TR_CSV_F;
    if (cell->stage == (forward ? 0 : l->s->stages - 1)) return true;
    return *ready_of(l, cell->stage, cell->micro_batch) & (forward ? READY_F : READY_B);
}

/* SEND behind the action and RECV at the end of the receiver's list; nothing within a rank. */
static tr_status list_transfer(const lister *l, const tr_csv_cell *cell) {
    if (cell->kind == TR_CSV_W) return TR_OK;
    bool forward = cell->kind == TR_CSV_F;
    int stage = cell->stage, k = cell->micro_batch, to = forward ? stage + 1 : stage - 1;
    if (to < 0 || to >= l->s->stages) return TR_OK;
    unsigned char *ready = ready_of(l, to, k);
    *ready = (unsigned char)(*ready | (forward ? READY_F : READY_B));
    int rank = l->s->rank_of[stage], peer = l->s->rank_of[to];
    if (rank == peer) return TR_OK;
    tr_csv_cell send = {
        .kind = forward ? TR_CSV_SEND_F : TR_CSV_SEND_B, .stage = stage, .micro_batch = k};
    tr_csv_cell recv = {
        .kind = forward ? TR_CSV_RECV_F : TR_CSV_RECV_B, .stage = to, .micro_batch = k};
    TR_TRY(tr_csv_add(l->out, rank, send));
    return tr_csv_add(l->out, peer, recv);
}

/* Lists the rank's next cell when its inputs are listed; *next moves on. */
static tr_status list_cell(const lister *l, int rank, int *next) {
    const tr_csv_cell *cell = &l->in->cell[rank][*next];
    int entries = cell->overlap ? 2 : 1;
    for (int k = 0; k < entries; k++)
        if (!is_ready(l, &cell[k])) return TR_OK;
    *next += entries;
    if (cell->kind == TR_CSV_BUBBLE) return TR_OK;
    for (int k = 0; k < entries; k++) {
        tr_csv_cell copy = cell[k];
        copy.column = 0;
        TR_TRY(tr_csv_add(l->out, rank, copy));
    }
    for (int k = 0; k < entries; k++) TR_TRY(list_transfer(l, &cell[k]));
    return TR_OK;
}

static tr_status list_all(const lister *l, int *next) {
    bool progress = true, left = true;
    while (left && progress) {
        left = progress = false;
        for (int r = 0; r < l->in->rows; r++) {
            int before = next[r];
            if (before == l->in->count[r]) continue;
            TR_TRY(list_cell(l, r, &next[r]));
            progress = progress || next[r] > before;
            left = left || next[r] < l->in->count[r];
        }
    }
    if (left) return TR_FAIL(TR_ERR_INTERNAL, "%s: transfers cannot be listed", l->in->source);
    return TR_OK;
}

/* Without bubbles, an I directly before its W as B. */
static tr_status merge_cells(const tr_csv *in, tr_csv **out) {
    tr_csv *csv = NULL;
    TR_TRY(tr_csv_create(in->source, in->rows, &csv));
    tr_status status = TR_OK;
    for (int r = 0; r < in->rows; r++) {
        bool paired = false; /* the entry is the second of a pair */
        for (int k = 0; k < in->count[r]; k++) {
            tr_csv_cell cell = in->cell[r][k];
            if (cell.kind == TR_CSV_BUBBLE) continue;
            tr_csv_cell *last = csv->count[r] ? &csv->cell[r][csv->count[r] - 1] : NULL;
            if (cell.kind == TR_CSV_W && last && !paired && last->kind == TR_CSV_I &&
                last->stage == cell.stage && last->micro_batch == cell.micro_batch) {
                last->kind = TR_CSV_B;
                continue;
            }
            paired = last && last->overlap;
            TR_TRY_OUT(tr_csv_add(csv, r, cell));
        }
    }
    *out = csv;
    return TR_OK;
out:
    tr_csv_destroy(csv);
    return status;
}

tr_status tr_csv_add_comms(const tr_csv *compute, bool merge, tr_csv **out) {
    tr_status status = TR_OK;
    tr_schedule *s = NULL;
    tr_csv *merged = NULL;
    int *next = NULL;
    lister l = {.in = compute};
    if (compute->comms)
        return TR_FAIL(TR_ERR_CONFIG, "%s has its transfers already", compute->source);
    TR_TRY_OUT(tr_csv_schedule(compute, &s));
    TR_TRY_OUT(tr_schedule_check(s, NULL, NULL));
    if (merge) {
        TR_TRY_OUT(merge_cells(compute, &merged));
        l.in = merged;
    }
    l.s = s;
    TR_TRY_OUT(tr_csv_create(compute->source, compute->rows, &l.out));
    TR_TRY_OUT(tr_calloc((size_t)s->stages * (size_t)s->micro_batches, 1, &l.ready));
    TR_TRY_OUT(tr_calloc((size_t)compute->rows, sizeof *next, &next));
    TR_TRY_OUT(list_all(&l, next));
    l.out->comms = true;
    *out = l.out;
    l.out = NULL;
out:
    free(next);
    free(l.ready);
    tr_csv_destroy(l.out);
    tr_csv_destroy(merged);
    tr_schedule_destroy(s);
    return status;
}
