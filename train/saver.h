/* Saves of a rank's tensors: written at once, or by a thread from a snapshot of them while the
 * rank goes on (checkpoint.background).
 *
 * A save is begun, written and ended. Only this differs: the thread writes from the snapshot what
 * the caller otherwise writes from the tensors when it ends the save. The thread uses neither comm/
 * nor the device, and until it has finished no other thread uses ckpt/ (tr_ckpt_saving_begin). */
#pragma once

#include "ckpt/ckpt.h"

typedef struct tr_saver tr_saver;

typedef struct tr_saver_desc {
    tr_world *world;
    tr_device *device;
    const char *root;              /* of the checkpoints */
    const tr_ckpt_tensor *tensors; /* [count] */
    int count;
    bool background; /* can save in the background */
    size_t snapshot; /* planned bytes: of the memory of tensors with `write` set */
} tr_saver_desc;

/* Opens a saver; for the background also allocates the snapshot, as TR_MEMORY_SNAPSHOT, and starts
 * the thread. What desc points to must outlive it. Fails with TR_ERR_INTERNAL when the snapshot
 * takes other bytes than planned. Not collective. */
tr_status tr_saver_open(const tr_saver_desc *desc, tr_saver **out);
/* Waits until the thread has written a block. A save that has not ended leaves a directory, which a
 * later one removes. NULL is allowed. */
void tr_saver_close(tr_saver *saver);

/* Begins a save of this state and of the tensors' present contents; in the background these may
 * change as soon as it returns. No save may be in progress. Collective; fails like
 * tr_ckpt_saving_begin, and there is no save then. */
tr_status tr_saver_begin(tr_saver *saver, const tr_ckpt_state *state, bool background);
/* Returns true from the begin of a save to its end. Every rank returns the same. NULL is
 * allowed. */
bool tr_saver_saves(const tr_saver *saver);
/* Sets *written to true when all ranks have written what they save. Collective; cheap. */
tr_status tr_saver_look(tr_saver *saver, bool *written);
/* Ends the save: waits until it is written and commits it. Adds to *seconds what writing and
 * committing took; the thread's writing counts by the rank on which it took longest. Collective;
 * fails like tr_ckpt_save. */
tr_status tr_saver_end(tr_saver *saver, double *seconds);
