#include "pipeline/orders/schedule.h"

#include "base/memory.h"
#include "pipeline/orders/csv.h"
#include "pipeline/orders/generate_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tr_status tr_schedule_create(const char *name, int ranks, int stages, int micro_batches,
                             const int *rank_of, tr_schedule **out) {
    if (ranks < 1 || stages < 1 || micro_batches < 1)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "a schedule needs at least one rank, stage and micro-batch, not %d, %d and %d", ranks,
            stages, micro_batches);
    if ((int64_t)stages * micro_batches > (1 << 24))
        return TR_FAIL(TR_ERR_CONFIG, "%d stages of %d micro-batches are too many for one schedule",
                       stages, micro_batches);
    tr_status status = TR_OK;
    tr_schedule *s = NULL;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    s->ranks = ranks;
    s->stages = stages;
    s->micro_batches = micro_batches;
    TR_TRY_OUT(tr_calloc((size_t)stages, sizeof *s->rank_of, &s->rank_of));
    TR_TRY_OUT(tr_calloc((size_t)ranks, sizeof *s->count, &s->count));
    TR_TRY_OUT(tr_calloc((size_t)ranks, sizeof *s->capacity, &s->capacity));
    TR_TRY_OUT(tr_calloc((size_t)ranks, sizeof *s->action, &s->action));
    for (int k = 0; k < stages; k++) {
        s->rank_of[k] = rank_of ? rank_of[k] : k % ranks;
        if (s->rank_of[k] < 0 || s->rank_of[k] >= ranks) {
            status = TR_FAIL(TR_ERR_CONFIG, "stage %d is placed on rank %d of %d", k, s->rank_of[k],
                             ranks);
            goto out;
        }
    }
    *out = s;
    return TR_OK;
out:
    tr_schedule_destroy(s);
    return status;
}

void tr_schedule_destroy(tr_schedule *s) {
    if (!s) return;
    for (int r = 0; s->action && r < s->ranks; r++) free(s->action[r]);
    free(s->action);
    free(s->capacity);
    free(s->count);
    free(s->rank_of);
    tr_csv_destroy(s->list);
    free(s);
}

tr_status tr_schedule_add(tr_schedule *s, int rank, tr_action action) {
    if (rank < 0 || rank >= s->ranks)
        return TR_FAIL(TR_ERR_CONFIG, "rank %d of a schedule of %d ranks", rank, s->ranks);
    TR_TRY(tr_grow(&s->action[rank], &s->capacity[rank], (size_t)s->count[rank] + 1,
                   sizeof *s->action[rank]));
    s->action[rank][s->count[rank]++] = action;
    tr_csv_destroy(s->list);
    s->list = NULL;
    return TR_OK;
}

tr_status tr_schedule_forward_of(const tr_schedule *like, int micro_batches, tr_schedule **out) {
    tr_schedule *s = NULL;
    TR_TRY(
        tr_schedule_create("forward", like->ranks, like->stages, micro_batches, like->rank_of, &s));
    tr_status status = tr_generate_forward(s, NULL);
    if (status != TR_OK) {
        tr_schedule_destroy(s);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *out = s;
    return TR_OK;
}

char tr_action_letter(tr_action_type type) {
    static const char letter[TR_ACTION_TYPES] = {
        [TR_ACTION_F] = 'F', [TR_ACTION_I] = 'I', [TR_ACTION_W] = 'W', [TR_ACTION_B] = 'B'};
    return (unsigned)type < TR_ACTION_TYPES ? letter[type] : '?';
}

void tr_action_print(tr_action action, char *text, size_t size) {
    (void)snprintf(text, size, "%d%c%d", action.stage, tr_action_letter(action.type),
                   action.micro_batch);
}
