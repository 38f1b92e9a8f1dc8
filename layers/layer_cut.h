/* A cut of a model's layers into stages as text, the value of parallel.cut, in the form of
 * Megatron-LM's --pipeline-model-parallel-layout: E is the embedding, t a block, L the head, and |
 * ends a stage; t*3 is ttt, and (tt|)*3 is tt|tt|tt|. Commas have no meaning. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define TR_LAYER_CUT_AUTO "auto"   /* the value with which the cut is chosen */
enum { TR_LAYER_CUT_TEXT = 1024 }; /* the size of a value */

/* Counts the stages of a cut of a model with this number of blocks. Fails with TR_ERR_CONFIG,
 * naming parallel.cut, for text of another form, and when the layers are not those of the model or
 * a stage has none. */
tr_status tr_layer_cut_count(const char *text, int64_t blocks, int *stages);

/* Reads a cut to first[stages + 1]: stage k has layers first[k] to first[k+1] - 1, of which 0 is
 * the embedding and blocks + 1 the head. Fails like tr_layer_cut_count, and for another number of
 * stages. */
tr_status tr_layer_cut_read(const char *text, int64_t blocks, int stages, int *first);

/* Writes the cut of a model, as tr_layer_cut_read reads it, to text[size]; "" when it does not
 * fit. */
void tr_layer_cut_print(const int *first, int stages, char *text, size_t size);
