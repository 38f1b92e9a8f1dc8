/* Code shared by all channels: those of channel_host.c for host memory, of channel_staged.c for
 * device memory over the host transports, and of nccl_channel.c. */
#include "comm/nccl_impl.h"

#include <math.h>

tr_status tr_channel_poke(tr_channel *channel) {
    tr_poll poll;
    tr_status status;
    do { /* a small send is complete as soon as it is posted, which the second round finds */
        poll = (tr_poll){.next = INFINITY};
        status = channel->ops->poll(channel, &poll);
    } while (status == TR_OK && poll.moved);
    if (status != TR_OK) (void)tr_world_fail(channel->world, status, tr_error_message());
    else if (poll.outstanding) tr_poller_wake(channel->world, channel->sending);
    return status;
}

tr_status tr_channel_check_size(const tr_channel *channel, int64_t number, size_t bytes,
                                size_t expected) {
    if (bytes == expected) return TR_OK;
    return TR_FAIL(TR_ERR_INTERNAL, "message %lld from rank %d has %zu bytes instead of %zu",
                   (long long)number, channel->peer, bytes, expected);
}

/* Adds the channel to those that the progress thread polls. */
static tr_status enlist(tr_channel *channel) {
    tr_world *world = channel->world;
    pthread_mutex_lock(&world->lock);
    channel->next = world->channels;
    world->channels = channel;
    tr_status status = tr_channel_poke(channel);
    pthread_mutex_unlock(&world->lock);
    return status;
}

void tr_channel_unlist(tr_channel *channel) {
    for (tr_channel **at = &channel->world->channels; *at; at = &(*at)->next)
        if (*at == channel) {
            *at = channel->next;
            return;
        }
}

tr_status tr_channel_open(tr_world *world, tr_device *device, int peer, bool sending,
                          size_t max_bytes, tr_channel **out) {
    if (peer < 0 || peer >= world->size || peer == world->rank)
        return TR_FAIL(TR_ERR_INTERNAL, "rank %d of %d cannot open a channel with rank %d",
                       world->rank, world->size, peer);
    const tr_channel_desc desc = {
        .world = world, .device = device, .peer = peer, .sending = sending, .max_bytes = max_bytes};
    tr_channel *c;
    TR_TRY(tr_world_by_nccl(world, device) ? tr_channel_make_nccl(&desc, &c)
           : tr_device_on_host(device)     ? tr_channel_make_host(&desc, &c)
                                           : tr_channel_make_staged(&desc, &c));
    tr_status status = c->ops->poll ? enlist(c) : TR_OK;
    if (status != TR_OK) {
        tr_channel_close(c);
        return tr_trace_at(__FILE__, __LINE__, status);
    }
    *out = c;
    return TR_OK;
}

void tr_channel_close(tr_channel *channel) {
    if (channel) channel->ops->close(channel);
}

tr_status tr_channel_send(tr_channel *channel, tr_stream *stream, const void *buffer, size_t bytes,
                          int64_t *ticket) {
    if (!channel->sending || bytes > channel->max_bytes)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "a send of %zu bytes does not fit the channel with rank %d for %s%zu bytes",
                       bytes, channel->peer, channel->sending ? "" : "receiving ",
                       channel->max_bytes);
    TR_TRY(channel->ops->send(channel, stream, buffer, bytes, ticket));
    return TR_OK;
}

tr_status tr_channel_wait_sent(tr_channel *channel, tr_stream *stream, int64_t ticket) {
    TR_TRY(channel->ops->wait_sent(channel, stream, ticket));
    return TR_OK;
}

tr_status tr_channel_expect(tr_channel *channel, const size_t *sizes, int n) {
    if (channel->ops->expect) TR_TRY(channel->ops->expect(channel, sizes, n));
    return TR_OK;
}

tr_status tr_channel_take(tr_channel *channel, tr_stream *stream, void *to, size_t bytes) {
    if (channel->sending || bytes > channel->max_bytes)
        return TR_FAIL(TR_ERR_INTERNAL,
                       "a take of %zu bytes does not fit the channel with rank %d for %s%zu bytes",
                       bytes, channel->peer, channel->sending ? "sending " : "",
                       channel->max_bytes);
    TR_TRY(channel->ops->take(channel, stream, to, bytes));
    return TR_OK;
}
