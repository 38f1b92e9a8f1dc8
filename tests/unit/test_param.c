/* Tests parameters: the boxes of all tensor ranks cover every global tensor once, initial values do
 * not depend on the layout, and names and shapes are Hugging Face's. Tests where the portions of
 * data ranks have different sizes. */
#include "layers/model.h"

#include "base/memory.h"
#include "layers/param_layout.h"
#include "layers/part.h"
#include "support/elements.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const tr_model_config config = {.family = "gpt2",
                                       .layers = 2,
                                       .width = 12,
                                       .heads = 6,
                                       .context = 7,
                                       .vocab = 11,
                                       .dropout = 0.1f};

static tr_model *make_model(int rank, int size) {
    tr_model_shape shape = {
        .batch = 2, .seq = 5, .dtype = TR_F32, .tp_rank = rank, .tp_size = size};
    tr_model *model;
    tr_status status = tr_model_create(&config, &shape, &model);
    if (status) fail_msg("%s", tr_error_message());
    return model;
}

static tr_param *nth_param(tr_model *model, int index) {
    for (int i = 0; i < model->count; i++)
        for (int j = 0; j < model->layers[i]->params_count; j++)
            if (model->layers[i]->params[j].index == index) return &model->layers[i]->params[j];
    fail_msg("no parameter %d", index);
    return NULL;
}

struct cover {
    int *global, *local;
    int64_t globals, locals;
};

static void count_element(void *context, int64_t global, int64_t local) {
    struct cover *cover = context;
    assert_in_range(global, 0, cover->globals - 1);
    assert_in_range(local, 0, cover->locals - 1);
    cover->global[global]++;
    cover->local[local]++;
}

static void test_boxes_cover_once(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++) {
        tr_model *models[3];
        for (int rank = 0; rank < size; rank++) models[rank] = make_model(rank, size);
        for (int p = 0; p < models[0]->params_count; p++) {
            const tr_param *first = nth_param(models[0], p);
            int64_t elements = tr_global_count(first->tensor);
            int *covered = calloc((size_t)elements, sizeof *covered);
            bool replicated = first->copies[TR_AXIS_TP] == 0;
            for (int rank = 0; rank < size; rank++) {
                const tr_param *param = nth_param(models[rank], p);
                int *dense = calloc((size_t)param->count, sizeof *dense);
                struct cover cover = {covered, dense, elements, param->count};
                tr_each_element(param->tensor, count_element, &cover);
                for (int64_t i = 0; i < param->count; i++) assert_int_equal(dense[i], 1);
                free(dense);
            }
            for (int64_t i = 0; i < elements; i++)
                assert_int_equal(covered[i], replicated ? size : 1);
            free(covered);
        }
        for (int rank = 0; rank < size; rank++) tr_model_destroy(models[rank]);
    }
}

struct compare {
    const float *global, *local;
};

static void compare_element(void *context, int64_t global, int64_t local) {
    struct compare *compare = context;
    assert_memory_equal(&compare->global[global], &compare->local[local], sizeof(float));
}

static void test_values_know_no_layout(void **state) {
    (void)state;
    tr_model *whole = make_model(0, 1);
    for (int size = 2; size <= 3; size++) {
        for (int rank = 0; rank < size; rank++) {
            tr_model *part = make_model(rank, size);
            for (int p = 0; p < whole->params_count; p++) {
                const tr_param *a = nth_param(whole, p), *b = nth_param(part, p);
                assert_string_equal(tr_param_name(a), tr_param_name(b));
                float *global = calloc((size_t)a->count, sizeof *global);
                float *local = calloc((size_t)b->count, sizeof *local);
                tr_param_init(a, 42, 1, global);
                tr_param_init(b, 42, 1, local);
                tr_each_element(b->tensor, compare_element, &(struct compare){global, local});
                free(global);
                free(local);
            }
            tr_model_destroy(part);
        }
    }
    tr_model_destroy(whole);
}

/* With tp = 1 the local tensor is the global one, also the fused c_attn. */
static void same_index(void *context, int64_t global, int64_t local) {
    (void)context;
    assert_int_equal(global, local);
}

static void test_whole_is_row_major(void **state) {
    (void)state;
    tr_model *model = make_model(0, 1);
    for (int p = 0; p < model->params_count; p++)
        tr_each_element(nth_param(model, p)->tensor, same_index, NULL);
    tr_model_destroy(model);
}

