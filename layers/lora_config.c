#include "layers/lora_config.h"

#include "base/nearest.h"
#include "base/text.h"
#include "layers/model_impl.h"

#include <stdio.h>
#include <string.h>

enum { MODULES = 7 };

/* A linear layer of a block. */
typedef struct module {
    const char *name; /* after the block's name; NULL: the model has none */
    int64_t in, out;
} module;

static const char separators[] = " ,\t\n";

double tr_lora_factor(const tr_lora_config *lora) {
    return lora->alpha > 0 ? lora->alpha / (double)lora->rank : 1;
}

/* Returns true when `target`[length] is text, or its end after a dot. */
static bool ends_with(const char *text, const char *target, size_t length) {
    const size_t all = strlen(text);
    if (length > all || memcmp(text + all - length, target, length) != 0) return false;
    return length == all || text[all - length - 1] == '.';
}

bool tr_lora_names(const tr_lora_config *lora, const char *layer, const char *name) {
    char whole[2 * TR_NAME_SIZE];
    (void)snprintf(whole, sizeof whole, "%s.%s", layer, name);
    const char *word = lora->targets;
    for (size_t n; word += strspn(word, separators), (n = strcspn(word, separators)) > 0; word += n)
        if ((n == strlen("all-linear") && !strncmp(word, "all-linear", n)) ||
            ends_with(whole, word, n))
            return true;
    return false;
}

/* --- checks ----------------------------------------------------------------------------------- */

/* Lists the linear layers of a block of a complete config. */
static void list_modules(const tr_family *f, const tr_model_config *c, module out[MODULES]) {
    const int64_t Q = c->heads * c->head_size, K = c->kv_heads * c->head_size;
    const bool gated = tr_model_activation(c->activation)->gated, fuses = tr_family_fuses(f, c);
    const module all[MODULES] = {{fuses ? f->qkv : f->q, c->width, fuses ? Q + 2 * K : Q},
                                 {fuses ? NULL : f->k, c->width, K},
                                 {fuses ? NULL : f->v, c->width, K},
                                 {f->attention_out, Q, c->width},
                                 {gated ? f->gate : NULL, c->width, c->mlp_width},
                                 {f->up, c->width, c->mlp_width},
                                 {f->down, c->mlp_width, c->width}};
    memcpy(out, all, sizeof all);
}

