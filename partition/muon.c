#include "partition/muon.h"

#include "base/memory.h"
#include "base/minmax.h"

#include <math.h>

/* Jordan et al. 2024: the steepest polynomial at 0 that takes [0, 1] near 1 in five steps. */
static const double A = 3.4445, B = -4.7750, C = 2.0315;
/* Liu et al. 2025, section 2.2: elements move as far as AdamW's, so that both take one optim.lr. */
static const double RMS = 0.2;

tr_status tr_muon_make(const tr_param *param, const tr_param_layout *layout, tr_muon *out) {
    tr_param_matrix m;
    TR_TRY(tr_param_matrix_make(param, &m));
    const bool left = m.rows_whole && m.cols_whole ? m.rows <= m.cols : m.rows_whole;
    const double longer = (double)(m.rows > m.cols ? m.rows : m.cols);
    const bool narrow = param->dtype == TR_BF16 || param->dtype == TR_F16;
    *out = (tr_muon){.rows = param->local[0],
                     .cols = param->local[1],
                     .side = left ? param->local[0] : param->local[1],
                     .left = left,
                     .sums = layout->parts > 1,
                     .length = pow(A, TR_MUON_STEPS) * RMS * sqrt(longer),
                     .direction = tr_dtype_acc(param->dtype),
                     .dtype = narrow ? TR_BF16 : tr_dtype_acc(param->dtype)};
    return TR_OK;
}

void tr_muon_room_add(tr_muon_room *room, const tr_muon *m) {
    const size_t size = tr_dtype_size(m->dtype);
    room->part = tr_max_size(room->part, tr_align_up((size_t)(m->rows * m->cols) * size));
    room->square = tr_max_size(room->square, tr_align_up((size_t)(m->side * m->side) * size));
    room->matrices++;
    room->summed += m->sums;
}

int tr_muon_room_turns(const tr_muon_room *room) {
    return room->summed > 0 && room->matrices > 1 ? TR_MUON_TURNS : 1;
}

size_t tr_muon_room_bytes(const tr_muon_room *room) {
    return (size_t)(tr_muon_room_turns(room) + 1) * (room->part + room->square);
}

static tr_op_desc product(const tr_muon *m, tr_matmul_desc desc) {
    desc.a = desc.b = desc.c = m->dtype;
    return (tr_op_desc){.kind = TR_OP_MATMUL, .matmul = desc};
}

tr_op_desc tr_muon_rescale(const tr_muon *m, int parts) {
    return (tr_op_desc){
        .kind = TR_OP_RESCALE,
        .rescale = {.count = m->rows * m->cols, .parts = parts, .dtype = m->direction}};
}

static tr_op_desc cast(const tr_muon *m, tr_dtype from, tr_dtype to) {
    return (tr_op_desc){.kind = TR_OP_CAST,
                        .rows = {.rows = m->rows, .width = m->cols, .dtype = from, .to = to}};
}

tr_op_desc tr_muon_load(const tr_muon *m) {
    return cast(m, m->direction, m->dtype);
}

tr_op_desc tr_muon_store(const tr_muon *m) {
    return cast(m, m->dtype, m->direction);
}

tr_op_desc tr_muon_product(const tr_muon *m, int k) {
    return product(m, (tr_matmul_desc){.m = m->side,
                                       .n = m->side,
                                       .k = m->left ? m->cols : m->rows,
                                       .scale = B / A * pow(A, 2 * k),
                                       .trans_a = !m->left,
                                       .trans_b = m->left});
}

tr_op_desc tr_muon_square(const tr_muon *m) {
    return product(
        m, (tr_matmul_desc){.m = m->side, .n = m->side, .k = m->side, .scale = C * A / (B * B)});
}

tr_op_desc tr_muon_sum(const tr_muon *m) {
    return (tr_op_desc){.kind = TR_OP_ADD,
                        .rows = {.rows = m->side, .width = m->side, .dtype = m->dtype}};
}

tr_op_desc tr_muon_apply(const tr_muon *m) {
    return product(
        m, (tr_matmul_desc){.m = m->rows, .n = m->cols, .k = m->side, .fused = {.residual = true}});
}
