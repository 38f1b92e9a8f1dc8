#include "pipeline/orders/schedule.h"

#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

tr_status tr_schedule_check_size(int64_t stages, int micro_batches) {
    if (stages <= (1 << 24) / micro_batches) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "%" PRId64 " stages of %d micro-batches are too many for one schedule", stages,
                   micro_batches);
}

tr_status tr_schedule_create(const char *name, int ranks, int stages, int micro_batches,
                             const int *rank_of, tr_schedule **out) {
    if (ranks < 1 || stages < 1 || micro_batches < 1)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "a schedule needs at least one rank, stage and micro-batch, not %d, %d and %d", ranks,
            stages, micro_batches);
    TR_TRY(tr_schedule_check_size(stages, micro_batches));
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
    free(s);
}

tr_status tr_schedule_add(tr_schedule *s, int rank, tr_action action) {
    if (rank < 0 || rank >= s->ranks)
        return TR_FAIL(TR_ERR_CONFIG, "rank %d of a schedule of %d ranks", rank, s->ranks);
    TR_TRY(tr_grow(&s->action[rank], &s->capacity[rank], (size_t)s->count[rank] + 1,
                   sizeof *s->action[rank]));
    s->action[rank][s->count[rank]++] = action;
    s->listed = s->listed || !tr_action_computes(action);
    return TR_OK;
}
