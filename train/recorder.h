/* What rank 0 shows and keeps of a run: the lines for people, metrics, trace and report.
 *
 * No record is worth a run: what cannot be written becomes one warning, not a failure. Functions
 * that return no status leave this thread's error as it was. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "partition/memory_plan.h"
#include "train/append.h"
#include "train/engine.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/trace.h"

#include <stdio.h>

typedef struct tr_recorder {
    /* Set by the owner before tr_recorder_open: */
    const tr_config *config;
    tr_world *world;
    FILE *out, *warnings; /* what people read */
    bool leads;           /* this is rank 0 */
    /* The recorder's own: */
    tr_metrics *metrics;
    bool unrecorded; /* the last step's metrics could not be written */
    tr_progress progress;
    tr_append log; /* log.txt: all lines for people, whole and without codes */
    bool unlogged; /* it cannot be written */
    size_t planned_bytes;
    double val_loss;        /* the last one; NAN: none yet */
    tr_memory_rank *memory; /* [ranks] */
    /* For the report; each may be NULL. measured: once a trace was recorded. */
    tr_timeline *planned, *measured;
    bool unreported; /* the last report could not be written */
} tr_recorder;

/* Starts to show what goes on: rank 0, as the board has it (may be NULL). Ended by
 * tr_recorder_close, on every rank. */
void tr_recorder_begin(tr_recorder *recorder, const tr_board *board);
/* Opens the metrics after step `done` of a resumed run; -1: a fresh run, which puts those of a run
 * that saved nothing aside and says so. */
tr_status tr_recorder_open(tr_recorder *recorder, int64_t done);
/* Opens log.txt and the metrics again after step `done`, in a directory that was made again. */
void tr_recorder_reopen(tr_recorder *recorder, int64_t done);
/* Collective. Gathers every rank's memory and simulates the planned timeline; without that the
 * report shows less. */
tr_status tr_recorder_open_report(tr_recorder *recorder, tr_device *device,
                                  const tr_engine *engine);
/* Rank 0 opens log.txt, to which a resumed run appends, and prints what will run: model, layout,
 * memory, and the transport unless it is "". */
void tr_recorder_show_plan(tr_recorder *recorder, const tr_engine *engine, const tr_mesh *mesh,
                           const char *transport);
/* Collective. Rank 0 says in one line which operators of which ranks run without their GPU's
 * library (tr_device_fallbacks); nothing when there is none. */
tr_status tr_recorder_show_fallbacks(tr_recorder *recorder, const tr_device *device);
/* Rank 0 says after which step a resumed run goes on, and starts the line of steps. */
void tr_recorder_start(tr_recorder *recorder, tr_device *device, int64_t done, bool resumed);
/* Print a line for people, and a warning. They end a refreshed progress line first. */
__attribute__((format(printf, 2, 3))) void tr_recorder_say(tr_recorder *recorder,
                                                           const char *format, ...);
__attribute__((format(printf, 2, 3))) void tr_recorder_warn(tr_recorder *recorder,
                                                            const char *format, ...);
/* Rank 0 shows and records one finished step. */
void tr_recorder_step(tr_recorder *recorder, tr_device *device, const tr_metrics_record *line);
/* Collective. Writes the recorded steps as log.dir/trace.json and keeps their timelines for the
 * report. first_step: the step at which the recording begins. */
tr_status tr_recorder_write_trace(tr_recorder *recorder, const tr_mesh *mesh,
                                  const tr_program_set *programs, const tr_record *trace,
                                  int64_t first_step);
/* Collective. Gathers what every rank has allocated by now. */
tr_status tr_recorder_gather_memory(tr_recorder *recorder, tr_device *device,
                                    const tr_engine *engine);
/* Rank 0 writes report.html. Warns once until it can be written again, and not at all while the
 * metrics already warn of a full disk. */
void tr_recorder_write_report(tr_recorder *recorder);
/* Rank 0 prints what the run took of each class of memory. */
void tr_recorder_finish(tr_recorder *recorder, tr_device *device);
/* Writes a line to log.txt alone. Does nothing while it is not open. */
__attribute__((format(printf, 2, 3))) void tr_recorder_keep(tr_recorder *recorder,
                                                            const char *format, ...);
void tr_recorder_close(tr_recorder *recorder);
