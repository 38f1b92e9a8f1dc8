/* Every layout that the search over layouts has, enumerated by other means. */
#pragma once

#include "partition/search.h"

/* Calls visit for each layout of this many ranks, when no key is kept; also for those that the
 * config refuses. */
void tr_test_each_layout(const tr_config *config, int ranks,
                         void (*visit)(void *context, const tr_layout_choice *choice),
                         void *context);
