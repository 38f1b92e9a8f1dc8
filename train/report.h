/* report.html of the run directory: one file that opens offline, without scripts. */
#pragma once

#include "config/config.h"
#include "pipeline/draw/timeline.h"
#include "train/engine.h"

typedef struct tr_report {
    const tr_config *config;
    const tr_memory_rank *memory; /* [ranks] of the world */
    int ranks;
    const tr_timeline *const *timelines; /* of one unit; may be none */
    int timelines_count;
} tr_report;

/* The step of the pipeline line on paper: the programs simulated with the table's costs in units of
 * the mean F of a stage, transfers taking no time. Release with tr_timeline_destroy. */
tr_status tr_report_plan(const tr_program_set *programs, const tr_stage_table *table,
                         tr_timeline **out);

/* Writes <log.dir>/report.html from <log.dir>/metrics.jsonl (all of it, so that a resumed run shows
 * its earlier steps; lines that are no record are passed over) and from what is given: curves,
 * memory, timelines with the ranks' bubbles. Timelines of very many actions are tables only. Well-
 * formed XML. Written whole or not at all: after TR_ERR_IO an earlier report is still there. */
tr_status tr_report_write(const tr_report *report);
