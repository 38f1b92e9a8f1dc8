/* Tests that cuDNN has an engine for the attention of every model that Trireme trains: for a
 * described GPU (tests/data/h200.json) plans are finalized and kernels compiled, but not run. Also
 * tests that the operators of the cuda device agree with ref, with their graphs executed on the
 * host. */
#include "base/memory.h"
#include "base/philox.h"
#include "device/cuda/cuda_impl.h"
#include "device/plan_book.h"
#include "support/drawn.h"
#include "support/op_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/graph_rig.h"

static uint64_t seed;
static tr_device *ref;
static char h200[4096];

static tr_status build(const tr_attention_shape *shape, const char *described,
                       tr_attention_graph **out) {
    *out = NULL;
    return tr_cudnn_attention_build(NULL, described, shape, out);
}

/* Builds forward, backward, and the deterministic backward, if the model is drawn. */
static void check(const tr_attention_desc *desc) {
    static uint64_t models;
    if (!tr_test_drawn(models++)) return;
    for (int which = 0; which < 3; which++) {
        bool backward = which > 0, deterministic = which == 2;
        tr_attention_shape shape = tr_cudnn_attention_packed(desc, backward, deterministic);
        tr_attention_graph *graph;
        if (build(&shape, h200, &graph) != TR_OK)
            fail_msg("%lld x %lld tokens, %lld/%lld heads of %lld, %s: %s (%s)",
                     (long long)desc->batch, (long long)desc->seq, (long long)desc->heads,
                     (long long)desc->kv_heads, (long long)desc->head_size,
                     deterministic ? "deterministic backward"
                     : backward    ? "backward"
                                   : "forward",
                     tr_error_message(), tr_error_trace());
        size_t rows = (size_t)(desc->batch * desc->heads * desc->seq);
        assert_non_null(graph->plan);
        assert_int_equal(graph->row_sum_bytes, backward ? 4 * rows : 0);
        assert_int_equal(graph->dq_sum_bytes,
                         backward && !deterministic ? 4 * rows * (size_t)desc->head_size : 0);
        assert_int_equal(graph->first_bytes, shape.masked ? 4 * desc->batch * desc->seq : 0);
        tr_cudnn_attention_release(graph);
    }
}

static tr_attention_desc heads_of(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                  int64_t head_size) {
    return (tr_attention_desc){.batch = batch,
                               .seq = seq,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .head_size = head_size,
                               .dtype = TR_BF16};
}

static void test_models(void **state) {
    (void)state;
    tr_attention_desc d = heads_of(4, 1024, 12, 12, 64); /* GPT-2 124M */
    check(&d);
    d = heads_of(2, 1024, 25, 25, 64); /* GPT-2 1.5B */
    check(&d);
    d = heads_of(1, 8192, 32, 8, 128); /* Llama 8B */
    check(&d);
    d.window = 4096; /* Mistral 7B */
    check(&d);
    d = heads_of(2, 2048, 32, 8, 64); /* Llama 1B, documents */
    d.documents = true;
    check(&d);
}

/* Short sequences, and lengths that are not a multiple of a tile. */
static void test_small(void **state) {
    (void)state;
    tr_attention_desc d = heads_of(2, 64, 2, 2, 64);
    check(&d);
    d = heads_of(1, 128, 1, 1, 96);
    check(&d);
    d = heads_of(2, 70, 6, 3, 128);
    check(&d);
    d.documents = true;
    check(&d);
}

static void assert_refused(const tr_attention_shape *shape, const char *described) {
    tr_attention_graph *graph;
    must(build(shape, described, &graph));
    assert_null(graph);
}

/* The library announces engines for the first two and has none; for the next two it has engines
 * that Trireme does not use. Both directions are refused, since a model needs both. */
static void test_refused(void **state) {
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        tr_attention_desc desc[] = {heads_of(2, 128, 4, 4, 64), heads_of(2, 128, 4, 4, 100),
                                    heads_of(2, 128, 4, 4, 80), heads_of(2, 63, 4, 4, 64)};
        desc[0].dtype = TR_F32;
        for (int i = 0; i < 4; i++) {
            tr_attention_shape shape = tr_cudnn_attention_packed(&desc[i], backward, false);
            assert_false(tr_cudnn_attention_takes(&shape));
            assert_refused(&shape, h200);
        }
    }
}

static size_t old_version(void) {
    return 91500;
}

/* A GPU that the engines do not support is refused; a description that cannot be read is an error,
 * and so is a library version with wrong gradients. */
