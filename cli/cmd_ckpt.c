/* trireme ckpt ls RUN | verify RUN [STEP] | import FROM RUN | export RUN FOLDER: the checkpoints of
 * a run. */
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "cli/ckpt_transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tr_status root_of(const char *run, char *root, size_t size) {
    if (!*run) return TR_FAIL(TR_ERR_USAGE, "the run's name is empty: name the log.dir of a run");
    int n = snprintf(root, size, "%s/ckpt", run);
    if (n < 0 || (size_t)n >= size)
        return TR_FAIL(TR_ERR_USAGE,
                       "the path %.80s... is too long: name the run by a shorter path", run);
    return TR_OK;
}

static tr_status list(const char *run) {
    char root[4096];
    tr_ckpt_info *info = NULL;
    int count = 0, unread = 0;
    TR_TRY(root_of(run, root, sizeof root));
    TR_TRY(tr_ckpt_list(root, &info, &count));
    if (count == 0) {
        free(info);
        return tr_ckpt_none(root);
    }
    printf("%-10s  %10s  %6s  %s\n", "step", "MiB", "shards", "state");
    for (int i = 0; i < count; i++) {
        unread += info[i].unread;
        printf("%-10lld  %10.1f  %6d  %s\n", (long long)info[i].step,
               (double)info[i].bytes / (1 << 20), info[i].shards,
               info[i].valid ? "complete" : info[i].why);
    }
    free(info);
    if (unread == 0) return TR_OK;
    return TR_FAIL(TR_ERR_IO,
                   "%d of %d steps could not be read: look after the file system, and try again",
                   unread, count);
}

/* Sets *valid when runs would continue from the step. */
static tr_status is_valid(const char *root, int64_t step, bool *valid) {
    tr_ckpt_info *info = NULL;
    int count = 0;
    TR_TRY(tr_ckpt_list(root, &info, &count));
    *valid = false;
    for (int i = 0; i < count; i++) *valid = *valid || (info[i].step == step && info[i].valid);
    free(info);
    return TR_OK;
}

static tr_status verify(const char *run, int64_t step) {
    char root[4096];
    TR_TRY(root_of(run, root, sizeof root));
    tr_ckpt_state *state; /* not on the stack: it has 16 KiB of config */
    TR_TRY(tr_calloc(1, sizeof *state, &state));
    tr_status status = tr_ckpt_read_state(root, step, state);
    if (status == TR_OK) status = tr_ckpt_verify(root, state->step);
    bool valid = true;
    if (status == TR_OK) status = is_valid(root, state->step, &valid);
    if (status == TR_OK && step < 0) cli_warn_of_skipped(run);
    if (status == TR_OK)
        printf("step %lld: all blocks of all shards are intact%s\n", (long long)state->step,
               valid ? ""
                     : "; a run has marked it as corrupt: remove the file CORRUPT from its "
                       "directory, so that it is used again");
    free(state);
    return status;
}

tr_status cli_ckpt(cli_context *cli, int argc, char **argv) {
    if (argc > 1 && (!strcmp(argv[1], "import") || !strcmp(argv[1], "export")))
        return cli_ckpt_transfer(cli, argc, argv);
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-') {
            char name[64];
            (void)snprintf(name, sizeof name, "ckpt %s", argv[1]);
            return cli_unknown_option(name, argv[i]);
        }
    if (argc == 3 && strcmp(argv[1], "ls") == 0) return list(argv[2]);
    if ((argc == 3 || argc == 4) && strcmp(argv[1], "verify") == 0) {
        int64_t step = -1;
        if (argc == 4)
            TR_TRY(cli_take_integer("ckpt verify", "STEP", argv[3], 0, INT64_MAX, &step));
        return verify(argv[2], step);
    }
    if (argc > 1 && strcmp(argv[1], "ls") != 0 && strcmp(argv[1], "verify") != 0)
        return cli_usage("ckpt", "ckpt takes ls, verify, import or export, not '%s'", argv[1]);
    return cli_usage("ckpt", "ckpt takes ls, verify, import or export, and a run");
}
