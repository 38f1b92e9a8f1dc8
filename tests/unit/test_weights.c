/* Files of weights of other programs: parts of tensors are those of the whole, every value of 16
 * bits survives; headers that break a rule, and random damage, also of configs, get one
 * sentence. */
#include "base/half.h"
#include "base/text.h"
#include "ckpt/weights.h"
#include "config/adapter.h"
#include "config/hf.h"
#include "support/scratch.h"
#include "support/seed.h"
#include "text/tokenizer.h"
#include "train/origin.h"

#include <inttypes.h>
#include <math.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t seed;

/* Boxes of any place and size are those of the whole tensor. */
static void boxes_are_parts_of_the_tensor(void **state) {
    (void)state;
    enum { ROWS = 300, COLUMNS = 1000 };
    uint64_t random = seed;
    float *all = malloc(sizeof(float) * ROWS * COLUMNS),
          *part = malloc(sizeof(float) * ROWS * COLUMNS);
    uint16_t *half = malloc(sizeof(uint16_t) * ROWS * COLUMNS);
    char text[256] = "";
    for (int i = 0; i < ROWS * COLUMNS; i++) half[i] = (uint16_t)(i * 7);
    int n = snprintf(text + 8, sizeof text - 8,
                     "{\"t\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}", ROWS,
                     COLUMNS, 2 * ROWS * COLUMNS);
    text[0] = (char)n;
    write_file(path_of("t.safetensors"), text, 8 + (size_t)n);
    FILE *f = fopen(path_of("t.safetensors"), "a");
    assert_int_equal(fwrite(half, 2, ROWS * COLUMNS, f), ROWS * COLUMNS);
    (void)fclose(f);
    tr_weights w;
    must(tr_weights_open(path_of("t.safetensors"), &w));
    for (int round = 0; round < 60; round++) {
        tr_weight t = w.tensor[0];
        t.transposed = round % 3 == 2;
        if (t.transposed) t.shape[0] = COLUMNS, t.shape[1] = ROWS;
        const int64_t height = t.shape[0], width = t.shape[1];
        tr_box box = {.extent = {tr_up_to(&random, height), tr_up_to(&random, width), 1, 1}};
        if (round % 4 == 0) box.extent[1] = width;
        for (int d = 0; d < 2; d++)
            box.offset[d] = tr_up_to(&random, t.shape[d] - box.extent[d] + 1) - 1;
        const int64_t volume = box.extent[0] * box.extent[1];
        const int64_t first = tr_up_to(&random, volume) - 1,
                      count = tr_up_to(&random, volume - first);
        must(tr_weights_read(&w, &t, &box, first, count, part));
        for (int64_t i = 0; i < count; i++) {
            const int64_t row = box.offset[0] + (first + i) / box.extent[1];
            const int64_t column = box.offset[1] + (first + i) % box.extent[1];
            const int64_t at = t.transposed ? column * height + row : row * width + column;
            const uint32_t want = (uint32_t)half[at] << 16;
            if (tr_float_bits(part[i]) != want) fail_msg("round %d, element %" PRId64, round, i);
        }
    }
    tr_weights_close(&w);
    free(all);
    free(part);
    free(half);
}

/* Returns the bytes that this process has read. */
static int64_t bytes_read(void) {
    int64_t bytes = -1;
    FILE *f = fopen("/proc/self/io", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "rchar: %" SCNd64, &bytes), 1);
    (void)fclose(f);
    return bytes;
}

