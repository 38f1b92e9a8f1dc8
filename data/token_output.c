#include "data/token_output.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Megatron writes 16 bits below this vocabulary (indexed_dataset.py), and 32 with a sign above. */
enum { NARROW_VOCAB = 65500, TYPE_U16 = 8, TYPE_I32 = 4, PIECE = 1 << 16 };

static const char state_format[] =
    "trireme tokens 2\nrequest %016" PRIx64 "\nfile %" PRId64 "\noffset %" PRId64 "\nline %" PRId64
    "\nflags %" PRId64 "\ntokens %" PRId64 "\ndocuments %" PRId64 "\nopen %" PRId64 "\n";
static const char state_scan[] =
    "trireme tokens 2\nrequest %" SCNx64 "\nfile %" SCNd64 "\noffset %" SCNd64 "\nline %" SCNd64
    "\nflags %" SCNd64 "\ntokens %" SCNd64 "\ndocuments %" SCNd64 "\nopen %" SCNd64 "\n";

struct tr_token_output {
    char path[PATH_MAX]; /* PREFIX and an ending */
    size_t prefix;       /* its length */
    uint64_t request;
    int width;
    FILE *tokens, *lengths; /* the two .part files */
    tr_token_place at;
    bool owned;    /* the .part files are locked, and not finished */
    bool unlocked; /* the file system cannot lock them */
};

/* Returns PREFIX.ending; valid until the next call. */
static const char *path_of(tr_token_output *o, const char *ending) {
    (void)snprintf(o->path + o->prefix, sizeof o->path - o->prefix, "%s", ending);
    return o->path;
}

static bool exists(tr_token_output *o, const char *ending) {
    return access(path_of(o, ending), F_OK) == 0;
}

/* Fails with the cause in errno and the name of PREFIX.ending. */
static tr_status cannot(tr_token_output *o, const char *ending, const char *verb) {
    const int cause = errno;
    const char *remedy = "";
    if (cause == ENOENT) remedy = ": make its folder first";
    if (cause == ENOTDIR) remedy = ": choose another -o";
    if (cause == ENOSPC || cause == EDQUOT) remedy = ": make room, and repeat the command";
    return TR_FAIL(TR_ERR_IO, "'%s' cannot be %s: %s%s", path_of(o, ending), verb, strerror(cause),
                   remedy);
}

/* Gives PREFIX.from the name PREFIX.to. */
static tr_status rename_part(tr_token_output *o, const char *from, const char *to) {
    char old[PATH_MAX];
    (void)snprintf(old, sizeof old, "%s", path_of(o, from));
    return rename(old, path_of(o, to)) == 0 ? TR_OK : cannot(o, to, "written");
}

/* Reads where an earlier process stopped; leaves *place as it is when there is none, or it was
 * asked for something else. */
static tr_status read_state(tr_token_output *o, tr_token_place *place) {
    static const tr_input_limit limit = {.mib = 1, .failure = TR_ERR_IO};
    const char *path = path_of(o, ".part");
    char *text;
    size_t length;
    uint64_t request;
    tr_token_place p = {0};
    if (access(path, F_OK) != 0) return TR_OK;
    TR_TRY(tr_input_load("the state", path, limit, &text, &length));
    int found = sscanf(text, state_scan, &request, &p.file, &p.offset, &p.line, &p.continue_flags,
                       &p.tokens, &p.documents, &p.open);
    free(text);
    /* Their bytes do not overflow. */
    const bool fits = p.tokens <= INT64_MAX / 4 && p.documents <= INT64_MAX / 4;
    if (found == 8 && request == o->request && fits && p.file >= 0 && p.offset >= 0 &&
        p.line >= 0 && p.tokens >= 0 && p.documents >= 0 && p.open >= 0)
        *place = p;
    return TR_OK;
}

/* Opens PREFIX.ending.part. A failure has the name of the file that it becomes, unless it exists.
 */
static tr_status open_part(tr_token_output *o, const char *ending, FILE **out) {
    char part[32];
    (void)snprintf(part, sizeof part, "%s.part", ending);
    int fd = open(path_of(o, part), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    *out = fd >= 0 ? fdopen(fd, "r+") : NULL;
    if (*out) return TR_OK;
    const int cause = errno;
    const bool there = exists(o, part);
    errno = cause;
    tr_status status = cannot(o, there ? part : ending, "written");
    if (fd >= 0) (void)close(fd);
    return status;
}

/* Takes PREFIX.bin.part for this process until it is closed. */
static tr_status lock(tr_token_output *o) {
    struct stat held, named;
    const char *path = path_of(o, ".bin.part");
    const int fd = fileno(o->tokens);
    /* Another process may have finished, and renamed the file, since it was opened here. */
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno != EWOULDBLOCK && errno != EINTR) {
        o->unlocked = true; /* the file system cannot lock */
        return TR_OK;
    }
    if (locked && fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev &&
        held.st_ino == named.st_ino)
        return TR_OK;
    return TR_FAIL(TR_ERR_IO, "another process is writing '%.*s'", (int)o->prefix, o->path);
}

