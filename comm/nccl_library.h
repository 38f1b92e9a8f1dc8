/* NCCL, loaded when a run first asks for its version, so a run on CPUs does not need it. Private to
 * comm/. */
#pragma once

#include "base/status.h"

#include <nccl.h>

/* Loads the library. Its functions may be called after this has returned TR_OK. */
tr_status tr_nccl_open_library(void);

/* Every NCCL function that comm/ calls has a line in this list and one below it. */
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
    X(ncclGroupEnd)                                                                                \
    X(ncclGroupStart)                                                                              \
    X(ncclRecv)                                                                                    \
    X(ncclReduce)                                                                                  \
    X(ncclReduceScatter)                                                                           \
    X(ncclSend)

#define TR_NCCL_POINTER(name) extern __typeof__(name) *tr_##name;
TR_NCCL_FUNCTIONS(TR_NCCL_POINTER)
#undef TR_NCCL_POINTER

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
#define ncclGroupEnd           tr_ncclGroupEnd
#define ncclGroupStart         tr_ncclGroupStart
#define ncclRecv               tr_ncclRecv
#define ncclReduce             tr_ncclReduce
#define ncclReduceScatter      tr_ncclReduceScatter
#define ncclSend               tr_ncclSend
