/* The keys of the optimizer and its schedule: defaults and checks. */
#include "config/config_impl.h"
#include "config/points.h"

#include <inttypes.h>
#include <string.h>

/* Defaults that differ from the schema's. */
static const struct {
    const char *optimizer, *key, *value;
} usual[] = {{"adam", "optim.weight_decay", "0"},
             {"sgd", "optim.weight_decay", "0"},
             {"lion", "optim.beta2", "0.99"},
             {"lamb", "optim.weight_decay", "0.01"}, /* as in You et al. 2020 */
             {"lamb", "optim.beta2", "0.999"},
             {"lamb", "optim.eps", "1e-06"},
             {"adafactor", "optim.weight_decay", "0"},
             {"adafactor", "optim.lr", "0.01"},  /* as in Shazeer & Stern 2018 */
             {"muon", "optim.momentum", "0.95"}, /* as in Jordan et al. 2024 */
             {"muon", "optim.nesterov", "true"}};

tr_status tr_config_take_optimizer(tr_config *c) {
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (strcmp(c->optim.name, usual[i].optimizer) || tr_config_is_set(c, usual[i].key))
            continue;
        TR_TRY(tr_key_set(&tr_schema[tr_schema_find(usual[i].key)], usual[i].value, c));
    }
    c->model.tuning.apart = !strcmp(c->optim.name, "lamb") || !strcmp(c->optim.name, "muon") ||
                            !strcmp(c->optim.name, "adafactor");
    return TR_OK;
}

int64_t tr_config_horizon(const tr_config *c) {
    return c->optim.horizon ? c->optim.horizon : c->train.steps;
}

/* Keys that only some values of the key `choice` read. */
static const struct {
    const char *choice, *key, *readers;
} own[] = {{"optim.name", "optim.momentum", "sgd muon"},
           {"optim.name", "optim.nesterov", "sgd muon"},
           {"optim.name", "optim.beta1", "adamw adam lion lamb muon"},
           {"optim.name", "optim.beta2", "adamw adam lion lamb muon"},
           {"optim.name", "optim.eps", "adamw adam lamb muon"},
           {"optim.schedule", "optim.min_lr", "linear cosine inverse-root steps wsd cycles"},
           {"optim.schedule", "optim.milestones", "steps"},
           {"optim.schedule", "optim.milestone_factor", "steps"},
           {"optim.schedule", "optim.decay", "wsd"},
           {"optim.schedule", "optim.cycle", "cycles"}};

static bool is_word_of(const char *text, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

/* Returns true when the key has another value than without being set. */
static bool is_changed(const tr_config *c, const tr_key *key) {
    const char *fallback = key->fallback ? key->fallback : "";
    tr_config usually = *c;
    return tr_config_is_set(c, key->name) && tr_key_set(key, fallback, &usually) == TR_OK &&
           !tr_config_same_value(key, c, &usually);
}

/* Refuses keys that have no effect with this optim.name or optim.schedule. Defaults do not count:
 * the recorded config of a run has every key. */
static tr_status check_own_keys(const tr_config *c) {
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        const tr_key *key = &tr_schema[tr_schema_find(own[i].key)];
        const bool of_name = !strcmp(own[i].choice, "optim.name");
        const char *chosen = of_name ? c->optim.name : c->optim.schedule;
        if (is_word_of(own[i].readers, chosen) || !is_changed(c, key)) continue;
        REFUSE(own[i].key, "%s %s does not read %s: leave %s out, or set %s to %s%s", own[i].choice,
               chosen, own[i].key, own[i].key, own[i].choice,
               strchr(own[i].readers, ' ') ? "one of: " : "", own[i].readers);
    }
    return TR_OK;
}

static tr_status check_moments(const tr_config *c) {
    const bool sgd = !strcmp(c->optim.name, "sgd") && c->optim.momentum == 0;
    if (!strcmp(c->optim.moments, "fp32")) return TR_OK;
    if (sgd || !strcmp(c->optim.name, "adafactor"))
        REFUSE("optim.moments",
               "optim.name %s%s has no moments of every element that optim.moments %s could make "
               "smaller: leave optim.moments out",
               c->optim.name, sgd ? " without optim.momentum" : "", c->optim.moments);
    if (!strcmp(c->train.precision, "fp64"))
        REFUSE("optim.moments",
               "train.precision fp64 keeps moments in fp64: leave optim.moments out, or set "
               "train.precision to fp32, bf16 or fp16");
    return TR_OK;
}

static tr_status check_master(const tr_config *c) {
    if (strcmp(c->optim.master, "fp32") != 0 && strcmp(c->train.precision, "bf16") != 0)
        REFUSE("optim.master",
               "optim.master none works with train.precision bf16, not %s: leave optim.master out, "
               "or set train.precision to bf16",
               c->train.precision);
    return TR_OK;
}

static tr_status check_gradients(const tr_config *c) {
    if (strcmp(c->optim.gradients, "fp32") != 0 && !strcmp(c->train.precision, "fp64"))
        REFUSE("optim.gradients",
               "train.precision fp64 keeps gradients in fp64: leave optim.gradients out, or set "
               "train.precision to fp32, bf16 or fp16");
    return TR_OK;
}

tr_status tr_config_check_optim(const tr_config *c) {
    int64_t point[TR_CONFIG_POINTS];
    const int restarts = tr_config_points(c->optim.restarts, point);
    const bool set = c->optim.horizon != 0 && tr_config_is_set(c, "optim.horizon");
    if (restarts > 0 && point[restarts - 1] >= tr_config_horizon(c))
        REFUSE("optim.restarts",
               "optim.restarts has step %" PRId64 ", but the schedule ends at step %" PRId64
               " (optim.horizon%s): raise optim.horizon, or leave that step out",
               point[restarts - 1], tr_config_horizon(c),
               set                ? ""
               : c->optim.horizon ? ", which is that of the run that is continued unless it is set"
                                  : ", which is train.steps unless it is set");
    TR_TRY(check_own_keys(c));
    TR_TRY(check_moments(c));
    TR_TRY(check_master(c));
    TR_TRY(check_gradients(c));
    if (c->optim.nesterov && c->optim.momentum == 0 && !tr_config_is_set(c, "optim.nesterov"))
        REFUSE("optim.momentum",
               "optim.name %s has optim.nesterov true, which needs optim.momentum above 0: raise "
               "optim.momentum, or set optim.nesterov to false",
               c->optim.name);
    if (c->optim.nesterov && c->optim.momentum == 0)
        REFUSE("optim.nesterov",
               "optim.nesterov needs optim.momentum above 0: set it, or leave optim.nesterov out");
    if (c->optim.min_lr > c->optim.lr)
        REFUSE("optim.min_lr", "optim.min_lr %g is above optim.lr %g", c->optim.min_lr,
               c->optim.lr);
    return TR_OK;
}
