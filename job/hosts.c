#include "job/hosts.h"

#include "base/clock.h"
#include "base/digits.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/text.h"
#include "job/board.h"
#include "job/process.h"
#include "job/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LINE = 4096, MOST_NAMED = 8, MOST_SLOTS = 1 << 20 };

/* --- the file --------------------------------------------------------------------------------- */

/* Returns true for a word of Open MPI that says how many ranks may run on a host. */
static bool is_of_slots(const char *word) {
    return !strcmp(word, "slots") || !strcmp(word, "cpu") || !strcmp(word, "count");
}

/* Adds the host of a line, if there is one. */
static tr_status add_line(tr_hosts *hosts, size_t *capacity, const char *line) {
    char words[MOST_LINE], *rest = NULL;
    (void)snprintf(words, sizeof words, "%s", line);
    char *remark = strstr(words, "//");
    if (remark) *remark = '\0';
    words[strcspn(words, "#\r\n")] = '\0';
    const char *name = strtok_r(words, " \t", &rest);
    if (!name) return TR_OK;
    TR_TRY(tr_grow(&hosts->host, capacity, (size_t)hosts->count + 1, sizeof *hosts->host));
    tr_job_host *host = &hosts->host[hosts->count];
    *host = (tr_job_host){.answers = true};
    TR_TRY(tr_strdup(line, &host->line));
    hosts->count++;
    host->line[strcspn(line, "\r\n")] = '\0';
    (void)snprintf(host->name, sizeof host->name, "%s", name);
    bool counts = false; /* the next word is the number of slots */
    for (const char *word; (word = strtok_r(NULL, " \t=", &rest)); counts = is_of_slots(word)) {
        const char *end = word;
        int64_t slots;
        if (counts && tr_digits_read(&end, MOST_SLOTS, &slots) && !*end) host->slots = (int)slots;
    }
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
    if (status == TR_OK && ferror(f))
        status = TR_FAIL(TR_ERR_IO, "the hostfile '%s' cannot be read: %s", path, strerror(errno));
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
        if (fd >= 0) {
            (void)close(fd);
            (void)unlink(path);
        }
        return TR_FAIL(TR_ERR_IO, "'%s' cannot be written: %s", path, strerror(error));
    }
    for (int i = 0; i < hosts->count; i++)
        if (hosts->host[i].answers) (void)fprintf(f, "%s\n", hosts->host[i].line);
    tr_status status = tr_output_close(path, f, TR_OK);
    if (status != TR_OK) (void)unlink(path);
    return status;
}

/* --- asking ----------------------------------------------------------------------------------- */

/* A question to a host: an mpirun with its own folder. In a common one, the end of one mpirun would
 * remove what another has just made. */
typedef struct question {
    pid_t mpirun; /* -1: it did not start */
    char name[64];
    char hostfile[PATH_MAX]; /* "": there is none */
    tr_job_files files;
} question;

/* Sets *out to the words of an mpirun that does nothing on the host of that hostfile; the caller
 * frees the list. */
static tr_status make_words(const char *hostfile, char *const *options, char ***out) {
    char *const before[] = {"mpirun", "-n", "1", "--hostfile", (char *)hostfile};
    const size_t first = sizeof before / sizeof *before;
    size_t count = 0;
    while (options[count]) count++;
    TR_TRY(tr_calloc(first + count + 2, sizeof **out, out));
    memcpy(*out, before, sizeof before);
    memcpy(*out + first, options, count * sizeof *options);
    (*out)[first + count] = "true";
    return TR_OK;
}

/* Starts the question. The host's own line says how to reach it, as in the job: mpirun would take
 * the name user@10.0.0.1 of an option for user@10. */
static tr_status ask(question *q, tr_job_host *host, char *const *options) {
    char **words;
    q->mpirun = -1;
    tr_board_make_name(q->name, sizeof q->name);
    (void)tr_job_files_make(&q->files, q->name);
    const tr_hosts one = {.host = host, .count = 1};
    TR_TRY(tr_hosts_write(&one, q->hostfile, sizeof q->hostfile));
    TR_TRY(make_words(q->hostfile, options, &words));
    tr_job_files_use(&q->files, true);
    q->mpirun = fork();
    if (q->mpirun == 0) {
        sigset_t none;
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)setpgid(0, 0);
        const int nothing = open("/dev/null", O_RDWR);
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) (void)dup2(nothing, fd);
        (void)unsetenv("OPAL_OUTPUT_STDERR_FD");
        (void)execvp(words[0], words);
        _exit(1);
    }
    tr_job_files_use(&q->files, false);
    free(words);
    return TR_OK;
}

/* Kills an mpirun and the ssh that it waits for, which has a process group of its own. */
static void end_question(pid_t mpirun) {
    enum { MOST = 64 };
    pid_t child[MOST];
    const int children = tr_process_children(mpirun, child, MOST);
    for (int i = 0; i < children; i++) (void)kill(child[i], SIGKILL);
    (void)kill(-mpirun, SIGKILL);
}

/* Waits until then for the end of that mpirun, and kills it afterwards; true when it ended well. */
static bool answers(const question *q, double end_s) {
    int status = 1;
    if (q->mpirun < 0) return false;
    while (waitpid(q->mpirun, &status, WNOHANG) == 0) {
        if (tr_now_s() < end_s) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
            continue;
        }
        end_question(q->mpirun);
        (void)waitpid(q->mpirun, &status, 0);
        break;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

tr_status tr_hosts_ask(tr_hosts *hosts, char *const *options, double limit_s) {
    const double end_s = tr_now_s() + limit_s;
    question *asked;
    tr_status status = TR_OK;
    int count = 0;
    TR_TRY(tr_calloc((size_t)hosts->count, sizeof *asked, &asked));
    for (; count < hosts->count && status == TR_OK; count++)
        status = ask(&asked[count], &hosts->host[count], options);
    for (int i = 0; i < count; i++) {
        hosts->host[i].answers = answers(&asked[i], end_s);
        tr_job_files_remove(&asked[i].files);
        if (asked[i].hostfile[0]) (void)unlink(asked[i].hostfile);
    }
    free(asked);
    return status;
}

/* --- answers ---------------------------------------------------------------------------------- */

int tr_hosts_slots(const tr_hosts *hosts) {
    int slots = 0;
    for (int i = 0; i < hosts->count; i++) {
        if (!hosts->host[i].answers) continue;
        if (hosts->host[i].slots <= 0) return 0;
        if (__builtin_add_overflow(slots, hosts->host[i].slots, &slots)) return INT_MAX;
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
    for (int i = 0; i < hosts->count; i++) free(hosts->host[i].line);
    free(hosts->host);
    *hosts = (tr_hosts){0};
}
