/* Private to lowering. */
#pragma once

#include "pipeline/program/lower.h"

/* The edges that begin or end at stage s are edge[first[s]] .. edge[first[s + 1] - 1], in the order
 * of the table. An action needs only the edges of its own stage. */
typedef struct tr_lower_edges {
    int *first, *edge; /* [stages + 1], and [2 * the table's edges] */
} tr_lower_edges;
/* Lists the edges of a table that tr_graph_open accepts. *out is zeroed; the caller releases it
 * with tr_lower_edges_free, also after an error. */
tr_status tr_lower_edges_make(const tr_stage_table *table, tr_lower_edges *out);
void tr_lower_edges_free(tr_lower_edges *edges);

/* Adds a rank's gathers of values (tr_bucket) to its complete program. The GATHER_WAITs of a stage
 * come before its next action, which waits for each bucket when it comes to its layer, so gathers
 * also hide behind other layers of the stage. The layer that the action runs first comes first.
 *
 * All gathers of updated values start where the program begins, in the order in which it uses them.
 * Validation does not gather: it finds updated values complete.
 *
 * Of divided values a rank holds those of the stage that it runs and of the stage that it runs
 * next: when it changes to another stage, it drops the values of all except these two, starts to
 * gather what it lacks of them, and waits for those of the stage that begins. So the gather of a
 * stage's values hides behind the stage before it, two stages' values exist at one time, and a
 * rank with one or two stages gathers once in a program. In a breadth-first order a rank gathers
 * each stage at most twice, and in an order that changes stages with every micro-batch once for
 * every change. Both stages of an OVERLAP_F_B count as one. */
tr_status tr_lower_gathers(const tr_stage_table *table, tr_program *program);

/* Adds the OFFLOADs and FETCHes of the rank's stages to a program with complete instructions,
 * without their copies. */
tr_status tr_lower_offload(const tr_stage_table *table, tr_program *program);

/* Sets the arena's size and its live peak of a program with complete instructions, without a place
 * for any buffer. edges: the table's. */
tr_status tr_lower_pack(const tr_schedule *schedule, const tr_stage_table *table,
                        const tr_lower_edges *edges, tr_program *program);

/* Places every buffer of a program with complete instructions: fills items, arena and peak, the
 * actions' memory and the transfers' offsets. edges: the table's. */
tr_status tr_lower_place(const tr_schedule *schedule, const tr_stage_table *table,
                         const tr_lower_edges *edges, tr_program *program);
