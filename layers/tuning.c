#include "layers/tuning.h"

#include "base/digits.h"
#include "base/text.h"
#include "layers/lora_config.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NEAREST = 3 };

/* --- the keys' words -------------------------------------------------------------------------- */

/* Copies the next word of *text to `word`, of the text's size, and moves *text behind it. Returns
 * false after the last one. */
static bool next_word(const char **text, char *word) {
    static const char spaces[] = " \t\r\n";
    const char *begin = *text + strspn(*text, spaces);
    const size_t length = strcspn(begin, spaces);
    memcpy(word, begin, length);
    word[length] = '\0';
    *text = begin + length;
    return length > 0;
}

static bool matches(const char *pattern, const char *name) {
    return fnmatch(pattern, name, 0) == 0;
}

static bool is_frozen(const tr_tuning *tuning, const char *name) {
    char word[TR_TUNING_TEXT];
    if (tuning->only_updates && !tr_lora_is_update(name)) return true;
    for (const char *text = tuning->freeze; next_word(&text, word);)
        if (matches(word, name)) return true;
    return false;
}

/* Returns the scale of the first pattern that matches, or 1. */
static double lr_scale_of(const tr_tuning *tuning, const char *name) {
    char word[TR_TUNING_TEXT];
    double scale = 1;
    for (const char *text = tuning->lr_scale; next_word(&text, word);)
        if (!tr_number_is(word, &scale) && matches(word, name)) return scale;
    return 1;
}

/* --- parameters ------------------------------------------------------------------------------- */

bool tr_tuning_alike(const tr_tuning *t, const char *a, const char *b) {
    if (t && t->apart) return false;
    if (!t || tr_tuning_is_plain(t)) return true;
    const bool frozen = is_frozen(t, a);
    return frozen == is_frozen(t, b) && (frozen || lr_scale_of(t, a) == lr_scale_of(t, b));
}

tr_status tr_tuning_apply(const tr_tuning *t, tr_param *param) {
    if (!t || tr_tuning_is_plain(t)) return TR_OK;
    const char *name = tr_param_name(param);
    for (int k = 1; k < param->tensors; k++)
        if (!tr_tuning_alike(t, name, param->tensor[k].name))
            return TR_FAIL(TR_ERR_INTERNAL,
                           "%s and %s are in one parameter, but train.freeze or train.lr_scale "
                           "tells them apart",
                           name, param->tensor[k].name);
    param->frozen = is_frozen(t, name);
    param->has_grad = !param->frozen;
    param->lr_scale = param->frozen ? 1 : lr_scale_of(t, name);
    return TR_OK;
}

static bool is_trained(const tr_layer *layer) {
    for (int j = 0; j < layer->params_count; j++)
        if (!layer->params[j].frozen) return true;
    return false;
}

void tr_tuning_skip_backward(tr_model *model) {
    for (int k = 0; k < model->count && !is_trained(model->layers[k]); k++) {
        model->layers[k]->no_backward = true;
        model->layers[k]->flops_i = model->layers[k]->flops_w = 0;
    }
}

bool tr_tuning_is_plain(const tr_tuning *t) {
    return !t->freeze[0] && !t->lr_scale[0] && !t->only_updates;
}

/* --- checks ----------------------------------------------------------------------------------- */

static tr_status check_scale(double scale, const char *word) {
    if (scale == 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "train.lr_scale is 0: name parameters that are not to change in "
                       "train.freeze instead");
    if (!(scale > 0 && scale <= 1e6))
        return TR_FAIL(TR_ERR_CONFIG, "train.lr_scale must be above 0 and at most 1e6, not %.40s",
                       word);
    return TR_OK;
}

tr_status tr_tuning_check(const tr_tuning *t) {
    char word[TR_TUNING_TEXT];
    int patterns = -1; /* behind the last scale; -1: there was no scale */
    for (const char *text = t->lr_scale; next_word(&text, word);) {
        double scale;
        if (!tr_number_is(word, &scale)) {
            if (patterns < 0) break;
            patterns++;
            continue;
        }
        if (patterns == 0) break;
        TR_TRY(check_scale(scale, word));
        patterns = 0;
    }
    if (!t->lr_scale[0] || patterns > 0) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "train.lr_scale must be a scale and its patterns, like '0.1 *.wte.weight', not "
                   "'%.80s'",
                   t->lr_scale);
}

/* Returns the edit distance of a pattern and the nearest text that it would match to `name`: a star
 * stands for any text. Both have at most TR_NAME_SIZE - 1 characters that count. */
