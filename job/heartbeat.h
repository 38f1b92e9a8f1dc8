/* Heartbeats between hosts, by which a job notices a rank of another host that stops responding.
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
    char sentence[1024]; /* the receiving host prints it; "": it has been printed */
} tr_heartbeat_end;

/* Starts heartbeats between hosts. Collective, once for a world, after every rank has attached to
 * its board. Shows ranks of other hosts on the boards that will receive their heartbeats. *out is
 * NULL when this rank is not a leader, and when all ranks share one board. The world owns *out and
 * frees it in tr_world_close; the board must stay open until then. */
tr_status tr_heartbeat_open(tr_world *world, tr_board *board, tr_heartbeat **out);
/* Receives the messages that have arrived and sends those that are due; waits at most 0.2 s a link.
 * One thread calls it a few times a second. Returns true when another host has announced the end of
 * the job, which *end then describes. A link that fails delivers nothing more, and reports no
 * error. */
bool tr_heartbeat_turn(tr_heartbeat *heartbeat, tr_heartbeat_end *end);
/* Makes the next turn tell the other hosts that the job ends. */
void tr_heartbeat_tell(tr_heartbeat *heartbeat, int code, const char *sentence);
/* Sends the last message, after which the other hosts expect no heartbeats from here. No turn may
 * follow. NULL is allowed. */
void tr_heartbeat_bye(tr_heartbeat *heartbeat);
