/* Every operator of a device at the sizes of two GPT-2 models: the bytes of its tensors, time of
 * one run (the best of several), GFLOP/s or GB/s, and its share of the roof measured in the same
 * run: a square product for operators that are counted in FLOPs, a copy larger than the caches for
 * the rest (which may then pass 100 % when its tensors stay in the cache). Off the host a time is
 * that of many runs, enqueued one behind the other, over their number.
 *
 * Usage: bench_op [threads [part of an operator's name [device]]] */
#include "base/memory.h"
#include "base/philox.h"
#include "device/cpu/cpu.h"
#include "device/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct shapes {
    const char *name;
    int64_t batch, seq, width, heads, vocab;
} shapes;

/* One operator with the bytes of its tensors by index; what is read or written is `bytes` in all.
 */
typedef struct bench_case {
    const char *label;
    tr_op_desc desc;
    int64_t size[TR_OP_MAX_TENSORS];
    int integers;    /* index of the tensor of tokens or labels, or -1 */
    int64_t touched; /* 0: all */
} bench_case;

typedef struct bench {
    tr_device *device;
    tr_step_state state; /* the host's copy of *at */
    tr_step_state *at;
    char *pattern; /* staging: what tensors are filled with, piece by piece */
    double flops_roof, bytes_roof;
    const char *wanted; /* part of a label */
} bench;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(tr_status status) {
    if (status == TR_OK) return;
    fprintf(stderr, "bench_op: %s (%s)\n", tr_error_message(), tr_error_trace());
    exit((int)status);
}

enum { PATTERN = 1 << 24 };

/* Values in (0, 1 / 16], in the operator's storage type or FP32; both patterns are harmless numbers
 * in the other. */
static void draw(void *memory, int64_t bytes, bool integers, int64_t limit, tr_dtype dtype) {
    for (int64_t i = 0; i < bytes / 4; i++) {
        uint32_t bits = tr_philox4x32(1, (uint64_t)i, 0).v[0];
        float value = tr_uniform(bits) / 16;
        uint32_t half = tr_f32_to_bf16(value), pair = half << 16 | half;
        if (integers) ((int32_t *)memory)[i] = (int32_t)(bits % (uint32_t)limit);
        else if (dtype == TR_BF16) ((uint32_t *)memory)[i] = pair;
        else ((float *)memory)[i] = value;
    }
}

/* Large tensors repeat themselves every PATTERN bytes. */
static void fill(bench *b, char *memory, int64_t bytes, bool integers, int64_t limit,
                 tr_dtype dtype) {
    tr_stream *stream = tr_device_compute(b->device);
    int64_t piece = bytes < PATTERN ? bytes : PATTERN;
    draw(b->pattern, piece, integers, limit, dtype);
    for (int64_t at = 0; at < bytes; at += piece) {
        int64_t n = bytes - at < piece ? bytes - at : piece;
        check(tr_stream_copy(stream, memory + at, b->pattern, (size_t)n));
    }
    check(tr_stream_sync(stream));
}

/* Seconds of one of n runs. */
static double time_runs(bench *b, tr_op *op, const tr_op_args *args, int n) {
    tr_stream *stream = tr_device_compute(b->device);
    double start = now();
    for (int i = 0; i < n; i++) check(tr_op_run(op, stream, args));
    check(tr_stream_sync(stream));
    return (now() - start) / n;
}

/* The best of at least 5, for a fifth of a second. On the host a run is done when it returns; on
 * other devices as many as take a fiftieth of a second are enqueued together. */
static double time_op(bench *b, tr_op *op, const tr_op_args *args) {
    double best = 1e9, begin = now();
    int n = 1;
    if (!tr_device_on_host(b->device)) {
        (void)time_runs(b, op, args, 3);
        double one = time_runs(b, op, args, 3);
        n = one < 0.02 ? (int)(0.02 / one) + 1 : 1;
        if (n > 1000) n = 1000;
    }
    for (int run = 0; run < 5 || now() - begin < 0.2; run++) {
        double took = time_runs(b, op, args, n);
        best = took < best ? took : best;
    }
    return best;
}

