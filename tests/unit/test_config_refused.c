/* Tests the messages of configs that are refused: the place and the sentence of every error, and
 * the key or the value that the user probably meant. */
#include "config/elsewhere.h"
#include "support/config_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Compares the message's end, where its middle is a list that grows. */
static void refused_ending(const char *text, const char *end) {
    tr_config config;
    assert_int_equal(parse(text, &config), TR_ERR_CONFIG);
    const char *message = tr_error_message();
    assert_true(strlen(message) > strlen(end));
    assert_string_equal(message + strlen(message) - strlen(end), end);
}

/* Compares the message's beginning, where its end is a list that grows. */
static void refused_beginning(const char *text, const char *message) {
    tr_config config;
    assert_int_equal(parse(text, &config), TR_ERR_CONFIG);
    if (strncmp(tr_error_message(), message, strlen(message)) != 0)
        fail_msg("'%s' does not begin with '%s'", tr_error_message(), message);
}

static void an_unknown_key_has_its_place(void **state) {
    (void)state;
    refused("data.path: a\ntrain:\n  stepz: 5\n",
            "x.yaml:3:3: unknown key 'train.stepz'; did you mean train.steps?");
    refused("data.path: a\nmodle.layers: 5\n",
            "x.yaml:2:1: unknown key 'modle.layers'; did you mean model.layers?");
    refused_beginning("model:\n  rope_scaling: {type: yarn}\n",
                      "x.yaml:2:18: model.rope_scaling takes one value, not keys below it: ");
    refused("steps: 5\n", "x.yaml:1:1: unknown key 'steps'; did you mean train.steps?");
    refused("lora: {rank: 5}\n",
            "x.yaml:1:8: unknown key 'lora.rank'; did you mean model.lora.rank?");
    refused("train.lr: 5\n", "x.yaml:1:1: unknown key 'train.lr'; did you mean optim.lr?");
    refused("train.zero: 1\n", "x.yaml:1:1: unknown key 'train.zero'; did you mean parallel.zero?");
    refused("optim.moment: 5\n",
            "x.yaml:1:1: unknown key 'optim.moment'; did you mean optim.moments?");
    refused("model.vocab_size: 5\n",
            "x.yaml:1:1: unknown key 'model.vocab_size'; did you mean model.vocab?");
    refused("num-query-groups: 5\n",
            "x.yaml:1:1: unknown key 'num-query-groups'; did you mean model.kv_heads?");
    refused("training: {global_batch_size: 5}\n",
            "x.yaml:1:12: unknown key 'training.global_batch_size'; did you mean train.batch?");
    refused("model: {lora: {rang: 5}}\n",
            "x.yaml:1:16: unknown key 'model.lora.rang'; did you mean model.lora.rank?");
    refused("parallel.dpp: 5\n",
            "x.yaml:1:1: unknown key 'parallel.dpp'; did you mean parallel.dp?");
    refused("model.lor: 5\n", "x.yaml:1:1: unknown key 'model.lor'; did you mean model.lora.rank?");
    refused("xyzzy.plugh: 5\n",
            "x.yaml:1:1: unknown key 'xyzzy.plugh'; `trireme help` lists all keys");
    static const struct {
        const char *text, *name, *section;
    } cases[] = {{"trian: {}\n", "trian", "train"},
                 {"optimise:\n", "optimise", "optim"},
                 {"parralel.xyzzy: 5\n", "parralel.xyzzy", "parallel"},
                 {"log.xyzzy: 5\n", "log.xyzzy", "log"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char sentence[160];
        (void)snprintf(sentence, sizeof sentence,
                       "x.yaml:1:1: unknown key '%s'; `trireme help %s` lists the keys of %s",
                       cases[k].name, cases[k].section, cases[k].section);
        refused(cases[k].text, sentence);
    }
}

/* The names of other programs stand for keys that exist. */
static void a_name_of_another_program_has_its_key(void **state) {
    (void)state;
    const char *const names[] = {"n_layer",
                                 "dim",
                                 "n_head",
                                 "n_kv_heads",
                                 "kv_channels",
                                 "n_inner",
                                 "n_positions",
                                 "vocab_size",
                                 "layer_norm_epsilon",
                                 "rotary_base",
                                 "sliding_window",
                                 "tie_word_embeddings",
                                 "model_name_or_path",
                                 "lora_r",
                                 "lora_alpha",
                                 "target_modules",
                                 "dataset_path",
                                 "tokenizer_path",
                                 "max_steps",
                                 "global_batch_size",
                                 "pipeline_parallel_microbatch_size",
                                 "rampup_batch_size",
                                 "gradient_checkpointing",
                                 "eval_steps",
                                 "learning_rate",
                                 "warmup_steps",
                                 "lr_scheduler_type",
                                 "lr_decay_iters",
                                 "max_grad_norm",
                                 "tensor_parallel_degree",
                                 "pipeline_parallel_degree",
                                 "data_parallel_replicate_degree",
                                 "data_parallel_shard_degree",
                                 "sequence_parallel",
                                 "num_virtual_stages_per_pipeline_rank",
                                 "pipeline_parallel_schedule_csv",
                                 "pipeline_model_parallel_layout",
                                 "save_steps",
                                 "dump_folder",
                                 "logging_steps"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(tr_schema_find(tr_key_elsewhere(names[i])) >= 0);
    assert_string_equal(tr_key_elsewhere("tensor-model-parallel-size"), "parallel.tp");
    assert_null(tr_key_elsewhere("size"));
    assert_null(tr_key_elsewhere("layer"));
    assert_null(tr_key_elsewhere("n_layer n_head"));
    assert_null(tr_key_elsewhere(""));
}

/* Nothing here does what these do elsewhere. */
static void a_name_without_a_key_has_a_remark(void **state) {
    (void)state;
    static const char experts[] = "mixtures of experts are not supported: every layer has one MLP";
    static const char ring[] =
        "ranks do not divide the attention over a sequence: parallel.tp with parallel.sequence, or "
        "train.recompute, saves memory for long ones";
    static const char *const cases[][3] = {
        {"parallel.cp: 2\n", "1:1: unknown key 'parallel.cp'", ring},
        {"context-parallel-size: 2\n", "1:1: unknown key 'context-parallel-size'", ring},
        {"parallel: {ep: 2}\n", "1:12: unknown key 'parallel.ep'", experts},
        {"model: {moe: {experts: 8}}\n", "1:15: unknown key 'model.moe.experts'", experts},
        {"model.num_experts: 8\n", "1:1: unknown key 'model.num_experts'", experts},
        {"train.fp8: hybrid\n", "1:1: unknown key 'train.fp8'",
         "FP8 is not supported: set train.precision to bf16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[320];
        (void)snprintf(want, sizeof want, "x.yaml:%s: %s", cases[i][1], cases[i][2]);
        refused(cases[i][0], want);
    }
    assert_string_equal(tr_remark_elsewhere("cp", "train"), ring);
    assert_null(tr_remark_elsewhere("cp", "sample"));
}

static void values_of_other_programs_are_recognised(void **state) {
    (void)state;
    static const char *const known[][3] = {
        {"parallel.schedule", "breadth-first", "bfs"},
        {"parallel.schedule", "LoopedBFS", "bfs"},
        {"parallel.schedule", "depth_first", "interleaved"},
        {"parallel.schedule", "Interleaved1F1B", "interleaved"}, /* not near to interleaved-zb */
        {"parallel.schedule", "InterleavedZeroBubble", "interleaved-zb"},
        {"parallel.schedule", "ZBVZeroBubble", "zbv"},
        {"parallel.schedule", "DualPipeV", "dualpipev"},
        {"parallel.schedule", "ScheduleGPipe", "gpipe"},
        {"device.name", "gpu", "cuda"}, /* not near to cpu */
        {"device.name", "GPU", "cuda"},
        {"checkpoint.background", "Yes", "true"},
        {"model.tie", "off", "false"},
        {"train.precision", "bfloat16", "bf16"},
        {"parallel.reduce", "bfloat16", "bf16"},
        {"train.precision", "float16", "fp16"},
        {"model.activation", "gelu_new", "gelu_tanh"},
        {"model.init", "kaiming", "he"},
        {"optim.name", "adamw_torch", "adamw"},
        {"optim.schedule", "constant_with_warmup", "constant"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char text[80], want[80];
        (void)snprintf(text, sizeof text, "%s: %s\n", known[i][0], known[i][1]);
        (void)snprintf(want, sizeof want, ", not '%s'; did you mean '%s'?", known[i][1],
                       known[i][2]);
        refused_ending(text, want);
    }
    static const char *const words[] = {"fp32", "bf16"};
    assert_string_equal(tr_value_hint("float16", words, 2).text, ""); /* without fp16 */
    assert_string_equal(tr_value_hint("", words, 2).text, "");
    assert_string_equal(tr_option_elsewhere("max_new_tokens", "[-n TOKENS]"), "-n TOKENS");
    assert_null(tr_option_elsewhere("max_new_tokens", "-n RANKS"));
    assert_string_equal(tr_option_elsewhere("load", "CONFIG [--resume[=auto]]"), "--resume");
    assert_string_equal(tr_option_elsewhere("model", "RUN|DIR [--step N]"), "RUN");
    assert_null(tr_option_elsewhere("stages", "[--top-p P] [-p PATH]")); /* not -p P */
    assert_null(tr_key_elsewhere("bfloat16"));
    assert_null(tr_key_elsewhere("nproc"));
}

static void a_wrong_value_has_its_place(void **state) {
    (void)state;
    refused("train:\n  steps: many\n",
            "x.yaml:2:10: train.steps must be an integer (for example 1000), not 'many'");
    refused("train: {steps: 1.5}\n",
            "x.yaml:1:16: train.steps must be an integer (for example 1000), not '1.5'");
    refused("optim:\n  lr: nan\n",
            "x.yaml:2:7: optim.lr must be a number (for example 0.001), not 'nan'");
    refused("parallel.dp: 2x\n", "x.yaml:1:14: parallel.dp must be an integer or two factors (for "
                                 "example 2x4), not '2x'");
    refused("parallel.dp: 0x4\n", "x.yaml:1:14: parallel.dp must be between 1 and 65536, not 0x4");
    refused("parallel.dp: 65536x2\n",
            "x.yaml:1:14: parallel.dp must be between 1 and 65536, not 65536x2");
    refused(
        "train.deterministic: yes\n",
        "x.yaml:1:22: train.deterministic must be true or false, not 'yes'; did you mean 'true'?");
    refused("device.memory: 16\n", "x.yaml:1:16: device.memory 16 is a number of bytes: write its "
                                   "unit, as in 16GiB");
    refused("device.memory: 5 apples\n", "x.yaml:1:16: device.memory must be a whole number of "
                                         "bytes, kB, KiB, MB, MiB, GB, GiB, TB or TiB (for "
                                         "example 16GiB), not '5 apples'");
    refused("data:\n  path:\n",
            "x.yaml:2:8: data.path must be text (for example corpus.txt), not ''");
    refused("parallel.virtual: -1\n",
            "x.yaml:1:19: parallel.virtual must be between 0 and 4096, not -1");
    refused("train.steps: 0\n",
            "x.yaml:1:14: train.steps must be between 1 and 1099511627776, not 0");
    refused("train.steps: 99999999999999999999\n", "x.yaml:1:14: train.steps must be between 1 and "
                                                   "1099511627776, not 99999999999999999999");
    refused("model.dropout: -0.1\n",
            "x.yaml:1:16: model.dropout must be between 0 and 0.95, not -0.1");
    refused("model.qk_norm: 1\n",
            "x.yaml:1:16: model.qk_norm must be true or false, not '1'; did you mean 'true'?");
}

static void an_unknown_choice_has_its_place(void **state) {
    (void)state;
    refused("train.precision: int8\n",
            "x.yaml:1:18: train.precision must be one of fp32, bf16, fp16, fp64, not 'int8'");
    refused_beginning("parallel.schedule: zb\n",
                      "x.yaml:1:20: parallel.schedule must be one of gpipe, 1f1b");
    refused("parallel.transport: ncl\n",
            "x.yaml:1:21: parallel.transport must be one of auto, mpi, "
            "nccl, not 'ncl'; did you mean 'nccl'?");
    refused("data.changed: alow\n", "x.yaml:1:15: data.changed must be one of refuse, allow, not "
                                    "'alow'; did you mean 'allow'?");
    refused_ending("model.preset: gpt2\n", ", not 'gpt2'; did you mean 'gpt2-124m'?");
    refused_ending("parallel.schedule: 1F1B\n", ", not '1F1B'; did you mean '1f1b'?");
    refused_ending("train.precision: BF16\n", ", not 'BF16'; did you mean 'bf16'?");
    refused_ending("parallel.schedule: 1f2b\n", ", not '1f2b'; did you mean '1f1b'?");
    refused_ending("optim.schedule: cos\n", ", not 'cos'; did you mean 'cosine'?");
    refused_ending("train.deterministic: flase\n", ", not 'flase'; did you mean 'false'?");
    refused_ending("device.name: cudda\n", ", not 'cudda'; did you mean 'cuda'?");
    refused_ending("device.name: gpu0\n", " or ref, not 'gpu0'"); /* near to cpu */
    refused_beginning("parallel.schedule: forward\n",
                      "x.yaml:1:20: parallel.schedule must be one of gpipe, 1f1b");
}

static void a_wrong_form_has_its_place(void **state) {
    (void)state;
    refused("train:\n  steps: 5\ntrain.steps: 6\n",
            "x.yaml:3:1: train.steps is set twice, first in line 2");
    refused("guard: 5\n",
            "x.yaml:1:1: guard is a section: write its keys below it, or as guard.KEY");
    refused("model: gpt2\n", "x.yaml:1:1: model is a section of keys; did you mean model.preset?");
    refused("model: {name: gpt2}\n",
            "x.yaml:1:9: unknown key 'model.name'; did you mean model.preset?");
    refused("data.validation: 10%\n",
            "x.yaml:1:18: data.validation must be a number or a path (for "
            "example 0.1), not '10%'");
    refused("train:\n  steps: 5\nlog:\ntrain:\n  batch: 6\n",
            "x.yaml:4:1: the section train is given twice, first in line 1: join the two");
    refused("log:\nmodel:\n  lora: {rank: 4}\n  lora:\n  layers: 2\n",
            "x.yaml:4:3: the section model.lora is given twice, first in line 3: join the two");
    refused("log:\nlog: {every: 5}\n",
            "x.yaml:2:1: the section log is given twice, first in line 1: join the two");
    refused("{train: {steps: 5}, trian: {}}\n",
            "x.yaml:1:21: unknown key 'trian'; `trireme help train` lists the keys of train");
    refused("train:\n  steps: {}\n", "x.yaml:2:3: train.steps takes one value, not keys below "
                                     "it: write it like train.steps=\"1000\"");
    refused("train:\n  steps: {a: 5}\n", "x.yaml:2:11: train.steps takes one value, not keys "
                                         "below it: write it like train.steps=\"1000\"");
    refused("train:\n  steps: [5]\n", "x.yaml:2:10: a list is not allowed here: give one value");
    refused("train:\n  steps: &a 5\n  batch: *a\n",
            "x.yaml:3:10: an alias cannot be used here: write the value, or put text that begins "
            "with * in quotes, like '*.bias'");
    refused("train.freeze: *wte*\n",
            "x.yaml:1:15: put text that begins with * in quotes, like '*.bias'");
    refused("train.freeze: ['a', *.bias]\n",
            "x.yaml:1:21: put text that begins with * in quotes, like '*.bias'");
    refused("train.freeze: [*bias]\n",
            "x.yaml:1:16: an alias cannot be used here: write the value, or put text that begins "
            "with * in quotes, like '*.bias'");
    refused("train:\n  - steps: 4\n",
            "x.yaml:2:5: only keys of a section have lists: write the section's keys below it "
            "without dashes");
    static const char *const colons[] = {"steps:4", "stpes:4", "steps = 4", "steps 4"};
    for (size_t i = 0; i < sizeof colons / sizeof *colons; i++) {
        char text[40], want[160];
        (void)snprintf(text, sizeof text, "train:\n  %s\n", colons[i]);
        (void)snprintf(want, sizeof want,
                       "x.yaml:2:3: train is a section, and '%s' is not a key with a value: write "
                       "a colon and a blank after the key",
                       colons[i]);
        refused(text, want);
    }
    refused("train: 'steps: 4'\n",
            "x.yaml:1:1: train is a section: write its keys below it, or as train.KEY");
    refused("- 5\n", "x.yaml:1:1: expected a key and a value, like train.steps: 100");
    refused("just text\n", "x.yaml:1:1: expected a key and a value, like train.steps: 100");
    refused("data.path: a\n---\ndata.path: b\n",
            "x.yaml:2:1: a config must be one YAML document: remove the others");
    refused("data.path: \"a\\0b\"\n", "x.yaml:1:12: a value must not hold a NUL character");
}

static void a_wrong_model_has_its_place(void **state) {
    (void)state;
    refused_beginning(
        "model.family: llama\nmodel.rope_theta: 0\n",
        "x.yaml:2:19: model.rope_theta must be above 1, not 0: leave it out for 10000,");
    refused_beginning(
        "model.preset: llama-3-8b\nmodel.rope_theta: 0\n",
        "x.yaml:2:19: model.rope_theta must be above 1, not 0: leave it out for 500000,");
    refused_beginning("model.family: gpt2\nmodel.preset: gpt3\n",
                      "x.yaml:2:15: model.preset must be one of tiny, gpt2-124m, ");
    refused(
        "model.family: llama\nmodel.preset: gpt2-124m\n",
        "x.yaml:2:15: model.preset gpt2-124m is of family gpt2, but model.family is llama: leave "
        "one of the two out");
}

static void broken_yaml_has_its_place(void **state) {
    (void)state;
    tr_config c;
    assert_int_equal(parse("data:\n  path: 'a\n", &c), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "x.yaml:3:1: this is not valid YAML: "));
    refused("data.path: a\ntrain: {}\nmodel: {} # \xc3\xa9, \xe9\n",
            "x.yaml:3:16: the file is not UTF-8: save it as UTF-8, or convert it with `iconv -f "
            "LATIN1 -t UTF-8`");
    refused("data.path: a\ntrain: {} # \x01\n",
            "x.yaml:2:13: this is not valid YAML: control characters are not allowed");
    refused("a:\n\tb: 1\n",
            "x.yaml:2:1: this is not valid YAML: indent with blanks instead of a tab");
    assert_ptr_equal(strstr(tr_error_message(), "x.yaml:2:1: "), tr_error_message());
    static const char *const misplaced[] = {"model:\n  layers: 2\n    width: 3\n",
                                            " model:\n  layers: 2\ndata.path: a\n",
                                            "model: layers: 2\n"};
    for (size_t i = 0; i < sizeof misplaced / sizeof *misplaced; i++)
        refused_ending(misplaced[i], "; every key has a line of its own, with the indent of its "
                                     "section's other keys");
}

static void near_words_are_found(void **state) {
    (void)state;
    static const char *const words[] = {"init", "optim", "cut"};
    assert_int_equal(tr_edit_distance("steps", "setps"), 1);
    assert_int_equal(tr_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(tr_edit_distance("", "abc"), 3);
    assert_string_equal(tr_nearest_hint("optmi", 5, words, 3).text, "; did you mean 'optim'?");
    assert_string_equal(tr_nearest_hint("inti", 4, words, 3).text, "; did you mean 'init'?");
    /* Two letters of five are too many. */
    assert_string_equal(tr_nearest_hint("limit", 5, words, 3).text, "");
    assert_string_equal(tr_nearest_hint("input", 5, words, 3).text, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_key_has_its_place),
        cmocka_unit_test(a_name_of_another_program_has_its_key),
        cmocka_unit_test(a_name_without_a_key_has_a_remark),
        cmocka_unit_test(values_of_other_programs_are_recognised),
        cmocka_unit_test(a_wrong_value_has_its_place),
        cmocka_unit_test(an_unknown_choice_has_its_place),
        cmocka_unit_test(a_wrong_form_has_its_place),
        cmocka_unit_test(a_wrong_model_has_its_place),
        cmocka_unit_test(broken_yaml_has_its_place),
        cmocka_unit_test(near_words_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
