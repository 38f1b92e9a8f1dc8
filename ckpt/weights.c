/* Tensors in files: the list, and reading elements. */
#include "base/half.h"
#include "base/input.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "ckpt/drain.h"
#include "ckpt/weights_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SCRATCH = TR_CKPT_BLOCK,
    GAP = 1 << 10, /* fewer bytes between two runs are read, too: a call costs more */
};

/* --- types ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    int bits;
    tr_weight_type type;
} types[] = {
    {"F32", 32, TR_WEIGHT_F32},          {"BF16", 16, TR_WEIGHT_BF16},
    {"F16", 16, TR_WEIGHT_F16},          {"BOOL", 8, TR_WEIGHT_OTHER},
    {"F4", 4, TR_WEIGHT_OTHER},          {"F6_E2M3", 6, TR_WEIGHT_OTHER},
    {"F6_E3M2", 6, TR_WEIGHT_OTHER},     {"U8", 8, TR_WEIGHT_OTHER},
    {"I8", 8, TR_WEIGHT_OTHER},          {"F8_E5M2", 8, TR_WEIGHT_OTHER},
    {"F8_E4M3", 8, TR_WEIGHT_OTHER},     {"F8_E8M0", 8, TR_WEIGHT_OTHER},
    {"F8_E4M3FNUZ", 8, TR_WEIGHT_OTHER}, {"F8_E5M2FNUZ", 8, TR_WEIGHT_OTHER},
    {"I16", 16, TR_WEIGHT_OTHER},        {"U16", 16, TR_WEIGHT_OTHER},
    {"I32", 32, TR_WEIGHT_OTHER},        {"U32", 32, TR_WEIGHT_OTHER},
    {"C64", 64, TR_WEIGHT_OTHER},        {"F64", 64, TR_WEIGHT_OTHER},
    {"I64", 64, TR_WEIGHT_OTHER},        {"U64", 64, TR_WEIGHT_OTHER},
};

bool tr_weight_type_find(const char *word, tr_weight *tensor, int *bits) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, word)) continue;
        tensor->dtype = types[i].name;
        tensor->type = types[i].type;
        *bits = types[i].bits;
        return true;
    }
    return false;
}

const char *tr_weight_type_name(tr_weight_type type) {
    return types[type].name;
}

int64_t tr_weight_type_size(tr_weight_type type) {
    return types[type].bits / 8;
}

/* --- the list --------------------------------------------------------------------------------- */

static void close_file(tr_weights *w) {
    if (w->open) (void)close(w->fd);
    w->open = 0;
}

/* Opens a file, instead of the one that is open, and sets *found. */
static tr_status open_file(tr_weights *w, const char *path, tr_weight_file *found) {
    const char *kind = NULL;
    struct stat info;
    close_file(w);
    int result = tr_regular_open(path, 0, &w->fd, &found->size, &kind);
    if (result == 0 && fstat(w->fd, &info) != 0) {
        result = errno;
        (void)close(w->fd);
    }
    if (result < 0) return TR_FAIL(TR_ERR_DATA, "'%s' is %s, not a file", path, kind);
    if (result == ENOENT && lstat(path, &info) == 0)
        return TR_FAIL(TR_ERR_DATA, "'%s' is a link to a file that does not exist", path);
    if (result == ENOENT)
        return TR_FAIL(TR_ERR_DATA,
                       "there is no file '%s', which belongs to the model: copy its folder again",
                       path);
    if (result == ELOOP)
        return TR_FAIL(TR_ERR_DATA, "'%s' is a link that leads back to itself", path);
    if (result > 0) return TR_FAIL(TR_ERR_IO, "'%s' cannot be read: %s", path, strerror(result));
    found->device = info.st_dev;
    found->node = info.st_ino;
    return TR_OK;
}

tr_status tr_weights_add_file(tr_weights *w, const char *path, int *file) {
    tr_weight_file found = {0};
    TR_TRY(tr_grow(&w->file, &w->file_capacity, (size_t)w->files + 1, sizeof *w->file));
    TR_TRY(open_file(w, path, &found));
    w->open = w->files + 1;
    TR_TRY(tr_strdup(path, &found.path));
    w->file[w->files] = found;
    *file = w->files++;
    return TR_OK;
}

/* Makes the file of that number the one that is open. */
static tr_status turn_to(tr_weights *w, int file) {
    const tr_weight_file *want = &w->file[file];
    tr_weight_file found;
    if (w->open == file + 1) return TR_OK;
    TR_TRY(open_file(w, want->path, &found));
    w->open = file + 1;
    if (found.size == want->size && found.device == want->device && found.node == want->node)
        return TR_OK;
    close_file(w);
    return TR_FAIL(TR_ERR_DATA, "'%s' was replaced while it was read: repeat the command",
                   want->path);
}

