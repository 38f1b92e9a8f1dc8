/* Tests that records of simulated ranks reproduce the simulation: the measured timeline has its
 * times, and so has the plan that is made from the measurements. */
#include "support/generate_order.h"
#include "support/pipeline_cases.h"
#include "support/trace_check.h"
#include "train/trace.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

enum { PP = 2, STEPS = 2, MOST = 4 };
static const double gap = 40; /* between the beginnings of steps */
static const double sum_latency = 0.75;

typedef struct job {
    tr_world *world;
    int dp;
    bool parts; /* the first F of a stage waits while it runs */
    const tr_program_set *set;
    const tr_simulation *sim;
    tr_timeline *measured, *planned;
    int64_t offset;
    tr_status status;
} job;

/* Returns true when the instruction is recorded as an F, a wait of no length and the rest of the
 * F. */
static bool in_parts(const job *j, const tr_instr *instr) {
    return j->parts && instr->action.type == TR_ACTION_F && !instr->adds;
}

static size_t entries_of(const job *j, const tr_program *p) {
    size_t entries = 0;
    for (int k = 0; k < p->count; k++) entries += in_parts(j, &p->instr[k]) ? 3 : 1;
    return STEPS * entries;
}

/* Records an instruction; returns the number of its entries. */
static int observe(const job *j, const tr_instr *instr, tr_record *record) {
    const tr_instr wait = {.action = {.stage = instr->action.stage, .type = TR_ACTION_GATHER_WAIT}};
    tr_record_observe(record, instr, true);
    for (int end = 0; end < 2 && in_parts(j, instr); end++)
        tr_record_observe(record, &wait, end == 0);
    tr_record_observe(record, instr, false);
    return in_parts(j, instr) ? 3 : 1;
}

/* Fills the rank's record as a run would that takes its last step again, at one unit a
 * millisecond. */
static tr_status fill(const job *j, int rank, tr_record *record) {
    const tr_program *p = &j->set->program[rank];
    for (int taken = 0; taken <= STEPS; taken++) {
        const int step = taken < STEPS ? taken : STEPS - 1;
        if (taken == STEPS) tr_record_forget(record, step);
        for (int k = 0; k < p->count; k++) {
            tr_record_step(record, step);
            const int entries = observe(j, &p->instr[k], record);
            tr_record_entry *entry = &record->entry[record->count - (size_t)entries];
            for (int e = 0; e < entries; e++)
                if (entry[e].end_ns < entry[e].start_ns || entry[e].step != step ||
                    entry[e].kind !=
                        (int)(e == 1 ? TR_ACTION_GATHER_WAIT : p->instr[k].action.type))
                    return TR_ERR_INTERNAL;
            const tr_instr_time *time = &j->sim->instr[rank][k];
            entry[0].start_ns = llround(1e6 * (1000 + gap * step + time->start));
            entry[entries - 1].end_ns = llround(1e6 * (1000 + gap * step + time->end));
            for (int e = 1; e < entries; e++)
                entry[e].start_ns = entry[e - 1].end_ns =
                    llround(1e6 * (1000 + gap * step + (time->start + time->end) / 2));
        }
    }
    /* A record that is full or switched off must not change. */
    tr_record_observe(record, &p->instr[0], true);
    tr_record_observe(record, &p->instr[0], false);
    tr_record_step(record, -1);
    return record->count == entries_of(j, p) ? TR_OK : TR_ERR_INTERNAL;
}

static tr_status gather(job *j) {
    tr_mesh mesh;
    tr_record *record = NULL;
    TR_TRY(tr_mesh_make(PP, j->dp, 1, tr_world_rank(j->world), tr_world_size(j->world), &mesh));
    int rank = mesh.index[TR_AXIS_PP];
    TR_TRY(tr_record_open(entries_of(j, &j->set->program[rank]), &record));
    tr_status status = fill(j, rank, record);
    if (status == TR_OK) status = tr_tracing_clock(j->world, &j->offset);
    if (status == TR_OK)
        status = tr_tracing_gather(
            j->world, &mesh, j->set,
            &(tr_simulated_links){.near.latency = 1, .sum.latency = 1e-3 * sum_latency}, record, 7,
            &j->measured, &j->planned);
    tr_record_close(record);
    return status;
}

