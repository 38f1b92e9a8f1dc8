/* The protocol of a save: writes and syncs everything next to the committed steps; then one rename
 * commits. After each phase all ranks agree, so a failure on one rank ends the save on all. */
#include "base/folders.h"
#include "base/memory.h"
#include "ckpt/ckpt_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct tr_ckpt_saving {
    tr_world *world;
    const char *root;
    const tr_ckpt_tensor *tensors;
    int count;
    tr_manifest manifest;
    tr_part_source *source; /* of each part */
    int64_t mine;           /* the shard this rank writes, -1: none */
    int64_t needed;         /* payload bytes of the whole checkpoint */
    char uuid[TR_UUID_SIZE];
    tr_path step, temporary, trash; /* trash: an invalid directory of this step is moved there */
    int lock;         /* rank 0 holds it while saving: tr_ckpt_retain sees that the process lives */
    bool made;        /* rank 0 has made the temporary directory */
    atomic_bool left; /* the shard that is being written is not needed any more */
} save;

/* Sets the paths, which follow from root, step and uuid and are the same on every rank. */
static tr_status name_paths(save *s) {
    char name[NAME_MAX + 1], other[NAME_MAX + 1];
    tr_ckpt_step_name(s->manifest.state.step, name);
    TR_TRY(tr_path_join(s->root, name, &s->step));
    (void)snprintf(other, sizeof other, ".tmp-%.40s.%s", name, s->uuid);
    TR_TRY(tr_path_join(s->root, other, &s->temporary));
    (void)snprintf(other, sizeof other, ".trash-%.40s.%s", name, s->uuid);
    return tr_path_join(s->root, other, &s->trash);
}

/* Fails when a valid step exists. One that fails its checks, or is marked as corrupt, may be
 * replaced: the run resumed before it and has reached it again. */
static tr_status refuse_existing(const save *s, bool *invalid_exists) {
    struct stat info;
    tr_commit commit;
    tr_manifest m;
    *invalid_exists = false;
    if (lstat(s->step.text, &info) != 0)
        return errno == ENOENT ? TR_OK : tr_io_fail("examine", s->step.text, errno, 0);
    tr_status status = tr_ckpt_step_check_mark(s->step.text); /* first: files may be unreadable */
    if (status == TR_OK)
        status = tr_ckpt_step_check(s->step.text, s->manifest.state.step, &commit, &m);
    if (status == TR_ERR_DATA) {
        *invalid_exists = true;
        return TR_OK;
    }
    TR_TRY(status);
    tr_manifest_free(&m);
    return TR_FAIL(TR_ERR_IO,
                   "cannot save %s: this step exists (uuid %s) and a checkpoint is never "
                   "overwritten; move it away or set another log.dir",
                   s->step.text, commit.uuid);
}

/* On rank 0: makes, syncs and locks the temporary directory. */
static tr_status begin(save *s) {
    bool invalid_exists;
    TR_TRY(tr_directory_make(s->root));
    TR_TRY(tr_uuid_make(s->uuid));
    TR_TRY(name_paths(s));
    TR_TRY(refuse_existing(s, &invalid_exists));
    if (mkdir(s->temporary.text, 0777) != 0)
        return tr_io_fail("create the directory", s->temporary.text, errno, s->needed);
    s->made = true;
    s->lock = open(s->temporary.text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->lock < 0) return tr_io_fail("open", s->temporary.text, errno, s->needed);
    /* May fail on a file system without locks; leftovers are then removed by name. */
    (void)flock(s->lock, LOCK_EX | LOCK_NB);
    return tr_directory_sync(s->root, s->needed);
}

/* --- results of the writers ------------------------------------------------------------------- */

/* Packs what only this rank knows of its shard: bytes, layout hash, then offset and checksums of
 * each part in manifest order. All words have 64 bits. */
static tr_status pack(const save *s, uint64_t **out, size_t *words) {
    const tr_manifest *m = &s->manifest;
    const int64_t first = s->mine < 0 ? 0 : m->first[s->mine];
    const int64_t end = s->mine < 0 ? 0 : m->first[s->mine + 1];
    *words = 2;
    for (int64_t k = first; k < end; k++) *words += 1 + (size_t)m->part[m->of_file[k]].blocks;
    TR_TRY(tr_calloc(*words, sizeof **out, out));
    if (s->mine < 0) return TR_OK;
    uint64_t *next = *out;
    *next++ = (uint64_t)m->file[s->mine].bytes;
    *next++ = m->file[s->mine].layout_hash;
    for (int64_t k = first; k < end; k++) {
        const tr_ckpt_part *part = &m->part[m->of_file[k]];
        *next++ = (uint64_t)part->offset;
        memcpy(next, &m->block[part->first_block], (size_t)part->blocks * sizeof *next);
        next += part->blocks;
    }
    return TR_OK;
}

