/* Models of other programs to runs, and runs to models of transformers. */
#pragma once

#include "comm/comm.h"
#include "job/board.h"

#include <stdio.h>

/* Makes a run of `from`: a folder of transformers, a file *.safetensors next to its config.json, or
 * a model file of llm.c. The run holds step 0 with weights only, config.yaml, origin.json, and the
 * tokenizer. Progress goes to `out`. Collective; memory does not grow with the model. Fails with
 * TR_ERR_NOFILE when `from` does not exist, with TR_ERR_DATA when it is not a model that Trireme
 * has, and with TR_ERR_USAGE when the run has checkpoints, config.yaml, origin.json or tokenizer/.
 * A failure removes what the import wrote, except folders, and so does the next import to the run
 * after one that was killed. Fails with TR_ERR_STOPPED soon after a stop is requested on `board`
 * (may be NULL). */
tr_status tr_import(tr_world *world, const tr_board *board, const char *from, const char *run,
                    FILE *out);

typedef struct tr_export_options {
    const char *run, *folder;
    const char *dtype;   /* fp32, bf16, fp16; NULL: as the weights came, FP32 for a run born here */
    int64_t step;        /* -1: the newest */
    int64_t shard_bytes; /* most bytes of a file */
    bool adapter;        /* write the updates as an adapter of PEFT, instead of merging them */
} tr_export_options;

/* Writes a folder of transformers with a run's model, with low-rank updates added to its weights;
 * or a folder of PEFT with the updates alone, in FP32 unless options->dtype says otherwise. The
 * folder must not exist or be empty; it appears when all is written and synced. Collective. Fails
 * with TR_ERR_STOPPED soon after a stop is requested on `board` (may be NULL), with TR_ERR_NOFILE
 * when there is no such run, with TR_ERR_DATA when it is damaged, transformers has no such model,
 * or an adapter is asked for of a run without updates, and like tr_export_folder_make. */
tr_status tr_export(tr_world *world, const tr_board *board, const tr_export_options *options,
                    FILE *out);
