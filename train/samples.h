/* The texts that a run makes while it trains (train.sample_every). */
#pragma once

#include "config/config.h"
#include "train/engine.h"
#include "train/texts.h"

typedef struct tr_samples {
    tr_prompts prompts; /* of train.sample_prompts */
    tr_texts texts;     /* prompts 0: the run makes none */
    tr_byte_list *text; /* [prompts]: the newest, without the prompts */
} tr_samples;

/* Reads the prompts of a run with train.sample_every; otherwise *out is empty. tokenizer: of the
 * run's data, NULL: none; it must outlive *out. Fails like tr_prompts_read, and with TR_ERR_CONFIG
 * when the tokens have no known text or a prompt is longer than the context. The caller releases
 * *out with tr_samples_close, also after a failure. */
tr_status tr_samples_open(const tr_config *config, const tr_tokenizer *tokenizer, tr_samples *out);
/* Makes the texts after a step, one after the other; the seed is the step. Collective; every rank
 * gets them. Fails like tr_texts_make; after a failure there may be some of the texts. board may be
 * NULL. */
tr_status tr_samples_make(tr_samples *samples, tr_world *world, tr_engine *engine, tr_board *board,
                          int64_t step);
void tr_samples_close(tr_samples *samples);
