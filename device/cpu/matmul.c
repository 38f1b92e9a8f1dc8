/* MATMUL through oneDNN; with one row of A, matmul_row.c; of BF16 with AMX, matmul_tiles.c.
 *
 * Transposition and leading dimensions are strides of the memory descriptors. A residual is a
 * binary post-op, so that the result is rounded once. What adds to C is a second primitive, with
 * the sum post-op. If oneDNN has only its unoptimised implementation for a layout, the operand is
 * first copied to a dense, untransposed one in scratch. FP16, and BF16 without a native product
 * (tr_cpu_bf16_native), are storage: operands are widened to FP32 in scratch, and the result is
 * rounded once. (oneDNN has a BF16 product for every processor with AVX-512; without BF16
 * instructions it is a fifth as fast as the product in FP32.) */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/vec.h"

#include <stdio.h>
#include <string.h>

typedef tr_onednn_matrix matrix;

/* How an operand reaches the product. */
typedef struct operand {
    matrix given, used;
    bool copied; /* given differs from used, and is copied to scratch at `offset` */
    size_t offset;
    dnnl_memory_t memory; /* the product's view of `used` */
} operand;

enum {
    SRC = TR_ONEDNN_SRC,
    WEIGHTS = TR_ONEDNN_WEIGHTS,
    DST = TR_ONEDNN_DST,
    BIAS = TR_ONEDNN_BIAS,
    RESIDUAL = TR_ONEDNN_RESIDUAL,
    OPERANDS = TR_ONEDNN_OPERANDS
};
static const int tensor_index[OPERANDS] = {TR_MATMUL_A, TR_MATMUL_B, TR_MATMUL_C, TR_MATMUL_BIAS,
                                           TR_MATMUL_RESIDUAL};

/* Writes C, or adds to it. */
enum { WRITES, ADDS, PRODUCTS };
typedef struct product {
    dnnl_primitive_t primitive; /* NULL: the description does not need it */
    dnnl_memory_t scratchpad;
} product;

typedef struct cpu_matmul {
    tr_host_op host;
    operand operands[OPERANDS];
    product product[PRODUCTS];
} cpu_matmul;

/* Returns true when the description has operand i: bias and residual are optional. */
static bool has(const cpu_matmul *op, int i) {
    const tr_fusion *fused = &op->host.base.desc.matmul.fused;
    return i < BIAS || (i == BIAS ? fused->bias : fused->residual);
}

/* Sets the calling thread's OpenMP setting, from which oneDNN takes its number of threads: when
 * planning for the division of work, and when running for the team. Returns the previous
 * setting. */
static int set_threads(int threads) {
#ifdef _OPENMP
    int before = omp_get_max_threads();
    if (before != threads) omp_set_num_threads(threads);
    return before;
#else
    return threads;
#endif
}

/* Returns true when oneDNN's implementation on top of its GEMM is faster than the one that it
 * offers first. With BF16 instructions it is for deep sums (bench_op; not yet at k = 3072). Without
 * AMX also by a tenth and more for weight gradients, which are FP32, and by 2 to 8 % for products
 * of many rows with a B that is not transposed. For FP32 on Intel's processors it is by 3 to 20 %,
 * and twice as fast where rows of B lie a multiple of 4,096 bytes apart. Shape and processor alone
 * decide, so that every run has the same bits. */
static bool prefers_gemm(const cpu_matmul *op, const char *first) {
    enum { DEEP = 4096, ROWS = 1024, TERMS = 512 };
    const operand *x = op->operands;
    if (strcmp(first, "brg:avx512_core") == 0 || strcmp(first, "brg_matmul:avx512_core") == 0)
        return tr_cpu_is_intel(); /* the second is oneDNN 3.7's name */
    const bool amx = strcmp(first, "brg:avx512_core_amx_bf16") == 0;
    if (!amx && strcmp(first, "brg:avx512_core_bf16") != 0) return false;
    const bool gradient = x[DST].used.dtype == TR_F32, deep = x[SRC].used.columns >= DEEP;
    if (amx) return deep;
    return gradient || deep ||
           (!x[WEIGHTS].used.transposed && x[SRC].used.rows >= ROWS &&
            x[SRC].used.columns >= TERMS);
}

