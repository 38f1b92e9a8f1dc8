#include "partition/tensor_sums.h"

/* Adds the sums of one action of a layer: F, I or B. */
static void add_layer(const tr_layer *layer, tr_action_type type, tr_link link, tr_sum_times *all) {
    for (int k = 0; k < layer->sums; k++) {
        const tr_layer_sum *sum = &layer->sum[k];
        if (sum->in_f != (type == TR_ACTION_F) || (!sum->in_f && layer->no_backward)) continue;
        const double time = link.latency + link.per_byte * (double)sum->bytes;
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
        if (a.type != TR_ACTION_F && a.type != TR_ACTION_I && a.type != TR_ACTION_B) continue;
        for (int i = placement->first[a.stage]; i < placement->first[a.stage + 1]; i++)
            add_layer(model->layers[i], a.type, link, &all);
    }
    return all;
}
