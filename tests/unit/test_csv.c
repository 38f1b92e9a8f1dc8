/* CSV files: what is read is written again, PyTorch's own files and step counts, errors with their
 * place, and a fuzzer (TRIREME_LONG=1: more of it). */
#include "pipeline/orders/csv.h"
#include "pipeline_cases.h"
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

/* The file's bytes, 0-terminated; freed by the caller. */
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

static tr_csv *load_sample(const char *name) {
    char path[1024];
    tr_csv *csv = NULL;
    (void)snprintf(path, sizeof path, "%s/pytorch_csv/%s", TRIREME_TEST_DATA, name);
    if (tr_csv_load(path, &csv) != TR_OK) fail_msg("%s", tr_error_message());
    return csv;
}

static tr_csv *parse(const char *text) {
    tr_csv *csv = NULL;
    if (tr_csv_parse(text, strlen(text), "x.csv", &csv) != TR_OK)
        fail_msg("%s", tr_error_message());
    return csv;
}

static void expect_text(const tr_csv *csv, const char *want) {
    char *text = NULL;
    assert_int_equal(tr_csv_text(csv, &text), TR_OK);
    assert_string_equal(text, want);
    free(text);
}

static void test_files_are_written_as_they_were_read(void **state) {
    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        size_t length;
        char *want = read_sample(samples[i], &length);
        tr_csv *csv = load_sample(samples[i]);
        /* Line ends are LF, and the last line has one. */
        char *unix_text = calloc(1, length + 2);
        assert_non_null(unix_text);
        size_t used = 0;
        for (size_t k = 0; k < length; k++)
            if (want[k] != '\r') unix_text[used++] = want[k];
        if (used && unix_text[used - 1] != '\n') unix_text[used] = '\n';
        expect_text(csv, unix_text);
        tr_csv_destroy(csv);
        free(unix_text);
        free(want);
    }
    static const char *const small[] = {
        "0F0,,0B0\n",
        "\"\"\n0F0\n",
        ",\n",
        "\n0F0\n",
        "0F0,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1SEND_B0\n",
        "0F0,(0F1;0B0)OVERLAP_F_B,(0I1;1F0)OVERLAP_F_B,,\n"};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        tr_csv *csv = parse(small[i]);
        expect_text(csv, small[i]);
        tr_csv_destroy(csv);
    }
}

static void test_line_ends_and_white_space_do_not_count(void **state) {
    (void)state;
    tr_csv *csv = parse(" 0F0\t, ( 0F1 ; 0B0 )OVERLAP_F_B ,\"0B1\",   \r\n1F0,1F1,1B0,1B1");
    assert_int_equal(csv->rows, 2);
    assert_int_equal(csv->count[0], 5);
    assert_int_equal(csv->cell[0][0].column, 2);
    assert_int_equal(csv->cell[0][1].column, 10);
    assert_int_equal(csv->cell[0][2].column, 16);
    expect_text(csv, "0F0,(0F1;0B0)OVERLAP_F_B,0B1,\n1F0,1F1,1B0,1B1\n");
    tr_csv_destroy(csv);
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
        assert_int_equal(tr_schedule_print(s, &text), TR_OK);
        tr_csv *csv = parse(text);
        if (tr_csv_schedule(csv, &back) != TR_OK) fail_msg("%s", tr_error_message());
        assert_int_equal(back->stages, s->stages);
        assert_int_equal(back->micro_batches, s->micro_batches);
        assert_memory_equal(back->rank_of, s->rank_of, (size_t)s->stages * sizeof *s->rank_of);
        assert_int_equal(tr_schedule_check(back, &t, NULL), TR_OK);
        assert_int_equal(tr_schedule_print(back, &again), TR_OK);
        assert_string_equal(text, again);
        free(again);
        free(text);
        tr_csv_destroy(csv);
        tr_schedule_destroy(back);
        tr_schedule_destroy(s);
        test_table_free(&t);
    }
}

static void test_samples_are_orders_that_run(void **state) {
    (void)state;
    static const int want[SAMPLES][3] = {{4, 8, 10}, {2, 4, 8}, {2, 4, 8}, {2, 4, 8}};
    for (int i = 0; i < SAMPLES; i++) {
        tr_csv *csv = load_sample(samples[i]);
        tr_schedule *s = NULL;
        if (tr_csv_schedule(csv, &s) != TR_OK) fail_msg("%s", tr_error_message());
        assert_int_equal(s->ranks, want[i][0]);
        assert_int_equal(s->stages, want[i][1]);
        assert_int_equal(s->micro_batches, want[i][2]);
        assert_int_equal(csv->comms, i == 3);
        if (tr_schedule_check(s, NULL, NULL) != TR_OK) fail_msg("%s", tr_error_message());
        tr_schedule_destroy(s);
        tr_csv_destroy(csv);
    }
}

