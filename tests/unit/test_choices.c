/* Tests multiple-choice files: JSON lines and llm.c's form, damaged ones, answers by losses, and
 * the sequences that are evaluated. */
#include "support/scratch.h"
#include "support/seed.h"
#include "train/evaluate.h"

#include "layers/layer.h"

#include <math.h>
#include <stdint.h>

static const tr_choices_options bytes = {.bytes = true, .vocab = 256, .context = 16};

static void write_text(const char *name, const char *text) {
    write_file(path_of(name), text, strlen(text));
}

static void refuses(const char *text, tr_status code, const char *part) {
    tr_choices c;
    write_text("q.jsonl", text);
    refused(tr_choices_open(path_of("q.jsonl"), &bytes, &c), code, part);
    tr_choices_free(&c);
}

/* --- JSON lines ------------------------------------------------------------------------------- */

static void test_lines(void **state) {
    (void)state;
    tr_choices c;
    write_text("q.jsonl", "{\"context\": \"ab\", \"choices\": [\"c\", \" de\"], \"label\": 1}\n\n"
                          "{\"ctx\":\"x \",\"endings\":[\"y\",\"zz\",\"w\"],\"gold\":\"2\"}\n"
                          "{\"query\":\"q\",\"choices\":[\"r\",\"\\u00e9\"],\"answer\":\"B\"}");
    assert_int_equal(tr_choices_open(path_of("q.jsonl"), &bytes, &c), TR_OK);
    assert_int_equal(c.questions, 3);
    assert_int_equal(c.count, 7);
    assert_int_equal(c.question[0].label, 1);
    assert_int_equal(c.question[1].label, 2);
    assert_int_equal(c.question[2].label, 1);
    static const char *const want[] = {"ab c", "ab de", "x y", "x zz", "x w", "q r", "q \xc3\xa9"};
    static const int context[] = {2, 2, 2, 2, 2, 1, 1}, written[] = {1, 3, 1, 2, 1, 1, 2};
    for (int k = 0; k < 7; k++) {
        const tr_choice *choice = &c.choice[k];
        assert_int_equal(choice->length, strlen(want[k]));
        assert_int_equal(choice->context, context[k]);
        assert_int_equal(choice->bytes, written[k]);
        for (int64_t t = 0; t < choice->length; t++)
            assert_int_equal(tr_choices_token(&c, choice, t), (unsigned char)want[k][t]);
    }
    assert_int_equal(c.longest, 4);
    tr_choices_free(&c);
}

/* The choices of a question share its context: a file of N bytes does not become tokens for each
 * pair of a context's byte and a choice. */
static void test_context_is_kept_once(void **state) {
    (void)state;
    enum { CONTEXT = 4000, CHOICES = 1000 };
    const tr_choices_options wide = {.bytes = true, .vocab = 256, .context = CONTEXT + 1};
    char text[CONTEXT + 4 * CHOICES + 64];
    tr_choices c;
    int at = sprintf(text, "{\"label\":0,\"context\":\"%0*d\",\"choices\":[\"b\"", CONTEXT, 0);
    for (int k = 1; k < CHOICES; k++) at += sprintf(text + at, ",\"b\"");
    (void)sprintf(text + at, "]}");
    write_text("q.jsonl", text);
    assert_int_equal(tr_choices_open(path_of("q.jsonl"), &wide, &c), TR_OK);
    assert_int_equal(c.count, CHOICES);
    assert_int_equal(c.tokens.count, CONTEXT + 2 * CHOICES);
    assert_int_equal(tr_choices_token(&c, &c.choice[CHOICES - 1], CONTEXT + 1), 'b');
    tr_choices_free(&c);
}

static void test_long_lines(void **state) {
    (void)state;
    enum { LENGTH = (16 << 20) + 1 };
    char *text = malloc(LENGTH + 1);
    assert_non_null(text);
    memset(text, '0', LENGTH);
    text[LENGTH] = '\0';
    refuses(text, TR_ERR_DATA, "q.jsonl:1: the line has 16777217 bytes, and a question at most 16");
    free(text);
}

