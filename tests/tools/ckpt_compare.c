/* Compares the global tensors of two checkpoints through their index.h5, as any HDF5 program reads
 * them.
 *
 *   ckpt_compare exact A B          every tensor of A and B bit for bit
 *   ckpt_compare weights A B        the same for weights alone
 *   ckpt_compare numbers A B        the same, but +0 equals -0
 *   ckpt_compare gradients A B TOL  adam_m after step 1, a multiple of the gradient: each tensor's
 *       distance is within TOL of the larger of its own norm and 1e-3 of the global norm
 *   ckpt_compare distance A B       prints how far A's adam_m are from B's, relative to B's norm
 *
 * A and B are step directories. Prints the first difference of each tensor and exits 1 when there
 * are any. */
#include <hdf5.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tensor {
    char name[256];
    size_t count;
    float *data;
} tensor;

typedef struct list {
    tensor item[1024];
    int count;
    hid_t group;
    const char *prefix;
} list;

static herr_t read_one(hid_t group, const char *name, const H5L_info_t *info, void *context) {
    (void)info;
    list *l = context;
    hid_t dataset = H5Dopen2(group, name, H5P_DEFAULT), space = H5Dget_space(dataset);
    tensor *t = &l->item[l->count++];
    (void)snprintf(t->name, sizeof t->name, "%s/%s", l->prefix, name);
    t->count = (size_t)H5Sget_simple_extent_npoints(space);
    t->data = malloc(t->count * sizeof *t->data);
    herr_t rc = H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, t->data);
    H5Sclose(space);
    H5Dclose(dataset);
    return rc;
}

/* Reads the groups that the checkpoint has; it must have the first one. */
static list *read_groups(const char *dir, int groups, const char *const *group) {
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/index.h5", dir);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file < 0) {
        fprintf(stderr, "ckpt_compare: cannot open %s\n", path);
        exit(2);
    }
    list *l = calloc(1, sizeof *l);
    for (int g = 0; g < groups; g++) {
        if (g > 0 && H5Lexists(file, group[g], H5P_DEFAULT) <= 0) continue;
        hid_t id = H5Gopen2(file, group[g], H5P_DEFAULT);
        l->prefix = group[g];
        if (id < 0 || H5Literate(id, H5_INDEX_NAME, H5_ITER_INC, NULL, read_one, l) < 0) {
            fprintf(stderr, "ckpt_compare: cannot read group %s of %s\n", group[g], path);
            exit(2);
        }
        H5Gclose(id);
    }
    H5Fclose(file);
    return l;
}

static double norm(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double d = b ? (double)a[i] - (double)b[i] : (double)a[i];
        sum += d * d;
    }
    return sqrt(sum);
}

/* Counts the tensors that differ. numbers: +0 equals -0. */
static int compare_exact(const list *a, const list *b, bool numbers) {
    int different = 0;
    for (int i = 0; i < a->count; i++) {
        const tensor *x = &a->item[i], *y = &b->item[i];
        for (size_t k = 0; k < x->count; k++) {
            bool same = memcmp(&x->data[k], &y->data[k], sizeof(float)) == 0;
            if (numbers && x->data[k] == 0 && y->data[k] == 0) same = true;
            if (!same || isnan(x->data[k])) {
                printf("%s[%zu]: %.9g and %.9g\n", x->name, k, (double)x->data[k],
                       (double)y->data[k]);
                different++;
                break;
            }
        }
    }
    return different;
}

static int compare_gradients(const list *a, const list *b, double tolerance) {
    double global = 0;
    int different = 0;
    for (int i = 0; i < a->count; i++) {
        double n = norm(a->item[i].data, NULL, a->item[i].count);
        global += n * n;
    }
    global = sqrt(global);
    for (int i = 0; i < a->count; i++) {
        const tensor *x = &a->item[i], *y = &b->item[i];
        double own = norm(x->data, NULL, x->count), floor = 1e-3 * global;
        double limit = tolerance * (own > floor ? own : floor);
        double distance = norm(x->data, y->data, x->count);
        if (!(distance <= limit)) {
            printf("%s: distance %.3g, allowed %.3g (norm %.3g)\n", x->name, distance, limit, own);
            different++;
        }
    }
    return different;
}

static double compare_distance(const list *a, const list *b) {
    double distance = 0, global = 0;
    for (int i = 0; i < a->count; i++) {
        double d = norm(a->item[i].data, b->item[i].data, a->item[i].count);
        double n = norm(b->item[i].data, NULL, b->item[i].count);
        distance += d * d;
        global += n * n;
    }
    return sqrt(distance / global);
}

int main(int argc, char **argv) {
    static const char *const all[] = {"weights", "adam_m",   "adam_v",   "momentum",
                                      "lion_m",  "factor_r", "factor_c", "factor_v"};
    int groups = sizeof all / sizeof *all;
    (void)H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* HDF5's own error messages are switched off */
    const char *how = argc > 1 ? argv[1] : "";
    bool gradients = argc == 5 && strcmp(how, "gradients") == 0;
    bool distance = argc == 4 && strcmp(how, "distance") == 0;
    bool numbers = argc == 4 && strcmp(how, "numbers") == 0;
    bool weights = argc == 4 && strcmp(how, "weights") == 0;
    bool tensors = weights || numbers || (argc == 4 && strcmp(how, "exact") == 0);
    if (!gradients && !distance && !tensors) {
        fprintf(
            stderr,
            "usage: ckpt_compare exact|weights|numbers|distance A B | gradients A B TOLERANCE\n");
        return 2;
    }
    if (weights) groups = 1;
    list *a = read_groups(argv[2], tensors ? groups : 1, tensors ? all : all + 1);
    list *b = read_groups(argv[3], tensors ? groups : 1, tensors ? all : all + 1);
    int different = a->count != b->count || a->count == 0;
    if (different) printf("the checkpoints have %d and %d tensors\n", a->count, b->count);
    for (int i = 0; !different && i < a->count; i++)
        if (strcmp(a->item[i].name, b->item[i].name) != 0 || a->item[i].count != b->item[i].count) {
            printf("tensor %s (%zu elements) and tensor %s (%zu elements) differ\n",
                   a->item[i].name, a->item[i].count, b->item[i].name, b->item[i].count);
            different++;
        }
    if (different) return 1;
    if (distance) {
        printf("%.9g\n", compare_distance(a, b));
        return 0;
    }
    different =
        tensors ? compare_exact(a, b, numbers) : compare_gradients(a, b, strtod(argv[4], NULL));
    return different ? 1 : 0;
}
