/* A libcuda.so.1 for machines without NVIDIA's driver: it accepts kernel images and returns handles
 * that cannot be launched, which is all that cuDNN needs to finish a plan. All other calls fail
 * with "no driver". When it is asked for its version, which CUDA does first, it prints the
 * environment variable that DRIVER_SHIM_TELLS names to stderr. Tests put it first in the library
 * path; it is never installed. */
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, STUB_LIBRARY = 34 }; /* of CUresult */

int cuDriverGetVersion(int *version);
int cuLibraryLoadData(void **library, const void *code, void *jit_options, void **jit_values,
                      unsigned jit_count, void *options, void **values, unsigned count);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuLibraryUnload(void *library);
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device);
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device);

static char image, function;

int cuDriverGetVersion(int *version) {
    (void)version;
    const char *name = getenv("DRIVER_SHIM_TELLS");
    const char *value = name ? getenv(name) : NULL;
    if (name) (void)fprintf(stderr, "%s=%s\n", name, value ? value : "");
    return STUB_LIBRARY;
}
int cuLibraryLoadData(void **library, const void *code, void *jit_options, void **jit_values,
                      unsigned jit_count, void *options, void **values, unsigned count) {
    (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    *library = &image;
    return SUCCESS;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library, (void)name;
    *kernel = &function;
    return SUCCESS;
}
int cuLibraryUnload(void *library) {
    (void)library;
    return SUCCESS;
}
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
    (void)attribute, (void)value, (void)kernel, (void)device;
    return SUCCESS;
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return SUCCESS;
}

/* cuDNN looks these up too, and works without them. */
#define NO_DRIVER(name)                                                                            \
    int name(void);                                                                                \
    int name(void) {                                                                               \
        return STUB_LIBRARY;                                                                       \
    }
NO_DRIVER(cuInit)
NO_DRIVER(cuGetErrorName)
NO_DRIVER(cuGetErrorString)
NO_DRIVER(cuDeviceGet)
NO_DRIVER(cuDeviceGetCount)
NO_DRIVER(cuCtxGetCurrent)
NO_DRIVER(cuCtxGetLimit)
NO_DRIVER(cuCtxPopCurrent)
NO_DRIVER(cuCtxPushCurrent)
NO_DRIVER(cuStreamGetCtx)
NO_DRIVER(cuLibraryLoadFromFile)
NO_DRIVER(cuLinkCreate)
NO_DRIVER(cuLinkAddData)
NO_DRIVER(cuLinkComplete)
NO_DRIVER(cuLinkDestroy)
NO_DRIVER(cuLaunchKernel)
NO_DRIVER(cuLaunchKernelEx)
NO_DRIVER(cuLaunchCooperativeKernel)
NO_DRIVER(cuOccupancyMaxPotentialClusterSize)
