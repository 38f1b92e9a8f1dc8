/* The batch of each step: train.batch_warmup, then train.batch. */
#pragma once

#include "config/config.h"

/* The most sizes of a warm-up, and of a run, which has train.batch, too. */
enum { TR_CONFIG_WARMUPS = 32, TR_CONFIG_BATCHES = TR_CONFIG_WARMUPS + 1 };

/* A batch of `batch` sequences, which ends with step `until`. */
typedef struct tr_batch_size {
    int64_t until, batch;
} tr_batch_size;

/* Parses pairs "BATCH UNTIL BATCH UNTIL" of whole numbers above 0, in which both ascend, to
 * size[TR_CONFIG_WARMUPS]. Returns how many there are, or -1 when the text is not such a list. */
int tr_config_warmup(const char *text, tr_batch_size *size);

/* Lists the sizes of a run's batch in size[TR_CONFIG_BATCHES], the smallest first; the last one is
 * train.batch, until INT64_MAX. Returns how many there are. */
int tr_config_batches(const tr_config *config, tr_batch_size *size);
/* Returns the sequences of a step, counted from 1. */
int64_t tr_config_batch_at(const tr_config *config, int64_t step);
/* Returns the sequences of steps first to last, 0 when last < first; as a double, because the
 * product may be too large for an integer. */
double tr_config_sequences(const tr_config *config, int64_t first, int64_t last);
/* Writes "8 sequences until step 100, 16 until step 300, then 32" to text[size]; "" without a
 * warm-up. Returns text. */
const char *tr_config_batches_text(const tr_config *config, char *text, size_t size);
