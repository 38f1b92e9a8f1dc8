/* Tests CSV files: reading and writing give the same file; PyTorch's own files and step counts;
 * errors with their position; a fuzzer (TRIREME_LONG=1: longer). */
#include "pipeline/orders/csv.h"
#include "pipeline/orders/transfers.h"
#include "support/pipeline_cases.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const samples[] = {
    "dualpipev_4rank_10mb.csv",
    "torchtitan_custom_schedule_2rank_4stage_8mb.csv",
    "zb1p_2rank_2stagep_compute.csv",
    "zb1p_2rank_2stagep_comms.csv",
};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

/* Returns the file's bytes, 0-terminated. The caller frees them. */
static char *read_sample(const char *name, size_t *length) {
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/pytorch_csv/%s", TRIREME_TEST_DATA, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    *length = fread(text, 1, (1 << 16) - 1, file);
    (void)fclose(file);
    return text;
}

static tr_schedule *load_sample(const char *name) {
    char path[1024];
    tr_schedule *s = NULL;
    (void)snprintf(path, sizeof path, "%s/pytorch_csv/%s", TRIREME_TEST_DATA, name);
    if (tr_schedule_load(path, &s) != TR_OK) fail_msg("%s", tr_error_message());
    return s;
}

static tr_schedule *read_text(const char *text) {
    tr_schedule *s = NULL;
    if (tr_schedule_read(text, strlen(text), "x.csv", &s) != TR_OK)
        fail_msg("%s", tr_error_message());
    return s;
}

static void expect_text(const tr_schedule *s, const char *want) {
    char *text = NULL;
    assert_int_equal(tr_schedule_print(s, true, &text), TR_OK);
    assert_string_equal(text, want);
    free(text);
}

/* Returns the file's bytes as Trireme writes them: LF, also after the last line, and no bubbles. */
static char *plain_text(const char *from) {
    char *to = calloc(1, strlen(from) + 2);
    assert_non_null(to);
    size_t used = 0;
    for (const char *c = from; *c; c++) {
        if (*c == '\r' || (*c == ',' && (!used || to[used - 1] == ',' || to[used - 1] == '\n')))
            continue;
        while (*c == '\n' && used && to[used - 1] == ',') used--;
        to[used++] = *c;
    }
    while (used && to[used - 1] == ',') used--;
    to[used] = '\0';
    if (used && to[used - 1] != '\n') to[used] = '\n';
    return to;
}

static void test_files_are_written_as_they_were_read(void **state) {
    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        size_t length;
        char *file = read_sample(samples[i], &length), *want = plain_text(file);
        tr_schedule *s = load_sample(samples[i]);
        expect_text(s, want);
        tr_schedule_destroy(s);
        free(want);
        free(file);
    }
    static const char *const small[] = {"0F0,0B0\n", "0F0,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n",
                                        "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
                                        "0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0I1)OVERLAP_F_B,0W1,0B2\n"};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        tr_schedule *s = read_text(small[i]);
        expect_text(s, small[i]);
        tr_schedule_destroy(s);
    }
}

static void test_what_is_around_actions_does_not_count(void **state) {
    (void)state;
    tr_schedule *s =
        read_text("\xef\xbb\xbf 0F0\t, ( 0F1 ; 0B0 )OVERLAP_F_B ,\"0B1\",   \r\n1F0,,1B0,1F1,1B1");
    expect_text(s, "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n");
    tr_schedule_destroy(s);
}

static void test_schedules_come_back(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(411))};
    for (int trial = 0; trial < 200; trial++) {
        tr_stage_table t;
        int ranks = test_between(&r, 1, 5);
        test_table_chain(ranks + test_between(&r, 0, 5), 64, 64, 64, &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 6)), *back = NULL;
        char *text = NULL, *again = NULL;
        assert_int_equal(tr_schedule_print(s, true, &text), TR_OK);
        back = read_text(text);
        assert_int_equal(back->stages, s->stages);
        assert_int_equal(back->micro_batches, s->micro_batches);
        assert_memory_equal(back->rank_of, s->rank_of, (size_t)s->stages * sizeof *s->rank_of);
        assert_int_equal(tr_schedule_check(back, &t, NULL), TR_OK);
        assert_int_equal(tr_schedule_print(back, true, &again), TR_OK);
        assert_string_equal(text, again);
        free(again);
        free(text);
        tr_schedule_destroy(back);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
}

