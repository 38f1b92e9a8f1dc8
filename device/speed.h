/* How fast the kinds of devices compute and exchange data, in orders of magnitude, known without a
 * device: enough to choose an order by, and the same on every machine. */
#pragma once

typedef struct tr_device_speed {
    double flops_per_s; /* products of a rank, in the precision that it trains in */
    double link_bytes;  /* bytes a second from one rank to another */
} tr_device_speed;

/* The speed of the kind of device that tr_device_open opens by this name; of the cpu device where
 * there is none of this name. */
const tr_device_speed *tr_device_speed_of(const char *name);
