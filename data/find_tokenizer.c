#include "data/find_tokenizer.h"

#include "base/input.h"
#include "data/paths.h"
#include "data/source.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Writes the path of the tokenizer next to a token file to path[PATH_MAX]. Returns false when there
 * is none. */
static bool beside(const char *file, char *path) {
    int length = snprintf(path, PATH_MAX, "%.*s.tokenizer.json", (int)tr_source_stem(file), file);
    return length < PATH_MAX && tr_input_exists(path);
}

/* Finds the tokenizer next to the first file of data.path. */
static tr_status find_beside(const char *data_path, char *path, bool *found) {
    tr_data_paths paths;
    char **files = NULL;
    int count = 0;
    *found = false;
    tr_status status = tr_data_paths_parse("data.path", data_path, &paths);
    if (status == TR_OK) status = tr_data_paths_expand("data.path", &paths.part[0], &files, &count);
    if (status == TR_OK && count > 0) *found = beside(files[0], path);
    tr_data_paths_free_files(files, count);
    tr_data_paths_free(&paths);
    return status;
}

tr_status tr_data_find_tokenizer(const char *named, const char *data_path, const char *origin,
                                 int64_t vocab, bool needed, char note[TR_DATA_NOTE],
                                 tr_tokenizer **out) {
    char path[PATH_MAX];
    const char *found = *named ? named : NULL;
    *out = NULL;
    note[0] = '\0';
    if (!found) {
        bool next_to;
        TR_TRY(find_beside(data_path, path, &next_to));
        found = next_to ? path : *origin && tr_tokenizer_in(origin) ? origin : NULL;
    }
    if (!found) return TR_OK;
    tr_status status = tr_tokenizer_open(found, out);
    if (status != TR_OK && found != named && !needed) {
        (void)snprintf(note, TR_DATA_NOTE,
                       "%s (these data can be read without a tokenizer, so none is used)",
                       tr_error_message());
        tr_error_clear();
        return TR_OK;
    }
    TR_TRY(status);
    const int32_t size = tr_tokenizer_size(*out);
    if (size <= vocab) return TR_OK;
    tr_tokenizer_close(*out);
    *out = NULL;
    if (found == origin && !needed) return TR_OK; /* it is not that of the files */
    if (*origin)                                  /* nobody can set model.vocab */
        return TR_FAIL(
            TR_ERR_CONFIG,
            "the weights have model.vocab %" PRId64 ", but the tokenizer '%s' has %" PRId32
            " tokens: use %s%s%sone with at most %" PRId64 " tokens",
            vocab, found, size, found == origin ? "" : "theirs, '", found == origin ? "" : origin,
            found == origin ? "" : "', or another ", vocab);
    return TR_FAIL(TR_ERR_CONFIG,
                   "model.vocab %" PRId64 " is too small: the tokenizer '%s' has %" PRId32
                   " tokens: set model.vocab to %" PRId32 " or more",
                   vocab, found, size, size);
}
