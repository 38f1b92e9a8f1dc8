#include "ckpt/h5.h"

#include "ckpt/ckpt_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tr_h5_begin(void) {
    /* Must come before HDF5's first call; later calls fail, which does no harm. */
    (void)H5dont_atexit();
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    (void)H5PLset_loading_state(0);
}

enum { REASON = 1024 };

static herr_t innermost(unsigned n, const H5E_error2_t *error, void *context) {
    char *reason = context;
    if (n == 0) (void)snprintf(reason, REASON, "%s", error->desc ? error->desc : "unknown reason");
    return 0;
}

/* Writes the innermost reason of HDF5's last failure to reason[REASON]. */
static void last_reason(char *reason) {
    (void)strcpy(reason, "unknown reason");
    (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, reason);
}

tr_status tr_h5_fail(tr_status code, const char *what, const char *name) {
    char reason[REASON];
    last_reason(reason);
    return TR_FAIL(code, "HDF5 cannot %s %s: %.200s", what, name, reason);
}

/* Fails as tr_io_fail does, if HDF5's reason names an errno. */
static tr_status fail_io(const char *what, const char *path, int64_t needed) {
    static const char before[] = "errno = ";
    char reason[REASON];
    last_reason(reason);
    const char *at = strstr(reason, before);
    const int error = at ? atoi(at + sizeof before - 1) : 0;
    return error > 0 ? tr_io_fail(what, path, error, needed) : tr_h5_fail(TR_ERR_IO, what, path);
}

tr_status tr_h5_create(const char *path, int64_t needed, hid_t *file) {
    tr_h5_begin();
    *file = -1;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_FILE_CREATE);
    bool good = access >= 0 && create >= 0 &&
                H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
                H5Pset_alignment(access, 65536, 4096) >= 0 &&
                H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0 &&
                H5Pset_obj_track_times(create, false) >= 0 &&
                /* A file has one writer, and network file systems may lack locks. */
                H5Pset_file_locking(access, false, true) >= 0;
    if (good) *file = H5Fcreate(path, H5F_ACC_TRUNC, create, access);
    tr_status status = *file >= 0 ? TR_OK : fail_io("lay out", path, needed);
    if (access >= 0) (void)H5Pclose(access);
    if (create >= 0) (void)H5Pclose(create);
    return status;
}

tr_status tr_h5_finish(const char *path, int64_t needed, hid_t file, tr_status status) {
    const bool closed = H5Fclose(file) >= 0;
    return closed || status != TR_OK ? status : fail_io("finish the layout of", path, needed);
}

hid_t tr_h5_dataset_list(void) {
    hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (list >= 0 && H5Pset_obj_track_times(list, false) < 0) {
        (void)H5Pclose(list);
        list = -1;
    }
    return list;
}

hid_t tr_h5_type(int64_t type) {
    hid_t bf16 = H5Tcopy(H5T_IEEE_F32LE);
    if (type != TR_CKPT_BF16 || bf16 < 0) return bf16;
    /* The order of these calls matters: each leaves a type that HDF5 accepts. */
    if (H5Tset_fields(bf16, 15, 7, 8, 0, 7) >= 0 && H5Tset_size(bf16, sizeof(uint16_t)) >= 0 &&
        H5Tset_ebias(bf16, 127) >= 0)
        return bf16;
    (void)H5Tclose(bf16);
    return -1;
}

static bool set_attribute(hid_t object, const char *name, hid_t type, hid_t space,
                          const void *data) {
    hid_t attribute = type >= 0 && space >= 0
                          ? H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT)
                          : -1;
    bool good = attribute >= 0 && H5Awrite(attribute, type, data) >= 0;
    if (attribute >= 0) (void)H5Aclose(attribute);
    if (space >= 0) (void)H5Sclose(space);
    return good;
}

bool tr_h5_set_text(hid_t object, const char *name, const char *text) {
    hid_t type = H5Tcopy(H5T_C_S1);
    bool good = type >= 0 && H5Tset_size(type, strlen(text) + 1) >= 0 &&
                set_attribute(object, name, type, H5Screate(H5S_SCALAR), text);
    if (type >= 0) (void)H5Tclose(type);
    return good;
}

bool tr_h5_set_i64(hid_t object, const char *name, int count, const int64_t *values) {
    hsize_t dims[1] = {(hsize_t)count};
    hid_t space = count == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, dims, NULL);
    return set_attribute(object, name, H5T_STD_I64LE, space, values);
}
