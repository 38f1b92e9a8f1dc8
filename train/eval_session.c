#include "train/eval_session.h"

#include "base/digits.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/ckpt.h"
#include "data/find_tokenizer.h"
#include "data/paths.h"
#include "data/textfile.h"
#include "partition/request.h"
#include "pipeline/orders/make.h"
#include "train/data_options.h"
#include "train/same_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the config ------------------------------------------------------------------------------- */

static const char context_key[] = "model.context=";

/* Returns the override's value if it sets model.context, otherwise NULL. */
static const char *context_of(const char *override) {
    if (strncmp(override, "--", 2) == 0) override += 2;
    const size_t length = sizeof context_key - 1;
    return strncmp(override, context_key, length) == 0 ? override + length : NULL;
}

static tr_status read_context(const char *text, const tr_config *config, int64_t *out) {
    const char *end = text;
    int64_t context;
    if (!tr_digits_read(&end, INT64_MAX, &context) || *end || context < 1)
        return TR_FAIL(TR_ERR_CONFIG, "model.context must be an integer from 1, not '%s'", text);
    if (context > config->model.context)
        return TR_FAIL(
            TR_ERR_CONFIG,
            "model.context is %lld, but the model was trained with %lld: leave it out, or "
            "choose a smaller one",
            (long long)context, (long long)config->model.context);
    *out = context;
    return TR_OK;
}

/* Reads the config. A run keeps its model.context, which is a size of its parameters, and a smaller
 * one only shortens the sequences; for a folder it is a key like others. */
static tr_status read_config(const tr_eval_request *r, int ranks, tr_eval_session *s) {
    const char **keys, *context = NULL;
    tr_trained model = r->model;
    TR_TRY(tr_calloc((size_t)model.overrides_count + 1, sizeof *keys, &keys));
    int count = 0;
    for (int i = 0; i < model.overrides_count; i++) {
        const char *value = context_of(model.overrides[i]);
        if (value && !tr_trained_is_folder(model.path)) context = value;
        else keys[count++] = model.overrides[i];
    }
    model.overrides = keys;
    model.overrides_count = count;
    tr_status status = tr_trained_config(&model, ranks, true, &s->config);
    free(keys);
    TR_TRY(status);
    s->context = s->config.model.context;
    return context ? read_context(context, &s->config, &s->context) : TR_OK;
}

static tr_status open_tokenizer(const tr_eval_request *r, tr_eval_session *s) {
    const tr_config *c = &s->config;
    TR_TRY(tr_trained_open_tokenizer(&r->model, c, &s->tokenizer));
    s->bytes = !s->tokenizer && tr_trained_reads_bytes(&r->model, c);
    return TR_OK;
}

/* --- the data --------------------------------------------------------------------------------- */

/* Finds the format of a named file: data.format if it is given, what the file shows, or the run's
 * for a .bin; any other file is text. */
static tr_status find_format(const tr_eval_request *r, const tr_eval_session *s, const char *path,
                             const char **format) {
    const char *shown = tr_source_shows(path);
    *format = s->config.data.format;
    if (tr_trained_sets(&r->model, "data.format")) return TR_OK;
    if (shown) *format = shown;
    else if (tr_text_ends(path, ".bin")) {
        if (s->bytes || strcmp(*format, "u16") == 0 || strcmp(*format, "u32") == 0) return TR_OK;
        return TR_FAIL(TR_ERR_CONFIG,
                       "'%s' does not show its format: name it with data.format=u16 or u32", path);
    } else if (s->tokenizer) *format = "text";
    else if (s->bytes) *format = "bytes";
    else
        return TR_FAIL(
            TR_ERR_CONFIG,
            "the text of '%s' needs a tokenizer, which the model does not have: name one "
            "with data.tokenizer=FILE",
            path);
    return TR_OK;
}

