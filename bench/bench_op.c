/* Times the operators of a device at the sizes of two GPT-2 models, and Llama's operators at the
 * same sizes; on a GPU also all of them at the sizes of Llama 3 8B. The data are normal and random,
 * and as in a run no result is subnormal, which processors compute slowly.
 * Prints the bytes of its tensors, the median time of a run, GFLOP/s or GB/s, and the share of the
 * roof, which is measured in the same run: a square product for operators that are counted in
 * FLOPs, a copy larger than the caches for the rest (these may exceed 100 % when their tensors stay
 * in the cache). On a GPU many runs are enqueued together, and a time is their total divided by
 * their number. Exit code 1: an operator ran without the library that the device has for it.
 *
 * Usage: bench_op [threads [part of an operator's name [device]]] */
#include "bench/gpt2_products.h"
#include "bench/measure.h"
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

typedef struct shapes {
    const char *name;
    int64_t batch, seq, width, heads, kv_heads, vocab;
} shapes;

typedef struct bench_case {
    const char *label;
    tr_op_desc desc;
    unsigned positive; /* bit mask of FP32 operands: sums, maxima, squares */
    unsigned ones;     /* bit mask of factors of what runs change in place, again and again */
    int64_t touched;   /* bytes that a run moves; 0: tr_op_bytes */
} bench_case;

typedef struct bench {
    tr_device *device;
    tr_step_state state; /* the host's copy of *at */
    tr_step_state *at;
    char *normal, *other; /* staging: random data of the type that is measured; scratch */
    double flops_roof, bytes_roof;
    const char *wanted; /* part of a label */
    bool gpu;           /* larger sizes */
    int slow;           /* operators that ran without the library that the device has for them */
} bench;

static void check(tr_status status) {
    if (status == TR_OK) return;
    fprintf(stderr, "bench_op: %s (%s)\n", tr_error_message(), tr_error_trace());
    exit((int)status);
}

/* Sets b->other to the random numbers times `factor`, plus `more`. */
static void rescale(bench *b, tr_dtype dtype, int64_t bytes, float factor, float more) {
    for (int64_t i = 0; i < bytes / (int64_t)tr_dtype_size(dtype); i++)
        if (dtype == TR_BF16)
            ((uint16_t *)b->other)[i] =
                tr_f32_to_bf16(tr_bf16_to_f32(((uint16_t *)b->normal)[i]) * factor + more);
        else ((float *)b->other)[i] = ((float *)b->normal)[i] * factor + more;
}

/* Fills operand `index` of the case. Integers are tokens or labels. Of a product the right
 * operand is as small as weights are, so that the results have the data's size. */
static void fill(bench *b, const bench_case *c, int index, const tr_tensor *t, int64_t limit) {
    const int64_t bytes = (int64_t)tr_tensor_bytes(t);
    const int64_t piece = bytes < BENCH_PATTERN ? bytes : BENCH_PATTERN;
    const char *from = b->normal;
    if (t->dtype == TR_I32) {
        int32_t *x = (int32_t *)(from = b->other);
        for (int64_t i = 0; i < piece / 4; i++)
            x[i] = (int32_t)(tr_philox4x32(1, (uint64_t)i, 0).v[0] % (uint32_t)limit);
    } else if (c->positive >> index & 1) { /* at least 4, so that their quotients stay small */
        float *x = (float *)(from = b->other);
        memcpy(x, b->normal, (size_t)piece);
        for (int64_t i = 0; i < piece / 4; i++) x[i] = fabsf(x[i]) + 4;
    } else if (c->ones >> index & 1) {
        from = b->other;
        rescale(b, t->dtype, piece, 0, 1);
    } else if (c->desc.kind == TR_OP_MATMUL && index == TR_MATMUL_B) {
        from = b->other;
        rescale(b, t->dtype, piece, 1 / sqrtf((float)c->desc.matmul.k), 0);
    }
    check(bench_fill(b->device, t->data, bytes, from));
}

/* Returns the median seconds of one run, and sets how the device runs it. Gradients of parameters
 * are added to, as in every micro-batch of a step except the first. */
