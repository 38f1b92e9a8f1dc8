#include "support/golden.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void bad(const golden *g, const char *what) {
    (void)fprintf(stderr, "%s: no golden file: %s\n", g->name, what);
    exit(1);
}

static void *allocate(const golden *g, size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (!memory) bad(g, "out of memory");
    return memory;
}

/* Returns a dataset's elements as `type` of `size` bytes, and sets its shape; NULL when the file
 * has none. */
static void *read_optional(const golden *g, hid_t file, const char *name, hid_t type, size_t size,
                           int rank, hsize_t *shape) {
    if (H5Lexists(file, name, H5P_DEFAULT) <= 0) return NULL;
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(dataset);
    if (H5Sget_simple_extent_ndims(space) != rank) bad(g, name);
    (void)H5Sget_simple_extent_dims(space, shape, NULL);
    void *values = allocate(g, (size_t)H5Sget_simple_extent_npoints(space), size);
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) bad(g, name);
    H5Sclose(space);
    H5Dclose(dataset);
    return values;
}

/* Reads n elements of a dataset with any shape of that rank. */
static double *doubles(const golden *g, hid_t file, const char *name, int rank, int64_t count) {
    hsize_t shape[3] = {1, 1, 1};
    double *values = read_optional(g, file, name, H5T_NATIVE_DOUBLE, sizeof(double), rank, shape);
    if (!values || (int64_t)(shape[0] * shape[1] * shape[2]) != count) bad(g, name);
    return values;
}

static char *text(const golden *g, hid_t file, const char *name) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    if (dataset < 0) bad(g, name);
    hid_t type = H5Dget_type(dataset);
    char *words = allocate(g, H5Tget_size(type), 1);
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, words) < 0) bad(g, name);
    H5Tclose(type);
    H5Dclose(dataset);
    return words;
}

/* Reads the list of parameters, one line "name size size" for each. */
static void read_params(golden *g, hid_t file) {
    char *words = text(g, file, "parameters"), *line, *rest = words;
    while ((line = strtok_r(rest, "\n", &rest))) {
        if (g->params == GOLDEN_PARAMS) bad(g, "too many parameters");
        golden_param *p = &g->param[g->params++];
        char *word = strtok_r(line, " ", &line);
        (void)snprintf(p->name, sizeof p->name, "%s", word ? word : "");
        p->at = g->count;
        p->count = 1;
        while ((word = strtok_r(line, " ", &line))) p->count *= strtoll(word, NULL, 10);
        g->count += p->count;
    }
    free(words);
}

static void read_inputs(golden *g, hid_t file) {
    hsize_t shape[3], again[3];
    g->tokens = read_optional(g, file, "tokens", H5T_NATIVE_INT32, 4, 3, shape);
    g->labels = read_optional(g, file, "labels", H5T_NATIVE_INT32, 4, 3, again);
    if (!g->tokens || !g->labels || memcmp(shape, again, sizeof shape) != 0) bad(g, "tokens");
    g->starts = read_optional(g, file, "starts", H5T_NATIVE_INT32, 4, 3, again);
    if (memcmp(shape, again, sizeof shape) != 0) bad(g, "starts");
    g->steps = (int64_t)shape[0];
    g->batch = (int64_t)shape[1];
    g->seq = (int64_t)shape[2];
    g->lr = doubles(g, file, "lr", 1, g->steps);
}

static void read_results(golden *g, hid_t file) {
    hsize_t shape[3];
    g->losses = doubles(g, file, "losses", 1, g->steps);
    g->norms = doubles(g, file, "norms", 1, g->steps);
    g->valid = doubles(g, file, "valid", 1, g->steps);
    g->logits = read_optional(g, file, "logits", H5T_NATIVE_DOUBLE, 8, 3, shape);
    if (!g->logits || (int64_t)shape[0] != g->batch || (int64_t)shape[1] != g->seq)
        bad(g, "logits");
    g->vocab = (int64_t)shape[2];
    g->weights = doubles(g, file, "weights", 1, g->count);
    g->gradients = doubles(g, file, "gradients", 1, g->count);
    g->after = doubles(g, file, "after", 1, g->count);
}

static void read_distances(golden *g, hid_t file, const char *precision, golden_distances *out) {
    const struct {
        const char *name;
        double *to;
        int64_t count;
    } all[] = {{"logits", &out->logits, 1},
               {"gradients", out->gradient, g->params},
               {"after", out->after, g->params}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%s/%s", precision, all[i].name);
        double *values = doubles(g, file, name, 1, all[i].count);
        memcpy(all[i].to, values, (size_t)all[i].count * sizeof *values);
        free(values);
    }
}

void golden_read(const char *path, golden *g) {
    *g = (golden){0};
    const char *slash = strrchr(path, '/');
    (void)snprintf(g->name, sizeof g->name, "%s", slash ? slash + 1 : path);
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* HDF5's own error messages are switched off */
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0) bad(g, "cannot open it");
    g->config = text(g, file, "config");
    read_params(g, file);
    read_inputs(g, file);
    read_results(g, file);
    read_distances(g, file, "bf16", &g->bf16);
    read_distances(g, file, "fp16", &g->fp16);
    H5Fclose(file);
}

void golden_free(golden *g) {
    void *memory[] = {g->config, g->tokens, g->labels, g->starts, g->weights, g->gradients,
                      g->after,  g->logits, g->lr,     g->losses, g->norms,   g->valid};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

const golden_param *golden_find(const golden *g, const char *name) {
    for (int p = 0; p < g->params; p++)
        if (strcmp(g->param[p].name, name) == 0) return &g->param[p];
    return NULL;
}
