/* A transport: non-blocking messages of host memory between the ranks of a world. Private to comm/.
 *
 * Messages of one (sender, receiver, tag) arrive in the order of posting and match receives in the
 * order of posting. The caller makes all calls of one rank under one lock (the world's), except
 * `pause`, which sleeps and is called without it, and `close`. Calls do not block, except these
 * two, and `cancel`, which may take a second for a receive of which a part has arrived. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tr_transport tr_transport;

/* One message being sent or received. It is the caller's memory, and must stay in place until the
 * request is done or cancelled. */
typedef struct tr_message {
    void *buffer; /* of a receive; NULL: a send */
    size_t bytes; /* send: size. Receive: capacity, and the message's size once done */
    int peer, tag;
    bool done;
    bool truncated;          /* the message was larger than the receive's capacity */
    bool dead;               /* mpi: the peer has died, and the message never ends */
    struct tr_message *next; /* local: in a list of posted receives */
    void *handle;            /* mpi: the MPI_Request */
} tr_message;

typedef struct tr_transport_ops {
    const char *name;
    tr_status (*post_send)(tr_transport *transport, int peer, int tag, const void *buffer,
                           size_t bytes, tr_message *request);
    tr_status (*post_recv)(tr_transport *transport, int peer, int tag, void *buffer, size_t bytes,
                           tr_message *request);
    /* Sets *done when the caller may use the buffer again; may be called again after that. */
    tr_status (*test)(tr_transport *transport, tr_message *request, bool *done);
    /* Withdraws a request. Returns false when the transport may still access its memory, which must
     * then stay until the process ends. */
    bool (*cancel)(tr_transport *transport, tr_message *request);
    /* Makes progress on all messages. Fails with TR_ERR_RANK after an abort. */
    tr_status (*progress)(tr_transport *transport);
    /* Sleeps for at most `seconds`, less when this rank's requests may have changed. Called without
     * the lock. */
    void (*pause)(tr_transport *transport, double seconds);
    void (*abort)(tr_transport *transport, int code);
    /* Frees the transport. Collective over living ranks unless `failed`. */
    void (*close)(tr_transport *transport, bool failed);
} tr_transport_ops;

/* Every transport starts with this. */
struct tr_transport {
    const tr_transport_ops *ops;
    int rank, size;
    int host_rank; /* this rank's place among the ranks on its host */
    int cores;     /* for this rank's threads, at least 1 */
    int tag_limit; /* largest tag */
};

/* Tags: one for all channels (a channel is a directed pair), one for the control plane, one for
 * mail (comm/mail.h), and one for each group. */
enum { TR_TAG_CHANNEL, TR_TAG_CONTROL, TR_TAG_MAIL, TR_TAG_GROUP };

/* Opens n transports that share memory, in out[0..n). Every send is a rendezvous. Fails with
 * TR_ERR_FIT. */
tr_status tr_transport_open_local(int n, tr_transport **out);
/* Opens this process's transport over MPI_COMM_WORLD; initialises MPI if that has not been done. */
tr_status tr_transport_open_mpi(tr_transport **out);
