/* Tests tokenizers: reading files, encoding, decoding. */
#include "base/input.h"
#include "support/scratch.h"
#include "text/tokenizer.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Writes a file and returns its path. */
static const char *written(const char *name, const char *text, size_t length) {
    const char *path = path_of(name);
    write_file(path, text, length);
    return path;
}

/* A byte-level tokenizer.json of the letters a, b, c, the space and some merges. */
static const char small[] =
    "{\"added_tokens\": [{\"id\": 9, \"content\": \"<|endoftext|>\", \"special\": true,"
    " \"normalized\": false}], \"pre_tokenizer\": {\"type\": \"ByteLevel\","
    " \"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": {\"type\": \"ByteLevel\"},"
    " \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"\u0120\": 3,"
    " \"ab\": 4, \"bc\": 5, \"\u0120a\": 6, \"abab\": 7, \"<|endoftext|>\": 9},"
    " \"merges\": [\"a b\", [\"b\", \"c\"], \"\u0120 a\", \"ab ab\"]}}";

static void expect(const tr_tokenizer *t, const char *text, unsigned flags, const int32_t *id,
                   size_t count) {
    tr_encoder *encoder;
    tr_token_list list = {0};
    must(tr_encoder_open(t, &encoder));
    for (int again = 0; again < 2; again++) { /* the second time uses the cache */
        list.count = 0;
        must(tr_encoder_add(encoder, text, strlen(text), flags, &list));
        assert_int_equal(list.count, count);
        assert_memory_equal(list.id, id, count * sizeof *id);
    }
    tr_byte_list back = {0};
    must(tr_tokenizer_decode(t, list.id, list.count, 0, &back));
    assert_int_equal(back.count, strlen(text));
    assert_memory_equal(back.byte, text, back.count);
    tr_encoder_close(encoder);
    free(list.id);
    free(back.byte);
}
#define EXPECT(t, text, flags, ...)                                                                \
    expect(t, text, flags, (const int32_t[]){__VA_ARGS__},                                         \
           sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_small(void **state) {
    (void)state;
    tr_tokenizer *t;
    must(tr_tokenizer_open(written("small.json", small, sizeof small - 1), &t));
    assert_int_equal(tr_tokenizer_size(t), 10);
    assert_int_equal(tr_tokenizer_document_end(t), 9);
    EXPECT(t, "abc", 0, 4, 2);
    EXPECT(t, "bcab", 0, 5, 4);
    EXPECT(t, "ababab c", 0, 7, 4, 3, 2);
    EXPECT(t, "a  a<|endoftext|> ab", 0, 0, 3, 6, 9, 3, 4);
    tr_tokenizer_close(t);
    char marked[sizeof small + 3]; /* with a byte-order mark, which some editors write */
    (void)snprintf(marked, sizeof marked, "\xEF\xBB\xBF%s", small);
    must(tr_tokenizer_open(written("marked.json", marked, sizeof marked - 1), &t));
    EXPECT(t, "abc", 0, 4, 2);
    tr_tokenizer_close(t);
}

/* Added tokens of white space next to one that takes white space along: the ids that tokenizers
 * 0.23.3 gives. In "a\t\ta" the first tab takes the second one along; a token without lstrip stays,
 * though its text was taken. The reference fails on the last text. */
static void test_added_spaces(void **state) {
    (void)state;
    static const char spec[] =
        "{\"added_tokens\": [{\"id\": 3, \"content\": \"<x>\", \"rstrip\": true},"
        " {\"id\": 4, \"content\": \"\\t\", \"lstrip\": true, \"rstrip\": true},"
        " {\"id\": 5, \"content\": \"  \"}, {\"id\": 6, \"content\": \"\\u00a0\", \"lstrip\": "
        "true}],"
        " \"pre_tokenizer\": {\"type\": \"ByteLevel\","
        " \"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": {\"type\": "
        "\"ByteLevel\"},"
        " \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"\u0120\": 1, \"\u0109\": 2, "
        "\"<x>\": 3,"
        " \"\\t\": 4, \"  \": 5, \"\\u00a0\": 6}, \"merges\": []}}";
    static const struct {
        const char *text;
        int32_t id[6]; /* ends in -1 */
    } cases[] = {
        {"a\t\ta", {0, 4, 0, -1}},          {"<x>\t a", {3, 0, -1}},
        {"a <x> \t\t a", {0, 1, 3, 0, -1}}, {"<x>  \ta", {3, 5, 4, 0, -1}},
        {"a\t  a", {0, 4, 5, 0, -1}},       {"<x>   a", {3, 5, 1, 0, -1}},
        {"<x>\u00a0 a", {3, 0, -1}},
    };
    tr_tokenizer *t;
    tr_encoder *encoder;
    must(tr_tokenizer_open(written("spaces.json", spec, sizeof spec - 1), &t));
    must(tr_encoder_open(t, &encoder));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_token_list list = {0};
        size_t count = 0;
        while (cases[i].id[count] >= 0) count++;
        must(tr_encoder_add(encoder, cases[i].text, strlen(cases[i].text), 0, &list));
        assert_int_equal(list.count, count);
        assert_memory_equal(list.id, cases[i].id, count * sizeof *list.id);
        free(list.id);
    }
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
}

/* Writes a rank file with the 256 bytes, the 65536 pairs of bytes, and triples that end in x, as
 * far as `ranks` goes. */
static const char *write_ranks(unsigned ranks) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { BYTES = 256, PAIRS = 65536, LINE = 24 };
    char *text = malloc((size_t)ranks * LINE);
    size_t length = 0;
    for (unsigned rank = 0; rank < ranks; rank++) {
        const unsigned pair = (rank - BYTES) % PAIRS, a = rank < BYTES ? rank : pair / 256,
                       b = rank < BYTES ? 0 : pair % 256, c = rank < BYTES + PAIRS ? 0 : 'x';
        length += (size_t)sprintf(
            text + length, "%c%c%c%c %u\n", digits[a >> 2], digits[(a & 3) << 4 | b >> 4],
            rank < BYTES ? '=' : digits[(b & 15) << 2 | c >> 6], c ? digits[c & 63] : '=', rank);
    }
    const char *path = written("ranks.tiktoken", text, length);
    free(text);
    return path;
}

static void test_ranks(void **state) {
    (void)state;
    tr_tokenizer *t, *saved;
    char copy[256];
    const int32_t ab = 256 + 'a' * 256 + 'b', space_c = 256 + ' ' * 256 + 'c';
    must(tr_tokenizer_open(write_ranks(50256), &t));
    assert_int_equal(tr_tokenizer_size(t), 50257);
    assert_int_equal(tr_tokenizer_document_end(t), 50256);
    EXPECT(t, "ab c<|endoftext|>a", 0, ab, space_c, 50256, 'a');
    EXPECT(t, "\xFF\x80", 0, 0xFF, 0x80);
    (void)snprintf(copy, sizeof copy, "%s/saved.json", scratch);
    must(tr_tokenizer_save(t, copy));
    must(tr_tokenizer_open(copy, &saved));
    assert_int_equal(tr_tokenizer_hash(saved), tr_tokenizer_hash(t));
    /* The vocabulary has the special token too: tokenizers would number it itself otherwise. */
    char *json;
    size_t length;
    must(tr_input_load("saved", copy, (tr_input_limit){64, TR_ERR_DATA}, &json, &length));
    assert_non_null(strstr(json, "\"<|endoftext|>\": 50256"));
    free(json);
    EXPECT(saved, "ab c<|endoftext|>a", 0, ab, space_c, 50256, 'a');
    tr_tokenizer_close(saved);
    tr_tokenizer_close(t);
}

/* A rank file of Llama 3's size has its special tokens and the one before each text, and so has the
 * tokenizer.json that a run keeps, in the form that tokenizers 0.23.3 reads. */
static void test_llama_ranks(void **state) {
    (void)state;
    static const char begin[] =
        "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
        "\"<|begin_of_text|>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": "
        "0}}],\n\"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": "
        "{\"id\": "
        "\"B\", \"type_id\": 1}}],\n\"special_tokens\": {\"<|begin_of_text|>\": {\"id\": "
        "\"<|begin_of_text|>\", \"ids\": [128000], \"tokens\": [\"<|begin_of_text|>\"]}}}";
    static const struct {
        const char *name;
        int32_t id;
    } special[] = {{"<|end_of_text|>", 128001},
                   {"<|reserved_special_token_0|>", 128002},
                   {"<|reserved_special_token_1|>", 128003},
                   {"<|finetune_right_pad_id|>", 128004},
                   {"<|reserved_special_token_2|>", 128005},
                   {"<|eot_id|>", 128009},
                   {"<|python_tag|>", 128010},
                   {"<|reserved_special_token_3|>", 128011},
                   {"<|reserved_special_token_247|>", 128255}};
    const int32_t ab = 256 + 'a' * 256 + 'b', abx = ab + 65536, *prefix;
    tr_tokenizer *t[2];
    char copy[256], *json;
    size_t length;
    must(tr_tokenizer_open(write_ranks(128000), &t[0]));
    (void)snprintf(copy, sizeof copy, "%s/saved.json", scratch);
    must(tr_tokenizer_save(t[0], copy));
    must(tr_tokenizer_open(copy, &t[1]));
    for (int k = 0; k < 2; k++) {
        assert_int_equal(tr_tokenizer_size(t[k]), 128256);
        assert_int_equal(tr_tokenizer_document_end(t[k]), 128001);
        assert_int_equal(tr_tokenizer_prefix(t[k], &prefix), 1);
        assert_int_equal(prefix[0], 128000);
        for (size_t i = 0; i < sizeof special / sizeof *special; i++)
            assert_int_equal(tr_tokenizer_find(t[k], special[i].name), special[i].id);
        EXPECT(t[k], "abx c", 0, abx, 256 + ' ' * 256 + 'c');
        EXPECT(t[k], "ab<|eot_id|>x", 0, ab, 128009, 'x');
        tr_tokenizer_close(t[k]);
    }
    must(tr_input_load("saved", copy, (tr_input_limit){64, TR_ERR_DATA}, &json, &length));
    assert_non_null(strstr(json, begin));
    free(json);
}

/* A process is killed while it saves; the next one leaves nothing of it. */
static void test_save_killed(void **state) {
    (void)state;
    tr_tokenizer *t;
    char copy[256];
    int status, files = 0;
    must(tr_tokenizer_open(written("small.json", small, sizeof small - 1), &t));
    (void)snprintf(copy, sizeof copy, "%s/killed.json", scratch);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* SIGXFSZ ends it at its first byte */
        (void)signal(SIGXFSZ, SIG_DFL);
        (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){0});
        (void)tr_tokenizer_save(t, copy);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    must(tr_tokenizer_save(t, copy));
    DIR *folder = opendir(scratch);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        files += strncmp(entry->d_name, "killed.json", strlen("killed.json")) == 0;
    (void)closedir(folder);
    assert_int_equal(files, 1);
    tr_tokenizer_close(t);
}

