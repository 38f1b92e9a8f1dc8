/* A line of instruction data: a JSON object with a conversation.
 *
 *   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
 *   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
 *   {"prompt": "...", "answer": "..."}      also "completion" or "response"
 *
 * Roles are system, user (human) and assistant (gpt). Other members are ignored; with a list of
 * messages "prompt" is, too. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tr_role { TR_ROLE_SYSTEM, TR_ROLE_USER, TR_ROLE_ASSISTANT } tr_role;

typedef struct tr_turn {
    tr_role role;
    const char *text; /* UTF-8, which may contain NUL; in the conversation's buffer */
    size_t length;
} tr_turn;

/* Start with {0}; the same one can take line after line. */
typedef struct tr_conversation {
    tr_turn *turn;
    size_t count, capacity;
    bool pair; /* of "prompt" and an answer: two turns, user and assistant */
    char *buffer;
    size_t room;
} tr_conversation;

/* Reads a line. Fails with TR_ERR_DATA and a sentence that begins with the byte of the line when it
 * is not such an object. */
tr_status tr_conversation_read(const char *line, size_t length, tr_conversation *out);
void tr_conversation_free(tr_conversation *conversation);
/* Returns "system", "user" or "assistant". */
const char *tr_role_name(tr_role role);