static void unpack(tr_manifest *m, int64_t file, const uint64_t *next) {
    m->file[file].bytes = (int64_t)*next++;
    m->file[file].layout_hash = *next++;
    for (int64_t k = m->first[file]; k < m->first[file + 1]; k++) {
        tr_ckpt_part *part = &m->part[m->of_file[k]];
        part->offset = (int64_t)*next++;
        memcpy(&m->block[part->first_block], next, (size_t)part->blocks * sizeof *next);
        next += part->blocks;
    }
}

/* Returns the rank that writes a shard. Ascends with the shards. */
static int64_t rank_of(const save *s, int64_t file) {
    return s->source[s->manifest.of_file[s->manifest.first[file]]].rank;
}

/* Returns the shard that `rank` writes, or -1. */
static int64_t shard_of(const save *s, int64_t rank) {
    for (int64_t f = 0; f < s->manifest.files; f++)
        if (rank_of(s, f) == rank) return f;
    return -1;
}

static tr_status collect(tr_world *world, save *s) {
    const int size = tr_world_size(world);
    uint64_t *mine = NULL, *all = NULL;
    size_t words = 0, *sizes = NULL;
    tr_status status = pack(s, &mine, &words);
    if (status == TR_OK) status = tr_calloc((size_t)size, sizeof *sizes, &sizes);
    TR_TRY_OUT(tr_world_agree(world, status)); /* all or none enter the gather */
    TR_TRY_OUT(tr_world_gather_all_v(world, mine, words * sizeof *mine, (void **)&all, sizes));
    const uint64_t *next = all;
    for (int64_t r = 0, file = 0; r < size; r++) {
        if (file < s->manifest.files && rank_of(s, file) == r) unpack(&s->manifest, file++, next);
        next += sizes[r] / sizeof *all;
    }
out:
    free(mine);
    free(all);
    free(sizes);
    return status;
}

/* --- commit ----------------------------------------------------------------------------------- */

static tr_status write_index(const save *s, tr_commit *commit) {
    tr_path path;
    TR_TRY(tr_path_join(s->temporary.text, "index.h5", &path));
    TR_TRY(tr_index_write(path.text, &s->manifest, &commit->index_bytes, &commit->index_hash));
    commit->total_bytes += commit->index_bytes;
    return TR_OK;
}

static tr_status write_commit(const save *s, const tr_commit *commit) {
    tr_path path;
    char text[TR_COMMIT_SIZE];
    TR_TRY(tr_path_join(s->temporary.text, "COMMIT", &path));
    return tr_file_store(path.text, text, (size_t)tr_commit_format(commit, text), s->needed);
}

/* Checks the sizes of all shards in the file system that rank 0 sees. */
static tr_status check_shards(const save *s, tr_commit *commit) {
    for (int64_t f = 0; f < s->manifest.files; f++) {
        char name[NAME_MAX + 1];
        tr_path path;
        struct stat info;
        tr_shard_name(f, s->manifest.files, name);
        TR_TRY(tr_path_join(s->temporary.text, name, &path));
        if (stat(path.text, &info) != 0) return tr_io_fail("examine", path.text, errno, s->needed);
        if (info.st_size != s->manifest.file[f].bytes)
            return TR_FAIL(TR_ERR_IO,
                           "%s has %" PRId64 " bytes where %" PRId64
                           " were written: the run must be on one file system for all ranks",
                           path.text, (int64_t)info.st_size, s->manifest.file[f].bytes);
        commit->total_bytes += info.st_size;
    }
    return TR_OK;
}

/* Returns true when the step at its final path is this save's: a network file system may report an
 * error for a rename that succeeded. */
static bool is_ours(const save *s) {
    tr_commit commit;
    char *image = NULL;
    bool ours = tr_ckpt_step_read(s->step.text, s->manifest.state.step, &commit, &image) == TR_OK &&
                strcmp(commit.uuid, s->uuid) == 0;
    free(image);
    return ours;
}

static tr_status publish(save *s) {
    int error = 0;
    if (renameat2(AT_FDCWD, s->temporary.text, AT_FDCWD, s->step.text, RENAME_NOREPLACE) != 0)
        error = errno;
    if (error == EINVAL || error == ENOSYS) /* this file system lacks the flag; rename still does
                                               not replace a directory with files */
        error = rename(s->temporary.text, s->step.text) == 0 ? 0 : errno;
    if (error && !is_ours(s)) return tr_io_fail("rename to", s->step.text, error, s->needed);
    s->made = false; /* the temporary directory no longer exists */
    error = tr_folders_sync(s->root);
    if (error)
        return TR_FAIL(TR_ERR_IO,
                       "%s is complete, but cannot fsync %s: %s: a power cut may remove that step "
                       "(older checkpoints are untouched)",
                       s->step.text, s->root, strerror(error));
    return TR_OK;
}

