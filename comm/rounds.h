/* Rounds of messages between the hosts of a group of ranks: in a round every rank posts sends and
 * receives of host memory, and ends it when all of its own are done. Private to comm/. */
#pragma once

#include "comm/world_impl.h"

/* The most messages of one round that a rank may send to, or receive from, one other rank. */
enum { TR_ROUND_PIECES = 64 };

struct tr_rounds {
    tr_world *world;
    int id, rank, n, tag; /* id: for messages; -1: all ranks */
    int *ranks;           /* [n] */
    tr_message *request;  /* [2 n TR_ROUND_PIECES]: of this round */
    size_t *expected;     /* [2 n TR_ROUND_PIECES]: their sizes */
    int posted, finished;
    unsigned char signal[2]; /* of a barrier: received, sent */
};

/* Opens rounds of ranks[n] (NULL: all ranks of the world); messages use `tag`. */
tr_status tr_rounds_open(tr_world *world, const int *ranks, int n, int id, int tag,
                         tr_rounds **out);
void tr_rounds_close(tr_rounds *rounds);

/* --- one round, under the world's lock --- */

void tr_rounds_begin(tr_rounds *rounds);
/* Post a message from or to a rank of the group. A failure becomes the world's. */
void tr_rounds_receive(tr_rounds *rounds, int rank, void *buffer, size_t bytes);
void tr_rounds_send(tr_rounds *rounds, int rank, const void *buffer, size_t bytes);
/* Returns true when all messages of the round are done; otherwise *missing is the world rank of one
 * that is not. A failure, also a message of another size than was posted, becomes the world's, and
 * the round is never done. */
bool tr_rounds_done(tr_rounds *rounds, int *missing);
/* Withdraws the messages of the round. Their memory must stay if the world then keeps memory. */
void tr_rounds_cancel(tr_rounds *rounds);
/* Returns the k-th other rank in this rank's order of sending. It starts with the neighbour, so
 * that not all ranks send to rank 0 first. */
int tr_rounds_other(const tr_rounds *rounds, int k);

/* --- collectives of host memory, blocking --- */

tr_status tr_rounds_barrier(tr_rounds *rounds);
tr_status tr_rounds_broadcast(tr_rounds *rounds, int root, void *buffer, size_t bytes);
/* Gathers sizes[r] bytes of every rank r in `all`, one rank after another. This rank's are already
 * in place. After a failure `all` must stay if the world keeps memory. */
tr_status tr_rounds_gather(tr_rounds *rounds, void *all, const size_t *sizes);
