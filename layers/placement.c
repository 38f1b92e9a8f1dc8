#include "layers/placement.h"

int tr_placement_stage(const tr_placement *placement, int layer) {
    int stage = 0;
    while (layer >= placement->first[stage + 1]) stage++;
    return stage;
}

static int owner_of_layer(const tr_placement *placement, int layer) {
    return placement->owner[tr_placement_stage(placement, layer)];
}

/* Returns the other use of a tied parameter (GPT-2 ties two), or NULL; *layer is its layer. */
static const tr_param *other_use(const tr_model *model, const tr_param *param, int *layer) {
    for (int i = 0; i < model->count && param->tied; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *p = &model->layers[i]->params[k];
            if (p->use != param->use && p->turn == param->turn) {
                *layer = i;
                return p;
            }
        }
    return NULL;
}

bool tr_placement_shares(const tr_placement *placement, const tr_model *model, int pp_rank,
                         const tr_param *param) {
    int layer;
    return param->use > 0 && other_use(model, param, &layer) &&
           owner_of_layer(placement, layer) == pp_rank;
}

tr_status tr_placement_visit(const tr_placement *placement, const tr_model *model, int pp_rank,
                             tr_placement_visit_fn visit, void *context) {
    for (int s = 0; s < placement->stages; s++) {
        if (placement->owner[s] != pp_rank) continue;
        for (int i = placement->first[s]; i < placement->first[s + 1]; i++)
            for (int k = 0; k < model->layers[i]->params_count; k++) {
                tr_param *param = &model->layers[i]->params[k];
                TR_TRY(visit(context, s, param,
                             tr_placement_shares(placement, model, pp_rank, param)));
            }
    }
    return TR_OK;
}

int tr_placement_bucket(const tr_placement *placement, const tr_model *model, int stage,
                        const tr_param *param) {
    return placement->first[stage + 1] - 1 - tr_model_layer_of(model, param);
}

tr_status tr_placement_visit_ties(const tr_placement *placement, const tr_model *model,
                                  const tr_mesh *mesh, tr_tie_visit_fn visit, void *context) {
    if (mesh->degree[TR_AXIS_PP] == 1) return TR_OK; /* all uses are on one rank */
    for (int i = 0; i < model->count; i++)
        for (int k = 0; k < model->layers[i]->params_count; k++) {
            const tr_param *param = &model->layers[i]->params[k], *other;
            int other_layer, pp_rank = mesh->index[TR_AXIS_PP];
            if (param->use != 0 || param->frozen ||
                !(other = other_use(model, param, &other_layer)))
                continue;
            int here = owner_of_layer(placement, i);
            int there = owner_of_layer(placement, other_layer);
            if (here == there || (pp_rank != here && pp_rank != there)) continue;
            tr_tie tie = {.param = pp_rank == here ? param : other,
                          .ranks = tr_mesh_pair(mesh, TR_AXIS_PP, here, there)};
            TR_TRY(visit(context, &tie));
        }
    return TR_OK;
}