/* Each of several tensor ranks reads only its rows or columns of a matrix. */
static void ranks_read_only_their_boxes(void **state) {
    (void)state;
    enum { ROWS = 512, COLUMNS = 8192, BYTES = 2 * ROWS * COLUMNS };
    char text[256] = "";
    const int n = snprintf(text + 8, sizeof text - 8,
                           "{\"t\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}",
                           ROWS, COLUMNS, BYTES);
    text[0] = (char)n;
    write_file(path_of("t.safetensors"), text, 8 + (size_t)n);
    assert_int_equal(truncate(path_of("t.safetensors"), 8 + n + BYTES), 0);
    float *part = malloc(sizeof(float) * ROWS * COLUMNS);
    tr_weights w;
    must(tr_weights_open(path_of("t.safetensors"), &w));
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int d = 0; d < 2; d++) {
            const tr_weight *t = &w.tensor[0];
            tr_box box = {.extent = {ROWS, COLUMNS, 1, 1}};
            box.extent[d] /= ranks;
            box.offset[d] = (ranks - 1) * box.extent[d];
            const int64_t count = box.extent[0] * box.extent[1], half = count / 2;
            const int64_t before = bytes_read();
            must(tr_weights_read(&w, t, &box, 0, half, part));
            must(tr_weights_read(&w, t, &box, half, count - half, part + half));
            const int64_t bytes = bytes_read() - before;
            assert_true(bytes >= 2 * count);
            if (bytes * 20 > 2 * count * 21)
                fail_msg("%d ranks, dimension %d: %" PRId64 " bytes were read for %" PRId64, ranks,
                         d, bytes, 2 * count);
        }
    tr_weights_close(&w);
    free(part);
}

static void sixteen_bits_survive(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        assert_int_equal(tr_half_round(tr_half_widen((uint16_t)h)), h);
        assert_int_equal(tr_bfloat_round(tr_bits_float(h << 16)), h);
    }
    assert_true(tr_half_widen(0x3c00) == 1 && tr_half_widen(0x0001) == 0x1p-24f);
    assert_true(tr_half_widen(0x7bff) == 65504 && tr_half_widen(0x83ff) == -0x1.ff8p-15f);
    /* Between two neighbours the nearer one, at the middle the even one. */
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float low = tr_half_widen((uint16_t)h), high = tr_half_widen((uint16_t)(h + 1));
        const float middle = (low + high) / 2;
        assert_int_equal(tr_half_round(middle), h + (h & 1));
        assert_int_equal(tr_half_round(nextafterf(middle, 0)), h);
        assert_int_equal(tr_half_round(-nextafterf(middle, INFINITY)), 0x8000 | (h + 1));
    }
    assert_int_equal(tr_half_round(65519.996f), 0x7bff);
    assert_int_equal(tr_half_round(65520), 0x7c00);
    assert_int_equal(tr_half_round(tr_bits_float(0x7f800001)) & 0x7fff, 0x7e00); /* still a NaN */
    assert_int_equal(tr_bfloat_round(tr_bits_float(0xff800001)), 0xffc0);
}

/* --- bad input -------------------------------------------------------------------------------- */

static void write_header(const char *text, size_t data) {
    char file[4096] = {0};
    const size_t n = strlen(text);
    for (int i = 0; i < 8; i++) file[i] = (char)(n >> (8 * i) & 0xff);
    memcpy(file + 8, text, n);
    write_file(path_of("x.safetensors"), file, 8 + n + data);
}

