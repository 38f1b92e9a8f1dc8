/* trireme eval RUN|DIR [--data FILES] [--step N] [--json] [key=value ...]: the loss of a text, or
 * answers to multiple-choice questions, by a checkpoint of a run, whatever layout saved it, or by a
 * folder of transformers. */
#include "base/json.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "cli/ranks.h"
#include "train/eval_session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    tr_eval_request eval;
    const char **overrides;
    bool json;
} request;

static tr_status parse_words(int argc, char **argv, request *r) {
    tr_trained *model = &r->eval.model;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        const bool data = strcmp(word, "--data") == 0, step = strcmp(word, "--step") == 0;
        if (strcmp(word, "--json") == 0) {
            r->json = true;
        } else if (data || step) {
            if (++i == argc) return cli_usage("eval", "a value is missing after %s", word);
            if (data && r->eval.data)
                return cli_usage("eval", "--data is given twice: name several files in one, as in "
                                         "--data 'a.txt b.txt'");
            if (data) r->eval.data = argv[i];
            else TR_TRY(cli_take_integer("eval", word, argv[i], 0, INT64_MAX, &model->step));
        } else if (cli_is_setting(word, !model->path)) {
            r->overrides[model->overrides_count++] = word;
        } else if (word[0] == '-') {
            return cli_unknown_option("eval", word);
        } else {
            if (model->path) return cli_usage("eval", "more than one run: %s", word);
            model->path = word;
        }
    }
    if (!model->path || !*model->path) return cli_usage("eval", "no run directory was given");
    if (r->eval.data && !*r->eval.data) return cli_usage("eval", "--data names no file");
    return TR_OK;
}

static tr_status read_request(int argc, char **argv, int ranks, request *r, tr_eval_session *s) {
    TR_TRY(tr_calloc((size_t)argc, sizeof *r->overrides, &r->overrides));
    r->eval.model.overrides = r->overrides;
    TR_TRY(parse_words(argc, argv, r));
    return tr_eval_session_read(&r->eval, ranks, s);
}

/* --- results ---------------------------------------------------------------------------------- */

static tr_status print_json(cJSON *object) {
    char *text = cJSON_PrintUnformatted(object);
    if (!text) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    (void)printf("%s\n", text);
    cJSON_free(text);
    return TR_OK;
}

/* A number that is not finite becomes null. */
static void add_number(cJSON *object, const char *name, double number) {
    (void)cJSON_AddNumberToObject(object, name, number);
}

static const char *data_name(const request *r) {
    return r->eval.data ? r->eval.data : "validation";
}

static tr_status print_text(const request *r, const tr_eval_session *s, const tr_loss_score *t,
                            bool bytes_known, cJSON *json) {
    const double loss = t->nats / (double)t->tokens;
    const double bits = t->bytes > 0 ? t->nats / log(2) / (double)t->bytes : NAN;
    if (r->json) {
        add_number(json, "sequences", (double)s->sequences.count);
        add_number(json, "tokens", (double)t->tokens);
        add_number(json, "loss", loss);
        add_number(json, "perplexity", exp(loss));
        add_number(json, "bytes", bytes_known ? (double)t->bytes : NAN);
        add_number(json, "bits_per_byte", bits);
        return print_json(json);
    }
    (void)printf("data           %s: %lld tokens in %lld sequence%s of at most %lld\n",
                 data_name(r), (long long)t->tokens, (long long)s->sequences.count,
                 s->sequences.count == 1 ? "" : "s", (long long)s->sequences.seq);
    (void)printf("loss           %.6f\n", loss);
    (void)printf("perplexity     %.6g\n", exp(loss));
    if (t->bytes > 0) (void)printf("bits per byte  %.6f (%lld bytes)\n", bits, (long long)t->bytes);
    else if (bytes_known) (void)printf("bits per byte  none: the tokens stand for no text\n");
    else
        (void)printf("bits per byte  not known without a tokenizer: name one with "
                     "data.tokenizer=FILE\n");
    return TR_OK;
}

static tr_status report_text(const request *r, tr_eval_session *s, const tr_sequence_loss *loss,
                             cJSON *json) {
    const bool known = s->tokenizer || s->bytes;
    int32_t *bytes = NULL;
    tr_loss_score score;
    if (known) TR_TRY(tr_evaluate_token_bytes(s->tokenizer, s->config.model.vocab, &bytes));
    tr_status status = tr_evaluate_text(&s->sequences, loss, bytes, &score);
    free(bytes);
    TR_TRY(status);
    if (score.tokens == 0)
        return TR_FAIL(TR_ERR_DATA, "no token counts: every label is behind the end of a document");
    return print_text(r, s, &score, known, json);
}

