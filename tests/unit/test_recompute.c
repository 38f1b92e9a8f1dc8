/* Tests which activations of a block F keeps in each mode of recompute, to the byte, what building
 * them again costs, and the text that says which mode a block has. That no mode changes a bit is
 * tested in test_layer_stage. */
#include "layers/layer_stage.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 4, ROWS = 64, WIDTH = 64, HEADS = 4, MLP = 256 };

static const char *const modes[] = {"none", "selective", "full"};

typedef enum kind { GPT2, LLAMA, QWEN3, KINDS } kind;

/* Makes a model with tensors of multiples of TR_ALIGN bytes. */
static tr_model *make(const char *recompute, kind family, double dropout) {
    static const char *const names[] = {"gpt2", "llama", "qwen3"};
    tr_model_config config = {.layers = BLOCKS,
                              .width = WIDTH,
                              .heads = HEADS,
                              .context = ROWS,
                              .vocab = 300,
                              .mlp_width = MLP,
                              .dropout = dropout};
    const tr_model_shape shape = {.batch = 1, .seq = ROWS, .dtype = TR_F32, .tp_size = 1};
    tr_model *model;
    (void)snprintf(config.family, sizeof config.family, "%s", names[family]);
    config.qk_norm = family == QWEN3 ? TR_YES : 0;
    (void)snprintf(config.recompute, sizeof config.recompute, "%s", recompute);
    if (tr_model_create(&config, &shape, &model) != TR_OK) fail_msg("%s", tr_error_message());
    return model;
}

/* --- bytes and costs -------------------------------------------------------------------------- */

/* In elements: what F keeps to the end of I, to the end of W, what I adds, and what F does not
 * keep. C and m: a row's width, and that of the MLP; n: the numbers that norms keep. */
typedef struct kept {
    int64_t fi, fw, iw, unkept;
} kept;

static kept expected(int mode, kind family, bool drops) {
    const bool gated = family != GPT2;
    const int64_t C = ROWS * WIDTH, m = ROWS * MLP, lse = ROWS * HEADS;
    const int64_t n = (gated ? 1 : 2) * ROWS, gradients = (drops ? 4 : 3) * C + 3 * C;
    const int64_t in = gated ? 2 * m : m, din = gated ? 0 : m;
    const int64_t fi = 3 * C + lse + (gated ? 0 : in);
    /* Both norms with their numbers, attention, h, and the MLP. */
    const int64_t fw = 2 * (C + n) + 2 * C + m + (gated ? in : 0);
    /* Norms of heads: queries and keys before them, with a number for each head. */
    const int64_t heads = family == QWEN3 ? 2 * C + 2 * ROWS * HEADS : 0;
    const int64_t iw = gradients + (family == QWEN3 ? 2 * C : 0), qkv = heads ? 3 * C : 0;
    if (mode == TR_RECOMPUTE_NONE) return (kept){fi, fw + heads, iw + din, 0};
    if (mode == TR_RECOMPUTE_FULL) return (kept){0, 0, iw + din + fw + heads, fi + fw + heads};
    return (kept){fi, fw - 2 * C - m, iw + din + m + heads, 2 * C + m + heads + qkv};
}

static void test_bytes_of_a_block(void **state) {
    (void)state;
    for (int mode = 0; mode < TR_RECOMPUTE_MODES; mode++)
        for (kind family = GPT2; family < KINDS; family++)
            for (int drops = 0; drops < 2; drops++) {
                tr_model *model = make(modes[mode], family, drops ? 0.1 : 0);
                const tr_layer *block = model->layers[1];
                const kept want = expected(mode, family, drops);
                assert_int_equal(block->bytes[TR_LIFE_FI], want.fi * 4);
                assert_int_equal(block->bytes[TR_LIFE_FW], want.fw * 4);
                /* With dropout: two gradients of parts instead of that of h. */
                assert_int_equal(block->bytes[TR_LIFE_IW], want.iw * 4);
                assert_int_equal(block->unkept, want.unkept * 4);
                tr_model_destroy(model);
            }
}

/* Full recompute adds to I all products of F except the one down; selective none. */
static void test_flops_of_a_block(void **state) {
    (void)state;
    tr_model *model[TR_RECOMPUTE_MODES];
    for (int mode = 0; mode < TR_RECOMPUTE_MODES; mode++) model[mode] = make(modes[mode], GPT2, 0);
    const tr_layer *none = model[0]->layers[1], *full = model[TR_RECOMPUTE_FULL]->layers[1];
    const double down = 2.0 * ROWS * WIDTH * MLP;
    assert_true(full->flops_f == none->flops_f && full->flops_w == none->flops_w);
    assert_true(full->flops_i == none->flops_i + none->flops_f - down);
    assert_true(full->flops_i > none->flops_i + 2.0 * ROWS * WIDTH * (4 * WIDTH + MLP));
    for (int mode = 0; mode < TR_RECOMPUTE_MODES; mode++) tr_model_destroy(model[mode]);
}

