#include "train/tensorboard.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Field keys of the messages Event, Summary, Summary.Value and SessionLog: number << 3 | wire type,
 * and a value of SessionLog's status. */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3 | 0,
    EVENT_FILE_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION_LOG = 7 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
    SESSION_STATUS = 1 << 3 | 0,
    SESSION_START = 1,
};

uint32_t tr_crc32c(const void *data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= ((const unsigned char *)data)[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static unsigned char *put_little_endian(unsigned char *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) *to++ = (unsigned char)(value >> (8 * i));
    return to;
}

static unsigned char *put_varint(unsigned char *to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *to++ = (unsigned char)(value | 0x80);
    *to++ = (unsigned char)value;
    return to;
}

static unsigned char *put_bytes(unsigned char *to, unsigned char key, const void *data,
                                size_t bytes) {
    *to++ = key;
    to = put_varint(to, bytes);
    memcpy(to, data, bytes);
    return to + bytes;
}

static unsigned char *put_wall_time(unsigned char *to, double wall_time) {
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    *to++ = EVENT_WALL_TIME;
    return put_little_endian(to, bits, 8);
}

static uint32_t masked_crc(const void *data, size_t bytes) {
    uint32_t crc = tr_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Frames the event from record + 12 to `end`. */
static size_t frame(unsigned char *record, unsigned char *end) {
    size_t bytes = (size_t)(end - record) - 12;
    (void)put_little_endian(record, bytes, 8);
    (void)put_little_endian(record + 8, masked_crc(record, 8), 4);
    (void)put_little_endian(end, masked_crc(record + 12, bytes), 4);
    return bytes + 16;
}

size_t tr_tb_version_record(double wall_time, unsigned char record[TR_TB_RECORD]) {
    static const char version[] = "brain.Event:2";
    unsigned char *end = put_wall_time(record + 12, wall_time);
    return frame(record, put_bytes(end, EVENT_FILE_VERSION, version, sizeof version - 1));
}

size_t tr_tb_scalar_record(double wall_time, int64_t step, const char *tag, float value,
                           unsigned char record[TR_TB_RECORD]) {
    unsigned char inner[TR_TB_TAG + 8], summary[TR_TB_TAG + 12];
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    unsigned char *end = put_bytes(inner, VALUE_TAG, tag, strnlen(tag, TR_TB_TAG - 1));
    *end++ = VALUE_SIMPLE;
    end = put_little_endian(end, bits, 4);
    end = put_bytes(summary, SUMMARY_VALUE, inner, (size_t)(end - inner));
    size_t summary_bytes = (size_t)(end - summary);

    end = put_wall_time(record + 12, wall_time);
    *end++ = EVENT_STEP;
    end = put_varint(end, (uint64_t)step);
    return frame(record, put_bytes(end, EVENT_SUMMARY, summary, summary_bytes));
}

size_t tr_tb_start_record(double wall_time, int64_t step, unsigned char record[TR_TB_RECORD]) {
    static const unsigned char start[] = {SESSION_STATUS, SESSION_START};
    unsigned char *end = put_wall_time(record + 12, wall_time);
    *end++ = EVENT_STEP;
    end = put_varint(end, (uint64_t)step);
    return frame(record, put_bytes(end, EVENT_SESSION_LOG, start, sizeof start));
}

static double wall_clock(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

tr_status tr_tb_open(const char *directory, int64_t step, tr_append *out) {
    char host[65] = "localhost", path[1200];
    double now = wall_clock();
    (void)gethostname(host, sizeof host - 1);
    int n = 0;
    do { /* a run that is resumed within the same second gets another file */
        (void)snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.%s.%ld.%d", directory,
                       (long long)now, host, (long)getpid(), n++);
    } while (access(path, F_OK) == 0);
    TR_TRY(tr_append_open(path, 0, out));
    unsigned char record[TR_TB_RECORD];
    tr_status status = tr_append_write(out, record, tr_tb_version_record(now, record));
    if (status == TR_OK) status = tr_tb_start(out, step);
    if (status != TR_OK) tr_append_close(out);
    return status;
}

tr_status tr_tb_start(tr_append *file, int64_t step) {
    unsigned char record[TR_TB_RECORD];
    return tr_append_write(file, record, tr_tb_start_record(wall_clock(), step, record));
}

tr_status tr_tb_scalar(tr_append *file, int64_t step, const char *tag, double value) {
    unsigned char record[TR_TB_RECORD];
    return tr_append_write(file, record,
                           tr_tb_scalar_record(wall_clock(), step, tag, (float)value, record));
}
