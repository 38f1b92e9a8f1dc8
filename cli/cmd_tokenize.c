/* trireme data tokenize FILES... --tokenizer FILE|DIR -o PREFIX [--key KEY] [--no-special]
 * [--threads N]: text to token files. */
#include "base/clock.h"
#include "base/cores.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "data/tokenize.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct request {
    tr_tokenize_options options;
    const char **files;
    const char *tokenizer;
} request;

static tr_status parse_option(const char *option, const char *value, request *r) {
    int64_t n;
    if (strcmp(option, "--tokenizer") == 0) r->tokenizer = value;
    else if (strcmp(option, "-o") == 0) r->options.prefix = value;
    else if (strcmp(option, "--key") == 0) r->options.key = value;
    else if (strcmp(option, "--threads") == 0) {
        TR_TRY(cli_take_integer("data tokenize", option, value, 1, 4096, &n));
        r->options.threads = (int)n;
    }
    return TR_OK;
}

static bool takes_value(const char *option) {
    static const char *const options[] = {"--tokenizer", "-o", "--key", "--threads"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strcmp(options[i], option) == 0) return true;
    return false;
}

/* The output's files are named PREFIX.bin and so on. */
static tr_status check_prefix(const char *prefix) {
    const char *slash = strrchr(prefix, '/'), *name = slash ? slash + 1 : prefix;
    if (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0) return TR_OK;
    return cli_usage("data tokenize",
                     "-o takes the beginning of the output's names, such as %s%scorpus, not "
                     "a folder",
                     prefix, *name ? "/" : "");
}

static tr_status parse(int argc, char **argv, request *r) {
    bool only_files = false;
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i];
        if (word[0] != '-' || only_files) r->files[r->options.count++] = word;
        else if (strcmp(word, "--") == 0) only_files = true;
        else if (strcmp(word, "--no-special") == 0) r->options.no_special = true;
        else if (!takes_value(word)) return cli_unknown_option("data tokenize", word);
        else if (i + 1 == argc)
            return cli_usage("data tokenize", "a value is missing after %s", word);
        else TR_TRY(parse_option(word, argv[++i], r));
    }
    if (r->options.count == 0) return cli_usage("data tokenize", "data tokenize takes text files");
    if (!r->tokenizer)
        return cli_usage("data tokenize",
                         "--tokenizer is missing: name a tokenizer.json, a tiktoken file, "
                         "or a folder with one");
    if (!r->options.prefix)
        return cli_usage("data tokenize", "-o is missing: name the output's prefix");
    return check_prefix(r->options.prefix);
}

typedef struct display {
    double begin, shown;
    int64_t begin_bytes; /* of the files, before this process */
    bool begun, terminal;
} display;

/* Requests to stop. They are blocked while text is tokenized, and looked for between its parts, so
 * that the process commits what it has. */
static sigset_t stop_signals(void) {
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGUSR1); /* a batch system's, as in a run */
    return set;
}

static bool asked_to_stop(void) {
    const sigset_t set = stop_signals();
    const struct timespec now = {0};
    return sigtimedwait(&set, NULL, &now) > 0;
}

/* Shows a line: refreshed twice a second on a terminal, otherwise one line every ten seconds. */
static void show_line(display *d, const tr_tokenize_progress *p) {
    const double now = tr_now_s(), seconds = now - d->begin;
    if (!d->begun) {
        d->begun = true;
        if (p->unlocked)
            fprintf(stderr,
                    "the file system of the output cannot lock: start only one process that "
                    "writes it\n");
        if (p->continued) fprintf(stderr, "continuing where an earlier process was stopped\n");
        d->begin_bytes = p->continued ? p->bytes : 0;
    }
    if (now - d->shown < (d->terminal ? 0.5 : 10)) return;
    d->shown = now;
    const double done = (double)(p->bytes - d->begin_bytes);
    long long left = done > 0 ? (long long)(seconds * (double)(p->all_bytes - p->bytes) / done) : 0;
    fprintf(stderr, "%stokenized %.1f of %.1f MB, %.1f MB/s of text, %lld:%02lld:%02lld left%s",
            d->terminal ? "\r" : "", (double)p->bytes / 1e6, (double)p->all_bytes / 1e6,
            (double)p->text / 1e6 / seconds, left / 3600, left / 60 % 60, left % 60,
            d->terminal ? "   " : "\n");
}

static bool show(void *context, const tr_tokenize_progress *p) {
    show_line(context, p);
    return !asked_to_stop();
}

static tr_status tokenize(request *r) {
    tr_tokenizer *tokenizer;
    tr_tokenize_progress done;
    display d = {.begin = tr_now_s(), .shown = tr_now_s(), .terminal = isatty(STDERR_FILENO)};
    TR_TRY(tr_tokenizer_open(r->tokenizer, &tokenizer));
    r->options.tokenizer = tokenizer;
    r->options.progress = show;
    r->options.context = &d;
    const sigset_t set = stop_signals();
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    tr_status status = tr_tokenize(&r->options, &done);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    if (d.terminal && d.begun) fputc('\n', stderr);
    if (status == TR_OK) {
        double seconds = tr_now_s() - d.begin;
        char text[32];
        (void)printf("tokens    %lld in %lld documents\n", (long long)done.tokens,
                     (long long)done.documents);
        (void)printf("vocab     %d, document end %d\n", (int)tr_tokenizer_size(tokenizer),
                     (int)tr_tokenizer_document_end(tokenizer));
        (void)printf("read      %s of text in %.1f s\n",
                     tr_text_bytes((double)done.text, text, sizeof text), seconds);
        (void)printf("wrote     %s.bin, .idx and .tokenizer.json\n", r->options.prefix);
    }
    tr_tokenizer_close(tokenizer);
    return status;
}

tr_status cli_data_tokenize(int argc, char **argv) {
    request r = {.options = {.key = "text", .threads = tr_cores_count(), .commit_s = 2}};
    TR_TRY(tr_calloc((size_t)argc, sizeof *r.files, &r.files));
    tr_status status = parse(argc, argv, &r);
    r.options.files = r.files;
    if (status == TR_OK) status = tokenize(&r);
    free(r.files);
    return status;
}
