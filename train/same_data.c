#include "train/same_data.h"

#include "base/memory.h"
#include "base/philox.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns how many corpora the state records. */
static int parts_of(const tr_ckpt_state *s) {
    return s->corpora ? (int)s->corpora : 1;
}

/* Returns corpus k of the state; a single one is in the state's own fields. */
static tr_ckpt_corpus part_of(const tr_ckpt_state *s, int k) {
    if (s->corpora) return s->corpus[k];
    return (tr_ckpt_corpus){.bytes = s->data_bytes,
                            .split = s->split_bytes,
                            .epoch = s->epoch,
                            .epoch_sample = s->epoch_sample,
                            .epoch_bytes = s->epoch_bytes,
                            .hash = s->data_hash};
}

/* Stores a corpus; the first one of a mixture is in the state's own fields, too. */
static void set_part(tr_ckpt_state *s, int k, const tr_ckpt_corpus *part) {
    if (s->corpora) s->corpus[k] = *part;
    if (k > 0) return;
    s->data_bytes = part->bytes;
    s->split_bytes = part->split;
    s->epoch = part->epoch;
    s->epoch_sample = part->epoch_sample;
    s->epoch_bytes = part->epoch_bytes;
    s->data_hash = part->hash;
}

static tr_data_extent extent_of(const tr_ckpt_corpus *part) {
    return (tr_data_extent){.tokens = part->bytes,
                            .split = part->split,
                            .epoch = part->epoch,
                            .epoch_sample = part->epoch_sample,
                            .epoch_tokens = part->epoch_bytes};
}

static void set_extent(tr_ckpt_corpus *part, const tr_data_extent *extent) {
    part->bytes = extent->tokens;
    part->split = extent->split;
    part->epoch = extent->epoch;
    part->epoch_sample = extent->epoch_sample;
    part->epoch_bytes = extent->epoch_tokens;
}

void tr_same_data_advance(tr_data *data, tr_ckpt_state *state) {
    for (int k = 0; k < tr_data_parts(data); k++) {
        tr_ckpt_corpus part = part_of(state, k);
        const tr_data_extent extent = tr_data_extent_at(data, k, state->next_sample);
        set_extent(&part, &extent);
        set_part(state, k, &part);
    }
}

/* Makes the state one of the corpora of `data`, with their weights, and the mixture's sequence one
 * that begins with `since`, after taken[k] samples of each. */
static void set_mixture(const tr_data *data, int64_t since, const int64_t *taken,
                        tr_ckpt_state *s) {
    const int parts = tr_data_parts(data);
    tr_ckpt_corpus part[TR_CKPT_CORPORA] = {{0}};
    for (int k = 0; k < parts && k < parts_of(s); k++) part[k] = part_of(s, k);
    memset(s->corpus, 0, sizeof s->corpus);
    s->corpora = parts > 1 ? parts : 0;
    s->since = s->corpora ? since : 0;
    for (int k = 0; k < parts; k++) {
        part[k].weight = tr_data_weight(data, k);
        part[k].taken = taken[k];
        set_part(s, k, &part[k]);
    }
}

/* Computes the samples that each recorded corpus gave before the state's next sample. */
static tr_status count_taken(const tr_ckpt_state *s, int64_t taken[TR_CKPT_CORPORA]) {
    int64_t weight[TR_CKPT_CORPORA] = {1};
    tr_mixture mixture;
    memset(taken, 0, TR_CKPT_CORPORA * sizeof *taken);
    for (int k = 0; k < parts_of(s) && s->corpora; k++) weight[k] = s->corpus[k].weight;
    TR_TRY(tr_mixture_begin(weight, parts_of(s), &mixture));
    tr_mixture_seek(&mixture, s->next_sample - s->since);
    for (int k = 0; k < parts_of(s); k++) taken[k] = part_of(s, k).taken + mixture.taken[k];
    return TR_OK;
}

/* Returns what the length of a corpus is counted in. */
static const char *unit_of(const tr_data *data, int k) {
    return tr_data_corpus(data, k)->width == 1 ? "bytes" : "tokens";
}

/* Makes the state one of a new run with these corpora. */
static void begin_mixture(const tr_data *data, tr_ckpt_state *s) {
    const int64_t taken[TR_CKPT_CORPORA] = {0};
    set_mixture(data, 0, taken, s);
}

