/* report.html of the run directory: one file that opens offline, without scripts. */
#pragma once

#include "config/config.h"
#include "partition/traffic.h"
#include "pipeline/draw/timeline.h"
#include "train/engine.h"
#include "train/waits.h"

typedef struct tr_report {
    const tr_config *config;
    const tr_memory_rank *memory; /* [ranks] of the world */
    const tr_waits *waits;        /* [ranks]; NULL: none */
    int ranks;
    const tr_step_traffic *traffic;      /* of the planned step; NULL: none */
    const tr_timeline *const *timelines; /* all in the same unit; count may be 0 */
    int timelines_count;
} tr_report;

/* Simulates one planned step: the programs with the table's costs in units of the mean F of a
 * stage, with messages and reductions over `links`, in the unit of the table's costs.
 * The caller releases *out with tr_timeline_destroy. */
tr_status tr_report_plan(const tr_program_set *programs, const tr_stage_table *table,
                         const tr_simulated_links *links, tr_timeline **out);

/* Writes <log.dir>/report.html from <log.dir>/metrics.jsonl (all of it, so that a resumed run shows
 * its earlier steps; lines that are not records are skipped) and from *report: curves, memory,
 * waits, traffic, timelines with the ranks' bubbles. Timelines of very many actions are only
 * tables. The file is well-formed XML. After a failure an earlier report is unchanged. */
tr_status tr_report_write(const tr_report *report);
