/* Turns of a conversation as tokens, in the two forms that most models were trained on: ChatML
 * (`<|im_start|>ROLE\nTEXT<|im_end|>\n`) and Llama 3's headers
 * (`<|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>`). A template is recognised by its
 * special tokens and not executed: what else it writes, such as a default system turn, is left out.
 *
 * A turn's header and its text are encoded apart, as they are when a model writes the text. */
#pragma once

#include "text/tokenizer.h"

typedef enum tr_chat_form { TR_CHAT_NONE, TR_CHAT_CHATML, TR_CHAT_LLAMA3 } tr_chat_form;

typedef struct tr_chat {
    tr_chat_form form;
    int32_t begin;                  /* the token before the first turn; -1: none */
    int32_t start, header_end, end; /* tokens; ChatML has no header_end (-1) */
} tr_chat;

/* Finds the form of the tokenizer's chat template: chat_template.jinja next to the tokenizer, else
 * chat_template of tokenizer_config.json (a text, or a list of which "default" is taken). Without
 * one the form is TR_CHAT_NONE. A template that writes bos_token begins with that of
 * tokenizer_config.json, or the first token of tr_tokenizer_prefix. Fails with TR_ERR_DATA when the
 * template has another form, is damaged, or uses a token that the tokenizer does not have. */
tr_status tr_chat_find(const tr_tokenizer *tokenizer, tr_chat *out);

/* Append to *list, for a form other than TR_CHAT_NONE: what a conversation begins with; a turn's
 * header, after which its text follows ("system", "user", "assistant"); a turn's text with the
 * token that ends it (the encoder's flags apply to the text; Llama 3's template removes white space
 * around it); what separates the turn from the next one. */
tr_status tr_chat_begin(const tr_chat *chat, tr_token_list *list);
tr_status tr_chat_header(const tr_chat *chat, tr_encoder *encoder, const char *role,
                         tr_token_list *list);
tr_status tr_chat_text(const tr_chat *chat, tr_encoder *encoder, const char *text, size_t length,
                       unsigned flags, tr_token_list *list);
tr_status tr_chat_separator(const tr_chat *chat, tr_encoder *encoder, tr_token_list *list);
