/* Checks of a group's collectives that move parts of data: gathers of ranges, reduce-scatters. */
#pragma once

#include "support/comm_values.h"

/* Several gathers of a group are in flight among its reductions, with many ranges, empty ones and
 * ones larger than a pinned buffer. Each member has computed its ranges; elements of the others
 * begin with other bytes. */
bool check_gathers(const checks *k, const int *ranks, int n, int id);
/* Gathers sums that travel in BF16, with ranges as above. */
bool check_gathers_of_sums(const checks *k, const int *ranks, int n, int id);
/* Sums buffers of n parts, of which each member gets its own, with the bits of an all-reduce, and
 * gathers parts; all are in flight at the same time. */
bool check_parts(const checks *k, const int *ranks, int n, int id, size_t max_bytes);
/* Several reduce-scatters of a group are in flight among its other collectives: with sums for one
 * member, for neighbours and for all, many ranges, empty ones and ones larger than a round. */
bool check_scattered_ranges(const checks *k, const int *ranks, int n, int id);