/* vocab.json and merges.txt; the ends that the files next to them name. */
static void test_folder(void **state) {
    (void)state;
    static const char vocab[] = "{\"a\": 0, \"b\": 1, \"ab\": 2, \"<|x|>\": 3, \"</s>\": 4}";
    static const char merges[] = "#version: 0.2\na b\n";
    static const char config[] = "{\"eos_token_id\": [0, 4]}";
    tr_tokenizer *t;
    const int32_t *ends;
    (void)written("vocab.json", vocab, sizeof vocab - 1);
    (void)written("merges.txt", merges, sizeof merges - 1);
    (void)written("config.json", config, sizeof config - 1);
    must(tr_tokenizer_open(scratch, &t));
    EXPECT(t, "abb</s>a", 0, 2, 1, 4, 0);
    assert_int_equal(tr_tokenizer_document_end(t), 4);
    assert_int_equal(tr_tokenizer_ends(t, &ends), 2);
    assert_int_equal(ends[0], 4);
    assert_int_equal(ends[1], 0);
    assert_int_equal(tr_tokenizer_find(t, "ab"), 2);
    assert_int_equal(tr_tokenizer_find(t, "zz"), -1);
    tr_tokenizer_close(t);
}

/* Both files may begin with a byte-order mark; a fault in merges.txt is said with its name. */
static void test_folder_texts(void **state) {
    (void)state;
    static const char vocab[] = "\xEF\xBB\xBF{\"a\": 0, \"b\": 1, \"ab\": 2}";
    static const struct {
        const char *merges, *message; /* NULL: none */
    } cases[] = {
        {"\xEF\xBB\xBF#version: 0.2\r\na b\r\n", NULL},
        {"a b\nab\n", "merges.txt', line 2: a line is two tokens with a space between them"},
        {"#version: 0.2\na b \n", "merges.txt', line 2: a line is two tokens"},
        {"a b\n\xFF b\n", "merges.txt': byte 4 is not UTF-8"},
    };
    (void)written("vocab.json", vocab, sizeof vocab - 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tr_tokenizer *t;
        (void)written("merges.txt", cases[i].merges, strlen(cases[i].merges));
        const tr_status status = tr_tokenizer_open(scratch, &t);
        if (cases[i].message) {
            refused(status, TR_ERR_DATA, cases[i].message);
            continue;
        }
        must(status);
        EXPECT(t, "abb", 0, 2, 1);
        tr_tokenizer_close(t);
    }
}

