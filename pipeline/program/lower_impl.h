/* Private to lowering. */
#pragma once

#include "pipeline/program/lower.h"

/* Adds the OFFLOADs and FETCHes of the rank's stages to a program with complete instructions,
 * without their copies. */
tr_status tr_lower_offload(const tr_stage_table *table, tr_program *program);
/* Places every buffer of a program with complete instructions: fills items, arena and peak, the
 * actions' memory and the transfers' offsets. */
tr_status tr_lower_place(const tr_schedule *schedule, const tr_stage_table *table,
                         tr_program *program);