static void test_values_follow_their_rule(void **state) {
    (void)state;
    tr_model *model = make_model(0, 1);
    for (int p = 0; p < model->params_count; p++) {
        const tr_param *param = nth_param(model, p);
        float *value = calloc((size_t)param->count, sizeof *value);
        tr_param_init(param, 7, 1, value);
        double sum = 0, squares = 0, n = (double)param->count;
        for (int64_t i = 0; i < param->count; i++) {
            sum += (double)value[i];
            squares += (double)value[i] * (double)value[i];
        }
        const char *tail = strrchr(tr_param_name(param), '.');
        if (param->init == TR_INIT_NORMAL) {
            /* Mean and variance of n numbers have standard errors of std / sqrt(n) and std^2 *
             * sqrt(2 / n). */
            double std = (double)param->init_std;
            assert_true(sum * sum / n < 25 * std * std);
            assert_true((squares / n / (std * std) - 1) * (squares / n / (std * std) - 1) < 50 / n);
        } else {
            double expected =
                strstr(tr_param_name(param), "ln_") && !strcmp(tail, ".weight") ? n : 0;
            assert_true(sum == expected && squares == expected);
        }
        free(value);
    }
    tr_model_destroy(model);
}

static const struct {
    const char *name;
    int rank;
    int64_t shape[2];
    double std;
    bool decay;
} block_list[] = {
    {"ln_1.weight", 1, {12}, 0, false},
    {"ln_1.bias", 1, {12}, 0, false},
    {"attn.c_attn.weight", 2, {12, 36}, 0.02, true},
    {"attn.c_attn.bias", 1, {36}, 0, false},
    {"attn.c_proj.weight", 2, {12, 12}, 0.01, true}, /* 0.02 / sqrt(2 * 2) */
    {"attn.c_proj.bias", 1, {12}, 0, false},
    {"ln_2.weight", 1, {12}, 0, false},
    {"ln_2.bias", 1, {12}, 0, false},
    {"mlp.c_fc.weight", 2, {12, 48}, 0.02, true},
    {"mlp.c_fc.bias", 1, {48}, 0, false},
    {"mlp.c_proj.weight", 2, {48, 12}, 0.01, true},
    {"mlp.c_proj.bias", 1, {12}, 0, false},
};

static void check_param(const tr_param *param, const char *name, int rank, const int64_t *shape,
                        double std, bool decay, int use) {
    assert_string_equal(tr_param_name(param), name);
    assert_int_equal(param->tensor->rank, rank);
    for (int d = 0; d < rank; d++) assert_int_equal(param->tensor->shape[d], shape[d]);
    assert_true(fabs((double)param->init_std - std) < 1e-8);
    assert_int_equal(param->decay, decay);
    assert_int_equal(param->use, use);
}

static void test_hugging_face_list(void **state) {
    (void)state;
    tr_model *model = make_model(0, 1);
    int64_t wte[] = {11, 12}, wpe[] = {7, 12}, norm[] = {12};
    int at = 0;
    check_param(nth_param(model, at++), "transformer.wte.weight", 2, wte, 0.02, true, 0);
    check_param(nth_param(model, at++), "transformer.wpe.weight", 2, wpe, 0.01, true, 0);
    for (int block = 0; block < 2; block++) {
        for (size_t i = 0; i < sizeof block_list / sizeof *block_list; i++) {
            char name[TR_NAME_SIZE];
            (void)snprintf(name, sizeof name, "transformer.h.%d.%s", block, block_list[i].name);
            check_param(nth_param(model, at++), name, block_list[i].rank, block_list[i].shape,
                        block_list[i].std, block_list[i].decay, 0);
        }
    }
    check_param(nth_param(model, at++), "transformer.ln_f.weight", 1, norm, 0, false, 0);
    check_param(nth_param(model, at++), "transformer.ln_f.bias", 1, norm, 0, false, 0);
    check_param(nth_param(model, at++), "transformer.wte.weight", 2, wte, 0.02, true, 1);
    assert_int_equal(at, model->params_count);

    int64_t C = 12, block = 4 * C + 3 * C * C + 3 * C + C * C + C + 8 * C * C + 5 * C;
    assert_int_equal(tr_model_parameters(model), (11 + 7) * C + 2 * block + 2 * C);
    tr_model_destroy(model);
}

/* The head's chunks depend only on the shape: at most 2,048 rows and 256 MiB of logits, of about
 * equal size. Its scratch has the logits of one chunk. */
