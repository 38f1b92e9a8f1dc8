/* MATMUL of BF16 on processors with AMX, by the kernels' product of tiles: a step of GPT-2 124M
 * takes 22 to 27 % less time than with oneDNN 2.6's (bench_train), which remains for small products
 * and for sums too deep to be kept in FP32 until they are rounded.
 *
 * A block of B is packed into panels that stay in the second-level cache, and multiplied by rows of
 * A. These are packed once for all blocks, or read in place where they need no packing. The result
 * of each call of the kernel is completed and stored while it is in the first-level cache. Each
 * thread computes a part of C, with packed operands of its own. The order of an element's sum
 * depends on the depth alone. */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/panels.h"

#include <stdio.h>
#include <string.h>

enum {
    ROWS = TR_GEMM_MOST_ROWS, /* of C in one product of the kernel */
    COLUMNS = 16 * TR_PANEL,  /* and its columns */
    GROUP = 2 * ROWS,         /* rows of A that are multiplied with a block's columns in turn */
    LEAST = 64,               /* rows, columns and depth of the least product */
    DEEPEST = 4096,           /* the depth of a block, and of a product that is rounded, or to which
                                 a bias or a residual is added */
    BLOCK_BYTES = 3 << 18,    /* of a block of B; twice as many took up to a fifth longer */
    LEFT_BYTES = 1 << 22,     /* of rows of A that stay packed for the next block of B */
};

typedef struct tiled_matmul {
    tr_host_op host;
    int down, across;     /* C is divided into parts, for as many threads */
    bool in_place;        /* A is not packed */
    int64_t depth, width; /* of a block of B */
    int64_t rows;         /* of A that are packed at a time */
    int64_t left_step;    /* words from one packed row of A to the next */
    int64_t right_depth;  /* words of a panel of B */
    size_t left_bytes, part_bytes;
} tiled_matmul;

typedef struct range {
    int64_t begin, end;
} range;

static range next_block(range all, int64_t begin, int64_t most) {
    return (range){begin, tr_min_i64(all.end, begin + most)};
}

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Returns part i of n of `total` rows or columns, in whole units. */
static range part_of(int64_t total, int64_t unit, int i, int n) {
    const int64_t units = ceil_div(total, unit);
    return (range){units * i / n * unit, tr_min_i64(total, units * (i + 1) / n * unit)};
}

/* Returns the size of the largest of n parts. */
static int64_t most_of(int64_t total, int64_t unit, int n) {
    return ceil_div(ceil_div(total, unit), n) * unit;
}

/* Zeros the words past `words` of each of `count` rows or panels of `depth` x `width` words, `step`
 * words apart. */
static void clear_ends(int64_t count, int64_t step, int64_t words, int64_t depth, int64_t width,
                       tr_word *out) {
    if (words == depth) return;
    for (int64_t i = 0; i < count; i++)
        memset(out + i * step + words * width, 0, (size_t)((depth - words) * width) * sizeof *out);
}

static void pack_right(const tiled_matmul *op, const void *b, range depth, range columns,
                       tr_word *out) {
    const tr_matmul_desc *d = &op->host.base.desc.matmul;
    const int64_t ld = tr_matmul_ldb(d);
    const int64_t deep = depth.end - depth.begin, wide = columns.end - columns.begin;
    if (d->trans_b) {
        const tr_stored_rows x = {TR_BF16, b, columns.begin * ld + depth.begin, ld};
        tr_pack_right_transposed(tr_cpu_kernels_of(&op->host.base), &x, wide, deep, op->right_depth,
                                 out);
    } else {
        const tr_stored_rows x = {TR_BF16, b, depth.begin * ld + columns.begin, ld};
        tr_pack_right(tr_cpu_kernels_of(&op->host.base), &x, deep, wide, op->right_depth, out);
    }
    const int64_t words = tr_panel_words(TR_BF16, deep);
    clear_ends(tr_panel_up(wide) / TR_PANEL, op->right_depth * TR_PANEL, words, tr_panel_up(words),
               TR_PANEL, out);
}

static void pack_left(const tiled_matmul *op, const void *a, range rows, range depth,
                      tr_word *out) {
    const tr_matmul_desc *d = &op->host.base.desc.matmul;
    const int64_t ld = tr_matmul_lda(d), deep = depth.end - depth.begin,
                  high = rows.end - rows.begin;
    if (d->trans_a) {
        const tr_stored_rows x = {TR_BF16, a, depth.begin * ld + rows.begin, ld};
        tr_pack_left_transposed(tr_cpu_kernels_of(&op->host.base), &x, deep, high, op->left_step,
                                out);
        return;
    }
    const tr_stored_rows x = {TR_BF16, a, rows.begin * ld + depth.begin, ld};
    const int64_t words = tr_panel_words(TR_BF16, deep);
    tr_pack_left(&x, high, deep, op->left_step, out);
    clear_ends(high, op->left_step, words, tr_panel_up(words), 1, out);
}

