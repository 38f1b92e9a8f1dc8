/* MATMUL through cuBLASLt with its epilogues, and with the program's own kernel for types that
 * cuBLASLt does not have. */
#include "base/memory.h"
#include "base/minmax.h"
#include "base/text.h"
#include "device/cuda/blas_layout.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda/launch.h"

#include <stdlib.h>
#include <string.h>

typedef struct cuda_matmul {
    tr_op base;
    tr_blas_layout layout;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t first, second, result;
    cublasLtMatmulAlgo_t algorithm;
    size_t vector_bytes; /* bias_grad: scratch begins with the vector of a run that adds it */
    size_t workspace_bytes;
} cuda_matmul;

/* Returns the length of the bias gradient, 0 without one. */
static int64_t vector_length(const tr_matmul_desc *d) {
    if (!d->fused.bias_grad) return 0;
    return d->fused.bias_grad_of_a ? d->m : d->n;
}

static tr_status check(cublasStatus_t status, const char *call, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return TR_OK;
    return tr_fail_at(__FILE__, line, TR_ERR_DEVICE, "cuBLASLt: %s failed: %s", call,
                      cublasLtGetStatusName(status));
}
#define BLAS(expr) TR_TRY(check((expr), #expr, __LINE__))

static cudaDataType_t type_of(tr_dtype dtype) {
    return dtype == TR_BF16 ? CUDA_R_16BF : dtype == TR_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static tr_status set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                     const void *value, size_t bytes) {
    BLAS(cublasLtMatmulDescSetAttribute(product, attribute, value, bytes));
    return TR_OK;
}

/* Sets the addresses of the epilogue's vector and aux in this run. */
static tr_status point(const cuda_matmul *op, const tr_op_args *args) {
    const tr_blas_epilogue epilogue = op->layout.epilogue;
    const tr_fusion *fused = &op->base.desc.matmul.fused;
    const void *vector = !op->vector_bytes ? args->t[TR_MATMUL_BIAS].data
                         : args->adds      ? args->scratch
                                           : args->t[TR_MATMUL_DBIAS].data;
    if (epilogue == TR_BLAS_BIAS || epilogue == TR_BLAS_GELU_AUX_BIAS || op->vector_bytes)
        TR_TRY(set(op->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector));
    if (fused->activate || fused->activate_grad)
        TR_TRY(set(op->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                   &args->t[TR_MATMUL_AUX].data, sizeof(void *)));
    return TR_OK;
}

static tr_status run_product(tr_op *base, tr_stream *stream, const tr_op_args *args) {
    cuda_matmul *op = (cuda_matmul *)base;
    const tr_matmul_desc *d = &base->desc.matmul;
    const float alpha = d->scale != 0 ? (float)d->scale : 1;
    const float beta = (d->accumulate && args->adds) || d->fused.residual ? 1 : 0;
    void *c = args->t[TR_MATMUL_C].data;
    const void *added = d->fused.residual ? args->t[TR_MATMUL_RESIDUAL].data : c;
    TR_TRY(point(op, args));
    BLAS(cublasLtMatmul(
        tr_cuda_device_of(base->context.device)->blas, op->product, &alpha,
        args->t[op->layout.first.tensor].data, op->first, args->t[op->layout.second.tensor].data,
        op->second, &beta, added, op->result, c, op->result, &op->algorithm,
        (char *)args->scratch + op->vector_bytes, op->workspace_bytes, tr_cuda_stream_of(stream)));
    if (op->vector_bytes && args->adds)
        TR_CUDA(tr_cuda_launch_add(tr_cuda_stream_of(stream), TR_F32, vector_length(d),
                                   args->t[TR_MATMUL_DBIAS].data, args->scratch,
                                   args->t[TR_MATMUL_DBIAS].data));
    return TR_OK;
}

static void release_product(tr_op *base) {
    cuda_matmul *op = (cuda_matmul *)base;
    if (op->product) (void)cublasLtMatmulDescDestroy(op->product);
    if (op->first) (void)cublasLtMatrixLayoutDestroy(op->first);
    if (op->second) (void)cublasLtMatrixLayoutDestroy(op->second);
    if (op->result) (void)cublasLtMatrixLayoutDestroy(op->result);
    free(op);
}

static tr_status describe_matrix(const tr_blas_matrix *x, cublasLtMatrixLayout_t *out) {
    BLAS(cublasLtMatrixLayoutCreate(out, type_of(x->dtype), (uint64_t)x->rows, (uint64_t)x->columns,
                                    x->ld));
    return TR_OK;
}

