/* The plans of a run's operators, which all ranks share (device/plan_book.h), in log.dir/plans.txt.
 *
 * With train.deterministic false the fastest of the library's plans is measured before step 1, by
 * one rank for each description, and all ranks take it. A resumed run takes the plans of its
 * file. */
#pragma once

#include "comm/mesh.h"
#include "device/plan_book.h"
#include "partition/request.h"

typedef struct tr_plans {
    tr_plan_book *book; /* NULL where the proposed plans are used */
    int read, measured; /* plans of the file; those measured now, by all ranks */
    bool refused;       /* the library of a rank does not offer one of the file; the rank uses the
                           proposed one */
} tr_plans;

/* Fills *out: with deterministic true nothing, else the plans of every operator of the layers. With
 * `resumes` those of the file come first, if it exists. The world has chosen its data plane.
 * Collective; every rank returns the same status. Fails with TR_ERR_DATA on a wrong file. The
 * caller releases out->book with tr_plan_book_destroy, after a failure too. */
tr_status tr_plans_settle(tr_world *world, const tr_config *config, tr_device *device,
                          const tr_mesh *mesh, const tr_orders *orders, bool resumes,
                          tr_plans *out);
/* Writes the file, whole or not at all. Only rank 0 calls it. Does nothing without plans. */
tr_status tr_plans_write(const tr_plans *plans, const tr_config *config);
/* Writes "12 measured" or "10 read from plans.txt, 2 measured" to text[size]; "" without plans. */
void tr_plans_text(const tr_plans *plans, char *text, size_t size);
