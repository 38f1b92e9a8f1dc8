/* The saves of a training run: which step is saved when, and what a failed save means. With
 * checkpoint.background a save begins after its step and is committed after a later one: at the
 * latest before the next save, a step that the guard skips, or the end of the run. */
#pragma once

#include "train/session.h"

/* Saves the step that was taken; not in the background when it is the run's `last` save. Of one
 * that is not the last, a failure of the disk is a warning. Collective. */
tr_status tr_save_step(tr_session *session, bool last);
/* Commits the save in progress, if there is one and all ranks have written. Collective. */
tr_status tr_save_look(tr_session *session);
/* Waits for the save in progress, if there is one, and commits it. Call it before anything else
 * uses checkpoints, or names the newest one. A failure of the disk is a warning. Collective. */
tr_status tr_save_settle(tr_session *session);

/* On rank 0: makes a removed run directory again, for the next checkpoint. Fails with TR_ERR_IO
 * when another run has taken it. */
tr_status tr_save_guard_directory(tr_session *session);
/* Writes "step 12 is saved" to text[size], and returns it. */
const char *tr_save_text(const tr_session *session, char *text, size_t size);