/* Points the epilogue's operands to an address with the alignment of a run's. A search may propose
 * other algorithms for another alignment, so it must not see the addresses of the last run. */
static tr_status point_aligned(const cuda_matmul *op) {
    void *const aligned = (void *)(uintptr_t)TR_ALIGN;
    const tr_op_args stand = {.t = {[TR_MATMUL_BIAS] = {.data = aligned},
                                    [TR_MATMUL_AUX] = {.data = aligned},
                                    [TR_MATMUL_DBIAS] = {.data = aligned}}};
    return point(op, &stand);
}

/* Describes the epilogue. The vector and aux have the result's type by default. */
static tr_status describe_epilogue(const cuda_matmul *op) {
    static const cublasLtEpilogue_t names[] = {[TR_BLAS_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT,
                                               [TR_BLAS_BIAS] = CUBLASLT_EPILOGUE_BIAS,
                                               [TR_BLAS_GELU_AUX] = CUBLASLT_EPILOGUE_GELU_AUX,
                                               [TR_BLAS_GELU_AUX_BIAS] =
                                                   CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                               [TR_BLAS_DGELU] = CUBLASLT_EPILOGUE_DGELU,
                                               [TR_BLAS_BGRAD_FIRST] = CUBLASLT_EPILOGUE_BGRADA,
                                               [TR_BLAS_BGRAD_SECOND] = CUBLASLT_EPILOGUE_BGRADB};
    const tr_blas_layout *l = &op->layout;
    const cublasLtEpilogue_t epilogue = names[l->epilogue];
    if (l->epilogue == TR_BLAS_PLAIN) return TR_OK;
    TR_TRY(set(op->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (l->epilogue != TR_BLAS_BIAS && !op->vector_bytes)
        TR_TRY(
            set(op->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &l->aux_ld, sizeof l->aux_ld));
    return TR_OK;
}

/* Sets the number of compute units; by default the library plans a product for all. */
static tr_status describe_units(const cuda_matmul *op) {
    const int32_t units = op->base.context.compute_units;
    if (units == 0) return TR_OK;
    return set(op->product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &units, sizeof units);
}

/* FP32 means FP32: CUBLAS_COMPUTE_32F does not round operands to TF32. */
static tr_status describe_product(cuda_matmul *op) {
    BLAS(cublasLtMatmulDescCreate(&op->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t first = op->layout.first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = op->layout.second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TR_TRY(set(op->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TR_TRY(set(op->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TR_TRY(describe_units(op));
    TR_TRY(describe_epilogue(op));
    TR_TRY(describe_matrix(&op->layout.first, &op->first));
    TR_TRY(describe_matrix(&op->layout.second, &op->second));
    TR_TRY(describe_matrix(&op->layout.result, &op->result));
    return TR_OK;
}

/* Returns cuBLAS's recommendation: 32 MiB from Hopper on, 4 MiB before. */
static uint64_t workspace_limit(const tr_op_context *context) {
    if (context->workspace) return context->workspace;
    return (uint64_t)(tr_cuda_device_of(context->device)->capability >= 90 ? 32 : 4) << 20;
}

/* Searches for algorithms, in the heuristic's order, which depends only on the description and the
 * kind of GPU. Parts of a split sum are added in FP32 in the workspace, in a fixed order; added in
 * place they would be rounded to the result's type each time. Fills results[wanted]; *count is 0
 * when the library has none. */
static tr_status search(const cuda_matmul *op, int wanted, cublasLtMatmulHeuristicResult_t *results,
                        int *count) {
    const tr_cuda_device *device = tr_cuda_device_of(op->base.context.device);
    uint64_t limit = workspace_limit(&op->base.context);
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* NONE is 0: always allowed */
    const int64_t align = op->base.desc.matmul.align;
    uint32_t alignment = align ? (uint32_t)align : TR_ALIGN;
    const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t preference = NULL;
    *count = 0;
    TR_TRY(point_aligned(op));
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(preference, aligned[i], &alignment,
                                                      sizeof alignment);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(device->blas, op->product, op->first, op->second,
                                                op->result, op->result, preference, wanted, results,
                                                count);
    if (preference) (void)cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS) return TR_OK;
    *count = 0;
    /* The library also returns INVALID_VALUE for an epilogue, or a bias, that it does not support
     * here. */
    bool refused = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                   (status == CUBLAS_STATUS_INVALID_VALUE && op->layout.epilogue != TR_BLAS_PLAIN);
    return refused ? TR_OK : check(status, "the search for an algorithm", __LINE__);
}

/* Names an algorithm by its 64 bytes, which the library documents to mean the same in every process
 * with the same version: in hexadecimal, words of 0 short. */
static void name_algorithm(const cublasLtMatmulAlgo_t *algorithm, char name[TR_PLAN_NAME]) {
    name[0] = '\0';
    for (size_t i = 0; i < sizeof algorithm->data / sizeof *algorithm->data; i++)
        tr_text_add(name, TR_PLAN_NAME, "%s%llx", i ? "." : "",
                    (unsigned long long)algorithm->data[i]);
}

static void take_algorithm(cuda_matmul *op, const cublasLtMatmulHeuristicResult_t *result) {
    op->algorithm = result->algo;
    op->workspace_bytes = result->workspaceSize;
    op->base.scratch_bytes = op->vector_bytes + op->workspace_bytes;
    name_algorithm(&op->algorithm, op->base.plan);
}

/* Takes the algorithm of that name, or without one (NULL) the heuristic's first. *found is false
 * when the library does not propose it. */
static tr_status choose(cuda_matmul *op, const char *name, bool *found) {
    cublasLtMatmulHeuristicResult_t results[TR_OP_MAX_PLANS];
    char proposed[TR_PLAN_NAME];
    int count;
    *found = false;
    TR_TRY(search(op, name ? TR_OP_MAX_PLANS : 1, results, &count));
    for (int i = 0; i < count && !*found; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
        name_algorithm(&results[i].algo, proposed);
        *found = !name || strcmp(name, proposed) == 0;
        if (*found) take_algorithm(op, &results[i]);
    }
    return TR_OK;
}

static tr_status list_plans(const tr_op *base, tr_plan_names *names) {
    cublasLtMatmulHeuristicResult_t results[TR_OP_MAX_PLANS];
    char name[TR_PLAN_NAME];
    int count;
    TR_TRY(search((const cuda_matmul *)base, TR_OP_MAX_PLANS, results, &count));
    for (int i = 0; i < count; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
        name_algorithm(&results[i].algo, name);
        tr_plan_names_add(names, name);
    }
    return TR_OK;
}

static tr_status run_own(tr_op *op, tr_stream *stream, const tr_op_args *args) {
    TR_CUDA(
        tr_cuda_launch_matmul(tr_cuda_stream_of(stream), &op->desc.matmul, args->t, args->adds));
    return TR_OK;
}

static tr_status make_plan(const tr_op *op, const char *name, tr_op **out);

static size_t matrix_bytes(const tr_blas_matrix *x) {
    return (size_t)(x->ld * x->columns) * tr_dtype_size(x->dtype);
}

/* Aux is as large as the result. */
static size_t largest_bytes(const cuda_matmul *op) {
    const tr_blas_layout *l = &op->layout;
    size_t bytes = tr_max_size(matrix_bytes(&l->first), matrix_bytes(&l->second));
    return tr_max_size(tr_max_size(bytes, matrix_bytes(&l->result)),
                       (size_t)op->base.desc.matmul.n * sizeof(float));
}

/* Prepares the library's product, with the plan of that name or (NULL) the proposed one; *out stays
 * NULL when it has none. */
static tr_status prepare_library(const tr_op_context *context, const tr_op_desc *desc,
                                 const char *name, tr_op **out) {
    static const tr_op_plans plans = {.list = list_plans, .make = make_plan};
    bool found = false;
    if (!tr_blas_has(&desc->matmul)) return TR_OK;
    tr_op *base;
    TR_TRY(tr_cuda_op_create(context, desc, sizeof(cuda_matmul), 0, run_product, &base));
    base->release = release_product;
    base->plans = &plans;
    cuda_matmul *op = (cuda_matmul *)base;
    op->layout = tr_blas_layout_of(&desc->matmul);
    op->vector_bytes = tr_align_up((size_t)vector_length(&desc->matmul) * sizeof(float));
    tr_status status = describe_product(op);
    if (status == TR_OK) status = choose(op, name, &found);
    if (found) status = tr_cuda_warm(base, largest_bytes(op));
    if (found && status == TR_OK) *out = base;
    else release_product(base);
    return status;
}

static tr_status make_plan(const tr_op *op, const char *name, tr_op **out) {
    return prepare_library(&op->context, &op->desc, name, out);
}

tr_status tr_cuda_prepare_matmul(const tr_op_context *context, const tr_op_desc *desc,
                                 tr_op **out) {
    TR_TRY(prepare_library(context, desc, NULL, out));
    if (*out || !tr_matmul_is_plain(&desc->matmul)) return TR_OK;
    TR_TRY(tr_cuda_op_create(context, desc, sizeof(tr_op), 0, run_own, out));
    (*out)->way = TR_OP_OWN;
    return TR_OK;
}
