/* Tests the reading and writing of hostfiles, and the question which hosts answer. */
#include "job/hosts.h"
#include "job/process.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

int __real_unlink(const char *path);
int __wrap_unlink(const char *path);

/* A successful call may change errno. */
int __wrap_unlink(const char *path) {
    const int result = __real_unlink(path);
    if (result == 0) errno = ENOTTY;
    return result;
}

static bool no_stream; /* there is no memory for one */

FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode) {
    if (!no_stream) return __real_fdopen(fd, mode);
    errno = ENOMEM;
    return NULL;
}

static tr_hosts read_text(const char *text) {
    char path[] = "/tmp/trireme-test-XXXXXX";
    tr_hosts hosts;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
    assert_int_equal(tr_hosts_read(path, &hosts), TR_OK);
    (void)unlink(path);
    return hosts;
}

static void reads_names_and_slots(void **state) {
    (void)state;
    tr_hosts hosts =
        read_text("# two racks\n\n a slots=4 max_slots=8\nb\tmax_slots=9 slots=2 # old\n"
                  "c.example.org slots=1\r\nd\r\ne slots=4294967297\nf slots=0x10\n"
                  "g slots = 3 // new slots=9\nh cpu=5\nme@i max_slots = 8 count =6\n");
    static const char *const name[] = {"a", "b", "c.example.org", "d", "e", "f", "g", "h", "me@i"};
    static const int slots[] = {4, 2, 1, 0, 0, 0, 3, 5, 6}; /* other text: not known */
    assert_int_equal(hosts.count, 9);
    for (int i = 0; i < 9; i++) {
        assert_string_equal(hosts.host[i].name, name[i]);
        assert_int_equal(hosts.host[i].slots, slots[i]);
        assert_true(hosts.host[i].answers);
    }
    assert_int_equal(tr_hosts_slots(&hosts), 0);
    for (int i = 3; i < 6; i++) hosts.host[i].answers = false;
    assert_int_equal(tr_hosts_slots(&hosts), 4 + 2 + 1 + 3 + 5 + 6);
    tr_hosts_free(&hosts);
}

static void those_that_answer_are_written(void **state) {
    (void)state;
    char path[4096], text[64];
    tr_hosts hosts = read_text("a username=me slots=4\nb slots=2\nc\n"), rest;
    assert_int_equal(tr_hosts_slots(&hosts), 0); /* c's are not known */
    hosts.host[1].answers = false;
    assert_int_equal(tr_hosts_write(&hosts, path, sizeof path), TR_OK);
    assert_int_equal(tr_hosts_read(path, &rest), TR_OK);
    (void)unlink(path);
    assert_int_equal(rest.count, 2);
    assert_string_equal(rest.host[0].name, "a");
    assert_int_equal(rest.host[0].slots, 4);
    assert_string_equal(rest.host[0].line, "a username=me slots=4");
    assert_string_equal(rest.host[1].name, "c");
    assert_int_equal(rest.host[1].slots, 0);
    tr_hosts_text(&hosts, true, text, sizeof text);
    assert_string_equal(text, "a, c");
    hosts.host[2].answers = false;
    assert_int_equal(tr_hosts_slots(&hosts), 4);
    tr_hosts_text(&hosts, false, text, sizeof text);
    assert_string_equal(text, "b, c");
    tr_hosts_free(&hosts);
    tr_hosts_free(&rest);
}

static void missing_and_endless_lines_are_refused(void **state) {
    (void)state;
    tr_hosts hosts;
    char path[] = "/tmp/trireme-test-XXXXXX", line[5000];
    assert_int_equal(tr_hosts_read("/nowhere/hosts", &hosts), TR_ERR_NOFILE);
    tr_hosts_free(&hosts);
    assert_int_equal(tr_hosts_read("/", &hosts), TR_ERR_IO);
    tr_hosts_free(&hosts);
    memset(line, 'h', sizeof line);
    int fd = mkstemp(path);
    assert_int_equal(write(fd, line, sizeof line), sizeof line);
    (void)close(fd);
    assert_int_equal(tr_hosts_read(path, &hosts), TR_ERR_DATA);
    (void)unlink(path);
    tr_hosts_free(&hosts);
}

/* Each mpirun has its own folder: in TMPDIR none can be made, because the place of Open MPI's is
 * taken by a file. */
