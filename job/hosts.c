#include "job/hosts.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LINE = 4096, MOST_NAMED = 8 };

/* --- the file --------------------------------------------------------------------------------- */

/* Adds the host of a line, if there is one. */
static tr_status add_line(tr_hosts *hosts, size_t *capacity, char *line) {
    char *rest = NULL;
    line[strcspn(line, "#\n")] = '\0';
    const char *name = strtok_r(line, " \t", &rest);
    if (!name) return TR_OK;
    TR_TRY(tr_grow(&hosts->host, capacity, (size_t)hosts->count + 1, sizeof *hosts->host));
    tr_job_host *host = &hosts->host[hosts->count++];
    *host = (tr_job_host){.answers = true};
    (void)snprintf(host->name, sizeof host->name, "%s", name);
    for (const char *word; (word = strtok_r(NULL, " \t", &rest));)
        if (!strncmp(word, "slots=", 6)) host->slots = atoi(word + 6);
    return TR_OK;
}

tr_status tr_hosts_read(const char *path, tr_hosts *out) {
    char line[MOST_LINE];
    size_t capacity = 0;
    tr_status status = TR_OK;
    *out = (tr_hosts){0};
    FILE *f = fopen(path, "re");
    if (!f)
        return TR_FAIL(TR_ERR_NOFILE, "the hostfile '%s' cannot be opened: %s", path,
                       strerror(errno));
    while (status == TR_OK && fgets(line, sizeof line, f)) {
        if (!strchr(line, '\n') && !feof(f))
            status = TR_FAIL(TR_ERR_DATA, "the hostfile '%s' has a line of more than %d bytes",
                             path, MOST_LINE - 1);
        else status = add_line(out, &capacity, line);
    }
    (void)fclose(f);
    return status;
}

tr_status tr_hosts_write(const tr_hosts *hosts, char *path, size_t size) {
    const char *folder = getenv("TMPDIR");
    (void)snprintf(path, size, "%s/trireme-hosts-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = mkostemp(path, O_CLOEXEC);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        const int error = errno;
        if (fd >= 0) (void)close(fd);
        return TR_FAIL(TR_ERR_IO, "'%s' cannot be written: %s", path, strerror(error));
    }
    for (int i = 0; i < hosts->count; i++) {
        const tr_job_host *host = &hosts->host[i];
        if (!host->answers) continue;
        (void)fprintf(f, "%s", host->name);
        if (host->slots) (void)fprintf(f, " slots=%d", host->slots);
        (void)fprintf(f, "\n");
    }
    if (fclose(f) == 0) return TR_OK;
    (void)unlink(path);
    return TR_FAIL(TR_ERR_IO, "'%s' cannot be written: %s", path, strerror(errno));
}

/* --- asking ----------------------------------------------------------------------------------- */

/* Starts mpirun with a command that does nothing on that host; returns its process, or -1. */
static pid_t ask(const tr_job_host *host, char *const *options) {
    size_t count = 0, used = 0;
    while (options[count]) count++;
    char **argv;
    if (tr_calloc(count + 9, sizeof *argv, &argv) != TR_OK) return -1;
    char *const before[] = {"mpirun", "-q", "-n", "1", "--host", (char *)host->name};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) argv[used++] = before[i];
    for (size_t i = 0; i < count; i++) argv[used++] = options[i];
    argv[used] = "true";
    pid_t child = fork();
    if (child == 0) {
        sigset_t none;
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)setpgid(0, 0);
        const int nothing = open("/dev/null", O_RDWR);
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) (void)dup2(nothing, fd);
        (void)unsetenv("OPAL_OUTPUT_STDERR_FD");
        (void)execvp(argv[0], argv);
        _exit(1);
    }
    free(argv);
    return child;
}

void tr_hosts_ask(tr_hosts *hosts, char *const *options, double limit_s) {
    const double end_s = tr_now_s() + limit_s;
    pid_t *child;
    if (tr_calloc((size_t)hosts->count + 1, sizeof *child, &child) != TR_OK) return;
    for (int i = 0; i < hosts->count; i++) child[i] = ask(&hosts->host[i], options);
    for (int i = 0; i < hosts->count; i++) {
        int status = 1;
        hosts->host[i].answers = false;
        if (child[i] < 0) continue;
        while (waitpid(child[i], &status, WNOHANG) == 0) {
            if (tr_now_s() < end_s) {
                (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
                continue;
            }
            (void)kill(-child[i], SIGKILL);
            (void)waitpid(child[i], &status, 0);
            break;
        }
        hosts->host[i].answers = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    free(child);
}

/* --- answers ---------------------------------------------------------------------------------- */

int tr_hosts_slots(const tr_hosts *hosts) {
    int slots = 0;
    for (int i = 0; i < hosts->count; i++) {
        if (!hosts->host[i].answers) continue;
        if (hosts->host[i].slots <= 0) return 0;
        slots += hosts->host[i].slots;
    }
    return slots;
}

void tr_hosts_text(const tr_hosts *hosts, bool answers, char *text, size_t size) {
    int named = 0, more = 0;
    text[0] = '\0';
    for (int i = 0; i < hosts->count; i++) {
        if (hosts->host[i].answers != answers) continue;
        if (named == MOST_NAMED) more++;
        else tr_text_add(text, size, "%s%s", named++ ? ", " : "", hosts->host[i].name);
    }
    if (more) tr_text_add(text, size, " and %d more", more);
}

void tr_hosts_free(tr_hosts *hosts) {
    free(hosts->host);
    *hosts = (tr_hosts){0};
}
