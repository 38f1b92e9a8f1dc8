/* The CPUs of one host, divided among its ranks. Ranks that may all use the same CPUs are at times
 * scheduled on one CPU while another is idle, and a pipeline waits for its slowest rank. So ranks
 * that were given the same CPUs divide them. */
#pragma once

enum { TR_CORES_MAX = 1024 };

/* A set of CPUs in an order that keeps those of one physical core, and those of one package,
 * together. Unused entries are 0: equal sets are equal bytes. */
typedef struct tr_cores {
    int count;
    int cpu[TR_CORES_MAX];
} tr_cores;

/* Fills *out with the CPUs that this thread may use; its count is 0 when the system cannot say. */
void tr_cores_usable(tr_cores *out);
/* Returns the number of CPUs that this process can keep busy, at least 1: a container or a launcher
 * may have left it fewer than there are, or a part of their time. */
int tr_cores_count(void);

/* Fills *out with the share of rank `index` of `ranks` (at most all->count): CPUs next to each
 * other in the order of `all`. Shares are disjoint, cover all CPUs and differ by at most one CPU.
 * `out` may be `all`. */
void tr_cores_share(const tr_cores *all, int index, int ranks, tr_cores *out);

/* Restricts this thread, and all threads that it starts later, to these CPUs. Where the system
 * refuses, nothing changes: only speed depends on it. */
void tr_cores_keep_to(const tr_cores *cores);