/* The token that ends a document is found by its text, also where it is searched in normalized
 * text, as in GPT-2's file, and the normalizer changes the text. */
static void test_normalized_end(void **state) {
    (void)state;
    static const char *const normalizers[] = {"null",
                                              "{\"type\": \"Prepend\", \"prepend\": \"\u2581\"}"};
    for (int i = 0; i < 2; i++) {
        char text[512];
        tr_tokenizer *t;
        const int length =
            snprintf(text, sizeof text,
                     "{\"added_tokens\": [{\"id\": 3, \"content\": \"<|endoftext|>\", \"special\": "
                     "true, \"normalized\": true}], \"normalizer\": %s, \"model\": {\"type\": "
                     "\"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}",
                     normalizers[i]);
        must(tr_tokenizer_open(written("end.json", text, (size_t)length), &t));
        assert_int_equal(tr_tokenizer_document_end(t), 3);
        assert_int_equal(tr_tokenizer_find(t, "<|endoftext|>"), 3);
        tr_tokenizer_close(t);
    }
}

/* A long text without a place to cut it takes the heap; the result is that of the rule. */
static void test_long_piece(void **state) {
    (void)state;
    enum { LENGTH = 1 << 20 };
    tr_tokenizer *t;
    tr_encoder *encoder;
    tr_token_list list = {0};
    char *text = malloc(LENGTH + 1);
    must(tr_tokenizer_open(written("small.json", small, sizeof small - 1), &t));
    must(tr_encoder_open(t, &encoder));
    for (size_t i = 0; i < LENGTH; i++) text[i] = "ab"[i % 2];
    must(tr_encoder_add(encoder, text, LENGTH, 0, &list));
    assert_int_equal(list.count, LENGTH / 4);
    for (size_t i = 0; i < list.count; i++) assert_int_equal(list.id[i], 7);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
    free(list.id);
    free(text);
}

