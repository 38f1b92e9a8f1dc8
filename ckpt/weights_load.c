/* A model's tensors in files: the comparison, and the load. */
#include "base/json.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/text.h"
#include "ckpt/weights_impl.h"
#include "layers/lora_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int key_by_name(const void *key, const void *tensor) {
    return strcmp(key, ((const tr_weight *)tensor)->name);
}

static const tr_weight *find_exact(const tr_weights *w, const char *name) {
    if (!w->count) return NULL;
    return bsearch(name, w->tensor, (size_t)w->count, sizeof *w->tensor, key_by_name);
}

/* Returns the name without its first part, the model's; NULL when it has one part, or two, as
 * lm_head.weight. */
static const char *short_name(const char *name) {
    const char *dot = strchr(name, '.');
    return dot && strchr(dot + 1, '.') ? dot + 1 : NULL;
}

const tr_weight *tr_weights_find(const tr_weights *w, const char *name) {
    const tr_weight *t = find_exact(w, name);
    return t || !short_name(name) ? t : find_exact(w, short_name(name));
}

/* --- the comparison --------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end) && (n == m || name[n - m - 1] == '.');
}

/* Returns true for tensors that transformers saves, or once saved, although they follow from the
 * config. */
static bool is_ignored(const tr_model *model, const char *name) {
    return ends_with(name, "attn.bias") || ends_with(name, "attn.masked_bias") ||
           ends_with(name, "rotary_emb.inv_freq") ||
           (model->config.tie == TR_YES && !strcmp(name, "lm_head.weight"));
}

/* Prints a shape as (2, 3). Returns text. */
static const char *shape_text(int rank, const int64_t *shape, char *text, size_t size) {
    (void)snprintf(text, size, "(");
    for (int d = 0; d < rank; d++) tr_text_add(text, size, "%s%" PRId64, d ? ", " : "", shape[d]);
    tr_text_add(text, size, ")");
    return text;
}

static tr_status check_tensor(const tr_weights *w, const tr_weight *t, const tr_global *global,
                              const char *where) {
    char have[128], want[128];
    const bool positions = ends_with(global->name, "wpe.weight");
    if (!t)
        return TR_FAIL(TR_ERR_DATA, "%s holds no tensor %s, which its config asks for: %s", where,
                       global->name,
                       strcmp(global->name, "lm_head.weight")
                           ? "files are missing, or the config belongs to another model"
                           : "if the model has none, set \"tie_word_embeddings\" to true");
    const char *file = w->file[t->file].path;
    if (t->type == TR_WEIGHT_OTHER)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: the tensor %s is of type %s, and Trireme reads F32, BF16 and F16: load "
                       "the model with transformers in one of these, and save it with "
                       "save_pretrained",
                       file, global->name, t->dtype);
    bool same = t->rank == global->rank;
    for (int d = 0; d < global->rank && same; d++)
        same = t->shape[d] == global->shape[d] ||
               (positions && d == 0 && t->shape[d] > global->shape[d]);
    if (same) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "%s: the tensor %s is %s in the file, and %s by its config: the config belongs "
                   "to another model",
                   file, global->name, shape_text(t->rank, t->shape, have, sizeof have),
                   shape_text(global->rank, global->shape, want, sizeof want));
}

/* Checks all tensors of the model, either its updates or the others; used[i] is set for each tensor
 * of the files that one needs. */
static tr_status check_needed(const tr_weights *w, const tr_model *model, bool updates,
                              const char *where, bool *used) {
    for (int l = 0; l < model->count; l++) {
        const tr_layer *layer = model->layers[l];
        for (int p = 0; p < layer->params_count; p++) {
            if (layer->params[p].use > 0) continue;
            for (int k = 0; k < layer->params[p].tensors; k++) {
                const tr_global *global = &layer->params[p].tensor[k];
                if (tr_lora_is_update(global->name) != updates) continue;
                const tr_weight *t = tr_weights_find(w, global->name);
                TR_TRY(check_tensor(w, t, global, where));
                used[t - w->tensor] = true;
            }
        }
    }
    return TR_OK;
}