/* Writes how the file is read: data.format, and how it is split into documents. Returns text. */
static const char *format_of(const tr_config *config, char text[64]) {
    if (!tr_config_packed(config)) (void)snprintf(text, 64, "%s", config->data.format);
    else
        (void)snprintf(text, 64, "%s, packed, document_end %d", config->data.format,
                       (int)config->data.document_end);
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

/* Finds how corpus k differs from the recorded one, as "its ... is x, and was y"; "" when it is the
 * same. */
static tr_status compare_part(const tr_data *data, const tr_ckpt_state *s, int k, char *change,
                              size_t size) {
    const tr_ckpt_corpus then = part_of(s, k);
    const int64_t tokens = tr_data_tokens(data, k);
    uint64_t hash;
    if (tokens < then.bytes) {
        (void)snprintf(change, size, "it has %" PRId64 " %s, and had %" PRId64, tokens,
                       unit_of(data, k), then.bytes);
        return TR_OK;
    }
    TR_TRY(tr_data_hash(data, k, then.bytes, &hash));
    if (hash != then.hash)
        (void)snprintf(change, size, "%s %" PRId64 " %s have other content",
                       tokens > then.bytes ? "its first" : "its", then.bytes, unit_of(data, k));
    return TR_OK;
}

/* Finds how the data differ from the recorded ones, as "its ... is x, and was y"; "" when they are
 * the same, as far as the checkpoint records them. *part: the corpus that differs. */
static tr_status find_change(const tr_config *config, const tr_data *data, const tr_ckpt_state *s,
                             int *part, char *change, size_t size) {
    const int now = tr_data_parts(data), then = parts_of(s);
    double share = tr_config_validation(config, NULL);
    change[0] = '\0';
    char format[64];
    *part = 0;
    if (s->data_format != tr_hash_name(format_of(config, format)))
        return name_key(config, s, change, size);
    if (s->validation != share) {
        (void)snprintf(change, size, "data.validation is %.80s, and was %.15g",
                       config->data.validation, s->validation);
        return TR_OK;
    }
    if (now < then) {
        (void)snprintf(change, size, "data.path mixes %d corpora, and mixed %d", now, then);
        return TR_OK;
    }
    for (int k = 0; k < then && !change[0]; k++) {
        *part = k;
        TR_TRY(compare_part(data, s, k, change, size));
        if (!change[0] && now == then && then > 1 && s->corpus[k].weight != tr_data_weight(data, k))
            (void)snprintf(change, size, "its weight is %g, and was %g",
                           (double)tr_data_weight(data, k) / 1e6,
                           (double)s->corpus[k].weight / 1e6);
    }
    return TR_OK;
}

/* Begins a new epoch with the changed files, because the order of the epoch in progress is one of
 * other windows. An epoch of which nothing was read yet keeps its number. */
static tr_status accept_change(const tr_config *config, const char *change, int changed,
                               const tr_data *data, tr_ckpt_state *s, char *note) {
    const char *name = tr_data_parts(data) > 1 ? tr_data_name(data, changed) : config->data.path;
    if (strcmp(config->data.changed, "allow"))
        return TR_FAIL(TR_ERR_CONFIG,
                       "'%.600s' is not the data that the checkpoint was made with: %s; restore "
                       "the earlier data and keys, or continue with these by data.changed=allow",
                       name, change);
    int64_t taken[TR_CKPT_CORPORA], epoch = 0;
    TR_TRY(count_taken(s, taken));
    const int then = parts_of(s);
    for (int k = then; k < tr_data_parts(data); k++) taken[k] = 0;
    set_mixture(data, s->next_sample, taken, s);
    if (tr_data_parts(data) < then && tr_data_parts(data) == 1) taken[0] = s->next_sample;
    for (int k = 0; k < tr_data_parts(data); k++) {
        tr_ckpt_corpus part = part_of(s, k);
        const int64_t tokens = tr_data_tokens(data, k);
        const tr_data_extent extent = {.tokens = tokens,
                                       .split = tokens,
                                       .epoch = part.epoch + (taken[k] > part.epoch_sample),
                                       .epoch_sample = taken[k],
                                       .epoch_tokens = tokens};
        set_extent(&part, &extent);
        set_part(s, k, &part);
        if (k == changed) epoch = extent.epoch;
    }
    (void)snprintf(note, TR_SAME_DATA_NOTE,
                   "'%.200s' is not the data that the checkpoint was made with (%s): epoch %" PRId64
                   " begins with it",
                   name, change, epoch);
    return TR_OK;
}

/* Lets the mixture go on with the corpora that were added at its end. */
static tr_status add_parts(const tr_data *data, tr_ckpt_state *s, char *note) {
    int64_t taken[TR_CKPT_CORPORA];
    const int then = parts_of(s), now = tr_data_parts(data);
    TR_TRY(count_taken(s, taken));
    set_mixture(data, s->next_sample, taken, s);
    for (int k = then; k < now; k++) {
        const int64_t tokens = tr_data_tokens(data, k);
        const tr_data_extent extent = {.tokens = tokens, .split = tokens, .epoch_tokens = tokens};
        set_extent(&s->corpus[k], &extent);
    }
    (void)snprintf(note, TR_SAME_DATA_NOTE,
                   "'%.200s'%s added to the mixture: its proportions are those of data.path from "
                   "sample %" PRId64 " on",
                   tr_data_name(data, then), now - then > 1 ? " and others were" : " was",
                   s->next_sample);
    return TR_OK;
}

/* Lets corpora grow, each from its next epoch on. */
static void take_growth(const tr_data *data, tr_ckpt_state *s, char *note) {
    for (int k = 0; k < parts_of(s); k++) {
        tr_ckpt_corpus part = part_of(s, k);
        const int64_t tokens = tr_data_tokens(data, k);
        const size_t said = strlen(note);
        if (tokens > part.bytes && said < TR_SAME_DATA_NOTE)
            (void)snprintf(note + said, TR_SAME_DATA_NOTE - said,
                           "%s'%.200s' has grown from %" PRId64 " to %" PRId64
                           " %s: the new %s are read from epoch %" PRId64
                           " on, and the held-out part stays the same",
                           said ? "; " : "", tr_data_name(data, k), part.bytes, tokens,
                           unit_of(data, k), unit_of(data, k), part.epoch + 1);
        part.bytes = tokens;
        set_part(s, k, &part);
    }
}

static tr_status compare_saved(const tr_config *config, tr_data *data, tr_ckpt_state *s,
                               char *note) {
    char change[160];
    int part;
    if (s->data_bytes == 0) { /* the data are opened as in a new run */
        begin_mixture(data, s);
        tr_same_data_advance(data, s);
        if (s->step == 0) return TR_OK; /* imported weights: nothing was read */
        (void)snprintf(
            note, TR_SAME_DATA_NOTE,
            "the checkpoint does not record its data: '%.200s' is assumed to be the same",
            config->data.path);
        return TR_OK;
    }
    TR_TRY(find_change(config, data, s, &part, change, sizeof change));
    if (change[0]) return accept_change(config, change, part, data, s, note);
    if (tr_data_parts(data) > parts_of(s)) TR_TRY(add_parts(data, s, note));
    take_growth(data, s, note);
    return TR_OK;
}

/* Rank 0. */
static tr_status settle_first(const tr_config *config, bool resumes, tr_data *data,
                              tr_ckpt_state *s, char *note) {
    char format[64];
    if (resumes) {
        TR_TRY(compare_saved(config, data, s, note));
    } else {
        begin_mixture(data, s);
        tr_same_data_advance(data, s);
    }
    s->data_format = tr_hash_name(format_of(config, format));
    s->validation = tr_config_validation(config, NULL);
    for (int k = 0; k < parts_of(s); k++) {
        tr_ckpt_corpus part = part_of(s, k);
        TR_TRY(tr_data_hash(data, k, part.bytes, &part.hash));
        set_part(s, k, &part);
    }
    return TR_OK;
}

/* Sets this rank's data to those of *s, which rank 0 has settled. */
static tr_status use(const tr_config *config, tr_data *data, const tr_ckpt_state *s) {
    int64_t taken[TR_CKPT_CORPORA];
    char format[64];
    if (s->data_format != tr_hash_name(format_of(config, format)))
        return TR_FAIL(TR_ERR_CONFIG,
                       "the data are read as %s here and in another way on rank 0: give every host "
                       "the same tokenizer, or set data.document_end",
                       format);
    if (tr_data_parts(data) != parts_of(s))
        return TR_FAIL(TR_ERR_DATA,
                       "data.path mixes %d corpora here and %d where rank 0 reads it: "
                       "give every host the same files",
                       tr_data_parts(data), parts_of(s));
    for (int k = 0; k < parts_of(s); k++) {
        const tr_ckpt_corpus part = part_of(s, k);
        const tr_data_extent extent = extent_of(&part);
        uint64_t hash;
        taken[k] = part.taken;
        TR_TRY(tr_data_use(data, k, &extent));
        TR_TRY(tr_data_hash(data, k, extent.tokens, &hash));
        if (hash != part.hash)
            return TR_FAIL(TR_ERR_DATA,
                           "the data file '%s' has other content here than where rank 0 reads it: "
                           "give every host the same file",
                           tr_data_name(data, k));
        if (s->corpora && tr_data_weight(data, k) != part.weight)
            return TR_FAIL(TR_ERR_CONFIG,
                           "data.path gives '%s' the weight %g here and %g on rank 0: give every "
                           "rank the same weights",
                           tr_data_name(data, k), (double)tr_data_weight(data, k) / 1e6,
                           (double)part.weight / 1e6);
    }
    tr_data_mix_from(data, s->since, taken);
    return TR_OK;
}

tr_status tr_same_data_settle(tr_world *world, const tr_config *config, bool resumes, tr_data *data,
                              tr_ckpt_state *state, char note[TR_SAME_DATA_NOTE]) {
    bool first = tr_world_rank(world) == 0;
    note[0] = '\0';
    TR_TRY(tr_world_agree(world, first ? settle_first(config, resumes, data, state, note) : TR_OK));
    TR_TRY(tr_world_broadcast(world, 0, state, sizeof *state));
    return tr_world_agree(world, use(config, data, state));
}
