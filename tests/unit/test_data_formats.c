/* Tests token files of other programs: files that the test writes by the formats' descriptions give
 * the same tokens when they are read; damaged files are refused with a sentence. */
#include "base/philox.h"
#include "data/data.h"
#include "layers/layer.h"
#include "support/scratch.h"
#include "support/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { TOKENS = 1000, VOCAB = 50257, MOST_BYTES = 20000 };

static uint64_t seed, draws;

static uint64_t draw(void) {
    return tr_mix64(seed ^ tr_mix64(draws++));
}

static int32_t token(int64_t i) {
    return (int32_t)(tr_mix64((uint64_t)i) % VOCAB);
}

/* --- files ------------------------------------------------------------------------------------ */

typedef struct image {
    unsigned char byte[MOST_BYTES];
    size_t size;
} image;

/* Appends a little-endian number of `width` bytes. */
static void put(image *to, uint64_t number, int width) {
    for (int i = 0; i < width; i++) to->byte[to->size++] = (unsigned char)(number >> 8 * i);
}

static void put_tokens(image *to, int64_t first, int64_t count, int width) {
    for (int64_t i = first; i < first + count; i++) put(to, (uint64_t)(int64_t)token(i), width);
}

static void write_image(const char *name, const image *from) {
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(from->byte, 1, from->size, f), from->size);
    assert_int_equal(fclose(f), 0);
}

static void llmc_image(int llama, int64_t first, int64_t count, image *to) {
    to->size = 0;
    put(to, llama ? 20240801 : 20240520, 4);
    put(to, llama ? 7 : 1, 4);
    put(to, (uint64_t)count, 4);
    while (to->size < 1024) put(to, 0, 4);
    put_tokens(to, first, count, llama ? 4 : 2);
}

/* Makes an index of sequences with these lengths; documents: how many sequences each has. */
static void index_image(int type, int width, const int *length, int sequences, const int *documents,
                        int count, int modes, image *to) {
    to->size = 0;
    memcpy(to->byte, "MMIDIDX\0\0", 9);
    to->size = 9;
    put(to, 1, 8);
    put(to, (uint64_t)type, 1);
    put(to, (uint64_t)sequences, 8);
    put(to, (uint64_t)count + 1, 8);
    for (int s = 0; s < sequences; s++) put(to, (uint64_t)length[s], 4);
    uint64_t at = 0;
    for (int s = 0; s < sequences; at += (uint64_t)(length[s++] * width)) put(to, at, 8);
    uint64_t end = 0;
    put(to, 0, 8);
    for (int d = 0; d < count; d++) put(to, end += (uint64_t)documents[d], 8);
    for (int s = 0; s < sequences && modes; s++) put(to, 0, 1);
}

enum { SEQUENCES = 6, DOCUMENTS = 4 };
static const int lengths[SEQUENCES] = {100, 0, 250, 150, 499, 1};
static const int documents[DOCUMENTS] = {2, 1, 0, 3}; /* end at 100, 350, 350, 1000 */

static void write_megatron(const char *prefix, int type, int width, int modes) {
    static image bin, idx;
    char name[40];
    bin.size = 0;
    put_tokens(&bin, 0, TOKENS, width);
    (void)snprintf(name, sizeof name, "%s.bin", prefix);
    write_image(name, &bin);
    index_image(type, width, lengths, SEQUENCES, documents, DOCUMENTS, modes, &idx);
    (void)snprintf(name, sizeof name, "%s.idx", prefix);
    write_image(name, &idx);
}

/* --- reading ---------------------------------------------------------------------------------- */

static tr_status open_vocab(const char *path, const char *format, bool packed, int64_t vocab,
                            tr_data **out) {
    const tr_data_options options = {.path = path,
                                     .format = format,
                                     .context = 16,
                                     .vocab = vocab,
                                     .seed = 3,
                                     .packed = packed,
                                     .document_end = packed ? VOCAB - 1 : -1};
    return tr_data_open(&options, out);
}

