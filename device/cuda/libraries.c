#include "device/cuda/libraries.h"

#include "base/library.h"

#define DEFINE(name) __typeof__(tr_##name) tr_##name;
TR_CUBLASLT_FUNCTIONS(DEFINE)
TR_CUDNN_FUNCTIONS(DEFINE)

#define TEXT(x)      #x
#define VERSION(x)   TEXT(x)
#define SYMBOL(name) {#name, &tr_##name},

tr_status tr_cuda_open_libraries(void) {
    static const tr_library_symbol blas[] = {TR_CUBLASLT_FUNCTIONS(SYMBOL)};
    static const tr_library_symbol dnn[] = {TR_CUDNN_FUNCTIONS(SYMBOL)};
    TR_TRY(tr_library_open("libcublasLt.so." VERSION(CUBLAS_VER_MAJOR), blas,
                           sizeof blas / sizeof *blas));
    return tr_library_open("libcudnn.so." VERSION(CUDNN_MAJOR), dnn, sizeof dnn / sizeof *dnn);
}
