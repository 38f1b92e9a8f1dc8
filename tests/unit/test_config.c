/* Tests the configuration: values of files, presets and arguments, lists, files, limits, the
 * schema. */
#include "layers/preset.h"
#include "support/config_text.h"
#include "support/same_config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char good[] = "data.path: corpus.txt\n"
                           "model:\n"
                           "  preset: gpt2-124m\n"
                           "  layers: 6   # fewer\n"
                           "train:\n"
                           "  steps: 200\n"
                           "  batch: 32\n"
                           "optim.lr: 3e-4\n";

static void values_come_from_file_preset_and_defaults(void **state) {
    (void)state;
    tr_config c;
    assert_int_equal(parse(good, &c), TR_OK);
    assert_string_equal(c.data.path, "corpus.txt");
    assert_int_equal(c.model.layers, 6);
    assert_int_equal(c.model.width, 768);
    assert_int_equal(c.model.heads, 12);
    assert_int_equal(c.train.steps, 200);
    assert_true(c.optim.lr == 3e-4 && c.optim.beta2 == 0.95 && c.optim.eps == 1e-8);
    assert_string_equal(c.log.dir, "runs/x");
    assert_string_equal(c.parallel.schedule, "1f1b");
    assert_true(c.train.deterministic);
    assert_int_equal(tr_config_dtype(&c), TR_F32);
    assert_int_equal(tr_config_check(&c, 1), TR_OK);
}

/* A key that is set overrides the preset, the preset overrides the family, and a family has a
 * default preset. */
static void models_follow_preset_and_family(void **state) {
    (void)state;
    tr_config c;
    assert_int_equal(parse("model: {preset: qwen3-0.6b, layers: 3, tie: false, context: 64}", &c),
                     TR_OK);
    assert_string_equal(c.model.family, "qwen3");
    assert_true(c.model.layers == 3 && c.model.width == 1024 && c.model.head_size == 128);
    assert_true(c.model.kv_heads == 8 && c.model.context == 64 && c.model.vocab == 151936);
    assert_true(c.model.tie == TR_NO && c.model.qk_norm == TR_YES && c.model.qkv_bias == TR_NO);
    assert_true(c.model.rope_theta == 1e6 && c.model.norm_eps == 1e-6);
    assert_int_equal(parse("model: {family: llama, width: 100, kv_heads: 1}", &c), TR_OK);
    assert_string_equal(c.preset, "llama-tiny");
    assert_true(c.model.mlp_width == 320 && c.model.head_size == 25 && c.model.kv_heads == 1);
    assert_string_equal(c.model.activation, "swiglu");
    assert_string_equal(c.model.rope_scaling, "none");
    assert_int_equal(parse("model.width: 100", &c), TR_OK);
    assert_string_equal(c.preset, "tiny");
    assert_true(c.model.mlp_width == 400 && c.model.kv_heads == 4 && c.model.tie == TR_YES);
    assert_int_equal(parse("model: {family: qwen2, heads: 8}", &c), TR_OK);
    assert_true(c.model.kv_heads == 8 && c.model.tie == TR_NO && c.model.layers == 4);
    assert_int_equal(parse("model.family: mistral", &c), TR_OK);
    assert_true(c.model.kv_heads == 4 && c.model.window == 0 && c.model.vocab == 256);
}

static void block_and_dotted_keys_are_one(void **state) {
    (void)state;
    tr_config a, b;
    assert_int_equal(parse("{data: {path: a b}, train: {steps: 5}, log: }", &a), TR_OK);
    assert_int_equal(parse("data.path: 'a b'\ntrain.steps: \"5\"\n", &b), TR_OK);
    assert_true(same_config(&a, &b));
    b.train.steps = 6;
    assert_false(same_config(&a, &b));
}