/* --- transfers -------------------------------------------------------------------------------- */

/* PyTorch's rule of unit steps for a list with transfers: in every step each rank in turn does its
 * next entry when what it needs has been done; then ranks that paused try once more. A transfer's
 * RECV needs its SEND done, in whatever order the channel has them. */
typedef struct stepper {
    const tr_csv *csv;
    const tr_schedule *s;
    bool *done; /* [kinds][stages][micro_batches] */
    int *next, *steps;
} stepper;

static bool *done_at(const stepper *w, tr_csv_kind kind, int stage, int k) {
    return &w->done[((size_t)kind * (size_t)w->s->stages + (size_t)stage) *
                        (size_t)w->s->micro_batches +
                    (size_t)k];
}

static bool can_step(const stepper *w, const tr_csv_cell *c) {
    int stage = c->stage, k = c->micro_batch, last = w->s->stages - 1;
    const int *rank_of = w->s->rank_of;
    switch (c->kind) {
    case TR_CSV_F:
        return stage == 0 || *done_at(w, TR_CSV_RECV_F, stage, k) ||
               (rank_of[stage - 1] == rank_of[stage] && *done_at(w, TR_CSV_F, stage - 1, k));
    case TR_CSV_I:
    case TR_CSV_B:
        return stage == last || *done_at(w, TR_CSV_RECV_B, stage, k) ||
               (rank_of[stage + 1] == rank_of[stage] &&
                (*done_at(w, TR_CSV_I, stage + 1, k) || *done_at(w, TR_CSV_B, stage + 1, k)));
    case TR_CSV_SEND_F: return *done_at(w, TR_CSV_F, stage, k);
    case TR_CSV_SEND_B: return *done_at(w, TR_CSV_I, stage, k) || *done_at(w, TR_CSV_B, stage, k);
    case TR_CSV_RECV_F: return *done_at(w, TR_CSV_SEND_F, stage - 1, k);
    case TR_CSV_RECV_B: return *done_at(w, TR_CSV_SEND_B, stage + 1, k);
    default: return true;
    }
}

static bool step_rank(stepper *w, int r) {
    const tr_csv_cell *c = &w->csv->cell[r][w->next[r]];
    if (!can_step(w, c)) return false;
    *done_at(w, c->kind, c->stage, c->micro_batch) = true;
    w->next[r]++;
    return true;
}

static int unit_steps(const tr_csv *csv) {
    stepper w = {.csv = csv};
    tr_schedule *s = NULL;
    assert_int_equal(tr_csv_schedule(csv, &s), TR_OK);
    w.s = s;
    w.done = calloc(TR_CSV_KINDS * (size_t)s->stages * (size_t)s->micro_batches, 1);
    w.next = calloc((size_t)csv->rows, sizeof *w.next);
    bool *paused = calloc((size_t)csv->rows, 1);
    assert_true(w.done && w.next && paused);
    int steps = 0;
    for (bool left = true; left; steps++) {
        bool progress = false;
        for (int r = 0; r < csv->rows; r++) {
            paused[r] = w.next[r] < csv->count[r] && !step_rank(&w, r);
            progress = progress || (!paused[r] && w.next[r] <= csv->count[r]);
        }
        left = false;
        for (int r = 0; r < csv->rows; r++) {
            if (paused[r]) (void)step_rank(&w, r);
            left = left || w.next[r] < csv->count[r];
        }
        assert_true(progress && steps < 100000);
    }
    free(paused);
    free(w.next);
    free(w.done);
    tr_schedule_destroy(s);
    return steps;
}

static void test_transfers_of_the_zero_bubble_sample(void **state) {
    (void)state;
    tr_csv *compute = load_sample("zb1p_2rank_2stagep_compute.csv"), *comms = NULL;
    size_t length;
    char *want = read_sample("zb1p_2rank_2stagep_comms.csv", &length);
    if (want[length - 1] != '\n') want[length] = '\n';
    assert_int_equal(tr_csv_add_comms(compute, true, &comms), TR_OK);
    expect_text(comms, want);
    assert_int_equal(unit_steps(comms), 113);
    tr_csv *twice = NULL;
    assert_int_equal(tr_csv_add_comms(comms, true, &twice), TR_ERR_CONFIG);
    tr_csv_destroy(comms);
    tr_csv_destroy(compute);
    free(want);
}

