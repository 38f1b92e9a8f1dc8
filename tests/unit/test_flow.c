/* Tests the tensors between layers, with a model of its own: outputs of several widths and types,
 * tensors that several later stages read, and step inputs of several types. Training gives the same
 * bits under every cut and schedule, and the gradients are those of finite differences. */
#include "support/stage_rig.h"
#include "support/generate_order.h"

#include <math.h>

enum { MOST_FEATURES = 32, MOST_UNITS = 8, IMAGE = 2, WEIGHTS = 512 };

static const char image_name[] = "image"; /* f32(batch, 2) */

/* A layer: every output is tanh(W f), where f is made of the inputs and step inputs. The last one
 * has no output, and the loss sum (W f - label / 8)^2 / 2. */
typedef struct node_desc {
    int inputs;
    tr_layer_input input[TR_LAYER_FLOWS];
    const char *step[TR_LAYER_FLOWS];
    int width[TR_LAYER_FLOWS];   /* of the outputs */
    bool narrow[TR_LAYER_FLOWS]; /* in the run's type; otherwise FP32 */
    bool reads_dy;               /* W reads the output's gradient too, and I keeps no copy of it */
} node_desc;

#define BEFORE TR_LAYER_BEFORE, 0
/* The input is read until the end of I, or of W; W_F: and F writes its gradient. */
#define I_  TR_LIFE_FI, false
#define W_  TR_LIFE_FW, false
#define W_F TR_LIFE_FW, true
static const node_desc nodes[LAYERS] = {
    {.step = {TR_STEP_INPUT_TOKENS, image_name},
     .width = {5, 3},
     .narrow = {false, true},
     .reads_dy = true},
    {.inputs = 1, .input = {{BEFORE, W_}}, .width = {4}, .narrow = {true}},
    {.inputs = 2, .input = {{BEFORE, W_}, {0, 1, I_}}, .width = {6}},
    {.inputs = 2,
     .input = {{BEFORE, I_}, {0, 0, W_}},
     .step = {TR_STEP_INPUT_DOCUMENT_STARTS, image_name},
     .width = {3},
     .narrow = {true},
     .reads_dy = true},
    {.inputs = 3, .input = {{BEFORE, W_}, {0, 0, I_}, {1, 0, W_}}, .width = {7}},
    {.inputs = 4, /* one of them twice; F writes the gradients of three */
     .input = {{BEFORE, W_F}, {0, 1, W_F}, {0, 0, W_F}, {0, 1, I_}},
     .step = {TR_STEP_INPUT_LABELS}}};

/* A node's pieces: outputs F..I, the features F..W, the gradient of W f I..W; outputs F..W. */
enum { OUTPUTS_FW = TR_LIFE_SCRATCH, NODE_PIECES };

typedef struct node {
    tr_layer layer;
    tr_piece piece[NODE_PIECES];
    const tr_model *model;
    int features, units;
    bool copies; /* keeps the features for W, because an input may be gone by then */
    bool reads_dy;
    float *w, *g; /* [units][features] */
} node;