/* On GPUs, here or elsewhere, some defaults differ; a key that is set holds everywhere. */
static void defaults_follow_the_device(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "ref", "guarded", "cuda", "cuda:3"};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        char text[128];
        tr_config c;
        bool gpu = i >= 3;
        (void)snprintf(text, sizeof text, "{data.path: a, device.name: '%s'}", devices[i]);
        assert_int_equal(parse(text, &c), TR_OK);
        assert_int_equal(tr_config_on_gpu(&c), gpu);
        assert_string_equal(c.train.precision, gpu ? "bf16" : "fp32");
        assert_int_equal(c.train.deterministic, !gpu);
        (void)snprintf(text, sizeof text,
                       "{data.path: a, device.name: '%s', train: {precision: fp32, deterministic: "
                       "true}}",
                       devices[i]);
        assert_int_equal(parse(text, &c), TR_OK);
        assert_string_equal(c.train.precision, "fp32");
        assert_true(c.train.deterministic);
    }
}

/* A resumed run keeps the checkpoint's values of keys that the user has not set and that have a
 * default which follows the device, and of no other keys. */
static void a_resumed_run_keeps_its_defaults(void **state) {
    (void)state;
    tr_config gpu, cpu, set;
    assert_int_equal(parse("{data.path: a, device.name: cuda, train.steps: 5}", &gpu), TR_OK);
    assert_int_equal(parse("{data.path: a}", &cpu), TR_OK);
    assert_int_equal(parse("{data.path: a, train.precision: fp32}", &set), TR_OK);
    tr_config_keep(&cpu, &gpu);
    assert_string_equal(cpu.train.precision, "bf16");
    assert_false(cpu.train.deterministic);
    assert_string_equal(cpu.device.name, "cpu");
    assert_int_equal(cpu.train.steps, 1000);
    tr_config_keep(&set, &gpu);
    assert_string_equal(set.train.precision, "fp32");
    assert_false(set.train.deterministic);
}

/* So the recorded config of such a run says the same as the run. */
static void an_empty_list_is_its_default(void **state) {
    (void)state;
    tr_config c;
    assert_int_equal(parse("train: {recompute: [], freeze: ''}\ndevice.offload:\n", &c), TR_OK);
    assert_string_equal(c.model.recompute, "none");
    assert_string_equal(c.device.offload, "none");
    assert_string_equal(c.model.tuning.freeze, "");
}

static void overrides_win_and_are_checked(void **state) {
    (void)state;
    tr_config c;
    const char *ok[] = {"train.steps=7", "--parallel.pp=2", "train.steps=8", "data.path=a: b #c",
                        "device.memory=2GiB"};
    assert_int_equal(tr_config_parse(good, strlen(good), "x.yaml", ok, 5, &c), TR_OK);
    assert_int_equal(c.train.steps, 8);
    assert_int_equal(c.parallel.pp, 2);
    assert_string_equal(c.data.path, "a: b #c");
    assert_int_equal(c.device.memory, INT64_C(2) << 30);
    const char *lists[] = {
        "data.path=[a.bin, 'b c.bin']", "optim.schedule=steps",
        "--optim.milestones=[3, 5]",    "train.freeze=[]",
        "data.tokenizer=[a]",           "train.batch_warmup=[{until: 2, batch: 8}]"};
    assert_int_equal(tr_config_parse(good, strlen(good), "x.yaml", lists, 6, &c), TR_OK);
    assert_string_equal(c.data.path, "a.bin \"b c.bin\"");
    assert_string_equal(c.optim.milestones, "3 5");
    assert_string_equal(c.model.tuning.freeze, "");
    assert_string_equal(c.data.tokenizer, "[a]");
    assert_string_equal(c.train.batch_warmup, "8 2");
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"trian.steps=5", "unknown key 'trian.steps'; did you mean train.steps?"},
        {"train.steps=x", "train.steps must be an integer (for example 1000), not 'x'"},
        {"resume", "resume: expected key=value, like train.steps=100"},
        {"data.path=\xff", "data.path must be valid UTF-8"},
        {"log.dir=~/runs/a",
         "log.dir: only shells replace ~ in a path, and none has replaced it in '~/runs/a': write "
         "the home folder's path"},
        {"data.path=[a, '~/b c']",
         "data.path: only shells replace ~ in a path, and none has replaced it in 'a \"~/b c\"': "
         "write the home folder's path"},
        {"data.path=[a, {path: b, weight: 1}]",
         "argument:1:16: the items of a list must all have the same form: plain values, or the "
         "same keys"},
        {"data.path=[a], train.seed: [b]",
         "argument:1:15: this is not valid YAML: did not find expected key, "
         "while parsing a block mapping"},
        {"data.path=[a]\ntrain.seed: [b]",
         "data.path: an item of this list is a path, or like {path: a.bin, weight: 0.7}"},
        {"train.batch_warmup=[8, 2]",
         "train.batch_warmup: an item of this list is like {until: 100, batch: 8}"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tr_config_parse(good, strlen(good), "x.yaml", &bad[i].text, 1, &c),
                         TR_ERR_CONFIG);
        assert_string_equal(tr_error_message(), bad[i].message);
    }
}

