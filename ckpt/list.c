/* Steps under a root: find, list, check, verify, retain. Not collective. */
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/ckpt_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

static const char mark[] = "CORRUPT"; /* a file in the directory of a step */

/* --- one step --------------------------------------------------------------------------------- */

tr_status tr_ckpt_step_read(const char *dir, int64_t step, tr_commit *commit, char **image) {
    tr_path path;
    char *text = NULL;
    size_t bytes = 0;
    *image = NULL;
    TR_TRY(tr_path_join(dir, "COMMIT", &path));
    TR_TRY(tr_file_load(path.text, TR_COMMIT_SIZE, &text, &bytes));
    tr_status status = tr_commit_parse(text, bytes, path.text, commit);
    free(text);
    TR_TRY(status);
    if (commit->step != step)
        return TR_FAIL(TR_ERR_DATA, "%s is of step %" PRId64 ": the directory has been renamed",
                       path.text, commit->step);
    TR_TRY(tr_path_join(dir, "index.h5", &path));
    TR_TRY(tr_file_load(path.text, commit->index_bytes, image, &bytes));
    if ((int64_t)bytes == commit->index_bytes && XXH3_64bits(*image, bytes) == commit->index_hash)
        return TR_OK;
    free(*image);
    *image = NULL;
    return TR_FAIL(
        TR_ERR_DATA,
        "%s does not have the checksum in COMMIT: it is corrupt, truncated or belongs to "
        "another checkpoint",
        path.text);
}

static tr_status check_sizes(const char *dir, const tr_commit *commit, const tr_manifest *m) {
    int64_t total = commit->index_bytes;
    for (int64_t f = 0; f < m->files; f++) {
        char name[NAME_MAX + 1];
        tr_path path;
        int fd;
        int64_t bytes = 0;
        tr_shard_name(f, m->files, name);
        TR_TRY(tr_path_join(dir, name, &path));
        TR_TRY(tr_file_open(path.text, &fd, &bytes));
        (void)close(fd);
        if (bytes != m->file[f].bytes)
            return TR_FAIL(TR_ERR_DATA,
                           "%s has %" PRId64 " bytes, %" PRId64 " were written: it is truncated or "
                           "belongs to another checkpoint",
                           path.text, bytes, m->file[f].bytes);
        total += bytes;
    }
    if (total != commit->total_bytes || m->files != commit->shards || m->state.step != commit->step)
        return TR_FAIL(TR_ERR_DATA, "%s: COMMIT and index.h5 do not agree", dir);
    return TR_OK;
}

tr_status tr_ckpt_step_check(const char *dir, int64_t step, tr_commit *commit, tr_manifest *out) {
    char *image = NULL;
    tr_path path;
    *out = (tr_manifest){0};
    TR_TRY(tr_path_join(dir, "index.h5", &path));
    TR_TRY(tr_ckpt_step_read(dir, step, commit, &image));
    tr_status status = tr_index_parse(image, (size_t)commit->index_bytes, path.text, out);
    free(image);
    TR_TRY(status);
    status = check_sizes(dir, commit, out);
    if (status != TR_OK) tr_manifest_free(out);
    return status;
}

tr_status tr_ckpt_step_check_mark(const char *dir) {
    tr_path path;
    char *text;
    size_t bytes;
    TR_TRY(tr_path_join(dir, mark, &path));
    if (access(path.text, F_OK) != 0) return TR_OK;
    TR_TRY(tr_file_load(path.text, TR_CKPT_WHY, &text, &bytes));
    text[strcspn(text, "\n")] = '\0';
    tr_status status = TR_FAIL(TR_ERR_DATA, "%s%s", *text ? "" : path.text,
                               *text ? text : " says that the step is corrupt");
    free(text);
    return status;
}

static tr_status step_path(const char *root, int64_t step, tr_path *dir) {
    char name[NAME_MAX + 1];
    tr_ckpt_step_name(step, name);
    return tr_path_join(root, name, dir);
}

/* --- all steps -------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Returns the status for a directory that cannot be opened: TR_OK if it does not exist. */
static tr_status no_directory(const char *root, int error) {
    return error == ENOENT || error == ENOTDIR ? TR_OK : tr_io_fail("open", root, error, 0);
}

/* Lists the steps that have a directory, ascending, in *out (malloc'd). None when root does not
 * exist. */
