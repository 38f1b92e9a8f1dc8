#include "data/data.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/philox.h"
#include "layers/layer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { BYTES = 256, FEISTEL_ROUNDS = 6, PIECE = 1 << 16, HASHED_PIECES = 64 };

/* A range of bytes that adjacent windows of an epoch cover. */
typedef struct stretch {
    int64_t windows;
    int64_t phases; /* the first window starts at one of 0..phases-1 */
} stretch;

struct tr_data {
    int fd;
    char *path;
    unsigned char *window; /* (context + 1): of the sample being read */
    int64_t total;         /* bytes of the file */
    double validation;
    int64_t context;
    uint64_t seed;
    int32_t document_end; /* the token that ends a document; -1: none */
    tr_data_extent extent;
    int64_t train; /* bytes before the held-out part */
    stretch front; /* of every epoch; windows of bytes appended after the held-out part follow */
    int64_t held;  /* windows held out */
};

static tr_status open_file(const char *path, tr_data *data) {
    tr_status status = tr_input_open("the data file", path, &data->fd, &data->total);
    if (status != TR_OK) return TR_FAIL(status, "%s (data.path)", tr_error_message());
    if (data->total == 0)
        return TR_FAIL(TR_ERR_DATA, "the data file '%s' is empty: name another one (data.path)",
                       path);
    return tr_strdup(path, &data->path);
}

/* Reads all bytes or fails. The file is not mapped, because a mapped file that is shortened ends
 * the process with SIGBUS; a read reports it. */
static tr_status read_bytes(const tr_data *data, int64_t start, int64_t bytes, unsigned char *to) {
    while (bytes > 0) {
        ssize_t n = pread(data->fd, to, (size_t)bytes, start);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return TR_FAIL(TR_ERR_IO, "the data file '%s' cannot be read: %s", data->path,
                           strerror(errno));
        if (n == 0)
            return TR_FAIL(TR_ERR_DATA,
                           "the data file '%s' was shortened while it was in use: byte %" PRId64
                           " of %" PRId64 " is gone; restore the file",
                           data->path, start, data->total);
        to += n;
        start += n;
        bytes -= n;
    }
    return TR_OK;
}

/* Lays windows over `bytes`; none if they are too few for a window and its last label. */
static stretch lay_windows(int64_t bytes, int64_t context) {
    if (bytes <= context) return (stretch){0, 1};
    /* One window fewer, so that every phase has the same number of windows. */
    int64_t windows = (bytes - context) / context;
    if (windows == 0) windows = 1;
    int64_t slack = bytes - 1 - windows * context;
    return (stretch){windows, slack < context ? slack + 1 : context};
}

static tr_status check_split(const tr_data *data, int64_t held) {
    int64_t need = data->context + 1; /* a label for every input */
    if (data->train < need)
        return TR_FAIL(TR_ERR_DATA,
                       "a sequence of %" PRId64 " tokens (model.context + 1) is longer than the "
                       "training part of '%s', %" PRId64 " tokens: use more data or a smaller "
                       "model.context",
                       need, data->path, data->train);
    if (data->validation > 0 && held < need)
        return TR_FAIL(TR_ERR_DATA,
                       "a sequence of %" PRId64 " tokens (model.context + 1) is longer than the "
                       "held-out part of '%s', %" PRId64 " tokens: use more data, a larger "
                       "data.validation (0 for none) or a smaller model.context",
                       need, data->path, held);
    return TR_OK;
}

tr_status tr_data_use(tr_data *data, const tr_data_extent *extent) {
    if (data->total < extent->bytes)
        return TR_FAIL(TR_ERR_DATA,
                       "the data file '%s' has %" PRId64 " bytes here and %" PRId64
                       " where rank 0 reads it: give every host the same file",
                       data->path, data->total, extent->bytes);
    int64_t held = (int64_t)((double)extent->split * data->validation);
    data->extent = *extent;
    data->train = extent->split - held;
    TR_TRY(check_split(data, held));
    data->front = lay_windows(data->train, data->context);
    data->held = held > 0 ? (held - 1) / data->context : 0;
    return TR_OK;
}

/* Returns the windows that an epoch of that many bytes has after the held-out part. */
static stretch appended(const tr_data *data, int64_t bytes) {
    return lay_windows(bytes - data->extent.split, data->context);
}

static int64_t windows_of(const tr_data *data, int64_t bytes) {
    return data->front.windows + appended(data, bytes).windows;
}

