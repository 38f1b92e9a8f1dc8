/* Tests config.json of transformers: what Trireme does not have is refused with a sentence, keys
 * that are left out have the defaults of the classes, and a config that is written reads as the
 * same. */
#include "config/hf.h"
#include "layers/preset.h"
#include "support/scratch.h"
#include "support/seed.h"

#include <math.h>

static uint64_t seed;

static tr_status parse_hf(const char *text, tr_hf *hf) {
    cJSON *root;
    tr_status status = tr_json_parse(text, strlen(text), "config.json", &root);
    if (status == TR_OK) status = tr_hf_parse(root, "config.json", hf);
    if (status == TR_OK || root) cJSON_Delete(root);
    return status;
}

#define SIZES                                                                                      \
    "\"vocab_size\":300,\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"     \
    "\"num_key_value_heads\":2,\"intermediate_size\":96,\"max_position_embeddings\":32768"

static void configs_ask_for_what_trireme_has(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"[]", "a config is an object"},
        {"{}", "\"model_type\" is missing"},
        {"{\"model_type\":\"gemma\"}", "\"model_type\" is 'gemma'"},
        {"{\"model_type\":\"llama\",\"quantization_config\":{\"bits\":4}," SIZES "}",
         "call dequantize()"},
        {"{\"model_type\":\"llama\",\"attention_bias\":true," SIZES "}", "\"attention_bias\""},
        {"{\"model_type\":\"llama\",\"mlp_bias\":true," SIZES "}", "\"mlp_bias\""},
        {"{\"model_type\":\"qwen3\",\"num_experts\":8," SIZES "}", "\"num_experts\""},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"tanh\"," SIZES "}",
         "\"hidden_act\" is 'tanh'"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}," SIZES
         "}",
         "\"rope_type\" is 'dynamic'"},
        {"{\"model_type\":\"llama\",\"rope_parameters\":{\"full_attention\":{}}," SIZES "}",
         "\"rope_parameters\""},
        {"{\"model_type\":\"llama\",\"rope_parameters\":7," SIZES "}", "\"rope_parameters\""},
        {"{\"model_type\":\"llama\",\"partial_rotary_factor\":0.5," SIZES "}",
         "\"partial_rotary_factor\""},
        {"{\"model_type\":\"llama\",\"head_dim\":7," SIZES "}", "odd"},
        {"{\"model_type\":\"llama\",\"vocab_size\":-1}", "\"vocab_size\" must be"},
        {"{\"model_type\":\"llama\",\"vocab_size\":1.5}", "\"vocab_size\" must be"},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_"
         "layers\":2," SIZES "}",
         "\"max_window_layers\""},
        {"{\"model_type\":\"mistral\",\"layer_types\":[\"full_attention\",\"sliding_attention\","
         "\"full_attention\",\"full_attention\"]," SIZES "}",
         "\"layer_types\""},
        {"{\"model_type\":\"qwen3\",\"use_sliding_window\":true,\"sliding_window\":8,\"layer_"
         "types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]"
         "," SIZES "}",
         "\"layer_types\""},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":8,\"n_layer\":1,\"n_head\":2,\"n_"
         "positions\":4,\"scale_attn_weights\":false}",
         "\"scale_attn_weights\""},
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":\"small\"," SIZES "}",
         "\"rms_norm_eps\" must be a number above 0"},
        {"{\"model_type\":\"qwen3\",\"use_sliding_window\":true,\"sliding_window\":8,\"layer_"
         "types\":[\"full_attention\",\"linear_attention\"]," SIZES "}",
         "layers other than full_attention and sliding_attention"},
        {"{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_"
         "layers\":-1," SIZES "}",
         "\"max_window_layers\" must be an integer of at least 0"},
        {"{\"model_type\":\"llama\",\"rope_parameters\":{\"partial_rotary_factor\":0.5}," SIZES "}",
         "\"partial_rotary_factor\""},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
         "\"truncate\":false}," SIZES "}",
         "yarn without rounded borders"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1."
         "23456789012345,"
         "\"beta_fast\":12.3456789012345,\"beta_slow\":1.23456789012345,"
         "\"attention_factor\":1.23456789012345}," SIZES "}",
         "\"rope_type\" must be followed by numbers with fewer digits"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
         "\"truncate\":null}," SIZES "}",
         "yarn without rounded borders"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":7," SIZES "}", "\"rope_scaling\" must be"},
        {"{\"model_type\":\"llama\",\"original_max_position_embeddings\":16,\"rope_scaling\":{"
         "\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":64}," SIZES "}",
         "\"original_max_position_embeddings\" is 16, but 64 within the scaling"},
        {"{\"model_type\":\"llama\",\"is_causal\":false," SIZES "}",
         "\"is_causal\" asks for attention to later tokens"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":16}", "\"n_embd\" must be a multiple of \"n_head\""},
        {"{\"model_type\":\"gpt2\",\"num_attention_heads\":5}",
         "\"n_embd\" must be a multiple of \"n_head\""},
        /* No key of a run takes these, so its config could not be read again. */
        {"{\"model_type\":\"llama\",\"rms_norm_eps\":0.3," SIZES "}",
         "rms_norm_eps must be between 1e-12 and 0.1, not 0.3"},
        {"{\"model_type\":\"llama\",\"rope_theta\":1e250," SIZES "}",
         "rope_theta must be between 0 and 1e+15, not 1e+250"},
        {"{\"model_type\":\"llama\",\"vocab_size\":1}", "vocab_size must be between 2 and"},
    };
    tr_hf hf;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(parse_hf(bad[i][0], &hf), TR_ERR_DATA, bad[i][1]);
    must(parse_hf("{\"model_type\":\"mistral\"," SIZES "}", &hf));
    assert_int_equal(hf.model.window, 4096); /* the class's default */
    must(parse_hf("{\"model_type\":\"mistral\",\"sliding_window\":null," SIZES "}", &hf));
    assert_int_equal(hf.model.window, 0);
    must(parse_hf(
        "{\"model_type\":\"mistral\",\"layer_types\":[\"full_attention\",\"full_attention\","
        "\"full_attention\",\"full_attention\"]," SIZES "}",
        &hf));
    assert_int_equal(hf.model.window, 0);
    must(parse_hf("{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":8,"
                  "\"max_window_layers\":0," SIZES "}",
                  &hf));
    assert_int_equal(hf.model.window, 8);
    must(parse_hf("{\"model_type\":\"qwen2\",\"sliding_window\":8,\"rope_theta\":1e6," SIZES "}",
                  &hf));
    assert_true(hf.model.window == 0 && hf.model.rope_theta == 1e6 && hf.model.qkv_bias == TR_YES);
    assert_true(hf.positions == 32768 && hf.model.context == 8192 && hf.model.tie == TR_NO);
    must(parse_hf("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4."
                  "0,\"original_max_position_embeddings\":8192,\"attention_factor\":1.5}," SIZES
                  "}",
                  &hf));
    assert_string_equal(hf.model.rope_scaling, "yarn 4 8192 32 1 1.5");
    /* transformers: (0.1 mscale ln factor + 1) / (0.1 mscale_all_dim ln factor + 1), if both are
     * there and attention_factor is not */
    must(parse_hf("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4."
                  "0,\"mscale\":0.7,\"mscale_all_dim\":0}," SIZES "}",
                  &hf));
    assert_string_equal(hf.model.rope_scaling, "yarn 4 32768");
    must(parse_hf("{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4."
                  "0,\"mscale\":0.7,\"mscale_all_dim\":1.0}," SIZES "}",
                  &hf));
    double attention;
    assert_int_equal(sscanf(hf.model.rope_scaling, "yarn 4 32768 32 1 %lf", &attention), 1);
    assert_true(fabs(attention - 0.9634746568860826) < 1e-15);
}

