/* trireme sample RUN|DIR [-p TEXT | --prompts FILE | --interactive] [options] [key=value ...]: text
 * from a checkpoint of a run, whatever layout saved it, or from a folder of transformers. */
#include "base/memory.h"
#include "base/utf8.h"
#include "cli/ranks.h"
#include "cli/sample_chat.h"
#include "train/generation.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STOPS = 16 };

typedef struct request {
    tr_trained model;
    int rows; /* texts that are decoded together */
    const char *prompt, *prompts_file, *system;
    tr_prompts prompts;
    const char **overrides;
    const char *stop[MOST_STOPS];
    tr_texts texts;
    bool interactive;
} request;

/* --- arguments -------------------------------------------------------------------------------- */

static tr_status take_stop(request *r, const char *text) {
    if (!*text) return cli_usage("sample", "a stop string is empty: leave out --stop");
    if (r->texts.stops == MOST_STOPS)
        return cli_usage("sample", "there are more than %d stop strings", MOST_STOPS);
    r->stop[r->texts.stops++] = text;
    return TR_OK;
}

static tr_status parse_option(const char *option, const char *value, request *r) {
    static const struct {
        const char *name;
        size_t at;
        double least, most;
    } numbers[] = {
        {"--temperature", offsetof(tr_sampling, temperature), 0, 1e6},
        {"--top-p", offsetof(tr_sampling, top_p), 0, 1},
        {"--min-p", offsetof(tr_sampling, min_p), 0, 1},
        {"--repetition-penalty", offsetof(tr_sampling, repetition_penalty), 1e-3, 1e3},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(option, numbers[i].name) != 0) continue;
        double *number = (double *)((char *)&r->texts.sampler.draw + numbers[i].at);
        TR_TRY(cli_take_number("sample", option, value, numbers[i].least, numbers[i].most, number));
        if (number == &r->texts.sampler.draw.top_p && *number == 0)
            return cli_usage("sample", "--top-p must be above 0: 1 draws from all tokens, and "
                                       "--temperature 0 takes the most probable one");
        return TR_OK;
    }
    int64_t seed = 0;
    if ((strcmp(option, "-p") == 0 && r->prompt) ||
        (strcmp(option, "--prompts") == 0 && r->prompts_file))
        return cli_usage("sample",
                         "%s is given twice: write several prompts to a file, each on a "
                         "line, and name it with --prompts",
                         option);
    if (strcmp(option, "-p") == 0) r->prompt = value;
    else if (strcmp(option, "--prompts") == 0) r->prompts_file = value;
    else if (strcmp(option, "--system") == 0) r->system = value;
    else if (strcmp(option, "--stop") == 0) return take_stop(r, value);
    else if (strcmp(option, "-n") == 0)
        return cli_take_integer("sample", option, value, 0, INT64_MAX, &r->texts.tokens);
    else if (strcmp(option, "--top-k") == 0)
        return cli_take_integer("sample", option, value, 0, INT32_MAX,
                                &r->texts.sampler.draw.top_k);
    else if (strcmp(option, "--step") == 0)
        return cli_take_integer("sample", option, value, 0, INT64_MAX, &r->model.step);
    else if (strcmp(option, "--seed") == 0) {
        TR_TRY(cli_take_integer("sample", option, value, 0, INT64_MAX, &seed));
        r->texts.sampler.draw.seed = (uint64_t)seed;
    } else return cli_unknown_option("sample", option);
    return TR_OK;
}

static tr_status parse_words(int argc, char **argv, request *r) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--no-special") == 0) {
            r->texts.no_special = true;
        } else if (strcmp(word, "--interactive") == 0) {
            r->interactive = true;
        } else if (cli_is_setting(word, !r->model.path)) {
            r->overrides[r->model.overrides_count++] = word;
        } else if (word[0] != '-') {
            if (r->model.path)
                return cli_usage("sample", "more than one run: %s (give a prompt with -p)", word);
            r->model.path = word;
        } else {
            if (i + 1 == argc) return cli_missing_value("sample", word);
            TR_TRY(parse_option(word, argv[++i], r));
        }
    }
    return TR_OK;
}

static tr_status parse(int argc, char **argv, request *r) {
    TR_TRY(tr_calloc((size_t)argc, sizeof *r->overrides, &r->overrides));
    r->model.overrides = r->overrides;
    r->texts.stop = r->stop;
    TR_TRY(parse_words(argc, argv, r));
    if (!r->model.path || !*r->model.path) return cli_usage("sample", "no run directory was given");
    if (r->prompts_file && r->prompt)
        return cli_usage("sample", "-p and --prompts both give prompts: leave one out");
    if (r->interactive && (r->prompts_file || r->prompt))
        return cli_usage("sample", "--interactive reads its prompts from stdin: leave out -p and "
                                   "--prompts");
    if (r->system && !r->interactive)
        return cli_usage("sample", "--system begins a conversation: give --interactive, too");
    if (r->system && !tr_utf8_is_valid((const uint8_t *)r->system, strlen(r->system)))
        return cli_usage("sample", "the text of --system is not UTF-8");
    if (r->prompt && !*r->prompt)
        return cli_usage("sample", "the prompt is empty: give at least one character with -p");
    if (r->prompt && !tr_utf8_is_valid((const uint8_t *)r->prompt, strlen(r->prompt)))
        return cli_usage("sample", "the prompt is not UTF-8");
    if (r->prompts_file) TR_TRY(tr_prompts_read(r->prompts_file, &r->prompts));
    if (r->prompt) r->texts.prompt = &r->prompt;
    if (r->prompts_file) r->texts.prompt = r->prompts.line;
    if (r->prompts_file) r->texts.prompts = r->prompts.count;
    r->rows = r->texts.prompts < TR_STEP_TEXTS ? r->texts.prompts : TR_STEP_TEXTS;
    return TR_OK;
}

