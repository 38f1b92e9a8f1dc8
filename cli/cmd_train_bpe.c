#include "base/clock.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "base/output.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "data/json_line.h"
#include "data/textfile.h"
#include "device/device.h"
#include "text/bpe.h"
#include "text/train_bpe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PART = 1 << 22,      /* bytes of text that are read at a time, at least */
    MOST_LINE = 1 << 29, /* of JSON */
    MOST_PART = 1 << 26, /* of other text, without a place to cut */
};

typedef struct train_bpe_options {
    int64_t vocab;
    tr_pattern pattern;
    const char *out, *key;
    char path[4100]; /* of the file */
    char **file;
    int files;
} train_bpe_options;

static const char document_end[] = "<|endoftext|>";

static tr_status read_pattern(const char *name, tr_pattern *out) {
    static const char *const names[] = {"gpt2", "llama3", "qwen", "o200k"};
    static const tr_pattern patterns[] = {TR_PATTERN_GPT2, TR_PATTERN_LLAMA3, TR_PATTERN_QWEN,
                                          TR_PATTERN_O200K};
    const int count = sizeof names / sizeof *names;
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = patterns[i];
        return TR_OK;
    }
    return cli_usage("data train-bpe", "--pattern is gpt2, llama3, qwen or o200k, not '%s'%s", name,
                     tr_nearest_hint(name, strlen(name), names, count).text);
}

static tr_status read_options(int argc, char **argv, train_bpe_options *o) {
    *o = (train_bpe_options){.pattern = TR_PATTERN_GPT2, .key = "text", .file = argv + 1};
    bool only_files = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool vocab = !strcmp(argv[i], "--vocab"), pattern = !strcmp(argv[i], "--pattern");
        bool key = !strcmp(argv[i], "--key"), option = *argv[i] == '-' && argv[i][1];
        if (!only_files && !strcmp(argv[i], "--")) {
            only_files = true;
            continue;
        }
        if (only_files || (!vocab && !pattern && !key && strcmp(argv[i], "-o"))) {
            if (option && !only_files) return cli_unknown_option("data train-bpe", argv[i]);
            o->file[o->files++] = argv[i];
            continue;
        }
        if (!value) return cli_usage("data train-bpe", "%s needs a value", argv[i]);
        if (vocab)
            TR_TRY(cli_take_integer("data train-bpe", "--vocab", value, 257, TR_BPE_MAX_SIZE,
                                    &o->vocab));
        else if (pattern) TR_TRY(read_pattern(value, &o->pattern));
        else if (key) o->key = value;
        else o->out = value;
        i++;
    }
    if (!o->files) return cli_usage("data train-bpe", "data train-bpe needs at least one file");
    if (!o->vocab)
        return cli_usage("data train-bpe", "data train-bpe needs --vocab N, the number of tokens");
    if (!o->out || !*o->out)
        return cli_usage("data train-bpe", "data train-bpe needs -o, a file or a folder");
    return TR_OK;
}

/* Fails when the folder of `out` does not exist or cannot be written: before the work. */
static tr_status check_folder(const char *out) {
    struct stat info;
    const size_t length = strlen(out);
    char folder[4100];
    (void)snprintf(folder, sizeof folder, "%s", out);
    while (length > 1 && strlen(folder) > 1 && folder[strlen(folder) - 1] == '/')
        folder[strlen(folder) - 1] = '\0';
    char *slash = strrchr(folder, '/');
    if (stat(out, &info) == 0 && S_ISDIR(info.st_mode))
        (void)snprintf(folder, sizeof folder, "%s", out);
    else if (!slash) (void)snprintf(folder, sizeof folder, ".");
    else slash[slash == folder] = '\0';
    if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode))
        return TR_FAIL(TR_ERR_IO, "there is no folder '%s' for '%s': make it first", folder, out);
    if (access(folder, W_OK) != 0)
        return TR_FAIL(TR_ERR_IO, "no file can be made in the folder '%s': %s", folder,
                       strerror(errno));
    return TR_OK;
}