/* A stage has, while F runs, room for the tensors of one block that are not kept. */
static void test_stage_has_room_for_one_block(void **state) {
    (void)state;
    static const int first[] = {0, 3, BLOCKS + 2};
    tr_model *model = make("full:0-1,selective:3", GPT2, 0);
    tr_stage_table table;
    assert_int_equal(tr_layer_table_make(model, first, 2, &table), TR_OK);
    assert_int_equal(table.cost[0].unkept, expected(TR_RECOMPUTE_FULL, GPT2, false).unkept * 4);
    assert_int_equal(table.cost[1].unkept,
                     expected(TR_RECOMPUTE_SELECTIVE, GPT2, false).unkept * 4);
    /* Of the first stage's blocks only the inputs are kept: outputs of earlier layers. */
    assert_int_equal(table.cost[0].bytes[TR_LIFE_FI] + table.cost[0].bytes[TR_LIFE_FW],
                     2 * ROWS * WIDTH * 4);
    tr_stage_table_free(&table);
    tr_model_destroy(model);
}

/* --- the text --------------------------------------------------------------------------------- */

static void test_text_names_blocks(void **state) {
    (void)state;
    static const struct {
        const char *text;
        char mode[BLOCKS + 1]; /* n, s, f of blocks 0 to 3 */
    } cases[] = {{"", "nnnn"},
                 {"none", "nnnn"},
                 {"selective", "ssss"},
                 {"full", "ffff"},
                 {"full:0-3", "ffff"},
                 {"full:2", "nnfn"},
                 {"full:0-1,selective:2-3", "ffss"},
                 {"selective:3 full:0 none:1-2", "fnns"},
                 {" full:1 ,\tselective:0-0 ", "sfnn"}};
    static const char letters[] = "nsf";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (tr_recompute_check(cases[i].text, BLOCKS) != TR_OK)
            fail_msg("'%s': %s", cases[i].text, tr_error_message());
        for (int b = 0; b < BLOCKS; b++)
            assert_int_equal(letters[tr_recompute_of(cases[i].text, b)], cases[i].mode[b]);
    }
}

static void test_bad_text_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {{"half", "train.recompute must be none, selective, full"},
                 {"sel", "full:0-5,selective:6-11, not 'sel'; did you mean 'selective'?"},
                 {"full:0,selectiv:1", "selectiv:1'; did you mean 'selective'?"},
                 {"atuo", "not 'atuo'; did you mean 'auto'?"},
                 {"fullest", "train.recompute must be"},
                 {"full:", "train.recompute must be"},
                 {"full:a", "train.recompute must be"},
                 {"full:1-", "train.recompute must be"},
                 {"full:2-1", "train.recompute has its blocks in reverse in 'full:2-1': write "
                              "full:1-2"},
                 {"full:0,selective:2-1x", "train.recompute must be"},
                 {"full:0-1x", "train.recompute must be"},
                 {"full:-1", "train.recompute must be"},
                 {"full:1000000000", "train.recompute must be"},
                 {"full:99999999999999999999", "train.recompute must be"},
                 {"full:0;selective:1", "train.recompute must be"},
                 {"full:4",
                  "names block 4 in 'full:4', but model.layers is 4: blocks are numbered from 0 "
                  "to 3"},
                 {"full:0-4", "names block 4 in 'full:0-4'"},
                 {"full:0-2,none:2", "names a block in 'full:0-2' and again in 'none:2'"},
                 {"full,selective:1", "names a block in 'full' and again in 'selective:1'"},
                 {"selective:1 full", "names a block in 'selective:1' and again in 'full'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(tr_recompute_check(cases[i].text, BLOCKS), TR_ERR_CONFIG);
        if (!strstr(tr_error_message(), cases[i].says))
            fail_msg("'%s': %s", cases[i].text, tr_error_message());
    }
}

/* Random modes, printed and read back. */
static void test_text_is_read_back(void **state) {
    (void)state;
    enum { MOST = 40, TRIALS = 500 };
    uint64_t random = tr_test_seed(11);
    for (int trial = 0; trial < TRIALS; trial++) {
        uint8_t mode[MOST];
        char text[TR_RECOMPUTE_TEXT];
        const int blocks = (int)tr_up_to(&random, MOST);
        for (int b = 0; b < blocks; b++) {
            const bool same = b > 0 && tr_up_to(&random, 2) == 1;
            mode[b] = same ? mode[b - 1] : (uint8_t)(tr_up_to(&random, TR_RECOMPUTE_MODES) - 1);
        }
        assert_int_equal(tr_recompute_print(mode, blocks, text), TR_OK);
        assert_int_equal(tr_recompute_check(text, blocks), TR_OK);
        for (int b = 0; b < blocks; b++) assert_int_equal(tr_recompute_of(text, b), mode[b]);
    }
}

static void test_text_that_is_too_long(void **state) {
    (void)state;
    uint8_t mode[1024];
    char text[TR_RECOMPUTE_TEXT];
    for (size_t b = 0; b < sizeof mode; b++) mode[b] = (uint8_t)(b % TR_RECOMPUTE_MODES);
    assert_int_equal(tr_recompute_print(mode, sizeof mode, text), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "use one mode for all blocks"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_a_block),
        cmocka_unit_test(test_flops_of_a_block),
        cmocka_unit_test(test_stage_has_room_for_one_block),
        cmocka_unit_test(test_text_names_blocks),
        cmocka_unit_test(test_bad_text_is_refused),
        cmocka_unit_test(test_text_is_read_back),
        cmocka_unit_test(test_text_that_is_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