static void release(request *r) {
    free((void *)r->overrides);
    tr_prompts_free(&r->prompts);
    tr_tokenizer_close((tr_tokenizer *)r->texts.tokenizer);
}

/* --- ranks ------------------------------------------------------------------------------------ */

/* Opens the tokenizer of the model. Without one bytes are tokens, or the command fails. */
static tr_status open_tokenizer(request *r, const tr_config *config) {
    tr_tokenizer *tokenizer;
    TR_TRY(tr_trained_open_tokenizer(&r->model, config, &tokenizer));
    r->texts.tokenizer = tokenizer;
    if (tokenizer) return TR_OK;
    if (tr_trained_reads_bytes(&r->model, config)) return tr_config_check_bytes(config);
    return TR_FAIL(TR_ERR_CONFIG,
                   "the prompt needs a tokenizer, which the %s '%s' does not have: name one with "
                   "data.tokenizer=FILE",
                   tr_trained_is_folder(r->model.path) ? "folder" : "run", r->model.path);
}

static tr_status read_request(int argc, char **argv, int ranks, request *r, tr_config *config) {
    TR_TRY(parse(argc, argv, r));
    TR_TRY(tr_trained_config(&r->model, ranks, false, config));
    TR_TRY(open_tokenizer(r, config));
    if (r->interactive) return TR_OK; /* prompts come later */
    return tr_texts_check(&r->texts, &r->prompts, "", r->prompts_file, config->model.context,
                          TR_ERR_DATA);
}

static tr_status write_json(void *context, int index, const char *text, size_t length) {
    const char *const *prompt = context;
    tr_texts_record(stdout, -1, prompt[index], text, length);
    if (fflush(stdout) != 0)
        return TR_FAIL(TR_ERR_IO, "the text cannot be written: %s", strerror(errno));
    return TR_OK;
}

/* Makes the texts of the prompts, and says when the model did not see a whole text. */
static tr_status make_from_prompts(const tr_generation *s, bool writes, tr_texts *texts) {
    bool full = false;
    texts->full = &full;
    const tr_status status = tr_texts_make(texts);
    texts->full = NULL;
    TR_TRY(status);
    if (full && writes)
        (void)fprintf(
            stderr,
            "trireme: note: the context of %lld tokens was full: the older half of a text "
            "was forgotten\n",
            (long long)s->config.model.context);
    return TR_OK;
}

static tr_status make_texts(tr_world *world, request *r, tr_generation *s) {
    const bool writes = tr_world_rank(world) == 0;
    tr_board_set_action(r->texts.sampler.board, -1, -1, 'L');
    TR_TRY(tr_generation_open(&r->model, r->rows, world, s));
    if (s->on_cpu_instead && writes)
        (void)fprintf(stderr, "trireme: note: this machine has no device %s: sampling on the CPU\n",
                      s->config.device.name);
    if (writes) cli_note_idle_keys("sample", r->overrides, r->model.overrides_count);
    if (writes && r->model.step < 0) cli_warn_of_skipped(r->model.path);
    r->texts.sampler.world = world;
    r->texts.sampler.decoder = s->decoder;
    r->texts.sampler.model = s->model;
    if (writes && r->prompts_file) r->texts.made = write_json;
    else if (writes) r->texts.stream = stdout;
    r->texts.context = (void *)r->texts.prompt;
    return r->interactive ? cli_sample_chat(&r->texts, r->system)
                          : make_from_prompts(s, writes, &r->texts);
}

/* Samples on one rank. */
static tr_status sample(cli_context *cli, tr_rank_process *process, tr_world *world, int argc,
                        char **argv) {
    request r = {.model.step = -1, .texts = tr_texts_default()};
    tr_generation *s = NULL;
    tr_status status = tr_calloc(1, sizeof *s, &s);
    if (status == TR_OK) status = read_request(argc, argv, tr_world_size(world), &r, &s->config);
    status = tr_world_agree(world, status);
    if (status == TR_OK) status = cli_same_arguments(world, argc, argv);
    if (status == TR_OK && s->config.train.threads == 0)
        s->config.train.threads = tr_world_cores(world);
    if (status == TR_OK)
        status = tr_rank_process_begin(process, world, s->config.parallel.deadline);
    r.texts.sampler.board = tr_rank_process_board(process);
    if (status == TR_OK) status = make_texts(world, &r, s);
    cli_leave(cli, process, world, status);
    if (s) tr_generation_close(s);
    free(s);
    release(&r);
    return status;
}

tr_status cli_sample(cli_context *cli, int argc, char **argv) {
    /* It does not say that a signal finishes a step and saves, because there is none. */
    return cli_on_ranks(cli, false, sample, argc, argv);
}
