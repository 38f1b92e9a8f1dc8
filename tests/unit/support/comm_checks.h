/* Checks of a world, the same for every transport and device: all-reduces bit for bit against sums
 * in rank order, channels, the control plane. Every rank calls comm_checks() with its world; a
 * failed check prints a line and returns false. For test_comm_local.c and mpi/comm.c. */
#pragma once

#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

bool both_new(const checks *k, size_t bytes, both *out);

void both_free(const checks *k, both *b);

bool upload(tr_stream *stream, const both *b);

bool download(const checks *k, tr_stream *stream, const both *b);

void store(void *to, tr_dtype dtype, int64_t i, double x);

/* --- tickets ---------------------------------------------------------------------------------- */

enum { TICKET_GROUPS = 3, TICKETS = 5, IN_FLIGHT = TICKET_GROUPS * TICKETS };

/* A reduction that has been started, with its data. */
typedef struct flight {
    tr_group *group;
    const int *ranks;
    int n;
    int64_t count, ticket;
    both data;
} flight;

/* --- channels -------------------------------------------------------------------------------- */

enum { MESSAGES = 12, MESSAGE_BYTES = 20000 };

bool checks_open(tr_world *world, const char *device, uint32_t seed, checks *k);

/* Runs the checks on the device of this name; messages of two streams only where the device
 * computes on the host. */
bool comm_checks_on(tr_world *world, const char *device, bool nccl, uint32_t seed);

/* Runs the check that comes last, because afterwards the world is unusable if the device does not
 * compute on the host. */
bool comm_checks_last(tr_world *world, const char *device, uint32_t seed);
