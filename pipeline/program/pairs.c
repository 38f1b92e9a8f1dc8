#include "pipeline/program/pairs.h"

#include "base/memory.h"

#include <stdlib.h>

tr_status tr_pairs_open(int ranks, tr_pairs *out) {
    *out = (tr_pairs){.ranks = ranks};
    return tr_calloc((size_t)ranks, sizeof *out->row, &out->row);
}

int tr_pairs_find(const tr_pairs *pairs, int from, int to) {
    const tr_pair_row *row = &pairs->row[from];
    for (int k = 0; k < row->count; k++)
        if (row->pair[k].to == to) return row->pair[k].number;
    return -1;
}

tr_status tr_pairs_add(tr_pairs *pairs, int from, int to) {
    tr_pair_row *row = &pairs->row[from];
    if (tr_pairs_find(pairs, from, to) >= 0) return TR_OK;
    TR_TRY(tr_grow(&row->pair, &row->capacity, (size_t)row->count + 1, sizeof *row->pair));
    row->pair[row->count++] = (tr_pair){.to = to, .number = pairs->count++};
    return TR_OK;
}

tr_status tr_pairs_of_programs(const tr_program_set *set, tr_pairs *out) {
    TR_TRY(tr_pairs_open(set->ranks, out));
    for (int r = 0; r < set->ranks; r++)
        for (int k = 0; k < set->program[r].count; k++) {
            const tr_instr *instr = &set->program[r].instr[k];
            const tr_action_type type = instr->action.type;
            if (type == TR_ACTION_RECV) TR_TRY(tr_pairs_add(out, instr->peer, r));
            if (type == TR_ACTION_SEND || type == TR_ACTION_WAIT_SENT)
                TR_TRY(tr_pairs_add(out, r, instr->peer));
        }
    return TR_OK;
}

void tr_pairs_close(tr_pairs *pairs) {
    for (int r = 0; pairs->row && r < pairs->ranks; r++) free(pairs->row[r].pair);
    free(pairs->row);
    *pairs = (tr_pairs){0};
}