/* Sets *same to whether two tensors have one shape and type and the same bytes. */
static tr_status compare_tensors(tr_weights *w, const tr_weight *a, const tr_weight *b,
                                 bool *same) {
    char *block;
    const size_t half = TR_CKPT_BLOCK / 2;
    *same = a->type == b->type && a->rank == b->rank && a->bytes == b->bytes &&
            !memcmp(a->shape, b->shape, sizeof a->shape);
    TR_TRY(tr_calloc(TR_CKPT_BLOCK, 1, &block));
    tr_status status = TR_OK;
    for (int64_t at = 0; at < a->bytes && *same && status == TR_OK; at += (int64_t)half) {
        const size_t n = tr_min_size(half, (size_t)(a->bytes - at));
        status = tr_weights_read_bytes(w, a->file, block, n, a->offset + at);
        if (status == TR_OK)
            status = tr_weights_read_bytes(w, b->file, block + half, n, b->offset + at);
        *same = !memcmp(block, block + half, n);
    }
    free(block);
    return status;
}

/* Fails when a head that the config ties is stored, and is not the embedding: transformers 4
 * ignores it, transformers 5 uses it. */
static tr_status check_tied(tr_weights *w, const tr_model *model, const char *where) {
    const tr_weight *head = find_exact(w, "lm_head.weight");
    const tr_weight *embedding = tr_weights_find(w, "model.embed_tokens.weight");
    bool same = true;
    if (!embedding) embedding = tr_weights_find(w, "transformer.wte.weight");
    if (model->config.tie != TR_YES || !head || !embedding) return TR_OK;
    TR_TRY(compare_tensors(w, head, embedding, &same));
    if (same) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "%s: the tensor lm_head.weight differs from %s, but the config ties them: set "
                   "\"tie_word_embeddings\" to false in config.json, or remove the tensor",
                   where, embedding->name);
}

/* Fails for tensors that only quantized models have. */
static tr_status check_quantized(const tr_weights *w, const char *where) {
    static const char *const part[] = {
        "qweight", "qzeros",           "weight_packed", "weight_scale",
        "SCB",     "weight_scale_inv", "weight.absmax", "weight.quant_map",
    };
    char quoted[120];
    for (int64_t i = 0; i < w->count; i++)
        for (size_t k = 0; k < sizeof part / sizeof *part; k++)
            if (ends_with(w->tensor[i].name, part[k]))
                return TR_FAIL(TR_ERR_DATA,
                               "%s holds the tensor %s, so its weights are quantized, which "
                               "Trireme does not read: take the model in BF16, or load it with "
                               "transformers, call dequantize(), and save it with save_pretrained",
                               where, tr_json_quote(w->tensor[i].name, quoted, sizeof quoted));
    return TR_OK;
}

static tr_status check(tr_weights *w, const tr_model *model, bool updates, const char *where) {
    bool *used;
    char quoted[120];
    TR_TRY(check_quantized(w, where));
    TR_TRY(tr_calloc((size_t)w->count, sizeof *used, &used));
    tr_status status = check_needed(w, model, updates, where, used);
    for (int64_t i = 0; i < w->count && status == TR_OK; i++)
        if (!used[i] && !is_ignored(model, w->tensor[i].name))
            status = TR_FAIL(TR_ERR_DATA,
                             "%s holds the tensor %s, which a %s of its config does not have: the "
                             "config belongs to another model, or asks for a part that Trireme "
                             "lacks",
                             where, tr_json_quote(w->tensor[i].name, quoted, sizeof quoted),
                             model->config.family);
    free(used);
    return status == TR_OK && !updates ? check_tied(w, model, where) : status;
}

tr_status tr_weights_check(tr_weights *w, const tr_model *model, const char *where) {
    return check(w, model, false, where);
}

tr_status tr_weights_check_updates(tr_weights *w, const tr_model *model, const char *where) {
    return check(w, model, true, where);
}

