#include "train/waits.h"

#include "base/clock.h"

void tr_waits_observe(tr_waits_meter *m, const tr_instr *instr, bool begins, double tensor_s) {
    const tr_action_type type = instr->action.type;
    if (!m->on) return;
    if (begins) {
        m->begin = tr_now_s();
        if (tr_action_computes(instr->action)) m->tensor = tensor_s;
        return;
    }
    const double seconds = tr_now_s() - m->begin;
    if (type == TR_ACTION_RECV || type == TR_ACTION_WAIT_SENT) m->sum.messages += seconds;
    if (type == TR_ACTION_REDUCE_WAIT || type == TR_ACTION_GATHER_WAIT) m->sum.gradients += seconds;
    if (tr_action_computes(instr->action)) m->sum.tensor += tensor_s - m->tensor;
}
