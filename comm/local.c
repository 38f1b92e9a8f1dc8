/* The transport within one process, with a thread for each rank. A rank's mailbox holds the
 * receives that it has posted and the messages that came before their receive; it does not buffer
 * data. One mutex guards all mailboxes, since this transport is for tests and sanitizers and need
 * not be fast. */
#include "base/cores.h"
#include "base/memory.h"
#include "base/wait.h"
#include "comm/transport.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A message without a receive yet. Its data stay in the sender's buffer until the receive is
 * posted. */
typedef struct letter {
    struct letter *next;
    int from, tag;
    size_t bytes;
    const void *data;
    tr_message *send;
} letter;

typedef struct mailbox {
    tr_message *posted, **posted_end;
    letter *letters, **letters_end;
    pthread_cond_t changed;
    uint64_t changes; /* of any request of this rank */
    uint64_t seen;    /* changes when its rank last looked */
} mailbox;

typedef struct hub {
    pthread_mutex_t lock;
    int n, open;
    bool aborted;
    int abort_code;
    mailbox box[];
} hub;

typedef struct tr_transport_local {
    tr_transport base;
    hub *hub;
} tr_transport_local;

static hub *hub_of(tr_transport *transport) {
    return ((tr_transport_local *)transport)->hub;
}

static void box_change(mailbox *box) {
    box->changes++;
    pthread_cond_broadcast(&box->changed);
}

static void deliver(tr_message *receive, const void *data, size_t bytes) {
    if (bytes > receive->bytes) receive->truncated = true;
    else if (bytes > 0) memcpy(receive->buffer, data, bytes);
    receive->bytes = bytes;
    receive->done = true;
}

static tr_status local_post_send(tr_transport *transport, int peer, int tag, const void *buffer,
                                 size_t bytes, tr_message *request) {
    hub *h = hub_of(transport);
    mailbox *box = &h->box[peer];
    *request = (tr_message){.bytes = bytes, .peer = peer, .tag = tag};
    tr_status status = TR_OK;
    pthread_mutex_lock(&h->lock);
    for (tr_message **at = &box->posted; *at; at = &(*at)->next) {
        tr_message *receive = *at;
        if (receive->peer != transport->rank || receive->tag != tag) continue;
        *at = receive->next;
        if (!*at) box->posted_end = at;
        deliver(receive, buffer, bytes);
        request->done = true;
        box_change(box);
        goto out;
    }
    letter *l;
    TR_TRY_OUT(tr_calloc(1, sizeof *l, &l));
    *l = (letter){
        .from = transport->rank, .tag = tag, .bytes = bytes, .data = buffer, .send = request};
    *box->letters_end = l;
    box->letters_end = &l->next;
out:
    pthread_mutex_unlock(&h->lock);
    return status;
}

static tr_status local_post_recv(tr_transport *transport, int peer, int tag, void *buffer,
                                 size_t bytes, tr_message *request) {
    hub *h = hub_of(transport);
    mailbox *box = &h->box[transport->rank];
    *request = (tr_message){.buffer = buffer, .bytes = bytes, .peer = peer, .tag = tag};
    pthread_mutex_lock(&h->lock);
    for (letter **at = &box->letters; *at; at = &(*at)->next) {
        letter *l = *at;
        if (l->from != peer || l->tag != tag) continue;
        *at = l->next;
        if (!*at) box->letters_end = at;
        deliver(request, l->data, l->bytes);
        l->send->done = true;
        box_change(&h->box[peer]);
        free(l);
        goto out;
    }
    *box->posted_end = request;
    box->posted_end = &request->next;
out:
    pthread_mutex_unlock(&h->lock);
    return TR_OK;
}

static tr_status local_test(tr_transport *transport, tr_message *request, bool *done) {
    hub *h = hub_of(transport);
    pthread_mutex_lock(&h->lock); /* the peer's thread sets `done` */
    *done = request->done;
    pthread_mutex_unlock(&h->lock);
    return TR_OK;
}