static double time_case(bench *b, const bench_case *c, int64_t limit, tr_op_way *way) {
    bench_run r = {.args = {.state = b->at, .adds = true}, .stream = tr_device_compute(b->device)};
    double seconds = 0;
    memcpy(b->other, &b->state, sizeof b->state);
    check(tr_stream_copy(r.stream, b->at, b->other, sizeof b->state));
    check(tr_stream_sync(r.stream));
    check(tr_op_prepare(&(tr_op_context){.device = b->device}, &c->desc, &r.op));
    *way = r.op->way;
    tr_op_operands(&c->desc, r.args.t);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        tr_tensor *t = &r.args.t[i];
        if (!t->rank) continue;
        check(tr_device_alloc(b->device, TR_MEMORY_DATA, tr_tensor_bytes(t), &t->data));
        fill(b, c, i, t, limit);
    }
    check(tr_device_alloc(b->device, TR_MEMORY_DATA, r.op->scratch_bytes + 1, &r.args.scratch));
    check(bench_time(b->device, bench_run_op, &r, 0.2, &seconds));
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) tr_device_free(b->device, r.args.t[i].data);
    tr_device_free(b->device, r.args.scratch);
    tr_op_release(r.op);
    return seconds;
}

static void report(bench *b, const bench_case *c, int64_t limit) {
    if (!strstr(c->label, b->wanted)) return;
    static const char *const ways[] = {[TR_OP_WHOLE] = "",
                                       [TR_OP_IN_PARTS] = "  SLOW: in parts",
                                       [TR_OP_OWN] = "  SLOW: own kernel"};
    tr_op_way way;
    double seconds = time_case(b, c, limit, &way), flops = tr_op_flops(&c->desc);
    double bytes = c->touched ? (double)c->touched : tr_op_bytes(&c->desc);
    bool compute = flops > 0;
    double rate = (compute ? flops : bytes) / seconds;
    printf("%-26s %9.2f MB %10.1f us %9.1f %-7s %4.0f %%%s\n", c->label, bytes * 1e-6,
           seconds * 1e6, rate / 1e9, compute ? "GFLOP/s" : "GB/s",
           100 * rate / (compute ? b->flops_roof : b->bytes_roof), ways[way]);
    b->slow += way != TR_OP_WHOLE;
    fflush(stdout);
}

/* Times the products of a step, two of them also without their epilogues, and one product for a
 * single token. */
static void products(bench *b, const shapes *s, tr_dtype dtype) {
    const int64_t rows = s->batch * s->seq, c = s->width;
    const tr_fusion none = {0}, bias = {.bias = true};
    bench_product list[BENCH_PRODUCTS];
    bench_products(rows, c, s->vocab, dtype, list);
    const bench_case more[] = {
        {.label = "matmul fc, bias", bench_forward(rows, 4 * c, c, dtype, bias)},
        {.label = "matmul fc wgrad", bench_wgrad(c, 4 * c, rows, dtype, none)},
        {.label = "matmul fc decode", bench_forward(1, 4 * c, c, dtype, bias)},
    };
    for (int i = 0; i < BENCH_PRODUCTS; i++) {
        const bench_case one = {.label = list[i].label, .desc = list[i].desc};
        report(b, &one, 1);
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) report(b, &more[i], 1);
}

static tr_attention_desc attention_of(const shapes *s, int64_t batch, int64_t kv_heads,
                                      tr_dtype t) {
    return (tr_attention_desc){.batch = batch,
                               .seq = s->seq,
                               .heads = s->heads,
                               .kv_heads = kv_heads,
                               .head_size = s->width / s->heads,
                               .dtype = t};
}

/* Times Llama's operators at the same sizes, with s->kv_heads key heads and an MLP of 8/3 of the
 * width. */
