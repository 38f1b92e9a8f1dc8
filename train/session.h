/* The objects of one rank of a training run, opened in the order of their dependencies. */
#pragma once

#include "data/data.h"
#include "partition/request.h"
#include "train/engine.h"
#include "train/first_fault.h"
#include "train/plans.h"
#include "train/questions.h"
#include "train/recorder.h"
#include "train/rundir.h"
#include "train/samples.h"
#include "train/saved_run.h"
#include "train/saver.h"
#include "train/start.h"
#include "train/time_limit.h"
#include "train/trainer.h"

/* A step that could not be loaded. */
typedef struct tr_unloaded {
    int64_t step;
    char why[TR_CKPT_WHY];
} tr_unloaded;

typedef struct tr_session {
    const tr_config *config; /* the config in effect: `own` */
    tr_config own; /* as given, except values that a resumed run keeps from the checkpoint */
    const tr_train_options *options;
    tr_world *world;
    tr_mesh mesh;
    tr_device *device;
    tr_data *data;
    tr_tokenizer *tokenizer; /* of the data; NULL: bytes are ids, or it is not known */
    tr_questions questions;  /* of train.eval */
    tr_samples samples;      /* of train.sample_every */
    tr_orders orders;
    tr_plans plans; /* of the operators */
    tr_engine *engine;
    tr_start start; /* files of a new run's parameters, until they are loaded */
    tr_ckpt_tensor *tensors;
    int tensors_count;
    tr_ckpt_tensor *replicas; /* what replicas must have in common */
    int replicas_count;
    tr_saver *saver;
    struct {
        int64_t step;
        double seconds;            /* that its begin took */
    } saving;                      /* the save that was begun last */
    tr_rundir dir;                 /* locked by rank 0 */
    char root[TR_CONFIG_PATH + 8]; /* of the checkpoints */
    bool dir_lost;                 /* rank 0: it was removed while the run used it */
    bool resumes;                  /* continues a saved run */
    tr_unloaded *unloaded;         /* newer steps that this run could not load, newest first */
    size_t unloaded_count;
    tr_ckpt_info skipped; /* rank 0: a newer step that is not used; `why` "": the newest one is */
    tr_saved_run saved;   /* how the saved run's config differs */
    bool unlabelled;      /* it was said that validation has no label that counts */
    tr_ckpt_state *state;
    int64_t saved_step;  /* newest step that is saved; -1: none */
    char transport[192]; /* a line about the transport; "": the default one */
    tr_record *trace;    /* NULL: none, or already written */
    int64_t trace_from;  /* the first step recorded */
    tr_time_limit limit; /* rank 0's is used; step_s: seconds of a sequence */
    bool late;           /* rank 0: the limit is near, so the step in progress is the last */
    tr_recorder recorder;
    tr_waits_meter waits;
    tr_first_fault fault;          /* used with options->debug_nan */
    int64_t work_done, work_total; /* of the phase: actions of a step or a validation */
} tr_session;

/* Locks log.dir, opens device, data, schedule and engine, draws the parameters or loads the newest
 * valid checkpoint, and prints the plan. If that checkpoint is corrupt, goes on from the newest
 * valid one before it, with a warning, and marks the corrupt one. Collective over the world; every
 * rank returns the same status. The caller closes the session after a failure, too, and must not
 * move it. world and options must outlive it. */
tr_status tr_session_open(const tr_config *config, tr_world *world, const tr_train_options *options,
                          tr_session *session);
void tr_session_close(tr_session *session);
/* Begins a phase that may take long; the board and, on rank 0, the progress line show it. total:
 * forwards and gradients of micro-batches that this rank will compute; 0: other work. */
void tr_session_begin(tr_session *session, tr_activity_phase phase, int64_t total);
/* Returns how many forwards and gradients this rank computes in a training step with this batch,
 * for tr_session_begin; forwards_alone: only the forwards. */
int64_t tr_session_actions(const tr_session *session, int64_t batch, bool forwards_alone);
/* Returns true on rank 0, which prints for the run. */
bool tr_session_leads(const tr_session *session);
