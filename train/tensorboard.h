/* TensorBoard event files, without protobuf: records of length, masked CRC-32C of the length, data,
 * masked CRC-32C of the data (TFRecord); the data is an Event message. */
#pragma once

#include "train/append.h"

#include <stdint.h>

enum { TR_TB_TAG = 64, TR_TB_RECORD = TR_TB_TAG + 80 };

/* Returns the CRC-32C (Castagnoli, reflected polynomial 0x82F63B78). */
uint32_t tr_crc32c(const void *data, size_t bytes);

/* Writes the record with which every event file starts; returns its bytes. */
size_t tr_tb_version_record(double wall_time, unsigned char record[TR_TB_RECORD]);
/* Writes the record of one scalar; cuts the tag to TR_TB_TAG - 1 characters. Returns the record's
 * bytes. */
size_t tr_tb_scalar_record(double wall_time, int64_t step, const char *tag, float value,
                           unsigned char record[TR_TB_RECORD]);

/* Writes the record after which TensorBoard drops what it has read of `step` and later ones;
 * returns its bytes. TensorBoard ignores the first such record of a directory. */
size_t tr_tb_start_record(double wall_time, int64_t step, unsigned char record[TR_TB_RECORD]);

/* Starts a new event file in the directory, for the steps from `step` on, and writes its first
 * records. */
tr_status tr_tb_open(const char *directory, int64_t step, tr_append *out);
/* Appends the record of tr_tb_start_record. Fails with TR_ERR_IO. */
tr_status tr_tb_start(tr_append *file, int64_t step);
/* Adds one scalar with the present time. */
tr_status tr_tb_scalar(tr_append *file, int64_t step, const char *tag, double value);