/* Returns element (p, c) of a (batch, seq, width) tensor. */
static float load(const tr_tensor *t, int p, int64_t c) {
    int64_t i = p * t->shape[2] + c;
    return t->dtype == TR_F32 ? ((const float *)t->data)[i]
                              : tr_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

static void store(const tr_tensor *t, int p, int64_t c, double value) {
    int64_t i = p * t->shape[2] + c;
    if (t->dtype == TR_F32) ((float *)t->data)[i] = (float)value;
    else ((uint16_t *)t->data)[i] = tr_f32_to_bf16((float)value);
}

static const tr_flow *flow_of(const node *n, int input) {
    const tr_layer_input *in = &n->layer.input[input];
    return &n->model->layers[in->layer]->output[in->output];
}

/* Fills f[features] for position p; returns their number. */
static int take_features(const node *n, const tr_layer_io *io, int p, float *f) {
    int at = 0;
    for (int i = 0; i < n->layer.inputs; i++) {
        const tr_tensor *x = &io->x[i];
        for (int64_t c = 0; c < x->shape[2]; c++) f[at++] = load(x, p, c);
    }
    for (int i = 0; i < n->layer.step_inputs; i++) {
        const char *name = n->layer.step_input[i].name;
        const int32_t *number = io->step[i].data;
        if (strcmp(name, TR_STEP_INPUT_LABELS) == 0) continue;
        if (strcmp(name, image_name) == 0)
            for (int c = 0; c < IMAGE; c++)
                f[at++] = ((const float *)io->step[i].data)[p / SEQ * IMAGE + c];
        else {
            f[at++] = cosf((float)number[p]);
            f[at++] = sinf((float)number[p]);
        }
    }
    return at;
}

static float *kept(const node *n, const tr_layer_io *io, int piece, int p) {
    int width = piece == TR_LIFE_FW ? n->features : n->units;
    void *at = piece == TR_LIFE_IW && io->backward ? io->backward : io->piece[piece];
    return (float *)at + p * width;
}

/* Computes the outputs in FP32; for the last layer the values that its loss squares. */
static float *outputs_at(const node *n, const tr_layer_io *io, int p) {
    return kept(n, io, n->reads_dy ? OUTPUTS_FW : TR_LIFE_FI, p);
}

static double weigh(const node *n, int unit, const float *f) {
    double sum = 0;
    for (int j = 0; j < n->features; j++)
        sum += (double)n->w[unit * n->features + j] * (double)f[j];
    return sum;
}

/* Computes the gradients of W f. */
static void take_deltas(const node *n, const tr_layer_io *io, int p, float *delta) {
    const float *y = outputs_at(n, io, p);
    if (n->layer.outputs == 0) delta[0] = y[0];
    for (int o = 0, u = 0; o < n->layer.outputs; o++)
        for (int64_t c = 0; c < io->dy[o].shape[2]; c++, u++)
            delta[u] = load(&io->dy[o], p, c) * (1 - y[u] * y[u]);
}

/* Writes the gradients of those inputs that are due now. */
static void store_gradients(const node *n, const tr_layer_io *io, int p, const float *delta) {
    for (int i = 0, j = 0; i < n->layer.inputs; i++)
        for (int64_t c = 0; c < flow_of(n, i)->shape[2]; c++, j++) {
            double sum = 0;
            for (int u = 0; u < n->units; u++)
                sum += (double)n->w[u * n->features + j] * (double)delta[u];
            if (io->dx[i].data) store(&io->dx[i], p, c, sum);
        }
}

static tr_status forward(tr_layer *layer, const tr_layer_io *io) {
    const node *n = (const node *)layer;
    float f[MOST_FEATURES];
    double loss[2] = {0, 0};
    for (int p = 0; p < TOKENS; p++) {
        float *y = outputs_at(n, io, p);
        (void)take_features(n, io, p, f);
        if (n->copies) memcpy(kept(n, io, TR_LIFE_FW, p), f, (size_t)n->features * sizeof *f);
        for (int u = 0; u < n->units; u++) y[u] = (float)tanh(weigh(n, u, f));
        if (layer->outputs == 0) {
            int32_t label = ((const int32_t *)io->step[0].data)[p];
            y[0] = label < 0 ? 0 : (float)(weigh(n, 0, f) - label / 8.0);
            loss[0] += (double)y[0] * (double)y[0] / 2;
            loss[1] += label >= 0;
            store_gradients(n, io, p, y);
        }
        for (int o = 0, u = 0; o < layer->outputs; o++)
            for (int64_t c = 0; c < io->y[o].shape[2]; c++) store(&io->y[o], p, c, (double)y[u++]);
    }
    if (layer->outputs == 0) memcpy(io->loss, loss, sizeof loss);
    return TR_OK;
}

static tr_status grad_input(tr_layer *layer, const tr_layer_io *io) {
    const node *n = (const node *)layer;
    float f[MOST_FEATURES];
    for (int p = 0; p < TOKENS; p++) {
        float own[MOST_UNITS], *delta = n->reads_dy ? own : kept(n, io, TR_LIFE_IW, p);
        /* All inputs are still there. */
        (void)take_features(n, io, p, f);
        if (n->copies &&
            memcmp(kept(n, io, TR_LIFE_FW, p), f, (size_t)n->features * sizeof *f) != 0)
            return TR_FAIL(TR_ERR_INTERNAL, "layer %d: an input is gone in I", layer->index);
        take_deltas(n, io, p, delta);
        store_gradients(n, io, p, delta);
    }
    return TR_OK;
}

static tr_status grad_weight(tr_layer *layer, const tr_layer_io *io) {
    const node *n = (const node *)layer;
    float now[MOST_FEATURES], own[MOST_UNITS];
    if (!io->adds) memset(n->g, 0, (size_t)(n->units * n->features) * sizeof *n->g);
    for (int p = 0; p < TOKENS; p++) {
        const float *delta = n->reads_dy ? own : kept(n, io, TR_LIFE_IW, p), *f = now;
        if (n->reads_dy) take_deltas(n, io, p, own);
        if (n->copies) f = kept(n, io, TR_LIFE_FW, p);
        else (void)take_features(n, io, p, now);
        for (int u = 0; u < n->units; u++)
            for (int j = 0; j < n->features; j++) n->g[u * n->features + j] += delta[u] * f[j];
    }
    return TR_OK;
}

static void destroy(tr_layer *layer) {
    free(((node *)layer)->w);
    free(((node *)layer)->g);
    free(layer);
}

static const tr_layer_ops node_ops = {.kind = "node",
                                      .forward = forward,
                                      .grad_input = grad_input,
                                      .grad_weight = grad_weight,
                                      .destroy = destroy};

/* --- the model -------------------------------------------------------------------------------- */

static void describe_flows(node *n, const node_desc *d, tr_dtype dtype) {
    tr_layer *layer = &n->layer;
    layer->inputs = d->inputs;
    memcpy(layer->input, d->input, sizeof layer->input);
    for (; d->width[layer->outputs]; layer->outputs++) {
        int64_t shape[] = {BATCH, SEQ, d->width[layer->outputs]};
        layer->output[layer->outputs] =
            tr_flow_make("hidden", d->narrow[layer->outputs] ? dtype : TR_F32, 3, shape);
        n->units += d->width[layer->outputs];
        layer->w_reads_dy[layer->outputs] = d->reads_dy;
    }
    for (; d->step[layer->step_inputs]; layer->step_inputs++) {
        bool image = d->step[layer->step_inputs] == image_name;
        int64_t shape[] = {BATCH, image ? IMAGE : SEQ};
        layer->step_input[layer->step_inputs] =
            tr_flow_make(d->step[layer->step_inputs], image ? TR_F32 : TR_I32, 2, shape);
        if (strcmp(d->step[layer->step_inputs], TR_STEP_INPUT_LABELS) != 0) n->features += 2;
    }
    if (n->units == 0) n->units = 1; /* the loss */
}

static void keep(node *n, int piece, tr_lifetime life, int width) {
    size_t bytes = tr_align_up((size_t)(TOKENS * width) * sizeof(float));
    n->piece[piece] = (tr_piece){.life = life, .bytes = bytes};
    n->layer.bytes[life] += bytes;
}

/* Makes the layer's memory and weights, once its inputs are known. */
static tr_status complete(node *n) {
    for (int i = 0; i < n->layer.inputs; i++) {
        n->features += (int)flow_of(n, i)->shape[2];
        n->copies |= n->layer.input[i].life == TR_LIFE_FI;
    }
    size_t weights = (size_t)(n->units * n->features);
    if (n->features > MOST_FEATURES || n->units > MOST_UNITS || weights > WEIGHTS)
        return TR_FAIL(TR_ERR_INTERNAL, "layer %d is too large", n->layer.index);
    n->layer.pieces = NODE_PIECES;
    n->layer.piece = n->piece;
    n->layer.flops_f = n->layer.flops_i = n->layer.flops_w = (double)weights;
    keep(n, TR_LIFE_FI, TR_LIFE_FI, n->reads_dy ? 0 : n->units);
    keep(n, TR_LIFE_FW, TR_LIFE_FW, n->copies ? n->features : 0);
    keep(n, TR_LIFE_IW, TR_LIFE_IW, n->reads_dy ? 0 : n->units);
    keep(n, OUTPUTS_FW, TR_LIFE_FW, n->reads_dy ? n->units : 0);
    TR_TRY(tr_calloc(weights, sizeof *n->w, &n->w));
    TR_TRY(tr_calloc(weights, sizeof *n->g, &n->g));
    test_random random = {(uint64_t)n->layer.index * 1000 + SEED};
    for (size_t k = 0; k < weights; k++) n->w[k] = (float)test_between(&random, -64, 64) / 128;
    return TR_OK;
}

static tr_status make_nodes(tr_dtype dtype, tr_model **out) {
    tr_status status = TR_OK;
    tr_model *model = NULL;
    TR_TRY(tr_calloc(1, sizeof *model, &model));
    model->count = LAYERS;
    TR_TRY_OUT(tr_calloc(LAYERS, sizeof *model->layers, &model->layers));
    for (int k = 0; k < LAYERS; k++) {
        node *n;
        TR_TRY_OUT(tr_calloc(1, sizeof *n, &n));
        n->layer.ops = &node_ops;
        n->model = model;
        n->reads_dy = nodes[k].reads_dy;
        (void)snprintf(n->layer.name, sizeof n->layer.name, "node %d", k);
        model->layers[k] = &n->layer;
        describe_flows(n, &nodes[k], dtype);
    }
    TR_TRY_OUT(tr_model_connect(model));
    for (int k = 0; k < LAYERS; k++) TR_TRY_OUT(complete((node *)model->layers[k]));
out:
    if (status == TR_OK) *out = model;
    else tr_model_destroy(model);
    return status;
}

/* The weight that is changed, for finite differences. */
static struct {
    int layer, weight;
    float by;
} moved = {.layer = -1};

static tr_status make_model(rank_state *r) {
    TR_TRY(make_nodes(r->l->dtype, &r->model));
    if (moved.layer >= 0) ((node *)r->model->layers[moved.layer])->w[moved.weight] += moved.by;
    return TR_OK;
}

static int32_t starts[MICRO_BATCHES * TOKENS];
static float images[MICRO_BATCHES * BATCH * IMAGE];

static void fill_inputs(void) {
    for (int k = 0; k < MICRO_BATCHES * TOKENS; k++) starts[k] = k % SEQ / 2 * 2;
    for (int k = 0; k < MICRO_BATCHES * BATCH * IMAGE; k++) images[k] = (float)(k % 5) / 4;
}

static int add_inputs(rank_state *r, tr_step_data *input) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)r;
    (void)pthread_once(&once, fill_inputs);
    input[0] = (tr_step_data){TR_STEP_INPUT_DOCUMENT_STARTS, starts, TOKENS * sizeof *starts};
    input[1] = (tr_step_data){"image", images, BATCH * IMAGE * sizeof *images};
    return 2;
}

