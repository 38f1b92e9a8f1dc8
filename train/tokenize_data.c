#include "train/tokenize_data.h"

#include "base/cores.h"
#include "base/memory.h"
#include "base/thread.h"
#include "data/kept_tokens.h"
#include "train/data_options.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct work {
    const tr_config *config;
    tr_board *board;
    tr_cores cores; /* of all ranks of this host */
    tr_status status;
    tr_error error;
} work;

/* A rank's cores, and its host. */
typedef struct share {
    tr_cores cores;
    char host[256];
} share;

/* Shows the bytes read. Returns false after a request to stop. */
static bool show(void *context, int64_t bytes, int64_t all_bytes) {
    tr_board_set_work(context, bytes, all_bytes);
    return !tr_board_stop_requested(context);
}

static tr_status tokenize(work *w) {
    const tr_config *c = w->config;
    const char *validation;
    char folder[TR_CONFIG_PATH + 16];
    char note[TR_DATA_NOTE];
    tr_tokenizer *tokenizer;
    TR_TRY(tr_train_find_tokenizer(c, note, &tokenizer));
    if (!tokenizer) return TR_OK; /* opening the data says so */
    const int32_t end = tr_config_document_end(c);
    const tr_kept_tokens_options options = {
        .source = {.format = c->data.format,
                   .vocab = c->model.vocab,
                   .tokenizer = tokenizer,
                   .tokens = tr_train_tokens_folder(c, folder, sizeof folder),
                   .documents = tr_config_packed(c),
                   .context = c->model.context,
                   .document_end = end < 0 ? tr_tokenizer_document_end(tokenizer) : end,
                   .progress = show,
                   .progress_context = w->board},
        .threads = tr_cores_count()};
    (void)tr_config_validation(c, &validation);
    tr_status status = tr_kept_tokens_make(&options, "data.path", c->data.path);
    if (status == TR_OK && validation)
        status = tr_kept_tokens_make(&options, "data.validation", validation);
    tr_tokenizer_close(tokenizer);
    return status;
}

/* A thread of its own: it uses the cores of ranks that wait, and what it starts must not use them
 * later. */
static void *run(void *context) {
    work *w = context;
    if (w->cores.count > 0) tr_cores_keep_to(&w->cores);
    w->status = tokenize(w);
    if (w->status != TR_OK) tr_error_save(&w->error);
    return NULL;
}

/* Fills *out with the cores of all ranks that run on rank 0's host. Collective. */
static tr_status gather_cores(tr_world *world, tr_cores *out) {
    const size_t ranks = (size_t)tr_world_size(world);
    share *mine = NULL, *all = NULL;
    bool used[TR_CORES_MAX] = {false};
    tr_status status = tr_calloc(1, sizeof *mine, &mine);
    if (status == TR_OK) status = tr_calloc(ranks, sizeof *all, &all);
    TR_TRY_OUT(tr_world_agree(world, status));
    tr_cores_usable(&mine->cores);
    (void)gethostname(mine->host, sizeof mine->host - 1);
    TR_TRY_OUT(tr_world_gather_all(world, mine, all, sizeof *mine));
    *out = (tr_cores){0};
    for (size_t r = 0; r < ranks; r++)
        for (int i = 0; i < all[r].cores.count && strcmp(all[r].host, all[0].host) == 0; i++) {
            const int cpu = all[r].cores.cpu[i];
            if (!used[cpu]) out->cpu[out->count++] = cpu;
            used[cpu] = true;
        }
out:
    free(mine);
    free(all);
    return status;
}

tr_status tr_train_tokenize_data(tr_world *world, const tr_config *config, tr_board *board) {
    if (strcmp(config->data.format, "text") && strcmp(config->data.format, "instruct"))
        return TR_OK;
    work *w;
    tr_status status = TR_OK;
    TR_TRY(tr_world_calloc(world, 1, sizeof *w, &w));
    w->config = config;
    w->board = board;
    TR_TRY_OUT(gather_cores(world, &w->cores));
    if (tr_world_rank(world) == 0) {
        pthread_t thread;
        status = tr_thread_start(&thread, run, w, "tokens");
        if (status == TR_OK) {
            (void)pthread_join(thread, NULL);
            if (w->status != TR_OK) tr_error_restore(&w->error);
            status = w->status;
        }
    }
    status = tr_world_agree(world, status);
out:
    free(w);
    return status;
}
