/* safetensors: the header of a file, and the index of several files.
 *
 * 8 bytes: N, little-endian; N bytes of JSON: {"name": {"dtype", "shape", "data_offsets"}, ...},
 * where "__metadata__" holds texts; then the data, which the tensors cover without gap or
 * overlap. */
#include "base/input.h"
#include "base/json.h"
#include "base/memory.h"
#include "ckpt/weights_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LENGTH = 8, MOST_HEADER = 100000000, MOST_INDEX_MIB = 64 };

/* The header of a file that is being read. */
typedef struct header {
    const char *path;
    int64_t data; /* offset of the data */
    int64_t end;  /* bytes of the data */
    int file;
} header;

static tr_status bad(const header *h, const char *name, const char *why) {
    char quoted[120];
    return TR_FAIL(TR_ERR_DATA, "%s: the tensor %s %s", h->path,
                   tr_json_quote(name, quoted, sizeof quoted), why);
}

static tr_status take_shape(const header *h, const cJSON *entry, tr_weight *t, int64_t *elements) {
    const cJSON *shape = tr_json_get(entry, "shape"), *size;
    *elements = 1;
    if (!cJSON_IsArray(shape)) return bad(h, entry->string, "has no list \"shape\"");
    cJSON_ArrayForEach(size, shape) {
        if (t->rank == TR_WEIGHT_RANK) return bad(h, entry->string, "has more than 8 dimensions");
        int64_t *n = &t->shape[t->rank++];
        if (!tr_json_integer(size, n) || *n < 0)
            return bad(h, entry->string, "has a size that is not an integer of at least 0");
        if (__builtin_mul_overflow(*elements, *n, elements))
            return bad(h, entry->string, "has more elements than a 64-bit number can say");
    }
    return TR_OK;
}

static tr_status take_tensor(const header *h, const cJSON *entry, tr_weights *w) {
    tr_weight t = {.file = h->file};
    int64_t elements, bits, begin, end;
    int width;
    const char *dtype = cJSON_GetStringValue(tr_json_get(entry, "dtype"));
    const cJSON *offsets = tr_json_get(entry, "data_offsets");
    if (!cJSON_IsObject(entry)) return bad(h, entry->string, "is not described by an object");
    if (!dtype || !tr_weight_type_find(dtype, &t, &width))
        return bad(h, entry->string, "has a \"dtype\" that the format does not have");
    TR_TRY(take_shape(h, entry, &t, &elements));
    if (cJSON_GetArraySize(offsets) != 2 || !tr_json_integer(offsets->child, &begin) ||
        !tr_json_integer(offsets->child->next, &end) || begin < 0)
        return bad(h, entry->string, "needs two integers of at least 0 in \"data_offsets\"");
    if (begin > end || end > h->end)
        return bad(h, entry->string,
                   "has \"data_offsets\" beyond the end of the file: it was cut off or is damaged; "
                   "copy it again");
    if (__builtin_mul_overflow(elements, width, &bits) || bits % 8 || bits / 8 != end - begin)
        return bad(h, entry->string, "does not have the bytes of its shape and type");
    t.offset = h->data + begin;
    t.bytes = end - begin;
    return tr_weights_add(w, &t, entry->string);
}

static tr_status check_metadata(const header *h, const cJSON *metadata) {
    const cJSON *value;
    bool good = cJSON_IsObject(metadata);
    cJSON_ArrayForEach(value, metadata) good = good && cJSON_IsString(value);
    if (good) return TR_OK;
    return TR_FAIL(TR_ERR_DATA, "%s: \"__metadata__\" must be an object of texts", h->path);
}

static int by_place(const void *a, const void *b) {
    const tr_weight *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Checks that the tensors cover the data without gap or overlap. */
static tr_status check_cover(const header *h, tr_weight *tensor, int64_t count) {
    int64_t at = h->data;
    if (count) qsort(tensor, (size_t)count, sizeof *tensor, by_place);
    for (int64_t i = 0; i < count; i++) {
        if (tensor[i].offset < at)
            return bad(
                h, tensor[i].name,
                "overlaps the tensor before it in the file, which is damaged: copy it again");
        if (tensor[i].offset > at)
            return bad(h, tensor[i].name,
                       "begins after bytes that belong to no tensor: the file is damaged; copy it "
                       "again");
        at += tensor[i].bytes;
    }
    if (at == h->data + h->end) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "%s: the tensors end at byte %" PRId64 ", but the file has %" PRId64
                   " bytes: it is damaged; copy it again",
                   h->path, at, h->data + h->end);
}