static tr_status report_choices(const request *r, const tr_eval_session *s,
                                const tr_sequence_loss *loss, cJSON *json) {
    const tr_choices_score score = tr_evaluate_choices(&s->choices, loss);
    const char *unit = score.per_byte ? "bytes" : "tokens";
    if (r->json) {
        add_number(json, "questions", (double)score.questions);
        add_number(json, "acc", score.accuracy.share);
        add_number(json, "acc_stderr", score.accuracy.error);
        add_number(json, "acc_norm", score.normalised.share);
        add_number(json, "acc_norm_stderr", score.normalised.error);
        (void)cJSON_AddStringToObject(json, "normalised_by", unit);
        return print_json(json);
    }
    (void)printf("data           %s: %lld question%s, %lld choices\n", data_name(r),
                 (long long)score.questions, score.questions == 1 ? "" : "s",
                 (long long)s->choices.count);
    (void)printf("accuracy       %.4f", score.accuracy.share);
    if (score.questions > 1) (void)printf(" +- %.4f", score.accuracy.error);
    (void)printf("\nnormalised     %.4f", score.normalised.share);
    if (score.questions > 1) (void)printf(" +- %.4f", score.normalised.error);
    (void)printf(" (log probability divided by a choice's %s)\n", unit);
    return TR_OK;
}

static tr_status report(const request *r, tr_eval_session *s, const tr_sequence_loss *loss) {
    cJSON *json = cJSON_CreateObject();
    if (!json) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    const cJSON *data = cJSON_AddStringToObject(json, "data", data_name(r));
    if (data) tr_utf8_repair(data->valuestring);
    tr_status status =
        s->choices.questions > 0 ? report_choices(r, s, loss, json) : report_text(r, s, loss, json);
    cJSON_Delete(json);
    return status;
}

/* --- ranks ------------------------------------------------------------------------------------ */

static tr_status evaluate_and_report(tr_world *world, tr_board *board, request *r,
                                     tr_eval_session *s) {
    const bool writes = tr_world_rank(world) == 0;
    tr_sequence_loss *loss = NULL;
    TR_TRY(tr_eval_session_open(&r->eval, world, board, s));
    if (s->on_cpu_instead && writes)
        (void)fprintf(stderr,
                      "trireme: note: this machine has no device %s: evaluating on the CPU\n",
                      s->config.device.name);
    if (writes) cli_note_idle_keys("eval", r->overrides, r->eval.model.overrides_count);
    if (writes && r->eval.model.step < 0) cli_warn_of_skipped(r->eval.model.path);
    if (s->note[0] && writes) (void)fprintf(stderr, "trireme: note: %s\n", s->note);
    tr_status status = tr_eval_session_run(s, &loss);
    if (status == TR_OK) status = tr_world_agree(world, writes ? report(r, s, loss) : TR_OK);
    free(loss);
    return status;
}

/* Evaluates on one rank. */
static tr_status evaluate(cli_context *cli, tr_rank_process *process, tr_world *world, int argc,
                          char **argv) {
    request r = {.eval.model.step = -1};
    tr_eval_session *s = NULL;
    tr_status status = tr_calloc(1, sizeof *s, &s);
    if (status == TR_OK) status = read_request(argc, argv, tr_world_size(world), &r, s);
    status = tr_world_agree(world, status);
    if (status == TR_OK) status = cli_same_arguments(world, argc, argv);
    if (status == TR_OK && s->config.train.threads == 0)
        s->config.train.threads = tr_world_cores(world);
    if (status == TR_OK)
        status = tr_rank_process_begin(process, world, s->config.parallel.deadline);
    tr_board *board = tr_rank_process_board(process);
    if (status == TR_OK) status = evaluate_and_report(world, board, &r, s);
    if (s) tr_board_set_stop_word(board, NULL); /* before the board is gone */
    cli_leave(cli, process, world, status);
    if (s) tr_eval_session_close(s);
    free(s);
    free((void *)r.overrides);
    return status;
}

tr_status cli_eval(cli_context *cli, int argc, char **argv) {
    /* It does not say that a signal finishes a step and saves, because there is none. */
    return cli_on_ranks(cli, false, evaluate, argc, argv);
}