static void test_no_engine(void **state) {
    (void)state;
    char volta[sizeof h200];
    memcpy(volta, h200, sizeof volta);
    char *capability = strstr(volta, "\"deviceVer\":900");
    assert_non_null(capability);
    memcpy(capability, "\"deviceVer\":700", strlen("\"deviceVer\":700"));
    const tr_attention_desc desc = heads_of(2, 128, 4, 4, 64);
    tr_attention_shape shape = tr_cudnn_attention_packed(&desc, true, false);
    tr_attention_graph *graph;
    assert_refused(&shape, volta);
    assert_int_equal(build(&shape, "{", &graph), TR_ERR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "cuDNN: "));
    __typeof__(tr_cudnnGetVersion) version = tr_cudnnGetVersion;
    tr_cudnnGetVersion = old_version;
    assert_int_equal(build(&shape, h200, &graph), TR_ERR_DEVICE);
    assert_string_equal(tr_error_message(), "cuDNN 91500 is too old for attention: install 9.16.0 "
                                            "(91600) or later");
    tr_cudnnGetVersion = version;
}

/* --- what the graphs compute ------------------------------------------------------------------ */

static tr_status host_alloc(tr_device *device, size_t bytes, void **out) {
    (void)device;
    assert_int_equal(posix_memalign(out, TR_ALIGN, bytes), 0);
    memset(*out, 0, bytes);
    return TR_OK;
}
static void host_free(tr_device *device, void *memory) {
    (void)device;
    free(memory);
}
static tr_status host_sync(tr_stream *stream) {
    (void)stream;
    return TR_OK;
}

/* Returns a cuda device without a GPU, with just enough to prepare attention. */
static tr_cuda_device attention_device(void) {
    static tr_device_ops ops;
    static tr_cuda_stream compute;
    ops = tr_device_ops_cuda;
    ops.alloc = host_alloc;
    ops.free = host_free;
    ops.stream_sync = host_sync;
    return (tr_cuda_device){
        .base = {.ops = &ops, .name = "cuda"}, .dnn = rig_handle, .compute = &compute.base};
}

/* Runs the operator on the data, with exactly the scratch that it asks for, on the given stream. */
static void run_operator(tr_op *op, tr_op_data *data) {
    static char native[8];
    tr_cuda_stream stream = {.handle = (cudaStream_t)(void *)&native[rig_executions % 8]};
    tr_op_args args = {0};
    int64_t before = rig_executions;
    assert_int_equal(posix_memalign(&args.scratch, TR_ALIGN, op->scratch_bytes), 0);
    memset(args.scratch, 0xff, op->scratch_bytes);
    tr_op_data_operands(&data->desc, data->memory, TR_OP_MAX_TENSORS, args.t);
    must(tr_op_run(op, &stream.base, &args));
    assert_int_equal(rig_executions, before + 1);
    assert_ptr_equal(rig_stream, stream.handle);
    free(args.scratch);
}

/* Checks forward, backward and deterministic backward. */
static void check_operator(const tr_attention_desc *desc) {
    for (int which = 0; which < 3; which++) {
        const tr_op_case c = {
            {.kind = which ? TR_OP_ATTENTION_DGRAD : TR_OP_ATTENTION, .attention = *desc}, 0};
        tr_cuda_device device = attention_device();
        const tr_op_context context = {.device = &device.base, .deterministic = which == 2};
        tr_op_check check;
        tr_op_data got;
        tr_op *op;
        tr_op_check_open(&c, TR_BF16, seed, ref, &check);
        must(tr_op_data_clone(&check.start, &got));
        /* With several ranks a new plan runs once. */
        const int64_t before = rig_executions;
        device.warms = which == 1;
        must(tr_op_prepare(&context, &got.desc, &op));
        assert_int_equal(rig_executions, before + device.warms);
        assert_int_equal(op->way, TR_OP_WHOLE);
        run_operator(op, &got);
        tr_op_check_near(&check, &got, which == 2 ? "the deterministic graph" : "the graph");
        tr_op_release(op);
        tr_op_data_free(&got);
        tr_op_check_close(&check);
    }
}

static void test_operators(void **state) {
    (void)state;
    tr_attention_desc d = heads_of(2, 67, 3, 3, 64);
    check_operator(&d);
    d = heads_of(1, 65, 4, 2, 64);
    d.scale = 0.25f;
    check_operator(&d);
    d.window = 20;
    check_operator(&d);
    d.documents = true;
    check_operator(&d);
}

/* Every configuration that the heuristic proposes can be taken by the name that it has in a book of
 * plans, unless cuDNN finishes no plan for it or it needs more scratch, and computes what ref
 * does. */