/* Takes back the first of the two last renames when a process ended between them. Its state is kept
 * until after them, so this one goes on from there. */
static tr_status take_back(tr_token_output *o) {
    struct stat info;
    tr_token_place place = {.tokens = -1};
    if (exists(o, ".idx") || exists(o, ".bin.part") || !exists(o, ".idx.part")) return TR_OK;
    TR_TRY(read_state(o, &place));
    if (place.tokens < 0 || stat(path_of(o, ".bin"), &info) != 0 ||
        info.st_size < place.tokens * o->width)
        return TR_OK;
    return rename_part(o, ".bin", ".bin.part");
}

/* Cuts off what was written to a .part file after the state. */
static tr_status cut_part(tr_token_output *o, const char *ending, int64_t bytes, FILE *f) {
    const int fd = fileno(f);
    const bool good = ftruncate(fd, bytes) == 0 && lseek(fd, bytes, SEEK_SET) == bytes;
    return good ? TR_OK : cannot(o, ending, "continued");
}

static bool is_shorter(FILE *f, int64_t bytes) {
    return lseek(fileno(f), 0, SEEK_END) < bytes;
}

static tr_status open_files(tr_token_output *o, tr_token_place *place) {
    static const char *const final[] = {".bin", ".idx"};
    TR_TRY(take_back(o));
    for (int i = 0; i < 2; i++)
        if (exists(o, final[i]))
            return TR_FAIL(TR_ERR_USAGE, "'%s' exists: remove it, or choose another -o PREFIX",
                           o->path);
    *place = (tr_token_place){0};
    TR_TRY(open_part(o, ".bin", &o->tokens));
    TR_TRY(lock(o));
    o->owned = true;
    TR_TRY(open_part(o, ".idx", &o->lengths));
    TR_TRY(read_state(o, place));
    /* Without the parts that the state names, the work begins again. */
    if (is_shorter(o->tokens, place->tokens * o->width) ||
        is_shorter(o->lengths, 4 * place->documents))
        *place = (tr_token_place){0};
    TR_TRY(cut_part(o, ".bin.part", place->tokens * o->width, o->tokens));
    TR_TRY(cut_part(o, ".idx.part", 4 * place->documents, o->lengths));
    o->at = *place;
    return TR_OK;
}

tr_status tr_token_output_open(const char *prefix, uint64_t request, int32_t vocab,
                               tr_token_place *place, tr_token_output **out) {
    enum { LONGEST_ENDING = 32 };
    tr_token_output *o;
    if (!*prefix || strlen(prefix) + LONGEST_ENDING > PATH_MAX)
        return TR_FAIL(TR_ERR_USAGE, "the output's prefix is empty or too long");
    TR_TRY(tr_calloc(1, sizeof *o, &o));
    o->prefix = strlen(prefix);
    memcpy(o->path, prefix, o->prefix);
    o->request = request;
    o->width = vocab < NARROW_VOCAB ? 2 : 4;
    tr_status status = open_files(o, place);
    if (status != TR_OK) {
        tr_token_output_close(o);
        return status;
    }
    *out = o;
    return TR_OK;
}

void tr_token_output_close(tr_token_output *o) {
    if (!o) return;
    if (o->owned && access(path_of(o, ".part"), F_OK) != 0) { /* no later run can continue them */
        (void)unlink(path_of(o, ".bin.part"));
        (void)unlink(path_of(o, ".idx.part"));
    }
    if (o->tokens) (void)fclose(o->tokens);
    if (o->lengths) (void)fclose(o->lengths);
    free(o);
}

void tr_token_output_discard(tr_token_output *o) {
    (void)unlink(path_of(o, ".part"));
}

static void put_number(unsigned char *to, uint64_t number, int width) {
    for (int i = 0; i < width; i++) to[i] = (unsigned char)(number >> 8 * i);
}

static bool put(FILE *f, uint64_t number, int width) {
    unsigned char byte[8];
    put_number(byte, number, width);
    return fwrite(byte, 1, (size_t)width, f) == (size_t)width;
}