static void llama(bench *b, const shapes *s, tr_dtype t) {
    const int64_t rows = s->batch * s->seq, c = s->width, size = c / s->heads;
    const int64_t turned = s->heads + s->kv_heads; /* heads of queries and keys */
    const tr_rmsnorm_desc norm = {.rows = rows, .width = c, .eps = 1e-5f, .dtype = t};
    const tr_rmsnorm_desc heads = {
        .rows = rows * s->heads, .width = size, .eps = 1e-5f, .dtype = t};
    const tr_glu_desc glu = {rows, (8 * c / 3 + 63) / 64 * 64, TR_ACTIVATION_SILU, t};
    const tr_rope_desc rope = {.rows = rows,
                               .seq = s->seq,
                               .heads = turned,
                               .head_size = size,
                               .ld = turned * size,
                               .theta = 500000,
                               .dtype = t};
    tr_norm_rope_desc norm_rope = {.rope = rope, .eps = 1e-6};
    norm_rope.rope.heads = s->heads;
    norm_rope.rope.ld = s->heads * size;
    const tr_attention_desc grouped = attention_of(s, s->batch, s->kv_heads, t);
    tr_attention_desc decode = attention_of(s, 1, s->kv_heads, t);
    decode.decode = 1;
    tr_attention_desc window = grouped;
    window.window = s->seq / 4;
#define CASE(text, UPPER, member, value)                                                           \
    {                                                                                              \
        .label = text, .desc = {.kind = TR_OP_##UPPER, .member = value }                           \
    }
    const bench_case cases[] = {
        CASE("rmsnorm", RMSNORM, rmsnorm, norm),
        CASE("rmsnorm_dgrad", RMSNORM_DGRAD, rmsnorm, norm),
        CASE("rmsnorm_wgrad", RMSNORM_WGRAD, rmsnorm, norm),
        CASE("rmsnorm, heads", RMSNORM, rmsnorm, heads),
        CASE("rope", ROPE, rope, rope),
        CASE("norm_rope", NORM_ROPE, norm_rope, norm_rope),
        CASE("norm_rope_dgrad", NORM_ROPE_DGRAD, norm_rope, norm_rope),
        CASE("glu", GLU, glu, glu),
        CASE("glu_dgrad", GLU_DGRAD, glu, glu),
        CASE("attention, grouped", ATTENTION, attention, grouped),
        CASE("attention_dgrad, grouped", ATTENTION_DGRAD, attention, grouped),
        CASE("attention_decode, grouped", ATTENTION_DECODE, attention, decode),
        CASE("attention, window", ATTENTION, attention, window),
        CASE("attention_dgrad, window", ATTENTION_DGRAD, attention, window),
    };
#undef CASE
    for (int k = 0; k < TR_STEP_TEXTS; k++) b->state.position[k] = s->seq - 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench_case one = cases[i];
        if (one.desc.kind == TR_OP_ATTENTION_DGRAD) one.positive = 1u << TR_ATTENTION_DGRAD_LSE;
        if (one.desc.kind == TR_OP_NORM_ROPE) one.ones = 1u << TR_NORM_ROPE_GAMMA;
        if (one.desc.kind == TR_OP_NORM_ROPE_DGRAD)
            one.ones = 1u << TR_NORM_ROPE_DGRAD_GAMMA | 1u << TR_NORM_ROPE_DGRAD_RSTD;
        report(b, &one, 1);
    }
}

/* Returns the bytes that an embedding moves: only the tokens' rows of its table are read. */
static int64_t touched_rows(const tr_embed_desc *d, bool gradient) {
    const int64_t size = (int64_t)tr_dtype_size(d->dtype);
    return d->rows * d->width * (gradient ? size + 2 * (int64_t)sizeof(float) : 2 * size);
}

/* Sets the bytes that a case moves, and which operands are positive. */
static bench_case complete(bench_case one) {
    switch (one.desc.kind) {
    case TR_OP_EMBED: one.touched = touched_rows(&one.desc.embed, false); break;
    case TR_OP_EMBED_WGRAD: one.touched = touched_rows(&one.desc.embed, true); break;
    case TR_OP_UPDATE: one.positive = 1u << TR_UPDATE_V; break;
    case TR_OP_ATTENTION_DGRAD: one.positive = 1u << TR_ATTENTION_DGRAD_LSE; break;
    case TR_OP_XENT_SUM:
    case TR_OP_XENT_LOSS:
    case TR_OP_XENT_DGRAD: one.positive = 1u << TR_XENT_MAX | 1u << TR_XENT_SUMS; break;
    default: break;
    }
    return one;
}