static tr_status open_choices(const char *path, tr_eval_session *s) {
    const tr_choices_options options = {.tokenizer = s->tokenizer,
                                        .bytes = s->bytes,
                                        .vocab = s->config.model.vocab,
                                        .context = s->context};
    enum { MULTIPLE = 64 }; /* lengths that suit the devices */
    if (s->bytes && tr_textfile_is_json_lines(path)) TR_TRY(tr_config_check_bytes(&s->config));
    TR_TRY(tr_choices_open(path, &options, &s->choices));
    const int64_t seq = (s->choices.longest + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
    return tr_sequences_of_choices(&s->choices, seq < s->context ? seq : s->context, &s->sequences);
}

/* Opens a text or tokens; the first of the files shows the format. */
static tr_status open_corpus(const tr_eval_request *r, tr_eval_session *s,
                             const tr_data_words *words, const char *first) {
    const tr_config *c = &s->config;
    tr_source_options options = {
        .vocab = c->model.vocab, .tokenizer = s->tokenizer, .documents = tr_config_packed(c)};
    TR_TRY(find_format(r, s, first, &options.format));
    if (strcmp(options.format, "bytes") == 0) TR_TRY(tr_config_check_bytes(c));
    TR_TRY(tr_corpus_open("--data", words, &options, &s->corpus));
    int32_t end = tr_config_document_end(c);
    if (tr_config_packed(c) && end < 0 && s->tokenizer)
        end = tr_tokenizer_document_end(s->tokenizer);
    return tr_sequences_of_corpus(s->corpus, s->context, tr_config_packed(c), end, &s->sequences);
}

static tr_status open_files(const tr_eval_request *r, tr_eval_session *s,
                            const tr_data_words *words, char **file, int count) {
    for (int i = 0; i < count; i++) {
        if (!tr_choices_is_file(file[i])) continue;
        if (count == 1) return open_choices(file[i], s);
        return TR_FAIL(TR_ERR_USAGE,
                       "'%s' has questions: --data takes one file of questions, and no other file "
                       "with it",
                       file[i]);
    }
    return open_corpus(r, s, words, file[0]);
}

/* Opens what --data names. */
static tr_status open_named(const tr_eval_request *r, tr_eval_session *s) {
    tr_data_paths paths;
    char **file = NULL;
    int count = 0;
    tr_status status = tr_data_paths_parse("--data", r->data, &paths);
    if (status == TR_OK && paths.part[0].weight > 0)
        status = TR_FAIL(TR_ERR_USAGE, "--data takes files without weights: evaluate the parts of "
                                       "a mixture one by one");
    if (status == TR_OK) status = tr_data_paths_expand("--data", &paths.part[0], &file, &count);
    if (status == TR_OK) status = open_files(r, s, &paths.part[0], file, count);
    tr_data_paths_free_files(file, count);
    tr_data_paths_free(&paths);
    return status;
}

/* Opens the data that the run was trained on. */
static tr_status open_held_out(const tr_eval_request *r, tr_eval_session *s) {
    tr_tokenizer *tokenizer;
    char note[TR_DATA_NOTE]; /* training has said it */
    if (tr_trained_is_folder(r->model.path) && tr_trained_sets(&r->model, "data.path"))
        return TR_FAIL(TR_ERR_USAGE,
                       "'%s' is a folder, which has no held-out part of data.path: name the file "
                       "with --data FILE",
                       r->model.path);
    if (tr_trained_is_folder(r->model.path) || !s->config.data.path[0])
        return TR_FAIL(TR_ERR_USAGE, "'%s' has no data of its own: name a file with --data FILE",
                       r->model.path);
    if (!tr_config_validates(&s->config))
        return TR_FAIL(TR_ERR_USAGE,
                       "the run '%s' has held out no data (data.validation is 0): name a file with "
                       "--data FILE",
                       r->model.path);
    TR_TRY(tr_calloc(1, sizeof *s->data_config, &s->data_config));
    tr_config *c = s->data_config;
    *c = s->config;
    c->model.context = s->context;
    (void)snprintf(c->log.dir, sizeof c->log.dir, "%s", r->model.path); /* it may have been moved */
    /* It came with the weights, and training on bytes did not use it. */
    if (s->tokenizer && !strcmp(c->data.format, "bytes")) {
        tr_tokenizer_close(s->tokenizer);
        s->tokenizer = NULL;
        s->bytes = true;
    }
    if (s->tokenizer && strlen(tr_tokenizer_path(s->tokenizer)) < sizeof c->data.tokenizer)
        (void)snprintf(c->data.tokenizer, sizeof c->data.tokenizer, "%s",
                       tr_tokenizer_path(s->tokenizer));
    TR_TRY(tr_config_check_data(c));
    const tr_status status = tr_train_open_data(c, note, &tokenizer, &s->data);
    if (s->tokenizer) tr_tokenizer_close(tokenizer);
    else s->tokenizer = tokenizer;
    return status;
}

tr_status tr_eval_session_read(const tr_eval_request *r, int ranks, tr_eval_session *s) {
    TR_TRY(read_config(r, ranks, s));
    TR_TRY(open_tokenizer(r, s));
    if (!r->data) return open_held_out(r, s);
    if (tr_trained_sets(&r->model, "data.format") && !strcmp(s->config.data.format, "instruct"))
        return TR_FAIL(TR_ERR_CONFIG,
                       "--data does not take data.format instruct: hold out conversations with "
                       "data.validation in training, and leave --data out");
    return open_named(r, s);
}

/* Lays the held-out windows where the run has them. Collective. */
static tr_status settle_held_out(const tr_eval_request *r, tr_eval_session *s) {
    char root[TR_CONFIG_PATH + 8];
    tr_ckpt_state *state = NULL;
    (void)snprintf(root, sizeof root, "%s/ckpt", r->model.path);
    tr_status status = tr_calloc(1, sizeof *state, &state);
    if (status == TR_OK) status = tr_ckpt_read_state(root, r->model.step, state);
    status = tr_world_agree(s->world, status);
    if (status == TR_OK)
        status = tr_same_data_settle(s->world, s->data_config, true, s->data, state, s->note);
    free(state);
    return status == TR_OK ? tr_sequences_of_data(s->data, s->context, &s->sequences) : status;
}

/* --- opening ---------------------------------------------------------------------------------- */

static tr_status open_device(tr_eval_session *s) {
    const tr_config *c = &s->config;
    TR_TRY(tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp,
                        tr_world_rank(s->world), tr_world_size(s->world), &s->mesh));
    s->mesh.near = tr_config_near(c);
    return tr_trained_device(c, s->world, &s->device, &s->on_cpu_instead);
}