/* Seconds of one run. */
static double time_case(bench *b, const bench_case *c, int64_t limit, tr_dtype dtype) {
    tr_op *op;
    tr_op_args args = {.state = b->at};
    tr_stream *stream = tr_device_compute(b->device);
    memcpy(b->pattern, &b->state, sizeof b->state);
    check(tr_stream_copy(stream, b->at, b->pattern, sizeof b->state));
    check(tr_stream_sync(stream));
    check(tr_op_prepare(b->device, &c->desc, &op));
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        if (!c->size[i]) continue;
        check(tr_device_alloc(b->device, TR_MEMORY_DATA, (size_t)c->size[i], &args.t[i]));
        fill(b, args.t[i], c->size[i], i == c->integers, limit, dtype);
    }
    check(tr_device_alloc(b->device, TR_MEMORY_DATA, op->scratch_bytes + 1, &args.scratch));
    double best = time_op(b, op, &args);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) tr_device_free(b->device, args.t[i]);
    tr_device_free(b->device, args.scratch);
    tr_op_release(op);
    return best;
}

static void report(bench *b, const bench_case *c, int64_t limit, tr_dtype dtype) {
    if (!strstr(c->label, b->wanted)) return;
    double seconds = time_case(b, c, limit, dtype), flops = tr_op_flops(&c->desc);
    double bytes = (double)c->touched;
    for (int i = 0; i < TR_OP_MAX_TENSORS && !c->touched; i++) bytes += (double)c->size[i];
    bool compute = flops > 0;
    double rate = (compute ? flops : bytes) / seconds;
    printf("%-26s %9.2f MB %10.1f us %9.1f %-7s %4.0f %%\n", c->label, bytes * 1e-6, seconds * 1e6,
           rate / 1e9, compute ? "GFLOP/s" : "GB/s",
           100 * rate / (compute ? b->flops_roof : b->bytes_roof));
    fflush(stdout);
}

static bench_case product(const char *label, int64_t m, int64_t n, int64_t k, tr_dtype dtype,
                          bool trans_a, bool trans_b, bool bias) {
    int64_t e = (int64_t)tr_dtype_size(dtype);
    bool accumulate = trans_a;
    tr_dtype c = accumulate ? TR_F32 : dtype;
    return (bench_case){
        .label = label,
        .integers = -1,
        .desc = {.kind = TR_OP_MATMUL,
                 .matmul = {.m = m,
                            .n = n,
                            .k = k,
                            .a = dtype,
                            .b = dtype,
                            .c = c,
                            .trans_a = trans_a,
                            .trans_b = trans_b,
                            .bias = bias,
                            .accumulate = accumulate}},
        .size = {m * k * e, k * n * e, m * n * (int64_t)tr_dtype_size(c), bias ? n * e : 0}};
}

/* The same product with an epilogue. */
static bench_case with(bench_case c, tr_epilogue epilogue) {
    const tr_matmul_desc *d = &c.desc.matmul;
    bool sums = epilogue == TR_EPILOGUE_BIAS_GRAD;
    c.desc.matmul.epilogue = epilogue;
    c.size[sums ? TR_MATMUL_DBIAS : TR_MATMUL_AUX] =
        sums ? d->n * (int64_t)sizeof(float) : c.size[TR_MATMUL_C];
    return c;
}

static void products(bench *b, const shapes *s, tr_dtype dtype) {
    int64_t m = s->batch * s->seq, c = s->width;
    const bench_case cases[] = {
        product("matmul qkv", m, 3 * c, c, dtype, false, false, true),
        product("matmul proj", m, c, c, dtype, false, false, true),
        product("matmul fc", m, 4 * c, c, dtype, false, false, true),
        with(product("matmul fc, gelu", m, 4 * c, c, dtype, false, false, true), TR_EPILOGUE_GELU),
        product("matmul fc_proj", m, c, 4 * c, dtype, false, false, true),
        product("matmul fc dgrad", m, c, 4 * c, dtype, false, true, false),
        product("matmul fc wgrad", c, 4 * c, m, dtype, true, false, false),
        with(product("matmul fc wgrad, bias", c, 4 * c, m, dtype, true, false, false),
             TR_EPILOGUE_BIAS_GRAD),
        with(product("matmul fc_proj dgrad, gelu", m, 4 * c, c, dtype, false, true, false),
             TR_EPILOGUE_GELU_DGRAD),
        product("matmul head", m, s->vocab, c, dtype, false, true, false),
        product("matmul head dgrad", m, c, s->vocab, dtype, false, false, false),
        product("matmul head wgrad", s->vocab, c, m, dtype, true, false, false),
        product("matmul fc decode", 1, 4 * c, c, dtype, false, false, true),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) report(b, &cases[i], 1, dtype);
}