tr_status tr_weights_read_bytes(tr_weights *w, int file, void *data, size_t bytes, int64_t at) {
    TR_TRY(turn_to(w, file));
    return tr_file_read(w->fd, w->file[file].path, data, bytes, at);
}

tr_status tr_weights_add(tr_weights *w, const tr_weight *tensor, const char *name) {
    TR_TRY(tr_grow(&w->tensor, &w->capacity, (size_t)w->count + 1, sizeof *w->tensor));
    tr_weight *added = &w->tensor[w->count];
    *added = *tensor;
    TR_TRY(tr_strdup(name, &added->name));
    w->count++;
    return TR_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const tr_weight *)a)->name, ((const tr_weight *)b)->name);
}

tr_status tr_weights_sort(tr_weights *w) {
    char quoted[120];
    if (w->count) qsort(w->tensor, (size_t)w->count, sizeof *w->tensor, by_name);
    for (int64_t i = 1; i < w->count; i++)
        if (!strcmp(w->tensor[i - 1].name, w->tensor[i].name))
            return TR_FAIL(TR_ERR_DATA, "the tensor %s is in both '%s' and '%s'",
                           tr_json_quote(w->tensor[i].name, quoted, sizeof quoted),
                           w->file[w->tensor[i - 1].file].path, w->file[w->tensor[i].file].path);
    return TR_OK;
}

tr_status tr_weights_open_updates(const char *path, const char *prefix, tr_weights *out) {
    const size_t length = strlen(prefix);
    char quoted[120];
    TR_TRY(tr_weights_open(path, out));
    for (int64_t i = 0; i < out->count; i++) {
        char *name = out->tensor[i].name;
        if (strncmp(name, prefix, length) != 0)
            return TR_FAIL(TR_ERR_DATA, "%s holds the tensor %s: names in an adapter begin with %s",
                           path, tr_json_quote(name, quoted, sizeof quoted), prefix);
        memmove(name, name + length, strlen(name + length) + 1); /* the order stays */
    }
    return TR_OK;
}

void tr_weights_close(tr_weights *w) {
    for (int64_t i = 0; i < w->count; i++) free(w->tensor[i].name);
    for (int i = 0; i < w->files; i++) free(w->file[i].path);
    close_file(w);
    free(w->tensor);
    free(w->file);
    free(w->scratch);
    *w = (tr_weights){0};
}

/* --- elements --------------------------------------------------------------------------------- */

static void widen(const void *from, int64_t count, tr_weight_type type, float *dense) {
    const uint16_t *half = from;
    if (type == TR_WEIGHT_BF16)
        for (int64_t i = 0; i < count; i++) dense[i] = tr_bits_float((uint32_t)half[i] << 16);
    else if (type == TR_WEIGHT_F16)
        for (int64_t i = 0; i < count; i++) dense[i] = tr_half_widen(half[i]);
    else memcpy(dense, from, (size_t)count * sizeof *dense);
}

int64_t tr_weights_round(const float *from, int64_t count, tr_weight_type type, void *data) {
    uint16_t *half = data;
    int64_t lost = 0;
    if (type == TR_WEIGHT_F32) {
        memcpy(data, from, (size_t)count * sizeof *from);
    } else if (type == TR_WEIGHT_BF16) {
        for (int64_t i = 0; i < count; i++) {
            half[i] = tr_bfloat_round(from[i]);
            lost += (half[i] & 0x7fff) == 0x7f80 && fabsf(from[i]) < INFINITY;
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            half[i] = tr_half_round(from[i]);
            lost += (half[i] & 0x7fff) == 0x7c00 && fabsf(from[i]) < INFINITY;
        }
    }
    return lost;
}

/* Reads elements [at, at + count) of the tensor's storage, fewer than the scratch memory holds. */
static tr_status read_piece(tr_weights *w, const tr_weight *t, int64_t at, int64_t count,
                            void *data) {
    const int64_t size = tr_weight_type_size(t->type);
    return tr_weights_read_bytes(w, t->file, data, (size_t)(count * size), t->offset + at * size);
}

/* Reads contiguous elements. */
static tr_status read_run(tr_weights *w, const tr_weight *t, int64_t at, int64_t count,
                          float *dense) {
    const int64_t size = tr_weight_type_size(t->type), most = SCRATCH / size;
    if (t->type == TR_WEIGHT_F32) TR_TRY(read_piece(w, t, at, count, dense));
    for (int64_t i = 0; i < count && t->type != TR_WEIGHT_F32; i += most) {
        const int64_t n = count - i < most ? count - i : most;
        TR_TRY(read_piece(w, t, at + i, n, w->scratch));
        widen(w->scratch, n, t->type, dense + i);
    }
    if (w->once) tr_drain_drop(w->fd, t->offset + at * size, count * size);
    return TR_OK;
}

