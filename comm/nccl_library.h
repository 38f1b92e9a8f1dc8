/* NCCL, loaded when a run first asks for its version: a run on CPUs neither needs nor holds it.
 * Private to comm/. */
#pragma once

#include "base/status.h"

#include <nccl.h>

/* Loads the library; its functions may be called after it has returned TR_OK. */
tr_status tr_nccl_open_library(void);

/* Every function that comm/ calls has its line in the list and one under it. */
#define TR_NCCL_FUNCTIONS(X)                                                                       \
    X(ncclAllGather)                                                                               \
    X(ncclAllReduce)                                                                               \
    X(ncclBroadcast)                                                                               \
    X(ncclCommAbort)                                                                               \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommFinalize)                                                                            \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclGetUniqueId)                                                                             \
    X(ncclGetVersion)                                                                              \
    X(ncclRecv)                                                                                    \
    X(ncclReduceScatter)                                                                           \
    X(ncclSend)

#define TR_POINTER(name) extern __typeof__(name) *tr_##name;
TR_NCCL_FUNCTIONS(TR_POINTER)
#undef TR_POINTER

#define ncclAllGather          tr_ncclAllGather
#define ncclAllReduce          tr_ncclAllReduce
#define ncclBroadcast          tr_ncclBroadcast
#define ncclCommAbort          tr_ncclCommAbort
#define ncclCommDestroy        tr_ncclCommDestroy
#define ncclCommFinalize       tr_ncclCommFinalize
#define ncclCommGetAsyncError  tr_ncclCommGetAsyncError
#define ncclCommInitRankConfig tr_ncclCommInitRankConfig
#define ncclGetErrorString     tr_ncclGetErrorString
#define ncclGetLastError       tr_ncclGetLastError
#define ncclGetUniqueId        tr_ncclGetUniqueId
#define ncclGetVersion         tr_ncclGetVersion
#define ncclRecv               tr_ncclRecv
#define ncclReduceScatter      tr_ncclReduceScatter
#define ncclSend               tr_ncclSend
