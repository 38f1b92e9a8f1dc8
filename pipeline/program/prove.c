#include "pipeline/program/prove.h"

#include "base/memory.h"
#include "pipeline/walk.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct prover {
    const tr_program_set *set;
    tr_walk walk;
    int *sent, *taken; /* [ranks * ranks], from * ranks + to: messages so far */
    int *missing;  /* [stages + 1]: ranks that have not entered the collective; the last: FINISH */
    bool *arrived; /* [ranks]: has entered the collective that is its next instruction */
} prover;

static size_t channel_of(const prover *p, int from, int to) {
    return (size_t)from * (size_t)p->set->ranks + (size_t)to;
}

static const tr_instr *instr_of(const prover *p, int rank, int at) {
    return &p->set->program[rank].instr[at];
}

/* Returns the collective of a REDUCE or FINISH; -1: another instruction. */
static int meeting_of(const prover *p, const tr_instr *instr) {
    if (instr->action.type == TR_ACTION_REDUCE) return instr->action.stage;
    return instr->action.type == TR_ACTION_FINISH ? p->set->program[0].stages : -1;
}

static tr_status fail_order(int rank, const tr_instr *instr, const char *problem) {
    char text[32];
    tr_action_print(instr->action, text, sizeof text);
    return TR_FAIL(TR_ERR_CONFIG, "the program: rank %d, %s: %s", rank, text, problem);
}

/* Executes the rank's next instruction if it can run. */
static tr_status step(void *context, int rank, int at, int *done) {
    prover *p = context;
    const tr_instr *instr = instr_of(p, rank, at);
    size_t to = channel_of(p, rank, instr->peer), from = channel_of(p, instr->peer, rank);
    int meeting = meeting_of(p, instr);
    *done = 1;
    switch (instr->action.type) {
    case TR_ACTION_SEND:
        if (instr->message == p->sent[to]++) return TR_OK;
        return fail_order(rank, instr, "it is not the next of its channel");
    case TR_ACTION_RECV:
        if (instr->message != p->taken[from])
            return fail_order(
                rank, instr, "messages of a channel are taken in the order in which they are sent");
        if ((*done = instr->message < p->sent[from])) p->taken[from]++;
        return TR_OK;
    case TR_ACTION_WAIT_SENT: *done = instr->message < p->taken[to]; return TR_OK;
    case TR_ACTION_REDUCE:
    case TR_ACTION_FINISH:
        if (!p->arrived[rank]) p->missing[meeting]--;
        p->arrived[rank] = p->missing[meeting] > 0;
        *done = !p->arrived[rank];
        return TR_OK;
    default: return TR_OK;
    }
}

/* Returns a rank that has not entered the collective in which `rank` waits. */
static int missing_rank(const prover *p, int rank, int meeting) {
    for (int r = 0; r < p->set->ranks; r++)
        for (int k = p->walk.next[r]; k < p->walk.count[r]; k++) {
            if (meeting_of(p, instr_of(p, r, k)) != meeting) continue;
            if (k > p->walk.next[r] || !p->arrived[r]) return r;
            break;
        }
    return rank;
}

static int blocked(const void *context, int rank, int at, char *item, char *need) {
    const prover *p = context;
    const tr_instr *instr = instr_of(p, rank, at);
    int meeting = meeting_of(p, instr), peer = instr->peer;
    if (meeting >= 0) peer = missing_rank(p, rank, meeting);
    tr_action_print(instr->action, item, TR_WALK_TEXT);
    (void)snprintf(need, TR_WALK_TEXT, "rank %d", peer);
    return peer;
}

static tr_status check_all_taken(const prover *p) {
    for (int a = 0; a < p->set->ranks; a++)
        for (int b = 0; b < p->set->ranks; b++) {
            int sent = p->sent[channel_of(p, a, b)], taken = p->taken[channel_of(p, a, b)];
            if (sent != taken)
                return TR_FAIL(TR_ERR_CONFIG,
                               "the program: rank %d sends %d messages to rank %d, which takes %d",
                               a, sent, b, taken);
        }
    return TR_OK;
}

tr_status tr_program_prove(const tr_program_set *set) {
    tr_status status = TR_OK;
    prover p = {.set = set};
    p.walk = (tr_walk){.name = "the program", .context = &p, .step = step, .blocked = blocked};
    size_t ranks = (size_t)set->ranks, stages = (size_t)set->program[0].stages;
    TR_TRY_OUT(tr_walk_open(&p.walk, set->ranks, NULL));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *p.arrived, &p.arrived));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *p.sent, &p.sent));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *p.taken, &p.taken));
    TR_TRY_OUT(tr_calloc(stages + 1, sizeof *p.missing, &p.missing));
    for (int r = 0; r < set->ranks; r++) {
        p.walk.count[r] = set->program[r].count;
        for (int k = 0; k < set->program[r].count; k++) {
            int meeting = meeting_of(&p, instr_of(&p, r, k));
            if (meeting >= 0) p.missing[meeting]++;
        }
    }
    TR_TRY_OUT(tr_walk_run(&p.walk, NULL));
    TR_TRY_OUT(check_all_taken(&p));
out:
    free(p.missing);
    free(p.taken);
    free(p.sent);
    free(p.arrived);
    tr_walk_close(&p.walk);
    return status;
}
