/* Choosing one of the plans that a library offers for an operator: the proposed one, the book's, or
 * the fastest.
 *
 * Only a plan that needs no more scratch than the proposed one is taken, and the operator keeps the
 * proposed scratch, so that memory is planned without knowing the choice. */
#include "base/clock.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "device/device_impl.h"
#include "device/op_table.h"
#include "device/plan_book.h"

#include <stdlib.h>
#include <string.h>

void tr_plan_names_add(tr_plan_names *names, const char *name) {
    const size_t bytes = strlen(name) + 1;
    if (names->count == TR_OP_MAX_PLANS || bytes > TR_PLAN_NAME) return;
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->name[i], name) == 0) return;
    memcpy(names->name[names->count++], name, bytes);
}

/* Makes *op the operator with plan `name`; *out stays NULL when the library does not offer it, or
 * only with more scratch. */
static tr_status make(const tr_op *op, const char *name, tr_op **out) {
    tr_op *made = NULL;
    tr_status status = op->plans->make(op, name, &made);
    *out = NULL;
    if (status == TR_ERR_DEVICE) { /* the library lists a plan and refuses it */
        tr_error_clear();
        return TR_OK;
    }
    TR_TRY(status);
    if (made && made->scratch_bytes > op->scratch_bytes) {
        made->release(made);
        made = NULL;
    }
    if (made) made->scratch_bytes = op->scratch_bytes;
    *out = made;
    return TR_OK;
}

static void replace(tr_op **op, tr_op *by) {
    (*op)->release(*op);
    *op = by;
}

/* --- measuring -------------------------------------------------------------------------------- */

/* A round runs an operator for about ROUND_S, at least once, and waits for the device. After a
 * warm-up and a first run of each plan there are at least LEAST_ROUNDS, and more until they have
 * taken TOTAL_S, of all plans in turn. A plan's time is its fastest, since other work on the
 * machine only adds to it. */
static const double ROUND_S = 1e-3, TOTAL_S = 0.05;
enum { LEAST_ROUNDS = 2, MOST_ROUNDS = 32, MOST_RUNS = 256 };
/* The proposed plan stays unless another one takes less than this share of its time: repeated
 * measurements differ by that much. */
static const double FASTER = 0.97;

/* Operands of a measurement; no class counts their memory. */
typedef struct operands {
    tr_op_args args;
    void *scratch;
} operands;

enum { PATTERN = 1 << 16 };

/* Writes numbers from -0.5 to 0.5, because zeros take less power, and so less time, on some
 * devices. */
static void write_pattern(tr_dtype dtype, void *memory) {
    const size_t count = PATTERN / tr_dtype_size(dtype);
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        const float value = (float)(state >> 40) * 0x1p-24f - 0.5f;
        if (dtype == TR_F32) ((float *)memory)[i] = value;
        else if (dtype == TR_F64) ((double *)memory)[i] = (double)value;
        else ((uint16_t *)memory)[i] = tr_narrow_round(dtype, value);
    }
}

/* Fills an operand: integers, which are indices, with zeros. */
static tr_status fill(tr_device *device, const tr_tensor *t) {
    const tr_device_ops *ops = device->ops;
    tr_stream *stream = ops->compute(device);
    const size_t bytes = tr_tensor_extent(t);
    char *to = t->data;
    if (!(TR_TYPES_STORAGE & 1u << t->dtype)) return ops->stream_zero(stream, to, bytes);
    void *pattern;
    TR_TRY(tr_calloc(1, PATTERN, &pattern));
    write_pattern(t->dtype, pattern);
    tr_status status = ops->stream_copy(stream, to, pattern, tr_min_size(bytes, PATTERN));
    if (status == TR_OK) status = ops->stream_sync(stream); /* before `pattern` is freed */
    free(pattern);
    for (size_t done = PATTERN; done < bytes && status == TR_OK; done *= 2)
        status = ops->stream_copy(stream, to + done, to, tr_min_size(done, bytes - done));
    return status;
}

static void free_operands(tr_device *device, operands *o) {
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++)
        if (o->args.t[i].data) device->ops->free(device, o->args.t[i].data);
    if (o->scratch) device->ops->free(device, o->scratch);
}

/* Allocates the operands that the description implies. Weight gradients are added to, as by all
 * micro-batches of a step but the first. */
