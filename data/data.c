#include "data/data.h"

#include "base/memory.h"
#include "base/philox.h"
#include "layers/layer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One corpus of the mixture. */
typedef struct part {
    tr_corpus *corpus;
    tr_data_windows windows;
    int64_t weight; /* as written; 0: none */
    int64_t before; /* samples that it gave before data->since */
} part;

struct tr_data {
    part part[TR_DATA_PARTS];
    int parts;
    tr_corpus *held; /* the corpus of validation, NULL: the parts' ends */
    tr_data_windows held_windows;
    double validation;
    int64_t context;
    uint64_t seed;
    bool packed;
    int32_t document_end;
    int64_t since; /* the global sample with which the mixture's sequence begins */
    /* Places in the sequence: of samples, and of the trainer, which asks while another thread reads
     * samples. */
    tr_mixture order, settled;
    /* The place in the held-out windows: the turns of the corpora that have windows left, and what
     * each corpus has given. */
    tr_mixture held_order;
    int64_t held_at, held_taken[TR_DATA_PARTS];
    int32_t *window; /* (context + 1): the sample being read */
    bool *last;      /* (context + 1): whether a document ends behind the token */
};

/* --- opening ---------------------------------------------------------------------------------- */

/* Corpora of one mixture have different orders. */
static uint64_t seed_of(const tr_data *data, int index) {
    return index == 0 ? data->seed : data->seed ^ tr_mix64((uint64_t)index);
}

/* Finds out whether the row in which a corpus ended before it grew has only padding behind that
 * place. A conversation has a token that counts. */
static tr_status check_rest(tr_data *data, const tr_corpus *corpus, int64_t end, bool *padding) {
    const int64_t over = end % data->context, rest = over ? data->context - over : 0;
    *padding = rest > 0;
    TR_TRY(tr_corpus_read(corpus, end, rest, data->window));
    for (int64_t t = 0; t < rest; t++) *padding &= (data->window[t] & TR_TOKEN_GIVEN) != 0;
    return TR_OK;
}

tr_status tr_data_use(tr_data *data, int index, const tr_data_extent *extent) {
    part *p = &data->part[index];
    if (p->corpus->tokens < extent->tokens)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' has %" PRId64 " %s here and %" PRId64
                       " where rank 0 reads it: give every host the same file",
                       p->corpus->name, p->corpus->tokens,
                       p->corpus->width == 1 ? "bytes" : "tokens", extent->tokens);
    TR_TRY(tr_data_windows_lay(p->corpus->name, p->corpus->rows, data->held ? 0 : data->validation,
                               data->context, seed_of(data, index), extent, &p->windows));
    bool padding = false;
    if (p->corpus->rows && extent->tokens > extent->split)
        TR_TRY(check_rest(data, p->corpus, extent->split, &padding));
    if (padding) tr_data_windows_next_row(&p->windows);
    return TR_OK;
}

static tr_data_extent whole(const tr_corpus *corpus) {
    return (tr_data_extent){
        .tokens = corpus->tokens, .split = corpus->tokens, .epoch_tokens = corpus->tokens};
}

/* Opens the corpora of data.path. */
static tr_status open_parts(const tr_data_paths *paths, const tr_source_options *options,
                            tr_data *data) {
    int64_t weight[TR_DATA_PARTS];
    for (int k = 0; k < paths->parts; k++) {
        part *p = &data->part[data->parts++];
        weight[k] = p->weight = paths->part[k].weight;
        TR_TRY(tr_corpus_open("data.path", &paths->part[k], options, &p->corpus));
        const tr_data_extent extent = whole(p->corpus);
        TR_TRY(tr_data_use(data, k, &extent));
    }
    TR_TRY(tr_mixture_begin(weight, data->parts, &data->order));
    data->settled = data->order;
    data->held_at = INT64_MAX; /* no place: the first held-out window that is read begins one */
    return TR_OK;
}