static void test_samples_are_orders_that_run(void **state) {
    (void)state;
    static const int want[SAMPLES][3] = {{4, 8, 10}, {2, 4, 8}, {2, 4, 8}, {2, 4, 8}};
    for (int i = 0; i < SAMPLES; i++) {
        tr_schedule *s = load_sample(samples[i]);
        assert_int_equal(s->ranks, want[i][0]);
        assert_int_equal(s->stages, want[i][1]);
        assert_int_equal(s->micro_batches, want[i][2]);
        assert_int_equal(s->listed, i == 3);
        if (tr_schedule_check(s, NULL, NULL) != TR_OK) fail_msg("%s", tr_error_message());
        tr_schedule_destroy(s);
    }
}

/* --- transfers -------------------------------------------------------------------------------- */

/* PyTorch's rule of unit steps for a list with transfers: in every step each rank in turn does its
 * next entry if what the entry needs has been done; then ranks that could not try once more. A
 * transfer's RECV needs its SEND done, in whatever order the channel has them. */
typedef struct stepper {
    const tr_schedule *s;
    bool *done; /* [types][2][stages][micro_batches] */
    int *next;
} stepper;

static bool *done_at(const stepper *w, tr_action_type type, bool gradient, int stage, int k) {
    size_t row = ((size_t)type * 2 + gradient) * (size_t)w->s->stages + (size_t)stage;
    return &w->done[row * (size_t)w->s->micro_batches + (size_t)k];
}

static bool can_step(const stepper *w, tr_action a) {
    bool gradient = tr_action_transfers(a) ? a.gradient : a.type != TR_ACTION_F;
    int stage = a.stage, k = a.micro_batch, other = gradient ? stage + 1 : stage - 1;
    bool acted =
        gradient ? *done_at(w, TR_ACTION_I, 0, stage, k) || *done_at(w, TR_ACTION_B, 0, stage, k)
                 : *done_at(w, TR_ACTION_F, 0, stage, k);
    if (a.type == TR_ACTION_SEND) return acted;
    if (a.type == TR_ACTION_RECV) return *done_at(w, TR_ACTION_SEND, gradient, other, k);
    if (a.type == TR_ACTION_W || !tr_action_computes(a)) return true;
    if (other < 0 || other == w->s->stages) return true;
    if (w->s->rank_of[other] != w->s->rank_of[stage])
        return *done_at(w, TR_ACTION_RECV, gradient, stage, k);
    return gradient ? *done_at(w, TR_ACTION_I, 0, other, k) || *done_at(w, TR_ACTION_B, 0, other, k)
                    : *done_at(w, TR_ACTION_F, 0, other, k);
}

static bool step_rank(stepper *w, int r) {
    tr_action a = w->s->action[r][w->next[r]];
    if (!can_step(w, a)) return false;
    *done_at(w, a.type, a.gradient, a.stage, a.micro_batch) = true;
    w->next[r]++;
    return true;
}

static int unit_steps(const tr_schedule *s) {
    stepper w = {.s = s};
    w.done = calloc(2 * TR_ACTION_TYPES * (size_t)s->stages * (size_t)s->micro_batches, 1);
    w.next = calloc((size_t)s->ranks, sizeof *w.next);
    bool *paused = calloc((size_t)s->ranks, 1);
    assert_true(w.done && w.next && paused);
    int steps = 0;
    for (bool left = true; left; steps++) {
        bool progress = false;
        for (int r = 0; r < s->ranks; r++) {
            paused[r] = w.next[r] < s->count[r] && !step_rank(&w, r);
            progress = progress || (!paused[r] && w.next[r] <= s->count[r]);
        }
        left = false;
        for (int r = 0; r < s->ranks; r++) {
            if (paused[r]) (void)step_rank(&w, r);
            left = left || w.next[r] < s->count[r];
        }
        assert_true(progress && steps < 100000);
    }
    free(paused);
    free(w.next);
    free(w.done);
    return steps;
}