static tr_status take_header(const header *h, const char *text, int64_t length, tr_weights *w) {
    cJSON *root, *entry;
    const int64_t before = w->count;
    if (length == 0 || text[0] != '{')
        return TR_FAIL(TR_ERR_DATA, "%s: the header does not begin with '{' at byte %d", h->path,
                       LENGTH);
    TR_TRY(tr_json_parse(text, (size_t)length, h->path, &root));
    tr_status status = TR_OK;
    cJSON_ArrayForEach(entry, root) {
        if (status == TR_OK)
            status = strcmp(entry->string, "__metadata__") ? take_tensor(h, entry, w)
                                                           : check_metadata(h, entry);
    }
    cJSON_Delete(root);
    TR_TRY(status);
    return check_cover(h, w->tensor + before, w->count - before);
}

/* Reads the header of a file. */
static tr_status add_safetensors(tr_weights *w, const char *path) {
    header h = {.path = path};
    unsigned char first[LENGTH];
    char *text;
    TR_TRY(tr_weights_add_file(w, path, &h.file));
    if (w->file[h.file].size < LENGTH)
        return TR_FAIL(TR_ERR_DATA,
                       "%s has %" PRId64
                       " bytes, fewer than the 8 with which safetensors begin: it was cut off; "
                       "copy it again",
                       path, w->file[h.file].size);
    TR_TRY(tr_weights_read_bytes(w, h.file, first, LENGTH, 0));
    uint64_t n = 0;
    for (int i = LENGTH; i-- > 0;) n = n << 8 | first[i];
    if (n > MOST_HEADER || (int64_t)n > w->file[h.file].size - LENGTH)
        TR_TRY(tr_foreign_file(path, (const char *)first, LENGTH));
    if (n > MOST_HEADER || (int64_t)n > w->file[h.file].size - LENGTH)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: the first 8 bytes state a header of %" PRIu64
                       " bytes, but the file has %" PRId64 " and the format's limit is %d: it was "
                       "cut off, or is not a file of safetensors",
                       path, n, w->file[h.file].size, MOST_HEADER);
    h.data = LENGTH + (int64_t)n;
    h.end = w->file[h.file].size - h.data;
    TR_TRY(tr_calloc((size_t)n + 1, 1, &text));
    tr_status status = tr_weights_read_bytes(w, h.file, text, (size_t)n, LENGTH);
    if (status == TR_OK) status = take_header(&h, text, (int64_t)n, w);
    free(text);
    return status;
}

/* --- the index -------------------------------------------------------------------------------- */

static int entry_by_name(const void *key, const void *tensor) {
    return strcmp(key, ((const tr_weight *)tensor)->name);
}

/* Opens the files that the index names, each once. */
static tr_status open_shards(tr_weights *w, const char *dir, const char *where, const cJSON *map) {
    const cJSON *entry;
    char quoted[120];
    cJSON_ArrayForEach(entry, map) {
        const char *name = cJSON_GetStringValue(entry);
        tr_path path;
        bool open = false;
        if (!name || !*name || strlen(name) > NAME_MAX || strchr(name, '/') ||
            !strcmp(name, "..") || !strcmp(name, "."))
            return TR_FAIL(TR_ERR_DATA,
                           "%s: the tensor %s is not in a file of this folder: \"weight_map\" must "
                           "name files without '/'",
                           where, tr_json_quote(entry->string, quoted, sizeof quoted));
        TR_TRY(tr_path_join(dir, name, &path));
        for (int f = 0; f < w->files && !open; f++) open = !strcmp(w->file[f].path, path.text);
        if (!open) TR_TRY(add_safetensors(w, path.text));
    }
    return TR_OK;
}

/* Checks that the index and the files name the same tensors in the same places. */
static tr_status check_index(const tr_weights *w, const char *where, const cJSON *map) {
    const cJSON *entry;
    char quoted[120];
    int64_t named = 0;
    cJSON_ArrayForEach(entry, map) {
        const tr_weight *t =
            w->count ? bsearch(entry->string, w->tensor, (size_t)w->count, sizeof *t, entry_by_name)
                     : NULL;
        const char *file = t ? strrchr(w->file[t->file].path, '/') + 1 : NULL;
        named++;
        if (!t || strcmp(file, entry->valuestring))
            return TR_FAIL(TR_ERR_DATA,
                           "%s: the tensor %s is not in the file that it names: the folder mixes "
                           "two models",
                           where, tr_json_quote(entry->string, quoted, sizeof quoted));
    }
    if (named == w->count) return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "%s names %" PRId64 " tensors, but its files hold %" PRId64
                   ": the folder mixes two models",
                   where, named, w->count);
}

