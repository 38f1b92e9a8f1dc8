#include "comm/heartbeat.h"

#include "base/clock.h"
#include "base/memory.h"
#include "comm/world_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int64_t period_ns = 1000000000;
static const int64_t lock_ns = 100000000; /* a turn is left out when the lock is held for longer */
/* How long a rank that leaves waits for its last messages to leave, and for those of its peers. */
static const double flush_s = 1, farewell_s = 5;

/* One rank in a message. Ages instead of times, since each host has its own clock. */
typedef struct beat {
    int32_t rank, stage, wait_peer;
    char action;
    bool waiting;
    int64_t step, micro_batch;
    int64_t beat_age_ns, action_age_ns, wait_age_ns;
    char wait_what[48];
} beat;

typedef struct message {
    int32_t code;  /* 0: the job goes on, and `body` holds beats; else it holds the sentence */
    int32_t bye;   /* the last message */
    int32_t count; /* beats */
    _Alignas(8) unsigned char body[];
} message;

/* The messages to and from one other leader. */
typedef struct peer_link {
    int peer;
    int *ranks; /* [n], ascending: the ranks that the peer's messages may show */
    int n;
    message *in, *out;
    size_t in_bytes;
    tr_request receive, send;
    bool receiving, sending;
    bool told;            /* the end of the job has been sent */
    bool left, peer_left; /* the last message has been sent, has arrived */
    bool failed;
    int64_t sent_ns;
} peer_link;

struct tr_heartbeat {
    tr_world *world;
    tr_board *board;
    int *leader; /* [size]: the leader of each rank's host */
    int links;
    peer_link *link;
    int beats;            /* ranks that this rank's messages show, at most */
    tr_heartbeat_end end; /* to be told; code 0: none */
    bool leaving;
};

/* What a rank tells all others when heartbeats begin. */
typedef struct place {
    uint64_t board;
    int64_t pid;
    char host[64];
} place;

/* --- messages --------------------------------------------------------------------------------- */

static size_t body_bytes(int ranks) {
    size_t beats = (size_t)ranks * sizeof(beat), sentence = sizeof((tr_heartbeat_end){0}.sentence);
    return beats > sentence ? beats : sentence;
}

/* Under the lock, as all below that take a link. A transport that fails has a reason of its own to
 * end the job; here its link only becomes silent. */
static bool check(peer_link *l, tr_status status) {
    if (status == TR_OK) return true;
    tr_error_clear();
    l->failed = true;
    return false;
}

static void post_receive(tr_heartbeat *h, peer_link *l) {
    tr_transport *t = h->world->transport;
    l->receiving =
        check(l, t->ops->post_recv(t, l->peer, TR_TAG_HEARTBEAT, l->in, l->in_bytes, &l->receive));
}

static bool is_done(tr_heartbeat *h, peer_link *l, tr_request *request) {
    tr_transport *t = h->world->transport;
    bool done = false;
    return check(l, t->ops->test(t, request, &done)) && done;
}

static beat make_beat(int rank, const tr_rank_view *v) {
    int64_t now = tr_now_ns();
    beat b = {.rank = rank,
              .stage = v->stage,
              .wait_peer = v->wait_peer,
              .action = v->action,
              .waiting = v->waiting,
              .step = v->step,
              .micro_batch = v->micro_batch,
              .beat_age_ns = now - v->beat_ns,
              .action_age_ns = now - v->action_ns,
              .wait_age_ns = now - v->wait_ns};
    memcpy(b.wait_what, v->wait_what, sizeof b.wait_what);
    return b;
}

/* The living ranks of this host (rank 0 alone on its host) into a message; returns the bytes. */
static size_t put_beats(const tr_heartbeat *h, message *m) {
    for (int r = h->world->rank; r < h->world->size && m->count < h->beats; r++) {
        tr_rank_view v;
        tr_board_read(h->board, r, &v);
        if (v.state != TR_RANK_ALIVE) continue;
        beat b = make_beat(r, &v);
        memcpy(m->body + (size_t)m->count++ * sizeof b, &b, sizeof b);
    }
    return (size_t)m->count * sizeof(beat);
}

static void post_message(tr_heartbeat *h, peer_link *l) {
    tr_transport *t = h->world->transport;
    message *m = l->out;
    *m = (message){.code = h->end.code, .bye = h->leaving};
    size_t bytes = sizeof h->end.sentence;
    if (m->code) memcpy(m->body, h->end.sentence, bytes);
    else bytes = put_beats(h, m);
    l->sending =
        check(l, t->ops->post_send(t, l->peer, TR_TAG_HEARTBEAT, m, sizeof *m + bytes, &l->send));
    l->sent_ns = tr_now_ns();
    l->told = m->code != 0;
    l->left = m->bye;
}

