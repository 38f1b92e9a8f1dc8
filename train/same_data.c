#include "train/same_data.h"

#include "base/memory.h"
#include "base/philox.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tr_data_extent extent_of(const tr_ckpt_state *s) {
    return (tr_data_extent){.bytes = s->data_bytes,
                            .split = s->split_bytes,
                            .epoch = s->epoch,
                            .epoch_sample = s->epoch_sample,
                            .epoch_bytes = s->epoch_bytes};
}

static void set_extent(tr_ckpt_state *s, const tr_data_extent *extent) {
    s->data_bytes = extent->bytes;
    s->split_bytes = extent->split;
    s->epoch = extent->epoch;
    s->epoch_sample = extent->epoch_sample;
    s->epoch_bytes = extent->epoch_bytes;
}

void tr_same_data_advance(const tr_data *data, tr_ckpt_state *state) {
    const tr_data_extent extent = tr_data_extent_at(data, state->next_sample);
    set_extent(state, &extent);
}

/* Writes how the file is read: data.format, and how it is split into documents. Returns text. */
static const char *format_of(const tr_config *config, char text[64]) {
    int32_t end = tr_config_document_end(config);
    if (end < 0) (void)snprintf(text, 64, "%s", config->data.format);
    else (void)snprintf(text, 64, "%s, packed, document_end %d", config->data.format, (int)end);
    return text;
}

/* Writes how the way of reading the file differs from the checkpoint's config, as "KEY is x, and
 * was y"; when that config cannot be read, only how the file is read now. */
static tr_status name_key(const tr_config *config, const tr_ckpt_state *s, char *change,
                          size_t size) {
    char format[64];
    tr_config *saved;
    TR_TRY(tr_calloc(1, sizeof *saved, &saved));
    if (tr_config_parse(s->config, strlen(s->config), "the checkpoint", NULL, 0, saved) != TR_OK) {
        tr_error_clear();
        (void)snprintf(change, size, "it was read in another way than %s",
                       format_of(config, format));
    } else if (strcmp(config->data.format, saved->data.format) != 0) {
        (void)snprintf(change, size, "data.format is %s, and was %s", config->data.format,
                       saved->data.format);
    } else if (strcmp(config->data.documents, saved->data.documents) != 0) {
        (void)snprintf(change, size, "data.documents is %s, and was %s", config->data.documents,
                       saved->data.documents);
    } else {
        (void)snprintf(change, size, "data.document_end is %" PRId64 ", and was %" PRId64,
                       config->data.document_end, saved->data.document_end);
    }
    free(saved);
    return TR_OK;
}

/* Finds how the data differ from the recorded ones, as "its ... is x, and was y"; "" when they are
 * the same, as far as the checkpoint records them. */
static tr_status find_change(const tr_config *config, const tr_data *data, const tr_ckpt_state *s,
                             char *change, size_t size) {
    int64_t bytes = tr_data_tokens(data);
    uint64_t hash;
    change[0] = '\0';
    char format[64];
    if (s->data_format != tr_hash_name(format_of(config, format))) {
        TR_TRY(name_key(config, s, change, size));
    } else if (s->validation != config->data.validation) {
        (void)snprintf(change, size, "data.validation is %.15g, and was %.15g",
                       config->data.validation, s->validation);
    } else if (bytes < s->data_bytes) {
        (void)snprintf(change, size, "it has %" PRId64 " bytes, and had %" PRId64, bytes,
                       s->data_bytes);
    } else {
        TR_TRY(tr_data_hash(data, s->data_bytes, &hash));
        if (hash != s->data_hash)
            (void)snprintf(change, size, "%s %" PRId64 " bytes have other content",
                           bytes > s->data_bytes ? "its first" : "its", s->data_bytes);
    }
    return TR_OK;
}

/* Begins a new epoch with the changed file, because the order of the epoch in progress is one of
 * other windows. An epoch of which nothing was read yet keeps its number. */
static tr_status accept_change(const tr_config *config, const char *change, const tr_data *data,
                               tr_ckpt_state *s, char *note) {
    if (strcmp(config->data.changed, "allow"))
        return TR_FAIL(TR_ERR_CONFIG,
                       "'%s' is not the data that the checkpoint was made with: %s; restore "
                       "the earlier data and keys, or continue with these by data.changed=allow",
                       config->data.path, change);
    int64_t bytes = tr_data_tokens(data);
    const tr_data_extent extent = {.bytes = bytes,
                                   .split = bytes,
                                   .epoch = s->epoch + (s->next_sample > s->epoch_sample),
                                   .epoch_sample = s->next_sample,
                                   .epoch_bytes = bytes};
    set_extent(s, &extent);
    (void)snprintf(note, TR_SAME_DATA_NOTE,
                   "'%.200s' is not the data that the checkpoint was made with (%s): epoch %" PRId64
                   " begins with it",
                   config->data.path, change, extent.epoch);
    return TR_OK;
}

static tr_status compare_saved(const tr_config *config, const tr_data *data, tr_ckpt_state *s,
                               char *note) {
    char change[160];
    int64_t bytes = tr_data_tokens(data);
    if (s->data_bytes == 0) { /* the data are opened as in a new run */
        tr_same_data_advance(data, s);
        (void)snprintf(
            note, TR_SAME_DATA_NOTE,
            "the checkpoint does not record its data: '%.200s' is assumed to be the same",
            config->data.path);
        return TR_OK;
    }
    TR_TRY(find_change(config, data, s, change, sizeof change));
    if (change[0]) return accept_change(config, change, data, s, note);
    if (bytes > s->data_bytes)
        (void)snprintf(note, TR_SAME_DATA_NOTE,
                       "'%.200s' has grown from %" PRId64 " to %" PRId64
                       " bytes: the new bytes are read from epoch %" PRId64
                       " on, and the held-out part stays the same",
                       config->data.path, s->data_bytes, bytes, s->epoch + 1);
    s->data_bytes = bytes;
    return TR_OK;
}

/* Rank 0. */
static tr_status settle_first(const tr_config *config, bool resumes, const tr_data *data,
                              tr_ckpt_state *s, char *note) {
    char format[64];
    if (resumes) TR_TRY(compare_saved(config, data, s, note));
    else tr_same_data_advance(data, s);
    s->data_format = tr_hash_name(format_of(config, format));
    s->validation = config->data.validation;
    return tr_data_hash(data, s->data_bytes, &s->data_hash);
}

static tr_status use(const tr_config *config, tr_data *data, const tr_ckpt_state *s) {
    const tr_data_extent extent = extent_of(s);
    uint64_t hash;
    TR_TRY(tr_data_use(data, &extent));
    TR_TRY(tr_data_hash(data, extent.bytes, &hash));
    if (hash == s->data_hash) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "the data file '%s' has other content here than where rank 0 reads it: give "
                   "every host the same file",
                   config->data.path);
}

tr_status tr_same_data_settle(tr_world *world, const tr_config *config, bool resumes, tr_data *data,
                              tr_ckpt_state *state, char note[TR_SAME_DATA_NOTE]) {
    bool first = tr_world_rank(world) == 0;
    note[0] = '\0';
    TR_TRY(tr_world_agree(world, first ? settle_first(config, resumes, data, state, note) : TR_OK));
    TR_TRY(tr_world_broadcast(world, 0, state, sizeof *state));
    return tr_world_agree(world, use(config, data, state));
}
