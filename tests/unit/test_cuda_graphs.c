/* cuDNN delivers an engine for the attention of every model that Trireme trains: for a GPU that is
 * described (tests/data/h200.json), plans are finished, kernels compiled, and nothing is run. And
 * what the graphs say, carried out on the host, is what ref computes. */
#include "support/op_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph_rig.h"

static uint64_t seed;
static tr_device *ref;
static char h200[4096];

static tr_status build(const tr_attention_shape *shape, const char *described,
                       tr_attention_graph **out) {
    *out = NULL;
    rig_forget();
    return tr_attention_graph_build(NULL, described, shape, out);
}

/* Forward, backward, and the deterministic backward. */
static void check(const tr_attention_desc *desc, int64_t kv_heads) {
    for (int which = 0; which < 3; which++) {
        bool backward = which > 0, deterministic = which == 2;
        tr_attention_shape shape =
            kv_heads ? tr_attention_separate(desc, kv_heads, backward, deterministic)
                     : tr_attention_packed(desc, backward, deterministic);
        tr_attention_graph *graph;
        if (build(&shape, h200, &graph) != TR_OK)
            fail_msg("%lld x %lld tokens, %lld/%lld heads of %lld, %s: %s (%s)",
                     (long long)desc->batch, (long long)desc->seq, (long long)desc->heads,
                     (long long)kv_heads, (long long)desc->head_dim,
                     deterministic ? "deterministic backward"
                     : backward    ? "backward"
                                   : "forward",
                     tr_error_message(), tr_error_trace());
        size_t rows = (size_t)(desc->batch * desc->heads * desc->seq);
        assert_non_null(graph->plan);
        assert_int_equal(graph->row_sum_bytes, backward ? 4 * rows : 0);
        assert_int_equal(graph->dq_sum_bytes,
                         backward && !deterministic ? 4 * rows * (size_t)desc->head_dim : 0);
        tr_attention_graph_release(graph);
    }
}

static void test_models(void **state) {
    (void)state;
    check(&(tr_attention_desc){4, 1024, 12, 64, TR_BF16}, 0);  /* GPT-2 124M, packed qkv */
    check(&(tr_attention_desc){2, 1024, 25, 64, TR_BF16}, 0);  /* GPT-2 1.5B */
    check(&(tr_attention_desc){1, 8192, 32, 128, TR_BF16}, 8); /* Llama 8B, grouped queries */
    check(&(tr_attention_desc){2, 512, 12, 64, TR_BF16}, 12);  /* separate q, k, v */
}

/* What the tests train, and lengths that are no multiple of a tile. */
static void test_small(void **state) {
    (void)state;
    check(&(tr_attention_desc){2, 64, 2, 64, TR_BF16}, 0);
    check(&(tr_attention_desc){1, 128, 1, 64, TR_BF16}, 0);
    check(&(tr_attention_desc){2, 70, 3, 32, TR_BF16}, 0);
    check(&(tr_attention_desc){1, 33, 2, 16, TR_BF16}, 0);
    check(&(tr_attention_desc){1, 1, 1, 80, TR_BF16}, 0);
}

static void assert_refused(const tr_attention_shape *shape, const char *described,
                           const char *sentence) {
    tr_attention_graph *graph;
    assert_int_equal(build(shape, described, &graph), TR_ERR_DEVICE);
    if (!strstr(tr_error_message(), sentence))
        fail_msg("refused with \"%s\", not \"%s\"", tr_error_message(), sentence);
}

/* The library announces engines for the first two and delivers none; both directions, since a model
 * needs both. */
static void test_refused(void **state) {
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        tr_attention_desc desc = {2, 128, 4, 64, TR_F32};
        tr_attention_shape shape = tr_attention_packed(&desc, backward, false);
        assert_refused(&shape, h200, "cannot take f32 heads of 64: they compute bf16 alone");
        desc = (tr_attention_desc){2, 128, 4, 100, TR_BF16};
        shape = tr_attention_packed(&desc, backward, false);
        assert_refused(&shape, h200, "cannot take bf16 heads of 100");
        desc = (tr_attention_desc){2, 128, 4, 64, TR_BF16};
        shape = tr_attention_separate(&desc, 3, backward, false);
        assert_refused(&shape, h200, "multiple of the key heads");
    }
}

