#include "ckpt/ckpt.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>

void cli_warn_of_skipped(const char *run) {
    char root[TR_CONFIG_PATH + 8];
    tr_ckpt_info skipped = {0};
    int64_t step;
    (void)snprintf(root, sizeof root, "%s/ckpt", run);
    if (tr_ckpt_newest(root, INT64_MAX, &step, &skipped) != TR_OK) tr_error_clear();
    else if (skipped.why[0])
        (void)fprintf(stderr,
                      "trireme: warning: using step %" PRId64
                      ", because a newer one is not valid: %s\n",
                      step, skipped.why);
}
