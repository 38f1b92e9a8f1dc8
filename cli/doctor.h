/* The checks of `trireme doctor`. */
#pragma once

#include <stddef.h>

typedef enum doctor_level { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL } doctor_level;

/* The result of a check; remedy is empty when nothing is wrong. */
typedef struct doctor_finding {
    doctor_level level;
    char text[256], remedy[256];
} doctor_finding;

void doctor_say(doctor_finding *finding, doctor_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void doctor_remedy(doctor_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void doctor_mpi(doctor_finding *finding);
void doctor_root(doctor_finding *finding);
void doctor_threads(doctor_finding *finding);
void doctor_hdf5(doctor_finding *finding);
void doctor_onednn(doctor_finding *finding);
void doctor_cuda(doctor_finding *finding);
void doctor_nccl(doctor_finding *finding);