/* Opens the corpus of validation: all of it is held out. */
static tr_status open_held(const char *path, const tr_source_options *options, tr_data *data) {
    tr_data_paths paths;
    tr_status status = tr_data_paths_parse("data.validation", path, &paths);
    if (status == TR_OK && paths.parts > 1)
        status = TR_FAIL(TR_ERR_CONFIG, "data.validation names one corpus, without weights");
    if (status == TR_OK)
        status = tr_corpus_open("data.validation", &paths.part[0], options, &data->held);
    tr_data_paths_free(&paths);
    TR_TRY(status);
    const tr_data_extent extent = whole(data->held);
    tr_data_windows *w = &data->held_windows;
    TR_TRY(tr_data_windows_lay(data->held->name, data->held->rows, 0, data->context, data->seed,
                               &extent, w));
    w->held = w->rows ? w->front.windows : (data->held->tokens - 1) / data->context;
    w->train = 0;
    return TR_OK;
}

/* Takes the token between documents that the files' format has, unless another one goes before
 * it. */
static tr_status choose_end(const tr_data_options *o, tr_data *data) {
    const tr_source *first = data->part[0].corpus->source;
    if (!o->packed || o->document_end >= 0 || first->lists_ends) return TR_OK;
    if (first->separator > 0 && (data->document_end < 0 || !first->tokenizer_ends))
        data->document_end = first->separator < o->vocab ? first->separator : -1;
    if (data->document_end >= 0) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG, "data.documents packed needs data.document_end, the token that "
                                  "ends a document: 50256 in GPT-2's data");
}

static tr_status open_files(const tr_data_options *o, tr_data *data) {
    const tr_source_options options = {.format = o->format,
                                       .vocab = o->vocab,
                                       .tokenizer = o->tokenizer,
                                       .tokens = o->tokens,
                                       .documents = o->packed,
                                       .context = o->context,
                                       .document_end = data->document_end};
    tr_data_paths paths;
    tr_status status = TR_OK;
    if (o->validation_path) TR_TRY(open_held(o->validation_path, &options, data));
    status = tr_data_paths_parse("data.path", o->path, &paths);
    if (status == TR_OK) status = open_parts(&paths, &options, data);
    tr_data_paths_free(&paths);
    TR_TRY(status);
    TR_TRY(choose_end(o, data));
    TR_TRY(tr_calloc((size_t)data->context + 1, sizeof *data->window, &data->window));
    return tr_calloc((size_t)data->context + 1, sizeof *data->last, &data->last);
}

tr_status tr_data_open(const tr_data_options *o, tr_data **out) {
    if (strcmp(o->format, "instruct") == 0 && !o->packed)
        return TR_FAIL(TR_ERR_CONFIG, "data.format instruct needs data.documents packed");
    if (o->context < 1 || o->context > INT64_MAX / 16 || !(o->validation >= 0 && o->validation < 1))
        return TR_FAIL(TR_ERR_CONFIG, "model.context or data.validation is out of range");
    tr_data *data;
    TR_TRY(tr_calloc(1, sizeof *data, &data));
    data->validation = o->validation;
    data->context = o->context;
    data->seed = o->seed;
    data->packed = o->packed;
    data->document_end = o->document_end;
    if (o->document_end < 0 && o->tokenizer)
        data->document_end = tr_tokenizer_document_end(o->tokenizer);
    tr_status status = open_files(o, data);
    if (status != TR_OK) {
        tr_data_close(data);
        TR_TRY(status);
    }
    *out = data;
    return TR_OK;
}

void tr_data_close(tr_data *data) {
    if (!data) return;
    for (int k = 0; k < data->parts; k++) tr_corpus_close(data->part[k].corpus);
    tr_corpus_close(data->held);
    free(data->window);
    free(data->last);
    free(data);
}

/* --- numbers ---------------------------------------------------------------------------------- */

int tr_data_parts(const tr_data *data) {
    return data->parts;
}

const char *tr_data_name(const tr_data *data, int index) {
    return data->part[index].corpus->name;
}

void tr_data_note(const tr_data *data, char *text, size_t size) {
    int64_t all = 0, cut = 0, skipped = 0;
    for (int k = 0; k <= data->parts; k++) {
        const tr_corpus *c = k < data->parts ? data->part[k].corpus : data->held;
        for (int i = 0; c && c->rows && i < c->count; i++) {
            all += c->source[i].documents + c->source[i].skipped;
            cut += c->source[i].cut;
            skipped += c->source[i].skipped;
        }
    }
    text[0] = '\0';
    if (cut + skipped > 0)
        (void)snprintf(text, size,
                       "of %" PRId64 " conversations, %" PRId64
                       " are cut after model.context %" PRId64 " tokens, and %" PRId64
                       " are skipped because no answer is left",
                       all, cut, data->context, skipped);
}