/* Fails unless the file has the tokens 0..TOKENS-1, in samples and read at once. */
static void has_tokens(const char *path, const char *format) {
    const tr_flow tokens_flow = {.name = TR_STEP_INPUT_TOKENS},
                  labels_flow = {.name = TR_STEP_INPUT_LABELS};
    int32_t tokens[16], labels[16], all[TOKENS];
    const tr_fetch wanted[] = {{&tokens_flow, tokens}, {&labels_flow, labels}};
    tr_data *data = NULL;
    if (open_vocab(path, format, false, VOCAB, &data) != TR_OK) fail_msg("%s", tr_error_message());
    assert_int_equal(tr_data_tokens(data, 0), TOKENS);
    for (int64_t i = 0; i < tr_data_windows_of(data, 0); i++) {
        int64_t start = tr_data_window_start(data, i, NULL);
        assert_int_equal(tr_data_sample(data, i, wanted, 2), TR_OK);
        for (int64_t t = 0; t < 16; t++) {
            assert_int_equal(tokens[t], token(start + t));
            assert_int_equal(labels[t], token(start + t + 1));
        }
    }
    assert_int_equal(tr_corpus_read(tr_data_corpus(data, 0), 0, TOKENS, all), TR_OK);
    for (int64_t i = 0; i < TOKENS; i++) assert_int_equal(all[i], token(i));
    tr_data_close(data);
}

static uint64_t hash_of(const char *path, const char *format) {
    tr_data *data;
    uint64_t hash;
    assert_int_equal(open_vocab(path, format, false, VOCAB, &data), TR_OK);
    assert_int_equal(tr_data_hash(data, 0, TOKENS, &hash), TR_OK);
    tr_data_close(data);
    return hash;
}

static void the_same_tokens_come_out_of_every_format(void **state) {
    (void)state;
    static image file;
    for (int width = 2; width <= 4; width += 2) {
        file.size = 0;
        put_tokens(&file, 0, TOKENS, width);
        write_image(width == 2 ? "u16" : "u32", &file);
    }
    has_tokens(path_of("u16"), "u16");
    has_tokens(path_of("u32"), "u32");
    for (int llama = 0; llama < 2; llama++) {
        llmc_image(llama, 0, TOKENS, &file);
        write_image("llmc", &file);
        has_tokens(path_of("llmc"), "llmc");
    }
    write_megatron("m", 8, 2, 0);
    has_tokens(path_of("m"), "megatron");
    has_tokens(path_of("m.bin"), "megatron");
    write_megatron("m", 4, 4, 1);
    has_tokens(path_of("m.idx"), "megatron");
    write_megatron("m", 5, 8, 0);
    has_tokens(path_of("m"), "megatron");
    uint64_t hash = hash_of(path_of("m"), "megatron");
    assert_int_equal(hash_of(path_of("u16"), "u16"), hash);
    assert_int_equal(hash_of(path_of("u32"), "u32"), hash);
    assert_int_equal(hash_of(path_of("llmc"), "llmc"), hash);
}

/* Shards of any size, as a list and as a pattern. */
static void files_are_joined(void **state) {
    (void)state;
    static image file;
    static const int64_t count[] = {400, 1, 5, 594};
    int64_t first = 0;
    char list[300] = "", name[32];
    for (int i = 0; i < 4; first += count[i++]) {
        llmc_image(0, first, count[i], &file);
        (void)snprintf(name, sizeof name, "shard %d.bin", i);
        write_image(name, &file);
        assert_true(tr_data_paths_quote(path_of(name), list, sizeof list));
    }
    has_tokens(list, "llmc");
    char pattern[80];
    (void)snprintf(pattern, sizeof pattern, "'%s'", path_of("shard *.bin"));
    has_tokens(pattern, "llmc");
    tr_data *data;
    assert_int_equal(open_vocab(path_of("none*.bin"), "llmc", false, VOCAB, &data), TR_ERR_NOFILE);
    assert_non_null(strstr(tr_error_message(), "no file matches '"));
}