static tr_schedule *list_transfers(const tr_schedule *s, const tr_stage_table *table) {
    tr_schedule *listed = NULL;
    if (tr_schedule_list_transfers(s, table, &listed) != TR_OK) fail_msg("%s", tr_error_message());
    return listed;
}

static void test_transfers_of_the_zero_bubble_sample(void **state) {
    (void)state;
    tr_schedule *compute = load_sample("zb1p_2rank_2stagep_compute.csv");
    tr_schedule *listed = list_transfers(compute, NULL), *twice = NULL;
    size_t length;
    char *want = read_sample("zb1p_2rank_2stagep_comms.csv", &length);
    if (want[length - 1] != '\n') want[length] = '\n';
    expect_text(listed, want);
    assert_int_equal(unit_steps(listed), 113);
    assert_int_equal(tr_schedule_list_transfers(listed, NULL, &twice), TR_ERR_CONFIG);
    tr_schedule_destroy(listed);
    tr_schedule_destroy(compute);
    free(want);
}

static void expect_listed(const char *text, const char *want, int steps) {
    tr_schedule *s = read_text(text), *listed = list_transfers(s, NULL);
    expect_text(listed, want);
    assert_int_equal(unit_steps(listed), steps);
    tr_schedule_destroy(listed);
    tr_schedule_destroy(s);
}

/* At the turn of a V no message is sent. PyTorch's own case, without its bubbles, which Trireme
 * does not keep, so rank 1 receives the second message one action later. */
static void test_transfers_of_a_v(void **state) {
    (void)state;
    expect_listed("0F0,0F1,,3F0,3I0,3F1,3I1,0I0,3W0,0I1,3W1,0W0,0W1\n"
                  ",1F0,2F0,1F1,2F1,2I0,1I0,2I1,1I1,2W0,2W1,1W0,1W1\n",
                  "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3I0,3SEND_B0,3RECV_F1,3F1,3I1,"
                  "3SEND_B1,0RECV_B0,0I0,3W0,0RECV_B1,0I1,3W1,0W0,0W1\n"
                  "1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1F1,2RECV_B0,2F1,2SEND_F1,2I0,2RECV_B1,"
                  "1I0,1SEND_B0,2I1,1I1,1SEND_B1,2W0,2W1,1W0,1W1\n",
                  23);
}

/* A W is merged with the I before it only if that I is not overlapped. */
static void test_merging(void **state) {
    (void)state;
    expect_listed("0F0,,0F1,(0F2;0I0)OVERLAP_F_B,0W0,0I1,,0W1,0I2,0W2\n",
                  "0F0,0F1,(0F2;0I0)OVERLAP_F_B,0W0,0B1,0B2\n", 7);
}

/* With random graphs of stages, a list is an order that runs and can be lowered, and the lowered
 * program has every message of every edge once. */
