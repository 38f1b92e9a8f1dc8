/* The manifest: look-ups, sizes, seeds, and its check. */
#include "base/memory.h"
#include "base/philox.h"
#include "ckpt/ckpt_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void tr_manifest_free(tr_manifest *manifest) {
    free(manifest->tensor);
    free(manifest->type);
    free(manifest->file);
    free(manifest->part);
    free(manifest->block);
    free(manifest->of_file);
    free(manifest->first);
    *manifest = (tr_manifest){0};
}

int64_t tr_manifest_find(const tr_manifest *manifest, const char *name) {
    int64_t low = 0, high = manifest->tensors;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, manifest->tensor[middle].name);
        if (order == 0) return middle;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return -1;
}

/* Sets *out to the product of `rank` extents. Returns false when one is not positive or 4 * product
 * overflows. */
static bool volume(int64_t rank, const int64_t *extent, int64_t *out) {
    int64_t product = 1, bytes;
    for (int64_t d = 0; d < rank; d++)
        if (extent[d] < 1 || __builtin_mul_overflow(product, extent[d], &product)) return false;
    *out = product;
    return !__builtin_mul_overflow(product, (int64_t)sizeof(float), &bytes);
}

tr_ckpt_type tr_ckpt_type_of(tr_dtype dtype) {
    return dtype == TR_BF16 || dtype == TR_U8 ? TR_CKPT_BF16 : TR_CKPT_F32;
}

int64_t tr_part_elements(const tr_manifest *manifest, const tr_ckpt_part *part) {
    int64_t elements = 0;
    (void)volume(manifest->tensor[part->tensor].rank, part->extent, &elements);
    return elements;
}

int64_t tr_part_size(const tr_manifest *manifest, const tr_ckpt_part *part) {
    return manifest->type[part->tensor] == TR_CKPT_BF16 ? (int64_t)sizeof(uint16_t)
                                                        : (int64_t)sizeof(float);
}

int64_t tr_ckpt_blocks(int64_t elements) {
    return elements / TR_CKPT_STEP + (elements % TR_CKPT_STEP != 0);
}

int64_t tr_part_bytes(const tr_manifest *manifest, const tr_ckpt_part *part) {
    return tr_part_elements(manifest, part) * tr_part_size(manifest, part);
}

int64_t tr_manifest_payload(const tr_manifest *manifest) {
    int64_t bytes = 0;
    for (int64_t p = 0; p < manifest->parts; p++)
        bytes += tr_part_bytes(manifest, &manifest->part[p]);
    return bytes;
}

uint64_t tr_ckpt_block_seed(const tr_manifest *manifest, const tr_ckpt_part *part, int64_t block) {
    const tr_ckpt_entry *tensor = &manifest->tensor[part->tensor];
    uint64_t seed = tr_hash_name(tensor->name);
    for (int64_t d = 0; d < tensor->rank; d++) seed = tr_mix64(seed ^ (uint64_t)part->from[d]);
    return tr_mix64(seed ^ (uint64_t)block);
}

typedef struct place {
    int64_t file, offset, part;
} place;

static int by_place(const void *a, const void *b) {
    const place *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part;
}

tr_status tr_manifest_list_files(tr_manifest *m) {
    TR_TRY(tr_calloc((size_t)m->parts, sizeof *m->of_file, &m->of_file));
    TR_TRY(tr_calloc((size_t)m->files + 1, sizeof *m->first, &m->first));
    for (int64_t p = 0; p < m->parts; p++) m->first[m->part[p].file]++;
    for (int64_t f = 0, end = 0; f <= m->files; f++) end = m->first[f] += end;
    for (int64_t p = m->parts - 1; p >= 0; p--) /* backwards, from the ends to the beginnings */
        m->of_file[--m->first[m->part[p].file]] = p;
    return TR_OK;
}

tr_status tr_manifest_parts_of(const tr_manifest *manifest, int64_t file, int64_t **out,
                               int64_t *count) {
    const int64_t *part = manifest->of_file + manifest->first[file];
    place *places;
    *count = manifest->first[file + 1] - manifest->first[file];
    TR_TRY(tr_calloc((size_t)*count, sizeof *places, &places));
    for (int64_t i = 0; i < *count; i++)
        places[i] = (place){file, manifest->part[part[i]].offset, part[i]};
    qsort(places, (size_t)*count, sizeof *places, by_place);
    tr_status status = tr_calloc((size_t)*count, sizeof **out, out);
    for (int64_t i = 0; status == TR_OK && i < *count; i++) (*out)[i] = places[i].part;
    free(places);
    return status;
}

static bool entry_good(const tr_ckpt_entry *entry) {
    int64_t elements;
    return memchr(entry->name, 0, sizeof entry->name) && entry->rank >= 0 &&
           entry->rank <= TR_PARAM_RANK && volume(entry->rank, entry->shape, &elements);
}

/* Checks one part by itself: its numbers are in range, and its box is inside its tensor. */
static bool part_good(const tr_manifest *m, const tr_ckpt_part *part, int64_t first_block) {
    if (part->tensor < 0 || part->tensor >= m->tensors || part->file < 0 || part->file >= m->files)
        return false;
    const tr_ckpt_entry *tensor = &m->tensor[part->tensor];
    for (int64_t d = 0; d < tensor->rank; d++)
        if (part->from[d] < 0 || part->extent[d] < 1 || part->from[d] >= tensor->shape[d] ||
            part->extent[d] > tensor->shape[d] - part->from[d])
            return false;
    return part->first_block == first_block &&
           part->blocks == tr_ckpt_blocks(tr_part_elements(m, part));
}

