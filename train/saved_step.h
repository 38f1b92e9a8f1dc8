/* The saved step that a session continues: finds and loads it, and goes back to it. */
#pragma once

#include "train/session.h"

/* On rank 0: finds the newest valid step before those in s->unloaded, sets s->resumes and reads its
 * state to *s->state. Without a saved run and with TR_RESUME_NO or TR_RESUME_AUTO only returns.
 * Fails with TR_ERR_CONFIG when there are checkpoints and the run is not to continue them, with
 * TR_ERR_NOFILE when there are none to continue, and with TR_ERR_DATA when none is valid. */
tr_status tr_saved_step_find(tr_session *session);
/* Loads the parameters of the step that was found, warns on rank 0 if newer ones are not valid, and
 * marks those in s->unloaded as corrupt. When the step is corrupt, adds it to s->unloaded on every
 * rank and fails with TR_ERR_DATA. Collective. */
tr_status tr_saved_step_load(tr_session *session);
/* Loads the newest saved step, and removes the records of later ones; the data go on where they
 * are. Collective. */
tr_status tr_saved_step_roll_back(tr_session *session);
