/* cuBLASLt on the host: a plain column-major product, in double precision, of what the descriptors
 * say, with the epilogues that its documentation describes. It ends the process with a sentence
 * when a request is not in the documentation, when memory is not as announced, and when an object
 * is not destroyed at the end. It overwrites the workspace, so data that a caller keeps there is
 * lost. */
#include "base/dtype.h"
#include "base/memory.h"

#include <cublasLt.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORKSPACE = 1000, PLANS = 3 }; /* PLANS: the most that it proposes */

static const struct tr_emulated_blas { int unused; } library;
const cublasLtHandle_t tr_emulated_blas = &library;
int64_t tr_emulated_products;
int32_t tr_emulated_units;
uint64_t tr_emulated_workspace;
static atomic_int live; /* handles and descriptors */

struct tr_emulated_product {
    cublasOperation_t first, second;
    cublasLtEpilogue_t epilogue;
    void *vector, *aux;
    int64_t aux_ld;
    int32_t units;
};

struct tr_emulated_layout {
    cudaDataType_t type;
    int64_t rows, columns, ld;
};

struct tr_emulated_preference {
    uint64_t workspace;
    uint32_t reductions, alignment[4];
};

static void require(int holds, const char *what) {
    if (holds) return;
    (void)fprintf(stderr, "emulated cuBLASLt: %s\n", what);
    abort();
}

__attribute__((destructor)) static void look_for_leaks(void) {
    if (live == 0) return;
    (void)fprintf(stderr, "emulated cuBLASLt: %d handles or descriptors were not destroyed\n",
                  live);
    _exit(86);
}

/* Returns a zeroed descriptor. */
static void *create(size_t bytes) {
    void *descriptor = calloc(1, bytes);
    require(descriptor != NULL, "no memory");
    live++;
    return descriptor;
}
static cublasStatus_t destroy(void *descriptor) {
    require(descriptor != NULL, "no descriptor");
    free(descriptor);
    live--;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    live++;
    *out = &library;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    require(handle == &library, "no library");
    live--;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an error of the emulation";
}

/* --- descriptions ----------------------------------------------------------------------------- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    require(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F,
            "only FP32 arithmetic is emulated");
    *out = create(sizeof **out);
    (*out)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
    return destroy(product);
}

static cublasStatus_t set(void *to, size_t size, const void *value, size_t bytes) {
    require(bytes == size, "an attribute has the wrong size");
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}
#define SET(field) set(&(field), sizeof(field), value, bytes)

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return SET(product->first);
    case CUBLASLT_MATMUL_DESC_TRANSB: return SET(product->second);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return SET(product->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return SET(product->vector);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return SET(product->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return SET(product->aux_ld);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return SET(product->units);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
    require((int64_t)rows <= ld, "a leading dimension is shorter than a column");
    *out = create(sizeof **out);
    **out = (struct tr_emulated_layout){type, (int64_t)rows, (int64_t)columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = create(sizeof **out);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes) {
    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return SET(preference->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return SET(preference->reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return SET(preference->alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return SET(preference->alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return SET(preference->alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return SET(preference->alignment[3]);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* --- what it can do --------------------------------------------------------------------------- */