static void test_lists_follow_the_edges(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(77))};
    for (int trial = 0; trial < 200; trial++) {
        int ranks = test_between(&r, 1, 4), stages = ranks * test_between(&r, 1, 3), remote = 0;
        tr_stage_table t;
        test_table_random(&r, stages, test_between(&r, 0, 4), &t);
        tr_schedule *s = test_schedule_random(&r, &t, ranks, test_between(&r, 1, 5));
        tr_schedule *listed = list_transfers(s, &t);
        tr_program_set *set = NULL;
        if (tr_lower(listed, &t, &set) != TR_OK) fail_msg("%s", tr_error_message());
        for (int e = 0; e < t.edges; e++)
            remote += s->rank_of[t.edge[e].from] != s->rank_of[t.edge[e].to];
        int messages = 2 * s->micro_batches * remote;
        for (int k = 0; k < ranks; k++)
            for (int n = 0; n < set->program[k].count; n++)
                messages -= set->program[k].instr[n].action.type == TR_ACTION_SEND;
        assert_int_equal(messages, 0);
        tr_program_set_destroy(set);
        tr_schedule_destroy(listed);
        tr_schedule_destroy(s);
        tr_stage_table_free(&t);
    }
}

/* Returns the messages of one direction as text, in order. */
static void list_channel(const tr_schedule *s, int from, int to, char *text) {
    text[0] = '\0';
    for (int k = 0; k < s->count[from]; k++) {
        tr_action a = s->action[from][k];
        if (a.type != TR_ACTION_SEND || s->rank_of[a.stage + (a.gradient ? -1 : 1)] != to) continue;
        (void)sprintf(text + strlen(text), "%d%c%d ", a.stage, a.gradient ? 'I' : 'F',
                      a.micro_batch);
    }
}

static void list_program(const tr_program_set *set, int from, int to, char *text) {
    text[0] = '\0';
    for (int k = 0; k < set->program[from].count; k++) {
        const tr_instr *instr = &set->program[from].instr[k];
        if (instr->action.type == TR_ACTION_SEND && instr->peer == to)
            (void)sprintf(text + strlen(text), "%d%c%d ", instr->action.stage,
                          instr->action.gradient ? 'I' : 'F', instr->action.micro_batch);
    }
}

static void test_the_runner_sends_the_same_messages(void **state) {
    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        tr_schedule *s = load_sample(samples[i]), *listed = NULL;
        tr_stage_table t;
        tr_program_set *set = NULL;
        char ours[8192], theirs[8192];
        if (!s->listed) listed = list_transfers(s, NULL);
        test_table_chain(s->stages, 256, 256, 256, &t);
        assert_int_equal(tr_lower(s, &t, &set), TR_OK);
        int messages = 0;
        for (int a = 0; a < s->ranks; a++)
            for (int b = 0; b < s->ranks; b++) {
                list_channel(listed ? listed : s, a, b, theirs);
                list_program(set, a, b, ours);
                assert_string_equal(ours, theirs);
                messages += *ours != '\0';
            }
        assert_true(messages > 0);
        tr_program_set_destroy(set);
        tr_stage_table_free(&t);
        tr_schedule_destroy(listed);
        tr_schedule_destroy(s);
    }
}

/* A list is lowered as it is written: also RECVs well before their actions, and REDUCE where the
 * list has it. */
static void test_lists_are_run_as_they_are(void **state) {
    (void)state;
    tr_schedule *s = read_text("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1,0REDUCE_GRAD\n"
                               "1RECV_F0,1RECV_F1,1F0,1B0,1F1,1SEND_B0,1B1,1SEND_B1\n");
    static const char *const want[2] = {
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1 0REDUCE_START0 0REDUCE_WAIT0 FINISH ",
        "1RECV_F0 1RECV_F1 1F0 1B0 1F1 1SEND_B0 1B1 1REDUCE_START0 1SEND_B1 1REDUCE_WAIT0 FINISH "};
    tr_stage_table t;
    tr_program_set *set = NULL;
    assert_true(s->listed);
    test_table_chain(2, 256, 256, 256, &t);
    if (tr_lower(s, &t, &set) != TR_OK) fail_msg("%s", tr_error_message());
    for (int r = 0; r < 2; r++) {
        char text[1024] = "";
        for (int k = 0; k < set->program[r].count; k++) {
            const tr_instr *instr = &set->program[r].instr[k];
            if (instr->action.type == TR_ACTION_WAIT_SENT) continue;
            tr_action_print(instr->action, text + strlen(text), 64);
            strcat(text, " ");
        }
        assert_string_equal(text, want[r]);
    }
    tr_program_set_destroy(set);
    tr_stage_table_free(&t);
    tr_schedule_destroy(s);
}