/* Megatron's index says where documents end; empty documents have no end in the data. */
static void documents_end_where_the_index_says(void **state) {
    (void)state;
    const tr_flow starts_flow = {.name = TR_STEP_INPUT_DOCUMENT_STARTS},
                  labels_flow = {.name = TR_STEP_INPUT_LABELS};
    int32_t starts[16], labels[16];
    const tr_fetch wanted[] = {{&starts_flow, starts}, {&labels_flow, labels}};
    static const int64_t end[] = {100, 350, 1000};
    tr_data *data;
    int found = 0;
    write_megatron("m", 8, 2, 0);
    write_megatron("n", 8, 2, 0);
    for (int files = 1; files <= 2; files++) {
        char list[200] = "";
        assert_true(tr_data_paths_quote(path_of("m"), list, sizeof list));
        if (files == 2) assert_true(tr_data_paths_quote(path_of("n"), list, sizeof list));
        assert_int_equal(open_vocab(list, "megatron", true, VOCAB, &data), TR_OK);
        for (int64_t i = 0; i < 3 * tr_data_windows_of(data, 0); i++) {
            int64_t start = tr_data_window_start(data, i, NULL), begin = 0;
            assert_int_equal(tr_data_sample(data, i, wanted, 2), TR_OK);
            for (int64_t t = 0; t < 16; t++) {
                int64_t at = start + t + 1; /* after token t */
                bool last = false;
                for (int e = 0; e < 3; e++) last |= at % TOKENS == end[e] % TOKENS;
                assert_int_equal(labels[t], last ? -1 : token((start + t + 1) % TOKENS));
                assert_int_equal(starts[t], begin);
                if (last) begin = t + 1;
                found += last;
            }
        }
        tr_data_facts facts;
        assert_int_equal(tr_data_examine(data, 0, 1, &facts), TR_OK);
        assert_int_equal(facts.documents, DOCUMENTS * files);
        tr_data_close(data);
    }
    assert_true(found > 5);
}

/* The header of a shard of llm.c says the token between documents. A key goes before it, and so
 * does the tokenizer of GPT-2. */
