#include "data/kept_tokens.h"

#include "data/paths.h"
#include "data/textfile.h"
#include "data/tokenize.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Writes FOLDER/PATH-CONTENT to stem[PATH_MAX], two hashes. Returns false when there is no such
 * file, or the path is too long. */
static bool name(const char *folder, const char *file, const tr_tokenizer *tokenizer, char *stem) {
    enum { LONGEST_ENDING = 32 };
    struct stat info;
    if (stat(file, &info) != 0) return false;
    const uint64_t facts[] = {(uint64_t)info.st_size, (uint64_t)info.st_mtim.tv_sec,
                              (uint64_t)info.st_mtim.tv_nsec, tr_tokenizer_hash(tokenizer),
                              (uint64_t)tr_tokenizer_document_end(tokenizer)};
    return snprintf(stem, PATH_MAX - LONGEST_ENDING, "%s/%016" PRIx64 "-%016" PRIx64, folder,
                    (uint64_t)XXH3_64bits(file, strlen(file)),
                    (uint64_t)XXH3_64bits(facts, sizeof facts)) < PATH_MAX - LONGEST_ENDING;
}

static bool is_complete(char *stem) {
    const size_t length = strlen(stem);
    bool complete = true;
    for (int i = 0; i < 2; i++) {
        (void)strcpy(stem + length, i ? ".idx" : ".bin");
        complete = complete && access(stem, F_OK) == 0;
        stem[length] = '\0';
    }
    return complete;
}

bool tr_kept_tokens_find(const char *folder, const char *file, const tr_tokenizer *tokenizer,
                         char *stem) {
    return *folder && name(folder, file, tokenizer, stem) && is_complete(stem);
}

/* Removes what the folder has of this path: of other contents, and tokens without their index,
 * which an earlier process left when it was killed between the two names. */
static void remove_others(const char *folder, const char *stem) {
    char path[PATH_MAX];
    const char *mine = strrchr(stem, '/') + 1;
    const size_t same_path = (size_t)(strrchr(mine, '-') - mine) + 1, length = strlen(mine);
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        const char *other = entry->d_name;
        if (strncmp(other, mine, same_path) != 0) continue;
        if (strncmp(other, mine, length) == 0 && strcmp(other + length, ".bin") != 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, other) < (int)sizeof path)
            (void)unlink(path);
    }
    if (dir) (void)closedir(dir);
}

static void pass_on(void *context, const tr_tokenize_progress *now) {
    const tr_kept_tokens_options *o = context;
    if (o->progress) o->progress(o->context, now->bytes, now->all_bytes);
}

static tr_status make(const tr_kept_tokens_options *o, const char *file) {
    char stem[PATH_MAX];
    tr_tokenize_progress done;
    if (tr_textfile_is_json_lines(file) || !name(o->folder, file, o->tokenizer, stem) ||
        is_complete(stem))
        return TR_OK;
    if (mkdir(o->folder, 0777) != 0 && errno != EEXIST)
        return TR_FAIL(TR_ERR_IO, "the folder '%s' cannot be made: %s", o->folder, strerror(errno));
    remove_others(o->folder, stem);
    const tr_tokenize_options options = {.files = &file,
                                         .count = 1,
                                         .tokenizer = o->tokenizer,
                                         .key = "",
                                         .prefix = stem,
                                         .threads = o->threads,
                                         .commit_s = 2,
                                         .only_tokens = true,
                                         .progress = pass_on,
                                         .context = (void *)o};
    return tr_tokenize(&options, &done);
}

tr_status tr_kept_tokens_make(const tr_kept_tokens_options *options, const char *key,
                              const char *text) {
    tr_data_paths paths;
    tr_status status = tr_data_paths_parse(key, text, &paths);
    for (int p = 0; p < paths.parts && status == TR_OK; p++) {
        char **files = NULL;
        int count = 0;
        status = tr_data_paths_expand(key, &paths.part[p], &files, &count);
        for (int i = 0; i < count && status == TR_OK; i++) status = make(options, files[i]);
        tr_data_paths_free_files(files, count);
    }
    tr_data_paths_free(&paths);
    return status;
}