/* Returns true when the implementation is optimised and right. With a depth of 64 i - 1,
 * oneDNN 2.6.3's product by AMX tiles computes wrong rows of C in some shapes, or ends the process
 * with SIGILL. */
static bool is_usable(const cpu_matmul *op, const char *name) {
    const bool amx = strcmp(name, "brg:avx512_core_amx_bf16") == 0;
    return strncmp(name, "ref", 3) != 0 && !(amx && op->operands[SRC].used.columns % 64 == 63);
}

/* Takes the proposed implementation of the list, if it is usable; else NULL. */
static dnnl_primitive_desc_t pick(const cpu_matmul *op, tr_onednn_list *list) {
    dnnl_primitive_desc_t found = tr_onednn_list_take(list);
    const char *first = tr_onednn_name(found);
    if (is_usable(op, first) && !prefers_gemm(op, first)) return found;
    while (list->current && strncmp(tr_onednn_name(list->current), "gemm", 4) != 0)
        tr_onednn_list_next(list);
    if (list->current) {
        dnnl_primitive_desc_destroy(found);
        found = tr_onednn_list_take(list);
    }
    if (is_usable(op, tr_onednn_name(found))) return found;
    dnnl_primitive_desc_destroy(found);
    return NULL;
}

/* Takes the usable implementation of that name; NULL when it is not in the list. */
static dnnl_primitive_desc_t pick_named(const cpu_matmul *op, const char *name,
                                        tr_onednn_list *list) {
    while (list->current && strcmp(tr_onednn_name(list->current), name) != 0)
        tr_onednn_list_next(list);
    return is_usable(op, name) ? tr_onednn_list_take(list) : NULL;
}

/* Lists the implementations of the product of the operands as `used`; the caller closes the
 * list. */
static tr_status list_primitives(const cpu_matmul *op, dnnl_engine_t engine, bool adds,
                                 tr_onednn_list *list) {
    tr_onednn_matmul matmul = {.scale = (float)op->host.base.desc.matmul.scale, .adds = adds};
    for (int i = 0; i < OPERANDS; i++)
        if (has(op, i)) matmul.operand[i] = &op->operands[i].used;
    return tr_onednn_list_open(&matmul, engine, list);
}

/* Looks for an implementation by name; without one (NULL) for the proposed one. *out is NULL when
 * there is none. */
static tr_status find_primitive(const cpu_matmul *op, dnnl_engine_t engine, bool adds,
                                const char *name, dnnl_primitive_desc_t *out) {
    tr_onednn_list all;
    *out = NULL;
    TR_TRY(list_primitives(op, engine, adds, &all));
    if (all.current) *out = name ? pick_named(op, name, &all) : pick(op, &all);
    tr_onednn_list_close(&all);
    return TR_OK;
}

static void destroy_found(dnnl_primitive_desc_t found[PRODUCTS]) {
    for (int p = 0; p < PRODUCTS; p++) {
        if (found[p]) dnnl_primitive_desc_destroy(found[p]);
        found[p] = NULL;
    }
}

/* Finds all primitives that the description needs, for the operands as `used`, by name or as
 * proposed; *all is false when there is none for one of them. */
static tr_status find_primitives(const cpu_matmul *op, dnnl_engine_t engine, const char *name,
                                 dnnl_primitive_desc_t found[PRODUCTS], bool *all) {
    *all = true;
    destroy_found(found);
    for (int p = WRITES; p <= (op->host.base.desc.matmul.accumulate ? ADDS : WRITES); p++) {
        TR_TRY(find_primitive(op, engine, p == ADDS, name, &found[p]));
        *all &= found[p] != NULL;
    }
    return TR_OK;
}

static void use_dense(operand *x, tr_dtype dtype) {
    x->used = (matrix){x->given.rows, x->given.columns, x->given.columns, false, dtype};
    x->copied = true;
}

/* Widens operands of a type that the processor only stores to FP32. They stay transposed. */
static void widen_stored(cpu_matmul *op) {
    for (int i = 0; i < OPERANDS; i++) {
        operand *x = &op->operands[i];
        const matrix *g = &x->given;
        if (g->dtype != TR_F16 && (g->dtype != TR_BF16 || tr_cpu_bf16_native())) continue;
        x->used = (matrix){g->rows, g->columns, g->transposed ? g->rows : g->columns, g->transposed,
                           TR_F32};
        x->copied = true;
    }
}

