/* The kernels for AMX: those of AVX-512 with BF16, except the product of BF16, which works in
 * tiles of 16 x 16. CMakeLists.txt compiles this file for it. */
#include "device/cpu/kernels_transpose.h"

#include <immintrin.h>

/* The registers: four tiles of C; the tiles of A and B; the last ones of a depth that is not
 * a multiple of 16 words, or in a product of two by two tiles the second ones of A and B. Macros,
 * because the intrinsics paste their numbers into the instruction. */
#define C0        0
#define C1        1
#define C2        2
#define C3        3
#define LEFT      4
#define RIGHT     5
#define LEFT_END  6
#define RIGHT_END 7
#define LOWER     6
#define NEXT      7
/* Words of the depth that two rows of tiles are multiplied over at a time, for two reasons. The
 * 16 KiB of A stay in the first-level cache for all panels. And tiles of C are stored after at most
 * 32 products of tiles; a store takes 0.3 us longer when none came during about the last 100
 * (measured on a Xeon with AMX, bench/results/2026-11-28-amx.txt). */
enum { RUN = 128 };
enum { TILES = 8, TILE = 16, C_TILES = 4, ROW_BYTES = TILE * sizeof(tr_word) };

/* Intel's Software Developer's Manual, volume 1, section 18.2: palette 1. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "the layout that LDTILECFG reads");

/* Gives the tiles of C and A `rows` rows, and the last tiles of the depth `end` words (0: none). */
static void configure(int64_t rows, int64_t end) {
    tile_config config = {.palette = 1};
    for (int t = 0; t < TILES; t++) {
        const bool last = t == LEFT_END || t == RIGHT_END, right = t == RIGHT || t == RIGHT_END;
        const int64_t depth = last ? end : TILE;
        if (depth == 0) continue;
        config.rows[t] = (uint8_t)(right ? depth : rows);
        config.row_bytes[t] =
            (uint16_t)(last && !right ? depth * (int64_t)sizeof(tr_word) : ROW_BYTES);
    }
    _tile_loadconfig(&config);
}

/* Gives the upper tiles of C and A 16 rows, and the lower ones the rest of `rows`. */
static void configure_squares(int64_t rows) {
    tile_config config = {.palette = 1};
    for (int t = 0; t < TILES; t++) {
        config.rows[t] = (uint8_t)(t == C2 || t == C3 || t == LOWER ? rows - TILE : TILE);
        config.row_bytes[t] = ROW_BYTES;
    }
    _tile_loadconfig(&config);
}

/* Operands of one product, and how far it is. */
typedef struct tile_product {
    int64_t rows, depth;
    const tr_word *a;
    int64_t row_step, column_step;
    int64_t panel_step, ldc;
    bool accumulate;
} tile_product;

/* Returns where A's tile at word j of the depth lies as rows, *row_step words apart: in A, or
 * transposed in `square`. */
static inline const tr_word *left_tile(const tile_product *p, int64_t j, tr_word (*square)[TILE],
                                       int64_t *row_step) {
    *row_step = p->row_step;
    if (p->column_step == 1) return p->a + j;
    const int64_t left = p->depth - j;
    transpose(p->rows, left < TILE ? left : TILE, p->a + j * p->column_step, p->column_step,
              square[0], TILE);
    __asm__ volatile("" ::: "memory"); /* tile loads are not known to read memory */
    *row_step = TILE;
    return square[0];
}

/* C of up to four panels; `panels` is a constant after inlining. */
static inline __attribute__((always_inline)) void tile_panels(const tile_product *p, int panels,
                                                              const tr_word *b, float *c) {
    const int64_t whole = p->depth / TILE * TILE, c_bytes = p->ldc * (int64_t)sizeof *c;
    tr_word square[TILE][TILE];
    int64_t row_step;
#define EACH_PANEL(one)                                                                            \
    one(0, C0);                                                                                    \
    if (panels > 1) one(1, C1);                                                                    \
    if (panels > 2) one(2, C2);                                                                    \
    if (panels > 3) one(3, C3)
#define CLEAR(i, tile) _tile_zero(tile)
#define LOAD(i, tile)  _tile_loadd(tile, c + (i)*TILE, c_bytes)
#define STORE(i, tile) _tile_stored(tile, c + (i)*TILE, c_bytes)
#define ADD(i, tile)                                                                               \
    do {                                                                                           \
        _tile_loadd(RIGHT, b + (i)*p->panel_step + j * TILE, ROW_BYTES);                           \
        _tile_dpbf16ps(tile, LEFT, RIGHT);                                                         \
    } while (0)
#define ADD_END(i, tile)                                                                           \
    do {                                                                                           \
        _tile_loadd(RIGHT_END, b + (i)*p->panel_step + whole * TILE, ROW_BYTES);                   \
        _tile_dpbf16ps(tile, LEFT_END, RIGHT_END);                                                 \
    } while (0)
    if (p->accumulate) {
        EACH_PANEL(LOAD);
    } else {
        EACH_PANEL(CLEAR);
    }
    for (int64_t j = 0; j < whole; j += TILE) {
        const tr_word *left = left_tile(p, j, square, &row_step);
        _tile_loadd(LEFT, left, row_step * (int64_t)sizeof *left);
        EACH_PANEL(ADD);
    }
    if (whole < p->depth) {
        const tr_word *left = left_tile(p, whole, square, &row_step);
        _tile_loadd(LEFT_END, left, row_step * (int64_t)sizeof *left);
        EACH_PANEL(ADD_END);
    }
    EACH_PANEL(STORE);
#undef EACH_PANEL
#undef CLEAR
#undef LOAD
#undef STORE
#undef ADD
#undef ADD_END
}

