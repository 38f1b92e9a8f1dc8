/* Times the products of a GPT-2 step in BF16 with every plan that cuBLASLt proposes, on normal
 * random data: the first plan, which the device takes, and the fastest, with 32 and with 256 MiB of
 * workspace; a product with its epilogue in one plan, and in two. At the end it prints the sum over
 * the products of a block. Each time is a median over runs of the operator as training calls it.
 *
 * The program intercepts the library call with which the device searches for a plan, so it times
 * the device's operator with another plan.
 *
 * Usage: bench_matmul [device [rows width vocab]], GPT-2 124M and 1.5B when no sizes are given */
#include "base/memory.h"
#include "bench/gpt2_products.h"
#include "bench/measure.h"
#include "device/cuda/libraries.h"
#include "device/device_impl.h"

#include <stdio.h>

enum { PLANS = 32, LIMITS = 2 };

static const size_t limits[LIMITS] = {(size_t)32 << 20, (size_t)256 << 20};

/* The next search returns plan `index` of those that it finds. */
static struct { int index, found; /* found: by the last search */ } choice;

static __typeof__(tr_cublasLtMatmulAlgoGetHeuristic) library_search;

/* Replaces the library's search. */
static cublasStatus_t choose_plan(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                  cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                  cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                  cublasLtMatmulPreference_t preference, int wanted,
                                  cublasLtMatmulHeuristicResult_t *results, int *count) {
    cublasLtMatmulHeuristicResult_t all[PLANS];
    int n = 0;
    (void)wanted;
    *count = choice.found = 0;
    cublasStatus_t status = library_search(handle, product, a, b, c, d, preference, PLANS, all, &n);
    for (int i = 0; i < n && status == CUBLAS_STATUS_SUCCESS; i++) {
        if (all[i].state != CUBLAS_STATUS_SUCCESS) continue;
        if (choice.found++ != choice.index) continue;
        *results = all[i];
        *count = 1;
    }
    return status;
}

typedef struct bench {
    tr_device *device;
    void *normal, *scratch;
    double roof; /* FLOP/s of a square product by the first plan */
} bench;

/* Seconds by the first and by the fastest plan. */
typedef struct timing {
    int plans, best_plan;
    double first, best;
    size_t best_scratch;
} timing;

/* Prepares a product and its epilogue as separate operators, also where the library has one plan
 * for both. */
static tr_status prepare_parts(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    TR_TRY(tr_op_decompose(context, desc, out));
    return tr_op_list(*out);
}

typedef tr_status (*prepare_fn)(const tr_op_context *context, const tr_op_desc *desc, tr_op **out);

/* Times every plan. Skips a plan that the library then refuses to run. */
static tr_status time_plans(bench *b, prepare_fn prepare, const tr_op_desc *desc,
                            const tr_op_args *args, size_t workspace, timing *out) {
    bench_run r = {.stream = tr_device_compute(b->device), .args = *args};
    *out = (timing){.plans = 1};
    const tr_op_context context = {.device = b->device, .workspace = workspace};
    for (choice.index = 0; choice.index < out->plans; choice.index++) {
        double seconds = 0;
        TR_TRY(prepare(&context, desc, &r.op));
        if (choice.index == 0) out->plans = choice.found;
        const size_t scratch = r.op->scratch_bytes;
        tr_status status =
            out->plans ? bench_time(b->device, bench_run_op, &r, 0.02, &seconds) : TR_OK;
        tr_op_release(r.op);
        if (out->plans == 0) return TR_OK;
        if (status != TR_OK) continue;
        if (out->first == 0) out->first = seconds;
        if (out->best > 0 && seconds >= out->best) continue;
        out->best = seconds;
        out->best_plan = choice.index;
        out->best_scratch = scratch;
    }
    return TR_OK;
}

static void print_timing(const bench *b, const bench_product *p, const char *way, size_t workspace,
                         const timing *t) {
    const double rate = tr_op_flops(&p->desc) / t->best;
    printf("%-24s %-6s %4zu %5d", p->label, way, workspace >> 20, t->plans);
    if (t->plans == 0) printf("  the library has no plan\n");
    else
        printf(" %10.1f %10.1f %+6.1f %% %4d %8.1f %9.1f %4.0f %%\n", t->first * 1e6, t->best * 1e6,
               100 * (t->best / t->first - 1), t->best_plan, (double)t->best_scratch / (1 << 20),
               rate / 1e12, 100 * rate / b->roof);
    fflush(stdout);
}

/* Seconds of the products of a block: by the first plans; by the fastest in each workspace; and
 * where the parts replace what is slower in one plan. */
typedef struct sums {
    double first, best[LIMITS], apart;
} sums;

/* Weight gradients are added to, as in every micro-batch of a step except the first. */
static tr_status allocate(bench *b, const tr_op_desc *desc, tr_op_args *args) {
    args->scratch = b->scratch;
    args->adds = true;
    tr_op_operands(desc, args->t);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        const size_t bytes = tr_tensor_bytes(&args->t[i]);
        if (!args->t[i].rank) continue;
        TR_TRY(tr_device_alloc(b->device, TR_MEMORY_DATA, bytes, &args->t[i].data));
        TR_TRY(bench_fill(b->device, args->t[i].data, (int64_t)bytes, b->normal));
    }
    return TR_OK;
}

