#include "data/kept_tokens.h"

#include "data/kept_rows.h"
#include "data/paths.h"
#include "data/textfile.h"
#include "data/tokenize.h"
#include "text/chat.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static bool is_rows(const tr_source_options *o) {
    return strcmp(o->format, "instruct") == 0;
}

/* Writes FOLDER/PATH-CONTENT to stem[PATH_MAX], two hashes. Returns false when there is no such
 * file, the tokenizer's chat template is refused, or the path is too long. */
static bool name(const tr_source_options *o, const char *file, char *stem) {
    enum { LONGEST_ENDING = 32 };
    struct stat info;
    if (stat(file, &info) != 0) return false;
    uint64_t facts[12] = {(uint64_t)info.st_size, (uint64_t)info.st_mtim.tv_sec,
                          (uint64_t)info.st_mtim.tv_nsec, tr_tokenizer_hash(o->tokenizer),
                          (uint64_t)tr_tokenizer_document_end(o->tokenizer)};
    size_t count = 5;
    if (is_rows(o)) {
        tr_chat chat;
        if (tr_chat_find(o->tokenizer, &chat) != TR_OK) return false;
        const int64_t more[] = {o->context, o->document_end, chat.form, chat.begin,
                                chat.start, chat.header_end, chat.end};
        for (size_t i = 0; i < sizeof more / sizeof *more; i++) facts[count++] = (uint64_t)more[i];
    }
    return snprintf(stem, PATH_MAX - LONGEST_ENDING, "%s/%016" PRIx64 "-%016" PRIx64, o->tokens,
                    (uint64_t)XXH3_64bits(file, strlen(file)),
                    (uint64_t)XXH3_64bits(facts, count * sizeof *facts)) <
           PATH_MAX - LONGEST_ENDING;
}

static bool is_complete(const tr_source_options *o, char *stem) {
    const size_t length = strlen(stem);
    const char *const endings[] = {is_rows(o) ? ".rows" : ".bin", ".idx"};
    bool complete = true;
    for (int i = 0; i < (is_rows(o) ? 1 : 2); i++) {
        (void)strcpy(stem + length, endings[i]);
        complete = complete && access(stem, F_OK) == 0;
        stem[length] = '\0';
    }
    return complete;
}

bool tr_kept_tokens_find(const tr_source_options *o, const char *file, char *path) {
    if (!o->tokens || !*o->tokens || !name(o, file, path) || !is_complete(o, path)) return false;
    if (is_rows(o)) (void)strcat(path, ".rows");
    return true;
}

tr_status tr_kept_tokens_opened(const tr_source_options *o, tr_status status) {
    if (status != TR_ERR_DATA) return status;
    return TR_FAIL(status,
                   "the tokens in '%s' are damaged: remove this folder, and the run makes them "
                   "again (%s)",
                   o->tokens, tr_error_message());
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

static bool pass_on(void *context, const tr_tokenize_progress *now) {
    const tr_kept_tokens_options *o = context;
    return !o->source.progress ||
           o->source.progress(o->source.progress_context, now->bytes, now->all_bytes);
}

static tr_status make_rows(const tr_kept_tokens_options *o, const char *file, char *stem) {
    tr_source_options options = o->source;
    tr_source rows;
    options.tokens = NULL;
    tr_status status = tr_source_open(file, &options, &rows);
    if (status == TR_OK) status = tr_kept_rows_write(&rows, strcat(stem, ".rows"));
    tr_source_close(&rows);
    return status;
}

/* Returns the status of making the tokens, and puts the name that the user has given in front of
 * those of the folder's files, which are hashes. */
static tr_status kept(const tr_kept_tokens_options *o, const char *file, tr_status status) {
    if (status != TR_ERR_IO) return status;
    return TR_FAIL(status, "the tokens of '%s' cannot be kept in '%s': %s", file, o->source.tokens,
                   tr_error_message());
}

static tr_status make(const tr_kept_tokens_options *o, const char *file) {
    char stem[PATH_MAX];
    tr_tokenize_progress done;
    const char *const folder = o->source.tokens;
    if (tr_textfile_is_json_lines(file) != is_rows(&o->source) || !name(&o->source, file, stem) ||
        is_complete(&o->source, stem))
        return TR_OK;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return TR_FAIL(TR_ERR_IO, "the folder '%s' cannot be made: %s", folder, strerror(errno));
    remove_others(folder, stem);
    if (is_rows(&o->source)) return kept(o, file, make_rows(o, file, stem));
    const tr_tokenize_options options = {.files = &file,
                                         .count = 1,
                                         .tokenizer = o->source.tokenizer,
                                         .key = "",
                                         .prefix = stem,
                                         .threads = o->threads,
                                         .commit_s = 2,
                                         .only_tokens = true,
                                         .progress = pass_on,
                                         .context = (void *)o};
    return kept(o, file, tr_tokenize(&options, &done));
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