static void bad_headers_are_refused(void **state) {
    (void)state;
#define T(dtype, shape, from, to)                                                                  \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"
    static const struct {
        const char *header;
        size_t data;
        const char *why;
    } bad[] = {
        {" {}", 0, "does not begin with '{'"},
        {"{", 0, "not valid JSON"},
        {"{}x", 0, "other text follows"},
        {"{}", 1, "but the file has 11 bytes: it is damaged; copy it again"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8, "given twice"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 2, 6) "}", 6,
         "b overlaps the tensor before it in the file, which is damaged: copy it again"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 5, 9) "}", 9,
         "b begins after bytes"},
        {"{\"a\":" T("F32", "[1]", 4, 8) "}", 8, "a begins after bytes"},
        {"{\"a\":" T("F32", "[2]", 0, 4) "}", 4, "bytes of its shape and type"},
        {"{\"a\":" T("F4", "[1]", 0, 1) "}", 1, "bytes of its shape and type"},
        {"{\"a\":" T("F32", "[1]", 0, 8) "}", 4,
         "beyond the end of the file: it was cut off or is damaged; copy it again"},
        {"{\"a\":" T("F32", "[1]", 4, 0) "}", 4, "beyond the end"},
        {"{\"a\":" T("F32", "[1]", -4, 0) "}", 4, "needs two integers"},
        {"{\"a\":" T("F32", "[4294967296,4294967296,0]", 0, 0) "}", 0, "more elements"},
        {"{\"a\":" T("F32", "[4611686018427387904]", 0, 0) "}", 0, "not an integer"},
        {"{\"a\":" T("F32", "[4503599627370496,1024]", 0, 0) "}", 0, "bytes of its shape"},
        {"{\"a\":" T("F32", "[1.5]", 0, 4) "}", 4, "not an integer"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "8 dimensions"},
        {"{\"a\":" T("F31", "[1]", 0, 4) "}", 4, "\"dtype\""},
        {"{\"a\":7}", 0, "an object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, "data_offsets"},
        {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__"},
        {"[]", 0, "does not begin"},
    };
    tr_weights w;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_header(bad[i].header, bad[i].data);
        refused(tr_weights_open(path_of("x.safetensors"), &w), TR_ERR_DATA, bad[i].why);
        tr_weights_close(&w);
    }
    write_header("{\"b\":" T("F16", "[0,5]", 0, 0) ",\"a\":" T("I64", "[]", 0, 8) "}   ", 8);
    must(tr_weights_open(path_of("x.safetensors"), &w));
    assert_int_equal(w.count, 2);
    tr_weights_close(&w);
    write_file(path_of("x.safetensors"), "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refused(tr_weights_open(path_of("x.safetensors"), &w), TR_ERR_DATA,
            "header of 18446744073709551615");
    tr_weights_close(&w);
    write_file(path_of("x.safetensors"), "\2\0\0", 3);
    refused(tr_weights_open(path_of("x.safetensors"), &w), TR_ERR_DATA,
            "has 3 bytes, fewer than the 8 with which safetensors begin: it was cut off");
    tr_weights_close(&w);
    refused(tr_weights_open(path_of("nothing"), &w), TR_ERR_NOFILE,
            "cannot be opened: No such file or directory; name the folder of a model");
    tr_weights_close(&w);
}

static void indexes_stay_in_their_folder(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "not in a file of this folder"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "not in a file of this folder"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "not in a file of this folder"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\\u0000/x\"}}", "byte 33 has a zero character"},
        {"{\"weight_map\":{\"a\":7}}", "not in a file of this folder"},
        {"{\"weight_map\":{\"a\":\"missing.safetensors\"}}", "there is no file"},
        {"{\"weight_map\":{\"b\":\"1.safetensors\"}}", "not in the file that it names"},
        {"{\"weight_map\":{}}", "neither"},
        {"{\"weight_map\":[]}", "must be an object"},
    };
    tr_weights w;
    assert_int_equal(mkdir(path_of("folder"), 0777), 0);
    refused(tr_weights_open(path_of("folder"), &w), TR_ERR_DATA, "holds neither");
    tr_weights_close(&w);
    write_header("{\"a\":" T("F32", "[1]", 0, 4) "}", 4);
    assert_int_equal(rename(path_of("x.safetensors"), path_of("folder/1.safetensors")), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(path_of("folder/model.safetensors.index.json"), bad[i][0], strlen(bad[i][0]));
        tr_status status = tr_weights_open(path_of("folder"), &w);
        if (strcmp(bad[i][1], "neither")) refused(status, TR_ERR_DATA, bad[i][1]);
        tr_weights_close(&w);
    }
    char index[5000];
    (void)snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%04096d\"}}", 0);
    write_file(path_of("folder/model.safetensors.index.json"), index, strlen(index));
    refused(tr_weights_open(path_of("folder"), &w), TR_ERR_DATA, "not in a file of this folder");
    tr_weights_close(&w);
    remove_all(path_of("folder"));
}

