/* The interface that an implementation of a device provides. Private to device/. */
#pragma once

#include "device/device.h"
#include "device/op.h"
#include "device/speed.h"

#include <stdatomic.h>

typedef struct tr_queue tr_queue;
/* Plans an operator for a valid description. Leaves *out NULL, with TR_OK, when the device refuses
 * it; then its decomposition runs instead. */
typedef tr_status (*tr_op_prepare_fn)(const tr_op_context *context, const tr_op_desc *desc,
                                      tr_op **out);

struct tr_device_ops {
    const char *kind; /* "cpu", "ref", "guarded", "cuda" */
    bool on_host;
    tr_device_speed speed;
    bool fp64; /* operators take FP64 storage */
    tr_status (*open)(int ordinal, const tr_device_options *options, tr_device **out);
    void (*close)(tr_device *device);
    /* Called by a thread other than the opener's before it runs operators; may be NULL. */
    tr_status (*enter)(tr_device *device);
    tr_status (*memory)(tr_device *device, size_t *free_bytes, size_t *total_bytes);
    tr_status (*identity)(tr_device *device, char *text, size_t size); /* NULL: "host" */
    tr_status (*alloc)(tr_device *device, size_t bytes, void **out);
    void (*free)(tr_device *device, void *memory);
    tr_status (*staging_alloc)(tr_device *device, size_t bytes, void **out);
    void (*staging_free)(tr_device *device, void *memory);
    tr_stream *(*compute)(tr_device *device);
    tr_status (*stream_create)(tr_device *device, tr_stream **out);
    void (*stream_destroy)(tr_stream *stream);
    void *(*stream_native)(tr_stream *stream);
    tr_status (*stream_sync)(tr_stream *stream);
    tr_status (*stream_copy)(tr_stream *stream, void *to, const void *from, size_t bytes);
    tr_status (*stream_zero)(tr_stream *stream, void *memory, size_t bytes);
    tr_status (*stream_call)(tr_stream *stream, void (*function)(void *), void *argument);
    /* Host devices: a call that counts as the device's work, like a kernel, not as a callback. Used
     * by stand-ins for a GPU's libraries in tests. NULL on other devices. */
    tr_status (*stream_work)(tr_stream *stream, void (*function)(void *), void *argument);
    tr_status (*stream_wait)(tr_stream *stream, tr_event *event);
    tr_status (*event_create)(tr_device *device, tr_event **out);
    void (*event_destroy)(tr_event *event);
    tr_status (*event_record)(tr_event *event, tr_stream *stream);
    bool (*event_reached)(tr_event *event);
    void (*mark)(const char *name); /* may be NULL */
    bool fuses;                     /* a decomposed operator is slow, so a run prints a message */
    tr_op_prepare_fn prepare[TR_OP_COUNT]; /* NULL: refuses every description */
};

/* Plans the operators of an operator's decomposition; *out stays NULL when it has none. */
tr_status tr_op_decompose(const tr_op_context *context, const tr_op_desc *desc, tr_op **out);

/* The names of the plans that a library offers for an operator. */
enum { TR_OP_MAX_PLANS = 8 };
typedef struct tr_plan_names {
    int count;
    char name[TR_OP_MAX_PLANS][TR_PLAN_NAME];
} tr_plan_names;

/* Appends a name: printable, without spaces, shorter than TR_PLAN_NAME. Does nothing when the list
 * has it or is full. */
void tr_plan_names_add(tr_plan_names *names, const char *name);

/* How to use another of the library's plans for an operator's description. */
typedef struct tr_op_plans {
    /* Lists the plans, also the one in use, in the library's order; `names` is empty before. */
    tr_status (*list)(const tr_op *op, tr_plan_names *names);
    /* Makes the same operator with that plan, with the scratch that it needs. Leaves *out NULL,
     * with TR_OK, when the library does not offer it. */
    tr_status (*make)(const tr_op *op, const char *name, tr_op **out);
} tr_op_plans;

/* Replaces an operator that is not listed yet by one with the plan that its context chooses. */
tr_status tr_op_choose_plan(tr_op **op);

/* Returns true when at most a bias is fused. */
bool tr_matmul_is_plain(const tr_matmul_desc *desc);
/* Returns true when at most a bias and a residual are fused: what host devices fuse, so that BF16
 * rounds once. */
bool tr_matmul_only_sums(const tr_matmul_desc *desc);

/* Compares a run's operands with those that the description implies. Fails with TR_ERR_INTERNAL and
 * the first operand that is missing, is not taken, or has another dtype, shape or strides. */
tr_status tr_op_check_args(const tr_op *op, const tr_op_args *args);

/* Returns the operator of this description and context, with one more user; NULL when there is
 * none. */
tr_op *tr_op_share(const tr_op_context *context, const tr_op_desc *desc);
/* Adds an operator to its device's set, with one user. Fails with TR_ERR_FIT, and then the set is
 * as before. */
tr_status tr_op_list(tr_op *op);
/* Removes one user. Returns true when it was the last one: the operator has left the set, and the
 * caller releases it. */
bool tr_op_unshare(tr_op *op);

/* Every implementation's tr_stream and tr_event begin with these. */
struct tr_stream {
    tr_device *device;
    tr_queue *queue; /* feeds the compute stream (tr_device_start_queue), or NULL */
};
struct tr_event {
    tr_device *device;
    /* The number of the queue's work item that will record it, and of the last one that has; 0:
     * none. */
    atomic_uint_fast64_t ticket, recorded;
};

/* Waits until all enqueued work has been issued to the device, before an object is released. */
void tr_device_wait_issued(tr_device *device);

/* Speed of a GPU and its links, in builds with and without the CUDA backend. */
#define TR_CUDA_SPEED                                                                              \
    { .flops_per_s = 20e12, .link_bytes = 10e9, .memory_bytes = 2e12 }

extern const tr_device_ops tr_device_ops_ref, tr_device_ops_cpu, tr_device_ops_guarded,
    tr_device_ops_cuda;
