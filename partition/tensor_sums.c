#include "partition/tensor_sums.h"

static bool makes(const tr_layer *layer, tr_action_type type, tr_layer_sum_when when) {
    if (type == TR_ACTION_F || when == TR_LAYER_SUM_F)
        return type == TR_ACTION_F && when == TR_LAYER_SUM_F;
    if (layer->no_backward) return false;
    if (type == TR_ACTION_B) return when != TR_LAYER_SUM_W_APART;
    return (type == TR_ACTION_I) == (when == TR_LAYER_SUM_I);
}

/* Adds the sums of one action of a layer: F, I, W or B. */
static void add_layer(const tr_layer *layer, tr_action_type type, tr_link link, tr_sum_times *all) {
    for (int k = 0; k < layer->sums; k++) {
        const tr_layer_sum *sum = &layer->sum[k];
        if (!makes(layer, type, sum->when)) continue;
        const double whole = link.latency + link.per_byte * (double)sum->bytes;
        const double time = sum->half ? whole / 2 : whole;
        const double hidden = type == TR_ACTION_B ? sum->hides : 0;
        all->count += sum->count;
        all->bytes += sum->count * (double)sum->bytes;
        all->moving += sum->count * time;
        if (time > hidden) all->exposed += sum->count * (time - hidden);
    }
}

tr_sum_times tr_sum_times_of(const tr_model *model, const tr_placement *placement,
                             const tr_program *program, tr_link link) {
    tr_sum_times all = {0};
    for (int k = 0; k < program->count; k++) {
        const tr_action a = program->instr[k].action;
        if (a.type != TR_ACTION_F && a.type != TR_ACTION_I && a.type != TR_ACTION_W &&
            a.type != TR_ACTION_B)
            continue;
        for (int i = placement->first[a.stage]; i < placement->first[a.stage + 1]; i++)
            add_layer(model->layers[i], a.type, link, &all);
    }
    return all;
}
