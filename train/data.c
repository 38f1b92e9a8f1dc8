#include "train/data.h"

#include "base/memory.h"
#include "base/philox.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES = 256, FEISTEL_ROUNDS = 6 };

struct tr_data {
    const unsigned char *byte; /* (total) */
    int64_t total, train;
    int64_t context;
    int64_t windows;    /* of an epoch */
    int64_t phases;     /* starts of the first window: 0..phases-1 */
    int64_t validation; /* windows held out */
    uint64_t seed;
};

static tr_status map_file(const char *path, tr_data *data) {
    tr_status status = TR_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return TR_FAIL(TR_ERR_NOFILE, "the data file '%s' cannot be opened: %s (data.path)", path,
                       strerror(errno));
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        status = TR_FAIL(TR_ERR_NOFILE, "'%s' is no regular file (data.path)", path);
    } else if (info.st_size == 0) {
        status = TR_FAIL(TR_ERR_DATA, "the data file '%s' is empty", path);
    } else {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            status = TR_FAIL(TR_ERR_IO, "the data file '%s' cannot be mapped: %s", path,
                             strerror(errno));
        else *data = (tr_data){.byte = map, .total = info.st_size};
    }
    (void)close(fd);
    return status;
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
    tr_status status = map_file(path, data);
    if (status == TR_OK) status = split(path, validation, context, data);
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
    if (data->byte) (void)munmap((void *)(uintptr_t)data->byte, (size_t)data->total);
    free(data);
}

int64_t tr_data_tokens(const tr_data *data) {
    return data->total;
}

int64_t tr_data_train_tokens(const tr_data *data) {
    return data->train;
}

int tr_data_distinct(const tr_data *data) {
    int seen[BYTES] = {0}, distinct = 0;
    for (int64_t i = 0; i < data->total; i++) seen[data->byte[i]] = 1;
    for (int b = 0; b < BYTES; b++) distinct += seen[b];
    return distinct;
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
static void read_window(const tr_data *data, int64_t start, int32_t *tokens, int32_t *labels) {
    const unsigned char *window = data->byte + start;
    for (int64_t t = 0; t < data->context; t++) {
        tokens[t] = window[t];
        labels[t] = window[t + 1];
    }
}

void tr_data_sample(const tr_data *data, int64_t index, int32_t *tokens, int32_t *labels) {
    read_window(data, tr_data_window_start(data, index), tokens, labels);
}

void tr_data_validation_sample(const tr_data *data, int64_t index, int32_t *tokens,
                               int32_t *labels) {
    read_window(data, data->train + index % data->validation * data->context, tokens, labels);
}

tr_status tr_data_bigram_nats(const tr_data *data, double alpha, double *nats) {
    if (data->total - data->train < 2)
        return TR_FAIL(TR_ERR_DATA, "nothing is held out: set data.validation above 0");
    int64_t(*pair)[BYTES]; /* (first, second) */
    int64_t from[BYTES] = {0}, single[BYTES] = {0};
    TR_TRY(tr_calloc(BYTES, sizeof *pair, &pair));
    for (int64_t i = 0; i < data->train; i++) single[data->byte[i]]++;
    for (int64_t i = 0; i + 1 < data->train; i++) {
        pair[data->byte[i]][data->byte[i + 1]]++;
        from[data->byte[i]]++;
    }
    double sum = 0;
    for (int64_t i = data->train; i + 1 < data->total; i++) {
        int a = data->byte[i], b = data->byte[i + 1];
        double p = ((double)single[b] + 1) / ((double)data->train + BYTES);
        sum -= log(((double)pair[a][b] + alpha * p) / ((double)from[a] + alpha));
    }
    *nats = sum / (double)(data->total - data->train - 1);
    free(pair);
    return TR_OK;
}