/* Takes a step of gradient descent; the outcome's values are the gradients of the last step, and
 * the weights. */
static tr_status descend(rank_state *r, int step) {
    (void)step;
    for (int k = 0; k < LAYERS; k++) {
        node *n = (node *)r->model->layers[k];
        float *to = &r->l->result->value[2 * WEIGHTS * k];
        if (!is_here(r, k)) continue;
        for (int i = 0; i < n->units * n->features; i++) {
            n->w[i] -= 0x1p-8f * n->g[i];
            to[i] = n->g[i];
            to[WEIGHTS + i] = n->w[i];
            n->g[i] = NAN; /* the next step's first W writes it */
        }
    }
    return TR_OK;
}

static const rig_model
    trained = {.steps = 4, .vocab = 8, .make = make_model, .inputs = add_inputs, .finish = descend},
    one_step = {
        .steps = 1, .vocab = 8, .make = make_model, .inputs = add_inputs, .finish = descend};

/* --- tests ------------------------------------------------------------------------------------ */

static double sum_losses(const outcome *o) {
    double sum = 0;
    for (int k = 0; k < MICRO_BATCHES; k++) sum += o->loss[k][0];
    return sum;
}

static outcome *run_one_step(void) {
    tr_schedule *s = NULL;
    assert_int_equal(generate_order("gpipe", 1, 1, MICRO_BATCHES, &s), TR_OK);
    outcome *o = run_layout(&one_step, s, cut1, TR_F32, 0);
    tr_schedule_destroy(s);
    return o;
}

