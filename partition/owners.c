#include "partition/owners.h"

#include "base/memory.h"
#include "base/minmax.h"
#include "layers/param_layout.h"

#include <stdlib.h>

/* A use of a parameter on a pipeline rank. */
typedef struct use {
    tr_param *param;
    int pp_rank;
    bool tied;
    int64_t size; /* elements on a tensor rank, the same number on all of them */
} use;

typedef struct listing {
    const tr_mesh *mesh;
    tr_optim_kind optimizer;
    int pp_rank;
    use *use; /* [count] */
    int count;
} listing;

static tr_status list_use(void *context, int stage, tr_param *param, bool shares) {
    listing *l = context;
    tr_param_layout layout;
    (void)stage, (void)shares;
    param->whole = !param->frozen && tr_optim_row_of(tr_optim_kind_for(l->optimizer, param))->whole;
    if (!param->whole) return TR_OK;
    TR_TRY(tr_param_layout_make(param, l->mesh, &layout));
    l->use[l->count++] = (use){.param = param,
                               .pp_rank = l->pp_rank,
                               .size = tr_global_count(&param->tensor[0]) / layout.parts};
    return TR_OK;
}

static void mark_ties(listing *l) {
    for (int i = 0; i < l->count; i++)
        for (int k = 0; l->use[i].param->use > 0 && k < l->count; k++)
            l->use[k].tied |= l->use[k].param->turn == l->use[i].param->turn;
}

/* Orders tied parameters first, which count on two pipeline ranks, then the largest; the uses of
 * one are next to each other. */
static int compare_uses(const void *a, const void *b) {
    const use *x = a, *y = b;
    if (x->tied != y->tied) return x->tied ? -1 : 1;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    if (x->param->turn != y->param->turn) return x->param->turn < y->param->turn ? -1 : 1;
    return (x->pp_rank > y->pp_rank) - (x->pp_rank < y->pp_rank);
}

/* Gives the uses of one parameter to the data rank that owns least where it owns most. load:
 * [pipeline ranks][data ranks]. */
static void choose(const use *first, int uses, int data_ranks, int64_t *load) {
    int owner = 0;
    int64_t least = INT64_MAX;
    for (int d = 0; d < data_ranks; d++) {
        int64_t most = 0;
        for (int k = 0; k < uses; k++)
            most = tr_max_i64(most, load[first[k].pp_rank * data_ranks + d]);
        if (most >= least) continue;
        least = most;
        owner = d;
    }
    for (int k = 0; k < uses; k++) {
        first[k].param->owner = owner;
        if (k == 0 || first[k].pp_rank != first[k - 1].pp_rank)
            load[first[k].pp_rank * data_ranks + owner] += first[k].size;
    }
}

tr_status tr_owners_choose(const tr_model *model, const tr_placement *placement,
                           const tr_mesh *mesh, tr_optim_kind optimizer) {
    tr_status status = TR_OK;
    listing l = {.mesh = mesh, .optimizer = optimizer};
    int64_t *load = NULL;
    int ranks = 0;
    if (!mesh) return TR_OK;
    const int data_ranks = tr_mesh_near(mesh);
    for (int s = 0; s < placement->stages; s++)
        if (placement->owner[s] >= ranks) ranks = placement->owner[s] + 1;
    TR_TRY_OUT(tr_calloc((size_t)model->params_count, sizeof *l.use, &l.use));
    TR_TRY_OUT(tr_calloc((size_t)ranks * (size_t)data_ranks, sizeof *load, &load));
    for (l.pp_rank = 0; l.pp_rank < ranks; l.pp_rank++)
        TR_TRY_OUT(tr_placement_visit(placement, model, l.pp_rank, list_use, &l));
    mark_ties(&l);
    qsort(l.use, (size_t)l.count, sizeof *l.use, compare_uses);
    for (int i = 0, uses; i < l.count; i += uses) {
        uses = 1;
        while (i + uses < l.count && l.use[i + uses].param->turn == l.use[i].param->turn) uses++;
        choose(&l.use[i], uses, data_ranks, load);
    }
out:
    free(l.use);
    free(load);
    return status;
}
