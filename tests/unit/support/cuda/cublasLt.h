/* Stands for the library's header where kernels are emulated. */
#pragma once
typedef struct tr_no_library *cublasLtHandle_t;
