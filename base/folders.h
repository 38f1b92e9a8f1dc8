/* Folders that are made with their parents, and removed again when nothing came of them. */
#pragma once

#include <stddef.h>

/* Makes the folder and its missing parents, so that they stay after a power cut; "" is the current
 * folder. *made becomes the number of bytes of the path to the first folder that was made, unless
 * it is above 0 and smaller already. Returns 0, or the cause as in errno; *at is then the number of
 * bytes of the path to the folder that cannot be made. */
int tr_folders_make(const char *path, size_t *made, size_t *at);
/* Removes the folders that tr_folders_make made, the innermost first, as far as they are empty. */
void tr_folders_remove(const char *path, size_t made);
/* Syncs a folder. Returns 0, or the cause as in errno. Where the file system cannot sync folders
 * (EINVAL, as on some network file systems), it does nothing and returns 0. */
int tr_folders_sync(const char *path);
