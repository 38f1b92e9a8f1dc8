/* Sentences for model files of other formats, which users have in such folders. */
#include "base/text.h"
#include "ckpt/weights_impl.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char pickle[] = "which PyTorch pickled: load it with transformers, and save it with "
                             "save_pretrained as safetensors first";
static const char gguf[] = "of the format GGUF, which Trireme does not read: take the model as "
                           "safetensors";

tr_status tr_foreign_file(const char *path, const char *first, size_t bytes) {
    static const struct {
        const char *first, *what;
    } known[] = {
        {"GGUF", gguf},
        {"PK\3\4", pickle},
        {"\x80\2", pickle},
        {"version ", "that only points to the weights in Git LFS: fetch them with 'git lfs pull'"},
        {"<!DOCTYP", "with a web page: download the model again"},
        {"<html", "with a web page: download the model again"},
        {"{", "of text: name the model's folder, or its safetensors file"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const size_t length = strlen(known[i].first);
        if (length <= bytes && !memcmp(known[i].first, first, length))
            return TR_FAIL(TR_ERR_DATA, "%s is a file %s", path, known[i].what);
    }
    return TR_OK;
}

tr_status tr_foreign_shard(const char *path) {
    int files = 0, end = 0;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *of = NULL;
    for (const char *next = name; (next = strstr(next, "-of-")) != NULL; next++) of = next;
    if (!of || of == name || of[-1] < '0' || of[-1] > '9' ||
        sscanf(of, "-of-%9d.safetensors%n", &files, &end) != 1 || !end || files < 2)
        return TR_OK;
    return TR_FAIL(TR_ERR_DATA,
                   "'%s' is one of the %d files of a model: name the folder, which has "
                   "model.safetensors.index.json and all of them",
                   path, files);
}

/* Returns what a file's name tells, the most telling first; one after the last: nothing. */
static int rank_of(const char *name) {
    if (!strncmp(name, "adapter_model.", 14)) return 0;
    if (tr_text_ends(name, ".safetensors")) return strstr(name, "-of-") ? 1 : 2;
    if (tr_text_ends(name, ".bin") || tr_text_ends(name, ".pth") || tr_text_ends(name, ".pt"))
        return 3;
    return tr_text_ends(name, ".gguf") ? 4 : 5;
}

tr_status tr_foreign_folder(const char *path) {
    static const char *const remedy[] = {
        "an adapter: import the model that it belongs to",
        "a part of a model without its index: download model.safetensors.index.json too",
        "a file that transformers does not look for: name it instead of the folder",
        pickle,
        gguf,
        NULL,
    };
    char best[256] = "";
    int rank = 5;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        const int n = rank_of(entry->d_name);
        if (n > rank || (n == rank && strcmp(entry->d_name, best) >= 0)) continue;
        rank = n;
        (void)snprintf(best, sizeof best, "%s", entry->d_name);
    }
    if (dir) (void)closedir(dir);
    char run[4200];
    (void)snprintf(run, sizeof run, "%.4096s/ckpt", path);
    if (!remedy[rank])
        return TR_FAIL(
            TR_ERR_DATA, "'%s' holds neither model.safetensors nor model.safetensors.index.json%s",
            path, access(run, F_OK) == 0 ? "; it is a run of Trireme, which needs no import" : "");
    return TR_FAIL(TR_ERR_DATA,
                   "'%s' holds neither model.safetensors nor model.safetensors.index.json; '%s' is "
                   "%s%s",
                   path, best, rank >= 3 ? "a file " : "", remedy[rank]);
}