/* A GPU that the engines do not know: the library's own refusal becomes a sentence. */
static void test_no_engine(void **state) {
    (void)state;
    char volta[sizeof h200];
    memcpy(volta, h200, sizeof volta);
    char *capability = strstr(volta, "\"deviceVer\":900");
    assert_non_null(capability);
    memcpy(capability, "\"deviceVer\":700", strlen("\"deviceVer\":700"));
    tr_attention_shape shape =
        tr_attention_packed(&(tr_attention_desc){2, 128, 4, 64, TR_BF16}, true, false);
    assert_refused(&shape, volta, "cuDNN");
    assert_refused(&shape, "{", "cuDNN");
}

/* --- what the graphs compute ------------------------------------------------------------------ */

/* Part 0, 1, 2 of packed tensors. */
static void *part_of(const tr_attention_desc *d, void *packed, int64_t part) {
    return (char *)packed + part * d->heads * d->head_dim * 2;
}

/* Carries out the graph of a shape on the packed data of an operator's case. */
static void run_packed(tr_op_data *data, bool deterministic) {
    const tr_attention_desc *d = &data->desc.attention;
    bool backward = data->desc.kind == TR_OP_ATTENTION_DGRAD;
    void **m = data->memory, *t[TR_ATTENTION_TENSORS] = {0};
    void *qkv = m[backward ? TR_ATTENTION_DGRAD_QKV : TR_ATTENTION_QKV];
    for (int part = 0; part < 3; part++) {
        t[TR_ATTENTION_Q + part] = part_of(d, qkv, part);
        if (backward) t[TR_ATTENTION_DQ + part] = part_of(d, m[TR_ATTENTION_DGRAD_DQKV], part);
    }
    t[TR_ATTENTION_O] = m[backward ? TR_ATTENTION_DGRAD_Y : TR_ATTENTION_Y];
    t[TR_ATTENTION_STATS] = m[backward ? TR_ATTENTION_DGRAD_LSE : TR_ATTENTION_LSE];
    if (backward) t[TR_ATTENTION_DO] = m[TR_ATTENTION_DGRAD_DY];
    tr_attention_shape shape = tr_attention_packed(d, backward, deterministic);
    tr_attention_graph *graph;
    must(build(&shape, h200, &graph));
    if (graph->row_sum_bytes) t[TR_ATTENTION_ROW_SUM] = calloc(1, graph->row_sum_bytes);
    if (graph->dq_sum_bytes) t[TR_ATTENTION_DQ_SUM] = calloc(1, graph->dq_sum_bytes);
    rig_run(graph, t);
    free(t[TR_ATTENTION_ROW_SUM]);
    free(t[TR_ATTENTION_DQ_SUM]);
    tr_attention_graph_release(graph);
}

static void test_packed_values(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++) {
        const tr_op_case c = {{.kind = which ? TR_OP_ATTENTION_DGRAD : TR_OP_ATTENTION,
                               .attention = {2, 19, 3, 16, 0}},
                              0};
        tr_op_check check;
        tr_op_data got;
        tr_op_check_open(&c, TR_BF16, seed, ref, &check);
        must(tr_op_data_clone(&check.start, &got));
        run_packed(&got, which == 2);
        tr_op_check_near(&check, &got, which == 2 ? "the deterministic graph" : "the graph");
        tr_op_data_free(&got);
        tr_op_check_close(&check);
    }
}

static int read_description(void **state) {
    (void)state;
    FILE *file = fopen(TRIREME_TEST_DATA "/h200.json", "r");
    if (!file) return -1;
    size_t bytes = fread(h200, 1, sizeof h200 - 1, file);
    (void)fclose(file);
    if (bytes == 0) return -1;
    return tr_op_open_ref(&ref);
}

static int close_ref(void **state) {
    (void)state;
    tr_device_close(ref);
    return 0;
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),        cmocka_unit_test(test_small),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_no_engine),
        cmocka_unit_test(test_packed_values),
    };
    return cmocka_run_group_tests(tests, read_description, close_ref);
}