tr_status tr_weights_make_model(tr_weights *w, const tr_model_config *config, const char *where,
                                tr_model **out) {
    const tr_model_shape shape = {
        .batch = 1, .seq = config->context, .dtype = TR_F32, .tp_size = 1};
    *out = NULL;
    if (config->layers > w->count) /* every layer has tensors of its own */
        return TR_FAIL(TR_ERR_DATA,
                       "%s holds %" PRId64 " tensors, too few for the %" PRId64
                       " layers of its config: the config belongs to another model",
                       where, w->count, config->layers);
    TR_TRY(tr_model_create(config, &shape, out));
    return tr_weights_check(w, *out, where);
}

/* --- the load --------------------------------------------------------------------------------- */

/* Returns true for a weight that is an update, or is not one. */
static bool is_weight(const tr_ckpt_tensor *tensor, bool update) {
    return !strncmp(tensor->name, "weights/", 8) && tr_lora_is_update(tensor->name) == update;
}

static int64_t volume_of(const tr_ckpt_tensor *tensor, const tr_box *box) {
    const tr_box4 b = tr_box4_make(tensor->rank, box->offset, box->extent);
    return tr_box4_volume(&b);
}

typedef struct loader {
    tr_world *world;
    tr_weights *weights;
    float *block;
    int64_t done, wanted; /* elements */
} loader;

/* Reads a box block by block; tensor: with its memory visible to the host. */
static tr_status load_box(loader *l, const tr_ckpt_tensor *tensor, const tr_box *box) {
    const int64_t most = TR_CKPT_BLOCK / (int64_t)sizeof *l->block, all = volume_of(tensor, box);
    const tr_box4 part = tr_box4_make(tensor->rank, box->offset, box->extent);
    const tr_weight *t = tr_weights_find(l->weights, tensor->name + strlen("weights/"));
    if (!t || t->rank != tensor->rank)
        return TR_FAIL(TR_ERR_INTERNAL, "the weights of %s were not checked", tensor->name);
    for (int64_t first = 0; first < all; first += most) {
        const int64_t n = tr_min_i64(most, all - first);
        TR_TRY(tr_weights_read(l->weights, t, box, first, n, l->block));
        (void)tr_box4_copy(&part, first, n, l->block, tensor, box, false);
        l->done += n;
        tr_world_tell_work(l->world, l->done, l->wanted);
    }
    return TR_OK;
}

static tr_status load(tr_world *world, tr_weights *weights, bool updates, tr_ckpt_tensor *tensors,
                      int count) {
    loader l = {.world = world, .weights = weights};
    tr_mirror mirror = {0};
    tr_status status;
    TR_TRY_OUT(tr_calloc(TR_CKPT_BLOCK, 1, &l.block));
    TR_TRY_OUT(tr_mirror_open(tensors, count, TR_MIRROR_FILL, &mirror));
    for (int i = 0; i < count; i++)
        for (int b = 0; b < tensors[i].boxes && is_weight(&tensors[i], updates); b++)
            l.wanted += volume_of(&tensors[i], &tensors[i].box[b]);
    for (int i = 0; i < count; i++) {
        if (!is_weight(&tensors[i], updates)) continue;
        TR_TRY_OUT(tr_mirror_turn(&mirror, &tensors[i]));
        for (int b = 0; b < tensors[i].boxes; b++)
            TR_TRY_OUT(load_box(&l, &mirror.view, &tensors[i].box[b]));
    }
    status = tr_mirror_turn(&mirror, NULL);
out:
    tr_mirror_close(&mirror);
    free(l.block);
    return status;
}

tr_status tr_weights_load(tr_world *world, tr_weights *weights, tr_ckpt_tensor *tensors,
                          int count) {
    return load(world, weights, false, tensors, count);
}

tr_status tr_weights_load_updates(tr_world *world, tr_weights *weights, tr_ckpt_tensor *tensors,
                                  int count) {
    return load(world, weights, true, tensors, count);
}