/* Copies n numbers, with stores that bypass the caches where the address is aligned. */
static void stream_row(int64_t n, const float *from, float *to) {
    int64_t i = 0;
#ifdef __AVX__
    if ((uintptr_t)to % sizeof(__m256) == 0)
        for (; i + 8 <= n; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
#endif
    for (; i < n; i++) to[i] = from[i];
}

/* Stores row[n] to elements at .. at + n - 1 of C, or adds it to them. FP32 results are gradients
 * of parameters: nothing reads them soon, so they bypass the caches. */
static void store_row(const tiled_matmul *op, void *c, bool adds, int64_t at, int64_t n,
                      float *row) {
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(&op->host.base);
    const tr_dtype dtype = op->host.base.desc.matmul.c;
    if (dtype == TR_F32 && adds) {
        kernels->row_add(TR_F32, row, 0, n, (float *)c + at);
        return;
    }
    if (adds) kernels->row_add(dtype, c, at, n, row);
    if (dtype == TR_F32) stream_row(n, row, (float *)c + at);
    else if (n % TR_PANEL != 0) kernels->row_store(dtype, c, at, n, row);
    else (void)kernels->round_row(n / TR_PANEL, row, (uint16_t *)c + at);
}

/* Prefetches rows of C that will be added to: they lie too far apart for the hardware to do so. */
static void expect_sums(const float *c, int64_t rows, int64_t ldc, int64_t n) {
    enum { LINE = 64 / sizeof *c };
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j += LINE) __builtin_prefetch(c + i * ldc + j, 1, 2);
}

/* Rows of A as words, `step` words apart. */
typedef struct left_rows {
    const tr_word *words;
    int64_t step;
} left_rows;

/* Computes the product of rows of A and a packed block of B, `words` deep. */
static void multiply_packed(const tiled_matmul *op, const tr_op_args *args, bool adds, range rows,
                            range columns, int64_t words, left_rows left, const tr_word *right) {
    const tr_matmul_desc *d = &op->host.base.desc.matmul;
    const tr_cpu_kernels *kernels = tr_cpu_kernels_of(&op->host.base);
    const int64_t ldc = tr_matmul_ldc(d), panel_step = op->right_depth * TR_PANEL;
    for (int64_t c = columns.begin; c < columns.end; c += COLUMNS) {
        const int64_t wide = tr_min_i64(COLUMNS, columns.end - c);
        const tr_word *panels = right + (c - columns.begin) / TR_PANEL * panel_step;
        for (int64_t r = rows.begin; r < rows.end; r += ROWS) {
            _Alignas(64) float product[ROWS][COLUMNS];
            const int64_t high = tr_min_i64(ROWS, rows.end - r);
            if (adds && d->c == TR_F32)
                expect_sums((const float *)args->t[TR_MATMUL_C].data + r * ldc + c, high, ldc,
                            wide);
            kernels->gemm[TR_BF16](high, tr_panel_up(wide) / TR_PANEL, tr_panel_up(words),
                                   left.words + (r - rows.begin) * left.step, left.step, 1, panels,
                                   panel_step, product[0], COLUMNS, false);
            /* In two loops: a wide load right after narrower stores of the same bytes would
             * stall. */
            for (int64_t i = 0; i < high; i++)
                tr_cpu_matmul_finish(kernels, d, args, r + i, c, wide, product[i]);
            for (int64_t i = 0; i < high; i++)
                store_row(op, args->t[TR_MATMUL_C].data, adds, (r + i) * ldc + c, wide, product[i]);
        }
    }
}

/* Computes at most op->rows rows of a part, over one block of the depth. */
static void multiply_rows(const tiled_matmul *op, const tr_op_args *args, bool adds, range rows,
                          range columns, range depth, char *memory) {
    const int64_t words = tr_panel_words(TR_BF16, depth.end - depth.begin);
    const void *a = args->t[TR_MATMUL_A].data;
    tr_word *packed = (tr_word *)memory, *right = (tr_word *)(memory + op->left_bytes);
    left_rows left = {packed, op->left_step};
    if (op->in_place) {
        left.step = tr_matmul_lda(&op->host.base.desc.matmul) / 2;
        left.words = (const tr_word *)a + rows.begin * left.step + depth.begin / 2;
    }
    for (int64_t c = columns.begin; c < columns.end; c += op->width) {
        const range block = next_block(columns, c, op->width);
        pack_right(op, args->t[TR_MATMUL_B].data, depth, block, right);
        for (int64_t r = rows.begin; r < rows.end; r += GROUP) {
            const range group = next_block(rows, r, GROUP);
            const int64_t at = (r - rows.begin) * left.step;
            if (!op->in_place && c == columns.begin) pack_left(op, a, group, depth, packed + at);
            multiply_packed(op, args, adds, group, block, words,
                            (left_rows){left.words + at, left.step}, right);
        }
    }
}

