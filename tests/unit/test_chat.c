/* Tests the turns of conversations: the form that a template is recognised as, and its tokens. */
#include "support/must.h"
#include "support/scratch.h"
#include "text/chat.h"

/* A byte-level tokenizer of letters, space (27) and new line (26), with the tokens of both
 * forms. */
static void write_tokenizer(const char *added_start) {
    char text[4096];
    size_t n = 0;
    n += (size_t)snprintf(text + n, sizeof text - n, "{\"added_tokens\": [");
    static const char *const added[] = {"<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
                                        "<|eot_id|>", "<|begin_of_text|>"};
    n += (size_t)snprintf(text + n, sizeof text - n,
                          "{\"id\": 30, \"content\": \"%s\", \"special\": true, \"normalized\": "
                          "false}",
                          added_start);
    for (int i = 0; i < 5; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              ", {\"id\": %d, \"content\": \"%s\", \"special\": true, "
                              "\"normalized\": false}",
                              31 + i, added[i]);
    n += (size_t)snprintf(
        text + n, sizeof text - n,
        "], \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"use_regex\": true}, \"decoder\": {\"type\": \"ByteLevel\"}, \"post_processor\": "
        "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
        "\"<|begin_of_text|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": "
        "0}}], \"pair\": [], \"special_tokens\": {\"<|begin_of_text|>\": {\"id\": "
        "\"<|begin_of_text|>\", \"ids\": [35], \"tokens\": [\"<|begin_of_text|>\"]}}}, "
        "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"<\": 28, \"|\": 29, "
        "\"\u010A\": 26, \"\u0120\": 27");
    for (int c = 0; c < 26; c++)
        n += (size_t)snprintf(text + n, sizeof text - n, ", \"%c\": %d", 'a' + c, c);
    n += (size_t)snprintf(text + n, sizeof text - n, "}}}");
    assert_true(n < sizeof text);
    write_file(path_of("tokenizer.json"), text, n);
}

static tr_status find(const char *name, const char *text, tr_tokenizer **t, tr_chat *chat) {
    write_file(path_of(name), text, strlen(text));
    must(tr_tokenizer_open(path_of("tokenizer.json"), t));
    tr_status status = tr_chat_find(*t, chat);
    remove_all(path_of(name));
    return status;
}