static void test_plans(void **state) {
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        const tr_op_case c = {.desc = {.kind = backward ? TR_OP_ATTENTION_DGRAD : TR_OP_ATTENTION,
                                       .attention = heads_of(2, 67, 4, 2, 64)}};
        tr_cuda_device device = attention_device();
        tr_op_context context = {.device = &device.base};
        tr_plan_names names = {0};
        tr_op *first, *op;
        tr_op_check check;
        char key[TR_PLAN_KEY];
        int taken = 0;
        tr_op_check_open(&c, TR_BF16, seed, ref, &check);
        tr_plan_key(&context, &check.start.desc, key, sizeof key);
        must(tr_op_prepare(&context, &check.start.desc, &first));
        must(first->plans->list(first, &names));
        assert_true(names.count >= 1);
        context.choice = TR_OP_RECORDED;
        for (int i = 0; i <= names.count; i++) {
            const char *name = i < names.count ? names.name[i] : "1:engine0";
            tr_op_data got;
            must(tr_op_data_clone(&check.start, &got));
            must(tr_plan_book_create(&context.book));
            must(tr_plan_book_add(context.book, key, name));
            must(tr_op_prepare(&context, &check.start.desc, &op));
            const bool refused = tr_plan_book_refused(context.book) > 0;
            assert_string_equal(op->plan, refused ? first->plan : name);
            assert_int_equal(op->scratch_bytes, first->scratch_bytes);
            assert_true(i < names.count || refused);
            taken += !refused;
            run_operator(op, &got);
            tr_op_check_near(&check, &got, name);
            tr_op_release(op);
            tr_op_data_free(&got);
            tr_plan_book_destroy(context.book);
        }
        assert_true(taken >= 1);
        tr_op_release(first);
        tr_op_check_close(&check);
    }
}

/* Attention that cuDNN refuses runs in the device's own kernels, in both directions, and needs no
 * plan. With a library that is too old preparing fails instead of running slowly without a
 * message. */
static void test_who_computes(void **state) {
    (void)state;
    tr_attention_desc own[] = {heads_of(2, 64, 4, 4, 64), heads_of(2, 64, 4, 4, 100),
                               heads_of(2, 64, 4, 2, 80), heads_of(2, 63, 4, 4, 64)};
    own[0].dtype = TR_F32;
    enum { OWN = sizeof own / sizeof *own };
    tr_cuda_device device = attention_device();
    const tr_op_context context = {.device = &device.base};
    for (int i = 0; i < 2 * OWN; i++) {
        const tr_op_desc desc = {.kind = i % 2 ? TR_OP_ATTENTION_DGRAD : TR_OP_ATTENTION,
                                 .attention = own[i / 2]};
        tr_op *op;
        must(tr_op_prepare(&context, &desc, &op));
        assert_int_equal(op->way, TR_OP_OWN);
        /* A row's mean is two floats. */
        assert_int_equal(op->scratch_bytes,
                         i % 2 ? (size_t)(2 * own[i / 2].seq * 4) * 2 * sizeof(float) : 0);
        tr_op_release(op);
    }
    const tr_op_desc old = {.kind = TR_OP_ATTENTION, .attention = heads_of(2, 64, 4, 4, 64)};
    tr_op *op;
    __typeof__(tr_cudnnGetVersion) version = tr_cudnnGetVersion;
    tr_cudnnGetVersion = old_version;
    assert_int_equal(tr_op_prepare(&context, &old, &op), TR_ERR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "is too old for attention"));
    tr_cudnnGetVersion = version;
    const tr_op_desc wide = {.kind = TR_OP_ATTENTION, .attention = heads_of(1, 9, 1, 1, 300)};
    assert_int_equal(tr_op_prepare(&context, &wide, &op), TR_ERR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "heads of 300 are too wide"));
}

static void assert_opening_sets(int ranks, const char *name, const char *value) {
    const tr_device_options options = {.threads = 1, .ranks = ranks};
    tr_device *device;
    assert_int_equal(unsetenv(name), 0);
    assert_int_equal(tr_device_open("cuda:0", &options, &device), TR_ERR_DEVICE);
    assert_non_null(strstr(tr_error_message(), "no GPU can be used here"));
    if (!value) {
        assert_null(getenv(name));
        return;
    }
    assert_non_null(getenv(name));
    assert_string_equal(getenv(name), value);
}

/* Before it looks for a GPU, opening the device sets the options of the CUDA context: a queue for
 * each stream, and loading all kernels at once where ranks wait for each other. */
static void test_environment(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        assert_opening_sets(ranks, "CUDA_DEVICE_MAX_CONNECTIONS", "32");
        assert_opening_sets(ranks, "CUDA_MODULE_LOADING", ranks > 1 ? "EAGER" : NULL);
    }
}

static int read_description(void **state) {
    (void)state;
    FILE *file = fopen(TRIREME_TEST_DATA "/h200.json", "r");
    if (!file) return -1;
    size_t bytes = fread(h200, 1, sizeof h200 - 1, file);
    (void)fclose(file);
    if (bytes == 0) return -1;
    rig_described = h200;
    rig_enter();
    return (int)tr_op_open_ref(&ref);
}

static int close_ref(void **state) {
    (void)state;
    tr_device_close(ref);
    return 0;
}

int main(void) {
    seed = tr_test_seed(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),       cmocka_unit_test(test_small),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_no_engine),
        cmocka_unit_test(test_operators),    cmocka_unit_test(test_plans),
        cmocka_unit_test(test_who_computes), cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, read_description, close_ref);
}