/* One file is open at a time, and a file that is opened again must be the one it was. */
static void files_are_opened_as_needed(void **state) {
    (void)state;
    enum { FILES = 40 };
    static const tr_box one = {.extent = {1, 1, 1, 1}};
    struct rlimit limit, few;
    char index[FILES * 40 + 40] = "{\"weight_map\":{", name[64];
    tr_weights w;
    assert_int_equal(mkdir(path_of("folder"), 0777), 0);
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(name, sizeof name, "{\"t%02d\":" T("F32", "[1]", 0, 4) "}", i);
        write_header(name, 4);
        (void)snprintf(name, sizeof name, "folder/%02d", i);
        assert_int_equal(rename(path_of("x.safetensors"), path_of(name)), 0);
        tr_text_add(index, sizeof index, "%s\"t%02d\":\"%02d\"", i ? "," : "", i, i);
    }
    tr_text_add(index, sizeof index, "}}");
    write_file(path_of("folder/model.safetensors.index.json"), index, strlen(index));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){.rlim_cur = FILES / 2, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    must(tr_weights_open(path_of("folder"), &w));
    float value;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < FILES; i++) must(tr_weights_read(&w, &w.tensor[i], &one, 0, 1, &value));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    write_header("{\"t00\":" T("F32", "[1]", 0, 4) "}", 4);
    assert_int_equal(rename(path_of("x.safetensors"), path_of("folder/00")), 0);
    refused(tr_weights_read(&w, &w.tensor[0], &one, 0, 1, &value), TR_ERR_DATA, "was replaced");
    must(tr_weights_read(&w, &w.tensor[1], &one, 0, 1, &value));
    tr_weights_close(&w);
    remove_all(path_of("folder"));
}

/* Users have pickles, GGUF files, pointers, downloads that failed, and links that lead nowhere. */
static void other_formats_get_a_remedy(void **state) {
    (void)state;
    static const struct {
        const char *name, *bytes, *part;
    } file[] = {
        {"a.gguf", "GGUF\3 and more", "of the format GGUF"},
        {"a.bin", "PK\3\4 and more", "save_pretrained"},
        {"a.pt", "\x80\2 and more", "save_pretrained"},
        {"a.safetensors", "version https://git-lfs", "git lfs pull"},
        {"b.safetensors", "<!DOCTYPE html>", "web page"},
        {"a.json", "{\n  \"a\": 1}", "name the model's folder"},
        {"model-00001-of-00003.safetensors", "anything", "one of the 3 files of a model"},
        {"best-of-2.safetensors", "anything", "a header of"},
        {"c.safetensors", "nothing known", "a header of"},
    };
    static const char *const folder[][2] = {
        {"m.gguf", "'m.gguf' is a file of the format GGUF"},
        {"pytorch_model-00001-of-00002.bin", "save_pretrained"},
        {"consolidated.00.pth", "save_pretrained"},
        {"weights.safetensors", "name it instead of the folder"},
        {"model-00001-of-00002.safetensors", "without its index"},
        {"adapter_model.safetensors", "an adapter"},
    };
    tr_weights w;
    char path[300];
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        write_file(path_of(file[i].name), file[i].bytes, strlen(file[i].bytes));
        refused(tr_weights_open(path_of(file[i].name), &w), TR_ERR_DATA, file[i].part);
        tr_weights_close(&w);
    }
    /* Each next name tells more than those before it. */
    assert_int_equal(mkdir(path_of("other"), 0777), 0);
    for (size_t i = 0; i < sizeof folder / sizeof *folder; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", path_of("other"), folder[i][0]);
        write_file(path, "x", 1);
        refused(tr_weights_open(path_of("other"), &w), TR_ERR_DATA, folder[i][1]);
        tr_weights_close(&w);
    }
    assert_int_equal(symlink("nowhere", path_of("other/model.safetensors")), 0);
    refused(tr_weights_open(path_of("other"), &w), TR_ERR_DATA, "a link to a file that does not");
    tr_weights_close(&w);
    assert_int_equal(unlink(path_of("other/model.safetensors")), 0);
    assert_int_equal(symlink("model.safetensors", path_of("other/model.safetensors")), 0);
    refused(tr_weights_open(path_of("other"), &w), TR_ERR_DATA, "leads back to itself");
    tr_weights_close(&w);
    remove_all(path_of("other"));
}

