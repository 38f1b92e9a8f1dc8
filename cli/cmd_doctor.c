#include "base/clock.h"
#include "cli/cli.h"

#include "base/cores.h"
#include "cli/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

void doctor_say(doctor_finding *finding, doctor_level level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
    finding->level = level;
}

void doctor_remedy(doctor_finding *finding, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(finding->remedy, sizeof finding->remedy, format, args);
    va_end(args);
}

static double mib(double bytes) {
    return bytes / 1048576.0;
}

static void check_compiler(doctor_finding *f) {
    doctor_say(f, DOCTOR_OK, "trireme " TRIREME_VERSION ", built with " TRIREME_COMPILER);
}

static void check_slots(doctor_finding *f) {
    int usable = tr_cores_count();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    doctor_say(f, DOCTOR_OK, "%d of %ld cores, %.1f GiB: more than %d rank%s share%s cores", usable,
               online, mib(memory) / 1024, usable, usable == 1 ? "" : "s", usable == 1 ? "s" : "");
}

static void check_files(doctor_finding *f) {
    struct rlimit limit;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    bool enough = limit.rlim_cur >= 1024;
    doctor_say(f, enough ? DOCTOR_OK : DOCTOR_WARN, "%llu open files (ulimit -n)",
               (unsigned long long)limit.rlim_cur);
    if (!enough) doctor_remedy(f, "ulimit -n 4096: every rank opens shards and sockets");
}

static void check_locked(doctor_finding *f) {
    struct rlimit limit;
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    bool fabric = access("/sys/class/infiniband", F_OK) ==
                  0; /* its drivers lock the memory that they send from */
    if (limit.rlim_cur == RLIM_INFINITY) {
        doctor_say(f, DOCTOR_OK, "locked memory without limit (ulimit -l)");
        return;
    }
    doctor_say(f, fabric ? DOCTOR_WARN : DOCTOR_OK, "%.1f MiB of locked memory (ulimit -l)%s",
               mib((double)limit.rlim_cur), fabric ? "" : ", which only fast fabrics need");
    if (fabric) doctor_remedy(f, "ulimit -l unlimited, or docker run --ulimit memlock=-1");
}

static void check_core(doctor_finding *f) {
    struct rlimit limit;
    (void)getrlimit(RLIMIT_CORE, &limit);
    bool none = limit.rlim_cur == 0;
    doctor_say(f, none ? DOCTOR_OK : DOCTOR_WARN,
               none ? "no core files (ulimit -c)" : "core files are on (ulimit -c)");
    if (!none)
        doctor_remedy(
            f, "ulimit -c 0, unless you want them: each crashed rank writes its memory to disk");
}

static void check_shm(doctor_finding *f) {
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs)) {
        doctor_say(f, DOCTOR_FAIL, "/dev/shm: %s", strerror(errno));
        doctor_remedy(
            f, "mount -t tmpfs tmpfs /dev/shm: the ranks of one machine communicate through it");
        return;
    }
    double free_mib = mib((double)fs.f_bavail * (double)fs.f_frsize);
    bool enough = free_mib >= 64;
    doctor_say(f, enough ? DOCTOR_OK : DOCTOR_WARN, "%.0f MiB free in /dev/shm", free_mib);
    if (!enough) doctor_remedy(f, "make room, or docker run --shm-size=1g");
}

/* Writes `chunks` MiB to fd and syncs them. Returns the seconds, or -1 with errno. */
static double write_seconds(int fd, int chunks) {
    static char chunk[1 << 20];
    double begin;
    memset(chunk, 0xa5, sizeof chunk); /* not 0: a file system may store zeros as a hole */
    begin = tr_now_s();
    for (int i = 0; i < chunks; i++)
        for (size_t done = 0; done < sizeof chunk;) {
            ssize_t n = write(fd, chunk + done, sizeof chunk - done);
            if (n <= 0) return -1;
            done += (size_t)n;
        }
    if (fsync(fd)) return -1;
    return tr_now_s() - begin;
}

static void check_disk(doctor_finding *f) {
    const int chunks = 64; /* of 1 MiB */
    char path[] = ".trireme-doctor-XXXXXX";
    int fd = mkstemp(path);
    double seconds = -1;
    if (fd >= 0) {
        (void)unlink(path); /* the file vanishes even if this process is killed */
        seconds = write_seconds(fd, chunks);
    }
    int cause = errno;
    if (fd >= 0) (void)close(fd);
    if (seconds < 0) {
        doctor_say(f, DOCTOR_WARN, "%d MiB cannot be written here: %s", chunks, strerror(cause));
        doctor_remedy(f, "set log.dir to a directory with room for checkpoints");
        return;
    }
    double speed = chunks / (seconds > 1e-6 ? seconds : 1e-6);
    bool fast = speed >= 50;
    doctor_say(f, fast ? DOCTOR_OK : DOCTOR_WARN,
               "this directory takes %.0f MiB/s (%d MiB and fsync)", speed, chunks);
    if (!fast) doctor_remedy(f, "checkpoints will be slow: set log.dir to a faster disk");
}

static const struct {
    const char *name;
    void (*check)(doctor_finding *finding);
} checks[] = {
    {"build", check_compiler}, {"cores", check_slots},      {"mpi", doctor_mpi},
    {"root", doctor_root},     {"threads", doctor_threads}, {"hdf5", doctor_hdf5},
    {"onednn", doctor_onednn}, {"cuda", doctor_cuda},       {"nccl", doctor_nccl},
    {"files", check_files},    {"locked", check_locked},    {"core", check_core},
    {"shm", check_shm},        {"disk", check_disk},
};

tr_status cli_doctor(cli_context *cli, int argc, char **argv) {
    (void)cli, (void)argv;
    static const char *const level_name[] = {"ok", "warn", "fail"};
    if (argc > 1) return cli_usage("doctor", "doctor takes no arguments");
    int failures = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        doctor_finding f = {0};
        checks[i].check(&f);
        (void)printf("%-4s  %-8s %s\n", level_name[f.level], checks[i].name, f.text);
        if (*f.remedy) (void)printf("                -> %s\n", f.remedy);
        (void)fflush(stdout);
        failures += f.level == DOCTOR_FAIL;
    }
    if (failures == 0) return 0;
    return TR_FAIL(TR_ERR_DEVICE, "%d check%s failed: the lines above say what to do", failures,
                   failures == 1 ? "" : "s");
}
