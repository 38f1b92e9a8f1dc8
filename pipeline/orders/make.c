#include "pipeline/orders/make.h"

#include "pipeline/orders/auto.h"
#include "pipeline/orders/csv.h"
#include "pipeline/orders/generate_impl.h"

#include <string.h>

bool tr_schedule_is_path(const char *name) {
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".csv") == 0;
}

static tr_status check_sizes(const tr_schedule_request *want, const tr_schedule *s) {
    if (want->ranks && s->ranks != want->ranks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s has %d ranks (rows), but the run has %d: set parallel.pp=%d, or use "
                       "another schedule",
                       want->name, s->ranks, want->ranks, s->ranks);
    if (want->micro_batches && s->micro_batches != want->micro_batches)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s has %d micro-batches, but a step has %d: change train.batch, "
                       "parallel.dp or train.micro_batch",
                       want->name, s->micro_batches, want->micro_batches);
    if (want->chunks && s->stages != want->chunks * s->ranks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s has %d stages on %d ranks, but parallel.virtual is %d: leave "
                       "parallel.virtual out, or use another schedule",
                       want->name, s->stages, s->ranks, want->chunks);
    return TR_OK;
}

tr_status tr_schedule_make(const tr_schedule_request *request, tr_schedule **out) {
    if (!strcmp(request->name, "auto")) return tr_schedule_auto(request, NULL, out);
    return tr_generate_order(request, out);
}

tr_status tr_schedule_open(const tr_schedule_request *request, tr_schedule **out) {
    tr_schedule *s = NULL;
    if (!tr_schedule_is_path(request->name)) return tr_schedule_make(request, out);
    TR_TRY(tr_schedule_load(request->name, &s));
    tr_status status = check_sizes(request, s);
    if (status != TR_OK) tr_schedule_destroy(s);
    else *out = s;
    return status;
}
