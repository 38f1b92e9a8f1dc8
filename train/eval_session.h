/* The objects that evaluate a trained model on one rank: opened from a run's directory or a folder
 * of transformers and the data, in the order of their dependencies. */
#pragma once

#include "train/evaluate.h"
#include "train/trained.h"

typedef struct tr_eval_request {
    /* Without a parallel key every rank is a pipeline stage. model.context lowers the length of
     * sequences, also of a run. */
    tr_trained model;
    const char *data; /* files of tokens or text, as in data.path without weights, or a file of
                         questions; NULL: the run's validation part */
} tr_eval_request;

typedef struct tr_eval_session {
    tr_world *world;
    tr_board *board;
    tr_config config;
    int64_t context; /* the most tokens of a sequence */
    tr_tokenizer *tokenizer;
    bool bytes; /* without a tokenizer: bytes are tokens */
    /* One of these is what is evaluated: */
    tr_data *data;
    tr_corpus *corpus;
    tr_choices choices;
    tr_config *data_config; /* of `data` */
    tr_sequences sequences;
    tr_mesh mesh;
    tr_device *device;
    bool on_cpu_instead; /* the run's GPU is not on this machine */
    tr_engine *engine;
    int64_t batch;  /* sequences that are evaluated together */
    char note[512]; /* rank 0: a sentence about the run's data, or "" */
} tr_eval_session;

/* Reads config, tokenizer and the named file. Not collective. Fails like tr_trained_config and the
 * readers of the data, and with TR_ERR_USAGE when the model has no data of its own and none is
 * named. The caller closes the session, also after a failure, and must not move it. */
tr_status tr_eval_session_read(const tr_eval_request *request, int ranks, tr_eval_session *session);
/* Opens the session after tr_eval_session_read, and loads the parameters. Collective: every rank
 * returns the same status. The board, which may be NULL, shows requests to stop. The caller clears
 * its stop word before the session closes. */
tr_status tr_eval_session_open(const tr_eval_request *request, tr_world *world, tr_board *board,
                               tr_eval_session *session);
/* Evaluates; *loss is [sequences.count], which the caller frees. Collective. */
tr_status tr_eval_session_run(tr_eval_session *session, tr_sequence_loss **loss);
void tr_eval_session_close(tr_eval_session *session);
