/* Checks of keys against each other. */
#include "config/batches.h"
#include "config/config_impl.h"
#include "data/paths.h"
#include "layers/tuning.h"
#include "pipeline/orders/make.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* No schedule gains from more micro-batches, and planning their memory would take minutes. */
enum { MOST_MICRO_BATCHES = 16384 };

/* Returns the first key in the text that is set, else the first key in it, else "". */
static const char *key_named(const tr_config *c, const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_.0123456789";
    const char *first = "";
    for (size_t n; *text; text += n ? n : 1) {
        char word[64];
        n = strspn(text, letters);
        (void)snprintf(word, sizeof word, "%.*s", (int)n, text);
        int index = n ? tr_schema_find(word) : -1;
        if (index >= 0 && c->place[index].line) return tr_schema[index].name;
        if (index >= 0 && !*first) first = tr_schema[index].name;
    }
    return first;
}

/* Checks the model's sizes with the layers' own checks; the message begins with the place of the
 * key. */
static tr_status check_model(const tr_config *c) {
    const tr_model_shape shape = {.batch = c->train.micro_batch,
                                  .seq = c->model.context,
                                  .dtype = tr_config_dtype(c),
                                  .tp_size = (int)c->parallel.tp};
    tr_status status = tr_model_check(&c->model, &shape);
    if (status == TR_OK && !tr_tuning_is_plain(&c->model.tuning)) {
        tr_model *model; /* its names are compared with the patterns */
        status = tr_model_create(&c->model, &shape, &model);
        if (status == TR_OK) tr_model_destroy(model);
    }
    if (status != TR_ERR_CONFIG) return status;
    char why[1024];
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    REFUSE(key_named(c, why), "%s", why);
}

static tr_status check_stages(const tr_config *c) {
    int64_t virtual = c->parallel.virtual_stages > 1 ? c->parallel.virtual_stages : 1;
    if (c->parallel.pp * virtual > c->model.layers && !tr_config_cut(c))
        REFUSE(virtual > 1 ? "parallel.virtual" : "parallel.pp",
               "parallel.pp %" PRId64 " with parallel.virtual %" PRId64 " makes %" PRId64
               " stages, but model.layers is %" PRId64 ": every stage needs a layer",
               c->parallel.pp, virtual, c->parallel.pp * virtual, c->model.layers);
    return TR_OK;
}

static tr_status check_documents(const tr_config *c) {
    const bool bytes = strcmp(c->data.format, "bytes") == 0; /* other formats may know the end */
    if (bytes && tr_config_packed(c) && c->data.document_end < 0)
        REFUSE("data.documents",
               "data.documents packed needs data.document_end, the token that ends a document (10 "
               "for the end of a line in data.format bytes)");
    if (!strcmp(c->data.format, "instruct") && !tr_config_packed(c))
        REFUSE("data.documents",
               "data.documents windows would cut conversations: data.format instruct needs packed, "
               "its default");
    if (c->data.document_end >= c->model.vocab)
        REFUSE("data.document_end",
               "data.document_end %" PRId64 " is not a token: model.vocab %" PRId64
               " has tokens 0 to %" PRId64,
               c->data.document_end, c->model.vocab, c->model.vocab - 1);
    return TR_OK;
}

tr_status tr_config_check_bytes(const tr_config *c) {
    if (c->model.vocab < 256)
        REFUSE("model.vocab",
               "model.vocab %" PRId64
               " is too small: without a tokenizer (data.format bytes) there are 256 tokens",
               c->model.vocab);
    return TR_OK;
}

tr_status tr_config_check_data(const tr_config *c) {
    if (!c->data.path[0])
        return TR_FAIL(TR_ERR_CONFIG,
                       "%s: data.path is missing: name the file to learn from, like data.path: "
                       "corpus.txt",
                       c->source);
    if (!strcmp(c->data.format, "bytes")) TR_TRY(tr_config_check_bytes(c));
    if (!strcmp(c->data.format, "bytes") && c->data.document_end >= 256)
        REFUSE("data.document_end",
               "data.document_end %" PRId64
               " is not a token: data.format bytes has tokens 0 to 255",
               c->data.document_end);
    TR_TRY(check_documents(c));
    tr_data_paths paths;
    tr_status status = tr_data_paths_parse("data.path", c->data.path, &paths);
    tr_data_paths_free(&paths);
    if (status != TR_ERR_CONFIG) return status;
    char why[1024];
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    REFUSE("data.path", "%s", why);
}

