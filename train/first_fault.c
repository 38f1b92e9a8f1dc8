#include "train/first_fault.h"

#include "device/finite.h"

#include <stdio.h>
#include <stdlib.h>

static void keep(tr_first_fault *f, const tr_layer_op *op, const tr_layer_io *io,
                 const char *written) {
    f->found = true;
    f->passed_on = !f->reads_finite;
    f->micro_batch = io->micro_batch;
    f->phase = op->phase;
    (void)snprintf(f->written, sizeof f->written, "%s", written);
    (void)snprintf(f->layer, sizeof f->layer, "%s", op->layer->layer.name);
    (void)snprintf(f->op, sizeof f->op, "%s", tr_op_name(op->desc.kind));
}

/* Examines what an operator reads before it runs, because it may write to the same memory, and
 * afterwards what it has written. */
static tr_status examine(void *context, const tr_layer_op *op, const tr_layer_io *io,
                         const tr_op_args *args, bool begins) {
    tr_first_fault *f = context;
    const char *name;
    if (f->found) return TR_OK;
    TR_TRY(tr_op_find_not_finite(op->op, io->stream, args, !begins, f->staging, &name));
    if (begins) {
        f->reads_finite = !name;
        (void)snprintf(f->read, sizeof f->read, "%s", name ? name : "");
    } else if (name) {
        keep(f, op, io, name);
    }
    return TR_OK;
}

tr_status tr_first_fault_open(int rank, tr_device *device, tr_first_fault *out) {
    *out = (tr_first_fault){
        .rank = rank, .device = device, .probe = {.call = examine, .context = out}};
    if (tr_device_on_host(device)) return TR_OK;
    return tr_device_staging_alloc(device, TR_FINITE_STAGING, &out->staging);
}

void tr_first_fault_close(tr_first_fault *f) {
    if (f->staging) tr_device_staging_free(f->device, f->staging);
}

void tr_first_fault_begin(tr_first_fault *f) {
    f->found = false;
}

/* Returns true when `a` is nearer to the cause than `b`. */
static bool is_earlier(const tr_first_fault *a, const tr_first_fault *b) {
    if (!a->found || !b->found) return a->found;
    if (a->passed_on != b->passed_on) return b->passed_on;
    if ((a->phase == TR_PHASE_F) != (b->phase == TR_PHASE_F)) return a->phase == TR_PHASE_F;
    return a->micro_batch < b->micro_batch;
}

tr_status tr_first_fault_text(tr_world *world, const tr_first_fault *mine, char *text) {
    static const char *const phase[] = {[TR_PHASE_F] = "F", [TR_PHASE_I] = "I", [TR_PHASE_W] = "W"};
    const size_t ranks = (size_t)tr_world_size(world);
    tr_first_fault *all = NULL;
    text[0] = '\0';
    TR_TRY(tr_world_calloc(world, ranks, sizeof *all, &all));
    tr_status status = tr_world_gather_all(world, mine, all, sizeof *all);
    const tr_first_fault *first = all;
    for (size_t r = 1; r < ranks && status == TR_OK; r++)
        if (is_earlier(&all[r], first)) first = &all[r];
    if (status == TR_OK && first->found)
        (void)snprintf(text, TR_FAULT_TEXT,
                       "operand %s of %s is the first that is not finite (%s of layer %s, "
                       "micro-batch %d, rank %d; %s%s)",
                       first->written, first->op, phase[first->phase], first->layer,
                       first->micro_batch, first->rank,
                       first->passed_on ? "as was its operand " : "all that it read was finite",
                       first->passed_on ? first->read : "");
    free(all);
    return status;
}
