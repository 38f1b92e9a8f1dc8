#include "partition/optim_row.h"

#include "base/text.h"

#include <string.h>

static const tr_optim_row rows[TR_OPTIM_KINDS] = {
    [TR_OPTIM_ADAMW] = {"adamw", TR_UPDATE_ADAMW, .state = {"adam_m", "adam_v"},
                        .code = {[1] = TR_CODE8_SQUARES}},
    [TR_OPTIM_ADAM] = {"adam", TR_UPDATE_ADAMW, .couples = true, .state = {"adam_m", "adam_v"},
                       .code = {[1] = TR_CODE8_SQUARES}},
    [TR_OPTIM_SGD] = {"sgd", TR_UPDATE_SGD, .couples = true},
    [TR_OPTIM_MOMENTUM] = {"sgd", TR_UPDATE_MOMENTUM, .couples = true, .state = {"momentum"}},
    [TR_OPTIM_LION] = {"lion", TR_UPDATE_LION, .state = {"lion_m"}},
    [TR_OPTIM_LAMB] = {"lamb", TR_UPDATE_ADAMW, .by_tensor = true, .state = {"adam_m", "adam_v"},
                       .code = {[1] = TR_CODE8_SQUARES}},
    /* Its direction depends on the matrix as a whole, so small elements need no small errors. */
    [TR_OPTIM_MUON] = {"muon", TR_UPDATE_MOMENTUM, .by_tensor = true, .whole = true,
                       .decays_last = true, .state = {"muon_m"}, .code = {TR_CODE8_EVEN}},
    /* A matrix has second moments of rows and columns only, so the rule takes the gradient as it
       is. */
    [TR_OPTIM_ADAFACTOR] = {"adafactor", TR_UPDATE_SGD, .by_tensor = true, .whole = true,
                            .decays_last = true, .state = {"factor_r", "factor_c"}},
    [TR_OPTIM_ADAFACTOR_VECTOR] = {"adafactor", TR_UPDATE_ROOT, .by_tensor = true, .whole = true,
                                   .decays_last = true, .state = {"factor_v"}},
};

const tr_optim_row *tr_optim_row_of(tr_optim_kind kind) {
    return &rows[kind];
}

tr_optim_kind tr_optim_kind_for(tr_optim_kind kind, const tr_param *param) {
    if (kind == TR_OPTIM_ADAFACTOR && param->tensor[0].rank != 2) return TR_OPTIM_ADAFACTOR_VECTOR;
    return kind == TR_OPTIM_MUON && !param->is_linear ? TR_OPTIM_ADAMW : kind;
}

int tr_optim_states(tr_optim_kind kind) {
    int count = 0;
    while (count < TR_OPTIM_STATES && rows[kind].state[count]) count++;
    return count;
}

int64_t tr_optim_state_count(tr_optim_kind kind, const tr_param *param, int k, int64_t own) {
    return kind == TR_OPTIM_ADAFACTOR ? param->local[k] : own;
}

int64_t tr_optim_state_total(tr_optim_kind kind, const tr_global *tensor) {
    return kind == TR_OPTIM_ADAFACTOR ? tensor->shape[0] + tensor->shape[1]
                                      : tr_optim_states(kind) * tr_global_count(tensor);
}

tr_optim_config tr_optim_of(const tr_config *c) {
    tr_config_offloads offload;
    (void)tr_config_offload(c, &offload); /* a bad one is refused by tr_config_check */
    tr_optim_config o = {.beta1 = c->optim.beta1,
                         .beta2 = c->optim.beta2,
                         .eps = c->optim.eps,
                         .weight_decay = c->optim.weight_decay,
                         .momentum = c->optim.momentum,
                         .clip_value = c->optim.clip_value,
                         .l1 = c->optim.l1,
                         .l2 = c->optim.l2,
                         .nesterov = c->optim.nesterov,
                         .offload = offload.optimizer,
                         .no_master = !strcmp(c->optim.master, "none"),
                         .gradients = !strcmp(c->optim.gradients, "bf16") ? TR_BF16 : TR_F32,
                         .moments = !strcmp(c->optim.moments, "int8")   ? TR_U8
                                    : !strcmp(c->optim.moments, "bf16") ? TR_BF16
                                                                        : TR_F32};
    for (int i = TR_OPTIM_KINDS - 1; i >= 0; i--)
        if (!strcmp(c->optim.name, rows[i].name)) o.kind = (tr_optim_kind)i;
    if (o.kind == TR_OPTIM_SGD && o.momentum > 0) o.kind = TR_OPTIM_MOMENTUM;
    return o;
}

