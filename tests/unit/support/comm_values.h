/* Data of the checks of comm/: values that every rank can compute for every rank, their sums as
 * comm.h promises them, and the memory that holds them. */
#pragma once

#include "comm/comm.h"

#include <stdio.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                     \
                    tr_error_message());                                                           \
            return false;                                                                          \
        }                                                                                          \
    } while (0)
#define CHECK_OK(expression) CHECK((expression) == TR_OK)

typedef struct checks {
    tr_world *world;
    tr_device *device;
    tr_stream *stream;
    uint32_t seed;
} checks;

/* Device memory, and the staging memory through which the host writes and reads it. */
typedef struct both {
    char *device, *host;
    size_t bytes;
} both;

/* A failure prints a line, and false is returned. The copies run on `stream`; download waits. */
bool both_new(const checks *k, size_t bytes, both *out);
void both_free(const checks *k, both *b);
bool upload(tr_stream *stream, const both *b);
bool download(const checks *k, tr_stream *stream, const both *b);

/* Returns a number of a rank's position, which every rank can compute. */
uint32_t hash_of(uint32_t seed, int rank, int64_t i);
/* Returns an element's value. Crafted values are small integers with sums that are exact in every
 * dtype; random ones span six orders of magnitude, so that their sums depend on the order. */
double value_of(bool crafted, uint32_t seed, int rank, int64_t i);
/* Writes x to element i of an array. */
void store(void *to, tr_dtype dtype, int64_t i, double x);
/* Fills an array with a rank's values. */
void fill(void *to, tr_dtype dtype, int64_t count, bool crafted, uint32_t seed, int rank);
/* Writes element i of the reduction over `n` ranks, computed as comm.h promises, to to[i]. */
void expect(void *to, tr_dtype dtype, tr_reduce op, bool crafted, uint32_t seed, const int *ranks,
            int n, int64_t i);
/* Returns how many of `count` elements differ in a byte. */
size_t wrong(const void *a, const void *b, size_t element, int64_t count);
/* Work of a stream: it sleeps for 2 ms. */
void slow_work(void *unused);