/* Reading the text fails with a message that starts with `want`. */
static void expect_refusal(const char *text, const char *want) {
    tr_schedule *s = NULL;
    assert_int_equal(tr_schedule_read(text, strlen(text), "x.csv", &s), TR_ERR_CONFIG);
    if (strncmp(tr_error_message(), want, strlen(want)) != 0)
        fail_msg("'%s' is not '%s'", tr_error_message(), want);
    assert_null(s);
}

/* --- errors ----------------------------------------------------------------------------------- */

static void test_errors_have_a_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", "x.csv:1:1: the file is empty"},
        {"0F0,0X0\n", "x.csv:1:6: '0X0' is not an action"},
        {"0F0,F0\n", "x.csv:1:5: 'F0' lacks the number of its stage"},
        {"0F0\n1F\n", "x.csv:2:3: '1F' lacks the number of its micro-batch"},
        {"0F0\n1F0, 1F0x\n", "x.csv:2:9: '1F0x' has characters after the action"},
        {"0F0,0F 1\n", "x.csv:1:7: '0F 1' lacks the number of its micro-batch"},
        {"0F0,0REDUCE_GRAD1\n", "x.csv:1:17: '0REDUCE_GRAD1' has characters after"},
        {"0F0,2BW0\n", "x.csv:1:6: '2BW0' is PyTorch's old form"},
        {"0F0,2B\n", "x.csv:1:7: '2B' lacks the number of its micro-batch"},
        {"0SEND_X0\n", "x.csv:1:2: '0SEND_X0' is not an action"},
        {"0SEND0\n", "x.csv:1:2: '0SEND0' is not an action"},
        {"00F0\n", "x.csv:1:1: '00F0' has a stage that begins with 0"},
        {"0F007\n", "x.csv:1:3: '0F007' has a micro-batch that begins with 0"},
        {"0F99999999999999999999\n", "x.csv:1:3: '0F99999999999999999999' has a micro-batch of"},
        {"-1F0\n", "x.csv:1:1: '-1F0' lacks the number of its stage"},
        {"\xef\xbb\xbf"
         "0F0,0X0\n",
         "x.csv:1:6: '0X0' is not an action"},
        {"0F0,(0F1;0B0)\n", "x.csv:1:5: '(0F1;0B0)' is not a pair"},
        {"0F0,(0F1)OVERLAP_F_B\n", "x.csv:1:5: '(0F1)OVERLAP_F_B' has one action"},
        {"(0F1;0B0;0W0)OVERLAP_F_B\n", "x.csv:1:9: '(0F1;0B0;0W0)OVERLAP_F_B' has more than two"},
        {"(0F1;0W0)OVERLAP_F_B\n", "x.csv:1:6: '(0F1;0W0)OVERLAP_F_B' must overlap an F"},
        {"(0F1;0F0)OVERLAP_F_B\n", "x.csv:1:6: '(0F1;0F0)OVERLAP_F_B' must overlap an F"},
        {"(0B1;0F0,0F1)OVERLAP_F_B\n", "x.csv:1:1: '(0B1;0F0' is not a pair"},
        {"(0F1;0Q0)OVERLAP_F_B\n", "x.csv:1:7: '0Q0' is not an action"},
        {"0F0,0SEND_F0\n1RECV_F0,,1F0\n",
         "x.csv:2:10: an empty cell is not allowed in a file with transfers"},
        {"\"0F0\n", "x.csv:1:1: '\"0F0' lacks the number of its stage"},
        {"0F0\r0B0\n", "x.csv:1:4: '0F0?0B0' has characters after the action"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].text, cases[i].want);
}

