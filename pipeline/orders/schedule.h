/* A schedule is data: for every rank the order of its actions. In memory as in the CSV form that
 * PyTorch's pipeline runtime reads: row k is rank k, a cell is stage, type, micro-batch ("0F0").
 * Letters: F forward, I input gradient, W weight gradient, B = I and W together. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tr_action_type {
    TR_ACTION_F,
    TR_ACTION_I,
    TR_ACTION_W,
    TR_ACTION_B,
    TR_ACTION_TYPES
} tr_action_type;

typedef struct tr_action {
    int stage;
    tr_action_type type;
    int micro_batch;
    /* This action and the next of the rank form one cell OVERLAP_F_B: an F and an I or B that start
     * when the inputs of both have arrived and run back to back; what they send leaves when both
     * have ended. False for the second of the pair. */
    bool overlap;
} tr_action;

typedef struct tr_schedule {
    char name[32];
    int ranks, stages, micro_batches;
    bool forward_only;  /* F alone: validation */
    int *rank_of;       /* [stages]: the rank where a stage lives */
    int *count;         /* [ranks] */
    size_t *capacity;   /* [ranks] */
    tr_action **action; /* [ranks][count]: a rank's actions in order */
    /* The compute_comms table (pipeline/orders/csv.h) that the order comes from, whose transfers
     * and reductions lowering leaves where they are; NULL: lowering places them. An action added
     * drops it. */
    struct tr_csv *list;
} tr_schedule;

/* An empty schedule; stage s lives on rank_of[s], or on s % ranks when rank_of is NULL.
 * TR_ERR_CONFIG for sizes below 1, a rank out of range or more than 2^26 actions. */
tr_status tr_schedule_create(const char *name, int ranks, int stages, int micro_batches,
                             const int *rank_of, tr_schedule **out);
void tr_schedule_destroy(tr_schedule *schedule);

/* Appends an action to a rank's order. Ids are judged by tr_schedule_check, not here. */
tr_status tr_schedule_add(tr_schedule *schedule, int rank, tr_action action);

/* The order that `name` stands for: one of tr_schedule_names(). TR_ERR_CONFIG for another name (the
 * message lists the known ones) or sizes that the schedule has no order for. */
tr_status tr_schedule_generate(const char *name, int ranks, int stages, int micro_batches,
                               tr_schedule **out);
/* "gpipe, 1f1b, ...": writes at most `size` bytes. */
void tr_schedule_names(char *text, size_t size);

/* The forward-only schedule of micro_batches on the stages and ranks of `like`: validation beside a
 * training schedule. */
tr_status tr_schedule_forward_of(const tr_schedule *like, int micro_batches, tr_schedule **out);

/* "3F12" into text (at least 32 bytes). */
void tr_action_print(tr_action action, char *text, size_t size);
char tr_action_letter(tr_action_type type);

/* The CSV text (pipeline/orders/csv.h): one row a rank, rows end in LF. *text is malloc'd; the
 * caller frees it. */
tr_status tr_schedule_print(const tr_schedule *schedule, char **text);
