/* CPUs of the ranks of one host. A rank that computes all the time is best left where it is: ranks
 * that may use each other's CPUs are at times put on the same one while another idles, and a
 * pipeline waits for the slowest. So ranks that were given the same CPUs divide them. */
#pragma once

enum { TR_CORES_MAX = 1024 };

/* A set of CPUs in an order that keeps those of one physical core, and those of one package,
 * together. Unused entries are 0: equal sets are equal bytes. */
typedef struct tr_cores {
    int count;
    int cpu[TR_CORES_MAX];
} tr_cores;

/* The CPUs that this thread may use; count 0 when they cannot be told. */
void tr_cores_usable(tr_cores *out);
/* Returns the number of CPUs that this process may use, at least 1: a container or a launcher may
 * have left it fewer than there are. */
int tr_cores_count(void);

/* The part of rank `index` of `ranks` (at most all->count): neighbours in the order of `all`; the
 * parts are disjoint, hold all CPUs, and differ by at most one. `out` may be `all`. */
void tr_cores_share(const tr_cores *all, int index, int ranks, tr_cores *out);

/* This thread, and those that it starts from here on, use these CPUs and no other. Where the system
 * refuses, nothing changes: it is a matter of speed alone. */
void tr_cores_keep_to(const tr_cores *cores);