int64_t tr_data_weight(const tr_data *data, int index) {
    return data->part[index].weight;
}

tr_status tr_data_hash(const tr_data *data, int index, int64_t tokens, uint64_t *hash) {
    return tr_corpus_hash(data->part[index].corpus, tokens, hash);
}

int64_t tr_data_tokens(const tr_data *data, int index) {
    return data->part[index].corpus->tokens;
}

int64_t tr_data_train_tokens(const tr_data *data, int index) {
    return data->part[index].windows.train;
}

int64_t tr_data_windows_of(const tr_data *data, int index) {
    return tr_data_windows_count(&data->part[index].windows);
}

int64_t tr_data_held_windows(const tr_data *data, int index) {
    return data->part[index].windows.held;
}

int64_t tr_data_validation_windows(const tr_data *data) {
    int64_t sum = data->held ? data->held_windows.held : 0;
    for (int k = 0; k < data->parts; k++) sum += data->part[k].windows.held;
    return sum;
}

/* --- the sequence of samples ------------------------------------------------------------------ */

void tr_data_mix_from(tr_data *data, int64_t since, const int64_t *taken) {
    data->since = since;
    for (int k = 0; k < data->parts; k++) data->part[k].before = taken[k];
}

void tr_data_taken(tr_data *data, int64_t sample, int64_t *taken) {
    tr_mixture_seek(&data->settled, sample - data->since);
    for (int k = 0; k < data->parts; k++) taken[k] = data->part[k].before + data->settled.taken[k];
}

tr_data_extent tr_data_extent_at(tr_data *data, int index, int64_t sample) {
    int64_t taken[TR_DATA_PARTS];
    tr_data_taken(data, sample, taken);
    return tr_data_windows_at(&data->part[index].windows, taken[index]);
}

/* Returns the window of a training sample, and its corpus. */
static tr_data_window window_of(tr_data *data, int64_t index, int *chosen) {
    tr_mixture_seek(&data->order, index - data->since);
    const int k = tr_mixture_part(&data->order);
    const part *p = &data->part[k];
    *chosen = k;
    return tr_data_windows_get(&p->windows, p->before + data->order.taken[k]);
}

/* Lets the corpora that have held-out windows left take turns from here on. */
static tr_status share_held(tr_data *data) {
    int64_t weight[TR_DATA_PARTS];
    for (int k = 0; k < data->parts; k++) {
        const part *p = &data->part[k];
        weight[k] = data->held_taken[k] < p->windows.held ? p->weight : 0;
    }
    return tr_mixture_begin(weight, data->parts, &data->held_order);
}

/* Finds held-out window `index` of a mixture, and its corpus. Each window has one place. */
static tr_status held_window_of(tr_data *data, int64_t index, int *chosen, tr_data_window *out) {
    if (index < data->held_at) {
        data->held_at = 0;
        memset(data->held_taken, 0, sizeof data->held_taken);
        TR_TRY(share_held(data));
    }
    int k = tr_mixture_part(&data->held_order);
    for (; data->held_at < index; data->held_at++) {
        tr_mixture_seek(&data->held_order, data->held_order.at + 1);
        if (++data->held_taken[k] == data->part[k].windows.held) TR_TRY(share_held(data));
        k = tr_mixture_part(&data->held_order);
    }
    *chosen = k;
    *out = tr_data_windows_get_held(&data->part[k].windows, data->held_taken[k]);
    return TR_OK;
}

int64_t tr_data_window_start(tr_data *data, int64_t index, int *chosen) {
    int k;
    return window_of(data, index, chosen ? chosen : &k).start;
}

/* --- samples ---------------------------------------------------------------------------------- */

/* Finds the ends of documents in the window. */
static void find_ends(tr_data *data, const tr_corpus *corpus, const tr_data_window *w) {
    if (!corpus->lists_ends) {
        for (int64_t t = 0; t < data->context; t++)
            data->last[t] = data->window[t] == data->document_end;
        return;
    }
    memset(data->last, 0, (size_t)data->context);
    int64_t end = tr_corpus_next_end(corpus, w->from);
    for (; end <= w->to && end <= w->start + data->context; end = tr_corpus_next_end(corpus, end)) {
        data->last[end - 1 - w->start] = true;
        if (end == corpus->tokens) break;
    }
    if (!corpus->rows) return;
    if (w->from > w->start) data->last[w->from - 1 - w->start] = true; /* padding in front */
    data->last[data->context - 1] = true;
}

