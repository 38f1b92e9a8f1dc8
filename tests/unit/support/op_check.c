#include "support/op_check.h"

#include "device/device_impl.h"
#include "device/op_table.h"

#include <string.h>

tr_status tr_op_open_ref(tr_device **out) {
    return tr_device_open("ref", &(tr_device_options){.threads = 1}, out);
}

bool tr_op_case_adding(const tr_op_case *c, tr_op_case *out) {
    const tr_op_row *row = tr_op_row_of(c->desc.kind);
    tr_tensor t[TR_OP_MAX_TENSORS];
    bool may = false;
    tr_op_operands(&c->desc, t);
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++)
        may |= t[i].rank > 0 && (row->slot[i].use & TR_SLOT_GRADIENT) == TR_SLOT_GRADIENT;
    if (c->desc.kind == TR_OP_MATMUL) may |= c->desc.matmul.accumulate;
    *out = (tr_op_case){c->desc, c->options | TR_CASE_ADDS};
    return may && !(c->options & TR_CASE_ADDS);
}

void tr_op_check_open(const tr_op_case *c, tr_dtype storage, uint64_t seed, tr_device *ref,
                      tr_op_check *out) {
    out->seed = seed;
    tr_op_case_describe(c, storage, out->text, sizeof out->text);
    must(tr_op_data_make(c, storage, seed, &out->start));
    must(tr_op_data_clone(&out->start, &out->want));
    must(tr_op_data_run(&out->want, ref, NULL));
}

void tr_op_check_close(tr_op_check *check) {
    tr_op_data_free(&check->start);
    tr_op_data_free(&check->want);
}

void tr_op_check_near(const tr_op_check *check, const tr_op_data *got, const char *where) {
    char message[256];
    if (!tr_op_data_compare(got, &check->want, message, sizeof message))
        fail_msg("%s on %s: %s (seed %llu)", check->text, where, message,
                 (unsigned long long)check->seed);
}

void tr_op_check_run(const tr_op_check *check, tr_device *device, tr_op_data *got) {
    must(tr_op_data_clone(&check->start, got));
    must(tr_op_data_run(got, device, NULL));
    tr_op_check_near(check, got, device->name);
}

static void check_bits(const tr_op_check *check, tr_device *device, const tr_op_data *data,
                       const tr_op_data *other, const char *where) {
    for (int i = 0; i < TR_OP_MAX_TENSORS; i++) {
        const tr_op_tensor *t = &data->tensor[i];
        if (data->memory[i] && memcmp(data->memory[i], other->memory[i],
                                      (size_t)t->count * tr_dtype_size(t->dtype)) != 0)
            fail_msg("%s on %s: tensor %d has other bits in %s", check->text, device->name, i,
                     where);
    }
}

void tr_op_check_same(const tr_op_check *check, tr_device *device, const tr_op_data *other) {
    tr_op_data data;
    must(tr_op_data_clone(&check->start, &data));
    must(tr_op_data_run(&data, device, NULL));
    check_bits(check, device, &data, other, "another run");
    tr_op_data_free(&data);
}

/* Refuses one description; a part may be of the same kind. */
static const tr_device_ops *refusing_from;
static const tr_op_desc *refused;

static tr_status prepare_others(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    if (tr_op_row_of(desc->kind)->same(desc, refused)) return TR_OK;
    return refusing_from->prepare[desc->kind](context, desc, out);
}

/* Returns true when an operator rounds where its parts do, and sums in their order. */
static bool equals_parts(tr_op_kind kind) {
    return kind == TR_OP_ADD_NORM || kind == TR_OP_XENT;
}