/* Finds a product: as given, else with dense copies of transposed operands, else with all operands
 * in FP32. Leaves found[WRITES] NULL where there is none with a residual. */
static tr_status choose(cpu_matmul *op, dnnl_engine_t engine,
                        dnnl_primitive_desc_t found[PRODUCTS]) {
    bool all;
    operand *c = &op->operands[DST];
    widen_stored(op);
    /* oneDNN's product by AMX tiles writes a dense C only. */
    if (tr_onednn_uses(dnnl_cpu_isa_avx512_core_amx) && c->given.dtype == TR_BF16 &&
        c->given.ld != c->given.columns)
        use_dense(c, TR_BF16);
    TR_TRY(find_primitives(op, engine, NULL, found, &all));
    if (all) return TR_OK;
    for (int i = SRC; i <= WEIGHTS; i++) {
        operand *x = &op->operands[i];
        if (x->given.transposed) use_dense(x, x->used.dtype);
    }
    TR_TRY(find_primitives(op, engine, NULL, found, &all));
    if (all) return TR_OK;
    for (int i = 0; i < OPERANDS; i++) {
        operand *x = &op->operands[i];
        if (x->given.dtype != TR_F32 || i == SRC || i == WEIGHTS) use_dense(x, TR_F32);
    }
    TR_TRY(find_primitives(op, engine, NULL, found, &all));
    if (all || has(op, RESIDUAL)) return TR_OK;
    return TR_FAIL(TR_ERR_DEVICE, "oneDNN has no optimised FP32 matmul on this processor (%s)",
                   tr_cpu_isa());
}

/* Copies `rows` x `columns` elements of x to dense FP32 or BF16 storage. A matrix that is
 * transposed on the way is read in squares, so that both sides stay in the cache. */
static void copy_dense(const tr_op *op, const operand *x, const void *from, void *to) {
    enum { SQUARE = 32 };
    const matrix *g = &x->given;
    const int64_t count = g->rows * g->columns;
    if (g->transposed == x->used.transposed) {
        const int64_t lines = g->transposed ? g->columns : g->rows, length = count / lines;
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
        for (int64_t r = 0; r < lines; r++) {
            float in[TR_BLOCK];
            for (int64_t c = 0; c < length; c += TR_BLOCK) {
                int64_t n = tr_min_i64(TR_BLOCK, length - c), at = r * length + c;
                const float *row = tr_row_load(g->dtype, from, r * g->ld + c, n, in);
                if (x->used.dtype == TR_F32) memcpy((float *)to + at, row, (size_t)n * sizeof *row);
                else tr_row_store(x->used.dtype, to, at, n, row);
            }
        }
        return;
    }
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, count))
    for (int64_t r = 0; r < g->rows; r += SQUARE) {
        float square[SQUARE][SQUARE], in[SQUARE], out[SQUARE];
        int64_t nr = tr_min_i64(SQUARE, g->rows - r);
        for (int64_t c = 0; c < g->columns; c += SQUARE) {
            int64_t nc = tr_min_i64(SQUARE, g->columns - c);
            for (int64_t j = 0; j < nc; j++) {
                const float *line = tr_row_load(g->dtype, from, (c + j) * g->ld + r, nr, in);
                for (int64_t i = 0; i < nr; i++) square[i][j] = line[i];
            }
            for (int64_t i = 0; i < nr; i++) {
                int64_t at = (r + i) * g->columns + c;
                float *target = tr_row_target(x->used.dtype, to, at, out);
                memcpy(target, square[i], (size_t)nc * sizeof(float));
                tr_row_store(x->used.dtype, to, at, nc, target);
            }
        }
    }
}

