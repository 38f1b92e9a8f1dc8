/* A model: a list of layers, made by its family from a description. */
#pragma once

#include "layers/layer.h"
#include "layers/recompute.h"

typedef enum tr_answer { TR_UNSET, TR_NO, TR_YES } tr_answer;

/* The keys model.lora (layers/lora_config.h). */
typedef struct tr_lora_config {
    int64_t rank; /* 0: no updates */
    double alpha;
    char targets[512]; /* words */
} tr_lora_config;

/* What is trained, and how fast: see layers/tuning.h. Words are separated by spaces. */
enum { TR_TUNING_TEXT = 1024 };
typedef struct tr_tuning {
    char freeze[TR_TUNING_TEXT];   /* key train.freeze: patterns */
    char lr_scale[TR_TUNING_TEXT]; /* key train.lr_scale: a scale, its patterns, a scale, ... */
    bool apart; /* each tensor is a parameter by itself, for an optimizer that needs its norm */
    bool only_updates; /* set by tr_model_create with lora.rank: all other parameters are frozen */
} tr_tuning;

/* The keys of the config's section `model`, and those that say what of it is trained and built
 * again. */
typedef struct tr_model_config {
    char family[16];
    int64_t layers, width, heads, context, vocab;
    double dropout; /* on embeddings and residuals */
    /* tr_model_complete sets those of these that are 0, "" or TR_UNSET. */
    int64_t kv_heads, head_size, mlp_width;
    double norm_eps;
    tr_answer qk_norm, qkv_bias, tie;
    char activation[16];
    int64_t window; /* positions that a token attends to, including its own; 0: all earlier ones */
    double rope_theta;
    char rope_scaling[64];
    tr_lora_config lora; /* these keys do not describe the model that is updated */
    tr_tuning tuning;
    char init[16];                     /* key model.init; "": normal */
    char recompute[TR_RECOMPUTE_TEXT]; /* key train.recompute (layers/recompute.h) */
    bool sequence;                     /* key parallel.sequence */
} tr_model_config;

/* The shape for which a model is made; known on every rank. */
typedef struct tr_model_shape {
    int64_t batch, seq; /* of one micro-batch; decoding: texts, and length of their caches */
    int64_t rows;       /* of the products: set by tr_model_create */
    tr_dtype dtype;     /* storage */
    int64_t decode;     /* tokens that every text feeds at once, all buffers scratch; 0: training */
    /* A sequence holds several documents: the layers ask for TR_STEP_INPUT_DOCUMENT_STARTS. Not
     * with decode. */
    bool documents;
    int tp_rank, tp_size;
    /* Set by tr_model_create. Sequence parallelism: several tensor ranks divide the rows outside
     * the products. The slice is this rank's part of them, else all rows. */
    bool sequence;
    tr_range slice;
    const tr_tuning *tuning; /* set by tr_model_create; NULL: all is trained */
} tr_model_shape;

/* Returns this tensor rank's part of `total` elements, of which `copies` ranks in a row have the
 * same part. */
tr_range tr_model_shape_part(const tr_model_shape *shape, int64_t total, int copies);

typedef struct tr_family tr_family;

typedef struct tr_model {
    const tr_family *family;
    tr_model_config config; /* complete */
    tr_model_shape shape;
    tr_layer **layers; /* embedding, config.layers blocks, head */
    int count;
    int params_count; /* of all layers, each use counted; registry order is layer order */
} tr_model;

/* Sets the fields that are not set to the family's defaults: kv_heads = heads, head_size = width /
 * heads (0 if it does not divide), mlp_width = 4 width or, gated, 8/3 width rounded up to a
 * multiple of 64, and the family's own values. Fails with TR_ERR_CONFIG on an unknown family, and
 * lists the known ones. */
tr_status tr_model_complete(tr_model_config *config);

/* Returns true when the config's family stores the weights of linear layers as [in, out]. */
bool tr_model_is_conv1d(const tr_model_config *config);
/* Returns true when the config's family has parameters for each position of the context. */
bool tr_model_learns_positions(const tr_model_config *config);

/* Checks a config, complete or not, for one tensor rank of this shape. Fails with TR_ERR_CONFIG
 * when values contradict each other, naming the config keys (model.heads not divisible by
 * parallel.tp, model.width not divisible by model.heads, sequence longer than model.context,
 * ...). */
tr_status tr_model_check(const tr_model_config *config, const tr_model_shape *shape);

/* Makes all layers of the model for tensor rank tp_rank, without memory or operators: call
 * ops->prepare on the layers that run here. Fails like tr_model_check. */
tr_status tr_model_create(const tr_model_config *config, const tr_model_shape *shape,
                          tr_model **out);
void tr_model_destroy(tr_model *model);

/* Numbers the layers and parameters of a complete list of layers, and resolves TR_LAYER_BEFORE.
 * tr_model_create calls it. Fails with TR_ERR_INTERNAL when an input is not an output of an earlier
 * layer, or no layer reads an output. */
tr_status tr_model_connect(tr_model *model);

/* Returns the number of the layer that has the parameter. */
int tr_model_layer_of(const tr_model *model, const tr_param *param);

/* Returns the parameters of the whole model (global, tied ones once), and those of them that are
 * not frozen. */
int64_t tr_model_parameters(const tr_model *model);
int64_t tr_model_trained_parameters(const tr_model *model);
/* Returns the model FLOPs of one token, forward and backward: 6 for each weight of a product
 * (including the head's, not the embedding's), and 12 heads * head_size a layer for each key that a
 * query reads on average (half of the sequence, or fewer with a window). A frozen weight has 4
 * instead of 6, because no weight gradient is computed, and in layers without backward 2; these
 * have a third of attention's. */
double tr_model_flops_per_token(const tr_model *model);