static void hosts_are_asked_apart(void **state) {
    (void)state;
    char folder[] = "/tmp/trireme-test-XXXXXX", host[128], path[256];
    char *const no_options[] = {NULL};
    tr_hosts hosts = read_text("localhost slots=1\n127.0.0.1 slots=2\nnowhere.invalid slots=4\n");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(gethostname(host, sizeof host), 0);
    host[strcspn(host, ".")] = '\0';
    (void)snprintf(path, sizeof path, "%s/ompi.%s.%ld", folder, host, (long)geteuid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fclose(f);
    (void)setenv("TMPDIR", folder, 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    assert_int_equal(tr_hosts_ask(&hosts, no_options, 60), TR_OK);
    assert_true(hosts.host[0].answers);
    assert_true(hosts.host[1].answers);
    assert_false(hosts.host[2].answers);
    assert_int_equal(tr_hosts_slots(&hosts), 3);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left */
    tr_hosts_free(&hosts);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Asks the hosts with a program that mpirun calls instead of ssh, in a folder that is empty
 * otherwise; *text is what the program has written to the file "said" there. */
static void ask_by_agent(tr_hosts *hosts, const char *agent, double limit_s, char text[65536]) {
    char folder[] = "/tmp/trireme-test-XXXXXX", path[64], said[64];
    char *const no_options[] = {NULL};
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/agent", folder);
    (void)snprintf(said, sizeof said, "%s/said", folder);
    write_text(path, agent);
    assert_int_equal(chmod(path, 0700), 0);
    (void)setenv("TMPDIR", folder, 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    (void)setenv("OMPI_MCA_plm_rsh_agent", path, 1); /* and the name of Open MPI 5 */
    (void)setenv("PRTE_MCA_plm_ssh_agent", path, 1);
    assert_int_equal(tr_hosts_ask(hosts, no_options, limit_s), TR_OK);
    (void)unsetenv("OMPI_MCA_plm_rsh_agent");
    (void)unsetenv("PRTE_MCA_plm_ssh_agent");
    for (int i = 0; i < hosts->count; i++) assert_false(hosts->host[i].answers);
    FILE *f = fopen(said, "r");
    assert_non_null(f);
    text[fread(text, 1, 65535, f)] = '\0';
    (void)fclose(f);
    assert_int_equal(unlink(said), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left */
    tr_hosts_free(hosts);
}

static void hosts_are_asked_as_their_lines_say(void **state) {
    (void)state;
    char text[65536];
    tr_hosts hosts = read_text("me@203.0.113.1 slots=1\n203.0.113.2 username=you slots=1\n");
    ask_by_agent(&hosts, "#!/bin/sh\necho \"$@\" >>${0%/*}/said\nexit 1\n", 60, text);
    assert_non_null(strstr(text, "me@203.0.113.1 "));
    assert_non_null(strstr(text, "you@203.0.113.2 "));
}

/* The ssh of a host that took the connection and says nothing. */
static void no_ssh_is_left(void **state) {
    (void)state;
    char text[65536];
    tr_process ssh = {.state = 'S'};
    tr_hosts hosts = read_text("203.0.113.1 slots=1\n");
    ask_by_agent(&hosts, "#!/bin/sh\necho $$ >${0%/*}/said\nexec sleep 100\n", 5, text);
    for (int i = 0; i < 1000 && ssh.state && ssh.state != 'Z'; i++) {
        tr_process_look(atoi(text), &ssh);
        (void)usleep(5000);
    }
    assert_true(!ssh.state || ssh.state == 'Z');
}

/* A file system that is full: the sentence has the write's cause, not that of removing the file. */
static void a_full_disk_is_said(void **state) {
    (void)state;
    struct rlimit before;
    char path[4096];
    tr_hosts hosts = read_text("a slots=4\n");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1, before.rlim_max}), 0);
    const tr_status status = tr_hosts_write(&hosts, path, sizeof path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(status, TR_ERR_IO);
    assert_non_null(strstr(tr_error_message(), " cannot be written: File too large"));
    assert_int_equal(access(path, F_OK), -1);
    tr_hosts_free(&hosts);
}

/* The file has been made when no stream can be. */
static void no_file_is_left(void **state) {
    (void)state;
    char path[4096];
    tr_hosts hosts = read_text("a slots=4\n");
    no_stream = true;
    assert_int_equal(tr_hosts_write(&hosts, path, sizeof path), TR_ERR_IO);
    no_stream = false;
    assert_non_null(strstr(tr_error_message(), " cannot be written: Cannot allocate memory"));
    assert_int_equal(access(path, F_OK), -1);
    tr_hosts_free(&hosts);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_names_and_slots),
                                       cmocka_unit_test(those_that_answer_are_written),
                                       cmocka_unit_test(missing_and_endless_lines_are_refused),
                                       cmocka_unit_test(a_full_disk_is_said),
                                       cmocka_unit_test(no_file_is_left),
                                       cmocka_unit_test(hosts_are_asked_as_their_lines_say),
                                       cmocka_unit_test(no_ssh_is_left),
                                       cmocka_unit_test(hosts_are_asked_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
