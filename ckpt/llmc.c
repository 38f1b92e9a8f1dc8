/* Model files of llm.c: 256 words of header, then the parameters of GPT-2, each stacked over the
 * layers. Matrices are stored as [out, in], where transformers has [in, out]; the word embedding
 * has rows of zeros behind the vocabulary. */
#include "base/input.h"
#include "ckpt/weights_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

enum { WORDS = 256, MAGIC = 20240326, FP32 = 3, BF16 = 5, MOST = 1 << 24 };

bool tr_llmc_is(const char *path) {
    int32_t word = 0;
    int fd;
    int64_t bytes;
    const char *kind;
    if (tr_regular_open(path, 0, &fd, &bytes, &kind) != 0) return false;
    bool is = pread(fd, &word, sizeof word, 0) == sizeof word && word == MAGIC;
    (void)close(fd);
    return is;
}

typedef struct reader {
    tr_weights *w;
    tr_weight_type type;
    int64_t at; /* of the next parameter in the file */
    int64_t layers;
} reader;

/* Adds a parameter of the whole model, which has `stored` elements in the file: at most 2^50. Fails
 * when they end behind the file, so that the sum of the sizes does not overflow. */
static tr_status add(reader *r, const char *name, int64_t rows, int64_t columns, int64_t stored) {
    const int64_t size = tr_weight_type_size(r->type);
    tr_weight t = {.type = r->type,
                   .dtype = tr_weight_type_name(r->type),
                   .rank = columns ? 2 : 1,
                   .shape = {rows, columns},
                   .offset = r->at};
    t.bytes = rows * (columns ? columns : 1) * size;
    r->at += stored * size;
    if (r->at > r->w->file[0].size)
        return TR_FAIL(TR_ERR_DATA,
                       "%s has %" PRId64 " bytes, but its header describes more: it is truncated, "
                       "or no model file",
                       r->w->file[0].path, r->w->file[0].size);
    return tr_weights_add(r->w, &t, name);
}

/* Adds a parameter of each layer. */
static tr_status add_layers(reader *r, const char *name, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < r->layers; i++) {
        char full[TR_NAME_SIZE];
        (void)snprintf(full, sizeof full, "transformer.h.%" PRId64 ".%s", i, name);
        TR_TRY(add(r, full, rows, columns, rows * (columns ? columns : 1)));
        r->w->tensor[r->w->count - 1].transposed = columns > 0;
    }
    return TR_OK;
}

static tr_status check_header(const char *path, const int32_t *word) {
    static const struct {
        int at;
        const char *what;
    } size[] = {{2, "maxT"}, {3, "V"}, {4, "L"}, {5, "NH"}, {6, "C"}, {7, "Vp"}};
    if (word[0] != MAGIC || (word[1] != FP32 && word[1] != BF16))
        return TR_FAIL(TR_ERR_DATA,
                       "%s: not a model file of llm.c of version 3 or 5 (its words 0 and 1 are "
                       "%" PRId32 " and %" PRId32 ")",
                       path, word[0], word[1]);
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (word[size[i].at] < 1 || word[size[i].at] > MOST)
            return TR_FAIL(TR_ERR_DATA, "%s: word %d of the header, %s, is %" PRId32, path,
                           size[i].at, size[i].what, word[size[i].at]);
    if (word[7] < word[3] || word[4] > 4096)
        return TR_FAIL(TR_ERR_DATA,
                       "%s: its header has Vp %" PRId32 " below V %" PRId32 ", or %" PRId32
                       " layers",
                       path, word[7], word[3], word[4]);
    return TR_OK;
}

tr_status tr_llmc_open(const char *path, tr_weights *w, tr_model_config *model) {
    int32_t word[WORDS] = {0};
    int file;
    *w = (tr_weights){0};
    TR_TRY(tr_weights_add_file(w, path, &file));
    if (w->file[file].size < (int64_t)sizeof word)
        return TR_FAIL(TR_ERR_DATA, "%s has %" PRId64 " bytes, fewer than its header", path,
                       w->file[file].size);
    TR_TRY(tr_weights_read_bytes(w, file, word, sizeof word, 0));
    TR_TRY(check_header(path, word));
    const int64_t T = word[2], V = word[3], L = word[4], C = word[6], Vp = word[7];
    *model = (tr_model_config){
        .family = "gpt2", .layers = L, .width = C, .heads = word[5], .context = T, .vocab = V};
    reader r = {.w = w,
                .type = word[1] == FP32 ? TR_WEIGHT_F32 : TR_WEIGHT_BF16,
                .at = (int64_t)sizeof word,
                .layers = L};
    TR_TRY(add(&r, "transformer.wte.weight", V, C, Vp * C));
    TR_TRY(add(&r, "transformer.wpe.weight", T, C, T * C));
    TR_TRY(add_layers(&r, "ln_1.weight", C, 0));
    TR_TRY(add_layers(&r, "ln_1.bias", C, 0));
    TR_TRY(add_layers(&r, "attn.c_attn.weight", C, 3 * C));
    TR_TRY(add_layers(&r, "attn.c_attn.bias", 3 * C, 0));
    TR_TRY(add_layers(&r, "attn.c_proj.weight", C, C));
    TR_TRY(add_layers(&r, "attn.c_proj.bias", C, 0));
    TR_TRY(add_layers(&r, "ln_2.weight", C, 0));
    TR_TRY(add_layers(&r, "ln_2.bias", C, 0));
    TR_TRY(add_layers(&r, "mlp.c_fc.weight", C, 4 * C));
    TR_TRY(add_layers(&r, "mlp.c_fc.bias", 4 * C, 0));
    TR_TRY(add_layers(&r, "mlp.c_proj.weight", 4 * C, C));
    TR_TRY(add_layers(&r, "mlp.c_proj.bias", C, 0));
    TR_TRY(add(&r, "transformer.ln_f.weight", C, 0, C));
    TR_TRY(add(&r, "transformer.ln_f.bias", C, 0, C));
    if (r.at != w->file[file].size)
        return TR_FAIL(TR_ERR_DATA,
                       "%s has %" PRId64 " bytes, but its header describes %" PRId64
                       ": it is not a model file",
                       path, w->file[file].size, r.at);
    return tr_weights_sort(w);
}