/* Merges of a character's bytes may join characters: a long text of them is not cut. */
static void test_merged_bytes(void **state) {
    (void)state;
    enum { CHARACTERS = 300 };
    static const char spec[] =
        "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {\"<0xE2>\": 0,"
        " \"<0x98>\": 1, \"<0x83>\": 2, \"<0x98><0x83>\": 3, \"<0x98><0x83><0xE2>\": 4},"
        " \"merges\": [[\"<0x98>\", \"<0x83>\"], [\"<0x98><0x83>\", \"<0xE2>\"]]}}";
    tr_tokenizer *t;
    tr_encoder *encoder;
    tr_token_list list = {0};
    char text[3 * CHARACTERS + 1];
    for (int i = 0; i < CHARACTERS; i++) strcpy(text + 3 * i, "\xE2\x98\x83");
    must(tr_tokenizer_open(written("bytes.json", spec, sizeof spec - 1), &t));
    must(tr_encoder_open(t, &encoder));
    must(tr_encoder_add(encoder, text, sizeof text - 1, 0, &list));
    assert_int_equal(list.count, CHARACTERS + 1);
    assert_int_equal(list.id[0], 0);
    for (size_t i = 1; i < CHARACTERS; i++) assert_int_equal(list.id[i], 4);
    assert_int_equal(list.id[CHARACTERS], 3);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
    free(list.id);
}

