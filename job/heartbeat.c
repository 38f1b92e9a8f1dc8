#include "job/heartbeat.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/mail.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int64_t PERIOD_NS = 1000000000;
/* How long a rank that leaves waits until its last messages are sent, and until its peers'
 * arrive. */
static const double FLUSH_S = 1, FAREWELL_S = 5;

/* One rank in a message. It has ages instead of times, since each host has its own clock. */
typedef struct beat {
    int32_t rank, stage, wait_peer;
    char action;
    bool waiting;
    int64_t step, micro_batch;
    int64_t beat_age_ns, action_age_ns, wait_age_ns;
    char wait_what[48];
} beat;

typedef struct message {
    int32_t code;  /* 0: the job continues, and `body` holds beats; otherwise the sentence */
    int32_t bye;   /* the last message */
    int32_t count; /* beats */
    _Alignas(8) unsigned char body[];
} message;

/* The messages to and from one other leader. */
typedef struct peer_link {
    int peer;
    int *ranks; /* [n], ascending: the ranks that the peer's messages may show */
    int n;
    tr_mail *mail;
    message *out;         /* the next one is built here */
    bool told;            /* the end of the job has been sent */
    bool left, peer_left; /* the last message was sent; the peer's last message arrived */
    int64_t sent_ns;
} peer_link;

struct tr_heartbeat {
    tr_world *world;
    tr_board *board;
    int *leader; /* [size]: the leader of each rank's host */
    int links;
    peer_link *link;
    int beats;            /* ranks that this rank's messages show, at most */
    tr_heartbeat_end end; /* to be announced; code 0: none */
    bool leaving;
};

/* The data that each rank sends all others when heartbeats begin. */
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

/* Writes the living ranks of this host (on rank 0's host, only rank 0) to a message; returns its
 * bytes. */
static size_t put_beats(const tr_heartbeat *h, message *m) {
    int size = tr_world_size(h->world);
    for (int r = tr_world_rank(h->world); r < size && m->count < h->beats; r++) {
        tr_rank_view v;
        tr_board_read(h->board, r, &v);
        if (v.state != TR_RANK_ALIVE) continue;
        beat b = make_beat(r, &v);
        memcpy(m->body + (size_t)m->count++ * sizeof b, &b, sizeof b);
    }
    return (size_t)m->count * sizeof(beat);
}

static void send_message(tr_heartbeat *h, peer_link *l) {
    message *m = l->out;
    *m = (message){.code = h->end.code, .bye = h->leaving};
    size_t bytes = sizeof h->end.sentence;
    if (m->code) memcpy(m->body, h->end.sentence, bytes);
    else bytes = put_beats(h, m);
    if (!tr_mail_send(l->mail, m, sizeof *m + bytes)) return;
    l->sent_ns = tr_now_ns();
    l->told = m->code != 0;
    l->left = m->bye;
}

static bool is_due(const tr_heartbeat *h, const peer_link *l) {
    if (l->left) return false;
    return h->leaving || (h->end.code && !l->told) || tr_now_ns() - l->sent_ns >= PERIOD_NS;
}

/* Shows the ranks of a message on the board. Ranks of its host that it leaves out have finished. */
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