static void multiply_part(const tiled_matmul *op, const tr_op_args *args, range rows, range columns,
                          char *memory) {
    const tr_matmul_desc *d = &op->host.base.desc.matmul;
    const range terms = {0, d->k};
    for (int64_t k = 0; k < d->k; k += op->depth)
        for (int64_t r = rows.begin; r < rows.end; r += op->rows)
            multiply_rows(op, args, k > 0 || (args->adds && d->accumulate),
                          next_block(rows, r, op->rows), columns, next_block(terms, k, op->depth),
                          memory);
#ifdef __AVX__
    _mm_sfence(); /* orders the stores that bypass the caches before the reads of other threads */
#endif
}

static tr_status run_matmul_tiles(tr_op *base, const tr_op_args *args) {
    const tiled_matmul *op = (const tiled_matmul *)base;
    const tr_matmul_desc *d = &base->desc.matmul;
    const int parts = op->down * op->across;
#pragma omp parallel for schedule(static) num_threads(parts)
    for (int i = 0; i < parts; i++)
        multiply_part(op, args, part_of(d->m, ROWS, i / op->across, op->down),
                      part_of(d->n, 2 * TR_PANEL, i % op->across, op->across),
                      (char *)args->scratch + (size_t)i * op->part_bytes);
    return TR_OK;
}

/* Divides C so that the largest part is as small as possible; of such divisions, takes the one that
 * packs the fewest rows and columns. */
static void divide(tiled_matmul *op, int threads) {
    const tr_matmul_desc *d = &op->host.base.desc.matmul;
    int64_t least = INT64_MAX, packed = INT64_MAX;
    for (int down = 1; down <= threads; down++) {
        const int across = threads / down;
        const int64_t rows = most_of(d->m, ROWS, down);
        const int64_t columns = most_of(d->n, 2 * TR_PANEL, across);
        const int64_t size = rows * columns, packs = rows + columns;
        if (size > least || (size == least && packs >= packed)) continue;
        op->down = down, op->across = across, least = size, packed = packs;
    }
}

tr_status tr_cpu_prepare_matmul_tiles(const tr_op_context *context, const tr_op_desc *desc,
                                      tr_op **out) {
    const tr_matmul_desc *d = &desc->matmul;
    const tr_cpu_device *cpu = (const tr_cpu_device *)context->device;
    if (cpu->kernels != tr_cpu_kernels_for(TR_CPU_AMX) || d->a != TR_BF16 || d->b != TR_BF16 ||
        (d->c != TR_F32 && d->c != TR_BF16) || d->m < LEAST || d->n < LEAST || d->k < LEAST ||
        ((d->c == TR_BF16 || d->fused.bias || d->fused.residual) && d->k > DEEPEST))
        return TR_OK;
    TR_TRY(tr_host_op_create(context, desc, sizeof(tiled_matmul), 0, run_matmul_tiles, out));
    tiled_matmul *op = (tiled_matmul *)*out;
    divide(op, context->device->threads);
    op->depth = tr_min_i64(d->k, DEEPEST);
    op->width = tr_max_i64(BLOCK_BYTES / (2 * op->depth) / COLUMNS, 1) * COLUMNS;
    op->rows = tr_max_i64(LEFT_BYTES / (2 * op->depth) / GROUP, 1) * GROUP;
    op->in_place = !d->trans_a && d->k % (2 * TR_PANEL) == 0 && tr_matmul_lda(d) % 2 == 0 &&
                   d->align % (int64_t)sizeof(tr_word) == 0;
    /* Odd numbers of cache lines, so that rows and panels lie in all sets of the caches. */
    const int64_t words = tr_panel_up(tr_panel_words(TR_BF16, op->depth));
    op->right_depth = words + 1;
    op->left_step = words | TR_PANEL;
    const int64_t rows = op->in_place ? 0 : tr_min_i64(op->rows, most_of(d->m, ROWS, op->down));
    const int64_t columns = tr_min_i64(op->width, most_of(d->n, 2 * TR_PANEL, op->across));
    op->left_bytes = tr_align_up((size_t)(rows * op->left_step) * sizeof(tr_word));
    op->part_bytes =
        op->left_bytes + tr_align_up((size_t)(columns * op->right_depth) * sizeof(tr_word));
    (*out)->scratch_bytes = (size_t)(op->down * op->across) * op->part_bytes;
    (void)snprintf((*out)->plan, sizeof(*out)->plan, "tiles");
    return TR_OK;
}
