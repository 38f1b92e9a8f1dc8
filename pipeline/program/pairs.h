/* The directed pairs of ranks that exchange messages, which are few of all pairs. */
#pragma once

#include "pipeline/program/lower.h"

typedef struct tr_pair {
    int to, number;
} tr_pair;

/* The pairs with one sender. */
typedef struct tr_pair_row {
    tr_pair *pair;
    size_t capacity;
    int count;
} tr_pair_row;

typedef struct tr_pairs {
    int ranks, count;
    tr_pair_row *row; /* [ranks] */
} tr_pairs;

/* Makes an empty set. The caller releases *out with tr_pairs_close, also after a failure. */
tr_status tr_pairs_open(int ranks, tr_pairs *out);
/* Makes the set of the programs' messages: of every SEND, RECV and WAIT_SENT. Otherwise like
 * tr_pairs_open. */
tr_status tr_pairs_of_programs(const tr_program_set *set, tr_pairs *out);
/* Numbers the pair, from 0 in the order of these calls, unless it has a number. */
tr_status tr_pairs_add(tr_pairs *pairs, int from, int to);
/* Returns the pair's number, or -1 when it was not added. */
int tr_pairs_find(const tr_pairs *pairs, int from, int to);
void tr_pairs_close(tr_pairs *pairs);
