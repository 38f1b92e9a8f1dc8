/* Proves that programs end, and that no instruction reads a tensor before it is made or received.
 * The proof has rendezvous over one first in, first out channel for each directed pair of ranks,
 * and no buffers. A program that ends here also ends with any number of buffers and at any speed,
 * because the waits do not depend on time.
 *
 * One pipeline line is enough. The other lines (data and tensor ranks) run the same programs and
 * meet in collectives at the same places. Mapping every line's instructions to this line's turns
 * each wait between lines into a wait within this line, so a cycle among them would be a cycle
 * here. */
#pragma once

#include "pipeline/program/lower.h"

/* Returns TR_OK when all ranks reach their end. A SEND does not wait, a RECV waits until its
 * message is sent, a WAIT_SENT until it is taken. A bucket's reduction is a collective of its
 * ranks: REDUCE_START does not wait, and REDUCE_WAIT waits until all of them have started it, and
 * have ended the collectives that they started before; so do GATHER_START and GATHER_WAIT. FINISH
 * (tied sums, norm, parameters, in one fixed order) is a collective of all ranks, and the last
 * instruction of each. Fails with TR_ERR_CONFIG and the cycle when they do not; and
 *   - when a channel's messages are taken in another order than they are sent, not all, or as
 *     another tensor; when a message is sent before the action that makes it, or is not waited for
 *     exactly once after its SEND;
 *   - when a stage has no action on any rank, or not the actions of all micro-batches in order (an
 *     F, and unless forward_only an I and a W, or a B), or an action comes before the one that
 *     makes its input: another action of the rank, or the RECV of an edge;
 *   - when a bucket of the table is not reduced, unless it has no bytes; when a reduction starts
 *     before its stage's last W or B, or is not waited for before FINISH;
 *   - when a stage that gathers has an action before its gathers, or a gather is not waited for, by
 *     an action of its stage, before the next one of its bucket and FINISH;
 *   - when what a micro-batch offloads does not go out after its F and come back before its first
 *     gradient.
 * table: the edges between the stages, and their buckets. */
tr_status tr_program_prove(const tr_program_set *set, const tr_stage_table *table);