static void test_files_that_are_no_schedule(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"0F0,0B0\n1F0,1B0,0F1\n", "x.csv:2:9: stage 0 is also on rank 0: a stage has one owner"},
        {"0F0,0B0\n2F0,2B0\n", "x.csv: stage 1 is missing, although stage 2 exists"},
        {"0F0,0B0\n\n", "x.csv:2:1: rank 1 has no action"},
        {"0F0,0B0\n,,\n", "x.csv:2:1: rank 1 has no action"},
        {"0F0,0B0,0F0\n", "x.csv:1:9: rank 0: 0F0 occurs twice"},
        {"0F0,0B0,0W0\n",
         "x.csv:1:9: rank 0: 0W0 occurs twice: B is I and W together (in PyTorch's"},
        {"1048575F1048575\n", "x.csv: stage 0 is missing"},
        {"0F1048575,0SEND_"
         "F3\n1F0\n2F0\n3F0\n4F0\n5F0\n6F0\n7F0\n8F0\n9F0\n10F0\n11F0\n12F0\n13F0\n14F0\n"
         "15F0\n16F0\n",
         "17 stages of 1048576 micro-batches are too many"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].text, cases[i].want);
    tr_schedule *s = NULL;
    assert_int_equal(tr_schedule_load("no-such-file.csv", &s), TR_ERR_NOFILE);
    assert_non_null(strstr(tr_error_message(), "no-such-file.csv"));
    assert_int_equal(tr_schedule_load("/", &s), TR_ERR_DATA);
    assert_string_equal(tr_error_message(),
                        "the schedule file '/' is a directory: name a regular file");
}

