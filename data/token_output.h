/* Writes tokens as Megatron's pair PREFIX.bin and PREFIX.idx, in a way that a later process can go
 * on with.
 *
 * While it is written the tokens are in PREFIX.bin.part, the lengths of the documents in
 * PREFIX.idx.part, and PREFIX.part says how far both go and which text comes next. The files get
 * their names when all is written. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tr_token_output tr_token_output;

/* How far the work is: the place in the input, and what was written before it. */
typedef struct tr_token_place {
    int64_t file, offset, line; /* the input file, bytes of its text, lines of it */
    int64_t tokens, documents;
    int64_t open;           /* tokens of a document that has not ended yet */
    int64_t continue_flags; /* of tr_encoder_add, for the text at the place */
} tr_token_place;

/* Opens the output. request: a hash of what is asked for; where an earlier process with the same
 * request was stopped, *place is where it goes on, otherwise all zeros. vocab: number of tokens; it
 * decides the width of a token as Megatron's tools do. Fails with TR_ERR_USAGE when PREFIX.bin or
 * PREFIX.idx exists, and with TR_ERR_IO, also while another process has the same output open. */
tr_status tr_token_output_open(const char *prefix, uint64_t request, int32_t vocab,
                               tr_token_place *place, tr_token_output **out);
/* Closes the files. They stay when a commit says how far they go. NULL is allowed. */
void tr_token_output_close(tr_token_output *output);

/* Removes what was committed: after tr_token_output_close no file is left. */
void tr_token_output_discard(tr_token_output *output);

/* Appends tokens to the document in progress. Fails with TR_ERR_IO. */
tr_status tr_token_output_add(tr_token_output *output, const int32_t *id, int64_t count);
/* Ends the document. Fails with TR_ERR_DATA when it has more tokens than an index can say. */
tr_status tr_token_output_end_document(tr_token_output *output);
/* Stores on disk what was written, and `place`, of which only the input is read. */
tr_status tr_token_output_commit(tr_token_output *output, tr_token_place *place);
/* Commits that all input files are done, writes the index and gives the files their names. Fails
 * with TR_ERR_IO. */
tr_status tr_token_output_finish(tr_token_output *output, int64_t files);
/* Returns true when the file system cannot lock: another process with the same output would not be
 * noticed. */
bool tr_token_output_unlocked(const tr_token_output *output);
/* Returns the numbers so far; the input's place is 0. */
tr_token_place tr_token_output_place(const tr_token_output *output);