/* Returns the text that an export writes for a config.json. The caller frees it. */
static char *exported(const char *text, tr_hf *hf) {
    cJSON *root;
    char *printed;
    must(tr_json_parse(text, strlen(text), "config.json", &root));
    must(tr_hf_parse(root, "config.json", hf));
    must(tr_hf_print(&hf->model, root, "float32", &printed));
    cJSON_Delete(root);
    return printed;
}

static void rotary_keys_are_read_as_transformers_reads_them(void **state) {
    (void)state;
    static const struct {
        const char *keys, *scaling;
        double theta;
    } cases[] = {
        /* Both versions prefer a rope_scaling that is not empty. */
        {"\"rope_theta\":7e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0},"
         "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e4}",
         "linear 2", 7e5},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0},\"rope_parameters\":{}", "linear 2",
         1e4},
        {"\"rope_theta\":7e5,\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"linear\","
         "\"factor\":4.0,\"rope_theta\":9e5}",
         "linear 4", 9e5},
        {"\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0}",
         "linear 4", 1e4},
        {"\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":64,\"truncate\":true}",
         "yarn 4 64", 1e4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        tr_hf hf;
        (void)snprintf(text, sizeof text, "{\"model_type\":\"llama\",%s," SIZES "}", cases[i].keys);
        must(parse_hf(text, &hf));
        assert_string_equal(hf.model.rope_scaling, cases[i].scaling);
        assert_true(hf.model.rope_theta == cases[i].theta);
    }
}