/* C of two rows of tiles and one or two panels; `panels` is a constant after inlining. Each tile of
 * A and B serves two products. A lies in rows, and the depth is a multiple of 16 words. */
static inline __attribute__((always_inline)) void tile_squares(const tile_product *p, int panels,
                                                               const tr_word *b, float *c) {
    const int64_t a_bytes = p->row_step * (int64_t)sizeof *b;
    const int64_t c_bytes = p->ldc * (int64_t)sizeof *c;
    const tr_word *lower = p->a + TILE * p->row_step, *next = b + p->panel_step;
    float *c_lower = c + TILE * p->ldc;
    _tile_zero(C0);
    _tile_zero(C1);
    _tile_zero(C2);
    _tile_zero(C3);
    if (p->accumulate) {
        _tile_loadd(C0, c, c_bytes);
        _tile_loadd(C2, c_lower, c_bytes);
        if (panels > 1) {
            _tile_loadd(C1, c + TILE, c_bytes);
            _tile_loadd(C3, c_lower + TILE, c_bytes);
        }
    }
    for (int64_t j = 0; j < p->depth; j += TILE) {
        _tile_loadd(LEFT, p->a + j, a_bytes);
        _tile_loadd(RIGHT, b + j * TILE, ROW_BYTES);
        _tile_dpbf16ps(C0, LEFT, RIGHT);
        _tile_loadd(LOWER, lower + j, a_bytes);
        _tile_dpbf16ps(C2, LOWER, RIGHT);
        if (panels > 1) {
            _tile_loadd(NEXT, next + j * TILE, ROW_BYTES);
            _tile_dpbf16ps(C1, LEFT, NEXT);
            _tile_dpbf16ps(C3, LOWER, NEXT);
        }
    }
    _tile_stored(C0, c, c_bytes);
    _tile_stored(C2, c_lower, c_bytes);
    if (panels > 1) {
        _tile_stored(C1, c + TILE, c_bytes);
        _tile_stored(C3, c_lower + TILE, c_bytes);
    }
}

/* One row of tiles of C. */
static void gemm_row_of_tiles(const tile_product *p, int64_t panels, const tr_word *b, float *c) {
    configure(p->rows, p->depth % TILE);
    for (; panels >= C_TILES; panels -= C_TILES, b += C_TILES * p->panel_step, c += C_TILES * TILE)
        tile_panels(p, C_TILES, b, c);
    switch (panels) {
    case 3: tile_panels(p, 3, b, c); break;
    case 2: tile_panels(p, 2, b, c); break;
    case 1: tile_panels(p, 1, b, c); break;
    default: break;
    }
}

/* Two rows of tiles of C, by runs of the depth. */
static void gemm_two_rows_of_tiles(const tile_product *p, int64_t panels, const tr_word *b,
                                   float *c) {
    configure_squares(p->rows);
    for (int64_t j = 0; j < p->depth; j += RUN) {
        tile_product run = *p;
        run.depth = p->depth - j < RUN ? p->depth - j : RUN;
        run.a = p->a + j;
        run.accumulate = p->accumulate || j > 0;
        const tr_word *right = b + j * TILE;
        int64_t i = 0;
        for (; i + 2 <= panels; i += 2)
            tile_squares(&run, 2, right + i * p->panel_step, c + i * TILE);
        if (i < panels) tile_squares(&run, 1, right + i * p->panel_step, c + i * TILE);
    }
}

/* `gemm` of kernels.h. An instruction adds the products of up to 32 numbers of the depth, the first
 * and the second ones of the words apart, and adds their sum to C. */
static void gemm_tiles(int64_t rows, int64_t panels, int64_t depth, const tr_word *a,
                       int64_t row_step, int64_t column_step, const tr_word *b, int64_t panel_step,
                       float *c, int64_t ldc, bool accumulate) {
    tile_product p = {rows, depth, a, row_step, column_step, panel_step, ldc, accumulate};
    if (rows > TILE && column_step == 1 && depth > 0 && depth % TILE == 0) {
        gemm_two_rows_of_tiles(&p, panels, b, c);
        rows = 0;
    }
    for (; rows > 0; rows -= TILE, p.a += TILE * row_step, c += TILE * ldc) {
        p.rows = rows < TILE ? rows : TILE;
        gemm_row_of_tiles(&p, panels, b, c);
    }
    _tile_release();
}
#define TR_GEMM_BF16      gemm_tiles
#define TR_GEMM_BF16_ROWS (2 * TILE)

#define TR_KERNELS tr_cpu_kernels_amx
#include "device/cpu/kernels_body.h"