/* Orders by the first dimension of a tensor that has parts. */
static int by_row(const void *a, const void *b) {
    const tr_box4 *x = a, *y = b;
    for (int d = 0; d < 4; d++)
        if (x->from[d] != y->from[d]) return x->from[d] < y->from[d] ? -1 : 1;
    return 0;
}

/* Returns true when no two of box[count] have a common element. Ordered by rows, a box can meet
 * only those that begin before it ends: a few, however many ranks have saved a part. */
static bool are_disjoint(tr_box4 *box, int64_t count, int64_t rank) {
    const int64_t d = rank > 0 ? 4 - rank : 3;
    qsort(box, (size_t)count, sizeof *box, by_row);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = i + 1; j < count && box[j].from[d] < box[i].from[d] + box[i].extent[d];
             j++)
            if (tr_box4_intersects(&box[i], &box[j])) return false;
    return true;
}

/* Checks that parts [first, end) of one tensor are disjoint and have all of its elements. */
static tr_status check_cover(const tr_manifest *m, int64_t first, int64_t end, const char *where,
                             tr_status code) {
    const tr_ckpt_entry *tensor = &m->tensor[m->part[first].tensor];
    const int64_t count = end - first;
    int64_t whole = 0, sum = 0;
    tr_box4 *box;
    TR_TRY(tr_calloc((size_t)count, sizeof *box, &box));
    for (int64_t i = 0; i < count; i++)
        box[i] = tr_box4_make(tensor->rank, m->part[first + i].from, m->part[first + i].extent);
    const bool disjoint = are_disjoint(box, count, tensor->rank);
    for (int64_t i = 0; i < count && disjoint; i++) /* no overflow: they are inside the tensor */
        sum += tr_box4_volume(&box[i]);
    free(box);
    if (!disjoint)
        return TR_FAIL(code, "%s: elements of tensor %s occur twice", where, tensor->name);
    (void)volume(tensor->rank, tensor->shape, &whole);
    if (sum != whole)
        return TR_FAIL(code, "%s: tensor %s has %" PRId64 " elements, but its parts have %" PRId64,
                       where, tensor->name, whole, sum);
    return TR_OK;
}

/* Checks that every shard has parts, which are disjoint and inside its file. */
static tr_status check_places(const tr_manifest *m, const char *where, tr_status code) {
    place *places;
    int64_t at = 0, file = 0;
    TR_TRY(tr_calloc((size_t)m->parts, sizeof *places, &places));
    for (int64_t p = 0; p < m->parts; p++)
        places[p] = (place){m->part[p].file, m->part[p].offset, p};
    qsort(places, (size_t)m->parts, sizeof *places, by_place);
    for (; file < m->files; file++) {
        const int64_t first = at, all = m->file[file].bytes;
        int64_t free_from = 0;
        bool good = all > 0;
        for (; good && at < m->parts && places[at].file == file; at++) {
            const tr_ckpt_part *p = &m->part[places[at].part];
            const int64_t bytes = tr_part_bytes(m, p);
            good = p->offset >= free_from && p->offset <= all && bytes <= all - p->offset;
            free_from = p->offset + bytes;
        }
        if (!good || at == first) break;
    }
    free(places);
    if (file == m->files) return TR_OK;
    return TR_FAIL(code, "%s: the offsets in shard %" PRId64 " are wrong", where, file);
}

tr_status tr_manifest_check(const tr_manifest *m, bool placed, const char *where, tr_status code) {
    TR_TRY(tr_state_check(&m->state, where, code));
    for (int64_t t = 0; t < m->tensors; t++)
        if (!entry_good(&m->tensor[t]) || m->type[t] < 0 || m->type[t] >= TR_CKPT_TYPES ||
            (t > 0 && strcmp(m->tensor[t - 1].name, m->tensor[t].name) >= 0))
            return TR_FAIL(code, "%s: entry %" PRId64 " of the tensor list is wrong", where, t);
    int64_t first_block = 0, next_tensor = 0;
    for (int64_t p = 0, end; p < m->parts; p = end) {
        for (end = p; end < m->parts && m->part[end].tensor == m->part[p].tensor; end++) {
            if (!part_good(m, &m->part[end], first_block))
                return TR_FAIL(code, "%s: entry %" PRId64 " of the part list is wrong", where, end);
            first_block += m->part[end].blocks;
        }
        if (m->part[p].tensor != next_tensor)
            return TR_FAIL(code, "%s: the parts of tensor %s are not in order", where,
                           next_tensor < m->tensors ? m->tensor[next_tensor].name : "(none)");
        next_tensor++;
        TR_TRY(check_cover(m, p, end, where, code));
    }
    if (next_tensor != m->tensors)
        return TR_FAIL(code, "%s: tensor %s has no part", where, m->tensor[next_tensor].name);
    if (first_block != m->blocks)
        return TR_FAIL(code, "%s: the number of checksums does not match the parts", where);
    if (placed) TR_TRY(check_places(m, where, code));
    return TR_OK;
}