/* GPT2Config takes the usual names of sizes, too, and prefers them. An export has its own names
 * only. */
static void gpt2_has_other_names_of_sizes(void **state) {
    (void)state;
    tr_hf hf, back;
    char *printed =
        exported("{\"model_type\":\"gpt2\",\"n_head\":12,\"n_embd\":48,\"num_attention_heads\":"
                 "4,\"num_hidden_layers\":3,\"max_position_embeddings\":24}",
                 &hf);
    assert_true(hf.model.heads == 4 && hf.model.head_size == 12 && hf.model.layers == 3);
    assert_true(hf.model.width == 48 && hf.model.mlp_width == 192 && hf.model.context == 24);
    must(parse_hf(printed, &back));
    assert_memory_equal(&back.model, &hf.model, sizeof hf.model);
    assert_null(strstr(printed, "max_position_embeddings"));
    free(printed);
}

/* The import reads the class's weights, and does not copy the code that a folder brings along. */
static void names_of_code_stay_behind(void **state) {
    (void)state;
    tr_hf hf;
    char *printed = exported("{\"model_type\":\"llama\",\"pad_token_id\":3,\"auto_map\":{"
                             "\"AutoConfig\":\"own.OwnConfig\"}," SIZES "}",
                             &hf);
    assert_null(strstr(printed, "auto_map"));
    assert_non_null(strstr(printed, "\"pad_token_id\":\t3"));
    free(printed);
}

/* Heads that do not divide the width make it a mistral. That class has a default of 131072. */
static void a_llama_that_goes_out_as_a_mistral_has_its_own_positions(void **state) {
    (void)state;
    tr_hf hf;
    char *printed = exported("{\"model_type\":\"llama\",\"hidden_size\":64,\"head_dim\":16,"
                             "\"num_attention_heads\":3}",
                             &hf);
    assert_non_null(strstr(printed, "\"model_type\":\t\"mistral\""));
    assert_non_null(strstr(printed, "\"max_position_embeddings\":\t2048"));
    free(printed);
}

/* transformers' Ministral, a mistral with layer_types, cannot do without a window. */
static void a_mistral_without_windows_goes_out_as_such(void **state) {
    (void)state;
    tr_hf hf;
    char *printed = exported("{\"model_type\":\"mistral\",\"sliding_window\":8,\"layer_types\":["
                             "\"full_attention\",\"full_attention\",\"full_attention\","
                             "\"full_attention\"]," SIZES "}",
                             &hf);
    assert_int_equal(hf.model.window, 0);
    assert_non_null(strstr(printed, "\"sliding_window\":\tnull"));
    assert_null(strstr(printed, "layer_types"));
    free(printed);
}

/* A window that is used and has no size has the classes' size. */
static void a_window_has_a_default(void **state) {
    (void)state;
    for (int i = 2; i <= 3; i++) {
        char text[512];
        tr_hf hf;
        (void)snprintf(text, sizeof text,
                       "{\"model_type\":\"qwen%d\",\"use_sliding_window\":true,"
                       "\"max_window_layers\":0," SIZES "}",
                       i);
        must(parse_hf(text, &hf));
        assert_int_equal(hf.model.window, 4096);
    }
}