/* Writes the name of the file to path[size]: a folder gets tokenizer.json. Fails when it exists. */
static tr_status name_file(const char *out, char *path, size_t size) {
    struct stat info;
    const size_t length = strlen(out);
    const bool slash = length && out[length - 1] == '/';
    const bool folder = slash || (stat(out, &info) == 0 && S_ISDIR(info.st_mode));
    (void)snprintf(path, size, "%s%s", out,
                   !folder ? ""
                   : slash ? "tokenizer.json"
                           : "/tokenizer.json");
    if (cli_is_stdout(out))
        return TR_FAIL(TR_ERR_USAGE,
                       "data train-bpe prints its progress to stdout: name a file or a folder, "
                       "not %s",
                       out);
    if (stat(path, &info) != 0) return TR_OK;
    if (!S_ISREG(info.st_mode))
        return TR_FAIL(TR_ERR_USAGE, "'%s' is not a regular file: choose another -o", path);
    return TR_FAIL(TR_ERR_USAGE, "'%s' exists: remove it, or choose another -o", path);
}

/* Writes the file whole: PATH.tmp first, also over that of a process that was killed. */
static tr_status write_tokenizer(const char *out, const tr_byte_list *json, const char *path) {
    struct stat info;
    char partial[4200];
    FILE *file;
    if (out[strlen(out) - 1] == '/' && stat(out, &info) != 0 && mkdir(out, 0777) != 0)
        return TR_FAIL(TR_ERR_IO, "the folder '%s' cannot be made: %s", out, strerror(errno));
    (void)snprintf(partial, sizeof partial, "%s.tmp", path);
    TR_TRY(tr_output_open_for(path, partial, &file));
    (void)fwrite(json->byte, 1, json->count, file);
    return tr_output_replace(partial, path, file, TR_OK);
}

/* A file that is read in parts. */
typedef struct reader {
    const train_bpe_options *o;
    tr_bpe_trainer *trainer;
    const char *path;
    bool json; /* lines of JSON */
    tr_textfile *input;
    tr_byte_list rest, text; /* what was read and not learned from; text of a line */
    bool at_end;
    int64_t line;
} reader;

/* Adds the text of each line of JSON in the first `length` bytes. */
static tr_status add_lines(reader *r, size_t length) {
    TR_TRY(tr_grow(&r->text.byte, &r->text.capacity, length + 1, 1));
    size_t at = r->line == 0 ? tr_utf8_mark(r->rest.byte, length) : 0;
    while (at < length) {
        const char *line = r->rest.byte + at, *end = memchr(line, '\n', length - at);
        const size_t bytes = end ? (size_t)(end - line) : length - at;
        tr_jsonl found;
        at += bytes + 1;
        r->line++;
        if (tr_jsonl_is_empty(line, bytes)) continue;
        if (!tr_jsonl_read(line, bytes, r->o->key, r->text.byte, &found))
            return TR_FAIL(TR_ERR_DATA,
                           "'%s', line %" PRId64 ", byte %zu: %s (the key is \"%.80s\")", r->path,
                           r->line, found.at + 1, found.fault, r->o->key);
        if (found.length > 0) TR_TRY(tr_bpe_trainer_add(r->trainer, found.text, found.length));
    }
    return TR_OK;
}

/* Reads until a part of the text can be learned from by itself: its bytes are *cut. */
static tr_status read_part(reader *r, size_t *cut) {
    *cut = 0; /* at the end of the file */
    for (size_t want = PART; !r->at_end || r->rest.count; want *= 2) {
        size_t got = 0;
        if (!r->at_end && r->rest.count < want) {
            const size_t missing = want - r->rest.count;
            TR_TRY(tr_grow(&r->rest.byte, &r->rest.capacity, want + 1, 1));
            TR_TRY(tr_textfile_read(r->input, r->rest.byte + r->rest.count, missing, &got));
            r->rest.count += got;
            r->at_end = got < missing;
        }
        const char *line =
            r->json && r->rest.count ? memrchr(r->rest.byte, '\n', r->rest.count) : NULL;
        *cut = r->rest.count;
        if (r->at_end) return TR_OK;
        if (r->json) *cut = line ? (size_t)(line + 1 - r->rest.byte) : 0;
        else *cut = tr_bpe_trainer_cut(r->trainer, r->rest.byte, r->rest.count);
        if (*cut) return TR_OK;
        if (want >= (r->json ? MOST_LINE : MOST_PART))
            return TR_FAIL(TR_ERR_DATA, "'%s' has %zu bytes of text without a %s: divide them",
                           r->path, r->rest.count,
                           r->json ? "line end" : "place where the pattern always cuts");
    }
    return TR_OK;
}