static bool local_cancel(tr_transport *transport, tr_message *request) {
    hub *h = hub_of(transport);
    pthread_mutex_lock(&h->lock);
    mailbox *mine = &h->box[transport->rank], *peers = &h->box[request->peer];
    for (tr_message **at = &mine->posted; *at; at = &(*at)->next)
        if (*at == request) {
            *at = request->next;
            if (!*at) mine->posted_end = at;
            break;
        }
    for (letter **at = &peers->letters; *at; at = &(*at)->next)
        if ((*at)->send == request) {
            letter *l = *at;
            *at = l->next;
            if (!*at) peers->letters_end = at;
            free(l);
            break;
        }
    request->done = true;
    pthread_mutex_unlock(&h->lock);
    return true;
}

static tr_status local_progress(tr_transport *transport) {
    hub *h = hub_of(transport);
    pthread_mutex_lock(&h->lock);
    bool aborted = h->aborted;
    int code = h->abort_code;
    h->box[transport->rank].seen = h->box[transport->rank].changes;
    pthread_mutex_unlock(&h->lock);
    if (aborted) return TR_FAIL(TR_ERR_RANK, "another rank ended the run with exit code %d", code);
    return TR_OK;
}

static void local_pause(tr_transport *transport, double seconds) {
    hub *h = hub_of(transport);
    const int64_t until = tr_now_ns() + (int64_t)(seconds * 1e9);
    pthread_mutex_lock(&h->lock);
    mailbox *box = &h->box[transport->rank];
    /* A loop, because a change between the last look and this call must not be missed. */
    while (box->changes == box->seen && !h->aborted)
        if (!tr_cond_wait_until(&box->changed, &h->lock, until)) break;
    pthread_mutex_unlock(&h->lock);
}

static void local_abort(tr_transport *transport, int code) {
    hub *h = hub_of(transport);
    pthread_mutex_lock(&h->lock);
    if (!h->aborted) {
        h->aborted = true;
        h->abort_code = code;
    }
    for (int i = 0; i < h->n; i++) box_change(&h->box[i]);
    pthread_mutex_unlock(&h->lock);
}

static void hub_free(hub *h) {
    for (int i = 0; i < h->n; i++) {
        for (letter *l = h->box[i].letters; l;) {
            letter *next = l->next;
            free(l);
            l = next;
        }
        pthread_cond_destroy(&h->box[i].changed);
    }
    pthread_mutex_destroy(&h->lock);
    free(h);
}

static void local_close(tr_transport *transport, bool failed) {
    hub *h = hub_of(transport);
    /* No rank may wait for one that has ended. */
    if (failed) local_abort(transport, TR_ERR_RANK);
    pthread_mutex_lock(&h->lock);
    bool last = --h->open == 0;
    pthread_mutex_unlock(&h->lock);
    if (last) hub_free(h);
    free(transport);
}

static const tr_transport_ops ops = {
    .name = "local",
    .post_send = local_post_send,
    .post_recv = local_post_recv,
    .test = local_test,
    .cancel = local_cancel,
    .progress = local_progress,
    .pause = local_pause,
    .abort = local_abort,
    .close = local_close,
};

tr_status tr_transport_open_local(int n, tr_transport **out) {
    hub *h;
    TR_TRY(tr_calloc(1, sizeof *h + (size_t)n * sizeof h->box[0], &h));
    *h = (hub){.n = n};
    pthread_mutex_init(&h->lock, NULL);
    for (int i = 0; i < n; i++) {
        mailbox *box = &h->box[i];
        box->posted_end = &box->posted;
        box->letters_end = &box->letters;
        tr_cond_init(&box->changed);
    }
    tr_status status = TR_OK;
    const int cores = tr_cores_count();
    for (; h->open < n; h->open++) {
        tr_transport_local *t;
        TR_TRY_OUT(tr_calloc(1, sizeof *t, &t));
        t->base = (tr_transport){.ops = &ops,
                                 .rank = h->open,
                                 .size = n,
                                 .host_rank = h->open,
                                 .cores = cores > n ? cores / n : 1,
                                 .tag_limit = 1 << 30};
        t->hub = h;
        out[h->open] = &t->base;
    }
    return TR_OK;
out:
    while (h->open > 0) free(out[--h->open]);
    hub_free(h);
    return status;
}
