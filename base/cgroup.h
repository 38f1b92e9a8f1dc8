/* The limits of this process's control groups: those of a SLURM job or a container, which neither
 * /proc/meminfo nor the set of CPUs shows. */
#pragma once

#include <stddef.h>

/* Lowers *total to the smallest limit of this process's control groups (version 1 or 2) and of the
 * groups above them, and *available to the least that one of these groups has left, both in bytes.
 * Groups without a limit, and a system without groups, change nothing. Pages of files that the
 * system can drop count as available.
 * list: "/proc/self/cgroup", root: "/sys/fs/cgroup"; tests have others. */
void tr_cgroup_memory(const char *list, const char *root, size_t *available, size_t *total);

/* Returns how many of `cpus` processors the quotas of processor time of these groups keep busy, at
 * least 1: more threads would be stopped in every period until it ends. */
int tr_cgroup_cpus(const char *list, const char *root, int cpus);