tr_status tr_token_output_add(tr_token_output *o, const int32_t *id, int64_t count) {
    unsigned char piece[PIECE];
    const int64_t most = PIECE / o->width;
    o->at.tokens += count;
    o->at.open += count;
    for (int64_t n; count > 0; count -= n, id += n) {
        n = count < most ? count : most;
        for (int64_t i = 0; i < n; i++) put_number(piece + i * o->width, (uint64_t)id[i], o->width);
        if (fwrite(piece, (size_t)o->width, (size_t)n, o->tokens) != (size_t)n)
            return cannot(o, ".bin", "written");
    }
    return TR_OK;
}

tr_status tr_token_output_end_document(tr_token_output *o) {
    if (o->at.open > INT32_MAX)
        return TR_FAIL(TR_ERR_DATA,
                       "document %" PRId64 " has %" PRId64
                       " tokens, more than an index can say: split it",
                       o->at.documents, o->at.open);
    if (!put(o->lengths, (uint64_t)o->at.open, 4)) return cannot(o, ".idx", "written");
    o->at.documents++;
    o->at.open = 0;
    return TR_OK;
}

/* Puts on the disk what was written to the file that becomes PREFIX.ending. */
static tr_status store(tr_token_output *o, const char *ending, FILE *f) {
    return fflush(f) == 0 && fdatasync(fileno(f)) == 0 ? TR_OK : cannot(o, ending, "written");
}

tr_status tr_token_output_commit(tr_token_output *o, tr_token_place *place) {
    char temporary[PATH_MAX];
    FILE *f;
    place->tokens = o->at.tokens;
    place->documents = o->at.documents;
    place->open = o->at.open;
    TR_TRY(store(o, ".bin", o->tokens));
    TR_TRY(store(o, ".idx", o->lengths));
    (void)snprintf(temporary, sizeof temporary, "%s", path_of(o, ".part.tmp"));
    TR_TRY(tr_output_open_for(path_of(o, ".part"), temporary, &f));
    (void)fprintf(f, state_format, o->request, place->file, place->offset, place->line,
                  place->continue_flags, place->tokens, place->documents, place->open);
    return tr_output_replace(temporary, path_of(o, ".part"), f, TR_OK);
}

/* Writes the index's lists from the lengths: each once for the lengths, and once for the places. */
static bool put_index(tr_token_output *o, FILE *f) {
    unsigned char byte[4];
    const uint64_t documents = (uint64_t)o->at.documents;
    bool good = fwrite("MMIDIDX\0\0", 1, 9, f) == 9 && put(f, 1, 8) &&
                put(f, o->width == 2 ? TYPE_U16 : TYPE_I32, 1) && put(f, documents, 8) &&
                put(f, documents + 1, 8);
    for (int list = 0; list < 2 && good; list++) {
        uint64_t at = 0;
        good = fseek(o->lengths, 0, SEEK_SET) == 0;
        for (uint64_t d = 0; d < documents && good; d++) {
            good = fread(byte, 1, 4, o->lengths) == 4;
            const uint64_t length = (uint64_t)byte[0] | (uint64_t)byte[1] << 8 |
                                    (uint64_t)byte[2] << 16 | (uint64_t)byte[3] << 24;
            good = good && (list == 0 ? put(f, length, 4) : put(f, at, 8));
            at += length * (uint64_t)o->width;
        }
    }
    for (uint64_t d = 0; d <= documents && good; d++) good = put(f, d, 8);
    return good;
}

tr_status tr_token_output_finish(tr_token_output *o, int64_t files) {
    char temporary[PATH_MAX];
    tr_token_place end = {.file = files};
    FILE *f;
    /* A process that ends between the last two renames leaves a state to go on from. */
    TR_TRY(tr_token_output_commit(o, &end));
    (void)snprintf(temporary, sizeof temporary, "%s", path_of(o, ".idx.tmp"));
    TR_TRY(tr_output_open_for(path_of(o, ".idx"), temporary, &f));
    tr_status status = put_index(o, f) && fflush(f) == 0 && fdatasync(fileno(f)) == 0
                           ? TR_OK
                           : cannot(o, ".idx", "written");
    TR_TRY(tr_output_close(path_of(o, ".idx"), f, status));
    /* The index last: a pair is complete when both have their names. */
    TR_TRY(rename_part(o, ".bin.part", ".bin"));
    TR_TRY(rename_part(o, ".idx.tmp", ".idx"));
    (void)unlink(path_of(o, ".idx.part"));
    (void)unlink(path_of(o, ".part"));
    o->owned = false;
    return TR_OK;
}

bool tr_token_output_unlocked(const tr_token_output *o) {
    return o->unlocked;
}

tr_token_place tr_token_output_place(const tr_token_output *o) {
    tr_token_place at = o->at;
    at.file = at.offset = at.line = at.continue_flags = 0;
    return at;
}
