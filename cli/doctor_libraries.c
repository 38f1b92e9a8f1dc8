#include "cli/doctor.h"

#include "device/cpu/cpu.h"
#include "device/device.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <fcntl.h>
#include <hdf5.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool on_path(const char *program) {
    const char *path = getenv("PATH");
    for (; path && *path; path += strspn(path, ":")) {
        size_t length = strcspn(path, ":");
        char file[1024];
        (void)snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);
        if (access(file, X_OK) == 0) return true;
        path += length;
    }
    return false;
}

void doctor_mpi(doctor_finding *f) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    (void)MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    doctor_say(f, DOCTOR_OK, "%s, mpirun found", version);
    if (on_path("mpirun")) return;
    doctor_say(f, DOCTOR_FAIL, "%s, but mpirun is not on PATH", version);
    doctor_remedy(f, "apt-get install openmpi-bin (one rank runs without it)");
}

void doctor_root(doctor_finding *f) {
    bool allowed = getenv("OMPI_ALLOW_RUN_AS_ROOT") && getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM");
    if (geteuid() != 0) {
        doctor_say(f, DOCTOR_OK, "not root");
    } else if (allowed) {
        doctor_say(f, DOCTOR_OK, "root, and mpirun is told to allow it");
    } else {
        doctor_say(f, DOCTOR_WARN,
                   "root: plain mpirun refuses to start; `trireme run` allows it by itself");
        doctor_remedy(f, "for plain mpirun: export OMPI_ALLOW_RUN_AS_ROOT=1 "
                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
    }
}

/* Returns the thread level that MPI gives a process of one rank; -1 when MPI does not start. Runs
 * in a child, because a failing MPI_Init ends its process. */
static int thread_level(void) {
    (void)fflush(NULL);
    int ends[2], level = -1;
    if (pipe(ends)) return -1;
    pid_t child = fork();
    if (child == 0) {
        int quiet = open("/dev/null", O_WRONLY);
        (void)dup2(quiet, STDOUT_FILENO);
        (void)dup2(quiet, STDERR_FILENO);
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) _exit(1);
        ssize_t written = write(ends[1], &level, sizeof level);
        (void)MPI_Finalize();
        _exit(written == sizeof level ? 0 : 1);
    }
    (void)close(ends[1]);
    if (child > 0) {
        /* Waits for the child's answer or its death, whichever closes the pipe. */
        if (read(ends[0], &level, sizeof level) != (ssize_t)sizeof level) level = -1;
        (void)waitpid(child, NULL, 0);
    }
    (void)close(ends[0]);
    return level;
}

void doctor_threads(doctor_finding *f) {
    int level = thread_level();
    if (level >= MPI_THREAD_SERIALIZED) {
        doctor_say(f, DOCTOR_OK, "MPI gives thread level %s",
                   level >= MPI_THREAD_MULTIPLE ? "multiple" : "serialized");
    } else if (level >= 0) {
        doctor_say(f, DOCTOR_FAIL, "MPI gives too low a thread level: serialized is needed");
        doctor_remedy(f, "use an MPI that was built with threads");
    } else {
        doctor_say(f, DOCTOR_FAIL, "MPI does not start in one process");
        doctor_remedy(f, "run `mpirun -n 1 true` and fix what it reports");
    }
}

void doctor_hdf5(doctor_finding *f) {
    unsigned a = 0, b = 0, c = 0;
    hbool_t safe = false;
    (void)H5get_libversion(&a, &b, &c);
    (void)H5is_library_threadsafe(&safe);
    doctor_say(f, safe ? DOCTOR_OK : DOCTOR_FAIL, "HDF5 %u.%u.%u, %s", a, b, c,
               safe ? "thread-safe" : "not thread-safe");
    if (!safe) doctor_remedy(f, "apt-get install libhdf5-dev (the serial build) and build again");
}

void doctor_onednn(doctor_finding *f) {
    char version[32];
    bool native = tr_cpu_bf16_native();
    doctor_say(f, native ? DOCTOR_OK : DOCTOR_WARN,
               "oneDNN %s, %s, BF16 products %s, FP16 ones in FP32",
               tr_cpu_onednn_version(version, sizeof version), tr_cpu_isa(),
               native ? "its own" : "in FP32");
    if (!native) doctor_remedy(f, "use train.precision: fp32 here; bf16 saves memory but not time");
}

/* Calls int function(int *) of an open library; returns -1 when it is missing or fails. */
static int ask(void *library, const char *function) {
    int (*call)(int *);
    void *symbol = dlsym(library, function);
    int value = -1;
    if (!symbol) return -1;
    memcpy(&call, &symbol, sizeof call); /* ISO C has no cast from object to function pointers */
    return call(&value) == 0 ? value : -1;
}

static int cuda_devices(void *driver) {
    int (*init)(unsigned);
    void *symbol = dlsym(driver, "cuInit");
    if (!symbol) return -1;
    memcpy(&init, &symbol, sizeof init);
    return init(0) == 0 ? ask(driver, "cuDeviceGetCount") : -1;
}

void doctor_cuda(doctor_finding *f) {
    const char *toolkit = TRIREME_CUDA_TOOLKIT;
    char built[64] = "built without the CUDA toolkit";
    if (*toolkit) (void)snprintf(built, sizeof built, "CUDA toolkit %s at build time", toolkit);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        bool card = access("/dev/nvidiactl", F_OK) == 0;
        doctor_say(f, card ? DOCTOR_WARN : DOCTOR_OK, "no CUDA driver, %s: ranks use the CPU",
                   built);
        if (card)
            doctor_remedy(f,
                          "/dev/nvidiactl is here but libcuda.so.1 is not: in a container, start "
                          "it with --gpus all");
        return;
    }
    /* It stays open, because unloading an initialized driver can crash. */
    int version = ask(driver, "cuDriverGetVersion"), devices = cuda_devices(driver);
    doctor_say(f, DOCTOR_OK, "CUDA driver %d.%d, %d device%s, %s", version / 1000,
               version % 1000 / 10, devices > 0 ? devices : 0, devices == 1 ? "" : "s", built);
    if (devices <= 0) {
        f->level = DOCTOR_WARN;
        doctor_remedy(f, "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES");
        return;
    }
    tr_device *device; /* opening one proves that this build can use it */
    if (tr_device_open("cuda:0", &(tr_device_options){.threads = 1}, &device) == TR_OK) {
        tr_device_close(device);
        return;
    }
    f->level = DOCTOR_WARN;
    doctor_remedy(f, "%s", tr_error_message());
    tr_error_clear();
}

void doctor_nccl(doctor_finding *f) {
    if (!*TRIREME_CUDA_TOOLKIT) {
        doctor_say(f, DOCTOR_OK, "built without NCCL: ranks communicate through MPI");
        return;
    }
    void *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!nccl) {
        doctor_say(f, DOCTOR_OK, "no NCCL: ranks communicate through MPI");
        return;
    }
    int v = ask(nccl, "ncclGetVersion");
    if (v > 0) doctor_say(f, DOCTOR_OK, "NCCL %d.%d.%d", v / 10000, v % 10000 / 100, v % 100);
    else
        doctor_say(f, DOCTOR_WARN,
                   "libnccl.so.2 does not report its version: ranks communicate through MPI");
    (void)dlclose(nccl);
}