/* Returns how many micro-batches are evaluated together: enough to fill the pipeline, if there are
 * as many sequences. */
static int64_t micro_batches(const tr_eval_session *s) {
    enum { A_STAGE = 4 };
    const tr_config *c = &s->config;
    const int64_t rows = c->parallel.dp * c->train.micro_batch;
    const int64_t wanted = (s->sequences.count + rows - 1) / rows;
    const int64_t most = c->parallel.pp > 1 ? A_STAGE * c->parallel.pp : 1;
    return wanted < most ? wanted : most;
}

static tr_status make_engine(tr_eval_session *s) {
    const tr_config *c = &s->config;
    const tr_schedule_request request = {.name = "forward",
                                         .ranks = (int)c->parallel.pp,
                                         .micro_batches = (int)micro_batches(s),
                                         .chunks = 1};
    tr_schedule *schedule;
    s->batch = request.micro_batches * c->parallel.dp * c->train.micro_batch;
    tr_engine_desc desc = {.world = s->world,
                           .device = s->device,
                           .mesh = s->mesh,
                           .model = c->model,
                           .batch = s->batch,
                           .micro_batch = c->train.micro_batch,
                           .dtype = tr_config_dtype(c),
                           .deterministic = true, /* the plans of the library's heuristic */
                           .documents = tr_config_packed(c),
                           .seq = s->sequences.seq,
                           .optimizer.no_master = true, /* parameters are only read */
                           .memory_is_free = c->device.memory == 0,
                           .forward_only = true};
    TR_TRY(tr_world_agree(
        s->world, tr_request_memory(c, s->device, tr_world_sharers(s->world), &desc.memory)));
    TR_TRY(tr_world_agree(s->world, tr_schedule_make(&request, &schedule)));
    desc.schedule = schedule;
    tr_status status = tr_engine_create(&desc, &s->engine);
    tr_schedule_destroy(schedule);
    return status;
}

tr_status tr_eval_session_open(const tr_eval_request *r, tr_world *world, tr_board *board,
                               tr_eval_session *s) {
    char note[192];
    s->world = world;
    s->board = board;
    if (s->data) TR_TRY(settle_held_out(r, s));
    TR_TRY(tr_world_agree(world, tr_trained_check(&r->model, &s->config)));
    TR_TRY(tr_world_agree(world, open_device(s)));
    TR_TRY(tr_world_choose_data_plane(world, s->device, tr_request_plane(&s->config), note,
                                      sizeof note));
    tr_world_set_own_sums(world, tr_request_own_sums(&s->config));
    TR_TRY(make_engine(s));
    tr_board_set_stop_word(board, tr_engine_stop_word(s->engine));
    tr_board_set_action(board, -1, -1, 'L');
    return tr_trained_load(&r->model, &s->config, world, &s->mesh, tr_engine_store(s->engine));
}

tr_status tr_eval_session_run(tr_eval_session *s, tr_sequence_loss **loss) {
    TR_TRY(tr_world_calloc(s->world, (size_t)s->sequences.count, sizeof **loss, loss));
    return tr_evaluate(s->engine, &s->sequences, s->batch, s->board, *loss);
}

void tr_eval_session_close(tr_eval_session *s) {
    tr_engine_destroy(s->engine);
    tr_sequences_free(&s->sequences);
    tr_choices_free(&s->choices);
    tr_corpus_close(s->corpus);
    tr_data_close(s->data);
    free(s->data_config);
    tr_tokenizer_close(s->tokenizer);
    if (s->device) tr_device_close(s->device);
}