static bool is_due(const tr_heartbeat *h, const peer_link *l) {
    if (l->failed || l->sending || l->left) return false;
    return h->leaving || (h->end.code && !l->told) || tr_now_ns() - l->sent_ns >= period_ns;
}

/* Shows the ranks of a message on the board; those of its host that it leaves out have finished. */
static void show_beats(tr_heartbeat *h, const peer_link *l, const message *m) {
    int64_t now = tr_now_ns();
    int at = 0;
    for (int i = 0; i < l->n; i++) {
        beat b = {.rank = -1};
        if (at < m->count) memcpy(&b, m->body + (size_t)at * sizeof b, sizeof b);
        if (b.rank != l->ranks[i]) {
            tr_board_drop_remote(h->board, l->ranks[i]);
            continue;
        }
        at++;
        tr_rank_view v = {.step = b.step,
                          .stage = b.stage,
                          .micro_batch = b.micro_batch,
                          .action = b.action,
                          .beat_ns = now - b.beat_age_ns,
                          .action_ns = now - b.action_age_ns,
                          .waiting = b.waiting,
                          .wait_ns = now - b.wait_age_ns,
                          .wait_peer = b.wait_peer};
        memcpy(v.wait_what, b.wait_what, sizeof v.wait_what);
        tr_board_show_remote(h->board, b.rank, &v);
    }
}

/* True when the message tells the end of the job. */
static bool take_message(tr_heartbeat *h, peer_link *l, tr_heartbeat_end *end) {
    const message *m = l->in;
    if (m->bye) l->peer_left = true;
    if (!m->code) {
        show_beats(h, l, m->bye ? &(message){0} : m);
        return false;
    }
    end->code = m->code;
    memcpy(end->sentence, m->body, sizeof end->sentence);
    end->sentence[sizeof end->sentence - 1] = '\0';
    return true;
}

static bool turn_link(tr_heartbeat *h, peer_link *l, tr_heartbeat_end *end) {
    bool told = false;
    if (l->receiving && is_done(h, l, &l->receive)) {
        l->receiving = false;
        told = take_message(h, l, end);
        if (!l->peer_left && !l->failed) post_receive(h, l);
    }
    if (l->sending && is_done(h, l, &l->send)) l->sending = false;
    if (is_due(h, l)) post_message(h, l);
    return told;
}

static bool turn_links(tr_heartbeat *h, tr_heartbeat_end *end) {
    bool told = false;
    (void)h->world->transport->ops->progress(h->world->transport);
    for (int i = 0; i < h->links; i++) {
        if (turn_link(h, &h->link[i], end)) told = true;
    }
    tr_error_clear();
    return told;
}

bool tr_heartbeat_turn(tr_heartbeat *heartbeat, tr_heartbeat_end *end) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += lock_ns;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_mutex_timedlock(&heartbeat->world->lock, &until) != 0) return false;
    bool told = turn_links(heartbeat, end);
    pthread_mutex_unlock(&heartbeat->world->lock);
    return told;
}

void tr_heartbeat_tell(tr_heartbeat *heartbeat, int code, const char *sentence) {
    if (heartbeat->end.code) return;
    heartbeat->end.code = code;
    (void)snprintf(heartbeat->end.sentence, sizeof heartbeat->end.sentence, "%s", sentence);
}

/* --- leaving ---------------------------------------------------------------------------------- */

/* Takes turns until every link's last message has left (and the peer's has come), or for so long.
 */
static void flush(tr_heartbeat *h, bool hear, double seconds) {
    tr_heartbeat_end ignored;
    for (double end = tr_now_s() + seconds; tr_now_s() < end;) {
        pthread_mutex_lock(&h->world->lock);
        (void)turn_links(h, &ignored);
        bool done = true;
        for (int i = 0; i < h->links; i++) {
            const peer_link *l = &h->link[i];
            done = done && (l->failed || (l->left && !l->sending && (l->peer_left || !hear)));
        }
        pthread_mutex_unlock(&h->world->lock);
        if (done) return;
        h->world->transport->ops->pause(h->world->transport, 1e-3);
    }
}

void tr_heartbeat_bye(tr_heartbeat *heartbeat) {
    if (!heartbeat || heartbeat->leaving) return;
    heartbeat->leaving = true;
    flush(heartbeat, false, flush_s);
}