static void *run(void *context) {
    job *j = context;
    j->status = gather(j);
    tr_world_close(j->world);
    return NULL;
}

static int compare_events(const void *a, const void *b) {
    const tr_bar *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->action.type != y->action.type) return x->action.type < y->action.type ? -1 : 1;
    if (x->action.stage != y->action.stage) return x->action.stage < y->action.stage ? -1 : 1;
    if (x->action.micro_batch != y->action.micro_batch)
        return x->action.micro_batch < y->action.micro_batch ? -1 : 1;
    return (x->start > y->start) - (x->start < y->start);
}

/* Returns the time of all ranks' waits for sums. */
static double waits_of(const tr_timeline *t) {
    double sum = 0;
    for (size_t k = 0; k < t->count; k++)
        if (t->bar[k].action.type == TR_ACTION_REDUCE_WAIT) sum += t->bar[k].end - t->bar[k].start;
    return sum;
}

/* Sorts the actions of a timeline, joins their parts and returns their number. */
static size_t actions_of(tr_timeline *t) {
    size_t n = 0, joined = 0;
    for (size_t k = 0; k < t->count; k++)
        if (t->bar[k].action.type <= TR_ACTION_B) t->bar[n++] = t->bar[k];
    qsort(t->bar, n, sizeof *t->bar, compare_events);
    for (size_t k = 0; k < n; k++) {
        tr_bar *last = &t->bar[joined > 0 ? joined - 1 : 0];
        const tr_bar bar = t->bar[k];
        const bool goes_on = joined > 0 && bar.rank == last->rank && bar.step == last->step &&
                             bar.action.type == last->action.type &&
                             bar.action.stage == last->action.stage &&
                             bar.action.micro_batch == last->action.micro_batch;
        if (goes_on) last->end = bar.end;
        else t->bar[joined++] = bar;
    }
    return joined;
}

static void expect_file(const tr_timeline *measured, const tr_timeline *planned, int arrows) {
    char path[] = "test_trace_XXXXXX", text[1 << 18] = "";
    int handle = mkstemp(path);
    assert_true(handle >= 0);
    FILE *file = fdopen(handle, "r");
    assert_int_equal(tr_tracing_write(path, measured, planned), TR_OK);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    remove(path);
    trace_facts facts;
    const char *fault = trace_fault(text, &facts);
    if (fault) fail_msg("%s", fault);
    assert_int_equal(facts.arrows, arrows);
    assert_int_equal(facts.processes, 2 * measured->ranks);
    assert_int_equal(tr_tracing_write("no-directory/x", measured, planned), TR_ERR_IO);
}

/* Fails unless shares are those of one step, whatever the time between steps. */
static void is_of_one_step(const tr_timeline *t, const job *j) {
    double busy = 0;
    for (int r = 0; r < PP; r++) busy += j->sim->time[r].busy;
    assert_int_equal(t->steps, STEPS);
    assert_int_equal(t->first_step, 7);
    assert_true(fabs(t->span - 1e-3 * (double)STEPS * j->sim->makespan) < 1e-7);
    double sum = 0;
    for (int r = 0; r < t->ranks; r++) {
        const tr_rank_time *time = &t->time[r];
        double idle = time->fill + time->drain + time->waiting + time->imbalance;
        assert_true(fabs(t->span - time->busy - idle) < 1e-7);
        sum += time->busy;
    }
    assert_true(fabs(sum - 1e-3 * (double)STEPS * j->dp * busy) < 1e-7);
}

