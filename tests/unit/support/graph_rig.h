/* Executes cuDNN's operation graphs on the host, in double precision with the roundings of their
 * BF16 tensors. rig_enter replaces some of cuDNN's functions by the rig's: the one that sets an
 * attribute records it and calls the library's; the one that executes a plan computes the recorded
 * graph. It implements matrix products, reductions, reshapes and the point-wise modes of attention.
 *
 * Graphs for `rig_handle` are built for the described GPU instead, and the first tokens of a mask
 * are computed on the host: the linker sends tr_cudnn_attention_build and
 * tr_cuda_launch_attention_first here (--wrap). */
#pragma once

#include "device/cuda/attention_graph.h"

/* A handle that only the functions below interpret. */
extern cudnnHandle_t const rig_handle;
extern cudaStream_t rig_stream;   /* bound to the handle */
extern int64_t rig_executions;    /* of recorded graphs, so far */
extern const char *rig_described; /* the JSON of a GPU */

/* Loads cuDNN and replaces its functions by the rig's. */
void rig_enter(void);