static tr_status open_index(tr_weights *w, const char *dir, const char *path) {
    cJSON *root;
    tr_status status = tr_json_load("the index of the weights", path, MOST_INDEX_MIB, &root);
    if (status == TR_ERR_NOFILE) /* the user named the folder */
        status = TR_FAIL(TR_ERR_DATA, "%s", tr_error_message());
    TR_TRY(status);
    const cJSON *map = tr_json_get(root, "weight_map");
    if (!cJSON_IsObject(map))
        status = TR_FAIL(TR_ERR_DATA, "%s: \"weight_map\" must be an object", path);
    if (status == TR_OK) status = open_shards(w, dir, path, map);
    if (status == TR_OK) status = tr_weights_sort(w);
    if (status == TR_OK) status = check_index(w, path, map);
    cJSON_Delete(root);
    return status;
}

tr_status tr_weights_open(const char *path, tr_weights *w) {
    struct stat info;
    tr_path single, index;
    *w = (tr_weights){0};
    if (stat(path, &info) != 0) return tr_input_no_model(path, errno, "");
    if (!S_ISDIR(info.st_mode)) {
        TR_TRY(tr_foreign_shard(path));
        TR_TRY(add_safetensors(w, path));
        return tr_weights_sort(w);
    }
    TR_TRY(tr_path_join(path, "model.safetensors", &single));
    TR_TRY(tr_path_join(path, "model.safetensors.index.json", &index));
    /* A link that leads nowhere is there, too: its own message is better than "neither". */
    if (tr_input_exists(single.text)) {
        TR_TRY(add_safetensors(w, single.text));
        return tr_weights_sort(w);
    }
    if (tr_input_exists(index.text)) return open_index(w, path, index.text);
    return tr_foreign_folder(path);
}

/* --- writing ---------------------------------------------------------------------------------- */

static int by_size_and_name(const void *a, const void *b) {
    const tr_weight *x = a, *y = b;
    const int64_t m = tr_weight_type_size(x->type), n = tr_weight_type_size(y->type);
    return m != n ? (m < n) - (m > n) : strcmp(x->name, y->name);
}

static void print_tensor(FILE *f, const tr_weight *t, int64_t begin) {
    (void)fprintf(f, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name,
                  tr_weight_type_name(t->type));
    for (int d = 0; d < t->rank; d++) (void)fprintf(f, "%s%" PRId64, d ? "," : "", t->shape[d]);
    (void)fprintf(f, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, begin + t->bytes);
}

tr_status tr_safetensors_header(tr_weight *tensors, int64_t count, char **out,
                                int64_t *header_bytes, int64_t *bytes) {
    size_t size = 0;
    int64_t at = 0;
    *out = NULL;
    if (count) qsort(tensors, (size_t)count, sizeof *tensors, by_size_and_name);
    FILE *f = open_memstream(out, &size);
    if (!f) return TR_FAIL(TR_ERR_FIT, "out of host memory");
    /* transformers 4 refuses a file without this entry */
    (void)fprintf(f, "%8s{\"__metadata__\":{\"format\":\"pt\"}", "");
    for (int64_t i = 0; i < count; i++) {
        print_tensor(f, &tensors[i], at);
        tensors[i].offset = at;
        at += tensors[i].bytes;
    }
    (void)fputc('}', f);
    for (long n = ftell(f); n % 8; n++) (void)fputc(' ', f);
    if (fclose(f) != 0) {
        free(*out);
        return TR_FAIL(TR_ERR_FIT, "out of host memory");
    }
    const uint64_t n = size - LENGTH;
    for (int i = 0; i < LENGTH; i++) (*out)[i] = (char)(n >> (8 * i) & 0xff);
    for (int64_t i = 0; i < count; i++) tensors[i].offset += (int64_t)size;
    *header_bytes = (int64_t)size;
    *bytes = (int64_t)size + at;
    return TR_OK;
}
