/* Tests low-rank updates on the device ref: a model with updates computes what the model with
 * merged weights does; an update of full rank gives any other weights; targets that fit no model.
 * Gradients, tensor ranks and decoding of models with updates are in test_families.c. */
#include "layers/lora_merge.h"
#include "support/model_team.h"

#define LLAMA                                                                                      \
    .family = "llama", .layers = 1, .width = 16, .heads = 4, .kv_heads = 1, .context = 7,          \
    .vocab = 11
#define QWEN2                                                                                      \
    .family = "qwen2", .layers = 1, .width = 16, .heads = 4, .kv_heads = 2, .mlp_width = 13,       \
    .context = 7, .vocab = 11, .dropout = 0.2f, .activation = "relu2"
#define GPT2 .family = "gpt2", .layers = 1, .width = 16, .heads = 4, .context = 7, .vocab = 11

static const struct {
    tr_model_config config;
    int64_t full; /* the rank of the smallest target */
    int updates;
} cases[] = {
    {{LLAMA, .lora = {.rank = 3, .alpha = 6, .targets = "all-linear"}}, 4, 7},
    {{QWEN2, .lora = {.rank = 4, .alpha = 2, .targets = "v_proj self_attn.q_proj down_proj"}},
     8,
     3},
    {{GPT2, .lora = {.rank = 2, .alpha = 3, .targets = "c_attn c_fc mlp.c_proj"}}, 16, 3},
};
enum { LLAMA_CASE, QWEN2_CASE, GPT2_CASE, CASES };

typedef struct pair {
    rig updated, plain; /* with updates and without */
    tr_world *world[2];
} pair;

static void pair_open(const tr_model_config *config, pair *p) {
    tr_model_config plain = *config;
    plain.lora = (tr_lora_config){0};
    RIG_TRY(tr_world_open_local(1, &p->world[0]));
    RIG_TRY(tr_world_open_local(1, &p->world[1]));
    rig_open(&p->updated, "ref", p->world[0], config, TR_F32, BATCH, SEQ, false);
    rig_open(&p->plain, "ref", p->world[1], &plain, TR_F32, BATCH, SEQ, false);
    rig_fill_named(&p->updated);
    rig_fill_named(&p->plain);
    p->updated.state->train = p->plain.state->train = 0; /* no dropout */
}

static void pair_close(pair *p) {
    rig_close(&p->updated);
    rig_close(&p->plain);
    tr_world_close(p->world[0]);
    tr_world_close(p->world[1]);
}

static tr_param *find_param(rig *r, const char *name, int *tensor) {
    for (int p = 0; p < r->model->params_count; p++) {
        tr_param *param = rig_param(r->model, p);
        for (int k = 0; k < param->tensors && param->use == 0; k++)
            if (!strcmp(param->tensor[k].name, name)) {
                *tensor = k;
                return param;
            }
    }
    return NULL;
}

/* Returns a matrix's elements, transposed if asked; the caller frees them. */
static float *elements_of(rig *r, const char *name, bool transposed) {
    int k;
    tr_param *param = find_param(r, name, &k);
    const tr_global *g = &param->tensor[k];
    const int64_t rows = g->shape[0], columns = g->shape[1];
    float *all = malloc((size_t)(rows * columns) * sizeof *all);
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t to = transposed ? i % columns * rows + i / columns : i;
        all[to] = rig_get(param, r->model->shape.dtype, g->box[0].local_offset + i);
    }
    return all;
}

/* Adds the update of every weight of `updated` that has one to the same weight of `merged`. Returns
 * how many there were. */