/* Lists of files and mixtures become data.path's words; other keys take no list. */
static void paths_may_be_lists(void **state) {
    (void)state;
    tr_config c;
    const char *path;
    assert_int_equal(parse("data: {path: [a.bin, 'b c.bin', \"0.5\", 'it''s\\']}\n", &c), TR_OK);
    assert_string_equal(c.data.path, "a.bin \"b c.bin\" \"0.5\" \"it's\\\\\"");
    assert_int_equal(parse("data:\n  path:\n    - {path: a, weight: 0.7}\n    - weight: 0.3\n"
                           "      path: b c\n  format: u16\n",
                           &c),
                     TR_OK);
    assert_string_equal(c.data.path, "0.7 a 0.3 \"b c\"");
    assert_string_equal(c.data.format, "u16");
    assert_int_equal(parse("data.validation: 0.2\n", &c), TR_OK);
    assert_true(tr_config_validation(&c, &path) == 0.2 && !path && tr_config_validates(&c));
    assert_int_equal(parse("data.validation: val.bin\n", &c), TR_OK);
    assert_true(tr_config_validation(&c, &path) == 0 && tr_config_validates(&c));
    assert_string_equal(path, "val.bin");
    assert_int_equal(parse("data.validation: 0\n", &c), TR_OK);
    assert_false(tr_config_validates(&c));
    assert_int_equal(parse("optim.name: sgd\n", &c), TR_OK);
    assert_true(c.optim.weight_decay == 0 && c.optim.momentum == 0.9 && c.optim.beta2 == 0.95);
    assert_int_equal(parse("optim: {name: adam, weight_decay: 0.2}\n", &c), TR_OK);
    assert_true(c.optim.weight_decay == 0.2);
    assert_int_equal(parse("optim.name: lion\n", &c), TR_OK);
    assert_true(c.optim.weight_decay == 0.1 && c.optim.beta2 == 0.99);
    assert_int_equal(
        parse("optim: {schedule: steps, restarts: [10, 20], milestones: '3  5 '}\n", &c), TR_OK);
    assert_string_equal(c.optim.restarts, "10 20");
    assert_string_equal(c.optim.milestones, "3 5");
    for (const char *const *wrong = (const char *const[]){"10 10", "0", "5 x", "-3", "1.5", NULL};
         *wrong; wrong++) {
        char text[64], sentence[160];
        (void)snprintf(text, sizeof text, "optim.restarts: %s\n", *wrong);
        (void)snprintf(sentence, sizeof sentence,
                       "x.yaml:1:17: optim.restarts must be ascending steps above 0 (for example "
                       "1000 3000), not '%s'",
                       *wrong);
        refused(text, sentence);
    }
    refused("optim.restarts: [7, 5]\n",
            "x.yaml:1:17: optim.restarts must be ascending steps above 0 (for example 1000 3000), "
            "not '7 5'");
    refused("data.validation: 0.95\n",
            "x.yaml:1:18: data.validation must be between 0 and 0.9, not 0.95");
    refused("data.validation: [a]\n", "x.yaml:1:18: a list is not allowed here: give one value");
    refused("data.path: []\n",
            "x.yaml:1:12: data.path must be text (for example corpus.txt), not ''");
    refused("data.path: [a, [b]]\n", "x.yaml:1:16: an item of a list must be text");
    refused("data.path: [a, {path: b, weight: 1}]\n",
            "x.yaml:1:16: the items of a list must all have the same form: plain values, or the "
            "same keys");
    refused("train.batch_warmup: [{until: 2, batch: 2}, 5]\n",
            "x.yaml:1:44: the items of a list must all have the same form: plain values, or the "
            "same keys");
    refused("data.path: [{path: a, path: b, weight: 1}]",
            "x.yaml:1:23: this key is given twice in one item");
    refused("data.path: [{weight: 2, path: a, weight: 1}]",
            "x.yaml:1:34: this key is given twice in one item");
    refused("data.path: [{path: b}]\n",
            "x.yaml:1:13: an item with keys needs both, a path and a weight above 0, like {path: "
            "a.bin, weight: 0.7}");
    refused("data.path: [{path: b, weight: -1}]\n",
            "x.yaml:1:13: an item with keys needs both, a path and a weight above 0, like {path: "
            "a.bin, weight: 0.7}");
    refused("data.path: [{path: b, wait: 1}]\n",
            "x.yaml:1:23: an item of this list has the keys path and weight");
    refused("data.path: [{path: [b], weight: 1}]\n",
            "x.yaml:1:20: path and weight take one value each");
    refused("data.path: [{path: b, weight: 1e-9}]\n",
            "x.yaml:1:13: an item with keys needs both, a path and a weight above 0, like {path: "
            "a.bin, weight: 0.7}");
    assert_int_equal(parse("data.path: 0.0000001 b\n", &c), TR_OK);
    assert_int_equal(tr_config_check_data(&c), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(),
                        "x.yaml:1:12: data.path has the weight 0.0000001: a weight is above 0, at "
                        "most 1000000, and has at most 6 decimals");
}

