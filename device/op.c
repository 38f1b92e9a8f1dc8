#include "device/device_impl.h"
#include "device/op_table.h"

#include "base/text.h"

#include <string.h>

static const tr_op_row *const rows[TR_OP_COUNT] = {
#define TR_OP_ENTRY(UPPER, lower) [TR_OP_##UPPER] = &tr_op_row_##lower,
    TR_OP_LIST(TR_OP_ENTRY)
#undef TR_OP_ENTRY
};

const tr_op_row *tr_op_row_of(tr_op_kind kind) {
    return (unsigned)kind < TR_OP_COUNT ? rows[kind] : NULL;
}

const char *tr_op_name(tr_op_kind kind) {
    const tr_op_row *row = tr_op_row_of(kind);
    return row ? row->name : "unknown";
}

bool tr_op_sizes_fit(int64_t least, int64_t a, int64_t b, int64_t c) {
    int64_t product;
    return a >= least && b >= least && c >= least && !__builtin_mul_overflow(a, b, &product) &&
           !__builtin_mul_overflow(product, c, &product) && product <= INT64_MAX / 8;
}

/* --- descriptions ----------------------------------------------------------------------------- */

/* "f32 or bf16" */
static void name_types(unsigned types, char *text, size_t size) {
    text[0] = '\0';
    for (int d = 0; d < TR_DTYPE_COUNT; d++)
        if (types & 1u << d)
            tr_text_add(text, size, "%s%s", text[0] ? " or " : "", tr_dtype_name((tr_dtype)d));
}

/* Checks that the operands' dtypes are among those of their slots, and that the device computes
 * with them. */
static tr_status check_types(const tr_device *device, const tr_op_row *row,
                             const tr_op_desc *desc) {
    tr_tensor t[TR_OP_MAX_TENSORS];
    tr_op_operands(desc, t);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        if (t[i].rank == 0) continue;
        if (t[i].dtype == TR_F64 && row->slot[i].types != TR_TYPES_F64 && !row->fp64 &&
            !device->ops->fp64)
            return TR_FAIL(TR_ERR_DEVICE, "operator %s: device %s does not compute in f64",
                           row->name, device->name);
        if ((unsigned)t[i].dtype < TR_DTYPE_COUNT &&
            row->slot[i].types & 1u << (unsigned)t[i].dtype)
            continue;
        char types[64];
        name_types(row->slot[i].types, types, sizeof types);
        return TR_FAIL(TR_ERR_INTERNAL, "operator %s: %s must be %s", row->name, row->slot[i].name,
                       types);
    }
    return TR_OK;
}

static tr_status check(const tr_device *device, const tr_op_desc *desc) {
    const tr_op_row *row = tr_op_row_of(desc->kind);
    if (!row) return TR_FAIL(TR_ERR_INTERNAL, "operator number %d does not exist", (int)desc->kind);
    const char *fault = row->fault(desc);
    if (fault) return TR_FAIL(TR_ERR_INTERNAL, "operator %s: %s", row->name, fault);
    return check_types(device, row, desc);
}

void tr_op_operands(const tr_op_desc *desc, tr_tensor t[TR_OP_MAX_TENSORS]) {
    memset(t, 0, TR_OP_MAX_TENSORS * sizeof *t);
    tr_op_row_of(desc->kind)->operands(desc, t);
}

double tr_op_flops(const tr_op_desc *desc) {
    const tr_op_row *row = tr_op_row_of(desc->kind);
    return row->flops ? row->flops(desc) : 0;
}

double tr_op_bytes(const tr_op_desc *desc) {
    const tr_op_row *row = tr_op_row_of(desc->kind);
    tr_tensor t[TR_OP_MAX_TENSORS];
    double bytes = 0;
    tr_op_operands(desc, t);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        const unsigned use = row->slot[i].use & (TR_SLOT_BOTH | TR_SLOT_ONCE);
        if (t[i].rank) bytes += (use == TR_SLOT_BOTH ? 2 : 1) * (double)tr_tensor_bytes(&t[i]);
    }
    return bytes;
}

/* --- operands --------------------------------------------------------------------------------- */

tr_status tr_op_check_args(const tr_op *op, const tr_op_args *args) {
    const tr_op_row *row = tr_op_row_of(op->desc.kind);
    tr_tensor implied[TR_OP_MAX_TENSORS];
    tr_op_operands(&op->desc, implied);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        const tr_op_slot *slot = &row->slot[i];
        const tr_tensor *given = &args->t[i];
        const char *name = slot->name ? slot->name : "a further one";
        if (given->data && implied[i].rank == 0)
            return TR_FAIL(TR_ERR_INTERNAL, "operator %s takes no operand %s here", row->name,
                           name);
        if (!given->data && implied[i].rank && !(slot->use & TR_SLOT_OPTIONAL) &&
            tr_tensor_count(&implied[i]))
            return TR_FAIL(TR_ERR_INTERNAL, "operator %s: operand %s is missing", row->name, name);
        if (!given->data || tr_tensor_alike(given, &implied[i])) continue;
        char is[160], should[160];
        return TR_FAIL(TR_ERR_INTERNAL, "operator %s: operand %s is %s, but must be %s", row->name,
                       name, tr_tensor_text(given, is, sizeof is),
                       tr_tensor_text(&implied[i], should, sizeof should));
    }
    if (op->scratch_bytes && !args->scratch)
        return TR_FAIL(TR_ERR_INTERNAL, "operator %s: its %zu bytes of scratch are missing",
                       row->name, op->scratch_bytes);
    return TR_OK;
}

/* --- life ------------------------------------------------------------------------------------- */

/* Plans the operator as a whole, or else its decomposition. */
static tr_status plan(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    const tr_device *device = context->device;
    tr_op_prepare_fn prepare = device->ops->prepare[desc->kind];
    if (prepare) TR_TRY(prepare(context, desc, out));
    if (*out) return TR_OK;
    TR_TRY(tr_op_decompose(context, desc, out));
    if (!*out)
        return TR_FAIL(TR_ERR_DEVICE, "device %s has no operator %s%s", device->name,
                       tr_op_name(desc->kind), prepare ? " of this description" : "");
    if (device->ops->fuses) (*out)->way = TR_OP_IN_PARTS;
    return TR_OK;
}

void tr_op_context_leave(tr_op_context *context, int units) {
    const int all = tr_device_units(context->device);
    if (!context->deterministic && units > 0 && units < all) context->compute_units = all - units;
}

tr_status tr_op_prepare(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    *out = NULL;
    TR_TRY(check(context->device, desc));
    if ((*out = tr_op_share(context, desc))) return TR_OK;
    tr_device_wait_issued(context->device); /* a library's handle serves one thread at a time */
    TR_TRY(plan(context, desc, out));
    tr_status status = tr_op_choose_plan(out);
    if (status == TR_OK) status = tr_op_list(*out);
    if (status == TR_OK) return TR_OK;
    (*out)->release(*out);
    *out = NULL;
    return status;
}

tr_status tr_op_prepare_fixed(tr_device *device, tr_op_desc desc, size_t *scratch, tr_op **out) {
    const tr_op_context context = {.device = device, .deterministic = true};
    TR_TRY(tr_op_prepare(&context, &desc, out));
    if ((*out)->scratch_bytes > *scratch) *scratch = (*out)->scratch_bytes;
    return TR_OK;
}

void tr_op_release(tr_op *op) {
    if (!op || !tr_op_unshare(op)) return;
    tr_device_wait_issued(op->context.device);
    op->release(op);
}