void tr_heartbeat_close(tr_heartbeat *h, bool failed) {
    if (!h) return;
    tr_heartbeat_bye(h);
    if (!failed) flush(h, true, farewell_s);
    tr_transport *t = h->world->transport;
    pthread_mutex_lock(&h->world->lock);
    for (int i = 0; i < h->links; i++) {
        peer_link *l = &h->link[i];
        /* Memory that the transport may still touch stays until the process ends. */
        if (!l->receiving || t->ops->cancel(t, &l->receive)) free(l->in);
        if (!l->sending || t->ops->cancel(t, &l->send)) free(l->out);
        free(l->ranks);
    }
    pthread_mutex_unlock(&h->world->lock);
    free(h->link);
    free(h->leader);
    free(h);
}

/* --- opening ---------------------------------------------------------------------------------- */

static tr_status open_link(tr_heartbeat *h, int peer, peer_link *l) {
    l->peer = peer;
    TR_TRY(tr_calloc((size_t)h->world->size, sizeof *l->ranks, &l->ranks));
    for (int r = 0; r < h->world->size; r++) {
        /* Rank 0 tells of itself alone. */
        if (h->leader[r] == peer && (peer != 0 || r == 0)) l->ranks[l->n++] = r;
    }
    l->in_bytes = sizeof(message) + body_bytes(l->n);
    TR_TRY(tr_calloc(1, l->in_bytes, &l->in));
    TR_TRY(tr_calloc(1, sizeof(message) + body_bytes(h->beats), &l->out));
    return TR_OK;
}

/* Rank 0 has a link to each other leader, a leader one to rank 0. */
static tr_status open_links(tr_heartbeat *h) {
    int size = h->world->size, me = h->world->rank;
    for (int r = 0; r < size; r++) h->beats += h->leader[r] == me;
    if (me == 0) h->beats = 1;
    TR_TRY(tr_calloc((size_t)size, sizeof *h->link, &h->link));
    for (int r = 0; r < size; r++) {
        if (h->leader[r] != r || r == me || (me != 0 && r != 0)) continue;
        TR_TRY(open_link(h, r, &h->link[h->links++]));
    }
    return TR_OK;
}

/* The hosts' leaders, from every rank's place; false when there is one host. */
static bool find_leaders(const place *all, int size, int *leader) {
    bool several = false;
    for (int r = 0; r < size; r++) {
        leader[r] = r;
        for (int q = 0; q < r && leader[r] == r; q++) {
            if (all[q].board == all[r].board) leader[r] = q;
        }
        several = several || leader[r] != 0;
    }
    return several;
}

static void show_places(tr_heartbeat *h, const place *all) {
    int64_t now = tr_now_ns();
    for (int i = 0; i < h->links; i++) {
        const peer_link *l = &h->link[i];
        for (int k = 0; k < l->n; k++) {
            const place *p = &all[l->ranks[k]];
            tr_rank_view v = {.pid = (pid_t)p->pid,
                              .beat_ns = now,
                              .step = -1,
                              .stage = -1,
                              .micro_batch = -1,
                              .wait_peer = -1};
            memcpy(v.host, p->host, sizeof v.host);
            tr_board_show_remote(h->board, l->ranks[k], &v);
        }
    }
}

/* With all[size], every rank's place: the links of a leader, or *out NULL. */
static tr_status begin(tr_world *world, tr_board *board, const place *all, tr_heartbeat **out) {
    tr_heartbeat *h;
    TR_TRY(tr_calloc(1, sizeof *h, &h));
    h->world = world;
    h->board = board;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)world->size, sizeof *h->leader, &h->leader));
    if (!find_leaders(all, world->size, h->leader)) goto out;
    tr_board_set_leader(board, h->leader[world->rank]);
    if (h->leader[world->rank] != world->rank) goto out;
    TR_TRY_OUT(open_links(h));
    show_places(h, all);
    pthread_mutex_lock(&world->lock);
    for (int i = 0; i < h->links; i++) post_receive(h, &h->link[i]);
    pthread_mutex_unlock(&world->lock);
    *out = h;
    return TR_OK;
out:
    h->leaving = true;
    tr_heartbeat_close(h, true);
    return status;
}

tr_status tr_heartbeat_open(tr_world *world, tr_board *board, tr_heartbeat **out) {
    *out = NULL;
    if (world->size == 1) return TR_OK;
    place mine = {.board = tr_board_id(board), .pid = getpid()}, *all;
    if (gethostname(mine.host, sizeof mine.host - 1) != 0) mine.host[0] = '\0';
    tr_status status = tr_calloc((size_t)world->size, sizeof *all, &all);
    if (status != TR_OK) tr_world_give_up(world, status);
    TR_TRY(status);
    status = tr_world_gather_all(world, &mine, all, sizeof mine);
    if (status == TR_OK) status = begin(world, board, all, &world->heartbeat);
    free(all);
    TR_TRY(status);
    *out = world->heartbeat;
    return TR_OK;
}