/* Reads the tokens of a window; in a row those that it does not read are padding. */
static tr_status read_tokens(tr_data *data, const tr_corpus *corpus, const tr_data_window *w) {
    const int64_t pad = data->document_end > 0 ? data->document_end : 0;
    if (!corpus->rows) return tr_corpus_read(corpus, w->start, data->context + 1, data->window);
    TR_TRY(tr_corpus_read(corpus, w->from, w->to - w->from, data->window + (w->from - w->start)));
    for (int64_t t = 0; t <= data->context; t++)
        if (w->start + t < w->from || w->start + t >= w->to)
            data->window[t] = (int32_t)pad | TR_TOKEN_GIVEN;
    return TR_OK;
}

/* Fills one step input from the window in data->window. */
static tr_status fill(const tr_data *data, const tr_fetch *wanted) {
    const char *name = wanted->input->name;
    int32_t *to = wanted->to, start = 0;
    const int32_t *token = data->window;
    if (strcmp(name, TR_STEP_INPUT_TOKENS) == 0) {
        for (int64_t t = 0; t < data->context; t++) to[t] = token[t] & ~TR_TOKEN_GIVEN;
        return TR_OK;
    }
    if (strcmp(name, TR_STEP_INPUT_LABELS) == 0) {
        for (int64_t t = 0; t < data->context; t++)
            to[t] = data->last[t] || (token[t + 1] & TR_TOKEN_GIVEN) ? -1 : token[t + 1];
        return TR_OK;
    }
    if (strcmp(name, TR_STEP_INPUT_DOCUMENT_STARTS) != 0)
        return TR_FAIL(TR_ERR_CONFIG, "the model asks for \"%s\", which token files do not have",
                       name);
    for (int64_t t = 0; t < data->context; t++) {
        to[t] = start;
        if (data->last[t]) start = (int32_t)t + 1;
    }
    return TR_OK;
}

static tr_status fill_all(const tr_data *data, const tr_fetch *wanted, int count) {
    for (int k = 0; k < count; k++) TR_TRY(fill(data, &wanted[k]));
    return TR_OK;
}

/* Reads the wanted inputs of a window. */
static tr_status read_window(tr_data *data, const tr_corpus *corpus, tr_data_window window,
                             const tr_fetch *wanted, int count) {
    TR_TRY(read_tokens(data, corpus, &window));
    if (data->packed) find_ends(data, corpus, &window);
    else memset(data->last, 0, (size_t)data->context);
    return fill_all(data, wanted, count);
}

/* Fills the wanted inputs of a window in which no label counts. */
static tr_status fill_padding(tr_data *data, const tr_fetch *wanted, int count) {
    for (int64_t t = 0; t <= data->context; t++) data->window[t] = TR_TOKEN_GIVEN;
    memset(data->last, 0, (size_t)data->context);
    return fill_all(data, wanted, count);
}

tr_status tr_data_sample(tr_data *data, int64_t index, const tr_fetch *wanted, int count) {
    int k;
    const tr_data_window window = window_of(data, index, &k);
    return read_window(data, data->part[k].corpus, window, wanted, count);
}

tr_status tr_data_validation_sample(tr_data *data, int64_t index, const tr_fetch *wanted,
                                    int count) {
    if (index >= tr_data_validation_windows(data)) return fill_padding(data, wanted, count);
    if (data->held)
        return read_window(data, data->held, tr_data_windows_get_held(&data->held_windows, index),
                           wanted, count);
    int k = 0;
    tr_data_window window;
    TR_TRY(held_window_of(data, index, &k, &window));
    return read_window(data, data->part[k].corpus, window, wanted, count);
}

const tr_corpus *tr_data_corpus(const tr_data *data, int index) {
    return data->part[index].corpus;
}

int32_t tr_data_document_end(const tr_data *data) {
    return data->packed ? data->document_end : -1;
}
