#include "cli/cli.h"
#include "config/schema.h"
#include "data/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* Takes argv[1] as a config if it ends in .yaml or .yml, and else as a data file with the default
 * config. */
static tr_status load(int argc, char **argv, tr_config *config) {
    const char *const *overrides = (const char *const *)argv + 2;
    if (ends_with(argv[1], ".yaml") || ends_with(argv[1], ".yml"))
        return tr_config_load(argv[1], overrides, argc - 2, config);
    TR_TRY(tr_config_parse("", 0, argv[1], overrides, argc - 2, config));
    return tr_key_set(&tr_schema[tr_schema_find("data.path")], argv[1], config);
}

static tr_status print_facts(const tr_config *c, const tr_data *data) {
    long long context = c->model.context, windows = tr_data_windows(data);
    long long train = tr_data_train_tokens(data), all = tr_data_tokens(data);
    tr_data_facts facts;
    TR_TRY(tr_data_examine(data, TR_BIGRAM_ALPHA, &facts));
    (void)printf("file      %s (%s)\n", c->data.path, c->data.format);
    (void)printf("tokens    %lld, %d different\n", all, facts.distinct);
    if (tr_config_document_end(c) >= 0)
        (void)printf("documents %lld\n", (long long)facts.documents);
    (void)printf("training  %lld tokens, %lld windows of %lld\n", train, windows, context);
    (void)printf("held out  %lld tokens, %lld windows\n", all - train,
                 (long long)tr_data_validation_windows(data));
    (void)printf("run       %lld steps of %lld sequences: %.2f epochs\n", (long long)c->train.steps,
                 (long long)c->train.batch,
                 (double)c->train.steps * (double)c->train.batch / (double)windows);
    if (!isnan(facts.bigram_nats))
        (void)printf("bigram    %.4f nats a token on the held-out part (%.4f bits)\n",
                     facts.bigram_nats, facts.bigram_nats / log(2));
    return TR_OK;
}

tr_status cli_data(cli_context *cli, int argc, char **argv) {
    (void)cli;
    if (argc < 2) return cli_usage("data", "data takes a config or a data file");
    tr_config config;
    tr_data *data;
    TR_TRY(load(argc, argv, &config));
    TR_TRY(tr_config_check_data(&config));
    TR_TRY(tr_data_open(config.data.path, config.data.format, config.data.validation,
                        config.model.context, (uint64_t)config.train.seed, &data));
    tr_data_end_documents(data, tr_config_document_end(&config));
    tr_status status = print_facts(&config, data);
    tr_data_close(data);
    return status;
}
