#include "train/saved_run.h"

#include "base/code8.h"
#include "base/memory.h"
#include "base/text.h"
#include "layers/tuning.h"
#include "train/lr.h"

#include <stdlib.h>
#include <string.h>

/* Keeps the horizon of the saved run's learning rate, unless this run sets one: more steps alone do
 * not move the curve. There is none to keep when the saved run set none and its schedule reads
 * none. goes_on: steps are left, which the horizon concerns. */
static void keep_horizon(tr_config *config, const tr_config *then, bool goes_on,
                         tr_saved_run *out) {
    const int64_t horizon = tr_config_horizon(then);
    const tr_lr before = tr_lr_of(then);
    if (then->optim.horizon == 0 && !tr_lr_has_horizon(&before)) return;
    if (config->optim.horizon != 0 || horizon == config->train.steps) return;
    config->optim.horizon = horizon;
    const tr_lr lr = tr_lr_of(config);
    out->kept_horizon = goes_on && tr_lr_has_horizon(&lr);
}

/* Returns the shape in which tensor rank 0 has the model. */
static tr_model_shape shape_of(const tr_config *config) {
    return (tr_model_shape){.batch = config->train.micro_batch,
                            .seq = config->model.context,
                            .dtype = tr_config_dtype(config),
                            .tp_size = (int)config->parallel.tp};
}

/* Sets *fewer and *more: the saved run froze parameters that are trained now, or the reverse. */
static tr_status compare_frozen(const tr_config *config, const tr_config *then, bool *fewer,
                                bool *more) {
    const tr_tuning *now = &config->model.tuning, *before = &then->model.tuning;
    const tr_model_shape shape = shape_of(config);
    tr_model *model;
    *fewer = *more = false;
    if (strcmp(now->freeze, before->freeze) == 0) return TR_OK;
    TR_TRY(tr_model_create(&config->model, &shape, &model));
    *fewer = tr_tuning_freezes_more(model, before, now);
    *more = tr_tuning_freezes_more(model, now, before);
    tr_model_destroy(model);
    return TR_OK;
}

/* Returns true when parameters that this run does not train, which have no masters in 16 bits, lose
 * bits. more: as of compare_frozen. */
static bool narrows_frozen(const tr_config *config, const tr_config *then, bool more) {
    const tr_dtype now = tr_config_dtype(config), before = tr_config_dtype(then);
    const bool freezes = config->model.tuning.freeze[0] || config->model.lora.rank > 0;
    if (!freezes || tr_dtype_size(now) > sizeof(uint16_t)) return false;
    return now != before || (more && !tr_optim_of(then).no_master);
}

/* Notes the types of saved moments and parameters if this run's have fewer bits. */
static void note_narrowed(const tr_config *config, const tr_config *then, tr_saved_run *out) {
    const tr_optim_config before = tr_optim_of(then), now = tr_optim_of(config);
    const bool continues = tr_optim_continues(now.kind, before.kind);
    if (continues && tr_dtype_size(now.moments) < tr_dtype_size(before.moments))
        (void)snprintf(out->narrowed, sizeof out->narrowed, "%s", then->optim.moments);
    out->unmastered = now.no_master && !before.no_master;
    out->rounded = tr_config_dtype(then) == TR_F64;
}

/* Notes a key that only chooses the parameters of a new run, if this run sets it and the saved one
 * had another value. */
static void note_unused(const tr_config *config, const tr_config *then, tr_saved_run *out) {
    if (strcmp(config->model.init, then->model.init) != 0) out->unused = "model.init";
    if (config->init_from[0] && strcmp(config->init_from, then->init_from) != 0)
        out->unused = "model.init_from";
}

/* A walk through the tensors of a model's parameters. */
typedef struct walk {
    const tr_model *model;
    int layer, param, tensor;
} walk;

/* Returns false after the last tensor. Otherwise sets *out to its place in a block of 8-bit
 * moments. */
static bool next_place(walk *w, int64_t *out) {
    for (; w->layer < w->model->count; w->layer++, w->param = 0) {
        const tr_layer *layer = w->model->layers[w->layer];
        for (; w->param < layer->params_count; w->param++, w->tensor = 0) {
            const tr_param *param = &layer->params[w->param];
            if (w->tensor == param->tensors) continue;
            const tr_global *tensor = &param->tensor[w->tensor++];
            *out = tensor->boxes ? tensor->box[0].local_offset % TR_CODE8_BLOCK : 0;
            return true;
        }
    }
    return false;
}

/* Returns true when some tensors begin at other places in blocks. */
static bool differ_in_blocks(const tr_model *a, const tr_model *b) {
    walk now = {.model = a}, before = {.model = b};
    for (int64_t x, y; next_place(&now, &x) && next_place(&before, &y);)
        if (x != y) return true;
    return false;
}

/* Sets *key to the one that puts 8-bit moments in other blocks than those of the saved run: blocks
 * begin with a rank's part of a parameter, which may be of several tensors. NULL: there is none. */