static tr_status scan(const char *root, int64_t **out, size_t *count) {
    size_t capacity = 0;
    *out = NULL;
    *count = 0;
    DIR *dir = opendir(root);
    if (!dir) return no_directory(root, errno);
    tr_status status = TR_OK;
    for (struct dirent *entry; status == TR_OK && (errno = 0, entry = readdir(dir)) != NULL;) {
        int64_t step;
        struct stat info;
        if (!tr_ckpt_step_parse(entry->d_name, &step) ||
            fstatat(dirfd(dir), entry->d_name, &info, 0) != 0 || !S_ISDIR(info.st_mode))
            continue;
        status = tr_grow(out, &capacity, *count + 1, sizeof **out);
        if (status == TR_OK) (*out)[(*count)++] = step;
    }
    /* With an incomplete list a run would resume from an old step as if it were the newest. */
    if (status == TR_OK && errno) status = tr_io_fail("list", root, errno, 0);
    (void)closedir(dir);
    if (status != TR_OK) {
        free(*out);
        *out = NULL;
        return status;
    }
    if (*count) qsort(*out, *count, sizeof **out, ascending);
    return TR_OK;
}

/* Checks a step. Returns TR_OK also when the step is not valid. */
static tr_status examine(const char *root, int64_t step, tr_ckpt_info *info) {
    tr_path dir;
    tr_commit commit = {0};
    tr_manifest m;
    *info = (tr_ckpt_info){.step = step};
    TR_TRY(step_path(root, step, &dir));
    tr_status status = tr_ckpt_step_check(dir.text, step, &commit, &m);
    if (status == TR_OK) {
        info->bytes = (size_t)commit.total_bytes;
        info->shards = (int)commit.shards;
        tr_manifest_free(&m);
        status = tr_ckpt_step_check_mark(dir.text);
    }
    info->valid = status == TR_OK;
    if (info->valid) return TR_OK;
    if (status != TR_ERR_DATA && status != TR_ERR_IO) return status;
    info->unread = status == TR_ERR_IO;
    info->later = commit.format > TR_CKPT_FORMAT;
    (void)tr_text_fit(info->why, sizeof info->why, tr_error_message());
    return TR_OK;
}

/* Checks a step again while the file system fails, since a network's faults pass. */
static tr_status examine_patiently(const char *root, int64_t step, tr_ckpt_info *info) {
    struct timespec pause = {.tv_nsec = 250 * 1000000};
    for (int left = 3;; left--) {
        TR_TRY(examine(root, step, info));
        if (!info->unread || left == 0) return TR_OK;
        (void)nanosleep(&pause, NULL);
        pause = (struct timespec){.tv_sec = pause.tv_sec ? 2 : 1};
    }
}

tr_status tr_ckpt_list(const char *root, tr_ckpt_info **out, int *count) {
    int64_t *steps = NULL;
    size_t n = 0;
    tr_ckpt_info *info = NULL;
    *out = NULL;
    *count = 0;
    TR_TRY(scan(root, &steps, &n));
    tr_status status = tr_calloc(n, sizeof *info, &info);
    for (size_t i = 0; status == TR_OK && i < n; i++) status = examine(root, steps[i], &info[i]);
    free(steps);
    if (status != TR_OK) {
        free(info);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *out = info;
    *count = (int)n;
    return TR_OK;
}

/* Finds the newest valid step below `below`, -1 when there is none, with *skipped as for
 * tr_ckpt_newest. Sets its `unread` when any step that is not valid was not read. */
static tr_status newest_valid(const char *root, int64_t below, int64_t *found,
                              tr_ckpt_info *skipped) {
    int64_t *steps = NULL;
    size_t n = 0;
    *found = -1;
    TR_TRY(scan(root, &steps, &n));
    tr_status status = TR_OK;
    while (n > 0 && *found < 0 && status == TR_OK) {
        tr_ckpt_info info;
        if (steps[--n] >= below) continue;
        status = skipped->unread ? examine(root, steps[n], &info)
                                 : examine_patiently(root, steps[n], &info);
        if (status != TR_OK) break;
        if (info.valid) *found = info.step;
        else if (!skipped->why[0]) *skipped = info;
        else skipped->unread |= info.unread;
    }
    free(steps);
    return status;
}

tr_status tr_ckpt_any(const char *root, bool *any) {
    int64_t *steps = NULL;
    size_t n = 0;
    TR_TRY(scan(root, &steps, &n));
    *any = n > 0;
    free(steps);
    return TR_OK;
}

/* Cuts the last name off a path, "." if there is no other. Returns the name, "" for the root. */
static void cut_name(char path[PATH_MAX], char name[NAME_MAX + 1]) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') path[--length] = '\0';
    char *slash = strrchr(path, '/');
    (void)snprintf(name, NAME_MAX + 1, "%.*s", NAME_MAX, slash ? slash + 1 : path);
    if (!slash) (void)snprintf(path, PATH_MAX, ".");
    else slash[slash == path] = '\0';
}