/* Version 5 takes whole numbers of positions only, and no llama with heads that do not divide its
 * width. */
static void exports_are_taken_by_version_5(void **state) {
    (void)state;
    static const struct {
        const char *scaling, *type;
        double positions;
        int64_t heads;
    } cases[] = {{"none", "llama", 16, 4},
                 {"none", "mistral", 16, 3},
                 {"yarn 2.5 25", "llama", 62, 4},
                 {"llama3 2.3 1 4 5", "llama", 16, 4},
                 {"llama3 8.1 1 4 8", "mistral", 64, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_model_config m = {.family = "llama",
                             .layers = 1,
                             .width = 16,
                             .heads = cases[i].heads,
                             .head_size = 4,
                             .context = 16,
                             .vocab = 77};
        char *text;
        cJSON *root;
        (void)snprintf(m.rope_scaling, sizeof m.rope_scaling, "%s", cases[i].scaling);
        must(tr_model_complete(&m));
        must(tr_hf_print(&m, NULL, "float32", &text));
        must(tr_json_parse(text, strlen(text), "config.json", &root));
        const cJSON *positions = tr_json_get(root, "max_position_embeddings");
        assert_string_equal(cJSON_GetStringValue(tr_json_get(root, "model_type")), cases[i].type);
        assert_true(positions->valuedouble == cases[i].positions);
        cJSON_Delete(root);
        free(text);
    }
}

/* Keys that are left out have the defaults of the classes: those that the config classes of
 * transformers 4.57.6 and 5.24.0 print. */
static void configs_have_the_defaults_of_the_classes(void **state) {
    (void)state;
    static const struct {
        const char *family;
        int64_t vocab, layers, width, heads, kv_heads, head_size, mlp_width, positions, window;
    } defaults[] = {
        {"gpt2", 50257, 12, 768, 12, 12, 64, 3072, 1024, 0},
        {"llama", 32000, 32, 4096, 32, 32, 128, 11008, 2048, 0},
        {"mistral", 32000, 32, 4096, 32, 8, 128, 14336, 131072, 4096},
        {"qwen2", 151936, 32, 4096, 32, 32, 128, 22016, 32768, 0},
        {"qwen3", 151936, 32, 4096, 32, 32, 128, 22016, 32768, 0},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        char text[64], *printed;
        tr_hf hf, back;
        cJSON *root;
        (void)snprintf(text, sizeof text, "{\"model_type\":\"%s\"}", defaults[i].family);
        must(tr_json_parse(text, strlen(text), "config.json", &root));
        must(tr_hf_parse(root, "config.json", &hf));
        assert_int_equal(hf.model.vocab, defaults[i].vocab);
        assert_int_equal(hf.model.layers, defaults[i].layers);
        assert_int_equal(hf.model.width, defaults[i].width);
        assert_int_equal(hf.model.heads, defaults[i].heads);
        assert_int_equal(hf.model.kv_heads, defaults[i].kv_heads);
        assert_int_equal(hf.model.head_size, defaults[i].head_size);
        assert_int_equal(hf.model.mlp_width, defaults[i].mlp_width);
        assert_int_equal(hf.positions, defaults[i].positions);
        assert_int_equal(hf.model.window, defaults[i].window);
        assert_true(hf.model.norm_eps == (i ? 1e-6 : 1e-5));
        must(tr_hf_print(&hf.model, root, "float32", &printed)); /* an export says the same */
        must(parse_hf(printed, &back));
        assert_memory_equal(&back, &hf, sizeof hf);
        free(printed);
        cJSON_Delete(root);
    }
}

#define PUBLISHED_GPT2(layers, width, heads)                                                       \
    "\"gpt2\", \"n_layer\": " layers ", \"n_embd\": " width ", \"n_head\": " heads                 \
    ", \"n_positions\": 1024, \"vocab_size\": 50257, \"activation_function\": \"gelu_new\", "      \
    "\"layer_norm_epsilon\": 1e-05"
#define PUBLISHED(family, layers, width, mlp, heads, kv_heads, reach, eps, theta, vocab)           \
    "\"" family "\", \"num_hidden_layers\": " layers ", \"hidden_size\": " width                   \
    ", \"intermediate_size\": " mlp ", \"num_attention_heads\": " heads                            \
    ", \"num_key_value_heads\": " kv_heads ", \"max_position_embeddings\": " reach                 \
    ", \"rms_norm_eps\": " eps ", \"rope_theta\": " theta ", \"vocab_size\": " vocab               \
    ", \"hidden_act\": \"silu\""
#define PUBLISHED_LLAMA(layers, width, mlp, heads, reach)                                          \
    PUBLISHED("llama", layers, width, mlp, heads, "8", reach, "1e-05", "500000.0", "128256")
#define LLAMA3(factor)                                                                             \
    ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": " factor                          \
    ", \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                                      \
    "\"original_max_position_embeddings\": 8192}"
#define PUBLISHED_QWEN(family, layers, width, mlp, heads, kv_heads, reach)                         \
    PUBLISHED(family, layers, width, mlp, heads, kv_heads, reach, "1e-06", "1000000", "151936")    \
    ", \"sliding_window\": 32768, \"use_sliding_window\": false"
#define TIED   ", \"tie_word_embeddings\": true"
#define UNTIED ", \"tie_word_embeddings\": false"

/* A preset is the model of the published config.json, at a context of at most 8192. */
static void presets_are_the_published_models(void **state) {
    (void)state;
    static const char *const published[][2] = {
        {"gpt2-124m", PUBLISHED_GPT2("12", "768", "12")},
        {"gpt2-350m", PUBLISHED_GPT2("24", "1024", "16")},
        {"gpt2-774m", PUBLISHED_GPT2("36", "1280", "20")},
        {"gpt2-1.5b", PUBLISHED_GPT2("48", "1600", "25")},
        {"llama-3.2-1b", PUBLISHED_LLAMA("16", "2048", "8192", "32", "131072") LLAMA3("32.0") TIED},
        {"llama-3-8b", PUBLISHED_LLAMA("32", "4096", "14336", "32", "8192") UNTIED},
        {"llama-3-70b", PUBLISHED_LLAMA("80", "8192", "28672", "64", "8192") UNTIED},
        {"llama-3-405b",
         PUBLISHED_LLAMA("126", "16384", "53248", "128", "131072") LLAMA3("8.0") UNTIED},
        {"qwen2.5-0.5b", PUBLISHED_QWEN("qwen2", "24", "896", "4864", "14", "2", "32768") TIED},
        {"qwen3-0.6b", PUBLISHED_QWEN("qwen3", "28", "1024", "3072", "16", "8", "40960") TIED
         ", \"head_dim\": 128"},
        {"qwen3-8b", PUBLISHED_QWEN("qwen3", "36", "4096", "12288", "32", "8", "40960") UNTIED
         ", \"head_dim\": 128"},
        {"mistral-7b", PUBLISHED("mistral", "32", "4096", "14336", "32", "8", "32768", "1e-05",
                                 "10000.0", "32000") UNTIED ", \"sliding_window\": 4096"},
    };
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const tr_preset *preset = tr_preset_find(published[i][0]);
        char text[1024];
        tr_hf hf;
        assert_non_null(preset);
        tr_model_config model = preset->model;
        must(tr_model_complete(&model));
        (void)snprintf(text, sizeof text, "{\"model_type\": %s}", published[i][1]);
        must(parse_hf(text, &hf));
        if (memcmp(&model, &hf.model, sizeof model)) {
            char *theirs;
            must(tr_hf_print(&model, NULL, "float32", &theirs));
            fail_msg("%s is another model than the published one: %s", preset->name, theirs);
        }
    }
}