/* On rank 0: writes index and COMMIT, and renames. */
static tr_status commit_step(save *s) {
    tr_commit commit = {.step = s->manifest.state.step, .shards = s->manifest.files};
    bool invalid_exists;
    memcpy(commit.uuid, s->uuid, sizeof commit.uuid);
    TR_TRY(check_shards(s, &commit));
    TR_TRY(tr_manifest_check(&s->manifest, true, "saving", TR_ERR_INTERNAL));
    TR_TRY(write_index(s, &commit));
    TR_TRY(write_commit(s, &commit));
    TR_TRY(tr_directory_sync(s->temporary.text, s->needed));
    TR_TRY(refuse_existing(s, &invalid_exists));
    if (invalid_exists && rename(s->step.text, s->trash.text) != 0)
        return tr_io_fail("set aside the invalid", s->step.text, errno, s->needed);
    TR_TRY(publish(s));
    if (invalid_exists) tr_directory_remove(s->trash.text);
    return TR_OK;
}

static tr_status check_state(const tr_ckpt_state *state) {
    if (state->step < 0 || !memchr(state->config, 0, sizeof state->config))
        return TR_FAIL(TR_ERR_INTERNAL,
                       "the config text of a checkpoint of step %" PRId64 " is bad", state->step);
    return TR_OK;
}

/* --- the parts of a save ---------------------------------------------------------------------- */

static void release(save *s) {
    if (!s) return;
    if (s->lock >= 0) (void)close(s->lock);
    tr_manifest_free(&s->manifest);
    free(s->source);
    free(s);
}

/* Ends a save on which all ranks agreed, so that no rank writes there any more. */
static void leave(save *s) {
    if (s && s->made) tr_directory_remove(s->temporary.text);
    release(s);
}

tr_status tr_ckpt_saving_begin(tr_world *world, const char *root, const tr_ckpt_state *state,
                               const tr_ckpt_tensor *tensors, int count, tr_ckpt_saving **out) {
    const bool first = tr_world_rank(world) == 0;
    save *s = NULL;
    *out = NULL;
    tr_status status = check_state(state);
    if (status == TR_OK) status = tr_calloc(1, sizeof *s, &s);
    if (s)
        *s = (save){.world = world, .root = root, .tensors = tensors, .count = count, .lock = -1};
    TR_TRY_OUT(tr_world_agree(world, status));
    TR_TRY_OUT(tr_manifest_plan(world, state, tensors, count, &s->manifest, &s->source));
    s->mine = shard_of(s, tr_world_rank(world));
    s->needed = tr_manifest_payload(&s->manifest);
    TR_TRY_OUT(tr_world_agree(world, first ? begin(s) : TR_OK));
    TR_TRY_OUT(tr_world_broadcast(world, 0, s->uuid, sizeof s->uuid));
    TR_TRY_OUT(tr_world_agree(world, name_paths(s)));
out:
    if (status == TR_OK) *out = s;
    else leave(s);
    return status;
}

tr_status tr_ckpt_saving_write(tr_ckpt_saving *s, tr_world *tell) {
    if (s->mine < 0) return TR_OK;
    return tr_shard_write(tell, &s->left, s->temporary.text, &s->manifest, s->mine, s->source,
                          s->tensors, s->count);
}

void tr_ckpt_saving_leave(tr_ckpt_saving *s) {
    if (s) atomic_store(&s->left, true);
}

tr_status tr_ckpt_saving_end(tr_ckpt_saving *s, tr_status written) {
    const bool first = tr_world_rank(s->world) == 0;
    tr_status status;
    /* The index is written only after every shard is synced. */
    TR_TRY_OUT(tr_world_agree(s->world, written));
    TR_TRY_OUT(collect(s->world, s));
    TR_TRY_OUT(tr_world_agree(s->world, first ? commit_step(s) : TR_OK));
out:
    leave(s);
    return status;
}

void tr_ckpt_saving_abandon(tr_ckpt_saving *s) {
    release(s);
}

tr_status tr_ckpt_save(tr_world *world, const char *root, const tr_ckpt_state *state,
                       const tr_ckpt_tensor *tensors, int count) {
    tr_ckpt_saving *s;
    TR_TRY(tr_ckpt_saving_begin(world, root, state, tensors, count, &s));
    return tr_ckpt_saving_end(s, tr_ckpt_saving_write(s, world));
}