static void files_are_read_or_named(void **state) {
    (void)state;
    tr_config c, again;
    char path[] = "config-XXXXXX";
    assert_int_equal(tr_config_load("no/such.yaml", NULL, 0, &c), TR_ERR_NOFILE);
    assert_non_null(strstr(tr_error_message(), "'no/such.yaml' cannot be opened"));
    assert_int_equal(tr_config_load(".", NULL, 0, &c), TR_ERR_DATA);
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    assert_int_equal(parse(good, &c), TR_OK);
    assert_int_equal(tr_config_print(&c, f), TR_OK);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(tr_config_load(path, NULL, 0, &again), TR_OK);
    assert_true(same_config(&c, &again));
    assert_int_equal(unlink(path), 0);
}

/* A pipe or device must not make the program hang (the test has a time limit); the limit of 1 MiB
 * holds to the byte. */
static void a_config_is_a_regular_file_of_at_most_a_mebibyte(void **state) {
    (void)state;
    tr_config c;
    char path[] = "config-XXXXXX";
    (void)alarm(300);
    assert_int_equal(tr_config_load("/dev/zero", NULL, 0, &c), TR_ERR_DATA);
    assert_string_equal(tr_error_message(),
                        "the config file '/dev/zero' is a device: name a regular file");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && unlink(path) == 0 && mkfifo(path, 0600) == 0);
    assert_int_equal(tr_config_load(path, NULL, 0, &c), TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "' is a pipe: name a regular file"));
    (void)alarm(0);
    assert_int_equal(unlink(path), 0);
    FILE *f = fdopen(fd, "w+");
    assert_non_null(f);
    (void)fputs("data.path: x\n#", f);
    while (ftell(f) < 1 << 20) (void)fputc('-', f);
    assert_int_equal(fflush(f), 0);
    char name[64];
    (void)snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    assert_int_equal(tr_config_load(name, NULL, 0, &c), TR_OK);
    (void)fputc('-', f);
    assert_int_equal(fflush(f), 0);
    assert_int_equal(tr_config_load(name, NULL, 0, &c), TR_ERR_CONFIG);
    assert_non_null(
        strstr(tr_error_message(), "' is larger than the limit of 1 MiB: name another file"));
    assert_int_equal(fclose(f), 0);
}