static tr_status compare_blocks(const tr_config *config, const tr_config *then, const char **key) {
    const tr_optim_config before = tr_optim_of(then), now = tr_optim_of(config);
    const tr_tuning *a = &config->model.tuning, *b = &then->model.tuning;
    const tr_model_shape shape = shape_of(config);
    const char *other = strcmp(a->freeze, b->freeze) != 0       ? "train.freeze"
                        : strcmp(a->lr_scale, b->lr_scale) != 0 ? "train.lr_scale"
                        : a->apart != b->apart                  ? "optim.name"
                                                                : NULL;
    tr_model *model = NULL, *saved = NULL;
    tr_status status = TR_OK;
    *key = NULL;
    if (now.moments != TR_U8 || before.moments != TR_U8 ||
        !tr_optim_continues(now.kind, before.kind))
        return TR_OK;
    if (config->parallel.tp != then->parallel.tp) *key = "parallel.tp";
    if (*key || !other) return TR_OK;
    TR_TRY_OUT(tr_model_create(&config->model, &shape, &model));
    TR_TRY_OUT(tr_model_create(&then->model, &shape, &saved));
    if (differ_in_blocks(model, saved)) *key = other;
out:
    tr_model_destroy(model);
    tr_model_destroy(saved);
    return status;
}

/* Compares with the config of the saved run, `then`. */
static tr_status compare(tr_ckpt_state *state, const char *root, const tr_config *then,
                         tr_config *config, tr_saved_run *out) {
    bool more;
    tr_config_keep(config, then);
    TR_TRY(tr_config_check_model(config, then, root));
    TR_TRY(compare_frozen(config, then, &out->unfrozen, &more));
    /* At step 0 there are imported weights, and no run that chose a schedule or optimizer. */
    if (state->step == 0) return TR_OK;
    keep_horizon(config, then, state->step < config->train.steps, out);
    note_narrowed(config, then, out);
    note_unused(config, then, out);
    TR_TRY(compare_blocks(config, then, &out->reblocked));
    out->narrowed_frozen = narrows_frozen(config, then, more);
    const tr_optim_kind kind = tr_optim_of(config).kind, before = tr_optim_of(then).kind;
    tr_optim_new_states(kind, before, out->new_states);
    if (tr_optim_restarts(kind, before)) state->moments_since = state->optimizer_step;
    return TR_OK;
}

tr_status tr_saved_run_check(tr_ckpt_state *state, const char *root, tr_config *config,
                             tr_saved_run *out) {
    tr_config *then;
    *out = (tr_saved_run){0};
    if (state->seed != (uint64_t)config->train.seed)
        return TR_FAIL(TR_ERR_CONFIG,
                       "train.seed is %lld, but the checkpoint was made with %llu: resume the run "
                       "with the seed of its start",
                       (long long)config->train.seed, (unsigned long long)state->seed);
    TR_TRY(tr_calloc(1, sizeof *then, &then));
    tr_status status = TR_OK;
    if (tr_config_parse(state->config, strlen(state->config), root, NULL, 0, then) == TR_OK) {
        status = compare(state, root, then, config, out);
    } else {
        (void)tr_text_fit(out->unread, sizeof out->unread, tr_error_message());
        tr_error_clear();
    }
    free(then);
    return status;
}

void tr_saved_run_say(const tr_saved_run *saved, const tr_config *config, tr_recorder *recorder) {
    const long long horizon = config->optim.horizon, steps = config->train.steps;
    const tr_lr lr = tr_lr_of(config);
    if (saved->unread[0])
        tr_recorder_warn(recorder,
                         "this version cannot read the checkpoint's config (%s), and compares only "
                         "train.seed and the tensors' shapes: check that all other keys of the "
                         "model are as they were",
                         saved->unread);
    if (saved->kept_horizon)
        tr_recorder_warn(recorder,
                         "the learning rate's schedule ends at step %lld, as in the run that is "
                         "continued (%g from there on); optim.horizon=%lld makes it end with the "
                         "run",
                         horizon, tr_lr_at(&lr, horizon), steps);
    if (saved->unused)
        tr_recorder_warn(recorder,
                         "%s is not that of the checkpoint, and chooses only the parameters of a "
                         "new run: this one continues with those of the checkpoint",
                         saved->unused);
    if (saved->new_states[0])
        tr_recorder_warn(recorder,
                         "the checkpoint does not have the state of optim.name %s (%s), which "
                         "begins at zero",
                         config->optim.name, saved->new_states);
    if (saved->narrowed[0])
        tr_recorder_warn(recorder,
                         "optim.moments is %s: the checkpoint's moments, which were kept in %s, "
                         "are rounded to it and lose bits",
                         config->optim.moments, saved->narrowed);
    if (saved->unmastered)
        tr_recorder_warn(recorder,
                         "optim.master is none: the checkpoint's parameters, which were kept in "
                         "fp32, are rounded to bf16 and lose bits");
    if (saved->rounded)
        tr_recorder_warn(recorder,
                         "the checkpoint is of a run with train.precision fp64: its parameters and "
                         "moments were rounded to fp32 when they were saved, and lost bits");
    if (saved->narrowed_frozen && !saved->unmastered)
        tr_recorder_warn(recorder,
                         "train.precision is %s: the checkpoint's parameters that are frozen now "
                         "are rounded to it and may lose bits",
                         config->train.precision);
    if (saved->reblocked)
        tr_recorder_warn(recorder,
                         "%s is not that of the checkpoint: the blocks of optim.moments int8 are "
                         "others, so small moments may lose bits",
                         saved->reblocked);
    if (saved->unfrozen)
        tr_recorder_warn(recorder,
                         "train.freeze is not that of the checkpoint: the moments of parameters "
                         "that were frozen and are trained now start at zero");
}