bool tr_ckpt_is_inside(const char *path, char run[PATH_MAX]) {
    char root[PATH_MAX], name[NAME_MAX + 1];
    int64_t step;
    bool any = false;
    (void)snprintf(run, PATH_MAX, "%s", path);
    (void)snprintf(root, PATH_MAX, "%s", path);
    cut_name(run, name);
    if (tr_ckpt_step_parse(name, &step)) {
        memcpy(root, run, PATH_MAX);
        cut_name(run, name);
    }
    if (strcmp(name, "ckpt") != 0) return false;
    if (tr_ckpt_any(root, &any) != TR_OK) tr_error_clear();
    return any;
}

tr_status tr_ckpt_none(const char *root) {
    char run[PATH_MAX], whole[PATH_MAX];
    (void)snprintf(run, sizeof run, "%s", root);
    char *slash = strrchr(run, '/');
    if (slash) *slash = '\0';
    if (tr_ckpt_is_inside(run, whole))
        return TR_FAIL(TR_ERR_DATA, "there is no checkpoint under %s: did you mean the run '%s'?",
                       root, whole);
    return TR_FAIL(slash && access(run, F_OK) == 0 ? TR_ERR_DATA : TR_ERR_NOFILE,
                   "there is no checkpoint under %s: name the log.dir of a run that has saved one",
                   root);
}

/* A message about steps of which none is valid ends with this, except when it already names a
 * remedy, a newer build. */
static const char *const start_again = "start again with another log.dir";

tr_status tr_ckpt_newest(const char *root, int64_t below, int64_t *step, tr_ckpt_info *skipped) {
    TR_TRY(newest_valid(root, below, step, skipped));
    if (*step >= 0) return TR_OK;
    if (!skipped->why[0]) return tr_ckpt_none(root);
    if (skipped->unread)
        return TR_FAIL(TR_ERR_IO,
                       "no checkpoint under %s is valid and can be read; the newest: %s; look "
                       "after the file system, and try again",
                       root, skipped->why);
    return TR_FAIL(TR_ERR_DATA, "no checkpoint under %s is valid; the newest: %s%s%s", root,
                   skipped->why, skipped->later ? "" : "; ", skipped->later ? "" : start_again);
}

tr_status tr_ckpt_step_find(const char *root, int64_t step, int64_t *found, tr_path *dir) {
    char cause[64] = "";
    tr_ckpt_info skipped = {0};
    struct stat info;
    int64_t newest;
    *found = step;
    if (step < 0) TR_TRY(tr_ckpt_newest(root, INT64_MAX, found, &skipped));
    TR_TRY(step_path(root, *found, dir));
    if (step < 0 || stat(dir->text, &info) == 0) return TR_OK;
    if (errno != ENOENT) (void)snprintf(cause, sizeof cause, " (%s)", strerror(errno));
    if (newest_valid(root, INT64_MAX, &newest, &skipped) != TR_OK || newest < 0)
        return TR_FAIL(TR_ERR_NOFILE, "%s: there is no checkpoint of step %" PRId64 " here%s",
                       dir->text, step, cause);
    return TR_FAIL(TR_ERR_NOFILE,
                   "%s: there is no checkpoint of step %" PRId64
                   " here%s; the newest valid step is %" PRId64,
                   dir->text, step, cause, newest);
}

tr_status tr_ckpt_step_advise(const char *root, int64_t step, tr_status status) {
    if (status != TR_ERR_DATA) return status;
    char cause[1024];
    tr_ckpt_info info, skipped = {0};
    int64_t older;
    (void)tr_text_fit(cause, sizeof cause, tr_error_message());
    if (examine(root, step, &info) != TR_OK || newest_valid(root, step, &older, &skipped) != TR_OK)
        return TR_FAIL(status, "%s", cause);
    if (older < 0)
        return TR_FAIL(TR_ERR_DATA, "%s; no valid step before it%s%s", cause,
                       info.later ? "" : ": ", info.later ? "" : start_again);
    return TR_FAIL(TR_ERR_DATA, "%s; the newest valid step before it is %" PRId64, cause, older);
}

tr_status tr_ckpt_mark_corrupt(const char *root, int64_t step, const char *why) {
    char text[TR_CKPT_WHY + 1];
    tr_path dir, path;
    TR_TRY(step_path(root, step, &dir));
    TR_TRY(tr_path_join(dir.text, mark, &path));
    const int bytes = snprintf(text, sizeof text, "%.*s\n", TR_CKPT_WHY - 1, why);
    return tr_file_store(path.text, text, (size_t)bytes, 0);
}

