/* Lifetimes of a micro-batch's buffers. */
#pragma once

#include <stddef.h>

typedef enum tr_lifetime {
    TR_LIFE_FI, /* from the start of F to the end of I */
    TR_LIFE_FW, /* from the start of F to the end of W */
    TR_LIFE_IW, /* from the start of I to the end of W */
    TR_LIFE_SCRATCH,
    TR_LIFE_COUNT
} tr_lifetime;

/* A tensor of a block. Pieces of one lifetime need not be adjacent. */
typedef struct tr_piece {
    tr_lifetime life; /* not TR_LIFE_SCRATCH */
    size_t bytes;
} tr_piece;
