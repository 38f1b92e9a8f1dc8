/* Schedules as CSV files, in the grammar of PyTorch's pipeline runtime, both of its forms:
 *
 *   compute_only   F, I, W, B and OVERLAP_F_B; empty cells are bubbles
 *   compute_comms  the same with SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD and REDUCE_GRAD
 * in the order in which a rank meets them; no empty cells
 *
 *   file := row (EOL row)*      row k is rank k; EOL is LF or CRLF
 *   row  := cell (',' cell)*    white space around a cell is not part of it
 *   cell := '' | action | '(' action ';' action ')OVERLAP_F_B'
 *   action := STAGE (F|I|W|B|SEND_F|RECV_F|SEND_B|RECV_B) MICRO_BATCH
 *           | STAGE (UNSHARD|RESHARD|REDUCE_GRAD)
 *
 * A cell is matched as a whole. B is I and W together. In files older than that, B was the input
 * gradient and BW both: they are refused by name, since a B alone would be read as another action.
 * A file is compute_comms when it has an action that compute_only has not. */
#pragma once

#include "pipeline/orders/schedule.h"

typedef enum tr_csv_kind {
    TR_CSV_F = TR_ACTION_F,
    TR_CSV_I = TR_ACTION_I,
    TR_CSV_W = TR_ACTION_W,
    TR_CSV_B = TR_ACTION_B,
    TR_CSV_SEND_F, /* to the next stage */
    TR_CSV_RECV_F, /* from the stage before */
    TR_CSV_SEND_B, /* to the stage before */
    TR_CSV_RECV_B, /* from the next stage */
    TR_CSV_UNSHARD,
    TR_CSV_RESHARD,
    TR_CSV_REDUCE_GRAD,
    TR_CSV_BUBBLE, /* an empty cell */
    TR_CSV_KINDS
} tr_csv_kind;

typedef struct tr_csv_cell {
    tr_csv_kind kind;
    int stage;       /* BUBBLE: -1 */
    int micro_batch; /* -1 where the kind has none */
    bool overlap;    /* one OVERLAP_F_B cell with the next entry, as tr_action.overlap */
    int column;      /* from 1, of the action in its line; 0 when it is from no file */
} tr_csv_cell;

/* A file in memory, bubbles included, so that it can be written as it was. Row r is line r + 1. */
typedef struct tr_csv {
    char *source; /* names the file in messages */
    bool comms;   /* compute_comms */
    int rows;
    int *count;         /* [rows] */
    size_t *capacity;   /* [rows] */
    tr_csv_cell **cell; /* [rows][count] */
} tr_csv;

/* Reads a file of at most 1 GiB; fails as tr_input_load does (TR_ERR_DATA for a larger one), and
 * with TR_ERR_CONFIG "file:line:column: sentence" for a cell that the grammar does not have.
 * Release with tr_csv_destroy. */
tr_status tr_csv_load(const char *path, tr_csv **out);
/* The same from text (any bytes); `source` names it in messages. */
tr_status tr_csv_parse(const char *text, size_t length, const char *source, tr_csv **out);
void tr_csv_destroy(tr_csv *csv);

/* The file's text with LF line ends: what was loaded, except line ends and white space around
 * cells. *text is malloc'd; the caller frees it. */
tr_status tr_csv_text(const tr_csv *csv, char **text);
/* "3F12", "3SEND_F12", "3UNSHARD", "" into text (at least 40 bytes); a pair's entries one by one.
 */
void tr_csv_cell_print(const tr_csv_cell *cell, char *text, size_t size);

/* An empty table of `rows` rows; entries are appended with tr_csv_add. */
tr_status tr_csv_create(const char *source, int rows, tr_csv **out);
tr_status tr_csv_add(tr_csv *csv, int row, tr_csv_cell cell);

/* A failure at an entry: "file:line:column: sentence" with TR_ERR_CONFIG. Entries from no file are
 * named "file: rank R, action A". */
tr_status tr_csv_fail(const tr_csv *csv, int row, const tr_csv_cell *cell, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The order of the actions of a file of either form, without bubbles and transfers. Stages and
 * micro-batches are numbered from 0 to the highest that occurs; a stage lives where its row is.
 * With F alone the schedule is forward-only. Of a compute_comms file it keeps a copy in `list`.
 * TR_ERR_CONFIG with file:line:column for a stage on two ranks, one on none, an action done twice
 * and a rank without actions; tr_schedule_check judges the rest. */
tr_status tr_csv_schedule(const tr_csv *csv, tr_schedule **out);

/* Proves that a file of either form can run: its actions as tr_schedule_check does; in
 * compute_comms also that every transfer stands once where it belongs (SEND behind its action, RECV
 * in front of it, none within a rank), that REDUCE_GRAD stands behind the stage's last W, and that
 * the order as it is, run over one first in, first out channel for each directed pair of ranks
 * without any buffer, ends: a SEND waits for nothing, a RECV until its message is sent.
 * TR_ERR_CONFIG with the place, or the cycle. */
tr_status tr_csv_check(const tr_csv *csv);

/* The compute_only table of a schedule. */
tr_status tr_csv_of(const tr_schedule *schedule, tr_csv **out);

/* The compute_comms table of a compute_only one, in the order in which PyTorch lists it: round by
 * round over the ranks, each appends its next action when its inputs are listed, then its SEND, and
 * its receiver's RECV to that rank's list. Stages on one rank exchange nothing. merge: bubbles are
 * dropped and an I directly before its W becomes a B; else a bubble is a round in which its rank
 * pauses. TR_ERR_CONFIG for an order that tr_schedule_check refuses. */
tr_status tr_csv_add_comms(const tr_csv *compute, bool merge, tr_csv **out);
