#include "pipeline/program/prove.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct prover {
    const tr_event_lists *l;
    int *next;         /* [ranks]: first event not done */
    int *sent, *taken; /* [ranks * ranks], from * ranks + to: messages so far */
    int *missing;      /* [meetings]: ranks that are not there yet */
    bool *arrived;     /* [ranks]: at the meeting that is its next event */
} prover;

static size_t channel_of(const prover *p, int from, int to) {
    return (size_t)from * (size_t)p->l->ranks + (size_t)to;
}

static bool is_at_end(const prover *p, int rank) {
    return p->next[rank] == p->l->count(p->l->context, rank);
}

static tr_status fail_order(const prover *p, int rank, const char *problem) {
    char text[96];
    p->l->print(p->l->context, rank, p->next[rank], text, sizeof text);
    return TR_FAIL(TR_ERR_CONFIG, "%s: rank %d, %s: %s", p->l->name, rank, text, problem);
}

/* Does the rank's next event when it can. */
static tr_status advance(prover *p, int rank, bool *done) {
    tr_event e = p->l->event(p->l->context, rank, p->next[rank]);
    size_t to =
        e.kind == TR_EVENT_SEND || e.kind == TR_EVENT_SENT ? channel_of(p, rank, e.peer) : 0;
    size_t from = e.kind == TR_EVENT_RECV ? channel_of(p, e.peer, rank) : 0;
    *done = true;
    switch (e.kind) {
    case TR_EVENT_STEP: break;
    case TR_EVENT_SEND:
        if (e.number != p->sent[to])
            return fail_order(p, rank, "it is not the next of its channel");
        p->sent[to]++;
        break;
    case TR_EVENT_RECV:
        if (e.number != p->taken[from])
            return fail_order(
                p, rank, "messages of a channel are taken in the order in which they are sent");
        if ((*done = e.number < p->sent[from])) p->taken[from]++;
        break;
    case TR_EVENT_SENT: *done = e.number < p->taken[to]; break;
    case TR_EVENT_MEET:
        if (!p->arrived[rank]) p->missing[e.number]--;
        p->arrived[rank] = p->missing[e.number] > 0;
        *done = !p->arrived[rank];
        break;
    }
    if (*done) p->next[rank]++;
    return TR_OK;
}

/* The rank that a blocked rank waits for. */
static int waits_for(const prover *p, int rank) {
    tr_event e = p->l->event(p->l->context, rank, p->next[rank]);
    if (e.kind != TR_EVENT_MEET) return e.peer;
    for (int r = 0; r < p->l->ranks; r++)
        for (int k = p->next[r]; k < p->l->count(p->l->context, r); k++) {
            tr_event other = p->l->event(p->l->context, r, k);
            if (other.kind != TR_EVENT_MEET || other.number != e.number) continue;
            if (k > p->next[r] || !p->arrived[r]) return r;
            break;
        }
    return rank;
}

/* All ranks are blocked or at their end: follows the waits from rank to rank to the cycle, or to a
 * rank that has ended, and names it. */
static tr_status fail_blocked(const prover *p, int rank) {
    for (int k = 0; k < p->l->ranks && !is_at_end(p, waits_for(p, rank)); k++)
        rank = waits_for(p, rank);
    char text[768] = "", at[96];
    size_t used = 0;
    int first = rank;
    bool ended = false;
    do {
        p->l->print(p->l->context, rank, p->next[rank], at, sizeof at);
        int peer = waits_for(p, rank);
        int n = snprintf(text + used, sizeof text - used, "%srank %d at %s waits for rank %d",
                         used ? "; " : "", rank, at, peer);
        if (n > 0) used += (size_t)n;
        rank = peer;
        ended = is_at_end(p, rank);
    } while (rank != first && !ended && used < sizeof text);
    return TR_FAIL(TR_ERR_CONFIG, "%s deadlocks: %s%s", p->l->name, text,
                   used >= sizeof text ? " ..."
                   : ended             ? ", which has ended"
                                       : "");
}

static tr_status run(prover *p) {
    bool progress = true;
    while (progress) {
        progress = false;
        for (int r = 0; r < p->l->ranks; r++)
            for (bool done = true; done && !is_at_end(p, r);) {
                TR_TRY(advance(p, r, &done));
                progress = progress || done;
            }
    }
    for (int r = 0; r < p->l->ranks; r++)
        if (!is_at_end(p, r)) return fail_blocked(p, r);
    for (int a = 0; a < p->l->ranks; a++)
        for (int b = 0; b < p->l->ranks; b++)
            if (p->sent[channel_of(p, a, b)] != p->taken[channel_of(p, a, b)])
                return TR_FAIL(
                    TR_ERR_CONFIG, "%s: rank %d sends %d messages to rank %d, which takes %d",
                    p->l->name, a, p->sent[channel_of(p, a, b)], b, p->taken[channel_of(p, a, b)]);
    return TR_OK;
}

static void count_members(prover *p) {
    for (int r = 0; r < p->l->ranks; r++)
        for (int k = 0; k < p->l->count(p->l->context, r); k++) {
            tr_event e = p->l->event(p->l->context, r, k);
            if (e.kind == TR_EVENT_MEET) p->missing[e.number]++;
        }
}

tr_status tr_prove_ends(const tr_event_lists *lists) {
    tr_status status = TR_OK;
    prover p = {.l = lists};
    size_t ranks = (size_t)lists->ranks;
    TR_TRY_OUT(tr_calloc(ranks, sizeof *p.next, &p.next));
    TR_TRY_OUT(tr_calloc(ranks, sizeof *p.arrived, &p.arrived));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *p.sent, &p.sent));
    TR_TRY_OUT(tr_calloc(ranks * ranks, sizeof *p.taken, &p.taken));
    TR_TRY_OUT(tr_calloc((size_t)lists->meetings, sizeof *p.missing, &p.missing));
    count_members(&p);
    TR_TRY_OUT(run(&p));
out:
    free(p.missing);
    free(p.taken);
    free(p.sent);
    free(p.arrived);
    free(p.next);
    return status;
}

/* --- programs --------------------------------------------------------------------------------- */

static int count_instr(const void *context, int rank) {
    return ((const tr_program_set *)context)->program[rank].count;
}

static tr_event event_of_instr(const void *context, int rank, int index) {
    const tr_program *program = &((const tr_program_set *)context)->program[rank];
    const tr_instr *instr = &program->instr[index];
    switch (instr->kind) {
    case TR_INSTR_SEND: return (tr_event){TR_EVENT_SEND, instr->peer, instr->message};
    case TR_INSTR_RECV: return (tr_event){TR_EVENT_RECV, instr->peer, instr->message};
    case TR_INSTR_WAIT_SENT: return (tr_event){TR_EVENT_SENT, instr->peer, instr->message};
    case TR_INSTR_REDUCE: return (tr_event){TR_EVENT_MEET, rank, instr->stage};
    case TR_INSTR_FINISH: return (tr_event){TR_EVENT_MEET, rank, program->stages};
    default: return (tr_event){.kind = TR_EVENT_STEP};
    }
}

static void print_instr(const void *context, int rank, int index, char *text, size_t size) {
    tr_instr_print(&((const tr_program_set *)context)->program[rank].instr[index], text, size);
}

tr_status tr_program_prove(const tr_program_set *set) {
    tr_event_lists lists = {.name = "the program",
                            .ranks = set->ranks,
                            .meetings = set->program[0].stages + 1,
                            .count = count_instr,
                            .event = event_of_instr,
                            .print = print_instr,
                            .context = set};
    return tr_prove_ends(&lists);
}