/* transformers computes gelu_new and gelu_pytorch_tanh, one function, with other roundings. */
static void an_activation_keeps_its_name(void **state) {
    (void)state;
    static const char *const words[] = {"gelu_new", "gelu_pytorch_tanh", "gelu", "silu", "swish"};
    static const char *const keys[] = {"gpt2\", \"activation_function", "llama\", \"hidden_act"};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < (k ? 5 : 3); i++) {
            char text[128], want[32];
            tr_hf hf;
            (void)snprintf(text, sizeof text, "{\"model_type\": \"%s\": \"%s\"}", keys[k],
                           words[i]);
            (void)snprintf(want, sizeof want, "\"%s\"", words[i]);
            char *printed = exported(text, &hf);
            if (!strstr(printed, want)) fail_msg("%s: %s", want, printed);
            free(printed);
        }
}

/* What is written is read as the same model, for random models of every family. */
static void configs_come_back(void **state) {
    (void)state;
    static const char *const families[] = {"gpt2", "llama", "qwen2", "qwen3", "mistral"};
    static const char *const scaling[] = {"none",      "linear 4",         "llama3 8 1 4 64",
                                          "yarn 4 64", "yarn 2.5 64 16 2", "yarn 4 64 32 1 1.25"};
    static const char *const activation[2][3] = {{"gelu_tanh", "gelu", "relu2"},
                                                 {"swiglu", "geglu", "geglu_tanh"}};
    uint64_t random = seed;
    for (int round = 0; round < 200; round++) {
        const int family = (int)tr_up_to(&random, 5) - 1;
        tr_model_config m = {.layers = tr_up_to(&random, 4),
                             .width = 64,
                             .heads = 4,
                             .context = 256,
                             .vocab = 77,
                             .mlp_width = 8 * tr_up_to(&random, 40),
                             .norm_eps = (double)tr_up_to(&random, 9) * 1e-7,
                             .tie = tr_up_to(&random, 2) == 1 ? TR_YES : TR_NO};
        (void)snprintf(m.family, sizeof m.family, "%s", families[family]);
        (void)snprintf(m.activation, sizeof m.activation, "%s",
                       activation[family > 0][tr_up_to(&random, 3) - 1]);
        if (family) {
            m.kv_heads = tr_up_to(&random, 2) * 2;
            m.head_size = 2 * tr_up_to(&random, 20);
            m.rope_theta = 100.0 + (double)tr_up_to(&random, 1000000) / 7;
            (void)snprintf(m.rope_scaling, sizeof m.rope_scaling, "%s",
                           scaling[tr_up_to(&random, 6) - 1]);
        }
        if (family >= 2) m.window = tr_up_to(&random, 100) - 1;
        must(tr_model_complete(&m));
        char *text;
        tr_hf hf;
        must(tr_hf_print(&m, NULL, "bfloat16", &text));
        must(parse_hf(text, &hf));
        assert_true(hf.positions >= m.context); /* a scaling may reach further */
        hf.model.context = m.context;
        if (memcmp(&hf.model, &m, sizeof m)) fail_msg("round %d: %s", round, text);
        free(text);
    }
}

