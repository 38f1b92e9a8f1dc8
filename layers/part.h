/* What layers are made of: operators, buffers by lifetime and parameters, kept by the layer and
 * used by its parts. Private to layers/.
 *
 * A part (linear layer, norm, attention, ...) is created with its layer, when it names its
 * parameters and takes its share of them; it is described for a use of the layer, when it says
 * which operators it runs and what it keeps; its forward, grad_input and grad_weight then run. A
 * layer creates and describes its parts in one order, so that bytes and FLOPs are known without a
 * device; preparing, releasing and listing parameters is the same for all layers and stands here.
 */
#pragma once

#include "base/memory.h"
#include "layers/model.h"
#include "layers/param_impl.h"

enum { TR_LAYER_PARAMS = 16 }; /* of a layer at most */

typedef struct tr_built_layer tr_built_layer;

/* An action of a layer. */
typedef enum tr_phase { TR_PHASE_F, TR_PHASE_I, TR_PHASE_W } tr_phase;

/* An operator that a part runs. */
typedef struct tr_layer_op {
    tr_op_desc desc;
    tr_phase phase;
    tr_op *op; /* once the layer is prepared */
    const tr_built_layer *layer;
    struct tr_layer_op *next; /* in the layer's list */
} tr_layer_op;

/* A dense (rows, width) matrix in one of the layer's blocks. */
typedef struct tr_buffer {
    tr_lifetime life;
    int piece;     /* of the layer; not of scratch */
    size_t offset; /* in the layer's block, where that is one place: in scratch, and I..W in B */
    int64_t rows, width;
    tr_dtype dtype;
} tr_buffer;

/* Every layer that is made of parts starts with this. */
struct tr_built_layer {
    tr_layer layer;
    tr_param param[TR_LAYER_PARAMS];
    tr_model_shape usage;
    int tp_rank, tp_size; /* as usage says */
    int starts;           /* index of the step input that tr_built_asks_starts asks for */
    void (*describe)(tr_built_layer *layer); /* every part, for layer->usage */
    tr_layer_op *first_op;
    size_t operators_at; /* in scratch: the operators' own scratch begins here */
    tr_group *tp;        /* once it is prepared */
};

/* Starts a layer without parts; the name is a printf format. */
void tr_built_begin(tr_built_layer *layer, const tr_layer_ops *ops,
                    void (*describe)(tr_built_layer *), const tr_model_shape *shape,
                    const char *name_format, ...) __attribute__((format(printf, 5, 6)));
/* Describes the layer, whose parts have been created. */
tr_status tr_built_finish(tr_built_layer *layer);
/* The layer reads the one before it to the end of `life`; has one output (batch, seq, width) in the
 * storage type; asks for one more step input i32(batch, seq). Decoding: of one token a row. */
void tr_built_reads(tr_built_layer *layer, tr_lifetime life);
void tr_built_writes(tr_built_layer *layer, const char *name, int64_t width);
void tr_built_asks(tr_built_layer *layer, const char *name);
/* The layer asks where documents start, when its shape has documents. */
void tr_built_asks_starts(tr_built_layer *layer);
/* Room for one more parameter of the layer. */
tr_param *tr_built_param(tr_built_layer *layer);
/* Part `tp_rank` of tp_size of 0..total. */
tr_range tr_built_part(const tr_built_layer *layer, int64_t total);

/* `prepare` and `destroy` of the layer's table of functions. Decoding prepares operators of F
 * alone. Destroy frees the layer. */
tr_status tr_built_prepare(tr_layer *layer, const tr_layer_env *env);
void tr_built_destroy(tr_layer *layer);

/* --- while a layer is described --------------------------------------------------------------- */

/* The operator is run in this phase: counts its FLOPs, and prepares it with the layer. */
void tr_built_op(tr_built_layer *layer, tr_layer_op *op, tr_phase phase, tr_op_desc desc);
/* Counts (rows, width) elements as the layer's next piece, or at the end of scratch. The model's
 * sizes have been checked, so the product fits. Without memory for the list of pieces,
 * layer->described becomes an error. */
tr_buffer tr_built_place(tr_built_layer *layer, tr_lifetime life, int64_t width, tr_dtype dtype);
/* The same of another number of rows. */
tr_buffer tr_built_place_rows(tr_built_layer *layer, tr_lifetime life, int64_t rows, int64_t width,
                              tr_dtype dtype);
/* Bytes of (rows, width) elements of the layer's type. */
double tr_built_bytes(const tr_built_layer *layer, int64_t width);

/* --- while a layer runs ----------------------------------------------------------------------- */

/* The buffer in the memory of one micro-batch. */
tr_tensor tr_buffer_at(const tr_layer_io *io, tr_buffer buffer);
/* Where the documents of the rows start, (batch, seq); absent when the shape has no documents. */
tr_tensor tr_built_starts(const tr_built_layer *layer, const tr_layer_io *io);
/* Runs an operator with the call's stream, step state and sample. */
tr_status tr_layer_op_run(const tr_layer_op *op, const tr_layer_io *io, tr_op_args args);
/* Sums a dense x over the tensor ranks, in place. */
tr_status tr_built_sum(const tr_built_layer *layer, const tr_layer_io *io, tr_tensor x);