tr_status tr_config_check_precision(const tr_config *c) {
    if (tr_config_dtype(c) != TR_F64 || !strcmp(c->device.name, "ref")) return TR_OK;
    if (!tr_config_is_set(c, "train.precision"))
        return TR_FAIL(TR_ERR_CONFIG,
                       "the checkpoint has train.precision fp64, which needs device.name ref: "
                       "continue it with device.name=ref, or with train.precision=fp32 on %s",
                       c->device.name);
    REFUSE("train.precision",
           "train.precision fp64 needs device.name ref: %s computes in fp32, bf16 and fp16; set "
           "device.name=ref, or train.precision=fp32",
           c->device.name);
}

/* An adapter's model is named next to the adapter. */
static tr_status check_base(const tr_config *c) {
    if (!c->lora_base[0] || c->init_from[0]) return TR_OK;
    REFUSE("model.lora.base",
           "model.lora.base is the model of the adapter that model.init_from names, but "
           "model.init_from is not set: set model.init_from to the model's folder, and leave "
           "model.lora.base out");
}

static tr_status check_recompute(const tr_config *c) {
    if (strcmp(c->model.recompute, TR_RECOMPUTE_AUTO) == 0 && c->device.memory == 0)
        REFUSE("train.recompute",
               "train.recompute auto chooses what fits device.memory: set device.memory to the "
               "memory that a rank may use, for example 16GiB");
    return TR_OK;
}

/* Checks the smaller batches of the first steps. unit: parallel.dp * train.micro_batch. */
static tr_status check_warmup(const tr_config *c, int64_t unit) {
    static const char key[] = "train.batch_warmup";
    tr_batch_size size[TR_CONFIG_BATCHES];
    const int smaller = tr_config_batches(c, size) - 1;
    if (smaller > 0 && tr_schedule_is_path(c->parallel.schedule))
        REFUSE(key,
               "train.batch_warmup needs an order for each batch, and a file as parallel.schedule "
               "has that of one batch: name a schedule, or leave train.batch_warmup out");
    for (int k = 0; k < smaller; k++) {
        const int64_t batch = size[k].batch, below = batch / unit * unit;
        if (batch >= c->train.batch)
            REFUSE(key,
                   "train.batch_warmup has a batch of %" PRId64
                   ", which is not below train.batch %" PRId64 ": lower it, or raise train.batch",
                   batch, c->train.batch);
        if (batch % unit && below == 0)
            REFUSE(key,
                   "train.batch_warmup: %" PRId64
                   " is not a multiple of parallel.dp * train.micro_batch = %" PRId64 " * %" PRId64
                   ": the smallest batch is %" PRId64,
                   batch, c->parallel.dp, c->train.micro_batch, unit);
        if (batch % unit)
            REFUSE(key,
                   "train.batch_warmup: %" PRId64
                   " is not a multiple of parallel.dp * train.micro_batch = %" PRId64 " * %" PRId64
                   ": the nearest multiples are %" PRId64 " and %" PRId64,
                   batch, c->parallel.dp, c->train.micro_batch, below, below + unit);
        if (c->log.noise_scale && batch == c->train.micro_batch)
            REFUSE(key,
                   "log.noise_scale compares a micro-batch with the whole batch, but "
                   "train.batch_warmup has a batch of one micro-batch, %" PRId64
                   ": leave that batch out, or lower train.micro_batch",
                   batch);
    }
    return TR_OK;
}

