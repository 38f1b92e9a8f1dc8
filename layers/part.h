/* Tools for layers that are made of parts: operators, buffers by lifetime and parameters, which the
 * layer owns and its parts use. Private to layers/.
 *
 * A part (linear layer, norm, attention, ...) is created with its layer: it names its parameters
 * and takes this rank's share of them. It is described for a use of the layer: it lists the
 * operators that it runs and the buffers that it keeps. Then its forward, grad_input and
 * grad_weight run. A layer creates and describes its parts in one order, so bytes and FLOPs are
 * known without a device. Preparing, releasing and listing parameters is the same for all layers
 * and done here. */
#pragma once

#include "base/memory.h"
#include "layers/model.h"
#include "layers/param_impl.h"

enum { TR_LAYER_PARAMS = 32 }; /* the most of a layer */

typedef struct tr_built_layer tr_built_layer;

/* An action of a layer. */
typedef enum tr_phase { TR_PHASE_F, TR_PHASE_I, TR_PHASE_W } tr_phase;

/* An operator that a part runs. */
typedef struct tr_layer_op {
    tr_op_desc desc;
    tr_phase phase;
    tr_op *op; /* set when the layer is prepared */
    const tr_built_layer *layer;
    struct tr_layer_op *next; /* in the layer's list */
} tr_layer_op;

/* A dense (rows, width) matrix in one of the layer's blocks. */
typedef struct tr_buffer {
    tr_lifetime life;
    int piece;     /* index among the layer's pieces; not for scratch */
    size_t offset; /* in scratch, and within I..W in B, where the block is contiguous */
    bool rebuilt;  /* F does not keep it, and has it at `unkept` of io->unkept */
    size_t unkept;
    int64_t rows, width;
    tr_dtype dtype;
} tr_buffer;

/* Every layer that is made of parts begins with this. */
struct tr_built_layer {
    tr_layer layer;
    tr_param param[TR_LAYER_PARAMS];
    tr_model_shape shape;
    const tr_lora_config *lora; /* set after tr_built_begin where linear layers may have low-rank
                                   updates */
    tr_recompute recompute;     /* set after tr_built_begin in blocks */
    int starts;                 /* index of the step input that tr_built_asks_starts asks for */
    void (*describe)(tr_built_layer *layer); /* describes every part for layer->shape */
    tr_layer_op *first_op;
    size_t operators_at; /* offset of the operators' own scratch in scratch */
    tr_group *tp;        /* set when the layer is prepared */
};

/* Starts a layer without parts; the name is a printf format. */
void tr_built_begin(tr_built_layer *layer, const tr_layer_ops *ops,
                    void (*describe)(tr_built_layer *), const tr_model_shape *shape,
                    const char *name_format, ...) __attribute__((format(printf, 5, 6)));
/* Sets what of the layer is trained, and describes it, after its parts have been created. */
tr_status tr_built_finish(tr_built_layer *layer);
/* Declare that the layer reads the previous layer's output until the end of `life`; that it has one
 * output, "hidden" (batch, seq, width) in the storage type; that it asks for one more step input
 * i32(batch, seq). Decoding: the tokens that a row feeds. After TR_LAYER_FLOWS step inputs,
 * layer->described becomes an error. */
void tr_built_reads(tr_built_layer *layer, tr_lifetime life);
void tr_built_writes(tr_built_layer *layer, int64_t width);
void tr_built_asks(tr_built_layer *layer, const char *name);
/* Declares that the layer asks for document starts, if its shape has documents. */
void tr_built_asks_starts(tr_built_layer *layer);
/* Sets *out to room for one more parameter of the layer. Fails with TR_ERR_INTERNAL after
 * TR_LAYER_PARAMS of them. */
tr_status tr_built_param(tr_built_layer *layer, tr_param **out);
/* Declares that the parameter's gradient is a sum over the rows outside products, of which every
 * tensor rank adds up its own. */
void tr_built_sums_slices(const tr_built_layer *layer, tr_param *param);
/* Returns this tensor rank's part of 0..total. */
tr_range tr_built_part(const tr_built_layer *layer, int64_t total);

/* The functions `prepare` and `destroy` for the layer's table. Decoding prepares only operators of
 * F. Destroy frees the layer. */
tr_status tr_built_prepare(tr_layer *layer, const tr_layer_env *env);
void tr_built_destroy(tr_layer *layer);

/* --- while a layer is described --------------------------------------------------------------- */

/* Declares that the operator runs in this phase: counts its FLOPs, and prepares it with the
 * layer. */