/* Returns a tokenizer without merges that has such a model, and other members of the file. */
static tr_tokenizer *open_model(const char *others, const char *model) {
    tr_tokenizer *t;
    char *spec;
    const int length = asprintf(&spec, "{%s\"model\": {\"type\": \"BPE\", %s}}", others, model);
    assert_true(length > 0);
    must(tr_tokenizer_open(written("model.json", spec, (size_t)length), &t));
    free(spec);
    return t;
}

/* Expects that a text which is repeated has its ids again and again. */
static void expect_repeated(const tr_tokenizer *t, const char *text, size_t times,
                            const int32_t *id, size_t count) {
    tr_encoder *encoder;
    tr_token_list list = {0};
    const size_t length = strlen(text);
    char *all = malloc(times * length);
    for (size_t i = 0; i < times; i++) memcpy(all + i * length, text, length);
    must(tr_encoder_open(t, &encoder));
    must(tr_encoder_add(encoder, all, times * length, 0, &list));
    assert_int_equal(list.count, times * count);
    for (size_t i = 0; i < list.count; i++) assert_int_equal(list.id[i], id[i % count]);
    tr_encoder_close(encoder);
    free(list.id);
    free(all);
}

/* A token that only looks like the name of a byte is text. */
static void test_no_byte(void **state) {
    (void)state;
    tr_tokenizer *t = open_model("", "\"vocab\": {\"<0x-1>\": 0, \"a\": 1, \"<0x-1>a\": 2}, "
                                     "\"merges\": [[\"<0x-1>\", \"a\"]]");
    expect_repeated(t, "a", 600, (const int32_t[]){1}, 1);
    tr_tokenizer_close(t);
}

/* Where only some bytes have tokens, an unknown token comes behind the bytes of the characters that
 * follow it, also in long texts: the ids that tokenizers 0.23.3 gives. */
static void test_unknown_waits(void **state) {
    (void)state;
    tr_tokenizer *t = open_model("", "\"byte_fallback\": true, \"unk_token\": \"?\", \"vocab\": {"
                                     "\"?\": 0, \"<0xC3>\": 1, \"<0xA9>\": 2, \"a\": 3}, "
                                     "\"merges\": []");
    const int32_t id[] = {1, 2, 1, 2, 0, 3};
    expect_repeated(t, "\u00DF\u00E9\u00E9a", 1, id, 6);
    expect_repeated(t, "\u00DF\u00E9\u00E9a", 200, id, 6);
    tr_tokenizer_close(t);
}

/* A Metaspace of the scheme "first" marks the beginning of the text only: not a first piece behind
 * white space that was removed, as in tokenizers 0.23.3. */
static void test_first_piece(void **state) {
    (void)state;
    tr_tokenizer *t = open_model(
        "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
        "\"WhitespaceSplit\"}, {\"type\": \"Metaspace\", \"prepend_scheme\": \"first\"}]}, ",
        "\"vocab\": {\"a\": 0, \"\u2581\": 1, \"\u2581a\": 2}, \"merges\": [\"\u2581 a\"]");
    expect_repeated(t, "a", 1, (const int32_t[]){2}, 1);
    expect_repeated(t, "a a", 1, (const int32_t[]){2, 0}, 2);
    expect_repeated(t, " a a", 1, (const int32_t[]){0, 0}, 2);
    tr_tokenizer_close(t);
}

/* A text that Metaspace cuts into pieces can be cut there also where a later step puts a space in
 * front of every piece. */
static void test_cut_before_space(void **state) {
    (void)state;
    static const char text[] = "a a a a a";
    tr_tokenizer *t = open_model(
        "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
        "\"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"never\"}, {\"type\": "
        "\"ByteLevel\", \"use_regex\": false}]}, ",
        "\"vocab\": {\"a\": 0, \"\u0120\": 1, \"_\": 2}, \"merges\": []");
    tr_encoder *encoder;
    tr_token_list whole = {0}, parts = {0};
    size_t cut;
    unsigned rest;
    must(tr_encoder_open(t, &encoder));
    must(tr_encoder_add(encoder, text, sizeof text - 1, 0, &whole));
    must(tr_encoder_find_cut(encoder, text, sizeof text - 1, 2, 0, &cut, &rest));
    assert_int_equal(cut, 3);
    must(tr_encoder_add(encoder, text, cut, 0, &parts));
    must(tr_encoder_add(encoder, text + cut, sizeof text - 1 - cut, rest, &parts));
    assert_int_equal(parts.count, whole.count);
    assert_memory_equal(parts.id, whole.id, whole.count * sizeof *whole.id);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
    free(whole.id);
    free(parts.id);
}