tr_data_extent tr_data_extent_at(const tr_data *data, int64_t sample) {
    tr_data_extent at = data->extent;
    int64_t next = at.epoch_sample + windows_of(data, at.epoch_bytes);
    if (sample < next) return at;
    int64_t windows = windows_of(data, at.bytes), whole = (sample - next) / windows;
    at.epoch += 1 + whole;
    at.epoch_sample = next + whole * windows;
    at.epoch_bytes = at.bytes;
    return at;
}

tr_status tr_data_hash(const tr_data *data, int64_t bytes, uint64_t *hash) {
    unsigned char piece[PIECE];
    const int64_t last = HASHED_PIECES - 1, rest = bytes - PIECE;
    *hash = (uint64_t)bytes;
    for (int64_t i = 0; i <= last; i++) {
        /* rest * i / last, without the product, which overflows. */
        int64_t at = rest > last * PIECE ? rest / last * i + rest % last * i / last : i * PIECE;
        int64_t n = bytes - at < PIECE ? bytes - at : PIECE;
        if (n <= 0) break;
        TR_TRY(read_bytes(data, at, n, piece));
        *hash = XXH3_64bits_withSeed(piece, (size_t)n, *hash);
    }
    return TR_OK;
}

tr_status tr_data_open(const char *path, const char *format, double validation, int64_t context,
                       uint64_t seed, tr_data **out) {
    if (strcmp(format, "bytes"))
        return TR_FAIL(TR_ERR_CONFIG, "data.format must be bytes, not '%s'", format);
    if (context < 1 || context > INT64_MAX / 4 || !(validation >= 0 && validation < 1))
        return TR_FAIL(TR_ERR_CONFIG, "model.context or data.validation is out of range");
    tr_data *data;
    TR_TRY(tr_calloc(1, sizeof *data, &data));
    data->fd = -1;
    data->document_end = -1;
    data->validation = validation;
    data->context = context;
    data->seed = seed;
    tr_status status = open_file(path, data);
    if (status == TR_OK)
        status = tr_data_use(data, &(tr_data_extent){.bytes = data->total,
                                                     .split = data->total,
                                                     .epoch_bytes = data->total});
    if (status == TR_OK) status = tr_calloc((size_t)context + 1, 1, &data->window);
    if (status != TR_OK) {
        tr_data_close(data);
        TR_TRY(status);
    }
    *out = data;
    return TR_OK;
}

void tr_data_close(tr_data *data) {
    if (!data) return;
    if (data->fd >= 0) (void)close(data->fd);
    free(data->window);
    free(data->path);
    free(data);
}

int64_t tr_data_tokens(const tr_data *data) {
    return data->total;
}

int64_t tr_data_train_tokens(const tr_data *data) {
    return data->train;
}

int64_t tr_data_windows(const tr_data *data) {
    return windows_of(data, data->extent.bytes);
}

int64_t tr_data_validation_windows(const tr_data *data) {
    return data->held;
}

