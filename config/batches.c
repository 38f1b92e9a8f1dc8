#include "config/batches.h"

#include "base/text.h"
#include "config/points.h"

#include <inttypes.h>
#include <string.h>

int tr_config_warmup(const char *text, tr_batch_size *size) {
    int count = 0;
    tr_batch_size last = {0};
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        tr_batch_size next;
        if (count == TR_CONFIG_WARMUPS || !tr_config_read_above(&text, last.batch, &next.batch) ||
            !tr_config_read_above(&text, last.until, &next.until))
            return -1;
        size[count++] = last = next;
    }
    return count;
}

int tr_config_batches(const tr_config *config, tr_batch_size *size) {
    int count = tr_config_warmup(config->train.batch_warmup, size);
    if (count < 0) count = 0; /* not from tr_config_load */
    size[count] = (tr_batch_size){.until = INT64_MAX, .batch = config->train.batch};
    return count + 1;
}

int64_t tr_config_batch_at(const tr_config *config, int64_t step) {
    tr_batch_size size[TR_CONFIG_BATCHES];
    int at = 0;
    (void)tr_config_batches(config, size);
    while (step > size[at].until) at++;
    return size[at].batch;
}

double tr_config_sequences(const tr_config *config, int64_t first, int64_t last) {
    tr_batch_size size[TR_CONFIG_BATCHES];
    const int count = tr_config_batches(config, size);
    double sum = 0;
    for (int k = 0; k < count && first <= last; k++) {
        if (first > size[k].until) continue;
        const int64_t end = last < size[k].until ? last : size[k].until;
        sum += (double)(end - first + 1) * (double)size[k].batch;
        if (end == last) break; /* it may be INT64_MAX */
        first = end + 1;
    }
    return sum;
}

const char *tr_config_batches_text(const tr_config *config, char *text, size_t size) {
    tr_batch_size batch[TR_CONFIG_BATCHES];
    const int count = tr_config_batches(config, batch);
    if (size > 0) text[0] = '\0';
    for (int k = 0; k < count - 1; k++)
        tr_text_add(text, size, "%s%" PRId64 "%s until step %" PRId64, k ? ", " : "",
                    batch[k].batch, k ? "" : " sequences", batch[k].until);
    if (count > 1) tr_text_add(text, size, ", then %" PRId64, batch[count - 1].batch);
    return text;
}