static void others(bench *b, const shapes *s, tr_dtype t) {
    const int64_t e = (int64_t)tr_dtype_size(t), rows = s->batch * s->seq, c = s->width;
    const int64_t x = rows * c * e, f = 4, vocab = s->vocab, params = 12 * c * c;
    const tr_layernorm_desc norm = {.rows = rows, .width = c, .eps = 1e-5f, .dtype = t};
    const tr_rows_desc narrow = {.rows = rows, .width = c, .dtype = t, .to = TR_F32};
    const tr_rows_desc wide = {.rows = rows, .width = 4 * c, .dtype = t};
    const tr_attention_desc attention = {s->batch, s->seq, s->heads, c / s->heads, t};
    const tr_attention_desc decode = {1, s->seq, s->heads, c / s->heads, t};
    const tr_embed_desc embed = {rows, c, s->seq, 0, vocab, false, t};
    const tr_dropout_desc dropout = {rows, c, s->seq, 0.1f, 7, t};
    const tr_xent_desc xent = {.rows = rows, .vocab = vocab, .dtype = t};
    const tr_adamw_desc adamw = {params, 0.9f, 0.95f, 1e-8f, 0.1f, t};
    const int64_t lse = s->batch * s->heads * s->seq * f, logits = rows * vocab * e;
#define CASE(UPPER, member, value, ints, ...)                                                      \
    { tr_op_name(TR_OP_##UPPER), {.kind = TR_OP_##UPPER, .member = value}, __VA_ARGS__, ints, 0 }
    const bench_case cases[] = {
        CASE(BIAS_GRAD, rows, wide, -1, {4 * x, 4 * c * f}),
        CASE(LAYERNORM, layernorm, norm, -1, {x, c * e, c * e, x, rows * f, rows * f}),
        CASE(LAYERNORM_DGRAD, layernorm, norm, -1, {x, x, c * e, rows * f, rows * f, x, x}),
        CASE(LAYERNORM_WGRAD, layernorm, norm, -1, {x, x, rows * f, rows * f, c * f, c * f}),
        CASE(GELU, rows, wide, -1, {4 * x, 4 * x}),
        CASE(GELU_DGRAD, rows, wide, -1, {4 * x, 4 * x, 4 * x}),
        CASE(ATTENTION, attention, attention, -1, {3 * x, x, lse}),
        CASE(ATTENTION_DGRAD, attention, attention, -1, {x, 3 * x, x, lse, 3 * x}),
        CASE(ATTENTION_DECODE, attention, decode, -1,
             {3 * c * e, s->seq * c * e, s->seq * c * e, c * e}),
        CASE(EMBED, embed, embed, 0, {rows * f, vocab * c * e, x}),
        CASE(EMBED_WGRAD, embed, embed, 1, {x, rows * f, vocab * c * f}),
        CASE(POSITION, embed, embed, -1, {x, s->seq * c * e, x}),
        CASE(POSITION_WGRAD, embed, embed, -1, {x, s->seq * c * f}),
        CASE(DROPOUT_ADD, dropout, dropout, -1, {x, c * e, x, x}),
        CASE(DROPOUT_DGRAD, dropout, dropout, -1, {x, x}),
        CASE(XENT_MAX, xent, xent, 1, {logits, rows * f, rows * f}),
        CASE(XENT_SUM, xent, xent, 1, {logits, rows * f, rows * f, rows * 2 * f}),
        CASE(XENT_LOSS, xent, xent, 1, {logits, rows * f, rows * f, rows * 2 * f, 16}),
        CASE(ADD, rows, narrow, -1, {x, x, x}),
        CASE(CAST, rows, narrow, -1, {x, rows * c * f}),
        CASE(SUMSQ, sumsq, {params}, -1, {params * f, 8}),
        CASE(ADAMW, adamw, adamw, -1, {params * f, params * f, params * f, params * f, params * e}),
    };
#undef CASE
    b->state.position = s->seq - 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench_case one = cases[i]; /* of the embedding table, only the tokens' rows are touched */
        if (one.desc.kind == TR_OP_EMBED) one.touched = 2 * x;
        if (one.desc.kind == TR_OP_EMBED_WGRAD) one.touched = x + 2 * rows * c * f;
        report(b, &one, vocab, t);
    }
}

/* Bytes read and written per second by a stream copy of 64 MiB, off the host of 1 GiB. */
static double copy_rate(bench *b) {
    const int64_t count = tr_device_on_host(b->device) ? 16 << 20 : 256 << 20;
    bench_case copy = {.desc = {.kind = TR_OP_CAST,
                                .rows = {.rows = 1, .width = count, .dtype = TR_F32, .to = TR_F32}},
                       .integers = -1,
                       .size = {count * 4, count * 4}};
    return (double)(count * 8) / time_case(b, &copy, 1, TR_F32);
}

static void measure(bench *b, const shapes *models, int count, tr_dtype t) {
    const int64_t n = tr_device_on_host(b->device) ? 1024 : 8192;
    const bench_case roof = product("roof", n, n, n, t, false, false, false);
    b->flops_roof = tr_op_flops(&roof.desc) / time_case(b, &roof, 1, t);
    for (int i = 0; i < count; i++) {
        printf("\n%s, %s; roofs %.1f GFLOP/s, %.1f GB/s\n", models[i].name, tr_dtype_name(t),
               b->flops_roof / 1e9, b->bytes_roof / 1e9);
        products(b, &models[i], t);
        others(b, &models[i], t);
    }
}

int main(int argc, char **argv) {
    const shapes host[] = {{"L6 C384 T256 B8, bytes", 8, 256, 384, 6, 256},
                           {"124M: C768 T1024 B1, 50304 tokens", 1, 1024, 768, 12, 50304}};
    const shapes gpu[] = {{"124M: C768 T1024 B16, 50304 tokens", 16, 1024, 768, 12, 50304},
                          {"1.5B: C1600 T1024 B8, 50304 tokens", 8, 1024, 1600, 25, 50304}};
    tr_device_options options = {.threads = argc > 1 ? atoi(argv[1]) : 2};
    const char *name = argc > 3 ? argv[3] : "cpu";
    bench b = {.wanted = argc > 2 ? argv[2] : "",
               .state = {.seed = 1,
                         .step = 1,
                         .train = 1,
                         .loss_scale = 1,
                         .lr = 1e-4f,
                         .bias_correction1 = 0.1f,
                         .bias_correction2 = 0.05f,
                         .gradient_factor = 1}};
    check(tr_device_open(name, &options, &b.device));
    check(tr_device_alloc(b.device, TR_MEMORY_DATA, sizeof *b.at, (void **)&b.at));
    check(tr_device_staging_alloc(b.device, PATTERN, (void **)&b.pattern));
    bool cuda = strncmp(name, "cuda", 4) == 0;
    if (cuda) printf("device %s\n", name);
    else
        printf("oneDNN %s, %s, BF16 %s, %d threads\n", tr_cpu_onednn_version((char[32]){0}, 32),
               tr_cpu_isa(), tr_cpu_bf16_native() ? "native" : "widened", options.threads);
    b.bytes_roof = copy_rate(&b);
    for (tr_dtype t = cuda ? TR_BF16 : TR_F32; t <= TR_BF16; t++)
        measure(&b, cuda ? gpu : host, 2, t);
    tr_device_staging_free(b.device, b.pattern);
    tr_device_free(b.device, b.at);
    tr_device_close(b.device);
    return 0;
}
