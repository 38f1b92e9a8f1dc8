#include "train/evaluate.h"

#include "base/memory.h"
#include "layers/layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every rank has the same result, so the ranks agree on a failure. */
static tr_status check(const tr_step_result *result, const tr_sequence_loss *loss, int64_t count,
                       int64_t first) {
    tr_status status = TR_OK;
    if (result->stop) status = TR_FAIL(TR_ERR_STOPPED, "stopped by a signal");
    for (int64_t s = 0; s < count && status == TR_OK; s++)
        if (!isfinite(loss[s].nats))
            status = TR_FAIL(
                TR_ERR_DATA,
                "the loss of sequence %lld is not finite: the model's parameters are "
                "damaged; choose an earlier checkpoint (--step), or another copy of the model",
                (long long)(first + s));
    if (status != TR_OK) tr_error_set_agreed();
    return status;
}

tr_status tr_evaluate(tr_engine *engine, tr_sequences *sequences, int64_t batch, tr_board *board,
                      tr_sequence_loss *out) {
    for (int64_t first = 0; first < sequences->count; first += batch) {
        const int64_t left = sequences->count - first, count = left < batch ? left : batch;
        const tr_sequence_loss *loss;
        tr_step_result result;
        tr_board_set_action(board, -1, first / batch, 'E');
        TR_TRY(tr_engine_evaluate(engine, tr_sequences_fetch, sequences, first, &result, &loss));
        if (result.unread != TR_OK) return result.unread;
        TR_TRY(check(&result, loss, count, first));
        memcpy(out + first, loss, (size_t)count * sizeof *out);
    }
    return TR_OK;
}

tr_status tr_evaluate_token_bytes(const tr_tokenizer *tokenizer, int64_t vocab, int32_t **out) {
    tr_byte_list text = {0};
    tr_status status = TR_OK;
    TR_TRY(tr_calloc((size_t)vocab, sizeof **out, out));
    for (int32_t id = 0; id < vocab && status == TR_OK; id++) {
        if (!tokenizer) {
            (*out)[id] = 1;
            continue;
        }
        if (id >= tr_tokenizer_size(tokenizer)) break;
        text.count = 0;
        status = tr_tokenizer_decode(tokenizer, &id, 1,
                                     TR_TOKENIZER_CONTINUES | TR_TOKENIZER_NO_SPECIAL, &text);
        (*out)[id] = (int32_t)text.count;
    }
    free(text.byte);
    return status;
}

tr_status tr_evaluate_text(tr_sequences *sequences, const tr_sequence_loss *loss,
                           const int32_t *bytes, tr_loss_score *out) {
    const tr_flow labels = {.name = TR_STEP_INPUT_LABELS};
    tr_status status = TR_OK;
    double tokens = 0;
    int32_t *label;
    *out = (tr_loss_score){0};
    TR_TRY(tr_calloc((size_t)sequences->seq, sizeof *label, &label));
    const tr_fetch wanted = {.input = &labels, .to = label};
    for (int64_t s = 0; s < sequences->count && status == TR_OK; s++) {
        out->nats += loss[s].nats;
        tokens += loss[s].labels;
        if (!bytes) continue;
        status = tr_sequences_fetch(sequences, true, s, &wanted, 1);
        for (int64_t t = 0; t < sequences->seq && status == TR_OK; t++)
            if (label[t] >= 0) out->bytes += bytes[label[t]];
    }
    out->tokens = (int64_t)tokens;
    free(label);
    return status;
}

static tr_proportion share_of(int64_t right, int64_t of) {
    const double p = (double)right / (double)of;
    return (tr_proportion){.share = p,
                           .error = of > 1 ? sqrt(p * (1 - p) / (double)(of - 1)) : NAN};
}

tr_choices_score tr_evaluate_choices(const tr_choices *choices, const tr_sequence_loss *loss) {
    tr_choices_score score = {.questions = choices->questions, .per_byte = true};
    int64_t right = 0, right_by_length = 0;
    for (int64_t k = 0; k < choices->count; k++)
        score.per_byte = score.per_byte && choices->choice[k].bytes > 0;
    for (int64_t q = 0; q < choices->questions; q++) {
        const tr_question *question = &choices->question[q];
        int best = 0, best_by_length = 0;
        double least = INFINITY, least_by_length = INFINITY;
        for (int k = 0; k < question->choices; k++) {
            const tr_choice *c = &choices->choice[question->first + k];
            const double nats = loss[question->first + k].nats;
            const int64_t length = score.per_byte ? c->bytes : c->length - c->context;
            if (nats < least) {
                least = nats;
                best = k;
            }
            if (nats / (double)length < least_by_length) {
                least_by_length = nats / (double)length;
                best_by_length = k;
            }
        }
        right += best == question->label;
        right_by_length += best_by_length == question->label;
    }
    score.accuracy = share_of(right, choices->questions);
    score.normalised = share_of(right_by_length, choices->questions);
    return score;
}
