#include "train/samples.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

tr_status tr_samples_open(const tr_config *c, const tr_tokenizer *tokenizer, tr_samples *out) {
    *out = (tr_samples){0};
    if (c->train.sample_every == 0) return TR_OK;
    if (!tokenizer && strcmp(c->data.format, "bytes") != 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "train.sample_every needs the tokenizer of the data: name it with "
                       "data.tokenizer, or leave train.sample_every out");
    out->texts = tr_texts_default();
    out->texts.tokenizer = tokenizer;
    out->texts.tokens = c->train.sample_tokens;
    if (c->train.sample_prompts[0]) {
        TR_TRY(tr_prompts_read(c->train.sample_prompts, &out->prompts));
        out->texts.prompt = out->prompts.line;
        out->texts.prompts = out->prompts.count;
    }
    TR_TRY(tr_texts_check(&out->texts, &out->prompts, "train.sample_prompts ",
                          c->train.sample_prompts, c->model.context, TR_ERR_CONFIG));
    return tr_calloc((size_t)out->texts.prompts, sizeof *out->text, &out->text);
}

static tr_status keep(void *context, int prompt, const char *text, size_t length) {
    tr_byte_list *to = context;
    (void)prompt;
    TR_TRY(tr_grow(&to->byte, &to->capacity, length + 1, 1));
    if (length > 0) memcpy(to->byte, text, length);
    to->count = length;
    return TR_OK;
}

tr_status tr_samples_make(tr_samples *s, tr_world *world, tr_engine *engine, tr_board *board,
                          int64_t step) {
    tr_texts one = s->texts;
    one.sampler.world = world;
    TR_TRY(tr_engine_decode(engine, &one.sampler.decoder));
    one.sampler.model = tr_engine_model(engine);
    one.sampler.board = board;
    one.sampler.draw.seed = (uint64_t)step;
    one.prompts = 1;
    one.made = keep;
    for (int i = 0; i < s->texts.prompts; i++) {
        one.prompt = &s->texts.prompt[i];
        one.sampler.first_row = (uint64_t)i;
        one.context = &s->text[i];
        TR_TRY(tr_texts_make(&one));
    }
    return TR_OK;
}

void tr_samples_close(tr_samples *s) {
    for (int i = 0; s->text && i < s->texts.prompts; i++) free(s->text[i].byte);
    free(s->text);
    tr_prompts_free(&s->prompts);
    *s = (tr_samples){0};
}