static tr_status check_batch(const tr_config *c) {
    int64_t unit = c->parallel.dp * c->train.micro_batch;
    int64_t up = (c->train.batch + unit - 1) / unit * unit;
    if (up != c->train.batch)
        REFUSE("train.batch",
               "train.batch %" PRId64
               " is not a multiple of parallel.dp * train.micro_batch = %" PRId64 " * %" PRId64
               ": the next multiple is %" PRId64,
               c->train.batch, c->parallel.dp, c->train.micro_batch, up);
    if (c->train.batch / unit > MOST_MICRO_BATCHES)
        REFUSE("train.batch",
               "train.batch %" PRId64 " is %" PRId64
               " micro-batches a step on each data rank, more than %d: raise train.micro_batch",
               c->train.batch, c->train.batch / unit, MOST_MICRO_BATCHES);
    TR_TRY(check_warmup(c, unit));
    if (c->log.noise_scale && c->train.batch == c->train.micro_batch)
        REFUSE("log.noise_scale",
               "log.noise_scale compares a micro-batch with the whole batch, but train.batch is "
               "one micro-batch: raise train.batch, or lower train.micro_batch");
    return TR_OK;
}

static tr_status check_reduce(const tr_config *c) {
    if (strcmp(c->parallel.reduce, "fp32") != 0 && !strcmp(c->train.precision, "fp64"))
        REFUSE("parallel.reduce",
               "train.precision fp64 sums gradients in fp64: leave parallel.reduce out, or set "
               "train.precision to fp32, bf16 or fp16");
    return TR_OK;
}

static tr_status check_transport(const tr_config *c) {
    const bool alone = c->parallel.pp * c->parallel.tp * c->parallel.dp == 1;
    if (!strcmp(c->parallel.transport, "nccl") && tr_config_on_host(c) && !alone)
        REFUSE("parallel.transport",
               "parallel.transport nccl connects GPUs, but device.name %s is not a GPU: leave "
               "parallel.transport out",
               c->device.name);
    return TR_OK;
}

/* Compares the degrees with the number of ranks that were started. */
static tr_status check_ranks(const tr_config *c, int started) {
    const int64_t model = c->parallel.pp * c->parallel.tp, ranks = model * c->parallel.dp;
    char change[48] = "change the degrees";
    if (ranks == started) return TR_OK;
    if (started % model == 0)
        (void)snprintf(change, sizeof change, "set parallel.dp=%" PRId64, started / model);
    REFUSE("parallel.pp",
           "parallel.pp * tp * dp = %" PRId64 " * %" PRId64 " * %" PRId64 " needs %" PRId64
           " rank%s, but %d %s started: use `trireme run -n %" PRId64 " train ...`, or %s",
           c->parallel.pp, c->parallel.tp, c->parallel.dp, ranks, ranks == 1 ? "" : "s", started,
           started == 1 ? "was" : "were", ranks, change);
}

static tr_status check_kept(const tr_config *c) {
    const int64_t every = c->checkpoint.every, kept = c->checkpoint.keep_every;
    if (c->checkpoint.background && every == 0)
        REFUSE(
            "checkpoint.background",
            "checkpoint.background lets training go on while it saves, but with checkpoint.every "
            "0 only the end of a run is saved: set checkpoint.every, or leave "
            "checkpoint.background out");
    if (kept > 0 && (every == 0 || kept % every != 0))
        REFUSE("checkpoint.keep_every",
               "checkpoint.keep_every %" PRId64
               " must be a multiple of checkpoint.every, which is %" PRId64
               ": set checkpoint.every to a divisor of it, because only saved steps can stay",
               kept, every);
    return TR_OK;
}

static tr_status check_guard(const tr_config *c) {
    if (!strcmp(c->guard.action, "rollback") && c->guard.sigma == 0)
        REFUSE("guard.action",
               "guard.action rollback needs guard.sigma above 0, from which a step is out of line: "
               "set it (for example 6), or leave guard.action out");
    return TR_OK;
}

tr_status tr_config_check(const tr_config *c, int world_size) {
    TR_TRY(check_base(c));
    TR_TRY(check_model(c));
    TR_TRY(check_documents(c));
    TR_TRY(tr_config_check_precision(c));
    TR_TRY(check_stages(c));
    TR_TRY(tr_config_check_cut(c));
    TR_TRY(check_batch(c));
    TR_TRY(check_recompute(c));
    TR_TRY(tr_config_check_optim(c));
    TR_TRY(check_reduce(c));
    TR_TRY(check_transport(c));
    TR_TRY(check_kept(c));
    TR_TRY(check_guard(c));
    TR_TRY(tr_config_check_offload(c));
    return world_size > 0 ? check_ranks(c, world_size) : TR_OK;
}