static void expect_back(const char *name, int dp, int m, double c, bool parts) {
    tr_stage_table t;
    tr_schedule *s = NULL;
    tr_program_set *set = NULL;
    tr_simulation *sim = NULL;
    tr_world *world[MOST];
    job j[MOST];
    pthread_t thread[MOST];
    test_table_chain(PP, 256, 256, 256, &t);
    t.cost[0].f = 2;
    assert_int_equal(generate_order(name, PP, PP, m, &s), TR_OK);
    assert_int_equal(tr_lower(s, &t, &set), TR_OK);
    const tr_simulated_links links = {.near.latency = c, .sum.latency = sum_latency};
    assert_int_equal(tr_simulate(set, t.cost, &links, &sim), TR_OK);
    assert_true(sim->makespan < gap);
    int n = PP * dp;
    assert_int_equal(tr_world_open_local(n, world), TR_OK);
    for (int r = 0; r < n; r++) {
        j[r] = (job){.world = world[r], .dp = dp, .parts = parts, .set = set, .sim = sim};
        assert_int_equal(pthread_create(&thread[r], NULL, run, &j[r]), 0);
    }
    for (int r = 0; r < n; r++) assert_int_equal(pthread_join(thread[r], NULL), 0);
    for (int r = 0; r < n; r++) {
        assert_int_equal(j[r].status, TR_OK);
        assert_int_equal(j[r].offset, 0); /* threads share a clock */
        assert_true(r == 0 || (!j[r].measured && !j[r].planned));
    }
    expect_file(j[0].measured, j[0].planned, 2 * STEPS * dp * 2 * m);
    const double waits = waits_of(j[0].measured);
    assert_true(waits > 0 && fabs(waits - waits_of(j[0].planned)) < 1e-7);
    size_t actions = actions_of(j[0].measured);
    assert_int_equal(actions, actions_of(j[0].planned));
    assert_int_equal(actions, STEPS * dp * (set->program[0].memories + set->program[1].memories));
    for (size_t k = 0; k < actions; k++) {
        const tr_bar *x = &j[0].measured->bar[k], *y = &j[0].planned->bar[k];
        assert_true(compare_events(x, y) == 0 || fabs(x->start - y->start) < 1e-8);
        /* Nanoseconds, rounded. */
        assert_true(fabs(x->start - y->start) < 1e-8 && fabs(x->end - y->end) < 1e-8);
    }
    assert_true(fabs(j[0].measured->makespan - 1e-3 * (gap + sim->makespan)) < 1e-8);
    is_of_one_step(j[0].planned, &j[0]);
    is_of_one_step(j[0].measured, &j[0]);
    tr_timeline_destroy(j[0].measured);
    tr_timeline_destroy(j[0].planned);
    tr_simulation_destroy(sim);
    tr_program_set_destroy(set);
    tr_schedule_destroy(s);
    tr_stage_table_free(&t);
}

static void test_records_come_back(void **state) {
    (void)state;
    expect_back("1f1b", 1, 3, 0.25, false);
    expect_back("gpipe", 2, 4, 0, true);
    expect_back("zb-h1", 2, 5, 0.5, true);
}

/* --- clocks of several hosts ------------------------------------------------------------------ */

enum { HOSTS = 3 };
static _Thread_local long lag_s; /* how far this rank's clock is behind */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    const int failed = __real_clock_gettime(clock, now);
    if (clock == CLOCK_MONOTONIC) now->tv_sec -= lag_s;
    return failed;
}

static void *compare_clocks(void *context) {
    job *j = context;
    lag_s = 10L * tr_world_rank(j->world);
    j->status = tr_tracing_clock(j->world, &j->offset);
    tr_world_close(j->world);
    return NULL;
}

static void test_clocks(void **state) {
    (void)state;
    tr_world *world[HOSTS];
    pthread_t thread[HOSTS];
    job j[HOSTS];
    assert_int_equal(tr_world_open_local(HOSTS, world), TR_OK);
    for (int r = 0; r < HOSTS; r++) {
        j[r] = (job){.world = world[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, compare_clocks, &j[r]), 0);
    }
    for (int r = 0; r < HOSTS; r++) {
        assert_int_equal(pthread_join(thread[r], NULL), 0);
        assert_int_equal(j[r].status, TR_OK);
        assert_true(fabs(1e-9 * (double)j[r].offset - 10.0 * r) < 5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_records_come_back),
                                       cmocka_unit_test(test_clocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