static void test_chunks_of_rows(void **state) {
    (void)state;
    static const struct {
        int64_t rows, vocab;
        tr_dtype dtype;
        int tp;
        int64_t chunk;
    } list[] = {{10, 11, TR_F32, 1, 10},          {1024, 50257, TR_F32, 1, 1024},
                {2048, 50257, TR_BF16, 1, 2048},  {2049, 256, TR_F32, 1, 1088},
                {4096, 50257, TR_F32, 1, 1024},   {2048, 128256, TR_BF16, 1, 1024},
                {2048, 128256, TR_BF16, 2, 2048}, {8192, 151936, TR_BF16, 1, 832},
                {8192, 151936, TR_F32, 1, 384},   {100, 100000000, TR_F32, 1, 64}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        tr_model_config c = {.family = "gpt2",
                             .layers = 1,
                             .width = 8,
                             .heads = 2,
                             .context = list[i].rows,
                             .vocab = list[i].vocab};
        tr_model_shape shape = {
            .batch = 1, .seq = list[i].rows, .dtype = list[i].dtype, .tp_size = list[i].tp};
        tr_model *model = NULL;
        assert_int_equal(tr_model_create(&c, &shape, &model), TR_OK);
        const tr_layer *head = model->layers[model->count - 1];
        size_t R = (size_t)list[i].rows, r = (size_t)list[i].chunk;
        size_t element = tr_dtype_size(list[i].dtype), f32 = sizeof(float);
        size_t ld = ((size_t)(list[i].vocab / list[i].tp) + 64) / 64 * 64;
        if (list[i].vocab / list[i].tp % 64 == 0) ld -= 64;
        /* The norm's output, mean, standard deviation and gradient; logits, maxima, sums. */
        size_t want = 2 * tr_align_up(R * 8 * element) + 2 * tr_align_up(R * f32) +
                      r * ld * element + tr_align_up(r * f32) + tr_align_up(2 * R * f32);
        assert_int_equal(head->bytes[TR_LIFE_SCRATCH], want);
        assert_int_equal(head->pieces, 0);                         /* F does the work of I and W */
        int64_t v = (list[i].vocab + list[i].tp - 1) / list[i].tp; /* rank 0's */
        assert_true(head->flops_f == 6 * (double)list[i].rows * (double)v * 8);
        assert_true(head->flops_i == 0 && head->flops_w == 0);
        tr_model_destroy(model);
    }
}

/* Planning reads bytes and FLOPs before anything is prepared. */
static void test_described_before_prepare(void **state) {
    (void)state;
    tr_model *whole = make_model(0, 1), *part = make_model(1, 2);
    double matmul = 0;
    for (int i = 0; i < whole->count; i++) {
        const tr_layer *layer = whole->layers[i];
        assert_int_equal(layer->index, i);
        assert_int_equal(layer->inputs, i == 0 ? 0 : 1);
        assert_int_equal(layer->outputs, i == whole->count - 1 ? 0 : 1);
        if (layer->inputs) assert_int_equal(layer->input[0].layer, i - 1);
        for (int life = 0; life < TR_LIFE_COUNT; life++) {
            size_t bytes = life == TR_LIFE_SCRATCH ? layer->bytes[life] : 0;
            for (int k = 0; k < layer->pieces; k++) {
                assert_int_equal(layer->piece[k].bytes % TR_ALIGN, 0);
                if (layer->piece[k].life == (tr_lifetime)life) bytes += layer->piece[k].bytes;
            }
            assert_int_equal(layer->bytes[life], bytes);
        }
        matmul += i < whole->count - 1 ? layer->flops_w : layer->flops_f / 3;
    }
    /* W uses each weight of a matmul once: a third of 6 N_matmul a token. The head's F does all
     * three thirds. */
    double tokens = 10, C = 12;
    assert_true(matmul == tokens * 2 * (2 * 12 * C * C + 11 * C));
    assert_true(tr_model_flops_per_token(whole) == 6 * (2 * 12 * C * C + 11 * C) + 6 * 2 * 5 * C);
    assert_true(part->layers[1]->flops_f * 2 == whole->layers[1]->flops_f);
    tr_model_destroy(whole);
    tr_model_destroy(part);
}

static void check_refused(tr_model_config bad, tr_model_shape shape, const char *key) {
    tr_model *model;
    assert_int_equal(tr_model_create(&bad, &shape, &model), TR_ERR_CONFIG);
    if (!strstr(tr_error_message(), key))
        fail_msg("\"%s\" does not name %s", tr_error_message(), key);
}