static int merge_updates(rig *updated, rig *merged, const tr_model_config *config) {
    const bool conv1d = !strcmp(config->family, "gpt2");
    int count = 0;
    for (int p = 0; p < merged->model->params_count; p++) {
        tr_param *param = rig_param(merged->model, p);
        for (int k = 0; k < param->tensors; k++) {
            const tr_global *g = &param->tensor[k];
            char a[2 * TR_NAME_SIZE], b[2 * TR_NAME_SIZE];
            int at;
            const int stem = (int)(strlen(g->name) - strlen("weight"));
            (void)snprintf(a, sizeof a, "%.*slora_A.weight", stem, g->name);
            (void)snprintf(b, sizeof b, "%.*slora_B.weight", stem, g->name);
            if (!find_param(updated, a, &at)) continue;
            float *left = elements_of(updated, conv1d ? a : b, conv1d);
            float *right = elements_of(updated, conv1d ? b : a, conv1d);
            float *sums = elements_of(merged, g->name, false);
            const tr_low_rank update = {.left = left,
                                        .right = right,
                                        .rank = config->lora.rank,
                                        .columns = g->shape[1],
                                        .factor = config->lora.alpha / (double)config->lora.rank};
            const int64_t all = tr_global_count(g), half = all / 2;
            tr_low_rank_add(&update, 0, half, sums);
            tr_low_rank_add(&update, half, all - half, sums + half);
            for (int64_t i = 0; i < all; i++)
                rig_set(param, merged->model->shape.dtype, g->box[0].local_offset + i, sums[i]);
            free(left);
            free(right);
            free(sums);
            count++;
        }
    }
    return count;
}

/* Fails unless both models give every next token after every position the same probability. */
static void same_forward(pair *p, const char *what) {
    rig *both[] = {&p->updated, &p->plain};
    for (int64_t at = 0; at < p->plain.rows; at++)
        for (int32_t token = 0; token < p->plain.model->config.vocab; token++) {
            double loss[2];
            for (int k = 0; k < 2; k++) {
                for (int64_t i = 0; i < both[k]->rows; i++)
                    both[k]->labels[i] = i == at ? token : -1;
                loss[k] = rig_forward(both[k]);
            }
            if (!(fabs(loss[0] - loss[1]) <= 16 * sqrt(30) * EPS_F32 * (1 + loss[1])))
                fail_msg("%s: loss %.9g, and %.9g of the model without updates, of token %d at %d",
                         what, loss[0], loss[1], token, (int)at);
        }
}

static void test_merged_updates_are_the_same_model(void **state) {
    (void)state;
    for (int k = 0; k < CASES; k++)
        for (int full = 0; full < 2; full++) {
            static pair p;
            tr_model_config config = cases[k].config;
            if (full) config.lora.rank = cases[k].full;
            pair_open(&config, &p);
            const double before = rig_forward(&p.plain), with = rig_forward(&p.updated);
            assert_true(fabs(before - with) > 1e-3 * with);
            assert_int_equal(merge_updates(&p.updated, &p.plain, &config), cases[k].updates);
            same_forward(&p, cases[k].config.lora.targets);
            pair_close(&p);
        }
}

/* --- full rank -------------------------------------------------------------------------------- */

static const struct {
    tr_model_config config; /* with one target and its full rank */
    const char *weight;
} any[] = {
    {{LLAMA, .lora = {.rank = 16, .alpha = 16, .targets = "q_proj"}}, "self_attn.q_proj.weight"},
    {{LLAMA, .lora = {.rank = 4, .alpha = 8, .targets = "k_proj"}}, "self_attn.k_proj.weight"},
    {{LLAMA, .lora = {.rank = 16, .alpha = 4, .targets = "gate_proj"}}, "mlp.gate_proj.weight"},
    {{QWEN2, .lora = {.rank = 13, .alpha = 26, .targets = "down_proj"}}, "mlp.down_proj.weight"},
    {{GPT2, .lora = {.rank = 16, .alpha = 8, .targets = "c_attn"}}, "attn.c_attn.weight"},
    {{GPT2, .lora = {.rank = 16, .alpha = 16, .targets = "mlp.c_proj"}}, "mlp.c_proj.weight"},
};

/* Sets A or B of the target, [out, in], so that the weight with its update is wanted[]. The matrix
 * of the smaller side is the identity. */