static int distance(const char *pattern, const char *name) {
    int row[TR_NAME_SIZE], n = 0;
    for (; n + 1 < TR_NAME_SIZE && name[n]; n++) row[n] = n;
    row[n] = n;
    for (const char *p = pattern; *p; p++) {
        int diagonal = row[0];
        row[0] += *p != '*';
        for (int k = 1; k <= n; k++) {
            const int above = row[k], left = row[k - 1];
            int best = diagonal + (*p != name[k - 1] && *p != '?');
            if (*p == '*') best = above < left ? above : left;
            else if ((above < left ? above : left) + 1 < best)
                best = (above < left ? above : left) + 1;
            row[k] = best;
            diagonal = above;
        }
    }
    return row[n];
}

typedef struct near_name {
    const char *name;
    int distance;
} near_name;

/* Inserts a name into the list of the nearest ones, after those that are as near. */
static void add_near(near_name *list, int *count, const char *name, int d) {
    int at = *count;
    while (at > 0 && list[at - 1].distance > d) at--;
    if (at == MOST_NEAREST) return;
    if (*count < MOST_NEAREST) ++*count;
    memmove(&list[at + 1], &list[at], (size_t)(*count - 1 - at) * sizeof *list);
    list[at] = (near_name){name, d};
}

typedef tr_status (*visit_fn)(void *context, const tr_param *param, const tr_global *tensor);

/* Calls visit for every tensor of the model, of tied ones once. */
static tr_status visit_tensors(const tr_model *model, visit_fn visit, void *context) {
    for (int i = 0; i < model->count; i++)
        for (int j = 0; j < model->layers[i]->params_count; j++) {
            const tr_param *param = &model->layers[i]->params[j];
            for (int k = 0; k < param->tensors && param->use == 0; k++)
                TR_TRY(visit(context, param, &param->tensor[k]));
        }
    return TR_OK;
}

typedef struct search {
    const char *pattern;
    bool found;
    near_name near[MOST_NEAREST];
    int count;
} search;

static tr_status compare(void *context, const tr_param *param, const tr_global *tensor) {
    search *s = context;
    (void)param;
    s->found |= matches(s->pattern, tensor->name);
    if (!s->found) add_near(s->near, &s->count, tensor->name, distance(s->pattern, tensor->name));
    return TR_OK;
}

static tr_status check_pattern(const tr_model *model, const char *key, const char *pattern) {
    search s = {.pattern = pattern};
    char names[MOST_NEAREST * (TR_NAME_SIZE + 2)] = "";
    TR_TRY(visit_tensors(model, compare, &s));
    if (s.found) return TR_OK;
    for (int i = 0; i < s.count; i++)
        tr_text_add(names, sizeof names, "%s%s", i ? ", " : "", s.near[i].name);
    return TR_FAIL(TR_ERR_CONFIG,
                   "%s: '%.100s' matches no parameter of this model; the nearest names are %s", key,
                   pattern, names);
}

static tr_status any_trained(void *context, const tr_param *param, const tr_global *tensor) {
    (void)tensor;
    *(bool *)context |= !param->frozen;
    return TR_OK;
}

typedef struct comparison {
    const tr_tuning *tuning, *other;
    bool more;
} comparison;

static tr_status compare_frozen(void *context, const tr_param *param, const tr_global *tensor) {
    comparison *c = context;
    (void)param;
    c->more |= is_frozen(c->tuning, tensor->name) && !is_frozen(c->other, tensor->name);
    return TR_OK;
}

bool tr_tuning_freezes_more(const tr_model *model, const tr_tuning *tuning,
                            const tr_tuning *other) {
    comparison c = {.tuning = tuning, .other = other};
    (void)visit_tensors(model, compare_frozen, &c);
    return c.more;
}

tr_status tr_tuning_check_model(const tr_model *model) {
    const tr_tuning *t = &model->config.tuning;
    char word[TR_TUNING_TEXT];
    double scale;
    bool trained = false;
    if (tr_tuning_is_plain(t)) return TR_OK;
    for (const char *text = t->freeze; next_word(&text, word);)
        TR_TRY(check_pattern(model, "train.freeze", word));
    for (const char *text = t->lr_scale; next_word(&text, word);)
        if (!tr_number_is(word, &scale)) TR_TRY(check_pattern(model, "train.lr_scale", word));
    TR_TRY(visit_tensors(model, any_trained, &trained));
    if (trained) return TR_OK;
    return TR_FAIL(TR_ERR_CONFIG,
                   "train.freeze matches every parameter, so there is nothing to train: leave out "
                   "a pattern");
}
