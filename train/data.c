#include "train/data.h"

#include "base/input.h"
#include "base/memory.h"
#include "base/philox.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 256, FEISTEL_ROUNDS = 6, PIECE = 1 << 16 };

struct tr_data {
    int fd;
    char *path;
    unsigned char *window; /* (context + 1): of the sample being read */
    int64_t total, train;
    int64_t context;
    int64_t windows;    /* of an epoch */
    int64_t phases;     /* starts of the first window: 0..phases-1 */
    int64_t validation; /* windows held out */
    uint64_t seed;
};

static tr_status open_file(const char *path, tr_data *data) {
    tr_status status = tr_input_open("the data file", path, &data->fd, &data->total);
    if (status != TR_OK) return TR_FAIL(status, "%s (data.path)", tr_error_message());
    if (data->total == 0) return TR_FAIL(TR_ERR_DATA, "the data file '%s' is empty", path);
    return tr_strdup(path, &data->path);
}

/* All bytes or an error. Not a mapping: a file that is shortened while it is mapped ends the
 * process with SIGBUS, and a read says so. */
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

static tr_status split(const char *path, double validation, int64_t context, tr_data *data) {
    int64_t held = (int64_t)((double)data->total * validation);
    int64_t need = context + 1; /* a label for every input */
    data->train = data->total - held;
    data->context = context;
    if (data->train < need)
        return TR_FAIL(TR_ERR_DATA,
                       "a sequence of %" PRId64 " tokens (model.context + 1) is longer than the "
                       "training part of '%s', %" PRId64 " tokens: use more data or a smaller "
                       "model.context",
                       need, path, data->train);
    if (validation > 0 && held < need)
        return TR_FAIL(TR_ERR_DATA,
                       "a sequence of %" PRId64 " tokens (model.context + 1) is longer than the "
                       "held-out part of '%s', %" PRId64 " tokens: use more data, a larger "
                       "data.validation (0 for none) or a smaller model.context",
                       need, path, held);
    /* One window is given up so that every phase has the same number of them. */
    int64_t windows = (data->train - context) / context;
    data->windows = windows > 0 ? windows : 1;
    int64_t slack = data->train - 1 - data->windows * context;
    data->phases = slack < context ? slack + 1 : context;
    data->validation = held > 0 ? (held - 1) / context : 0;
    return TR_OK;
}

tr_status tr_data_open(const char *path, const char *format, double validation, int64_t context,
                       uint64_t seed, tr_data **out) {
    if (strcmp(format, "bytes"))
        return TR_FAIL(TR_ERR_CONFIG, "data.format '%s' is not one of bytes", format);
    if (context < 1 || context > INT64_MAX / 4 || !(validation >= 0 && validation < 1))
        return TR_FAIL(TR_ERR_CONFIG, "model.context or data.validation is out of range");
    tr_data *data;
    TR_TRY(tr_calloc(1, sizeof *data, &data));
    data->fd = -1;
    tr_status status = open_file(path, data);
    if (status == TR_OK) status = split(path, validation, context, data);
    if (status == TR_OK) status = tr_calloc((size_t)context + 1, 1, &data->window);
    if (status != TR_OK) {
        tr_data_close(data);
        TR_TRY(status);
    }
    data->seed = seed;
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
    return data->windows;
}

int64_t tr_data_validation_windows(const tr_data *data) {
    return data->validation;
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

int64_t tr_data_window_start(const tr_data *data, int64_t index) {
    uint64_t epoch = (uint64_t)(index / data->windows);
    uint64_t key = tr_mix64(data->seed ^ tr_mix64(tr_hash_name("data.order"))) ^ tr_mix64(epoch);
    tr_philox r = tr_philox4x32(key, 0, ~UINT64_C(0)); /* a counter that no round uses */
    int64_t phase = (int64_t)(((uint64_t)r.v[1] << 32 | r.v[0]) % (uint64_t)data->phases);
    return phase + tr_data_permute(key, data->windows, index % data->windows) * data->context;
}

/* tokens and labels (context) of the window that starts at `start`. */
static tr_status read_window(tr_data *data, int64_t start, int32_t *tokens, int32_t *labels) {
    TR_TRY(read_bytes(data, start, data->context + 1, data->window));
    for (int64_t t = 0; t < data->context; t++) {
        tokens[t] = data->window[t];
        labels[t] = data->window[t + 1];
    }
    return TR_OK;
}

tr_status tr_data_sample(tr_data *data, int64_t index, int32_t *tokens, int32_t *labels) {
    return read_window(data, tr_data_window_start(data, index), tokens, labels);
}

tr_status tr_data_validation_sample(tr_data *data, int64_t index, int32_t *tokens,
                                    int32_t *labels) {
    return read_window(data, data->train + index % data->validation * data->context, tokens,
                       labels);
}

/* How often a token occurs in a part of the file, and how often one follows another. */
typedef struct counts {
    int64_t single[BYTES], pair[BYTES][BYTES]; /* pair: (first, second) */
} counts;

/* Counts the tokens from..to-1, with the pairs that lie inside. */
static tr_status count_tokens(const tr_data *data, int64_t from, int64_t to, counts *c) {
    unsigned char piece[PIECE];
    int last = -1;
    for (int64_t at = from, n; at < to; at += n) {
        n = to - at < PIECE ? to - at : PIECE;
        TR_TRY(read_bytes(data, at, n, piece));
        for (int64_t i = 0; i < n; i++) {
            c->single[piece[i]]++;
            if (last >= 0) c->pair[last][piece[i]]++;
            last = piece[i];
        }
    }
    return TR_OK;
}

/* The formula of the header, over the pairs that were counted. */
static double bigram_nats(const counts *train, const counts *held, int64_t tokens, double alpha) {
    double sum = 0, pairs = 0;
    for (int a = 0; a < BYTES; a++) {
        int64_t from = 0; /* n(a) of tokens that have a next one */
        for (int b = 0; b < BYTES; b++) from += train->pair[a][b];
        for (int b = 0; b < BYTES; b++) {
            double n = (double)held->pair[a][b];
            double p = ((double)train->single[b] + 1) / ((double)(tokens + BYTES));
            if (n > 0)
                sum -= n * log(((double)train->pair[a][b] + alpha * p) / ((double)from + alpha));
            pairs += n;
        }
    }
    return sum / pairs;
}

tr_status tr_data_examine(const tr_data *data, double alpha, tr_data_facts *out) {
    tr_status status = TR_OK;
    counts *part; /* training, held out */
    TR_TRY(tr_calloc(2, sizeof *part, &part));
    *out = (tr_data_facts){.bigram_nats = NAN};
    TR_TRY_OUT(count_tokens(data, 0, data->train, &part[0]));
    TR_TRY_OUT(count_tokens(data, data->train, data->total, &part[1]));
    for (int b = 0; b < BYTES; b++) out->distinct += part[0].single[b] > 0 || part[1].single[b] > 0;
    if (data->total - data->train >= 2)
        out->bigram_nats = bigram_nats(&part[0], &part[1], data->train, alpha);
out:
    free(part);
    return status;
}