static tr_status measure(bench *b, const bench_product *p, sums *sum) {
    const bool fused = !tr_matmul_is_plain(&p->desc.matmul);
    tr_op_args args = {0};
    timing whole[LIMITS] = {0}, apart = {0};
    tr_status status = TR_OK;
    TR_TRY_OUT(allocate(b, &p->desc, &args));
    for (int i = 0; i < LIMITS; i++) {
        TR_TRY_OUT(time_plans(b, tr_op_prepare, &p->desc, &args, limits[i], &whole[i]));
        print_timing(b, p, fused ? "fused" : "", limits[i], &whole[i]);
    }
    if (fused) {
        TR_TRY_OUT(time_plans(b, prepare_parts, &p->desc, &args, limits[LIMITS - 1], &apart));
        print_timing(b, p, "parts", limits[LIMITS - 1], &apart);
    }
    sum->first += whole[0].plans ? whole[0].first : apart.first;
    for (int i = 0; i < LIMITS; i++) sum->best[i] += whole[i].plans ? whole[i].best : apart.best;
    const timing *last = &whole[LIMITS - 1];
    sum->apart +=
        apart.plans && (!last->plans || apart.best < last->best) ? apart.best : last->best;
out:
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) tr_device_free(b->device, args.t[i].data);
    return status;
}

/* Measures the rate that shares refer to: of a product of 8192^3, or of the model's rows where they
 * are fewer. */
static tr_status measure_roof(bench *b, int64_t n) {
    const bench_product roof = {"square", bench_forward(n, n, n, TR_BF16, (tr_fusion){0})};
    tr_op_args args = {0};
    timing t = {0};
    tr_status status = TR_OK;
    TR_TRY_OUT(allocate(b, &roof.desc, &args));
    TR_TRY_OUT(time_plans(b, tr_op_prepare, &roof.desc, &args, limits[0], &t));
    if (t.first > 0) b->roof = tr_op_flops(&roof.desc) / t.first;
    print_timing(b, &roof, "", limits[0], &t);
out:
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) tr_device_free(b->device, args.t[i].data);
    return status;
}

static tr_status measure_model(bench *b, const char *name, int64_t rows, int64_t width,
                               int64_t vocab) {
    bench_product list[BENCH_PRODUCTS];
    sums block = {0}, head = {0};
    printf("\n%s, %lld rows, bf16\n%-24s %-6s %4s %5s %10s %10s %8s %4s %8s %9s %6s\n", name,
           (long long)rows, "product", "", "MiB", "plans", "first us", "best us", "gain", "plan",
           "its MiB", "TFLOP/s", "roof");
    TR_TRY(measure_roof(b, rows < 8192 ? rows : 8192));
    bench_products(rows, width, vocab, TR_BF16, list);
    for (int i = 0; i < BENCH_PRODUCTS; i++)
        TR_TRY(measure(b, &list[i], i < BENCH_BLOCK_PRODUCTS ? &block : &head));
    printf("%s, products of a block: first plans %.1f us; fastest in 32 MiB %.1f us, in 256 MiB "
           "%.1f us, in parts where that is faster %.1f us; head: %.1f, %.1f, %.1f us\n",
           name, block.first * 1e6, block.best[0] * 1e6, block.best[1] * 1e6, block.apart * 1e6,
           head.first * 1e6, head.best[0] * 1e6, head.best[1] * 1e6);
    return TR_OK;
}

static tr_status run(bench *b, const char *device, int argc, char **argv) {
    const tr_device_options options = {.threads = 1};
    /* After the workspace comes the device's own scratch: a vector and sums of columns. */
    const size_t scratch = limits[LIMITS - 1] + ((size_t)64 << 20);
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_device_open(device, &options, &b->device));
    library_search = tr_cublasLtMatmulAlgoGetHeuristic;
    tr_cublasLtMatmulAlgoGetHeuristic = choose_plan;
    TR_TRY_OUT(tr_calloc(1, BENCH_PATTERN, &b->normal));
    TR_TRY_OUT(tr_device_alloc(b->device, TR_MEMORY_DATA, scratch, &b->scratch));
    bench_draw(b->normal, TR_BF16);
    if (argc == 5) {
        TR_TRY_OUT(measure_model(b, "these sizes", atoll(argv[2]), atoll(argv[3]), atoll(argv[4])));
    } else {
        TR_TRY_OUT(measure_model(b, "124M", 16 * 1024, 768, 50304));
        TR_TRY_OUT(measure_model(b, "1.5B", 8 * 1024, 1600, 50304));
    }
out:
    if (b->device) {
        tr_device_free(b->device, b->scratch);
        tr_device_close(b->device);
    }
    free(b->normal);
    return status;
}

int main(int argc, char **argv) {
    bench b = {0};
    if (argc > 2 && argc != 5) {
        fprintf(stderr, "usage: bench_matmul [device [rows width vocab]]\n");
        return 64;
    }
    tr_status status = run(&b, argc > 1 ? argv[1] : "cuda", argc, argv);
    if (status != TR_OK)
        fprintf(stderr, "bench_matmul: %s (%s)\n", tr_error_message(), tr_error_trace());
    return (int)status;
}
