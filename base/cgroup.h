/* The limits of the memory of this process's control groups: those of a SLURM job or a container,
 * which /proc/meminfo does not show. */
#pragma once

#include <stddef.h>

/* Lowers *available and *total, in bytes, to what the control groups leave of them, those of
 * version 1 or 2 and the groups that they are in. Groups without a limit, and a system without
 * groups, change nothing. Pages of files that the system can drop count as available.
 * list: "/proc/self/cgroup", root: "/sys/fs/cgroup"; tests have others. */
void tr_cgroup_memory(const char *list, const char *root, size_t *available, size_t *total);