/* Expects the pieces into which a Split cuts a text; each is a token. */
static void expect_pieces(const char *regex, const char *behavior, const char *text,
                          const int32_t *id, size_t count) {
    char *split;
    assert_true(
        asprintf(&split,
                 "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, "
                 "\"behavior\": \"%s\"}, ",
                 regex, behavior) > 0);
    tr_tokenizer *t =
        open_model(split, "\"ignore_merges\": true, \"vocab\": {\"a\": 0, \"b\": 1, \"\u4E2D\": 2, "
                          "\"\u3002\": 3, \"aa\": 4, \"ab\": 5, \"bb\": 6, \"aab\": 7, \"baa\": 8, "
                          "\"\u4E2D\u3002\": 9, \"a\u4E2D\": 10}, \"merges\": []");
    expect(t, text, 0, id, count);
    tr_tokenizer_close(t);
    free(split);
}
#define PIECES(regex, behavior, text, ...)                                                         \
    expect_pieces(regex, behavior, text, (const int32_t[]){__VA_ARGS__},                           \
                  sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* Expressions that Oniguruma reads otherwise than PCRE2, and matches of nothing, with the pieces of
 * tokenizers 0.23.3. A full stop is shared by Han and other scripts. */
static void test_pieces(void **state) {
    (void)state;
    PIECES("\\\\p{Han}+", "Isolated", "\u4E2D\u3002", 2, 3);
    PIECES("[\\\\p{Han}a]+", "Isolated", "a\u4E2D\u3002", 10, 3);
    PIECES("\\\\P{Han}+", "Isolated", "\u4E2D\u3002", 2, 3);
    PIECES("\\\\p{^Han}+", "Isolated", "\u4E2D\u3002", 2, 3);
    PIECES("[\\\\p{L}&&[^\\\\p{Han}]]+", "Isolated", "ab\u4E2D\u3002", 5, 9);
    PIECES("[ab&&[a]]+", "Isolated", "aab", 4, 1);
    PIECES("[^b[\u3002[c]]]+", "Isolated", "aab\u4E2D\u3002", 4, 1, 2, 3);
    PIECES("[]a]+", "Isolated", "aab", 4, 1);
    PIECES("a*", "Isolated", "bb", 1, 1);
    PIECES("a*", "MergedWithPrevious", "baab", 8, 1);
    PIECES("a*", "MergedWithNext", "baab", 1, 7);
    PIECES("a*", "MergedWithNext", "bb", 1, 1);
    PIECES("a*", "Contiguous", "bb", 1, 1);
    PIECES("a*", "Contiguous", "baab", 1, 4, 1);
}

/* A match of nothing at the end of another match is not replaced, as in tokenizers 0.23.3. */
static void test_replaced(void **state) {
    (void)state;
    tr_encoder *encoder;
    tr_token_list list = {0};
    const int32_t wanted[] = {1, 0, 1, 0, 1};
    tr_tokenizer *t =
        open_model("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a*\"}, "
                   "\"content\": \"-\"}, ",
                   "\"vocab\": {\"b\": 0, \"-\": 1}, \"merges\": []");
    must(tr_encoder_open(t, &encoder));
    must(tr_encoder_add(encoder, "baab", 4, 0, &list));
    assert_int_equal(list.count, 5);
    assert_memory_equal(list.id, wanted, sizeof wanted);
    tr_encoder_close(encoder);
    tr_tokenizer_close(t);
    free(list.id);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),          cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_llama_ranks),    cmocka_unit_test(test_save_killed),
        cmocka_unit_test(test_folder),         cmocka_unit_test(test_folder_texts),
        cmocka_unit_test(test_first_piece),    cmocka_unit_test(test_cut_before_space),
        cmocka_unit_test(test_normalized_end), cmocka_unit_test(test_long_piece),
        cmocka_unit_test(test_merged_bytes),   cmocka_unit_test(test_added_spaces),
        cmocka_unit_test(test_no_byte),        cmocka_unit_test(test_unknown_waits),
        cmocka_unit_test(test_pieces),         cmocka_unit_test(test_replaced),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
