/* Small messages between two ranks that no computation waits for, such as heartbeats between hosts.
 *
 * Both ranks open a mail to each other. Each holds one message on its way out and one that has
 * arrived. No call blocks for longer than 0.1 s: a call that does not get the world's lock within
 * that time does nothing. A mail whose transport fails becomes silent: the failure itself ends the
 * job elsewhere. */
#pragma once

#include "comm/comm.h"

typedef struct tr_mail tr_mail;

/* Not collective. in_bytes, out_bytes: the largest message in each direction. One mail for each
 * pair of ranks of a world; close it before the world. */
tr_status tr_mail_open(tr_world *world, int peer, size_t in_bytes, size_t out_bytes, tr_mail **out);
/* Sends a copy of the message. Returns false, and sends nothing, while the message before it is on
 * its way, and after a failure. */
bool tr_mail_send(tr_mail *mail, const void *message, size_t bytes);
/* Returns the next message, which stays valid until the next call, or NULL when none has arrived.
 * *bytes (may be NULL) is its size. */
const void *tr_mail_take(tr_mail *mail, size_t *bytes);
/* True when no message is on its way out, or the mail has failed. */
bool tr_mail_is_sent(tr_mail *mail);
bool tr_mail_has_failed(const tr_mail *mail);
/* Withdraws what is on its way. NULL is fine. */
void tr_mail_close(tr_mail *mail);
