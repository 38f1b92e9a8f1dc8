/* Small messages between two ranks, outside of training, such as heartbeats between hosts.
 *
 * Both ranks open a mail to each other. Each end holds one message that is being sent and one that
 * has arrived. Apart from opening and closing, no call blocks for longer than 0.1 s: a call that
 * does not get the world's lock within that time has no effect. When the transport fails, nothing
 * is sent or arrives any more; other code ends the job. */
#pragma once

#include "comm/comm.h"

typedef struct tr_mail tr_mail;

/* Opens this rank's end of a mail to `peer`. Not collective. in_bytes, out_bytes: the largest
 * message in each direction. A pair of ranks has one mail; close it before the world. */
tr_status tr_mail_open(tr_world *world, int peer, size_t in_bytes, size_t out_bytes, tr_mail **out);
/* Sends a copy of the message. Returns false without sending while the previous message is being
 * sent, and after a failure. */
bool tr_mail_send(tr_mail *mail, const void *message, size_t bytes);
/* Returns the next message, which stays valid until the next call, or NULL when none has arrived.
 * *bytes (may be NULL) is its size. */
const void *tr_mail_take(tr_mail *mail, size_t *bytes);
/* Returns true when no message is being sent, or the mail has failed. */
bool tr_mail_is_sent(tr_mail *mail);
bool tr_mail_has_failed(const tr_mail *mail);
/* Withdraws messages in flight and closes this end. NULL is allowed. */
void tr_mail_close(tr_mail *mail);