/* Changes a few bytes, or moves a part, of a text. */
static size_t damage(uint64_t *random, char *text, size_t bytes, size_t most) {
    static const char words[] = "{}[]\",:0123456789-e.\\null";
    for (int64_t n = tr_up_to(random, 4); n > 0 && bytes > 1; n--) {
        const size_t at = (size_t)tr_up_to(random, (int64_t)bytes) - 1;
        const int64_t what = tr_up_to(random, 6);
        if (what <= 2) text[at] = words[tr_up_to(random, sizeof words - 1) - 1];
        else if (what == 3) text[at] = (char)tr_up_to(random, 256);
        else if (what == 4) bytes = at;
        else if (what == 5 && bytes < most) {
            memmove(text + at + 1, text + at, bytes - at);
            bytes++;
        } else {
            memmove(text + at, text + at + 1, bytes - at - 1);
            bytes--;
        }
    }
    return bytes;
}

static void damaged_files_get_a_sentence(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3/model.safetensors", "llama-shards/config.json",
                                        "yarn-v4/config.json", "gpt2.llmc5.bin",
                                        "gpt2-hub/config.json"};
    uint64_t random = seed;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        size_t bytes;
        char *whole = read_file(golden(names[k]), &bytes);
        const bool tensors = strstr(names[k], ".safetensors") != NULL,
                   llmc = strstr(names[k], ".bin");
        const size_t header = tensors ? 1800 : llmc ? 64 : bytes, room = bytes + 16;
        char *text = malloc(room);
        int64_t good = 0, all = tr_test_rounds(tensors ? 2000 : 500);
        for (int64_t round = 0; round < all; round++) {
            memcpy(text, whole, bytes);
            size_t now = damage(&random, text, header, header);
            if (now == header) now = bytes;
            tr_weights w;
            tr_hf hf;
            tr_model_config model;
            tr_status status;
            if (tensors || llmc) {
                write_file(path_of("fuzz"), text, now);
                status = tensors ? tr_weights_open(path_of("fuzz"), &w)
                                 : tr_llmc_open(path_of("fuzz"), &w, &model);
                tr_weights_close(&w);
            } else {
                cJSON *root;
                status = tr_json_parse(text, now, "fuzz", &root);
                if (status == TR_OK) {
                    status = tr_hf_parse(root, "fuzz", &hf);
                    char *printed;
                    if (status == TR_OK &&
                        tr_hf_print(&hf.model, root, "float32", &printed) == TR_OK)
                        free(printed);
                    cJSON_Delete(root);
                }
            }
            good += status == TR_OK;
            if (status != TR_OK && status != TR_ERR_DATA)
                fail_msg("seed %" PRIu64 ", %s, round %" PRId64 ": status %d, %s", seed, names[k],
                         round, (int)status, tr_error_message());
            if (status != TR_OK && !strstr(tr_error_message(), "fuzz"))
                fail_msg("no file is named: %s", tr_error_message());
        }
        assert_true(good < all);
        free(text);
        free(whole);
    }
}

static tr_status open_folder(void) {
    tr_weights w;
    tr_status status = tr_weights_open(path_of("folder"), &w);
    tr_weights_close(&w);
    return status;
}

static tr_status read_adapter(void) {
    tr_adapter adapter;
    return tr_adapter_read(path_of("folder"), &adapter);
}

static tr_status read_origin(void) {
    cJSON *origin;
    tr_status status = tr_origin_read(path_of("folder"), &origin);
    cJSON_Delete(origin);
    return status;
}

/* A file of a folder, damaged: the folder is read, or the sentence names a file in it. */
static void damage_in_folder(const char *name, const char *whole, size_t bytes,
                             tr_status (*read)(void)) {
    uint64_t random = seed;
    int64_t good = 0, all = tr_test_rounds(500);
    char *text = malloc(bytes + 16);
    for (int64_t round = 0; round < all; round++) {
        memcpy(text, whole, bytes);
        write_file(path_of(name), text, damage(&random, text, bytes, bytes + 16));
        const tr_status status = read();
        good += status == TR_OK;
        if (status != TR_OK && (status != TR_ERR_DATA || !strstr(tr_error_message(), "folder")))
            fail_msg("%s, seed %" PRIu64 ", round %" PRId64 ": status %d, %s", name, seed, round,
                     (int)status, tr_error_message());
    }
    assert_in_range(good, 1, all - 1);
    free(text);
}