static void set_update(rig *r, const tr_model_config *config, const char *name, const float *base,
                       const float *wanted, int64_t out, int64_t in) {
    const double factor = config->lora.alpha / (double)config->lora.rank; /* a power of two */
    char matrix[2 * TR_NAME_SIZE];
    for (int b = 0; b < 2; b++) {
        int at;
        const int stem = (int)(strlen(name) - strlen("weight"));
        (void)snprintf(matrix, sizeof matrix, "%.*slora_%c.weight", stem, name, b ? 'B' : 'A');
        tr_param *param = find_param(r, matrix, &at);
        assert_non_null(param);
        const tr_global *g = &param->tensor[at];
        const bool identity = b == (out <= in);
        assert_int_equal(g->shape[0] * g->shape[1],
                         identity ? (out < in ? out * out : in * in) : out * in);
        for (int64_t i = 0; i < tr_global_count(g); i++) {
            const bool diagonal = i / g->shape[1] == i % g->shape[1];
            rig_set(param, TR_F32, g->box[0].local_offset + i,
                    identity ? (float)diagonal
                             : (float)(((double)wanted[i] - (double)base[i]) / factor));
        }
    }
}

/* An update of full rank can turn the base model into any model that differs in this weight: its
 * forward pass and its merged weights are then those of that model. */
static void test_full_rank_is_the_full_model(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof any / sizeof *any; k++) {
        static pair p;
        const tr_model_config *config = &any[k].config;
        const bool conv1d = !strcmp(config->family, "gpt2");
        char name[2 * TR_NAME_SIZE];
        int at;
        pair_open(config, &p);
        (void)snprintf(name, sizeof name, "%s.0.%s", conv1d ? "transformer.h" : "model.layers",
                       any[k].weight);
        tr_param *param = find_param(&p.plain, name, &at);
        assert_non_null(param);
        const tr_global *g = &param->tensor[at];
        const int64_t count = tr_global_count(g), first = g->box[0].local_offset;
        float *base = elements_of(&p.plain, name, conv1d);
        for (int64_t i = 0; i < count; i++)
            rig_set(param, TR_F32, first + i, 0.25f * tr_normal(10, 1, (uint64_t)i));
        float *wanted = elements_of(&p.plain, name, conv1d);
        set_update(&p.updated, config, name, base, wanted, g->shape[conv1d], g->shape[!conv1d]);
        same_forward(&p, name);
        /* Merged: the weight as it was, with the update. */
        float *stored = elements_of(&p.updated, name, false), *other;
        for (int64_t i = 0; i < count; i++) rig_set(param, TR_F32, first + i, stored[i]);
        assert_int_equal(merge_updates(&p.updated, &p.plain, config), 1);
        other = elements_of(&p.plain, name, conv1d);
        for (int64_t i = 0; i < count; i++)
            if (!(fabsf(other[i] - wanted[i]) <= 4 * (float)EPS_F32))
                fail_msg("%s[%d] is %.9g, and %.9g in the full model", name, (int)i,
                         (double)other[i], (double)wanted[i]);
        free(base);
        free(wanted);
        free(stored);
        free(other);
        pair_close(&p);
    }
}

/* --- what is refused -------------------------------------------------------------------------- */

static void test_targets_that_fit_no_model(void **state) {
    (void)state;
    static const struct {
        int at;
        tr_lora_config lora;
        const char *says;
    } bad[] = {{GPT2_CASE, {.rank = 2, .targets = "c_attn q_proj"}, "names 'q_proj'"},
               {GPT2_CASE, {.rank = 2, .targets = "c_atn"}, "did you mean 'c_attn'"},
               {LLAMA_CASE, {.rank = 5, .targets = "o_proj k_proj"}, "above 4"},
               {QWEN2_CASE, {.rank = 2, .targets = "gate_proj"}, "q_proj, k_proj, v_proj, o_proj"},
               {GPT2_CASE, {.alpha = 2}, "model.lora.rank"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tr_model_config config = cases[bad[i].at].config;
        const tr_model_shape shape = {.batch = 1, .seq = 4, .dtype = TR_F32, .tp_size = 1};
        config.lora = bad[i].lora;
        assert_int_equal(tr_model_check(&config, &shape), TR_ERR_CONFIG);
        if (!strstr(tr_error_message(), bad[i].says))
            fail_msg("'%s' does not say '%s'", tr_error_message(), bad[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merged_updates_are_the_same_model),
        cmocka_unit_test(test_full_rank_is_the_full_model),
        cmocka_unit_test(test_targets_that_fit_no_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