void tr_op_check_parts(const tr_op_check *check, tr_device *device, const tr_op_data *whole) {
    const tr_op_desc *desc = &check->start.desc;
    tr_device_ops refusing = *device->ops;
    tr_op_data got;
    tr_op *op;
    const tr_op_row *row = tr_op_row_of(desc->kind);
    tr_op_part part[TR_OP_MAX_PARTS];
    if (!row->decompose || row->decompose(desc, part) == 0) return;
    must(tr_op_data_clone(&check->start, &got));
    refusing.prepare[desc->kind] = prepare_others;
    refusing.fuses = true; /* marks the operators that are decomposed */
    refusing_from = device->ops;
    refused = desc;
    device->ops = &refusing;
    tr_status status =
        tr_op_prepare(&(tr_op_context){.device = device, .deterministic = true}, desc, &op);
    if (status == TR_OK) status = tr_op_data_run(&got, device, NULL); /* shares op */
    device->ops = refusing_from; /* before a check fails, which leaves this function */
    must(status);
    if (op->way != TR_OP_IN_PARTS || op->users != 1)
        fail_msg("%s on %s: an equal plan is in use, so its parts did not run", check->text,
                 device->name);
    tr_op_release(op);
    tr_op_check_near(check, &got, device->name);
    if (equals_parts(desc->kind) && whole) check_bits(check, device, &got, whole, "its parts");
    tr_op_data_free(&got);
}

tr_matmul_desc tr_random_matmul(uint64_t *random, int64_t m, int64_t n, int64_t k) {
    tr_matmul_desc d = {
        .m = tr_up_to(random, m), .n = tr_up_to(random, n), .k = tr_up_to(random, k)};
    d.trans_a = tr_up_to(random, 2) == 1;
    d.trans_b = tr_up_to(random, 2) == 1;
    d.accumulate = tr_up_to(random, 2) == 1;
    d.fused.bias = !d.accumulate && tr_up_to(random, 2) == 1;
    if (tr_up_to(random, 2) == 1) d.lda = (d.trans_a ? d.m : d.k) + tr_up_to(random, 9);
    if (tr_up_to(random, 2) == 1) d.ldb = (d.trans_b ? d.k : d.n) + tr_up_to(random, 9);
    if (tr_up_to(random, 2) == 1) d.ldc = d.n + tr_up_to(random, 9);
    return d;
}

tr_rmsnorm_desc tr_random_rmsnorm(uint64_t *random) {
    tr_rmsnorm_desc d = {.width = 1 + tr_up_to(random, 300), .eps = 1e-5f};
    d.group = tr_up_to(random, 4);
    d.rows = d.group * tr_up_to(random, 50);
    if (tr_up_to(random, 2) == 1) d.ldx = d.group * d.width + tr_up_to(random, 2 * d.width) - 1;
    if (tr_up_to(random, 2) == 1) d.ldy = d.group * d.width + tr_up_to(random, 2 * d.width) - 1;
    return d;
}

tr_rope_desc tr_random_rope(uint64_t *random) {
    tr_rope_desc d = {.seq = tr_up_to(random, 60),
                      .heads = tr_up_to(random, 5),
                      .head_size = 2 * tr_up_to(random, 60),
                      .theta = 500000,
                      .inverse = tr_up_to(random, 2) == 1,
                      .documents = tr_up_to(random, 2) == 1,
                      .scaling = {.kind = (tr_rope_kind)(tr_up_to(random, TR_ROPE_KINDS) - 1),
                                  .original = 16,
                                  .factor = 4,
                                  .low_factor = 1,
                                  .high_factor = 4}};
    d.rows = d.seq * tr_up_to(random, 3);
    d.ld = d.heads * d.head_size + tr_up_to(random, 100) - 1;
    return d;
}

tr_attention_desc tr_random_attention(uint64_t *random) {
    tr_attention_desc d = {.batch = tr_up_to(random, 2),
                           .seq = tr_up_to(random, 100),
                           .kv_heads = tr_up_to(random, 2),
                           .head_size = tr_up_to(random, 70),
                           .documents = tr_up_to(random, 3) == 1};
    d.heads = d.kv_heads * tr_up_to(random, 3);
    if (tr_up_to(random, 2) == 1) d.window = tr_up_to(random, 60);
    return d;
}
