/* A schedule is data: for every rank the order of its actions, as in the CSV form that PyTorch's
 * pipeline runtime reads: row k is rank k, a cell is stage, type, micro-batch ("0F0"). */
#pragma once

#include "pipeline/action.h"

typedef struct tr_schedule {
    char name[32];
    int ranks, stages, micro_batches;
    bool forward_only;  /* only F, for validation */
    bool listed;        /* has transfers and reductions, which lowering keeps in place */
    int *rank_of;       /* [stages]: the stage's rank */
    int *count;         /* [ranks] */
    size_t *capacity;   /* [ranks] */
    tr_action **action; /* [ranks][count]: a rank's actions in order */
} tr_schedule;

/* Fails with TR_ERR_CONFIG when stages * micro_batches is more than 2^24, so that the numbers of
 * actions stay far from overflow. */
tr_status tr_schedule_check_size(int64_t stages, int micro_batches);

/* Creates an empty schedule; stage s is on rank_of[s], or on s % ranks when rank_of is NULL. Fails
 * with TR_ERR_CONFIG on sizes below 1, a rank out of range, and like tr_schedule_check_size. The
 * caller releases *out with tr_schedule_destroy. */
tr_status tr_schedule_create(const char *name, int ranks, int stages, int micro_batches,
                             const int *rank_of, tr_schedule **out);
void tr_schedule_destroy(tr_schedule *schedule);

/* Appends an action to a rank's order; one that is not F, I, W or B makes the schedule a listed
 * one. Does not check ids; tr_schedule_check does. */
tr_status tr_schedule_add(tr_schedule *schedule, int rank, tr_action action);