void tr_built_op(tr_built_layer *layer, tr_layer_op *op, tr_phase phase, tr_op_desc desc);
/* Adds (rows, width) elements as the layer's next piece, or at the end of scratch. The product
 * fits, because the model's sizes have been checked. Without memory for the list of pieces, sets
 * layer->described to an error. */
tr_buffer tr_built_place(tr_built_layer *layer, tr_lifetime life, int64_t width, tr_dtype dtype);
/* Adds (rows, width) elements that F makes and later actions read until the end of `life`. From
 * the mode `from` of recompute on, F does not keep them: I or W builds them again, and they live
 * for `again`, I..W or scratch. */
tr_buffer tr_built_save(tr_built_layer *layer, tr_lifetime life, tr_recompute from,
                        tr_lifetime again, int64_t width, tr_dtype dtype);
/* Does the same as tr_built_place for another number of rows. */
tr_buffer tr_built_place_rows(tr_built_layer *layer, tr_lifetime life, int64_t rows, int64_t width,
                              tr_dtype dtype);
/* Do the same as tr_built_place and tr_built_save for the rows of this rank's slice. */
tr_buffer tr_built_place_slice(tr_built_layer *layer, tr_lifetime life, int64_t width,
                               tr_dtype dtype);
tr_buffer tr_built_save_slice(tr_built_layer *layer, tr_lifetime life, tr_recompute from,
                              tr_lifetime again, int64_t width, tr_dtype dtype);
/* Sequence parallelism: returns scratch for all rows of a tensor that is cut into slices, in the
 * storage type; else nothing. */
tr_buffer tr_built_place_all(tr_built_layer *layer, int64_t width);

/* Declares that F makes `count` sums of (rows, width) elements over the tensor ranks. */
void tr_built_sums_in_f(tr_built_layer *layer, int count, int64_t rows, int64_t width,
                        tr_dtype dtype);
/* Declares that the actions make `count` sums of all rows (tr_built_sum_slice), and that B does
 * other work of `hides` FLOPs during each. */
void tr_built_slice_sums(tr_built_layer *layer, tr_layer_sum_when when, int count, int64_t width,
                         double hides);
/* Declares the same of gathers (tr_built_gather), of which there are none without sequence
 * parallelism. */
void tr_built_slice_gathers(tr_built_layer *layer, tr_layer_sum_when when, int count, int64_t width,
                            double hides);

/* --- while a layer runs ----------------------------------------------------------------------- */

/* Returns the buffer in the memory of one micro-batch. */
tr_tensor tr_buffer_at(const tr_layer_io *io, tr_buffer buffer);
/* Returns where the documents of the rows start, (batch, seq); absent when the shape has no
 * documents. */
tr_tensor tr_built_starts(const tr_built_layer *layer, const tr_layer_io *io);
/* Runs an operator with the call's stream, step state and sample. */
tr_status tr_layer_op_run(const tr_layer_op *op, const tr_layer_io *io, tr_op_args args);
/* Sums a dense x over the tensor ranks, in place. */
tr_status tr_built_sum(const tr_built_layer *layer, const tr_layer_io *io, tr_tensor x);
/* Makes later work wait for a sum or gather that was started. */
tr_status tr_built_wait(const tr_built_layer *layer, const tr_layer_io *io, int64_t ticket);

/* Slices of rows. Sequence parallelism: products read and write the rows of all tensor ranks,
 * which are in `all`, a buffer of tr_built_place_all. Otherwise a rank's slice has all rows. */

/* Returns the tensor of all rows: that of `all`, or the slice. */
tr_tensor tr_built_all(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                       tr_tensor slice);
/* Begins to fill `all` with the slices of all ranks: nothing may use it before tr_built_wait for
 * the ticket. */
tr_status tr_built_gather_start(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                                tr_tensor slice, int64_t *ticket);
/* Starts that and waits for it. */
tr_status tr_built_gather(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                          tr_tensor slice);
/* Begins to sum this rank's part of tr_built_all over the tensor ranks, and to set the slice to its
 * rows of the sum: nothing may use either before tr_built_wait for the ticket. */
tr_status tr_built_sum_slice_start(const tr_built_layer *layer, const tr_layer_io *io,
                                   tr_buffer all, tr_tensor slice, int64_t *ticket);
/* Starts that and waits for it. */
tr_status tr_built_sum_slice(const tr_built_layer *layer, const tr_layer_io *io, tr_buffer all,
                             tr_tensor slice);