int64_t tr_data_permute(uint64_t key, int64_t n, int64_t index) {
    int half = 1; /* bits of each half: the network permutes 0..4^half-1, at most 4n numbers */
    while (half < 31 && (INT64_C(1) << (2 * half)) < n) half++;
    uint64_t mask = (UINT64_C(1) << half) - 1, x = (uint64_t)index;
    do { /* until the walk is back inside 0..n-1 */
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            tr_philox r = tr_philox4x32(key, right, round);
            uint64_t next = left ^ (r.v[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Picks one of 0..n-1 by 64 random bits. */
static int64_t pick(uint32_t low, uint32_t high, int64_t n) {
    return (int64_t)(((uint64_t)high << 32 | low) % (uint64_t)n);
}

int64_t tr_data_window_start(const tr_data *data, int64_t index) {
    const tr_data_extent at = tr_data_extent_at(data, index);
    const stretch front = data->front, behind = appended(data, at.epoch_bytes);
    uint64_t key =
        tr_mix64(data->seed ^ tr_mix64(tr_hash_name("data.order"))) ^ tr_mix64((uint64_t)at.epoch);
    tr_philox r = tr_philox4x32(key, 0, ~UINT64_C(0)); /* a counter that no round uses */
    int64_t window = tr_data_permute(key, front.windows + behind.windows, index - at.epoch_sample);
    if (window < front.windows) return pick(r.v[0], r.v[1], front.phases) + window * data->context;
    return at.split + pick(r.v[2], r.v[3], behind.phases) +
           (window - front.windows) * data->context;
}

/* Fills one step input from the window in data->window. */
static tr_status fill(const tr_data *data, const tr_fetch *wanted) {
    const char *name = wanted->input->name;
    int32_t *to = wanted->to, start = 0;
    const unsigned char *token = data->window;
    if (strcmp(name, TR_INPUT_TOKENS) == 0) {
        for (int64_t t = 0; t < data->context; t++) to[t] = token[t];
        return TR_OK;
    }
    if (strcmp(name, TR_INPUT_LABELS) == 0) {
        for (int64_t t = 0; t < data->context; t++)
            to[t] = token[t] == data->document_end ? -1 : token[t + 1];
        return TR_OK;
    }
    if (strcmp(name, TR_INPUT_DOCUMENT_STARTS) != 0)
        return TR_FAIL(TR_ERR_CONFIG,
                       "the model asks for \"%s\", which data.format bytes does not have", name);
    for (int64_t t = 0; t < data->context; t++) {
        to[t] = start;
        if (token[t] == data->document_end) start = (int32_t)t + 1;
    }
    return TR_OK;
}

/* Reads the wanted inputs of the window that starts at `start`. */
static tr_status read_window(tr_data *data, int64_t start, const tr_fetch *wanted, int count) {
    TR_TRY(read_bytes(data, start, data->context + 1, data->window));
    for (int k = 0; k < count; k++) TR_TRY(fill(data, &wanted[k]));
    return TR_OK;
}

tr_status tr_data_sample(tr_data *data, int64_t index, const tr_fetch *wanted, int count) {
    return read_window(data, tr_data_window_start(data, index), wanted, count);
}

tr_status tr_data_validation_sample(tr_data *data, int64_t index, const tr_fetch *wanted,
                                    int count) {
    return read_window(data, data->train + index % data->held * data->context, wanted, count);
}

void tr_data_end_documents(tr_data *data, int32_t last) {
    data->document_end = last;
}

/* Counts of each token in a part of the file, and of each pair of adjacent tokens. */
typedef struct counts {
    int64_t single[BYTES], pair[BYTES][BYTES]; /* pair: (first, second) */
} counts;

/* Counts the tokens from..to-1, and the pairs within them that are an input and its label. */
static tr_status count_tokens(const tr_data *data, int64_t from, int64_t to, counts *c) {
    unsigned char piece[PIECE];
    int last = -1;
    for (int64_t at = from, n; at < to; at += n) {
        n = to - at < PIECE ? to - at : PIECE;
        TR_TRY(read_bytes(data, at, n, piece));
        for (int64_t i = 0; i < n; i++) {
            c->single[piece[i]]++;
            if (last >= 0 && last != data->document_end) c->pair[last][piece[i]]++;
            last = piece[i];
        }
    }
    return TR_OK;
}

/* Computes the header's formula over the counted pairs. */
static double bigram_nats(const counts *train, const counts *held, int64_t tokens, double alpha) {
    double sum = 0, pairs = 0;
    for (int a = 0; a < BYTES; a++) {
        int64_t from = 0; /* n(a): occurrences with a next token */
        for (int b = 0; b < BYTES; b++) from += train->pair[a][b];
        for (int b = 0; b < BYTES; b++) {
            double n = (double)held->pair[a][b];
            double p = ((double)train->single[b] + 1) / ((double)(tokens + BYTES));
            if (n > 0)
                sum -= n * log(((double)train->pair[a][b] + alpha * p) / ((double)from + alpha));
            pairs += n;
        }
    }
    return pairs > 0 ? sum / pairs : NAN;
}

/* Counts the documents of the file: tokens that end one, and the rest after the last of them. */
static tr_status count_documents(const tr_data *data, const counts part[2], int64_t *documents) {
    const int32_t end = data->document_end;
    unsigned char last;
    TR_TRY(read_bytes(data, data->total - 1, 1, &last));
    *documents = end < 0 || end >= BYTES ? 0 : part[0].single[end] + part[1].single[end];
    if (last != end) ++*documents;
    return TR_OK;
}

tr_status tr_data_examine(const tr_data *data, double alpha, tr_data_facts *out) {
    tr_status status = TR_OK;
    counts *part; /* training, held out */
    TR_TRY(tr_calloc(2, sizeof *part, &part));
    *out = (tr_data_facts){.bigram_nats = NAN};
    TR_TRY_OUT(count_tokens(data, 0, data->train, &part[0]));
    TR_TRY_OUT(count_tokens(data, data->train, data->total, &part[1]));
    for (int b = 0; b < BYTES; b++) out->distinct += part[0].single[b] > 0 || part[1].single[b] > 0;
    TR_TRY_OUT(count_documents(data, part, &out->documents));
    out->bigram_nats = bigram_nats(&part[0], &part[1], data->train, alpha);
out:
    free(part);
    return status;
}