/* PyTorch's two inline cases: bubbles count as rounds, and the turn of a V exchanges nothing. */
static void test_transfers_of_inline_cases(void **state) {
    (void)state;
    tr_csv *simple = parse("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n"), *comms = NULL;
    assert_int_equal(tr_csv_add_comms(simple, false, &comms), TR_OK);
    expect_text(comms, "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                       "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
    assert_int_equal(unit_steps(comms), 11);
    tr_csv_destroy(comms);
    tr_csv_destroy(simple);
    tr_csv *v = parse("0F0,0F1,,3F0,3I0,3F1,3I1,0I0,3W0,0I1,3W1,0W0,0W1\n"
                      ",1F0,2F0,1F1,2F1,2I0,1I0,2I1,1I1,2W0,2W1,1W0,1W1\n");
    assert_int_equal(tr_csv_add_comms(v, false, &comms), TR_OK);
    expect_text(comms, "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3I0,3SEND_B0,3RECV_F1,3F1,3I1,"
                       "3SEND_B1,0RECV_B0,0I0,3W0,0RECV_B1,0I1,3W1,0W0,0W1\n"
                       "1RECV_F0,1RECV_F1,1F0,2F0,2SEND_F0,1F1,2RECV_B0,2F1,2SEND_F1,2I0,2RECV_B1,"
                       "1I0,1SEND_B0,2I1,1I1,1SEND_B1,2W0,2W1,1W0,1W1\n");
    assert_int_equal(unit_steps(comms), 24);
    tr_csv_destroy(comms);
    tr_csv_destroy(v);
}

/* A W joins the I in front of it only when that stands alone. */
static void test_merging(void **state) {
    (void)state;
    tr_csv *csv = parse("0F0,,0F1,(0F2;0I0)OVERLAP_F_B,0W0,0I1,,0W1,0I2,0W2\n"), *comms = NULL;
    assert_int_equal(tr_csv_add_comms(csv, true, &comms), TR_OK);
    expect_text(comms, "0F0,0F1,(0F2;0I0)OVERLAP_F_B,0W0,0B1,0B2\n");
    tr_csv_destroy(comms);
    tr_csv_destroy(csv);
}

/* The messages of one direction as text, in order. */
static void list_channel(const tr_csv *csv, const tr_schedule *s, int from, int to, char *text) {
    text[0] = '\0';
    for (int k = 0; k < csv->count[from]; k++) {
        const tr_csv_cell *c = &csv->cell[from][k];
        bool gradient = c->kind == TR_CSV_SEND_B;
        if (c->kind != TR_CSV_SEND_F && !gradient) continue;
        if (s->rank_of[c->stage + (gradient ? -1 : 1)] != to) continue;
        (void)sprintf(text + strlen(text), "%d%c%d ", c->stage, gradient ? 'I' : 'F',
                      c->micro_batch);
    }
}

static void list_program(const tr_program_set *set, int from, int to, char *text) {
    text[0] = '\0';
    for (int k = 0; k < set->program[from].count; k++) {
        const tr_instr *instr = &set->program[from].instr[k];
        if (instr->kind == TR_INSTR_SEND && instr->peer == to)
            (void)sprintf(text + strlen(text), "%d%c%d ", instr->stage, instr->gradient ? 'I' : 'F',
                          instr->micro_batch);
    }
}

static void test_the_runner_sends_the_same_messages(void **state) {
    (void)state;
    for (int i = 0; i < SAMPLES; i++) {
        tr_csv *csv = load_sample(samples[i]), *comms = NULL;
        tr_schedule *s = NULL;
        tr_stage_table t;
        tr_program_set *set = NULL;
        char ours[8192], theirs[8192];
        assert_int_equal(tr_csv_schedule(csv, &s), TR_OK);
        if (!csv->comms) assert_int_equal(tr_csv_add_comms(csv, true, &comms), TR_OK);
        test_table_chain(s->stages, 256, 256, 256, &t);
        assert_int_equal(tr_lower(s, &t, 0, &set), TR_OK);
        int messages = 0;
        for (int a = 0; a < s->ranks; a++)
            for (int b = 0; b < s->ranks; b++) {
                list_channel(comms ? comms : csv, s, a, b, theirs);
                list_program(set, a, b, ours);
                assert_string_equal(ours, theirs);
                messages += *ours != '\0';
            }
        assert_true(messages > 0);
        tr_program_set_destroy(set);
        test_table_free(&t);
        tr_schedule_destroy(s);
        tr_csv_destroy(comms);
        tr_csv_destroy(csv);
    }
}

/* A list is lowered as it is written: its RECVs ahead of their actions too, REDUCE where it says.
 */
static void test_lists_are_run_as_they_are(void **state) {
    (void)state;
    tr_csv *csv = parse("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1,0REDUCE_GRAD\n"
                        "1RECV_F0,1RECV_F1,1F0,1B0,1F1,1SEND_B0,1B1,1SEND_B1\n");
    static const char *const want[2] = {
        "0F0 SEND of 0F0 to rank 1 0F1 SEND of 0F1 to rank 1 RECV for 0I0 from rank 1 RECV for 0I1 "
        "from rank 1 0B0 0B1 REDUCE of stage 0 FINISH ",
        "RECV for 1F0 from rank 0 RECV for 1F1 from rank 0 1F0 1B0 1F1 SEND of 1I0 to rank 0 1B1 "
        "SEND of 1I1 to rank 0 REDUCE of stage 1 FINISH "};
    tr_schedule *s = NULL;
    tr_stage_table t;
    tr_program_set *set = NULL;
    if (tr_csv_schedule(csv, &s) != TR_OK) fail_msg("%s", tr_error_message());
    assert_non_null(s->list);
    test_table_chain(2, 256, 256, 256, &t);
    if (tr_lower(s, &t, 0, &set) != TR_OK) fail_msg("%s", tr_error_message());
    for (int r = 0; r < 2; r++) {
        char text[1024] = "";
        for (int k = 0; k < set->program[r].count; k++) {
            const tr_instr *instr = &set->program[r].instr[k];
            if (instr->kind == TR_INSTR_WAIT_SENT) continue;
            tr_instr_print(instr, text + strlen(text), 64);
            strcat(text, " ");
        }
        assert_string_equal(text, want[r]);
    }
    tr_program_set_destroy(set);
    test_table_free(&t);
    tr_schedule_destroy(s);
    tr_csv_destroy(csv);
}

/* --- errors ----------------------------------------------------------------------------------- */

static void test_errors_have_a_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", "x.csv:1:1: the file is empty"},
        {"0F0,0X0\n", "x.csv:1:6: '0X0' is no action"},
        {"0F0,F0\n", "x.csv:1:5: 'F0' lacks the number of its stage"},
        {"0F0\n1F\n", "x.csv:2:3: '1F' lacks the number of its micro-batch"},
        {"0F0\n1F0, 1F0x\n", "x.csv:2:9: '1F0x' has something behind the action"},
        {"0F0,0F 1\n", "x.csv:1:7: '0F 1' lacks the number of its micro-batch"},
        {"0F0,0REDUCE_GRAD1\n", "x.csv:1:17: '0REDUCE_GRAD1' has something behind"},
        {"0F0,2BW0\n", "x.csv:1:6: '2BW0' is PyTorch's old dialect"},
        {"0F0,2B\n", "x.csv:1:7: '2B' lacks the number of its micro-batch"},
        {"0SEND_X0\n", "x.csv:1:2: '0SEND_X0' is no action"},
        {"0SEND0\n", "x.csv:1:2: '0SEND0' is no action"},
        {"00F0\n", "x.csv:1:1: '00F0' has a stage that begins with 0"},
        {"0F007\n", "x.csv:1:3: '0F007' has a micro-batch that begins with 0"},
        {"0F99999999999999999999\n", "x.csv:1:3: '0F99999999999999999999' has a micro-batch of"},
        {"-1F0\n", "x.csv:1:1: '-1F0' lacks the number of its stage"},
        {"\xef\xbb\xbf"
         "0F0\n",
         "x.csv:1:1: the file begins with a byte order mark"},
        {"0F0,(0F1;0B0)\n", "x.csv:1:5: '(0F1;0B0)' is no pair"},
        {"0F0,(0F1)OVERLAP_F_B\n", "x.csv:1:5: '(0F1)OVERLAP_F_B' overlaps nothing"},
        {"(0F1;0B0;0W0)OVERLAP_F_B\n", "x.csv:1:9: '(0F1;0B0;0W0)OVERLAP_F_B' has more than two"},
        {"(0F1;0W0)OVERLAP_F_B\n", "x.csv:1:6: '(0F1;0W0)OVERLAP_F_B' does not overlap an F"},
        {"(0F1;0F0)OVERLAP_F_B\n", "x.csv:1:6: '(0F1;0F0)OVERLAP_F_B' does not overlap an F"},
        {"(0B1;0F0,0F1)OVERLAP_F_B\n", "x.csv:1:1: '(0B1;0F0' is no pair"},
        {"(0F1;0Q0)OVERLAP_F_B\n", "x.csv:1:7: '0Q0' is no action"},
        {"0F0,0SEND_F0\n1RECV_F0,,1F0\n", "x.csv:2:10: an empty cell in a file with transfers"},
        {"\"0F0\n", "x.csv:1:1: '\"0F0' lacks the number of its stage"},
        {"0F0\r0B0\n", "x.csv:1:4: '0F0?0B0' has something behind the action"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_csv *csv = NULL;
        assert_int_equal(tr_csv_parse(cases[i].text, strlen(cases[i].text), "x.csv", &csv),
                         TR_ERR_CONFIG);
        if (strncmp(tr_error_message(), cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("'%s' is not '%s'", tr_error_message(), cases[i].want);
        assert_null(csv);
    }
}

static void test_files_that_are_no_schedule(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"0F0,0B0\n1F0,1B0,0F1\n", "x.csv:2:9: stage 0 is on rank 0 too: a stage has one owner"},
        {"0F0,0B0\n2F0,2B0\n", "x.csv: stage 1 is on no rank, the highest is 2"},
        {"0F0,0B0\n\n", "x.csv:2:1: rank 1 has no action"},
        {"0F0,0B0\n,,\n", "x.csv:2:1: rank 1 has no action"},
        {"0F0,0B0,0F0\n", "x.csv:1:9: 0F0 is done twice"},
        {"0F0,0B0,0W0\n", "x.csv:1:9: 0W0 is done twice: B is I and W together (in PyTorch's old"},
        {"1048575F1048575\n", "x.csv: stage 0 is on no rank"},
        {"0F1048575,0SEND_"
         "F3\n1F0\n2F0\n3F0\n4F0\n5F0\n6F0\n7F0\n8F0\n9F0\n10F0\n11F0\n12F0\n13F0\n14F0\n"
         "15F0\n16F0\n",
         "17 stages of 1048576 micro-batches are too many"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_csv *csv = parse(cases[i].text);
        tr_schedule *s = NULL;
        assert_int_equal(tr_csv_schedule(csv, &s), TR_ERR_CONFIG);
        if (strncmp(tr_error_message(), cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("'%s' is not '%s'", tr_error_message(), cases[i].want);
        tr_csv_destroy(csv);
    }
    tr_csv *csv = NULL;
    assert_int_equal(tr_csv_load("no-such-file.csv", &csv), TR_ERR_NOFILE);
    assert_non_null(strstr(tr_error_message(), "no-such-file.csv"));
    assert_int_equal(tr_csv_load("/", &csv), TR_ERR_NOFILE);
    assert_string_equal(tr_error_message(),
                        "the schedule file '/' is a directory: name a regular file");
}

static void test_transfers_are_checked(void **state) {
    (void)state;
    static const char rank1[] = "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
    static const struct {
        const char *row0, *row1, *want; /* row1 NULL: the usual one; want NULL: it runs */
    } cases[] = {
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL, NULL},
        {"0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n",
         NULL, NULL},
        {"0F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL, "x.csv:1:1: 0F0 lacks its 0SEND_F0"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:27: 0B0 lacks its 0RECV_B0"},
        {"0SEND_F0,0F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:1: 0SEND_F0 stands before the action whose result it sends"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:31: 0RECV_B0 stands behind the action that needs it"},
        {"0F0,0SEND_F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:14: 0SEND_F0 is done twice"},
        {"0F0,0SEND_F0,0SEND_F2,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv:1:14: 0SEND_F2: there is no micro-batch 2"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0SEND_B0\n", NULL,
         "x.csv:1:53: 0SEND_B0: there is no stage at its other end"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0REDUCE_GRAD,0RECV_B1,0B1\n", NULL,
         "x.csv:1:40: 0REDUCE_GRAD stands before the W of micro-batch 1"},
        {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0REDUCE_GRAD\n", NULL,
         "x.csv:1:66: 0REDUCE_GRAD is done twice"},
        /* The actions alone could run. */
        {"0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n",
         "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
         "x.csv deadlocks: rank 0 at 0RECV_B0 (1:18) waits for rank 1; rank 1 at 1RECV_F1 (2:10) "
         "waits "
         "for rank 0"},
        {"0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n", NULL,
         "x.csv: rank 1, 1RECV_F0 (2:1): messages of a channel are taken in the order in which "
         "they"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        (void)snprintf(text, sizeof text, "%s%s", cases[i].row0,
                       cases[i].row1 ? cases[i].row1 : rank1);
        tr_csv *csv = parse(text);
        assert_int_equal(tr_csv_check(csv), cases[i].want ? TR_ERR_CONFIG : TR_OK);
        if (cases[i].want && strncmp(tr_error_message(), cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("'%s' is not '%s'", tr_error_message(), cases[i].want);
        tr_csv_destroy(csv);
    }
    tr_csv *inside = parse("0F0,0SEND_F0,1RECV_F0,1F0,1B0,0B0\n");
    assert_int_equal(tr_csv_check(inside), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(),
                        "x.csv:1:5: 0SEND_F0: the stage at its other end is on the same rank");
    tr_csv_destroy(inside);
    for (int i = 0; i < SAMPLES; i++) {
        tr_csv *csv = load_sample(samples[i]);
        if (tr_csv_check(csv) != TR_OK) fail_msg("%s", tr_error_message());
        tr_csv_destroy(csv);
    }
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

/* Any bytes are read or refused; what is read is written, and read again to the same. */
static void test_fuzz(void **state) {
    (void)state;
    test_random r = {tr_mix64(tr_test_seed(5))};
    const int trials = getenv("TRIREME_LONG") ? 1000000 : 5000;
    char *sample[SAMPLES];
    size_t length[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) sample[i] = read_sample(samples[i], &length[i]);
    int read = 0, schedules = 0;
    for (int trial = 0; trial < trials; trial++) {
        int i = test_between(&r, 0, SAMPLES - 1);
        char *text = malloc(length[i] + 8);
        assert_non_null(text);
        memcpy(text, sample[i], length[i]);
        size_t bytes = mutate(&r, text, length[i], length[i] + 8);
        /* A copy of just these bytes: a read behind them is seen by the sanitizer. */
        char *exact = malloc(bytes ? bytes : 1);
        assert_non_null(exact);
        memcpy(exact, text, bytes);
        free(text);
        tr_csv *csv = NULL, *again = NULL;
        tr_status status = tr_csv_parse(exact, bytes, "fuzz.csv", &csv);
        free(exact);
        if (status != TR_OK) {
            assert_int_equal(status, TR_ERR_CONFIG);
            assert_true(strncmp(tr_error_message(), "fuzz.csv:", 9) == 0);
            continue;
        }
        read++;
        char *first = NULL, *second = NULL;
        assert_int_equal(tr_csv_text(csv, &first), TR_OK);
        if (tr_csv_parse(first, strlen(first), "again.csv", &again) != TR_OK)
            fail_msg("%s", tr_error_message());
        assert_int_equal(tr_csv_text(again, &second), TR_OK);
        assert_string_equal(first, second);
        tr_schedule *s = NULL;
        if (tr_csv_schedule(csv, &s) == TR_OK) {
            schedules++;
            (void)tr_csv_check(csv);
        }
        tr_schedule_destroy(s);
        free(first);
        free(second);
        tr_csv_destroy(again);
        tr_csv_destroy(csv);
    }
    for (int i = 0; i < SAMPLES; i++) free(sample[i]);
    print_message("%d of %d read, %d of them schedules\n", read, trials, schedules);
    assert_true(read > trials / 50 && schedules > trials / 200 && read < trials * 3 / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_are_written_as_they_were_read),
        cmocka_unit_test(test_line_ends_and_white_space_do_not_count),
        cmocka_unit_test(test_schedules_come_back),
        cmocka_unit_test(test_samples_are_orders_that_run),
        cmocka_unit_test(test_transfers_of_the_zero_bubble_sample),
        cmocka_unit_test(test_transfers_of_inline_cases),
        cmocka_unit_test(test_merging),
        cmocka_unit_test(test_the_runner_sends_the_same_messages),
        cmocka_unit_test(test_lists_are_run_as_they_are),
        cmocka_unit_test(test_errors_have_a_place),
        cmocka_unit_test(test_files_that_are_no_schedule),
        cmocka_unit_test(test_transfers_are_checked),
        cmocka_unit_test(test_fuzz),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
