/* Rank 0's output of a run: the lines for people, metrics, trace and report.
 *
 * A record that cannot be written causes one warning, not a failure. Functions that return no
 * status keep this thread's error. */
#pragma once

#include "comm/comm.h"
#include "config/config.h"
#include "partition/memory_plan.h"
#include "partition/traffic.h"
#include "train/append.h"
#include "train/engine.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/questions.h"
#include "train/samples.h"
#include "train/trace.h"
#include "train/waits.h"

#include <stdio.h>

/* Hashes of the texts that the set-up of a run has printed. */
typedef struct tr_said {
    uint64_t text[64];
    int count;
} tr_said;

typedef struct tr_recorder {
    /* Set by the owner before tr_recorder_open: */
    const tr_config *config;
    tr_world *world;
    FILE *out, *warnings; /* the lines for people */
    bool leads;           /* this is rank 0 */
    tr_said *said; /* not printed again when parts of the set-up are repeated; NULL: it is over */
    /* The recorder's own: */
    tr_metrics *metrics;
    bool unrecorded; /* the last step's metrics could not be written */
    bool unsampled;  /* nor the last sample */
    bool unanswered; /* nor the last answers */
    bool unsynced;   /* the records could not be put on the disk */
    tr_progress progress;
    tr_append log; /* log.txt: all lines for people, whole and without codes */
    bool unlogged; /* log.txt cannot be written */
    size_t planned_bytes;
    double flops_per_token;
    double val_loss;        /* the last one; NAN: none yet */
    tr_memory_rank *memory; /* [ranks] */
    tr_waits *waits;        /* [ranks], so far; all 0: not gathered yet */
    /* For the report. The timelines may be NULL; measured: once a trace was recorded. traffic: of
     * the planned step; makespan 0: not known. */
    tr_timeline *planned, *measured;
    tr_step_traffic traffic;
    bool unreported; /* the last report could not be written */
} tr_recorder;

/* Starts to show the progress on rank 0, from the board (may be NULL). Every rank ends it with
 * tr_recorder_close. */
void tr_recorder_begin(tr_recorder *recorder, const tr_board *board);
/* Opens the metrics after step `done` of a resumed run. -1: a new run; renames the metrics of an
 * earlier run that saved nothing, and says so. */
tr_status tr_recorder_open(tr_recorder *recorder, int64_t done);
/* Opens log.txt and the metrics again after step `done`, in a directory that was made again. */
void tr_recorder_reopen(tr_recorder *recorder, int64_t done);
/* Removes the metrics of steps after `done`, which will be taken again; warns when it cannot. */
void tr_recorder_go_back(tr_recorder *recorder, int64_t done);
/* Gathers every rank's memory, and simulates the planned step for the report. Collective. */
tr_status tr_recorder_open_report(tr_recorder *recorder, tr_device *device, const tr_engine *engine,
                                  const tr_mesh *mesh);
/* On rank 0 opens log.txt, to which a resumed run appends, and prints model, layout, memory, and
 * the transport unless it is "". */
void tr_recorder_show_plan(tr_recorder *recorder, const tr_engine *engine, const char *transport);
/* Prints one line on rank 0 about the operators that run without their GPU's library
 * (tr_device_fallbacks), if there are any. Collective. */
tr_status tr_recorder_show_fallbacks(tr_recorder *recorder, const tr_device *device);
/* On rank 0 prints after which step a resumed run continues, and starts the line of steps. */
void tr_recorder_start(tr_recorder *recorder, tr_device *device, int64_t done, bool resumed);
/* Print a line for people, and a warning. They end a refreshed progress line first. */
__attribute__((format(printf, 2, 3))) void tr_recorder_say(tr_recorder *recorder,
                                                           const char *format, ...);
__attribute__((format(printf, 2, 3))) void tr_recorder_warn(tr_recorder *recorder,
                                                            const char *format, ...);
/* Shows and records one finished step on rank 0. */
void tr_recorder_step(tr_recorder *recorder, tr_device *device, const tr_metrics_record *line);
/* Shows and records on rank 0 how the questions were answered after a step. */
void tr_recorder_answers(tr_recorder *recorder, int64_t step, const tr_questions *questions);
/* Shows and records on rank 0 the texts made after a step. */
void tr_recorder_samples(tr_recorder *recorder, int64_t step, const tr_samples *samples);
/* Puts the records so far on the disk; warns when it cannot. */
void tr_recorder_sync(tr_recorder *recorder);
/* Writes the recorded steps as log.dir/trace.json and keeps their timelines for the report.
 * first_step: the first recorded step. Collective; fails only when a rank is lost. */
tr_status tr_recorder_write_trace(tr_recorder *recorder, const tr_mesh *mesh,
                                  const tr_program_set *programs, const tr_record *trace,
                                  int64_t first_step);
/* Gathers the bytes that every rank has allocated so far. Collective. */
tr_status tr_recorder_gather_memory(tr_recorder *recorder, tr_device *device,
                                    const tr_engine *engine);
/* Gathers how long every rank has waited in its steps. Collective. */
tr_status tr_recorder_gather_waits(tr_recorder *recorder, const tr_waits *mine);
/* Writes report.html on rank 0. Warns once until it can be written again, and not while the metrics
 * already warn of a full disk. */
void tr_recorder_write_report(tr_recorder *recorder);
/* Prints on rank 0 how much of each class of memory the run took. */
void tr_recorder_finish(tr_recorder *recorder, tr_device *device);
/* Writes a line only to log.txt. Does nothing while log.txt is not open. */
__attribute__((format(printf, 2, 3))) void tr_recorder_keep(tr_recorder *recorder,
                                                            const char *format, ...);
void tr_recorder_close(tr_recorder *recorder);