static const char *last_part(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* Lists the last parts of the modules' names, each once. Returns their number. */
static int list_names(const module list[MODULES], const char *names[MODULES]) {
    int count = 0;
    for (int i = 0; i < MODULES; i++) {
        const char *name = list[i].name ? last_part(list[i].name) : NULL;
        bool seen = !name;
        for (int k = 0; k < count && !seen; k++) seen = !strcmp(names[k], name);
        if (!seen) names[count++] = name;
    }
    return count;
}

void tr_lora_modules(const tr_model_config *c, char *text, size_t size) {
    const char *names[MODULES];
    module list[MODULES];
    char words[sizeof c->lora.targets], *rest = NULL;
    bool all = false;
    *text = '\0';
    (void)snprintf(words, sizeof words, "%s", c->lora.targets);
    for (char *word = strtok_r(words, separators, &rest); word;
         word = strtok_r(NULL, separators, &rest)) {
        all |= !strcmp(word, "all-linear");
        tr_text_add(text, size, "%s%s", *text ? " " : "", word);
    }
    if (!all) return;
    list_modules(tr_model_family(c->family), c, list);
    const int count = list_names(list, names);
    *text = '\0';
    for (int i = 0; i < count; i++) tr_text_add(text, size, "%s%s", i ? " " : "", names[i]);
}

/* Returns true when every word of `some` is one of `all`. */
static bool has_words(const char *all, const char *some) {
    char words[sizeof((tr_lora_config *)0)->targets + MODULES * TR_NAME_SIZE], *rest = NULL;
    bool has = true;
    (void)snprintf(words, sizeof words, "%s", some);
    for (char *word = strtok_r(words, " ", &rest); word && has; word = strtok_r(NULL, " ", &rest)) {
        const size_t length = strlen(word);
        const char *at = all;
        has = false;
        while (!has && (at = strstr(at, word)) != NULL) {
            has = (at == all || at[-1] == ' ') && (at[length] == ' ' || !at[length]);
            at += length;
        }
    }
    return has;
}

bool tr_lora_same_targets(const tr_model_config *a, const tr_model_config *b) {
    char of_a[sizeof a->lora.targets + MODULES * TR_NAME_SIZE], of_b[sizeof of_a];
    tr_lora_modules(a, of_a, sizeof of_a);
    tr_lora_modules(b, of_b, sizeof of_b);
    return has_words(of_a, of_b) && has_words(of_b, of_a);
}

bool tr_lora_is_update(const char *tensor) {
    return tr_text_ends(tensor, "." TR_LORA_A) || tr_text_ends(tensor, "." TR_LORA_B);
}

static tr_status unknown_target(const tr_family *f, const module list[MODULES], const char *word) {
    const char *names[MODULES];
    char known[256] = "";
    const int count = list_names(list, names);
    for (int i = 0; i < count; i++)
        tr_text_add(known, sizeof known, "%s%s", i ? ", " : "", names[i]);
    const char *last = last_part(word);
    return TR_FAIL(TR_ERR_CONFIG,
                   "model.lora.targets names '%.60s', but the linear layers of this model of "
                   "model.family %s are %s (or all-linear for all)%s",
                   word, f->name, known, tr_nearest_hint(last, strlen(last), names, count).text);
}

/* Checks that the word names a linear layer of a block. */
static tr_status check_word(const tr_model_config *c, const tr_family *f,
                            const module list[MODULES], const char *word) {
    tr_lora_config one = {.rank = 1};
    (void)snprintf(one.targets, sizeof one.targets, "%s", word);
    for (int64_t b = 0; b < c->layers; b++) {
        char block[TR_NAME_SIZE];
        (void)snprintf(block, sizeof block, "%s.%s.%lld", f->root, f->blocks, (long long)b);
        for (int i = 0; i < MODULES; i++)
            if (list[i].name && tr_lora_names(&one, block, list[i].name)) return TR_OK;
    }
    return unknown_target(f, list, word);
}

static tr_status check_rank(const tr_model_config *c, const tr_family *f,
                            const module list[MODULES]) {
    char block[TR_NAME_SIZE];
    (void)snprintf(block, sizeof block, "%s.%s.0", f->root, f->blocks);
    for (int i = 0; i < MODULES; i++) {
        const module *m = &list[i];
        const int64_t most = m->in < m->out ? m->in : m->out;
        if (!m->name || c->lora.rank <= most || !tr_lora_names(&c->lora, block, m->name)) continue;
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.lora.rank %lld is above %lld, the smaller side of %s (%lld inputs, "
                       "%lld outputs): a larger rank adds nothing",
                       (long long)c->lora.rank, (long long)most, m->name, (long long)m->in,
                       (long long)m->out);
    }
    return TR_OK;
}

tr_status tr_lora_check(const tr_model_config *config) {
    tr_model_config c = *config;
    TR_TRY(tr_model_complete(&c));
    if (c.lora.rank == 0 && c.lora.alpha > 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.lora.alpha is set, but model.lora.rank is not: set the rank, for "
                       "example to 8");
    if (c.lora.rank == 0 && c.lora.targets[0])
        return TR_FAIL(TR_ERR_CONFIG,
                       "model.lora.targets is set, but model.lora.rank is not: set the rank, for "
                       "example to 8");
    if (c.lora.rank == 0) return TR_OK;
    const tr_family *f = tr_model_family(c.family);
    char words[sizeof c.lora.targets], *rest = NULL;
    module list[MODULES];
    list_modules(f, &c, list);
    (void)snprintf(words, sizeof words, "%s", c.lora.targets);
    for (char *word = strtok_r(words, separators, &rest); word;
         word = strtok_r(NULL, separators, &rest))
        TR_TRY(check_word(&c, f, list, word));
    return check_rank(&c, f, list);
}