static double loss_with(int layer, int weight, float by) {
    moved.layer = layer;
    moved.weight = weight;
    moved.by = by;
    outcome *o = run_one_step();
    double loss = sum_losses(o);
    moved.layer = -1;
    free(o);
    return loss;
}

static void test_every_layout(void **state) {
    (void)state;
    outcome *start = run_one_step();
    for (int bf16 = 0; bf16 < 2; bf16++) {
        outcome *o = expect_every_layout(&trained, bf16 ? TR_BF16 : TR_F32);
        assert_true(sum_losses(o) < 0.9 * sum_losses(start)); /* the model learns */
        free(o);
    }
    free(start);
}

static void test_finite_differences(void **state) {
    (void)state;
    outcome *o = run_one_step();
    double loss = sum_losses(o);
    for (int k = 0; k < LAYERS; k++)
        for (int i = 0; i < 40; i += 3) {
            float gradient = o->value[2 * WEIGHTS * k + i], h = 0x1p-5f;
            if (o->value[2 * WEIGHTS * k + WEIGHTS + i] == 0) break; /* no more weights */
            double near = loss_with(k, i, h) - loss_with(k, i, -h);
            double far = loss_with(k, i, 2 * h) - loss_with(k, i, -2 * h);
            /* Five points: the error is O(h^4), and about 30 roundings of FP32 tensors over h. */
            double slope = (8 * near - far) / (12 * (double)h);
            double tolerance =
                4 * sqrt(30) * 0x1p-24 * loss / (double)h + 2e-3 * fabs((double)gradient);
            if (!(fabs(slope - (double)gradient) <= tolerance))
                fail_msg("layer %d weight %d: gradient %g, difference %g, tolerance %g", k, i,
                         (double)gradient, slope, tolerance);
        }
    free(o);
}