static void expect_turn(const tr_tokenizer *t, const tr_chat *chat, const char *role,
                        const char *text, unsigned flags, const int32_t *want, size_t count) {
    tr_encoder *encoder;
    tr_token_list list = {0};
    must(tr_encoder_open(t, &encoder));
    must(tr_chat_begin(chat, &list));
    must(tr_chat_header(chat, encoder, role, &list));
    must(tr_chat_text(chat, encoder, text, strlen(text), flags, &list));
    must(tr_chat_separator(chat, encoder, &list));
    assert_int_equal(list.count, count);
    assert_memory_equal(list.id, want, count * sizeof *want);
    free(list.id);
    tr_encoder_close(encoder);
}
#define EXPECT(t, chat, role, text, flags, ...)                                                    \
    expect_turn(t, chat, role, text, flags, (const int32_t[]){__VA_ARGS__},                        \
                sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static const char chatml[] =
    "{\"chat_template\": \"{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}"
    "<|im_end|>\\n{% endfor %}\"}";
static const char llama3[] = "{{ bos_token }}<|start_header_id|>{{ m['role'] }}<|end_header_id|>"
                             "\n\n{{ m['content'] | trim }}<|eot_id|>";

static void test_chatml(void **state) {
    (void)state;
    tr_tokenizer *t;
    tr_chat chat;
    write_tokenizer("<|im_start|>");
    must(find("tokenizer_config.json", chatml, &t, &chat));
    assert_int_equal(chat.form, TR_CHAT_CHATML);
    assert_int_equal(chat.end, 31);
    /* White space around a text stays; the text of a special token is the token, or plain text. */
    EXPECT(t, &chat, "ab", " a ", 0, 30, 0, 1, 26, 27, 0, 27, 31, 26);
    EXPECT(t, &chat, "a", "<|eot_id|>", 0, 30, 0, 26, 34, 31, 26);
    tr_encoder *encoder;
    tr_token_list list = {0};
    must(tr_encoder_open(t, &encoder));
    must(tr_chat_text(&chat, encoder, "<|im_end|>", 10, TR_ENCODE_NO_SPECIAL, &list));
    for (size_t i = 0; i + 1 < list.count; i++) assert_int_not_equal(list.id[i], 31);
    free(list.id);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
}

static void test_llama3(void **state) {
    (void)state;
    tr_tokenizer *t;
    tr_chat chat;
    write_tokenizer("<|im_start|>");
    /* chat_template.jinja goes before tokenizer_config.json. */
    write_file(path_of("tokenizer_config.json"), chatml, sizeof chatml - 1);
    must(find("chat_template.jinja", llama3, &t, &chat));
    remove_all(path_of("tokenizer_config.json"));
    assert_int_equal(chat.form, TR_CHAT_LLAMA3);
    EXPECT(t, &chat, "b", "\n a b \n", 0, 35, 32, 1, 33, 26, 26, 0, 27, 1, 34);
    EXPECT(t, &chat, "b", " ", 0, 35, 32, 1, 33, 26, 26, 34);
    tr_tokenizer_close(t);
    /* The token that the configuration names goes before that of the post_processor; null is
     * none. */
    static const char *const bos[] = {"\"<|eot_id|>\"", "{\"content\": \"<|eot_id|>\"}", "null"};
    for (size_t i = 0; i < sizeof bos / sizeof *bos; i++) {
        char config[80];
        (void)snprintf(config, sizeof config, "{\"bos_token\": %s}", bos[i]);
        write_file(path_of("tokenizer_config.json"), config, strlen(config));
        must(find("chat_template.jinja", llama3, &t, &chat));
        remove_all(path_of("tokenizer_config.json"));
        assert_int_equal(chat.begin, i < 2 ? 34 : 35);
        tr_tokenizer_close(t);
    }
    must(find("chat_template.jinja", llama3 + strlen("{{ bos_token }}"), &t, &chat));
    assert_int_equal(chat.begin, -1);
    tr_tokenizer_close(t);
    must(find("chat_template.jinja",
              "<|begin_of_text|><|start_header_id|><|end_header_id|><|eot_id|>", &t, &chat));
    assert_int_equal(chat.begin, 35);
    tr_tokenizer_close(t);
}

static void test_list(void **state) {
    (void)state;
    tr_tokenizer *t;
    tr_chat chat;
    write_tokenizer("<|im_start|>");
    must(find("tokenizer_config.json",
              "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"other\"}, {\"name\": "
              "\"default\", \"template\": \"<|im_start|><|im_end|>\"}]}",
              &t, &chat));
    assert_int_equal(chat.form, TR_CHAT_CHATML);
    tr_tokenizer_close(t);
}

static void test_none(void **state) {
    (void)state;
    tr_tokenizer *t;
    tr_chat chat;
    write_tokenizer("<|im_start|>");
    must(find("tokenizer_config.json", "{\"eos_token\": \"<|im_end|>\"}", &t, &chat));
    assert_int_equal(chat.form, TR_CHAT_NONE);
    tr_tokenizer_close(t);
}

static void test_refused(void **state) {
    (void)state;
    tr_tokenizer *t;
    tr_chat chat;
    write_tokenizer("<|im_start|>");
    refused(find("chat_template.jinja", "[INST] {{ x }} [/INST]", &t, &chat), TR_ERR_DATA,
            "only these two forms");
    tr_tokenizer_close(t);
    /* Phi's headers end with another token than ChatML's. */
    refused(find("chat_template.jinja", "<|im_start|>user<|im_sep|>x<|im_end|>", &t, &chat),
            TR_ERR_DATA, "only these two forms");
    tr_tokenizer_close(t);
    refused(find("tokenizer_config.json", "{\"chat_template\": ", &t, &chat), TR_ERR_DATA,
            "tokenizer_config.json");
    tr_tokenizer_close(t);
    write_tokenizer("<|other|>");
    refused(find("tokenizer_config.json", chatml, &t, &chat), TR_ERR_DATA, "uses <|im_start|>");
    tr_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml), cmocka_unit_test(test_llama3),  cmocka_unit_test(test_list),
        cmocka_unit_test(test_none),   cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
