/* Tests decoding with a cache against the forward pass of training: texts that are drawn greedily,
 * after prompts of very different lengths that are fed in chunks, have at every position the token
 * that the forward pass of the whole text finds most probable. In FP32 on host devices. */
#include "base/philox.h"
#include "support/model_rig.h"
#include "support/must.h"
#include "support/seed.h"
#include "train/sampler.h"

enum { TEXTS = 3, DRAWN = 200, CONTEXT = 320, VOCAB = 61 };

/* Shorter and longer than a chunk, and not a multiple of it. */
static const int64_t prompt_length[TEXTS] = {5, 89, 113};
static uint64_t seed;

#define SIZES                                                                                      \
    .layers = 2, .width = 32, .heads = 4, .context = CONTEXT, .vocab = VOCAB, .mlp_width = 48

static const struct {
    const char *name;
    tr_model_config config;
} cases[] = {
    {"gpt2", {.family = "gpt2", SIZES}},
    {"llama, grouped queries", {.family = "llama", SIZES, .kv_heads = 2}},
    {"mistral, window, one key head", {.family = "mistral", SIZES, .kv_heads = 1, .window = 24}},
    {"gpt2, window, grouped queries", {.family = "gpt2", SIZES, .kv_heads = 2, .window = 70}},
    {"qwen2", {.family = "qwen2", SIZES, .kv_heads = 2}},
    {"qwen3", {.family = "qwen3", SIZES, .kv_heads = 2, .rope_scaling = "yarn 4 64"}},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Fills the parameters with values large enough for texts that do not repeat a token for ever. */
static void fill(rig *r) {
    for (int p = 0; p < r->model->params_count; p++) {
        tr_param *param = rig_param(r->model, p);
        const bool norm = param->init == TR_INIT_ONE;
        for (int64_t i = 0; param->use == 0 && i < param->count; i++) {
            const float x = tr_normal(seed, (uint64_t)p, (uint64_t)i);
            rig_set(param, TR_F32, i, norm ? 1 + 0.1f * x : 0.3f * x);
        }
    }
}

/* The logits of a row of the head's input, in double: the last norm and the table of words. */
static void head_logits(const rig *r, const float *x, double *logits) {
    const tr_layer *head = r->model->layers[r->model->count - 1];
    const int64_t width = r->model->config.width;
    const bool rms = head->params_count == 2;
    const float *gamma = head->params[0].value, *beta = rms ? NULL : head->params[1].value;
    const float *words = head->params[head->params_count - 1].value;
    double mean = 0, square = 0, normed[64];
    for (int64_t i = 0; i < width; i++) mean += rms ? 0 : (double)x[i] / (double)width;
    for (int64_t i = 0; i < width; i++) square += pow((double)x[i] - mean, 2) / (double)width;
    for (int64_t i = 0; i < width; i++)
        normed[i] =
            ((double)x[i] - mean) / sqrt(square + r->model->config.norm_eps) * (double)gamma[i] +
            (beta ? (double)beta[i] : 0);
    for (int64_t v = 0; v < VOCAB; v++) {
        logits[v] = 0;
        for (int64_t i = 0; i < width; i++) logits[v] += normed[i] * (double)words[v * width + i];
    }
}

/* Draws the texts greedily; token[TEXTS][CONTEXT] begins with the prompts. */
static void draw(rig *r, int32_t *token) {
    tr_world *world;
    tr_mesh mesh;
    tr_mesh_groups *groups;
    tr_decoder *decoder;
    tr_sampler *sampler;
    const int first[2] = {0, r->model->count}, owner[1] = {0};
    const tr_placement placement = {.stages = 1, .first = first, .owner = owner};
    must(tr_world_open_local(1, &world));
    must(tr_mesh_make(1, 1, 1, 0, 1, &mesh));
    must(tr_mesh_groups_create(world, r->device, &mesh, &groups));
    const tr_decoder_desc desc = {.world = world,
                                  .device = r->device,
                                  .mesh = mesh,
                                  .groups = groups,
                                  .model = r->model,
                                  .rows = TEXTS,
                                  .placement = &placement};
    must(tr_decoder_create(&desc, &decoder));
    assert_in_range(tr_decoder_chunk(decoder), prompt_length[0] + 1, prompt_length[1] - 1);
    must(tr_sampler_create(
        &(tr_sampler_desc){.world = world, .decoder = decoder, .model = r->model}, &sampler));
    int64_t end[TEXTS];
    for (int t = 0; t < TEXTS; t++) {
        must(tr_sampler_append(sampler, t, token + t * CONTEXT, prompt_length[t]));
        end[t] = prompt_length[t];
    }
    for (int live = TEXTS; live > 0;) {
        int32_t drawn[TEXTS];
        must(tr_sampler_next(sampler, drawn));
        for (int t = 0; t < TEXTS; t++) {
            if (drawn[t] < 0) continue;
            token[t * CONTEXT + end[t]++] = drawn[t];
            if (end[t] < prompt_length[t] + DRAWN) continue;
            tr_sampler_end(sampler, t);
            live--;
        }
    }
    tr_sampler_destroy(sampler);
    tr_decoder_destroy(decoder);
    tr_mesh_groups_destroy(groups);
    tr_world_close(world);
}

/* Fails unless every drawn token is the most probable one of the forward pass, or one that its
 * rounding cannot tell from it. Returns how many different tokens were drawn. */
static int compare(rig *r, const char *what, const int32_t *token, int64_t *close_calls) {
    bool met[VOCAB] = {false};
    int different = 0;
    for (int64_t i = 0; i < TEXTS * CONTEXT; i++) r->tokens[i] = token[i];
    for (int64_t i = 0; i < TEXTS * CONTEXT; i++) r->labels[i] = 0;
    (void)rig_forward(r);
    const float *hidden = (const float *)(void *)r->tensor[r->model->count - 1];
    for (int t = 0; t < TEXTS; t++)
        for (int64_t at = prompt_length[t]; at < prompt_length[t] + DRAWN; at++) {
            double logits[VOCAB], size = 1;
            int best = 0;
            head_logits(r, hidden + (t * CONTEXT + at - 1) * r->model->config.width, logits);
            for (int v = 1; v < VOCAB; v++) {
                if (logits[v] > logits[best]) best = v;
                size = fmax(size, fabs(logits[v]));
            }
            const int32_t drawn = token[t * CONTEXT + at];
            different += !met[drawn];
            met[drawn] = true;
            if (drawn == best) continue;
            (*close_calls)++;
            if (logits[best] - logits[drawn] > 1e-4 * size)
                fail_msg("%s, seed %llu: text %d position %lld has token %d, the forward pass %d",
                         what, (unsigned long long)seed, t, (long long)at, drawn, best);
        }
    return different;
}

/* Returns how many different tokens the texts have. */
static int check(const char *device, int index) {
    static rig r;
    static int32_t token[TEXTS * CONTEXT];
    char what[96];
    int64_t close_calls = 0;
    uint64_t random = seed;
    tr_world *world;
    (void)snprintf(what, sizeof what, "%s on %s", cases[index].name, device);
    tr_model_config config = cases[index].config;
    must(tr_model_complete(&config));
    must(tr_world_open_local(1, &world));
    rig_open(&r, device, world, &config, TR_F32, TEXTS, CONTEXT, false);
    r.state->train = 0;
    fill(&r);
    memset(token, 0, sizeof token);
    for (int t = 0; t < TEXTS; t++)
        for (int64_t i = 0; i < prompt_length[t]; i++)
            token[t * CONTEXT + i] = (int32_t)(tr_up_to(&random, VOCAB) - 1);
    draw(&r, token);
    const int different = compare(&r, what, token, &close_calls);
    if (close_calls > 4) fail_msg("%s: %d close calls", what, (int)close_calls);
    rig_close(&r);
    tr_world_close(world);
    return different;
}

static void test_greedy_equals_forward(void **state) {
    (void)state;
    int different = 0;
    for (int i = 0; i < CASES; i++) different += check("cpu", i) + check("ref", i);
    assert_true(different >= 2 * CASES * 5); /* else the texts say little */
}

int main(void) {
    seed = tr_test_seed(13);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy_equals_forward)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
