/* Makes a checkpoint with valid checksums and an invalid state: sets a number in /state of a step's
 * index.h5, or removes it, and writes a COMMIT for the new index. usage: ckpt_forge STEP_DIRECTORY
 * FIELD NUMBER|nan|remove */
#include "ckpt/ckpt_impl.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static bool set_field(const char *index, const char *field, const char *text) {
    char path[128];
    (void)snprintf(path, sizeof path, "/state/%s", field);
    hid_t file = H5Fopen(index, H5F_ACC_RDWR, H5P_DEFAULT);
    if (file < 0) return false;
    bool good;
    if (!strcmp(text, "remove")) {
        good = H5Ldelete(file, path, H5P_DEFAULT) >= 0;
    } else {
        hid_t set = H5Dopen2(file, path, H5P_DEFAULT), type = set < 0 ? -1 : H5Dget_type(set);
        double number = strtod(text, NULL);
        int64_t integer = strtoll(text, NULL, 10);
        bool is_float = type >= 0 && H5Tget_class(type) == H5T_FLOAT;
        good = type >= 0 && H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                                     is_float ? (void *)&number : (void *)&integer) >= 0;
        if (type >= 0) (void)H5Tclose(type);
        if (set >= 0) (void)H5Dclose(set);
    }
    return H5Fclose(file) >= 0 && good;
}

static tr_status renew_commit(const char *index, const char *commit_path) {
    char *text, *image, renewed[TR_COMMIT_SIZE];
    size_t bytes;
    tr_commit commit;
    TR_TRY(tr_file_load(commit_path, TR_COMMIT_SIZE, &text, &bytes));
    tr_status status = tr_commit_parse(text, bytes, commit_path, &commit);
    free(text);
    TR_TRY(status);
    TR_TRY(tr_file_load(index, INT64_MAX - 1, &image, &bytes));
    commit.total_bytes += (int64_t)bytes - commit.index_bytes;
    commit.index_bytes = (int64_t)bytes;
    commit.index_hash = XXH3_64bits(image, bytes);
    free(image);
    int length = tr_commit_format(&commit, renewed);
    (void)remove(commit_path);
    return tr_file_store(commit_path, renewed, (size_t)length, 0);
}

int main(int argc, char **argv) {
    tr_path index, commit;
    if (argc != 4) {
        fprintf(stderr, "usage: ckpt_forge STEP_DIRECTORY FIELD NUMBER|nan|remove\n");
        return TR_ERR_USAGE;
    }
    tr_status status = tr_path_join(argv[1], "index.h5", &index);
    if (status == TR_OK) status = tr_path_join(argv[1], "COMMIT", &commit);
    if (status == TR_OK && !set_field(index.text, argv[2], argv[3]))
        status = TR_FAIL(TR_ERR_DATA, "%s: /state/%s cannot be set", index.text, argv[2]);
    if (status == TR_OK) status = renew_commit(index.text, commit.text);
    if (status != TR_OK) fprintf(stderr, "ckpt_forge: %s\n", tr_error_message());
    return (int)status;
}