/* Copies the dense product in scratch, FP32 or of C's type, into C. */
static void store_product(const tr_op *op, const operand *x, const void *from, void *to) {
    const matrix *g = &x->given;
    const size_t size = tr_dtype_size(g->dtype);
#pragma omp parallel for schedule(static) num_threads(tr_cpu_threads(op, g->rows * g->columns))
    for (int64_t r = 0; r < g->rows; r++) {
        if (x->used.dtype == TR_F32)
            tr_row_store(g->dtype, to, r * g->ld, g->columns, (const float *)from + r * g->columns);
        else
            memcpy((char *)to + (size_t)(r * g->ld) * size,
                   (const char *)from + (size_t)(r * g->columns) * size, (size_t)g->columns * size);
    }
}

static tr_status run_matmul(tr_op *base, const tr_op_args *args) {
    cpu_matmul *op = (cpu_matmul *)base;
    char *scratch = args->scratch;
    dnnl_exec_arg_t arguments[OPERANDS + 1];
    const bool adds = args->adds && base->desc.matmul.accumulate;
    int count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (!has(op, i)) continue;
        operand *x = &op->operands[i];
        void *tensor = args->t[tensor_index[i]].data;
        if (x->copied && (i != DST || adds)) copy_dense(base, x, tensor, scratch + x->offset);
        TR_DNNL(dnnl_memory_set_data_handle(x->memory, x->copied ? scratch + x->offset : tensor));
        arguments[count++] = (dnnl_exec_arg_t){tr_onednn_argument[i], x->memory};
    }
    const product *used = &op->product[adds ? ADDS : WRITES];
    TR_DNNL(dnnl_memory_set_data_handle(used->scratchpad, scratch));
    arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, used->scratchpad};
    int before = set_threads(base->context.device->threads);
    dnnl_status_t done = dnnl_primitive_execute(
        used->primitive, ((tr_cpu_device *)base->context.device)->stream, count, arguments);
    set_threads(before);
    TR_DNNL(done);
    const operand *c = &op->operands[DST];
    if (c->copied) store_product(base, c, scratch + c->offset, args->t[TR_MATMUL_C].data);
    return TR_OK;
}

static void release_matmul(tr_op *base) {
    cpu_matmul *op = (cpu_matmul *)base;
    for (int p = 0; p < PRODUCTS; p++) {
        if (op->product[p].primitive) dnnl_primitive_destroy(op->product[p].primitive);
        if (op->product[p].scratchpad) dnnl_memory_destroy(op->product[p].scratchpad);
    }
    for (int i = 0; i < OPERANDS; i++)
        if (op->operands[i].memory) dnnl_memory_destroy(op->operands[i].memory);
    free(op);
}

/* "gemm:jit", or "gemm:jit+brg:avx512_core" where what adds to C has another implementation. */
static void name_plan(tr_op *op, dnnl_primitive_desc_t found[PRODUCTS]) {
    const char *writes = tr_onednn_name(found[WRITES]),
               *adds = found[ADDS] ? tr_onednn_name(found[ADDS]) : writes;
    const bool differ = strcmp(writes, adds) != 0;
    (void)snprintf(op->plan, sizeof op->plan, "%s%s%s", writes, differ ? "+" : "",
                   differ ? adds : "");
}

/* Makes the primitives and their memory objects, and lays out scratch: oneDNN's, then the
 * copies. */
static tr_status finish_plan(cpu_matmul *op, dnnl_engine_t engine,
                             dnnl_primitive_desc_t found[PRODUCTS]) {
    size_t bytes = 0;
    for (int p = 0; p < PRODUCTS && found[p]; p++) {
        TR_DNNL(dnnl_primitive_create(&op->product[p].primitive, found[p]));
        size_t own;
        TR_TRY(tr_onednn_scratch_view(found[p], engine, &own, &op->product[p].scratchpad));
        bytes = tr_max_size(bytes, tr_align_up(own));
    }
    for (int i = 0; i < OPERANDS; i++) {
        operand *x = &op->operands[i];
        if (!has(op, i)) continue;
        TR_TRY(tr_onednn_view(&x->used, engine, &x->memory));
        if (!x->copied) continue;
        x->offset = bytes;
        bytes += tr_align_up((size_t)x->used.rows * (size_t)x->used.columns *
                             tr_dtype_size(x->used.dtype));
    }
    op->host.base.scratch_bytes = bytes;
    name_plan(&op->host.base, found);
    return TR_OK;
}

