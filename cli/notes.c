#include "ckpt/ckpt.h"
#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

void cli_note_idle_keys(const char *command, const char *const *setting, int count) {
    /* An '=' ends the name of a key; the others are sections. */
    static const char *const read[] = {
        "data.",
        "device.",
        "model.",
        "parallel.pp=",
        "parallel.tp=",
        "parallel.dp=",
        "parallel.sequence=",
        "parallel.deadline=",
        "parallel.reduce=",
        "parallel.transport=",
        "train.micro_batch=",
        "train.seed=",
        "train.precision=",
        "train.threads=",
        "train.deterministic=",
    };
    for (int i = 0; i < count; i++) {
        const char *key = setting[i] + 2 * (strncmp(setting[i], "--", 2) == 0);
        size_t k = 0;
        while (k < sizeof read / sizeof *read && strncmp(key, read[k], strlen(read[k])) != 0) k++;
        if (k == sizeof read / sizeof *read)
            (void)fprintf(stderr, "trireme: note: %s does not read %.*s, which is for training\n",
                          command, (int)strcspn(key, "="), key);
    }
}