static void damaged_files_of_folders_get_a_sentence(void **state) {
    (void)state;
    static const char adapter[] =
        "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"base\", \"r\": 16, "
        "\"lora_alpha\": 32.5, \"bias\": \"none\", \"init_lora_weights\": true, \"use_dora\": "
        "false, \"rank_pattern\": {}, \"target_modules\": [\"q_proj\", \"mlp.down_proj\"]}";
    static const char origin[] = "{\"dtype\": \"F32\", \"dtypes\": {\"wte.weight\": \"BF16\"}, "
                                 "\"config\": {\"model_type\": \"gpt2\"}}";
    char command[600];
    size_t bytes;
    (void)snprintf(command, sizeof command, "cp -rL '%s' '%s' && chmod -R u+w '%s'",
                   golden("llama-shards"), path_of("folder"), path_of("folder"));
    assert_int_equal(system(command), 0);
    char *index = read_file(golden("llama-shards/model.safetensors.index.json"), &bytes);
    damage_in_folder("folder/model.safetensors.index.json", index, bytes, open_folder);
    damage_in_folder("folder/adapter_config.json", adapter, sizeof adapter - 1, read_adapter);
    damage_in_folder("folder/origin.json", origin, sizeof origin - 1, read_origin);
    free(index);
    remove_all(path_of("folder"));
}

/* Sizes in the header of llm.c with a sum above 2^63 bytes. */
static void bad_headers_of_llmc_are_refused(void **state) {
    (void)state;
    int32_t word[256] = {20240326, 3, 1, 1, 4096, 1, 1 << 24, 1};
    tr_weights w;
    tr_model_config model;
    write_file(path_of("huge.bin"), word, sizeof word);
    refused(tr_llmc_open(path_of("huge.bin"), &w, &model), TR_ERR_DATA, "header describes more");
    assert_true(w.count <= 1); /* the first sizes already say it */
    tr_weights_close(&w);
}

/* A directory where a folder's file should be is bad data: the user named the folder. */
static void directories_are_no_files(void **state) {
    (void)state;
    tr_weights w;
    tr_tokenizer *tokenizer;
    char command[600];
    (void)snprintf(command, sizeof command, "mkdir -p '%s' '%s'",
                   path_of("folder/model.safetensors.index.json"),
                   path_of("folder/tokenizer.json"));
    assert_int_equal(system(command), 0);
    refused(tr_weights_open(path_of("folder"), &w), TR_ERR_DATA, "index.json' is a directory");
    tr_weights_close(&w);
    refused(tr_tokenizer_open(path_of("folder"), &tokenizer), TR_ERR_DATA,
            "tokenizer.json' is a directory");
    remove_all(path_of("folder"));
    write_header("{\"a\\u001b[31m\":" T("F32", "[1]", 0, 4) "}", 4);
    assert_int_equal(mkdir(path_of("folder"), 0777), 0);
    (void)snprintf(command, sizeof command, "cp '%s' '%s' && cp '%s' '%s'",
                   path_of("x.safetensors"), path_of("folder/1.safetensors"),
                   path_of("x.safetensors"), path_of("folder/2.safetensors"));
    assert_int_equal(system(command), 0);
    static const char index[] =
        "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}";
    write_file(path_of("folder/model.safetensors.index.json"), index, sizeof index - 1);
    refused(tr_weights_open(path_of("folder"), &w), TR_ERR_DATA, "the tensor a?[31m is in both");
    tr_weights_close(&w);
    remove_all(path_of("folder"));
}

int main(void) {
    seed = tr_test_seed(11);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_are_parts_of_the_tensor),
        cmocka_unit_test(ranks_read_only_their_boxes),
        cmocka_unit_test(sixteen_bits_survive),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(indexes_stay_in_their_folder),
        cmocka_unit_test(files_are_opened_as_needed),
        cmocka_unit_test(other_formats_get_a_remedy),
        cmocka_unit_test(damaged_files_get_a_sentence),
        cmocka_unit_test(damaged_files_of_folders_get_a_sentence),
        cmocka_unit_test(bad_headers_of_llmc_are_refused),
        cmocka_unit_test(directories_are_no_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
