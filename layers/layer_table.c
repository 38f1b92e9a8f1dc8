/* The stage table of a model's layers: costs, bytes and edges. */
#include "base/memory.h"
#include "layers/layer_stage.h"
#include "layers/stage_flow.h"

#include <stdlib.h>
#include <string.h>

/* Fills the edges of stage `index`. */
static void fill_edges(const tr_stage_flow *flow, int index, const tr_flow_edge *cut,
                       tr_stage_table *t) {
    for (int v = 0; v < flow->values; v++) {
        const tr_stage_value *value = &flow->value[v];
        const tr_layer *maker = flow->model->layers[value->layer];
        if (value->in_edge >= 0) {
            tr_edge *edge = &t->edge[value->in_edge];
            edge->from = cut[value->in_edge].from;
            edge->to = index;
            edge->tensor = value->tensor;
            edge->bytes = value->bytes;
            edge->life = value->life;
            edge->f_writes_gradient = value->gradient_life != TR_LIFE_SCRATCH;
        } else if (value->on_edge) {
            t->edge[value->out_edge].w_reads_gradient = maker->w_reads_dy[value->output];
        }
    }
}

/* Fills a stage's cost and edges. */
static tr_status fill_stage(const tr_model *model, const int *first, int index,
                            const tr_flow_edge *cut, tr_stage_table *t, size_t *pieces) {
    tr_stage_flow flow;
    tr_status status = tr_stage_flow_make(model, first, index, cut, t->edges, &flow);
    if (status == TR_OK) {
        tr_stage_flow_cost(&flow, &t->piece[*pieces], &t->cost[index]);
        *pieces += (size_t)flow.pieces;
        fill_edges(&flow, index, cut, t);
    }
    tr_stage_flow_free(&flow);
    return status;
}

/* Sums the memory of every stage's blocks and of its edges' tensors and gradients. */
static void sum_memory(tr_stage_table *t) {
    for (int s = 0; s < t->stages; s++) {
        const size_t *bytes = t->cost[s].bytes;
        t->cost[s].m_b = (double)(bytes[TR_LIFE_FI] + bytes[TR_LIFE_FW]);
        t->cost[s].m_w = (double)(bytes[TR_LIFE_FW] + bytes[TR_LIFE_IW]);
    }
    for (int e = 0; e < t->edges; e++) {
        const tr_edge *edge = &t->edge[e];
        const double bytes = (double)edge->bytes;
        t->cost[edge->to].m_b += edge->f_writes_gradient ? 2 * bytes : bytes;
        if (edge->life == TR_LIFE_FW) t->cost[edge->to].m_w += bytes;
        if (edge->w_reads_gradient) t->cost[edge->from].m_w += bytes;
    }
}

tr_status tr_layer_table_make(const tr_model *model, const int *first, int stages,
                              tr_stage_table *out) {
    tr_status status = TR_OK;
    tr_stage_table t = {.stages = stages};
    tr_flow_edge *cut = NULL;
    size_t pieces = 0;
    TR_TRY(tr_flow_edges(model, first, stages, &cut, &t.edges));
    TR_TRY_OUT(tr_calloc((size_t)stages, sizeof *t.cost, &t.cost));
    TR_TRY_OUT(tr_calloc((size_t)t.edges, sizeof *t.edge, &t.edge));
    for (int k = 0; k < model->count; k++) {
        const tr_layer *layer = model->layers[k];
        pieces += (size_t)(layer->pieces + 2 * layer->outputs + layer->inputs);
    }
    TR_TRY_OUT(tr_calloc(pieces, sizeof *t.piece, &t.piece));
    pieces = 0;
    for (int k = 0; k < stages; k++) TR_TRY_OUT(fill_stage(model, first, k, cut, &t, &pieces));
    sum_memory(&t);
out:
    free(cut);
    if (status == TR_OK) *out = t;
    else tr_stage_table_free(&t);
    return status;
}

void tr_stage_table_free(tr_stage_table *t) {
    free(t->cost);
    free(t->edge);
    free(t->piece);
    free(t->bucket);
    *t = (tr_stage_table){0};
}

static tr_status add_step_input(const tr_layer *layer, const tr_flow *asked, tr_flow *input,
                                int *inputs) {
    for (int j = 0; j < *inputs; j++) {
        if (strcmp(input[j].name, asked->name) != 0) continue;
        if (tr_flow_same(&input[j], asked)) return TR_OK;
        return TR_FAIL(
            TR_ERR_INTERNAL,
            "layer %s asks for step input \"%s\" in another shape or type than an earlier layer",
            layer->name, asked->name);
    }
    if (*inputs == TR_STEP_INPUTS)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "layer %s asks for step input \"%s\", but a model has at most %d",
                       layer->name, asked->name, TR_STEP_INPUTS);
    input[(*inputs)++] = *asked;
    return TR_OK;
}

tr_status tr_layer_step_inputs(const tr_model *model, int first, int end, tr_flow *input,
                               int *inputs) {
    for (int k = first; k < end; k++)
        for (int i = 0; i < model->layers[k]->step_inputs; i++)
            TR_TRY(
                add_step_input(model->layers[k], &model->layers[k]->step_input[i], input, inputs));
    return TR_OK;
}