static int has_bias(const struct tr_emulated_product *p) {
    return (p->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}
static int has_aux(const struct tr_emulated_product *p) {
    return (p->epilogue & 128) != 0;
}
static int has_vector(const struct tr_emulated_product *p) {
    return has_bias(p) || p->epilogue == CUBLASLT_EPILOGUE_BGRADA ||
           p->epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static int64_t inner_of(const struct tr_emulated_product *p, const struct tr_emulated_layout *a) {
    return p->first == CUBLAS_OP_T ? a->rows : a->columns;
}

static void check(const struct tr_emulated_product *p, const struct tr_emulated_layout *a,
                  const struct tr_emulated_layout *b, const struct tr_emulated_layout *c,
                  const struct tr_emulated_layout *d) {
    require(c == d, "C and D are laid out differently");
    require(inner_of(p, a) == (p->second == CUBLAS_OP_T ? b->columns : b->rows) &&
                d->rows == (p->first == CUBLAS_OP_T ? a->columns : a->rows) &&
                d->columns == (p->second == CUBLAS_OP_T ? b->rows : b->columns),
            "the matrices' sizes do not match");
    require(a->type == b->type && (d->type == a->type || d->type == CUDA_R_32F),
            "this combination of types is not documented");
    require(!has_vector(p) || p->vector, "an epilogue without its vector");
    require(!has_aux(p) || (p->aux && p->aux_ld >= d->rows && p->aux_ld % 8 == 0),
            "an epilogue with an unsupported auxiliary matrix");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results,
                                              int *count) {
    check(product, a, b, c, d);
    *count = 0;
    require(wanted >= 1 && preference->workspace >= WORKSPACE, "no room for its workspace");
    tr_emulated_workspace = preference->workspace;
    require(preference->reductions == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
            "parts of a sum may be rounded to the result's type");
    if (!handle) return CUBLAS_STATUS_NOT_SUPPORTED;
    /* The library may refuse an epilogue; the emulation refuses a vector of one element. */
    if (has_vector(product) && d->rows == 1) return CUBLAS_STATUS_INVALID_VALUE;
    for (*count = 0; *count < wanted && *count < PLANS; ++*count) {
        cublasLtMatmulHeuristicResult_t *plan = &results[*count];
        *plan = (cublasLtMatmulHeuristicResult_t){.workspaceSize = WORKSPACE};
        if (*count == PLANS - 1) plan->workspaceSize = preference->workspace; /* a larger one */
        plan->algo.data[7] = (uint64_t)*count;
        plan->algo.data[0] = (uint64_t)product->epilogue;
        for (int i = 0; i < 4; i++) plan->algo.data[1 + i] = preference->alignment[i];
        plan->algo.data[5] = (uint64_t)((uintptr_t)product->vector & -(uintptr_t)product->vector);
    }
    return CUBLAS_STATUS_SUCCESS;
}

__typeof__(cublasLtMatmulAlgoGetHeuristic) *tr_cublasLtMatmulAlgoGetHeuristic =
    cublasLtMatmulAlgoGetHeuristic;

/* --- the product ------------------------------------------------------------------------------ */

static double load(const void *memory, int32_t type, int64_t at) {
    if (type == CUDA_R_32F) return (double)((const float *)memory)[at];
    return (double)tr_narrow_load(type == CUDA_R_16F ? TR_F16 : TR_BF16,
                                  ((const uint16_t *)memory)[at]);
}
static void store(void *memory, int32_t type, int64_t at, double value) {
    if (type == CUDA_R_32F) ((float *)memory)[at] = (float)value;
    else
        ((uint16_t *)memory)[at] =
            tr_narrow_round(type == CUDA_R_16F ? TR_F16 : TR_BF16, (float)value);
}

/* Returns an element of op(x). */
static double element(const void *memory, const struct tr_emulated_layout *x, cublasOperation_t op,
                      int64_t row, int64_t column) {
    int64_t r = op == CUBLAS_OP_T ? column : row, c = op == CUBLAS_OP_T ? row : column;
    return load(memory, (int32_t)x->type, c * x->ld + r);
}

/* GELU and its derivative in the library's tanh form. */
static double gelu(double x) {
    return x / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x) {
    double s = 1 / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
    return s + x * s * (1 - s) * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
}

/* Applies the epilogue to one element of the product. */
static double finish(const struct tr_emulated_product *p, const struct tr_emulated_layout *d,
                     int64_t row, int64_t column, double sum) {
    const int32_t type = (int32_t)d->type;
    int64_t at = column * p->aux_ld + row;
    if (has_bias(p)) sum += load(p->vector, type, row);
    if (!has_aux(p)) return sum;
    if (p->epilogue == CUBLASLT_EPILOGUE_DGELU) return sum * gelu_slope(load(p->aux, type, at));
    store(p->aux, type, at, sum);
    return gelu(sum); /* of the sum before it is rounded for storage */
}

static int aligned(const void *pointer, uint64_t bytes) {
    return (uintptr_t)pointer % bytes == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t la,
                              const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    const float scale = *(const float *)alpha, old = *(const float *)beta;
    const uint64_t *promised = algorithm->data + 1;
    check(product, la, lb, lc, ld);
    require(handle && stream, "no handle, or no stream");
    require(algorithm->data[0] == (uint64_t)product->epilogue,
            "the algorithm is of another product");
    require(workspace_bytes >= WORKSPACE && aligned(workspace, TR_ALIGN),
            "the workspace is not the announced one");
    require(aligned(a, promised[0]) && aligned(b, promised[1]) && aligned(c, promised[2]) &&
                aligned(d, promised[3]),
            "a pointer is less aligned than announced");
    require(c == d || old != 0, "C differs from D although beta is 0");
    tr_emulated_products++;
    tr_emulated_units = product->units;
    const int64_t inner = inner_of(product, la);
    for (int64_t column = 0; column < ld->columns; column++)
        for (int64_t row = 0; row < ld->rows; row++) {
            const int64_t at = column * ld->ld + row;
            double sum = 0;
            for (int64_t i = 0; i < inner; i++)
                sum += element(a, la, product->first, row, i) *
                       element(b, lb, product->second, i, column);
            sum *= (double)scale;
            if (old != 0) sum += (double)old * load(c, (int32_t)ld->type, at);
            store(d, (int32_t)ld->type, at, finish(product, ld, row, column, sum));
        }
    for (int64_t row = 0; product->epilogue == CUBLASLT_EPILOGUE_BGRADA && row < ld->rows; row++) {
        double sum = 0;
        for (int64_t i = 0; i < inner; i++) sum += element(a, la, product->first, row, i);
        store(product->vector, (int32_t)ld->type, row, sum);
    }
    for (int64_t column = 0; product->epilogue == CUBLASLT_EPILOGUE_BGRADB && column < ld->columns;
         column++) {
        double sum = 0;
        for (int64_t i = 0; i < inner; i++) sum += element(b, lb, product->second, i, column);
        store(product->vector, (int32_t)ld->type, column, sum);
    }
    memset(workspace, 0x5a, WORKSPACE);
    return CUBLAS_STATUS_SUCCESS;
}
