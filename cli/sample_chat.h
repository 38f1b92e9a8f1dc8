/* The conversation of `trireme sample --interactive`. */
#pragma once

#include "train/texts.h"

/* Reads turns from stdin, a line each, and writes an answer to each, until stdin ends, Ctrl-C is
 * pressed while no answer is written, or a stop is requested (TR_ERR_STOPPED). With a chat template
 * in the tokenizer's folder the lines are a user's turns, otherwise the text goes on after them.
 * system: the text of a system's turn before them, which needs a template (else TR_ERR_CONFIG);
 * NULL: none.
 * Rank 0 reads; prompts and notes go to stderr. Collective over the sampler's world; every rank
 * passes the same texts, of which `prompt` and `made` are not used. */
tr_status cli_sample_chat(const tr_texts *texts, const char *system);