static void a_byte_order_mark_is_passed_over(void **state) {
    (void)state;
    tr_config c;
    assert_int_equal(parse("\xef\xbb\xbf"
                           "data.path: a\n",
                           &c),
                     TR_OK);
    assert_string_equal(c.data.path, "a");
    refused("\xef\xbb\xbftrian.steps: 1\n",
            "x.yaml:1:1: unknown key 'trian.steps'; did you mean train.steps?");
    const char *const utf16[] = {"\377\376d\0a\0t\0a\0", "\376\377\0d\0a\0t\0a"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tr_config_parse(utf16[i], 10, "x.yaml", NULL, 0, &c), TR_ERR_CONFIG);
        assert_string_equal(tr_error_message(), "x.yaml:1:1: the file is UTF-16: save it as UTF-8");
    }
}

/* The run's directory has the name of the config file, however long its path is; the recorded
 * config could not be read with a name that is not UTF-8. */
static void log_dir_follows_the_file(void **state) {
    (void)state;
    tr_config c;
    char path[600];
    memset(path, 'd', sizeof path);
    (void)strcpy(path + 500, "/mine.yaml");
    assert_int_equal(tr_config_parse("", 0, path, NULL, 0, &c), TR_OK);
    assert_string_equal(c.log.dir, "runs/mine");
    assert_int_equal(tr_config_parse("", 0, "a/\xff.yaml", NULL, 0, &c), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "is not UTF-8, so that the run's directory"));
    assert_int_equal(tr_config_parse("log.dir: x", 10, "a/\xff.yaml", NULL, 0, &c), TR_OK);
}

/* The line 'layout' has what the ranks divide, and what divides nothing. */
static void ranks_have_a_text(void **state) {
    static const struct {
        const char *keys, *text;
    } mesh[] = {
        {"{pp: 2}", "pp 2 x tp 1 x dp 1"},
        {"{pp: 2, reduce: bf16}", "pp 2 x tp 1 x dp 1 (reduce sums nothing with tp 1 and dp 1)"},
        {"{tp: 2, reduce: bf16}", "pp 1 x tp 2 x dp 1 (reduce bf16)"},
        {"{tp: 2, sequence: true, dp: 2x4, zero: 1, reduce: bf16}",
         "pp 1 x tp 2 (sequence) x dp 2x4 (zero 1, reduce bf16)"},
        {"{dp: 4, reduce: bf16}", "pp 1 x tp 1 x dp 4 (reduce bf16)"},
        {"{dp: 4, zero: 3}", "pp 1 x tp 1 x dp 4 (zero 3)"},
        {"{dp: 4x1, zero: 2}", "pp 1 x tp 1 x dp 4x1 (zero divides nothing in runs of 1)"},
        {"{tp: 2, zero: 1, reduce: bf16}",
         "pp 1 x tp 2 x dp 1 (zero divides nothing with dp 1, reduce bf16)"},
        {"{zero: 1}", "pp 1 x tp 1 x dp 1 (zero divides nothing with dp 1)"},
        {"{sequence: true}", "pp 1 x tp 1 (sequence divides nothing with tp 1) x dp 1"}};
    (void)state;
    for (size_t i = 0; i < sizeof mesh / sizeof *mesh; i++) {
        char text[256], written[TR_CONFIG_MESH];
        tr_config c;
        (void)snprintf(text, sizeof text, "data.path: x\ntrain.batch: 8\nparallel: %s\n",
                       mesh[i].keys);
        assert_int_equal(parse(text, &c), TR_OK);
        assert_string_equal(tr_config_mesh_text(&c, written, sizeof written), mesh[i].text);
    }
}