/* Fails when the pieces so far take more memory than this host has free. */
static tr_status check_memory(const reader *r, size_t all) {
    const size_t takes = tr_bpe_trainer_memory(r->trainer);
    if (takes <= all) return TR_OK;
    return TR_FAIL(
        TR_ERR_FIT,
        "the texts up to '%s' have %zu different pieces, and training on them takes about "
        "%.1f GiB of memory, but this host has %.1f GiB free: train on a part of them",
        r->path, tr_bpe_trainer_pieces(r->trainer), (double)takes / (1 << 30),
        (double)all / (1 << 30));
}

static tr_status learn(reader *r, size_t memory, size_t *bytes) {
    TR_TRY(tr_textfile_open(r->path, &r->input));
    for (size_t cut;;) {
        TR_TRY(read_part(r, &cut));
        if (!cut) return TR_OK;
        TR_TRY(r->json ? tr_textfile_judge(r->input, add_lines(r, cut))
                       : tr_bpe_trainer_add(r->trainer, r->rest.byte, cut));
        TR_TRY(check_memory(r, memory));
        memmove(r->rest.byte, r->rest.byte + cut, r->rest.count - cut);
        r->rest.count -= cut;
        *bytes += cut;
    }
}

static tr_status free_memory(size_t *bytes) {
    size_t total;
    tr_device *host;
    TR_TRY(tr_device_open("ref", &(tr_device_options){.threads = 1}, &host));
    const tr_status status = tr_device_memory(host, bytes, &total);
    tr_device_close(host);
    return status;
}

static tr_status count_files(const train_bpe_options *o, tr_bpe_trainer *trainer, size_t *bytes) {
    size_t memory;
    TR_TRY(free_memory(&memory));
    for (int i = 0; i < o->files; i++) {
        reader r = {.o = o,
                    .trainer = trainer,
                    .path = o->file[i],
                    .json = tr_textfile_is_json_lines(o->file[i])};
        const tr_status status = learn(&r, memory, bytes);
        tr_textfile_close(r.input);
        free(r.rest.byte);
        free(r.text.byte);
        TR_TRY(status);
    }
    if (tr_bpe_trainer_pieces(trainer) == 0)
        return TR_FAIL(TR_ERR_DATA, "the files have no text: name files to learn from");
    return TR_OK;
}

static void show(void *context, int32_t tokens) {
    const train_bpe_options *o = context;
    if (isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\r%" PRId32 " of %" PRId64 " tokens ", tokens, o->vocab);
}

static tr_status train(train_bpe_options *o, tr_bpe_trainer *trainer, tr_byte_list *json) {
    const char *const special[] = {document_end};
    double start = tr_now_s();
    size_t bytes = 0;
    int32_t tokens;
    char text[32];
    TR_TRY(count_files(o, trainer, &bytes));
    double counted = tr_now_s();
    (void)printf("text     %s, %zu different pieces, %.1f s\n",
                 tr_text_bytes((double)bytes, text, sizeof text), tr_bpe_trainer_pieces(trainer),
                 counted - start);
    TR_TRY(tr_bpe_trainer_finish(trainer, (int32_t)o->vocab, special, 1, show, o, json, &tokens));
    if (isatty(STDERR_FILENO)) (void)fprintf(stderr, "\r\033[K");
    TR_TRY(write_tokenizer(o->out, json, o->path));
    (void)printf("trained  %" PRId32 " tokens, %.1f s\nwrote    %s\n", tokens, tr_now_s() - counted,
                 o->path);
    if (tokens < o->vocab)
        (void)printf("note     the text has no more pairs to merge: %" PRId32
                     " tokens instead of %" PRId64 "\n",
                     tokens, o->vocab);
    return TR_OK;
}

tr_status cli_data_train_bpe(int argc, char **argv) {
    train_bpe_options options;
    tr_bpe_trainer *trainer;
    tr_byte_list json = {0};
    TR_TRY(read_options(argc, argv, &options));
    if (strlen(options.out) > 4000)
        return cli_usage("data train-bpe", "the path after -o is too long");
    TR_TRY(check_folder(options.out));
    TR_TRY(name_file(options.out, options.path, sizeof options.path));
    TR_TRY(tr_bpe_trainer_open(options.pattern, &trainer));
    tr_status status = train(&options, trainer, &json);
    tr_bpe_trainer_close(trainer);
    free(json.byte);
    return status;
}
