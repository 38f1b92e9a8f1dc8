#include "base/nearest.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/batches.h"
#include "config/schema.h"
#include "train/data_options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Takes argv[1] as a config if it ends in .yaml or .yml, and else as a data file with the default
 * config. */
static tr_status load(int argc, char **argv, tr_config *config) {
    const char *const *overrides = (const char *const *)argv + 2;
    if (tr_text_ends(argv[1], ".yaml") || tr_text_ends(argv[1], ".yml"))
        return tr_config_load(argv[1], overrides, argc - 2, config);
    TR_TRY(tr_config_parse("", 0, argv[1], overrides, argc - 2, config));
    return tr_key_set(&tr_schema[tr_schema_find("data.path")], argv[1], config);
}

static tr_status print_corpus(const tr_config *c, const tr_data *data, int part) {
    long long context = c->model.context, windows = tr_data_windows_of(data, part);
    long long train = tr_data_train_tokens(data, part), all = tr_data_tokens(data, part);
    tr_data_facts facts;
    TR_TRY(tr_data_examine(data, part, TR_BIGRAM_ALPHA, &facts));
    (void)printf("file      %s (%s)\n", tr_data_name(data, part), c->data.format);
    if (tr_data_parts(data) > 1)
        (void)printf("weight    %g\n", (double)tr_data_weight(data, part) / 1e6);
    (void)printf("tokens    %lld, %lld different\n", all, (long long)facts.distinct);
    if (tr_config_packed(c)) (void)printf("documents %lld\n", (long long)facts.documents);
    if (facts.answers > 0)
        (void)printf("answers   %lld tokens count in the loss, %.1f %%\n", (long long)facts.answers,
                     100 * (double)facts.answers / (double)all);
    (void)printf("training  %lld tokens, %lld windows of %lld\n", train, windows, context);
    const char *held;
    (void)tr_config_validation(c, &held);
    if (!held)
        (void)printf("held out  %lld tokens, %lld windows\n", all - train,
                     (long long)tr_data_held_windows(data, part));
    double weights = 0;
    for (int k = 0; k < tr_data_parts(data); k++) weights += (double)tr_data_weight(data, k);
    double share = tr_data_parts(data) > 1 ? (double)tr_data_weight(data, part) / weights : 1;
    char batches[2048];
    (void)snprintf(batches, sizeof batches, "%lld sequences", (long long)c->train.batch);
    if (c->train.batch_warmup[0]) (void)tr_config_batches_text(c, batches, sizeof batches);
    (void)printf("run       %lld steps of %s: %.2f epochs\n", (long long)c->train.steps, batches,
                 share * tr_config_sequences(c, 1, c->train.steps) / (double)windows);
    if (!isnan(facts.bigram_nats))
        (void)printf("bigram    %.4f nats a token on the held-out part (%.4f bits)\n",
                     facts.bigram_nats, facts.bigram_nats / log(2));
    return TR_OK;
}

/* Fails when a word is an option: data without tokenize or train-bpe has none. */
static tr_status check_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-' && access(argv[i], F_OK) != 0)
            return cli_unknown_option("data", argv[i]);
    return TR_OK;
}

/* Fails when no file has this name, and it is nearly the name of a part of the command. */
static tr_status check_word(const char *word) {
    static const char *const parts[] = {"tokenize", "train-bpe"};
    const int near = tr_nearest(word, tr_word_at, parts, 2);
    if (near < 0 || access(word, F_OK) == 0) return TR_OK;
    return cli_usage("data", "there is no file '%s'; did you mean '%s'?", word, parts[near]);
}

tr_status cli_data(cli_context *cli, int argc, char **argv) {
    if (argc < 2) return cli_usage("data", "data takes a config or a data file");
    if (argc == 3 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h"))) {
        char *help[] = {"help", argv[0], NULL}; /* "data tokenize --help" */
        return cli_help(cli, 2, help);
    }
    if (strcmp(argv[1], "tokenize") == 0) return cli_data_tokenize(argc, argv);
    if (strcmp(argv[1], "train-bpe") == 0) return cli_data_train_bpe(argc - 1, argv + 1);
    TR_TRY(check_options(argc, argv));
    TR_TRY(check_word(argv[1]));
    tr_config config;
    tr_data *data = NULL;
    TR_TRY(load(argc, argv, &config));
    TR_TRY(tr_config_check_data(&config));
    tr_tokenizer *tokenizer;
    char unused[TR_DATA_NOTE];
    tr_status status = tr_train_open_data(&config, unused, &tokenizer, &data);
    for (int k = 0; status == TR_OK && k < tr_data_parts(data); k++)
        status = print_corpus(&config, data, k);
    const char *held;
    (void)tr_config_validation(&config, &held);
    if (status == TR_OK && held)
        (void)printf("held out  %s, %lld windows\n", held,
                     (long long)tr_data_validation_windows(data));
    char note[256] = "";
    if (status == TR_OK) tr_data_note(data, note, sizeof note);
    if (note[0]) (void)printf("note      %s\n", note);
    if (status == TR_OK && unused[0]) (void)printf("note      %s\n", unused);
    tr_data_close(data);
    tr_tokenizer_close(tokenizer);
    return status;
}