/* transformers' gpt2 has no window, and one of all tokens has no effect. */
static void gpt2_has_no_smaller_window(void **state) {
    (void)state;
    for (int64_t window = 31; window <= 32; window++) {
        tr_model_config m = {.layers = 1, .width = 16, .heads = 2, .context = 32, .vocab = 77};
        char *text = NULL;
        (void)snprintf(m.family, sizeof m.family, "gpt2");
        m.window = window;
        must(tr_model_complete(&m));
        assert_int_equal(tr_hf_print(&m, NULL, "float32", &text),
                         window < m.context ? TR_ERR_DATA : TR_OK);
        free(text);
    }
}

int main(void) {
    seed = tr_test_seed(11);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs_ask_for_what_trireme_has),
        cmocka_unit_test(configs_have_the_defaults_of_the_classes),
        cmocka_unit_test(rotary_keys_are_read_as_transformers_reads_them),
        cmocka_unit_test(gpt2_has_other_names_of_sizes),
        cmocka_unit_test(names_of_code_stay_behind),
        cmocka_unit_test(a_llama_that_goes_out_as_a_mistral_has_its_own_positions),
        cmocka_unit_test(a_mistral_without_windows_goes_out_as_such),
        cmocka_unit_test(a_window_has_a_default),
        cmocka_unit_test(exports_are_taken_by_version_5),
        cmocka_unit_test(configs_come_back),
        cmocka_unit_test(gpt2_has_no_smaller_window),
        cmocka_unit_test(an_activation_keeps_its_name),
        cmocka_unit_test(presets_are_the_published_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