static tr_status allocate_operands(const tr_op *op, operands *o) {
    tr_device *device = op->context.device;
    *o = (operands){.args.adds = true};
    tr_op_operands(&op->desc, o->args.t);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        tr_tensor *t = &o->args.t[i];
        if (!t->rank) continue;
        TR_TRY(device->ops->alloc(device, tr_align_up(tr_tensor_extent(t)), &t->data));
        TR_TRY(fill(device, t));
    }
    if (op->scratch_bytes)
        TR_TRY(device->ops->alloc(device, tr_align_up(op->scratch_bytes), &o->scratch));
    o->args.scratch = o->scratch;
    return TR_OK;
}

static tr_status time_runs(tr_op *op, const operands *o, int runs, double *seconds) {
    const tr_device_ops *ops = op->context.device->ops;
    tr_stream *stream = ops->compute(op->context.device);
    const double begun = tr_now_s();
    for (int i = 0; i < runs; i++) TR_TRY(op->run(op, stream, &o->args));
    TR_TRY(ops->stream_sync(stream));
    *seconds = (tr_now_s() - begun) / runs;
    return TR_OK;
}

/* One of the plans that are compared. */
typedef struct candidate {
    tr_op *op;
    int runs;    /* of a round */
    double best; /* seconds of one run */
} candidate;

static tr_status time_rounds(const operands *o, candidate *c, int count) {
    double seconds, begun;
    for (int i = 0; i < count; i++) {
        TR_TRY(time_runs(c[i].op, o, 1, &seconds));
        TR_TRY(time_runs(c[i].op, o, 1, &c[i].best));
        c[i].runs = c[i].best * MOST_RUNS < ROUND_S ? MOST_RUNS : 1 + (int)(ROUND_S / c[i].best);
    }
    begun = tr_now_s();
    for (int k = 0; k < MOST_ROUNDS && (k < LEAST_ROUNDS || tr_now_s() - begun < TOTAL_S); k++)
        for (int i = 0; i < count; i++) {
            TR_TRY(time_runs(c[i].op, o, c[i].runs, &seconds));
            if (seconds < c[i].best) c[i].best = seconds;
        }
    return TR_OK;
}

/* Returns the index of the fastest plan, or 0, the proposed one, where no other is clearly
 * faster. */
static int fastest(const candidate *c, int count) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (c[i].best < (best ? c[best].best : FASTER * c[0].best)) best = i;
    return best;
}

/* Lists the operator itself and those with the other plans. */
static tr_status list_candidates(tr_op *op, candidate *c, int *count) {
    tr_plan_names names = {0};
    *count = 0;
    c[(*count)++].op = op;
    TR_TRY(op->plans->list(op, &names));
    for (int i = 0; i < names.count; i++) {
        tr_op *made;
        if (strcmp(names.name[i], op->plan) == 0) continue;
        TR_TRY(make(op, names.name[i], &made));
        if (made) c[(*count)++].op = made;
    }
    return TR_OK;
}

/* Replaces the operator by the fastest one. */
static tr_status take_fastest(tr_op **op) {
    candidate c[TR_OP_MAX_PLANS + 1] = {0};
    operands o = {0};
    int count = 0, best = 0;
    tr_status status = TR_OK;
    TR_TRY_OUT(list_candidates(*op, c, &count));
    if (count == 1) return TR_OK;
    TR_TRY_OUT(allocate_operands(*op, &o));
    TR_TRY_OUT(time_rounds(&o, c, count));
    best = fastest(c, count);
out:
    free_operands((*op)->context.device, &o);
    for (int i = 1; i < count; i++)
        if (i != best) c[i].op->release(c[i].op);
    if (best) replace(op, c[best].op);
    return status;
}

/* --- choosing --------------------------------------------------------------------------------- */

static tr_status take_recorded(tr_op **op, const char *name, tr_plan_book *book) {
    tr_op *made;
    if (strcmp(name, (*op)->plan) == 0) return TR_OK;
    TR_TRY(make(*op, name, &made));
    if (made) replace(op, made);
    else tr_plan_book_refuse(book);
    return TR_OK;
}

tr_status tr_op_choose_plan(tr_op **op) {
    const tr_op_context *context = &(*op)->context;
    tr_plan_book *book = context->book;
    char key[TR_PLAN_KEY];
    if (context->deterministic || context->choice == TR_OP_PROPOSED || !(*op)->plans) return TR_OK;
    tr_plan_key(context, &(*op)->desc, key, sizeof key);
    const char *recorded = tr_plan_book_find(book, key);
    if (recorded) return take_recorded(op, recorded, book);
    if (context->choice == TR_OP_RECORDED) return tr_plan_book_want(book, key, &(*op)->desc);
    TR_TRY(take_fastest(op));
    return tr_plan_book_add(book, key, (*op)->plan);
}