static void test_transfers_are_checked(void **state) {
    (void)state;
    static const char rank1[] = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
    static const struct {
        const char *row0, *row1, *want; /* row1 NULL: the usual one; want NULL: the order runs */
    } cases[] = {
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL, NULL},
        {"0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n",
         NULL, NULL},
        {"0F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:1: rank 0: 0F0 lacks its 0SEND_F0"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:27: rank 0: 0B0 lacks its 0RECV_B0"},
        {"0SEND_F0,0F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:1: schedule x.csv cannot run to its end: rank 0 at 0SEND_F0 waits for 0F0"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:27: schedule x.csv cannot run to its end: rank 0 at 0B0 waits for 0RECV_B0"},
        {"0F0,0SEND_F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:14: rank 0: 0SEND_F0 occurs twice"},
        {"0F0,0SEND_F0,0SEND_F2,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:14: rank 0, action 0SEND_F2: micro-batch 2 does not exist"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0SEND_B0\n", NULL,
         "x.csv:1:53: rank 0: 0SEND_B0 has no stage on another rank at its other end"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0REDUCE_GRAD,0RECV_B1,0B1\n", NULL,
         "x.csv:1:40: schedule x.csv cannot run to its end: rank 0 at 0REDUCE_GRAD waits for 0W1"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0REDUCE_GRAD\n", NULL,
         "x.csv:1:66: rank 0: 0REDUCE_GRAD occurs twice"},
        /* Without its transfers the order could run. */
        {"0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n",
         "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
         "x.csv:1:18: schedule x.csv cannot run to its end: rank 0 at 0RECV_B0 waits for 1SEND_B0; "
         "rank 1 at 1RECV_F1 waits for 0SEND_F1"},
        {"0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:2:27: rank 1: 1RECV_F1 comes too late: messages of a channel are taken in the "
         "order "
         "in which they"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        (void)snprintf(text, sizeof text, "%s%s", cases[i].row0,
                       cases[i].row1 ? cases[i].row1 : rank1);
        if (cases[i].want) expect_refusal(text, cases[i].want);
        else tr_schedule_destroy(read_text(text));
    }
    expect_refusal("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n",
                   "x.csv:1:5: rank 0: 0SEND_F0 has no stage on another rank at its other end");
}

/* --- fuzzer ----------------------------------------------------------------------------------- */

/* Changes a few bytes of `text`: replaced, removed, doubled, swapped with a piece elsewhere. */
static size_t mutate(test_random *r, char *text, size_t length, size_t most) {
    static const char alphabet[] = "0123456789FIWBSENDRCV_UHAGTOLP();,,\n\r \"\t\x01\xff";
    for (int n = test_between(r, 1, 6); n > 0; n--) {
        size_t at = length ? test_next(r) % length : 0;
        switch (test_between(r, 0, 4)) {
        case 0:
            if (length) text[at] = alphabet[test_next(r) % (sizeof alphabet)];
            break;
        case 1:
            if (length) memmove(text + at, text + at + 1, --length - at);
            break;
        case 2:
            if (length < most) {
                memmove(text + at + 1, text + at, length++ - at);
                text[at] = alphabet[test_next(r) % (sizeof alphabet)];
            }
            break;
        case 3: length = length ? at : 0; break;
        default:
            if (length > 20) {
                char piece[8];
                size_t from = test_next(r) % (length - 8), to = test_next(r) % (length - 8);
                memcpy(piece, text + from, 8);
                memcpy(text + to, piece, 8);
            }
        }
    }
    return length;
}

/* Any bytes are read or refused; an order that was read is written, and reading that gives the same
 * order. */
static void test_fuzz(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(5))};
    const int trials = getenv("TRIREME_LONG") ? 1000000 : 5000;
    char *sample[SAMPLES];
    size_t length[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) sample[i] = read_sample(samples[i], &length[i]);
    int read = 0, refused = 0;
    for (int trial = 0; trial < trials; trial++) {
        int i = test_between(&r, 0, SAMPLES - 1);
        char *text = malloc(length[i] + 8);
        assert_non_null(text);
        memcpy(text, sample[i], length[i]);
        size_t bytes = mutate(&r, text, length[i], length[i] + 8);
        /* A copy of exactly these bytes, so that the sanitizer sees a read past their end. */
        char *exact = malloc(bytes ? bytes : 1);
        assert_non_null(exact);
        memcpy(exact, text, bytes);
        free(text);
        tr_schedule *s = NULL, *again = NULL;
        tr_status status = tr_schedule_read(exact, bytes, "fuzz.csv", &s);
        free(exact);
        if (status != TR_OK) {
            assert_int_equal(status, TR_ERR_CONFIG);
            refused += strncmp(tr_error_message(), "fuzz.csv:", 9) == 0;
            continue;
        }
        read++;
        char *first = NULL, *second = NULL;
        assert_int_equal(tr_schedule_print(s, true, &first), TR_OK);
        if (tr_schedule_read(first, strlen(first), "again.csv", &again) != TR_OK)
            fail_msg("%s", tr_error_message());
        assert_int_equal(tr_schedule_print(again, true, &second), TR_OK);
        assert_string_equal(first, second);
        free(first);
        free(second);
        tr_schedule_destroy(again);
        tr_schedule_destroy(s);
    }
    for (int i = 0; i < SAMPLES; i++) free(sample[i]);
    print_message("%d of %d read, %d refused with their place\n", read, trials, refused);
    assert_true(read > trials / 200 && refused > trials / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_are_written_as_they_were_read),
        cmocka_unit_test(test_what_is_around_actions_does_not_count),
        cmocka_unit_test(test_schedules_come_back),
        cmocka_unit_test(test_samples_are_orders_that_run),
        cmocka_unit_test(test_transfers_of_the_zero_bubble_sample),
        cmocka_unit_test(test_transfers_of_a_v),
        cmocka_unit_test(test_merging),
        cmocka_unit_test(test_lists_follow_the_edges),
        cmocka_unit_test(test_the_runner_sends_the_same_messages),
        cmocka_unit_test(test_lists_are_run_as_they_are),
        cmocka_unit_test(test_errors_have_a_place),
        cmocka_unit_test(test_files_that_are_no_schedule),
        cmocka_unit_test(test_transfers_are_checked),
        cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