/* Makes the operator without primitives. */
static tr_status create(const tr_op_context *context, const tr_op_desc *desc, cpu_matmul **out) {
    const tr_matmul_desc *d = &desc->matmul;
    tr_op *base;
    TR_TRY(tr_host_op_create(context, desc, sizeof(cpu_matmul), 0, run_matmul, &base));
    base->release = release_matmul;
    cpu_matmul *op = (cpu_matmul *)base;
    const matrix given[OPERANDS] = {
        [SRC] = {d->m, d->k, tr_matmul_lda(d), d->trans_a, d->a},
        [WEIGHTS] = {d->k, d->n, tr_matmul_ldb(d), d->trans_b, d->b},
        [DST] = {d->m, d->n, tr_matmul_ldc(d), false, d->c},
        [BIAS] = {1, d->n, d->n, false, d->b},
        [RESIDUAL] = {d->m, d->n, d->n, false, d->c},
    };
    for (int i = 0; i < OPERANDS; i++)
        op->operands[i] = (operand){.given = given[i], .used = given[i]};
    *out = op;
    return TR_OK;
}

/* --- the library's other implementations, for the operands as used by the proposed one -------- */

static dnnl_engine_t engine_of(const tr_op *op) {
    return ((const tr_cpu_device *)op->context.device)->engine;
}

static tr_status list_plans(const tr_op *base, tr_plan_names *names) {
    const cpu_matmul *op = (const cpu_matmul *)base;
    tr_onednn_list all;
    const int before = set_threads(base->context.device->threads);
    tr_status status = list_primitives(op, engine_of(base), false, &all);
    for (; all.current; tr_onednn_list_next(&all)) {
        const char *name = tr_onednn_name(all.current);
        if (is_usable(op, name)) tr_plan_names_add(names, name);
    }
    tr_onednn_list_close(&all);
    set_threads(before);
    return status;
}

static tr_status make_plan(const tr_op *base, const char *name, tr_op **out) {
    dnnl_primitive_desc_t found[PRODUCTS] = {NULL};
    cpu_matmul *op;
    bool all;
    TR_TRY(create(&base->context, &base->desc, &op));
    op->host.base.plans = base->plans;
    for (int i = 0; i < OPERANDS; i++) {
        const operand *x = &((const cpu_matmul *)base)->operands[i];
        op->operands[i] = (operand){.given = x->given, .used = x->used, .copied = x->copied};
    }
    const int before = set_threads(base->context.device->threads);
    tr_status status = find_primitives(op, engine_of(base), name, found, &all);
    if (status == TR_OK && all) status = finish_plan(op, engine_of(base), found);
    set_threads(before);
    destroy_found(found);
    if (status == TR_OK && all) *out = &op->host.base;
    else release_matmul(&op->host.base);
    return status;
}

static const tr_op_plans plans = {.list = list_plans, .make = make_plan};

/* --- preparing -------------------------------------------------------------------------------- */

tr_status tr_cpu_prepare_matmul(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    cpu_matmul *op;
    if (!tr_matmul_only_sums(&desc->matmul)) return TR_OK;
    TR_TRY(tr_cpu_prepare_matmul_row(context, desc, out));
    if (*out) return TR_OK;
    TR_TRY(tr_cpu_prepare_matmul_tiles(context, desc, out));
    if (*out) return TR_OK;
    TR_TRY(create(context, desc, &op));
    dnnl_engine_t engine = engine_of(&op->host.base);
    dnnl_primitive_desc_t found[PRODUCTS] = {NULL};
    int before = set_threads(context->device->threads);
    tr_status status;
    TR_TRY_OUT(choose(op, engine, found));
    if (found[WRITES]) {
        TR_TRY_OUT(finish_plan(op, engine, found));
        op->host.base.plans = &plans;
        *out = &op->host.base;
    }
out:
    set_threads(before);
    destroy_found(found);
    if (*out) return status;
    release_matmul(&op->host.base);
    if (status != TR_OK) return status;
    TR_TRY(tr_op_decompose(context, desc, out)); /* oneDNN has no product with a residual */
    if (*out) (*out)->way = TR_OP_IN_PARTS;
    return TR_OK;
}
