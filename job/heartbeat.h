/* Heartbeats between hosts: how a rank that stops responding on another host is noticed.
 *
 * A board (job/board.h) is one host's memory. So the lowest rank of each host, its leader, sends a
 * message once a second: the leaders send rank 0 what their boards show, and rank 0 sends each
 * leader its own state. Rank 0's board then shows all ranks of the job, and the boards of the other
 * hosts show rank 0. The watchdogs judge by the boards, as on one host, with a longer limit
 * (job/watchdog.h). The end of the job travels the same way. About 100 bytes a rank and second
 * arrive at rank 0, so one star serves thousands of hosts.
 *
 * Ranks that share a board are on one host. */
#pragma once

#include "comm/comm.h"
#include "job/board.h"

typedef struct tr_heartbeat tr_heartbeat;

/* The end of the job. */
typedef struct tr_heartbeat_end {
    int code;
    char sentence[768]; /* to be printed by the host that receives it; "": it has been printed */
} tr_heartbeat_end;

/* Collective, once for a world, after every rank has attached to its board. Shows ranks of other
 * hosts on the boards that will hear of them. *out is NULL where this rank is not a leader, and
 * where all ranks share one board. The world owns *out: tr_world_close frees it. The board stays
 * open until then. */
tr_status tr_heartbeat_open(tr_world *world, tr_board *board, tr_heartbeat **out);
/* Receives what has arrived and sends what is due; waits at most 0.1 s a link. To be called a few
 * times a second by one thread. Returns true when another host has told that the job ends, with its
 * *end. A link that fails becomes silent, without an error. */
bool tr_heartbeat_turn(tr_heartbeat *heartbeat, tr_heartbeat_end *end);
/* The next turn tells the other hosts that the job ends. */
void tr_heartbeat_tell(tr_heartbeat *heartbeat, int code, const char *sentence);
/* Sends the last message: the other hosts expect no more heartbeats from here. No turn follows.
 * NULL is fine. */
void tr_heartbeat_bye(tr_heartbeat *heartbeat);
