#include "partition/written.h"

#include "base/code8.h"
#include "base/memory.h"
#include "partition/adafactor.h"
#include "partition/param_memory.h"

#include <stdlib.h>

/* Returns true when data ranks divide the parameter's updates, or of a frozen one its value. */
static bool divides(const tr_holding *h, const tr_param *param) {
    return h->divides && (!param->frozen || h->divides_values);
}

bool tr_holding_divides_saved(const tr_holding *h, const tr_param *param) {
    return divides(h, param) && (h->divides_values || (h->has_masters && !param->frozen));
}

/* Returns the mean elements of a part of the parameter, the same number on every rank. */
static int64_t part_size(const tr_param *param, const tr_param_layout *layout) {
    int64_t count = 0;
    for (int k = 0; k < param->tensors; k++) count += tr_global_count(&param->tensor[k]);
    return count / layout->parts;
}

/* Decides on Adafactor's states of a matrix. Tensor ranks that do not divide an axis have the same
 * numbers of it: one of them writes these. */
static tr_status save_factors(const tr_holding *h, const tr_param *param,
                              const tr_param_layout *layout, int64_t *load, tr_written *out) {
    tr_adafactor m;
    TR_TRY(tr_adafactor_make(param, layout, &m));
    for (int k = 0; k < TR_OPTIM_STATES; k++) {
        const bool same = m.shared > 0 && m.shares_rows == (k == 0);
        const bool turn = h->divides ? layout->saves_portion
                                     : tr_param_layout_takes_turn(layout, h->mesh, 0, load);
        out->state[k] = turn && (!same || layout->part == 0);
    }
    return TR_OK;
}

tr_status tr_written_make(const tr_holding *h, const tr_param *param, const tr_param_layout *layout,
                          tr_optim_kind optimizer, int64_t *load, tr_written *out) {
    const int64_t size = part_size(param, layout);
    *out = (tr_written){.weights = tr_holding_divides_saved(h, param)
                                       ? layout->saves_portion
                                       : tr_param_layout_takes_turn(layout, h->mesh, size, load)};
    if (param->frozen) return TR_OK;
    if (optimizer == TR_OPTIM_ADAFACTOR) return save_factors(h, param, layout, load, out);
    for (int k = 0; k < tr_optim_states(optimizer); k++)
        out->state[k] = divides(h, param) ? layout->saves_portion
                                          : tr_param_layout_takes_turn(layout, h->mesh, size, load);
    return TR_OK;
}

/* Returns the bytes of `count` numbers in a snapshot. */
static size_t snapshot_bytes(tr_dtype dtype, int64_t count) {
    return tr_align_up(dtype == TR_U8 ? tr_code8_bytes(count)
                                      : (size_t)count * tr_dtype_size(dtype));
}

typedef struct sum {
    const tr_written_desc *desc;
    tr_holding holding;
    int64_t *load;
    size_t bytes;
} sum;

static tr_status add_param(void *context, int stage, tr_param *param, bool shares) {
    (void)stage;
    sum *s = context;
    const tr_written_desc *d = s->desc;
    const tr_optim_kind kind = tr_optim_kind_for(d->optimizer.kind, param);
    const tr_dtype state = tr_optim_state_dtype(d->optimizer, d->dtype);
    const bool master = s->holding.has_masters && !param->frozen;
    tr_param_layout layout;
    tr_written saved;
    if (shares) return TR_OK; /* it has the same memory as use 0 */
    TR_TRY(tr_param_layout_make(param, d->mesh, &layout));
    TR_TRY(tr_written_make(&s->holding, param, &layout, kind, s->load, &saved));
    const tr_mesh *divided = divides(&s->holding, param) ? d->mesh : NULL;
    const int64_t own = tr_param_portion(param, divided).extent;
    const int64_t held = tr_holding_divides_saved(&s->holding, param) ? own : param->count;
    if (saved.weights) s->bytes += snapshot_bytes(master ? tr_dtype_acc(d->dtype) : d->dtype, held);
    for (int k = 0; k < TR_OPTIM_STATES && own > 0; k++)
        if (saved.state[k])
            s->bytes += snapshot_bytes(state, tr_optim_state_count(kind, param, k, own));
    return TR_OK;
}

tr_status tr_written_snapshot(const tr_written_desc *d, size_t *out) {
    const bool divided = tr_memory_divided(d->mesh, d->zero) != NULL;
    sum s = {
        .desc = d,
        .holding = {.mesh = d->mesh,
                    .divides = divided,
                    .divides_values = divided && tr_memory_gathers(d->mesh, d->zero),
                    .has_masters = d->dtype != tr_dtype_acc(d->dtype) && !d->optimizer.no_master}};
    TR_TRY(tr_calloc((size_t)d->mesh->degree[TR_AXIS_DP], sizeof *s.load, &s.load));
    tr_status status =
        tr_placement_visit(d->placement, d->model, d->mesh->index[TR_AXIS_PP], add_param, &s);
    free(s.load);
    *out = s.bytes;
    return status;
}