static void test_bad_sizes_are_refused(void **state) {
    (void)state;
    tr_model_shape shape = {.batch = 2, .seq = 5, .dtype = TR_F32, .tp_size = 1};
    tr_model_config bad = config;
    bad.heads = 5;
    check_refused(bad, shape, "model.heads");
    bad = config;
    (void)snprintf(bad.family, sizeof bad.family, "gpt3");
    check_refused(bad, shape, "gpt2");
    bad = config;
    bad.context = 4;
    check_refused(bad, shape, "model.context");
    bad = config;
    bad.layers = 0;
    check_refused(bad, shape, "model.layers");
    bad = config;
    bad.dropout = 1;
    check_refused(bad, shape, "model.dropout");
    bad = config;
    bad.width = 1 << 24;
    bad.heads = 1 << 24;
    bad.vocab = INT32_MAX;
    shape.batch = shape.seq = 1 << 20;
    bad.context = 1 << 20;
    check_refused(bad, shape, "train.micro_batch");
    shape = (tr_model_shape){.batch = 2, .seq = 5, .dtype = TR_F32, .tp_size = 4};
    check_refused(config, shape, "parallel.tp");
}

static void describe_nothing(tr_built_layer *unused) {
    (void)unused;
}

/* A layer that is too large for the tables is refused with the name of the constant to raise. */
static void test_limits_of_a_layer(void **state) {
    (void)state;
    static tr_built_layer layer;
    const tr_model_shape shape = {.batch = 2, .seq = 5, .dtype = TR_F32, .tp_size = 1};
    tr_built_begin(&layer, NULL, describe_nothing, &shape, "large");
    for (int k = 0; k < TR_LAYER_FLOWS; k++) tr_built_asks(&layer, "more");
    assert_int_equal(tr_built_finish(&layer), TR_OK);
    tr_built_asks(&layer, "more");
    assert_int_equal(tr_built_finish(&layer), TR_ERR_INTERNAL);
    assert_non_null(strstr(tr_error_message(), "TR_LAYER_FLOWS"));
    tr_param *param;
    for (int k = 0; k < TR_LAYER_PARAMS; k++)
        assert_int_equal(tr_built_param(&layer, &param), TR_OK);
    assert_int_equal(tr_built_param(&layer, &param), TR_ERR_INTERNAL);
    assert_non_null(strstr(tr_error_message(), "TR_LAYER_PARAMS"));
}

/* --- portions --------------------------------------------------------------------------------- */

/* Fails unless every place with a portion of another size than the one before is listed. */
static void check_steps(const tr_param *param, const tr_mesh *mesh) {
    const int ranks = mesh->degree[TR_AXIS_DP];
    int place[TR_PORTION_STEPS];
    const int steps = tr_param_portion_steps(param, mesh, place);
    assert_in_range(steps, 1, TR_PORTION_STEPS);
    for (int r = 0; r < ranks; r++) {
        const int64_t own = tr_param_portion_of(param, mesh, r).extent;
        bool listed = false;
        for (int k = 0; k < steps; k++) listed |= place[k] == r;
        if (!listed && own != tr_param_portion_of(param, mesh, (r + ranks - 1) % ranks).extent)
            fail_msg("%lld elements in turn %d of %d ranks: place %d is not listed",
                     (long long)param->count, param->turn, ranks, r);
    }
}

static void test_steps_of_portions(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 9; ranks++)
        for (int turn = 0; turn <= 10; turn++) {
            const tr_mesh mesh = {.degree = {1, ranks, 1}};
            for (int64_t parts = 1; parts <= 40; parts++) /* of half a block */
                check_steps(&(tr_param){.count = parts * TR_PARAM_BLOCK / 2, .turn = turn}, &mesh);
            check_steps(&(tr_param){.count = 8, .whole = true, .owner = turn % ranks}, &mesh);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boxes_cover_once),
        cmocka_unit_test(test_values_know_no_layout),
        cmocka_unit_test(test_whole_is_row_major),
        cmocka_unit_test(test_values_follow_their_rule),
        cmocka_unit_test(test_hugging_face_list),
        cmocka_unit_test(test_chunks_of_rows),
        cmocka_unit_test(test_described_before_prepare),
        cmocka_unit_test(test_bad_sizes_are_refused),
        cmocka_unit_test(test_limits_of_a_layer),
        cmocka_unit_test(test_steps_of_portions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
