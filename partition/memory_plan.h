/* The device memory of a rank by class (device.h): what is planned, and what was taken. */
#pragma once

#include "device/device.h"

#include <stdio.h>

/* In bytes. NCCL's own cannot be planned: it counts as it was measured. */
typedef struct tr_memory_plan {
    size_t of[TR_MEMORY_CLASSES];
    size_t live_peak; /* of the activations */
    size_t total;
} tr_memory_plan;

typedef struct tr_memory_rank {
    tr_memory_plan plan;
    size_t taken[TR_MEMORY_CLASSES]; /* the most at one time */
    size_t taken_total;
} tr_memory_rank;

/* Sets the plan's total. */
void tr_memory_sum(tr_memory_plan *plan);
/* The most that this device has handed out, all classes together. */
size_t tr_memory_taken(const tr_device *device);
/* The same by class, next to the plan. */
tr_memory_rank tr_memory_measure(const tr_device *device, const tr_memory_plan *plan);

/* "12.3 MiB (parameters 1.0, gradients ...)"; "more than" in front, and no number of activations,
 * as long as these are not known. */
enum { TR_MEMORY_TEXT = 224 };
void tr_memory_text(const tr_memory_plan *plan, char text[TR_MEMORY_TEXT]);
/* "memory   rank 0: 14.6 MiB planned = parameters 1.3 + ..." */
void tr_memory_print_plan(const tr_memory_plan *plan, FILE *out);
/* "memory   rank 0: took 14.6 MiB, as planned: parameters 1.3, ...", to the byte, or else
 * "took 14.8 of 14.6 MiB planned: parameters 1.5 of 1.3, ..."; and the latter of the first other
 * rank that took what was not planned. */
void tr_memory_print_taken(const tr_memory_rank *memory, int ranks, FILE *out);