tr_status tr_ckpt_let_replace(const char *root, int64_t step, const char *why, bool *marks) {
    tr_path dir, path;
    *marks = false;
    TR_TRY(step_path(root, step, &dir));
    TR_TRY(tr_path_join(dir.text, mark, &path));
    if (access(dir.text, F_OK) != 0 || access(path.text, F_OK) == 0) return TR_OK;
    *marks = true;
    return tr_ckpt_mark_corrupt(root, step, why);
}

tr_status tr_ckpt_read_state(const char *root, int64_t step, tr_ckpt_state *state) {
    tr_path dir;
    tr_commit commit;
    tr_manifest m;
    TR_TRY(tr_ckpt_step_find(root, step, &step, &dir));
    TR_TRY(tr_ckpt_step_advise(root, step, tr_ckpt_step_check(dir.text, step, &commit, &m)));
    *state = m.state;
    tr_manifest_free(&m);
    return TR_OK;
}

tr_status tr_ckpt_verify(const char *root, int64_t step) {
    tr_path dir, path;
    tr_commit commit;
    tr_manifest m = {0};
    float *buffer = NULL;
    int fd = -1;
    tr_status status;
    TR_TRY(tr_ckpt_step_find(root, step, &step, &dir));
    TR_TRY_OUT(tr_ckpt_step_check(dir.text, step, &commit, &m));
    TR_TRY_OUT(tr_calloc(TR_CKPT_BLOCK, 1, &buffer));
    for (int64_t f = 0; f < m.files; f++) {
        TR_TRY_OUT(tr_shard_open(dir.text, &m, f, true, &path, &fd));
        for (int64_t k = m.first[f]; k < m.first[f + 1]; k++) {
            const tr_ckpt_part *part = &m.part[m.of_file[k]];
            int64_t first, count;
            for (int64_t b = 0; b < part->blocks; b++)
                TR_TRY_OUT(tr_shard_read_block(fd, path.text, &m, part, b, buffer, &first, &count));
        }
        (void)close(fd);
        fd = -1;
    }
out:
    if (fd >= 0) (void)close(fd);
    free(buffer);
    tr_manifest_free(&m);
    return tr_ckpt_step_advise(root, step, status);
}

/* --- retention -------------------------------------------------------------------------------- */

/* Returns true when the process that saved is dead: it holds a lock on its directory while it
 * lives. */
static bool owner_is_dead(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return true;
    bool dead = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    (void)close(fd);
    return dead;
}

static tr_status remove_leftovers(const char *root) {
    DIR *dir = opendir(root);
    if (!dir) return no_directory(root, errno);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        tr_path path;
        bool trash = strncmp(entry->d_name, ".trash-step-", 12) == 0;
        bool temporary = strncmp(entry->d_name, ".tmp-step-", 10) == 0;
        if ((trash || temporary) && tr_path_join(root, entry->d_name, &path) == TR_OK &&
            (trash || owner_is_dead(path.text)))
            tr_directory_remove(path.text);
    }
    (void)closedir(dir);
    return TR_OK;
}

/* Removes a step. Renames it first, so that a reader sees the whole step or none. */
static tr_status discard(const char *root, int64_t step) {
    tr_path from, to;
    char name[NAME_MAX + 1], trash[NAME_MAX + 1], uuid[TR_UUID_SIZE];
    tr_ckpt_step_name(step, name);
    TR_TRY(tr_uuid_make(uuid));
    (void)snprintf(trash, sizeof trash, ".trash-%.40s.%s", name, uuid);
    TR_TRY(tr_path_join(root, name, &from));
    TR_TRY(tr_path_join(root, trash, &to));
    if (rename(from.text, to.text) != 0) return tr_io_fail("rename", from.text, errno, 0);
    TR_TRY(tr_directory_sync(root, 0));
    tr_directory_remove(to.text);
    return TR_OK;
}

tr_status tr_ckpt_retain(const char *root, int keep, int64_t every) {
    int64_t *steps = NULL;
    size_t n = 0;
    int kept = 0;
    TR_TRY(remove_leftovers(root));
    TR_TRY(scan(root, &steps, &n));
    if (keep < 2) keep = 2;
    tr_status status = TR_OK;
    while (n > 0 && status == TR_OK) {
        const int64_t step = steps[--n];
        tr_ckpt_info info = {.valid = false};
        if (kept < keep) status = examine(root, step, &info);
        else if (every <= 0 || step % every != 0) status = discard(root, step);
        kept += info.valid;
    }
    free(steps);
    return status;
}

void tr_ckpt_remove_root(const char *root) {
    DIR *dir = opendir(root);
    tr_path path;
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            tr_path_join(root, entry->d_name, &path) == TR_OK)
            tr_directory_remove(path.text);
    (void)closedir(dir);
    (void)rmdir(root);
}