/* Reads several runs of `run` elements, `pitch` elements apart, with what is between them, into
 * adjacent memory. They fit the scratch memory. */
static tr_status read_runs(tr_weights *w, const tr_weight *t, int64_t at, int64_t run,
                           int64_t pitch, int64_t runs, float *dense) {
    const int64_t size = tr_weight_type_size(t->type);
    TR_TRY(read_piece(w, t, at, (runs - 1) * pitch + run, w->scratch));
    for (int64_t i = 0; i < runs; i++)
        widen((const char *)w->scratch + i * pitch * size, run, t->type, dense + i * run);
    return TR_OK;
}

/* Reads rows of a matrix that the file holds by columns: a run of each column. */
static tr_status read_transposed(tr_weights *w, const tr_weight *t, const tr_box *box,
                                 int64_t first, int64_t count, float *dense) {
    const int64_t columns = box->extent[1], end = first + count;
    const int64_t top = first / columns, rows = (end + columns - 1) / columns - top;
    float *column;
    TR_TRY(tr_calloc((size_t)rows, sizeof *column, &column));
    tr_status status = TR_OK;
    for (int64_t j = 0; j < columns && status == TR_OK; j++) {
        const int64_t at = (box->offset[1] + j) * t->shape[0] + box->offset[0] + top;
        status = read_run(w, t, at, rows, column);
        for (int64_t i = 0; i < rows && status == TR_OK; i++) {
            const int64_t element = (top + i) * columns + j;
            if (element >= first && element < end) dense[element - first] = column[i];
        }
    }
    free(column);
    return status;
}

/* A box in a file, as runs of adjacent elements. */
typedef struct runs {
    tr_box4 part, whole;
    int64_t run;   /* elements of one run */
    int64_t pitch; /* from a run to the next in the same matrix; 0: a run is longer than a row */
} runs;

static runs find_runs(const tr_weight *t, const tr_box *box) {
    static const int64_t zero[TR_PARAM_RANK] = {0};
    runs r = {.part = tr_box4_make(t->rank, box->offset, box->extent),
              .whole = tr_box4_make(t->rank, zero, t->shape)};
    r.run = tr_box4_run(&r.part, r.whole.extent);
    r.pitch = r.part.extent[3] != r.whole.extent[3] ? r.whole.extent[3] : 0;
    return r;
}

/* Returns the rows of its matrix from that element of the box on. */
static int64_t rows_from(const tr_box4 *part, int64_t element) {
    return part->extent[2] - element / part->extent[3] % part->extent[2];
}

/* Tells the system that the next runs are wanted: from a cold disk, one long read of all ranks'
 * runs is faster than many short ones. Returns the element up to which it was told. */
static int64_t announce(const tr_weights *w, const tr_weight *t, int64_t at, int64_t count) {
    const int64_t size = tr_weight_type_size(t->type), most = tr_min_i64(count, SCRATCH / size);
    (void)posix_fadvise(w->fd, t->offset + at * size, most * size, POSIX_FADV_WILLNEED);
    return at + most;
}

tr_status tr_weights_read(tr_weights *w, const tr_weight *t, const tr_box *box, int64_t first,
                          int64_t count, float *dense) {
    const int64_t size = tr_weight_type_size(t->type);
    if (!w->scratch) TR_TRY(tr_calloc(SCRATCH, 1, &w->scratch));
    if (t->transposed) return read_transposed(w, t, box, first, count, dense);
    const runs r = find_runs(t, box);
    const bool joined = r.pitch > 0 && (r.pitch - r.run) * size < GAP;
    int64_t announced = 0;
    TR_TRY(turn_to(w, t->file));
    for (int64_t done = 0, n; done < count; done += n) {
        const int64_t element = first + done, left = count - done, skipped = element % r.run;
        const int64_t at = tr_box4_place(&r.part, r.whole.extent, element);
        int64_t rows = tr_min_i64(rows_from(&r.part, element), left / r.run);
        if (joined) rows = tr_min_i64(rows, SCRATCH / size / r.pitch);
        if (joined && skipped == 0 && rows > 1) {
            n = rows * r.run;
            TR_TRY(read_runs(w, t, at, r.run, r.pitch, rows, dense + done));
        } else {
            n = tr_min_i64(r.run - skipped, left);
            if (r.pitch > 0 && rows > 1 && at >= announced)
                announced = announce(w, t, at, rows * r.pitch);
            TR_TRY(read_run(w, t, at, n, dense + done));
        }
    }
    return TR_OK;
}