/* Returns true when the message announces the end of the job. */
static bool take_message(tr_heartbeat *h, peer_link *l, const message *m, tr_heartbeat_end *end) {
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

bool tr_heartbeat_turn(tr_heartbeat *h, tr_heartbeat_end *end) {
    bool told = false;
    for (int i = 0; i < h->links; i++) {
        peer_link *l = &h->link[i];
        const message *m = l->peer_left ? NULL : tr_mail_take(l->mail, NULL);
        if (m && take_message(h, l, m, end)) told = true;
        if (is_due(h, l)) send_message(h, l);
    }
    return told;
}

void tr_heartbeat_tell(tr_heartbeat *heartbeat, int code, const char *sentence) {
    if (heartbeat->end.code) return;
    heartbeat->end.code = code;
    (void)tr_text_fit(heartbeat->end.sentence, sizeof heartbeat->end.sentence, sentence);
}

/* --- leaving ---------------------------------------------------------------------------------- */

static bool has_left(const peer_link *l, bool hear) {
    if (tr_mail_has_failed(l->mail)) return true;
    return l->left && tr_mail_is_sent(l->mail) && (l->peer_left || !hear);
}

/* Takes turns until every link's last message was sent (with `hear`: and the peer's has arrived),
 * or for at most `seconds`. */
static void flush(tr_heartbeat *h, bool hear, double seconds) {
    const struct timespec pause = {.tv_nsec = 1000000};
    tr_heartbeat_end ignored;
    for (double end = tr_now_s() + seconds; tr_now_s() < end;) {
        (void)tr_heartbeat_turn(h, &ignored);
        bool done = true;
        for (int i = 0; i < h->links; i++) done = done && has_left(&h->link[i], hear);
        if (done) return;
        (void)nanosleep(&pause, NULL);
    }
}

void tr_heartbeat_bye(tr_heartbeat *heartbeat) {
    if (!heartbeat || heartbeat->leaving) return;
    heartbeat->leaving = true;
    flush(heartbeat, false, FLUSH_S);
}

/* Waits for the last messages, unless the world failed, and frees the heartbeat. The world calls
 * it. */
static void close_heartbeat(void *context, bool failed) {
    tr_heartbeat *h = context;
    tr_heartbeat_bye(h);
    if (!failed) flush(h, true, FAREWELL_S);
    for (int i = 0; i < h->links; i++) {
        tr_mail_close(h->link[i].mail);
        free(h->link[i].out);
        free(h->link[i].ranks);
    }
    free(h->link);
    free(h->leader);
    free(h);
}

/* --- opening ---------------------------------------------------------------------------------- */

static tr_status open_link(tr_heartbeat *h, int peer, peer_link *l) {
    l->peer = peer;
    int size = tr_world_size(h->world);
    TR_TRY(tr_calloc((size_t)size, sizeof *l->ranks, &l->ranks));
    for (int r = 0; r < size; r++) {
        /* Rank 0's messages show only rank 0. */
        if (h->leader[r] == peer && (peer != 0 || r == 0)) l->ranks[l->n++] = r;
    }
    size_t in_bytes = sizeof(message) + body_bytes(l->n);
    size_t out_bytes = sizeof(message) + body_bytes(h->beats);
    TR_TRY(tr_calloc(1, out_bytes, &l->out));
    TR_TRY(tr_mail_open(h->world, peer, in_bytes, out_bytes, &l->mail));
    return TR_OK;
}

/* Opens a link from rank 0 to each other leader, and from each leader to rank 0. */
static tr_status open_links(tr_heartbeat *h) {
    int size = tr_world_size(h->world), me = tr_world_rank(h->world);
    for (int r = 0; r < size; r++) h->beats += h->leader[r] == me;
    if (me == 0) h->beats = 1;
    TR_TRY(tr_calloc((size_t)size, sizeof *h->link, &h->link));
    for (int r = 0; r < size; r++) {
        if (h->leader[r] != r || r == me || (me != 0 && r != 0)) continue;
        TR_TRY(open_link(h, r, &h->link[h->links++]));
    }
    return TR_OK;
}

/* Finds each host's leader from every rank's place; returns false when there is only one host. */
static bool find_leaders(const place *all, int size, int *leader) {
    bool several = false;
    for (int r = 0; r < size; r++) {
        leader[r] = r;
        for (int q = 0; q < r && leader[r] == r; q++)
            if (all[q].board == all[r].board) leader[r] = q;
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

/* Opens the links of a leader, given every rank's place all[size]; *out is NULL on other ranks. */
static tr_status begin(tr_world *world, tr_board *board, const place *all, tr_heartbeat **out) {
    int size = tr_world_size(world), me = tr_world_rank(world);
    tr_heartbeat *h;
    TR_TRY(tr_calloc(1, sizeof *h, &h));
    h->world = world;
    h->board = board;
    tr_status status = TR_OK;
    TR_TRY_OUT(tr_calloc((size_t)size, sizeof *h->leader, &h->leader));
    if (!find_leaders(all, size, h->leader)) goto out;
    tr_board_set_leader(board, h->leader[me]);
    if (h->leader[me] != me) goto out;
    TR_TRY_OUT(open_links(h));
    show_places(h, all);
    tr_world_before_close(world, close_heartbeat, h);
    *out = h;
    return TR_OK;
out:
    h->leaving = true;
    close_heartbeat(h, true);
    return status;
}

tr_status tr_heartbeat_open(tr_world *world, tr_board *board, tr_heartbeat **out) {
    int size = tr_world_size(world);
    *out = NULL;
    if (size == 1) return TR_OK;
    place mine = {.board = tr_board_id(board), .pid = getpid()}, *all;
    if (gethostname(mine.host, sizeof mine.host - 1) != 0) mine.host[0] = '\0';
    tr_status status = tr_calloc((size_t)size, sizeof *all, &all);
    if (status != TR_OK) tr_world_give_up(world, status);
    TR_TRY(status);
    status = tr_world_gather_all(world, &mine, all, sizeof mine);
    if (status == TR_OK) status = begin(world, board, all, out);
    free(all);
    TR_TRY(status);
    return TR_OK;
}
