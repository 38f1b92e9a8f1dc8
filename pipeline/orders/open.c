#include "pipeline/orders/open.h"

#include "pipeline/orders/csv.h"

#include <string.h>

bool tr_schedule_is_path(const char *name) {
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".csv") == 0;
}

static tr_status check_sizes(const tr_schedule_request *want, const tr_schedule *s) {
    if (want->ranks && s->ranks != want->ranks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s has %d ranks (rows), and %d are asked for: set parallel.pp=%d, or take "
                       "another schedule",
                       want->name, s->ranks, want->ranks, s->ranks);
    if (want->micro_batches && s->micro_batches != want->micro_batches)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s has %d micro-batches, and a step has %d (train.batch / parallel.dp / "
                       "train.micro_batch)",
                       want->name, s->micro_batches, want->micro_batches);
    if (want->chunks && s->stages != want->chunks * s->ranks)
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s has %d stages on %d ranks, and %d a rank are asked for: leave "
                       "parallel.virtual out, or take another schedule",
                       want->name, s->stages, s->ranks, want->chunks);
    return TR_OK;
}

tr_status tr_schedule_open(const tr_schedule_request *request, tr_schedule **out) {
    if (!tr_schedule_is_path(request->name)) return tr_schedule_make(request, out);
    tr_csv *csv = NULL;
    tr_schedule *s = NULL;
    TR_TRY(tr_csv_load(request->name, &csv));
    tr_status status = tr_csv_check(csv);
    if (status == TR_OK) status = tr_csv_schedule(csv, &s);
    tr_csv_destroy(csv);
    if (status == TR_OK) status = check_sizes(request, s);
    if (status != TR_OK) {
        tr_schedule_destroy(s);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *out = s;
    return TR_OK;
}