static void shards_know_the_token_between_documents(void **state) {
    (void)state;
    static image file;
    static const int32_t separator[] = {50256, 128000};
    for (int llama = 0; llama < 2; llama++) {
        tr_data_options options = {.path = path_of("llmc"),
                                   .format = "llmc",
                                   .context = 16,
                                   .vocab = 128256,
                                   .packed = true,
                                   .document_end = -1};
        tr_data *data;
        llmc_image(llama, 0, TOKENS, &file);
        write_image("llmc", &file);
        assert_int_equal(tr_data_open(&options, &data), TR_OK);
        assert_int_equal(tr_data_document_end(data), separator[llama]);
        tr_data_close(data);
        options.document_end = 9;
        assert_int_equal(tr_data_open(&options, &data), TR_OK);
        assert_int_equal(tr_data_document_end(data), 9);
        tr_data_close(data);
        options.document_end = -1;
        tr_tokenizer *t;
        assert_int_equal(tr_tokenizer_open(TRIREME_TEST_GOLDEN "/tokenizers/gpt2.json", &t), TR_OK);
        options.tokenizer = t;
        assert_int_equal(tr_data_open(&options, &data), TR_OK);
        assert_int_equal(tr_data_document_end(data),
                         llama ? separator[1] : tr_tokenizer_document_end(t));
        tr_data_close(data);
        tr_tokenizer_close(t);
        options.tokenizer = NULL;
        options.vocab = separator[llama];
        assert_int_equal(tr_data_open(&options, &data), TR_ERR_CONFIG);
        assert_non_null(strstr(tr_error_message(), "packed needs data.document_end"));
        options.packed = false;
        assert_int_equal(tr_data_open(&options, &data), TR_OK);
        assert_int_equal(tr_data_document_end(data), -1);
        tr_data_close(data);
    }
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refuses(const char *path, const char *format, int64_t vocab, tr_status code,
                    const char *why) {
    tr_data *data;
    int32_t all[TOKENS];
    tr_status status = open_vocab(path, format, true, vocab, &data);
    if (status == TR_OK) {
        status = tr_corpus_read(tr_data_corpus(data, 0), 0, TOKENS, all);
        tr_data_close(data);
    }
    assert_int_equal(status, code);
    if (!strstr(tr_error_message(), why)) fail_msg("'%s' is not '%s'", tr_error_message(), why);
}

static void tokens_beyond_the_vocabulary_are_refused(void **state) {
    (void)state;
    static image file;
    char why[200];
    int64_t at = 0;
    while (token(at) < 300) at++;
    file.size = 0;
    put_tokens(&file, 0, TOKENS, 2);
    write_image("u16", &file);
    (void)snprintf(why, sizeof why,
                   "u16' has %d at token %lld (byte %lld), and model.vocab 300 has tokens 0 to 299",
                   token(at), (long long)at, (long long)(2 * at));
    refuses(path_of("u16"), "u16", 300, TR_ERR_CONFIG, why);
    put(&file, 7, 1);
    write_image("u16", &file);
    refuses(path_of("u16"), "u16", VOCAB, TR_ERR_DATA, "has 2001 bytes, not a multiple of 2");
    memcpy(file.byte, "\x93NUMPY\x01", 7);
    file.size = 2000;
    write_image("npy", &file);
    refuses(path_of("npy"), "u16", 65536, TR_ERR_DATA,
            "is of numpy.save (.npy), and data.format u16");
    memcpy(file.byte, "\x1f\x8b\x08", 3);
    write_image("packed", &file);
    refuses(path_of("packed"), "bytes", VOCAB, TR_ERR_DATA, "is compressed by gzip, and data.fo");
    memcpy(file.byte, "\x28\xb5\x2f\xfd", 4);
    write_image("packed", &file);
    refuses(path_of("packed"), "bytes", VOCAB, TR_ERR_DATA, "is compressed by zstd, and data.fo");
    write_megatron("m", 4, 4, 0);
    static const char *const names[] = {"m", "m.bin", "m.idx"};
    for (int i = 0; i < 3; i++)
        refuses(path_of(names[i]), "bytes", VOCAB, TR_ERR_DATA,
                "' has tokens, and data.format bytes would learn their bytes: set data.format to "
                "megatron (data.path)");
    FILE *f = fopen(path_of("m.bin"), "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite("\xff\xff\xff\xff", 1, 4, f), 4);
    assert_int_equal(fclose(f), 0);
    refuses(path_of("m"), "megatron", VOCAB, TR_ERR_DATA, "m.bin' has -1 at token 0 (byte 0)");
}

static void damaged_headers_are_refused(void **state) {
    (void)state;
    static image file;
    const char *llmc = "llmc";
    llmc_image(0, 0, TOKENS, &file);
    file.byte[0] ^= 2;
    write_image(llmc, &file);
    refuses(path_of(llmc), llmc, VOCAB, TR_ERR_DATA,
            "byte 0 holds 20240522, not 20240520 or 20240801 (it is a file of llm.c's multiple "
            "choice)");
    file.byte[0] ^= 2;
    file.byte[4] = 2;
    write_image(llmc, &file);
    refuses(path_of(llmc), llmc, VOCAB, TR_ERR_DATA, "a shard of version 2 (byte 4); version 1 is");
    file.byte[4] = 1;
    file.byte[8] ^= 1;
    write_image(llmc, &file);
    refuses(
        path_of(llmc), llmc, VOCAB, TR_ERR_DATA,
        "has 3024 bytes, but its header (byte 8) says 1001 tokens, which take 3026 bytes: it was "
        "cut off");
    file.byte[8] = 0;
    write_image(llmc, &file);
    refuses(path_of(llmc), llmc, VOCAB, TR_ERR_DATA, "bytes: it is damaged, or is not a shard");
    file.size = 1000;
    write_image(llmc, &file);
    refuses(path_of(llmc), llmc, VOCAB, TR_ERR_DATA, "fewer than the header of 1024 bytes");

    write_megatron("m", 6, 8, 0);
    refuses(path_of("m"), "megatron", VOCAB, TR_ERR_DATA, "a token has type 6 (byte 17)");
    write_megatron("m", 8, 2, 0);
    assert_int_equal(truncate(path_of("m.bin"), 1998), 0);
    refuses(path_of("m"), "megatron", VOCAB, TR_ERR_DATA, "m.bin' has 1998 bytes, and its index '");
    assert_int_equal(unlink(path_of("m.idx")), 0);
    refuses(path_of("m"), "megatron", VOCAB, TR_ERR_DATA, "m.idx' cannot be opened");
    write_megatron("m", 8, 2, 0);
    assert_int_equal(unlink(path_of("m.bin")), 0);
    refuses(path_of("m"), "megatron", VOCAB, TR_ERR_DATA, "m.idx' exists: the two belong together");
    assert_int_equal(unlink(path_of("m.idx")), 0);
    refuses(path_of("m"), "megatron", VOCAB, TR_ERR_NOFILE, "m.bin' cannot be opened");
}

/* No format waits for a writer of a pipe. */
static void pipes_are_refused(void **state) {
    (void)state;
    static const char *const formats[][2] = {
        {"u16", "pipe.bin"},  {"u32", "pipe.bin"}, {"llmc", "pipe.bin"},     {"megatron", "pipe"},
        {"text", "pipe.bin"}, {"megatron", "m"},   {"instruct", "pipe.json"}};
    tr_tokenizer *t;
    (void)alarm(300);
    assert_int_equal(tr_tokenizer_open(TRIREME_TEST_GOLDEN "/tokenizers/gpt2.json", &t), TR_OK);
    write_megatron("m", 8, 2, 0);
    assert_int_equal(unlink(path_of("m.idx")), 0);
    assert_int_equal(mkfifo(path_of("m.idx"), 0600), 0);
    assert_int_equal(mkfifo(path_of("pipe.bin"), 0600), 0);
    assert_int_equal(mkfifo(path_of("pipe.json"), 0600), 0);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const tr_data_options options = {.path = path_of(formats[i][1]),
                                         .format = formats[i][0],
                                         .tokenizer = t,
                                         .context = 16,
                                         .vocab = VOCAB,
                                         .packed = true,
                                         .document_end = 0};
        tr_data *data;
        assert_int_equal(tr_data_open(&options, &data), TR_ERR_DATA);
        assert_non_null(strstr(tr_error_message(), "is a pipe: name a regular file"));
    }
    assert_int_equal(unlink(path_of("m.idx")), 0);
    tr_tokenizer_close(t);
    (void)alarm(0);
}

/* An index that is cut off at any byte must not be read beyond its end. */
static void an_index_cut_anywhere_is_refused(void **state) {
    (void)state;
    static image idx;
    tr_data *data;
    write_megatron("m", 8, 2, 0);
    index_image(8, 2, lengths, SEQUENCES, documents, DOCUMENTS, 0, &idx);
    for (size_t whole = idx.size, cut = 0; cut < whole; cut++) {
        idx.size = cut;
        write_image("m.idx", &idx);
        assert_int_equal(open_vocab(path_of("m"), "megatron", true, VOCAB, &data), TR_ERR_DATA);
        assert_non_null(strstr(tr_error_message(), "m.idx'"));
    }
}

/* A file with damaged bytes is opened, or refused with a sentence that names it. An opened file can
 * be read. */
static void damaged_files_never_crash(void **state) {
    (void)state;
    static image good[2], bad;
    tr_data *data;
    const int64_t rounds = 2 * tr_test_rounds(1000);
    int64_t opened = 0;
    write_megatron("m", 8, 2, 0);
    index_image(8, 2, lengths, SEQUENCES, documents, DOCUMENTS, 0, &good[0]);
    llmc_image(0, 0, TOKENS, &good[1]);
    for (int64_t round = 0; round < rounds; round++) {
        const int which = (int)(round % 2);
        const char *name = which ? "llmc" : "m.idx", *open = which ? "llmc" : "m";
        const size_t within = which ? 16 : good[0].size;
        bad = good[which];
        for (uint64_t n = 1 + draw() % 3; n > 0; n--) {
            static const unsigned char likely[] = {0, 1, 0x7f, 0x80, 0xff};
            bad.byte[draw() % within] =
                draw() % 2 ? likely[draw() % sizeof likely] : (unsigned char)draw();
        }
        if (draw() % 4 == 0) bad.size = draw() % bad.size;
        write_image(name, &bad);
        tr_status status =
            open_vocab(path_of(open), which ? "llmc" : "megatron", true, VOCAB, &data);
        if (status == TR_OK) {
            int32_t some[17];
            const int64_t tokens = tr_data_tokens(data, 0);
            opened++;
            status = tr_corpus_read(tr_data_corpus(data, 0), tokens - 17, 17, some);
            assert_true(status == TR_OK || status == TR_ERR_DATA); /* beyond the vocabulary */
            int64_t end = 0;
            while (end < tokens && end != INT64_MAX)
                end = tr_corpus_next_end(tr_data_corpus(data, 0), end);
            assert_true(end == tokens || end == INT64_MAX);
            tr_data_close(data);
        } else if (status != TR_ERR_DATA || !strstr(tr_error_message(), scratch)) {
            fail_msg("round %lld: %d, %s", (long long)round, (int)status, tr_error_message());
        }
    }
    assert_in_range(opened, rounds / 200, rounds - rounds / 20);
}

/* --- mixtures --------------------------------------------------------------------------------- */

/* Two corpora with weights: each sample is the next one of its corpus, which visits every window
 * once an epoch. */
static void mixtures_take_turns(void **state) {
    (void)state;
    static image file;
    int32_t tokens[16];
    const tr_flow flow = {.name = TR_STEP_INPUT_TOKENS};
    const tr_fetch wanted = {&flow, tokens};
    char text[200], *names[] = {"a", "b"};
    tr_data *data, *again;
    int64_t taken[TR_DATA_PARTS], count[2] = {0}, now[2];
    file.size = 0;
    put_tokens(&file, 0, 600, 2);
    write_image(names[0], &file);
    file.size = 0;
    put_tokens(&file, 600, 400, 2);
    write_image(names[1], &file);
    (void)snprintf(text, sizeof text, "0.75 %s 0.25 %s", path_of("a"), path_of("b"));
    assert_int_equal(open_vocab(text, "u16", false, VOCAB, &data), TR_OK);
    assert_int_equal(open_vocab(text, "u16", false, VOCAB, &again), TR_OK);
    assert_int_equal(tr_data_parts(data), 2);
    for (int64_t i = 0; i < 400; i++) {
        int part;
        tr_data_taken(data, i, taken);
        assert_memory_equal(taken, count, sizeof count);
        assert_int_equal(tr_data_extent_at(data, 0, i).epoch,
                         count[0] / tr_data_windows_of(data, 0));
        int64_t start = tr_data_window_start(data, i, &part);
        assert_int_equal(tr_data_sample(data, i, &wanted, 1), TR_OK);
        assert_int_equal(tokens[3], token(600 * part + start + 3));
        count[part]++;
        assert_true(llabs(4 * count[0] - 3 * (i + 1)) < 4);
        /* In another order, from a place in the middle. */
        int64_t other = (i * 7919) % 400;
        int was;
        int64_t from = tr_data_window_start(again, other, &was);
        assert_int_equal(tr_data_window_start(again, other, &part), from);
    }
    /* From sample 100 on with other weights: the corpora's own sequences continue. */
    tr_data_taken(data, 100, taken);
    assert_true(taken[0] == 75 && taken[1] == 25);
    (void)snprintf(text, sizeof text, "1 %s 1 %s", path_of("a"), path_of("b"));
    tr_data_close(again);
    assert_int_equal(open_vocab(text, "u16", false, VOCAB, &again), TR_OK);
    tr_data_mix_from(again, 100, taken);
    memcpy(now, taken, sizeof now);
    for (int64_t i = 100; i < 200; i++) {
        int part, same;
        int64_t start = tr_data_window_start(again, i, &part);
        /* The corpus's same sample in the first sequence. */
        int64_t j = 0, seen = 0;
        for (; j < 400; j++) {
            (void)tr_data_window_start(data, j, &same);
            if (same == part && seen++ == now[part]) break;
        }
        if (j < 400) assert_int_equal(tr_data_window_start(data, j, NULL), start);
        now[part]++;
    }
    assert_true(now[0] == 125 && now[1] == 75);
    tr_data_close(data);
    tr_data_close(again);
}

/* Returns the corpus and the number of a held-out window of two corpora, by its first token. */
static int64_t held_window(tr_data *data, int64_t index, int *part) {
    int32_t tokens[16];
    const tr_flow flow = {.name = TR_STEP_INPUT_TOKENS};
    const tr_fetch wanted = {&flow, tokens};
    assert_int_equal(tr_data_validation_sample(data, index, &wanted, 1), TR_OK);
    for (*part = 0; *part < 2; ++*part)
        for (int64_t w = 0; w < tr_data_held_windows(data, *part); w++) {
            const int64_t start = tr_data_train_tokens(data, *part) + 16 * w;
            int t = 0;
            while (t < 16 && tokens[t] == token(600 * *part + start + t)) t++;
            if (t == 16) return w;
        }
    fail_msg("window %d is not a held-out one", (int)index);
    return -1;
}

/* The held-out windows of a mixture: in the proportions of the weights until a corpus has no more;
 * each once, in its corpus's order, whatever was read before. */
static void each_held_window_of_a_mixture_is_read_once(void **state) {
    (void)state;
    static image file;
    char text[200];
    tr_data *data;
    file.size = 0;
    put_tokens(&file, 0, 600, 2);
    write_image("a", &file);
    file.size = 0;
    put_tokens(&file, 600, 400, 2);
    write_image("b", &file);
    (void)snprintf(text, sizeof text, "0.25 %s 0.75 %s", path_of("a"), path_of("b"));
    const tr_data_options options = {.path = text,
                                     .format = "u16",
                                     .document_end = -1,
                                     .validation = 0.5,
                                     .context = 16,
                                     .seed = 5,
                                     .vocab = VOCAB};
    assert_int_equal(tr_data_open(&options, &data), TR_OK);
    const int64_t all = tr_data_validation_windows(data), of_b = tr_data_held_windows(data, 1);
    assert_true(all == 18 + 12 && of_b == 12);
    int64_t count[2] = {0, 0}, window[30];
    int part[30];
    for (int64_t i = 0; i < all; i++) {
        window[i] = held_window(data, i, &part[i]);
        assert_int_equal(window[i], count[part[i]]++);
        if (count[1] < of_b) assert_true(llabs(4 * count[1] - 3 * (i + 1)) < 4);
    }
    assert_true(count[0] == 18 && count[1] == 12);
    for (int64_t i = 0; i < all; i++) { /* in another order */
        const int64_t other = (i * 7) % all;
        int k;
        assert_int_equal(held_window(data, other, &k), window[other]);
        assert_int_equal(k, part[other]);
    }
    tr_data_close(data);
}

/* Validation from a file of its own: all of it, in order, and training reads the whole corpus. */
static void validation_may_be_a_file(void **state) {
    (void)state;
    static image file;
    int32_t tokens[16];
    const tr_flow flow = {.name = TR_STEP_INPUT_TOKENS};
    const tr_fetch wanted = {&flow, tokens};
    char path[64], held[64];
    file.size = 0;
    put_tokens(&file, 0, 500, 2);
    (void)strcpy(path, path_of("train"));
    write_image("train", &file);
    file.size = 0;
    put_tokens(&file, 500, 100, 2);
    (void)strcpy(held, path_of("val"));
    write_image("val", &file);
    tr_data_options options = {.path = path,
                               .format = "u16",
                               .validation_path = held,
                               .context = 16,
                               .vocab = VOCAB,
                               .document_end = -1};
    tr_data *data;
    assert_int_equal(tr_data_open(&options, &data), TR_OK);
    assert_int_equal(tr_data_train_tokens(data, 0), 500);
    assert_int_equal(tr_data_validation_windows(data), 99 / 16);
    for (int64_t i = 0; i < 6; i++) {
        assert_int_equal(tr_data_validation_sample(data, i, &wanted, 1), TR_OK);
        assert_int_equal(tokens[5], token(500 + i * 16 + 5));
    }
    tr_data_close(data);
    options.validation_path = "no-such-file";
    assert_int_equal(tr_data_open(&options, &data), TR_ERR_NOFILE);
}

int main(void) {
    seed = tr_test_seed(5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens_come_out_of_every_format),
        cmocka_unit_test(files_are_joined),
        cmocka_unit_test(shards_know_the_token_between_documents),
        cmocka_unit_test(documents_end_where_the_index_says),
        cmocka_unit_test(tokens_beyond_the_vocabulary_are_refused),
        cmocka_unit_test(damaged_headers_are_refused),
        cmocka_unit_test(pipes_are_refused),
        cmocka_unit_test(an_index_cut_anywhere_is_refused),
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(mixtures_take_turns),
        cmocka_unit_test(each_held_window_of_a_mixture_is_read_once),
        cmocka_unit_test(validation_may_be_a_file),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