static void test_bad_lines(void **state) {
    (void)state;
    tr_choices c;
    static const char good[] = "{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"label\":0}\n";
    char text[400];
    static const struct {
        const char *line, *part;
    } bad[] = {
        {"{\"context\":\"a\"", ":2: this is not valid JSON at byte"},
        {"[1]", ":2: a line is a question"},
        {"{\"text\":\"a\"}", ":2: a line is a question"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"]}", ":2: \"label\" is missing"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"label\":\"x\"}", "\"label\" is missing"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"label\":1.5}", "or not a whole number"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"label\":2}", "count from 0 to 1"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"c\"],\"label\":-1}", "count from 0 to 1"},
        {"{\"context\":\"a\",\"choices\":[\"b\"],\"label\":0}", "not 1"},
        {"{\"context\":\"a\",\"choices\":[],\"label\":0}", "not 0"},
        {"{\"context\":\"a\",\"choices\":[\"b\",3],\"label\":0}", "not a string"},
        {"{\"context\":\"a\",\"choices\":[\"b\",\"\"],\"label\":0}", "choice 1 is empty"},
        {"{\"context\":\"\",\"choices\":[\"b\",\"c\"],\"label\":0}", "the context is empty"},
        {"{\"context\":\"abcdefgh\",\"choices\":[\"b\",\"abcdefghi\"],\"label\":0}",
         "choice 1 have 18 tokens"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(text, sizeof text, "%s%s\n", good, bad[i].line);
        refuses(text, TR_ERR_DATA, bad[i].part);
    }
    refuses("\n \n", TR_ERR_DATA, "has no question");
    tr_choices_options none = bytes;
    none.bytes = false;
    write_text("q.jsonl", good);
    refused(tr_choices_open(path_of("q.jsonl"), &none, &c), TR_ERR_CONFIG, "needs a tokenizer");
    tr_choices_free(&c);
    refused(tr_choices_open(path_of("none.jsonl"), &bytes, &c), TR_ERR_NOFILE, "none.jsonl");
    tr_choices_free(&c);
}

/* --- llm.c ------------------------------------------------------------------------------------ */

enum { HEADER = 1024, NUMBERS = 64 };

/* Two questions with the context {1, 2}, {3} and the endings {4}, {5, 6} each. */
static size_t make_llmc(char file[HEADER + NUMBERS * 2]) {
    static const uint16_t numbers[] = {65535, 26, 0, 1, 2, 2, 1, 2, 1, 4, 2, 5, 6,
                                       65535, 24, 1, 0, 2, 1, 3, 1, 4, 2, 5, 6};
    const int32_t header[] = {20240522, 1, 2, 26};
    memset(file, 0, HEADER);
    memcpy(file, header, sizeof header);
    memcpy(file + HEADER, numbers, sizeof numbers);
    return HEADER + sizeof numbers;
}

static void test_llmc(void **state) {
    (void)state;
    tr_choices c;
    char file[HEADER + NUMBERS * 2];
    const size_t length = make_llmc(file);
    write_file(path_of("h.bin"), file, length);
    assert_true(tr_choices_is_file(path_of("h.bin")));
    assert_int_equal(tr_choices_open(path_of("h.bin"), &bytes, &c), TR_OK);
    assert_int_equal(c.questions, 2);
    assert_int_equal(c.question[0].label, 1);
    static const int32_t want[] = {1, 2, 4, 5, 6, 3, 4, 5, 6};
    assert_int_equal(c.tokens.count, sizeof want / sizeof *want);
    assert_memory_equal(c.tokens.id, want, sizeof want);
    assert_int_equal(c.choice[1].first, 0);
    assert_int_equal(c.choice[1].ending, 3);
    assert_int_equal(c.choice[1].context, 2);
    assert_int_equal(c.choice[1].length, 4);
    tr_choices_free(&c);
    /* Cut at every byte. */
    for (size_t cut = 4; cut < length; cut++) {
        write_file(path_of("cut.bin"), file, cut);
        refused(tr_choices_open(path_of("cut.bin"), &bytes, &c), TR_ERR_DATA, "byte");
        tr_choices_free(&c);
    }
    const tr_choices_options few = {.vocab = 6, .context = 16};
    refused(tr_choices_open(path_of("h.bin"), &few, &c), TR_ERR_CONFIG, "byte 1048: token 6");
    tr_choices_free(&c);
    const tr_choices_options narrow = {.vocab = 256, .context = 2};
    refused(tr_choices_open(path_of("h.bin"), &narrow, &c), TR_ERR_DATA, "have 4 tokens");
    tr_choices_free(&c);
    file[length] = 0;
    write_file(path_of("long.bin"), file, length + 1);
    refused(tr_choices_open(path_of("long.bin"), &bytes, &c), TR_ERR_DATA, "2 questions end here");
    tr_choices_free(&c);
}

/* Damaged numbers are refused or read; what is read stays within the file and the model. */
static void test_damaged_llmc(void **state) {
    (void)state;
    const char *rounds = getenv("TRIREME_ROUNDS");
    uint64_t random = tr_test_seed(1);
    for (long n = rounds ? atol(rounds) : 1000; n > 0; n--) {
        tr_choices c;
        char file[HEADER + NUMBERS * 2];
        size_t length = make_llmc(file);
        for (int64_t damage = tr_up_to(&random, 3); damage > 0; damage--) {
            const int64_t at = tr_up_to(&random, 10) > 1
                                   ? HEADER - 1 + tr_up_to(&random, (int64_t)length - HEADER)
                                   : 3 + tr_up_to(&random, 12);
            file[at] = (char)tr_up_to(&random, 256);
        }
        write_file(path_of("damaged.bin"), file, length);
        const tr_status status = tr_choices_open(path_of("damaged.bin"), &bytes, &c);
        assert_true(status == TR_OK || status == TR_ERR_DATA || status == TR_ERR_CONFIG);
        for (int64_t k = 0; k < c.count && status == TR_OK; k++) {
            assert_true(c.choice[k].length <= bytes.context + 1);
            assert_true(c.choice[k].first + c.choice[k].context <= (int64_t)c.tokens.count);
            assert_true(c.choice[k].ending + c.choice[k].length - c.choice[k].context <=
                        (int64_t)c.tokens.count);
        }
        tr_choices_free(&c);
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

static void test_answers(void **state) {
    (void)state;
    tr_choices c;
    write_text("q.jsonl", "{\"context\":\"a\",\"choices\":[\"b\",\"cdef\"],\"label\":0}\n"
                          "{\"context\":\"a\",\"choices\":[\"b\",\"cdef\"],\"label\":1}\n"
                          "{\"context\":\"a\",\"choices\":[\"bb\",\"cc\",\"dd\"],\"label\":2}\n"
                          "{\"context\":\"a\",\"choices\":[\"bb\",\"cc\"],\"label\":0}\n");
    assert_int_equal(tr_choices_open(path_of("q.jsonl"), &bytes, &c), TR_OK);
    const tr_sequence_loss loss[] = {{2, 2}, {3, 5}, {2, 2}, {3, 5}, {5, 3},
                                     {4, 3}, {3, 3}, {1, 3}, {1, 3}};
    tr_choices_score score = tr_evaluate_choices(&c, loss);
    assert_int_equal(score.questions, 4);
    assert_true(score.per_byte);
    assert_true(score.accuracy.share == 0.75);
    assert_true(fabs(score.accuracy.error - sqrt(0.75 * 0.25 / 3)) < 1e-15);
    /* Divided by bytes, the second choice of the first two questions is the answer. */
    assert_true(score.normalised.share == 0.75);
    c.question[0].label = 1;
    score = tr_evaluate_choices(&c, loss);
    assert_true(score.accuracy.share == 0.5);
    assert_true(score.normalised.share == 1 && score.normalised.error == 0);
    c.questions = 1;
    assert_true(isnan(tr_evaluate_choices(&c, loss).accuracy.error));
    /* Without bytes it is the mean of a choice's tokens, like llm.c's: 2/2 and 3/5. */
    c.choice[0].bytes = 0;
    score = tr_evaluate_choices(&c, loss);
    assert_false(score.per_byte);
    assert_true(score.accuracy.share == 0 && score.normalised.share == 1);
    tr_choices_free(&c);
}

/* --- sequences -------------------------------------------------------------------------------- */

enum { SEQ = 4 };

static void read_sequence(tr_sequences *s, int64_t index, int32_t got[3][SEQ]) {
    const tr_flow flow[] = {{.name = TR_STEP_INPUT_TOKENS},
                            {.name = TR_STEP_INPUT_LABELS},
                            {.name = TR_STEP_INPUT_DOCUMENT_STARTS}};
    tr_fetch wanted[3];
    for (int k = 0; k < 3; k++) wanted[k] = (tr_fetch){.input = &flow[k], .to = got[k]};
    assert_int_equal(tr_sequences_fetch(s, true, index, wanted, 3), TR_OK);
}

static void expect(tr_sequences *s, int64_t index, const int32_t want[3][SEQ]) {
    int32_t got[3][SEQ];
    read_sequence(s, index, got);
    assert_memory_equal(got, want, sizeof got);
}

/* Every token of a file but the first is a label once, and documents end where they say. */
static void test_windows(void **state) {
    (void)state;
    write_text("text", "ab0cdef");
    char *word = path_of("text");
    const tr_data_words words = {.word = &word, .count = 1};
    const tr_source_options options = {.format = "bytes", .vocab = 256};
    tr_corpus *corpus;
    tr_sequences s;
    assert_int_equal(tr_corpus_open("--data", &words, &options, &corpus), TR_OK);
    assert_int_equal(tr_sequences_of_corpus(corpus, SEQ, false, -1, &s), TR_OK);
    assert_int_equal(s.count, 2);
    expect(&s, 0, (int32_t[3][SEQ]){{'a', 'b', '0', 'c'}, {'b', '0', 'c', 'd'}, {0}});
    expect(&s, 1, (int32_t[3][SEQ]){{'d', 'e'}, {'e', 'f', -1, -1}, {0}});
    expect(&s, 2, (int32_t[3][SEQ]){{0}, {-1, -1, -1, -1}, {0}});
    tr_sequences_free(&s);
    assert_int_equal(tr_sequences_of_corpus(corpus, SEQ, true, '0', &s), TR_OK);
    expect(&s, 0, (int32_t[3][SEQ]){{'a', 'b', '0', 'c'}, {'b', '0', -1, 'd'}, {0, 0, 0, 3}});
    tr_sequences_free(&s);
    assert_int_equal(tr_sequences_of_corpus(corpus, 100, false, -1, &s), TR_OK);
    assert_int_equal(s.seq, 6); /* no longer than the file */
    tr_sequences_free(&s);
    tr_corpus_close(corpus);
}

static void test_choice_sequences(void **state) {
    (void)state;
    tr_choices c;
    tr_sequences s;
    write_text("q.jsonl", "{\"context\":\"ab\",\"choices\":[\" c\",\" \"],\"label\":0}\n");
    assert_int_equal(tr_choices_open(path_of("q.jsonl"), &bytes, &c), TR_OK);
    assert_int_equal(tr_sequences_of_choices(&c, SEQ, &s), TR_OK);
    expect(&s, 0, (int32_t[3][SEQ]){{'a', 'b', ' ', 0}, {-1, ' ', 'c', -1}, {0}});
    expect(&s, 1, (int32_t[3][SEQ]){{'a', 'b'}, {-1, ' ', -1, -1}, {0}});
    tr_choices_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_context_is_kept_once),
        cmocka_unit_test(test_long_lines),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_llmc),
        cmocka_unit_test(test_damaged_llmc),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_choice_sequences),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