/* Every number is accepted at its limits and refused one above and below them, with a sentence that
 * states the limits exactly. */
static void limits_are_exact(void **state) {
    (void)state;
    for (int k = 0; k < tr_schema_count; k++) {
        const tr_key *key = &tr_schema[k];
        bool whole =
            key->type == TR_KEY_INT || key->type == TR_KEY_BYTES || key->type == TR_KEY_FACTORS;
        if (!whole && key->type != TR_KEY_FLOAT) continue;
        for (int high = 0; high < 2; high++) {
            double limit = high ? key->max : key->min;
            char inside[64], outside[64], said[256];
            tr_config c = {0};
            if (whole) {
                (void)snprintf(inside, sizeof inside, "%lld", (long long)limit);
                (void)snprintf(outside, sizeof outside, "%lld", (long long)limit + (high ? 1 : -1));
                (void)snprintf(said, sizeof said, "%s must be between %lld and %lld, not %s",
                               key->name, (long long)key->min, (long long)key->max, outside);
            } else {
                double next = nextafter(limit, high ? INFINITY : -INFINITY);
                (void)snprintf(inside, sizeof inside, "%.17g", limit);
                (void)snprintf(outside, sizeof outside, "%.17g", next);
                (void)snprintf(said, sizeof said, "%s must be between %.15g and %.15g, not %s",
                               key->name, key->min, key->max, outside);
            }
            if (tr_key_set(key, inside, &c) != TR_OK) fail_msg("%s", tr_error_message());
            assert_int_equal(tr_key_set(key, outside, &c), TR_ERR_CONFIG);
            assert_string_equal(tr_error_message(), said);
        }
    }
}

static void the_schema_is_whole(void **state) {
    (void)state;
    for (int k = 0; k < tr_schema_count; k++) {
        const tr_key *key = &tr_schema[k];
        assert_int_equal(tr_schema_find(key->name), k); /* no name twice */
        char section[64];
        (void)snprintf(section, sizeof section, "%.*s", (int)(strrchr(key->name, '.') - key->name),
                       key->name);
        assert_true(tr_schema_is_section(section));
        assert_true(key->help && strlen(key->help) > 10);
        assert_true(key->fallback || key->example);
        assert_int_equal(key->type == TR_KEY_CHOICE, key->choices != NULL);
    }
    for (int i = 0; i < tr_preset_count; i++) {
        tr_config c;
        char text[128];
        (void)snprintf(text, sizeof text, "{data.path: a, model.preset: %s}", tr_presets[i].name);
        assert_int_equal(parse(text, &c), TR_OK);
        tr_model_config whole = tr_presets[i].model;
        assert_int_equal(tr_model_complete(&whole), TR_OK);
        (void)snprintf(whole.recompute, sizeof whole.recompute, "none"); /* a key of train */
        (void)snprintf(whole.init, sizeof whole.init, "normal");         /* of no preset */
        assert_memory_equal(&c.model, &whole, sizeof whole);
        assert_int_equal(tr_config_check(&c, 1), TR_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_from_file_preset_and_defaults),
        cmocka_unit_test(models_follow_preset_and_family),
        cmocka_unit_test(block_and_dotted_keys_are_one),
        cmocka_unit_test(defaults_follow_the_device),
        cmocka_unit_test(a_resumed_run_keeps_its_defaults),
        cmocka_unit_test(an_empty_list_is_its_default),
        cmocka_unit_test(overrides_win_and_are_checked),
        cmocka_unit_test(paths_may_be_lists),
        cmocka_unit_test(files_are_read_or_named),
        cmocka_unit_test(a_config_is_a_regular_file_of_at_most_a_mebibyte),
        cmocka_unit_test(a_byte_order_mark_is_passed_over),
        cmocka_unit_test(log_dir_follows_the_file),
        cmocka_unit_test(ranks_have_a_text),
        cmocka_unit_test(limits_are_exact),
        cmocka_unit_test(the_schema_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
