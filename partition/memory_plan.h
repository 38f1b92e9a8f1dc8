/* The device memory of a rank by class (device.h), planned and taken. */
#pragma once

#include "device/device.h"

#include <stdio.h>

/* In bytes. NCCL's own memory cannot be planned, so the plan has the measured value.
 * TR_MEMORY_OFFLOAD and TR_MEMORY_SNAPSHOT are the host's memory, and part of the totals only of a
 * device that computes in it. */
typedef struct tr_memory_plan {
    size_t of[TR_MEMORY_CLASSES];
    bool apart;       /* the device has memory of its own */
    size_t live_peak; /* of the activations */
    size_t total;
} tr_memory_plan;

typedef struct tr_memory_rank {
    tr_memory_plan plan;
    size_t taken[TR_MEMORY_CLASSES]; /* the most at one time */
    size_t taken_total;
} tr_memory_rank;

/* Returns the bytes of host memory of a plan for a device that has memory of its own, else 0. */
size_t tr_memory_in_host(const tr_memory_plan *plan);
/* Sets the plan's total. */
void tr_memory_sum(tr_memory_plan *plan);
/* Returns the most bytes that were allocated on this device at one time, all classes together. */
size_t tr_memory_taken(const tr_device *device);
/* Returns the same by class, with the plan. */
tr_memory_rank tr_memory_measure(const tr_device *device, const tr_memory_plan *plan);

/* Writes "12.3 MiB (parameters 1.0, gradients ...)" to text. While the activations are not known,
 * it begins with "more than" and leaves them out. */
enum { TR_MEMORY_TEXT = 224 };
void tr_memory_text(const tr_memory_plan *plan, char text[TR_MEMORY_TEXT]);
/* Fails with TR_ERR_FIT, because the plan of a pipeline rank is above the limit. is_free: the limit
 * is the device's free memory, and not device.memory. remedies: what makes the plan smaller. */
tr_status tr_memory_refuse(const tr_memory_plan *plan, int pp_rank, size_t limit, bool is_free,
                           const char *remedies);
/* Prints "memory   rank 0: 14.6 MiB planned = parameters 1.3 + ...". */
void tr_memory_print_plan(const tr_memory_plan *plan, FILE *out);
/* Prints "memory   rank 0: took 14.6 MiB, as planned: parameters 1.3, ..." if the bytes are exactly
 * the planned ones, else "took 14.8 of 14.6 MiB planned: parameters 1.5 of 1.3, ...". Prints the
 * latter also for the first other rank that did not take the planned bytes. */
void tr_memory_print_taken(const tr_memory_rank *memory, int ranks, FILE *out);