/* Six stages: the edges of each cut, in the order in which they are read. A tensor that two stages
 * read goes from one to the next. */
static void test_edges(void **state) {
    (void)state;
    static const struct {
        int from, to, width;
        bool narrow;
        tr_lifetime life;
        bool f_writes, w_reads;
    } want[] = {
        {0, 1, 5, false, TR_LIFE_FW, false, true},  {1, 2, 4, true, TR_LIFE_FW, false, false},
        {0, 2, 3, true, TR_LIFE_FI, false, true},   {2, 3, 6, false, TR_LIFE_FI, false, false},
        {1, 3, 5, false, TR_LIFE_FW, false, false}, {3, 4, 3, true, TR_LIFE_FW, false, true},
        {3, 4, 5, false, TR_LIFE_FI, false, false}, {2, 4, 4, true, TR_LIFE_FW, false, false},
        {4, 5, 7, false, TR_LIFE_FW, true, false},  {2, 5, 3, true, TR_LIFE_FW, false, false},
        {4, 5, 5, false, TR_LIFE_FW, true, false}};
    const int edges = sizeof want / sizeof want[0];
    tr_model *model = NULL;
    tr_stage_table t;
    assert_int_equal(make_nodes(TR_BF16, &model), TR_OK);
    assert_int_equal(tr_layer_table_make(model, cut6, 6, &t), TR_OK);
    assert_int_equal(t.edges, edges);
    for (int e = 0; e < edges; e++) {
        const tr_edge *edge = &t.edge[e];
        const tr_dtype dtype = want[e].narrow ? TR_BF16 : TR_F32;
        assert_int_equal(edge->from, want[e].from);
        assert_int_equal(edge->to, want[e].to);
        assert_int_equal(edge->tensor.dtype, dtype);
        assert_int_equal(edge->bytes, (size_t)(TOKENS * want[e].width) * tr_dtype_size(dtype));
        assert_int_equal(edge->life, want[e].life);
        assert_int_equal(edge->f_writes_gradient, want[e].f_writes);
        assert_int_equal(edge->w_reads_gradient, want[e].w_reads);
    }
    tr_stage_table_free(&t);
    tr_model_destroy(model);
}

/* The gradients between the layers of one stage, and the parts that are added to them: at most one
 * is kept for each tensor that a later layer reads, and only until it is read. */
