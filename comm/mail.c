#include "comm/mail.h"

#include "base/memory.h"
#include "base/wait.h"
#include "comm/world_impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The world's lock is seldom held for longer; a call that does not get it has no effect. */
enum { LOCK_TIMEOUT_NS = 100000000 };

struct tr_mail {
    tr_world *world;
    int peer;
    size_t in_bytes, out_bytes;
    void *in, *out;
    tr_message receive, send;
    bool receiving, sending;
    atomic_bool failed;
};

static bool lock(tr_mail *mail) {
    return !mail->failed && tr_lock_within(&mail->world->lock, LOCK_TIMEOUT_NS);
}

static void unlock(tr_mail *mail) {
    pthread_mutex_unlock(&mail->world->lock);
    tr_error_clear();
}

/* Makes a failure silence the mail. Under the lock, like the functions below. */
static bool check(tr_mail *mail, tr_status status) {
    if (status != TR_OK) mail->failed = true;
    return status == TR_OK;
}

/* Tests a request that was handed to the transport (*posted), and sets *posted to false when it is
 * done. */
static void finish(tr_mail *mail, tr_message *request, bool *posted) {
    tr_transport *t = mail->world->transport;
    bool done = false;
    if (*posted && check(mail, t->ops->test(t, request, &done)) && done) *posted = false;
}

static void post_receive(tr_mail *mail) {
    tr_transport *t = mail->world->transport;
    mail->receiving = check(mail, t->ops->post_recv(t, mail->peer, TR_TAG_MAIL, mail->in,
                                                    mail->in_bytes, &mail->receive));
}

tr_status tr_mail_open(tr_world *world, int peer, size_t in_bytes, size_t out_bytes,
                       tr_mail **out) {
    tr_status status = TR_OK;
    tr_mail *mail;
    TR_TRY(tr_calloc(1, sizeof *mail, &mail));
    *mail = (tr_mail){.world = world, .peer = peer, .in_bytes = in_bytes, .out_bytes = out_bytes};
    TR_TRY_OUT(tr_calloc(1, in_bytes, &mail->in));
    TR_TRY_OUT(tr_calloc(1, out_bytes, &mail->out));
    pthread_mutex_lock(&world->lock);
    post_receive(mail);
    pthread_mutex_unlock(&world->lock);
    *out = mail;
    return TR_OK;
out:
    tr_mail_close(mail);
    return status;
}

bool tr_mail_send(tr_mail *mail, const void *message, size_t bytes) {
    tr_transport *t = mail->world->transport;
    if (bytes > mail->out_bytes || !lock(mail)) return false;
    finish(mail, &mail->send, &mail->sending);
    bool sent = false;
    if (!mail->sending && !mail->failed) {
        memcpy(mail->out, message, bytes);
        sent = check(mail,
                     t->ops->post_send(t, mail->peer, TR_TAG_MAIL, mail->out, bytes, &mail->send));
        mail->sending = sent;
    }
    unlock(mail);
    return sent;
}

const void *tr_mail_take(tr_mail *mail, size_t *bytes) {
    tr_transport *t = mail->world->transport;
    if (!lock(mail)) return NULL;
    if (!mail->receiving) post_receive(mail);
    (void)t->ops->progress(t);
    finish(mail, &mail->receive, &mail->receiving);
    bool arrived = !mail->receiving && !mail->failed;
    if (bytes) *bytes = mail->receive.bytes;
    unlock(mail);
    return arrived ? mail->in : NULL;
}

bool tr_mail_is_sent(tr_mail *mail) {
    if (mail->failed) return true;
    if (!lock(mail)) return false;
    (void)mail->world->transport->ops->progress(mail->world->transport);
    finish(mail, &mail->send, &mail->sending);
    bool sent = !mail->sending;
    unlock(mail);
    return sent;
}

bool tr_mail_has_failed(const tr_mail *mail) {
    return mail->failed;
}

void tr_mail_close(tr_mail *mail) {
    if (!mail) return;
    tr_world *world = mail->world;
    pthread_mutex_lock(&world->lock);
    if (mail->receiving) tr_world_withdraw(world, &mail->receive);
    if (mail->sending) tr_world_withdraw(world, &mail->send);
    pthread_mutex_unlock(&world->lock);
    if (tr_world_keeps_memory(world)) return;
    free(mail->in);
    free(mail->out);
    free(mail);
}