static void others(bench *b, const shapes *s, tr_dtype t) {
    const int64_t rows = s->batch * s->seq, c = s->width, vocab = s->vocab, params = 12 * c * c;
    const tr_layernorm_desc norm = {.rows = rows, .width = c, .eps = 1e-5f, .dtype = t};
    const tr_rows_desc narrow = {.rows = rows, .width = c, .dtype = t, .to = TR_F32};
    const tr_rows_desc wide = {.rows = rows, .width = 4 * c, .dtype = t};
    const tr_attention_desc attention = attention_of(s, s->batch, s->heads, t);
    tr_attention_desc decode = attention_of(s, 1, s->heads, t);
    decode.decode = 1;
    const tr_embed_desc embed = {
        .rows = rows, .width = c, .seq = s->seq, .vocab = vocab, .dtype = t};
    const tr_dropout_desc dropout = {
        .rows = rows, .width = c, .seq = s->seq, .p = 0.1f, .site = 7, .dtype = t};
    tr_add_norm_desc add_norm = {.add = dropout, .eps = 1e-5f};
    add_norm.add.p = 0;
    const tr_xent_desc xent = {.rows = rows, .vocab = vocab, .dtype = t};
    const tr_update_desc update = {.count = params,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .weight_decay = 0.1f,
                                   .dtype = t,
                                   .lr_scale = 1};
#define CASE(UPPER, member, value)                                                                 \
    {                                                                                              \
        .label = tr_op_name(TR_OP_##UPPER), .desc = {.kind = TR_OP_##UPPER, .member = value }      \
    }
    const bench_case cases[] = {
        CASE(BIAS_GRAD, rows, wide),
        CASE(LAYERNORM, layernorm, norm),
        CASE(LAYERNORM_DGRAD, layernorm, norm),
        CASE(LAYERNORM_WGRAD, layernorm, norm),
        CASE(ACTIVATION, rows, wide),
        CASE(ACTIVATION_DGRAD, rows, wide),
        CASE(ATTENTION, attention, attention),
        CASE(ATTENTION_DGRAD, attention, attention),
        CASE(ATTENTION_DECODE, attention, decode),
        CASE(EMBED, embed, embed),
        CASE(EMBED_WGRAD, embed, embed),
        CASE(POSITION, embed, embed),
        CASE(POSITION_WGRAD, embed, embed),
        CASE(DROPOUT_ADD, dropout, dropout),
        CASE(DROPOUT_DGRAD, dropout, dropout),
        CASE(ADD_NORM, add_norm, add_norm),
        CASE(XENT_MAX, xent, xent),
        CASE(XENT_SUM, xent, xent),
        CASE(XENT_LOSS, xent, xent),
        CASE(XENT_DGRAD, xent, xent),
        CASE(XENT, xent, xent),
        CASE(ADD, rows, narrow),
        CASE(CAST, rows, narrow),
        CASE(SUMSQ, sumsq, {.count = params}),
        CASE(UPDATE, update, update),
    };
#undef CASE
    for (int k = 0; k < TR_STEP_TEXTS; k++) b->state.position[k] = s->seq - 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bench_case one = complete(cases[i]);
        report(b, &one, vocab);
    }
}

/* Times what depends on no storage type: the rounding of a block's gradients, and Adafactor's
 * moments of the widest matrix in it. */
static void rounding(bench *b, const shapes *s) {
    const int64_t c = s->width, params = 12 * c * c;
    const tr_factor_desc factor = {.rows = c, .cols = 4 * c, .all_rows = c, .all_cols = 4 * c};
    const bench_case cases[] = {
        {.label = "quantize",
         .desc = {.kind = TR_OP_QUANTIZE,
                  .quantize = {.count = params,
                               .boxes = 1,
                               .box = {{.rows = 1, .cols = params, .ld = params}}}}},
        {.label = "factor_sums", .desc = {.kind = TR_OP_FACTOR_SUMS, .factor = factor}},
        {.label = "factor",
         .desc = {.kind = TR_OP_FACTOR, .factor = factor},
         .positive = 1u << TR_FACTOR_R | 1u << TR_FACTOR_C},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) report(b, &cases[i], 1);
}