static void test_gradients(void **state) {
    (void)state;
    tr_model *model = NULL;
    tr_stage_table t;
    assert_int_equal(make_nodes(TR_F32, &model), TR_OK);
    assert_int_equal(tr_layer_table_make(model, cut1, 1, &t), TR_OK);
    assert_int_equal(t.edges, 0);
    /* Widths up to 5 take TR_ALIGN bytes, 6 to 8 twice that. I of node 2 needs most scratch: the
     * gradients of 1.0 and 2.0, and its own parts of those of 1.0 and 0.1. */
    const tr_stage_cost *cost = &t.cost[0];
    assert_int_equal(cost->bytes[TR_LIFE_SCRATCH], TR_ALIGN * (1 + 2 + 1 + 1));
    /* W also reads the gradients of 0.1 and 3.0. B holds them after a layer's own pieces. */
    size_t own[TR_LIFE_COUNT] = {0};
    for (int k = 0; k < LAYERS; k++)
        for (int life = 0; life < TR_LIFE_COUNT; life++) own[life] += model->layers[k]->bytes[life];
    assert_int_equal(cost->bytes[TR_LIFE_IW], own[TR_LIFE_IW] + TR_ALIGN * (1 + 1));
    assert_int_equal(cost->backward_iw, TR_ALIGN * (2 + 1 + 1));
    /* F writes the gradient of 4.0, and a part of that of 0.1. W reads the gradient of 0.0 too. It
     * reads all outputs except 2.0. */
    const size_t outputs_fw = TR_ALIGN * (1 + 1 + 1 + 1 + 2);
    assert_int_equal(cost->bytes[TR_LIFE_FI], own[TR_LIFE_FI] + TR_ALIGN * (2 + 2 + 1));
    assert_int_equal(cost->bytes[TR_LIFE_FW], own[TR_LIFE_FW] + outputs_fw + TR_ALIGN * 1);
    tr_stage_table_free(&t);
    tr_model_destroy(model);
}

/* Each step input is listed once, and all layers must give it the same shape. */
static void test_step_inputs(void **state) {
    (void)state;
    tr_model *model = NULL;
    tr_flow input[TR_STEP_INPUTS];
    int inputs = 0;
    assert_int_equal(make_nodes(TR_F32, &model), TR_OK);
    assert_int_equal(tr_layer_step_inputs(model, 1, 3, input, &inputs), TR_OK);
    assert_int_equal(inputs, 0);
    assert_int_equal(tr_layer_step_inputs(model, 0, LAYERS, input, &inputs), TR_OK);
    assert_int_equal(inputs, 4);
    assert_string_equal(input[1].name, "image");
    model->layers[3]->step_input[1].shape[1]++;
    inputs = 0;
    assert_int_equal(tr_layer_step_inputs(model, 0, LAYERS, input, &inputs), TR_ERR_INTERNAL);
    assert_non_null(strstr(tr_error_message(), "image"));

    tr_stage *stage = NULL;
    tr_layer_source source = {.input = NULL};
    assert_int_equal(tr_layer_stage_create(model, cut1, 1, 0, &source, &stage), TR_ERR_INTERNAL);
    assert_non_null(strstr(tr_error_message(), "\"tokens\""));
    tr_model_destroy(model);
}

static void test_wrong_models(void **state) {
    (void)state;
    tr_model *model = NULL;
    assert_int_equal(make_nodes(TR_F32, &model), TR_OK);
    tr_layer_input kept = model->layers[5]->input[0];
    model->layers[5]->input[0].output = 1; /* node 4 has one */
    assert_int_equal(tr_model_connect(model), TR_ERR_INTERNAL);
    model->layers[5]->input[0] = (tr_layer_input){.layer = 5};
    assert_int_equal(tr_model_connect(model), TR_ERR_INTERNAL);
    model->layers[5]->input[0] = (tr_layer_input){.layer = 3};
    assert_int_equal(tr_model_connect(model), TR_ERR_INTERNAL);
    assert_non_null(strstr(tr_error_message(), "no layer reads"));
    model->layers[5]->input[0] = kept;
    assert_int_equal(tr_model_connect(model), TR_OK);
    tr_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_step_inputs),  cmocka_unit_test(test_wrong_models),
        cmocka_unit_test(test_every_layout), cmocka_unit_test(test_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
