/* What a transport provides: non-blocking messages of host memory between the ranks of a world.
 * Private to comm/.
 *
 * Messages of one (sender, receiver, tag) arrive in the order of posting and match receives in the
 * order of posting. The caller makes all calls of one rank under one lock (the world's), but
 * `pause`, which sleeps and is called without it. No call blocks. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tr_transport tr_transport;

/* One message being sent or received; the caller's memory, which must stay in place until the
 * request is done or cancelled. */
typedef struct tr_request {
    void *buffer;
    size_t bytes; /* send: size. Receive: capacity, and the message's size once done */
    int peer, tag;
    bool done;
    bool truncated;          /* a message larger than the receive's capacity came */
    struct tr_request *next; /* local: in a list of posted receives */
    void *handle;            /* mpi: the MPI_Request */
} tr_request;

typedef struct tr_transport_ops {
    const char *name;
    tr_status (*post_send)(tr_transport *transport, int peer, int tag, const void *buffer,
                           size_t bytes, tr_request *request);
    tr_status (*post_recv)(tr_transport *transport, int peer, int tag, void *buffer, size_t bytes,
                           tr_request *request);
    /* *done when the buffer is the caller's again; may be called again after that. */
    tr_status (*test)(tr_transport *transport, tr_request *request, bool *done);
    /* Withdraws a request; false when the transport may still touch its memory, which must then be
     * left alone until the process ends. */
    bool (*cancel)(tr_transport *transport, tr_request *request);
    /* Moves what can be moved; TR_ERR_RANK after an abort. */
    tr_status (*progress)(tr_transport *transport);
    /* Sleeps at most `seconds`, less when this rank's requests may have changed. No lock held. */
    void (*pause)(tr_transport *transport, double seconds);
    void (*abort)(tr_transport *transport, int code);
    /* Collective over living ranks unless `failed`. Frees the transport. */
    void (*close)(tr_transport *transport, bool failed);
} tr_transport_ops;

/* Every transport starts with this. */
struct tr_transport {
    const tr_transport_ops *ops;
    int rank, size;
    int host_ranks; /* ranks on this rank's host, itself included */
    int host_rank;  /* this rank's place among them */
    int cores;      /* that this rank has for its threads, at least 1 */
    int tag_limit;  /* largest tag */
};

/* Tags: one for all channels (a channel is a directed pair), one for the control plane, one for
 * mail (comm/mail.h), one a group. */
enum { TR_TAG_CHANNEL, TR_TAG_CONTROL, TR_TAG_MAIL, TR_TAG_GROUP };

/* n transports that share memory, in out[0..n); every send is a rendezvous. TR_ERR_FIT without
 * memory. */
tr_status tr_transport_open_local(int n, tr_transport **out);
/* This process's place in MPI_COMM_WORLD; initialises MPI when nobody has. */
tr_status tr_transport_open_mpi(tr_transport **out);