/* Returns the bytes read and written per second by a stream copy of 64 MiB (on a GPU: 1 GiB). */
static double copy_rate(bench *b) {
    const int64_t count = b->gpu ? 256 << 20 : 16 << 20;
    bench_case copy = {
        .desc = {.kind = TR_OP_CAST,
                 .rows = {.rows = 1, .width = count, .dtype = TR_F32, .to = TR_F32}}};
    return (double)(count * 8) / time_case(b, &copy, 1, &(tr_op_way){0});
}

static tr_dtype first_type(const bench *b) {
    return b->gpu ? TR_BF16 : TR_F32;
}

static void measure(bench *b, const shapes *models, int count, tr_dtype t) {
    const int64_t n = b->gpu ? 8192 : 1024;
    const bench_case roof = {.desc = bench_forward(n, n, n, t, (tr_fusion){0})};
    bench_draw(b->normal, t);
    b->flops_roof = tr_op_flops(&roof.desc) / time_case(b, &roof, 1, &(tr_op_way){0});
    for (int i = 0; i < count; i++) {
        printf("\n%s, %s; roofs %.1f GFLOP/s, %.1f GB/s\n", models[i].name, tr_dtype_name(t),
               b->flops_roof / 1e9, b->bytes_roof / 1e9);
        products(b, &models[i], t);
        others(b, &models[i], t);
        if (t == first_type(b)) rounding(b, &models[i]);
        llama(b, &models[i], t);
    }
}

int main(int argc, char **argv) {
    const shapes host[] = {{"L6 C384 T256 B8, bytes", 8, 256, 384, 6, 2, 256},
                           {"124M: C768 T1024 B1, 50304 tokens", 1, 1024, 768, 12, 4, 50304}};
    const shapes gpu[] = {{"124M: C768 T1024 B16, 50304 tokens", 16, 1024, 768, 12, 4, 50304},
                          {"1.5B: C1600 T1024 B8, 50304 tokens", 8, 1024, 1600, 25, 5, 50304},
                          {"8B: C4096 T8192 B1, 128256 tokens", 1, 8192, 4096, 32, 8, 128256}};
    tr_device_options options = {.threads = argc > 1 ? atoi(argv[1]) : 2};
    const char *name = argc > 3 ? argv[3] : "cpu";
    bench b = {.wanted = argc > 2 ? argv[2] : "",
               .gpu = strncmp(name, "cuda", 4) == 0,
               .state = {.seed = 1,
                         .step = 1,
                         .train = 1,
                         .loss_scale = 1,
                         .lr = 1e-4f,
                         .bias_correction1 = 0.1f,
                         .bias_correction2 = 0.05f,
                         .square_weight = 0.1,
                         .gradient_factor = 1}};
    check(tr_device_open(name, &options, &b.device));
    check(tr_device_alloc(b.device, TR_MEMORY_DATA, sizeof *b.at, (void **)&b.at));
    check(tr_device_staging_alloc(b.device, BENCH_PATTERN, (void **)&b.normal));
    check(tr_device_staging_alloc(b.device, BENCH_PATTERN, (void **)&b.other));
    bench_draw(b.normal, TR_F32);
    if (b.gpu) printf("device %s\n", name);
    else
        printf("oneDNN %s, %s, BF16 %s, %d threads\n", tr_cpu_onednn_version((char[32]){0}, 32),
               tr_cpu_isa(), tr_cpu_bf16_native() ? "native" : "widened", options.threads);
    b.bytes_roof = copy_rate(&b);
    for (tr_dtype t = first_type(&b); t <= TR_BF16; t++)
        measure(&b, b.gpu ? gpu : host, b.gpu ? 3 : 2, t);
    tr_device_staging_free(b.device, b.normal);
    tr_device_staging_free(b.device, b.other);
    tr_device_free(b.device, b.at);
    tr_device_close(b.device);
    if (b.slow == 0) return 0;
    fprintf(stderr,
            "bench_op: %d operators were not run whole by cuBLASLt, cuDNN or oneDNN (SLOW above)\n",
            b.slow);
    return 1;
}