tr_optim_memory tr_optim_memory_of(const tr_optim_config *o) {
    return (tr_optim_memory){.kind = o->kind,
                             .moments = o->moments,
                             .no_master = o->no_master,
                             .gradients = o->gradients,
                             .offload = o->offload};
}

tr_dtype tr_optim_state_dtype(tr_optim_memory memory, tr_dtype dtype) {
    return memory.moments == TR_F32 ? tr_dtype_acc(dtype) : memory.moments;
}

tr_dtype tr_optim_grad_dtype(tr_optim_memory memory, tr_dtype dtype) {
    return tr_optim_narrow_grads(memory) ? memory.gradients : tr_dtype_acc(dtype);
}

bool tr_optim_narrow_grads(tr_optim_memory memory) {
    return memory.gradients != TR_F32;
}

tr_op_desc tr_optim_update(const tr_optim_config *o, int64_t count, tr_dtype dtype, bool decays,
                           double lr_scale) {
    const tr_optim_row *row = &rows[o->kind];
    return (tr_op_desc){.kind = row->by_tensor ? TR_OP_DIRECTION : TR_OP_UPDATE,
                        .update = {.count = count,
                                   .beta1 = o->beta1,
                                   .beta2 = o->beta2,
                                   .eps = o->eps,
                                   .weight_decay = decays && !row->couples && !row->decays_last
                                                       ? o->weight_decay
                                                       : 0,
                                   .dtype = dtype,
                                   .lr_scale = lr_scale,
                                   .rule = row->rule,
                                   .momentum = o->momentum,
                                   .clip_value = o->clip_value,
                                   .l1 = decays ? o->l1 : 0,
                                   .l2 = decays ? o->l2 + (row->couples ? o->weight_decay : 0) : 0,
                                   .nesterov = o->nesterov}};
}

bool tr_optim_only_scales(const tr_op_desc *desc) {
    const tr_update_desc *d = &desc->update;
    return desc->kind == TR_OP_DIRECTION && d->rule == TR_UPDATE_SGD &&
           !(d->weight_decay > 0 || d->clip_value > 0 || d->l1 > 0 || d->l2 > 0);
}

tr_op_desc tr_optim_descend(int64_t count, int parts, tr_dtype dtype, double lr_scale) {
    return (tr_op_desc){
        .kind = TR_OP_DESCEND,
        .descend = {
            .count = count, .parts = parts, .lr_scale = lr_scale, .factor = 1, .dtype = dtype}};
}

/* Lists the groups of all states of a run by this optimizer. */
static int names_of(tr_optim_kind kind, const char *name[2 * TR_OPTIM_STATES]) {
    const tr_optim_kind other = kind == TR_OPTIM_MUON        ? TR_OPTIM_ADAMW
                                : kind == TR_OPTIM_ADAFACTOR ? TR_OPTIM_ADAFACTOR_VECTOR
                                                             : kind;
    int count = 0;
    for (int k = 0; k < tr_optim_states(kind); k++) name[count++] = rows[kind].state[k];
    for (int k = 0; other != kind && k < tr_optim_states(other); k++)
        name[count++] = rows[other].state[k];
    return count;
}

static bool has_name(tr_optim_kind kind, const char *name) {
    const char *all[2 * TR_OPTIM_STATES];
    for (int k = names_of(kind, all) - 1; k >= 0; k--)
        if (!strcmp(all[k], name)) return true;
    return false;
}

bool tr_optim_restarts(tr_optim_kind kind, tr_optim_kind before) {
    const char *const adam = rows[TR_OPTIM_ADAMW].state[0];
    const char *const factor = rows[TR_OPTIM_ADAFACTOR].state[0];
    const bool has_all = before != TR_OPTIM_MUON || kind == before;
    return (has_name(kind, adam) && !(has_name(before, adam) && has_all)) ||
           (has_name(kind, factor) && !has_name(before, factor));
}

bool tr_optim_continues(tr_optim_kind kind, tr_optim_kind before) {
    const char *name[2 * TR_OPTIM_STATES];
    if (tr_optim_restarts(kind, before)) return false;
    for (int k = names_of(kind, name) - 1; k >= 0; k--)
        if (has_name(before, name[k])) return true;
    return false;
}

void tr_optim_new_states(tr_optim_kind kind, tr_optim_kind before, char *text) {
    const char *name[2 * TR_OPTIM_STATES];
    const int count = names_of(kind, name);
    const bool restarts = tr_optim_restarts(kind, before);
    text[0] = '\0';
    for (int k = 0; k < count; k++)
        if (restarts || !has_name(before, name[k]))
            tr_text_add(text, TR_OPTIM_NAMES, "%s%s", text[0] ? ", " : "", name[k]);
}
