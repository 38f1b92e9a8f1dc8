/* The speed of each kind of device and its links, in orders of magnitude and without a device:
 * enough to choose an order, and the same on every machine. */
#pragma once

typedef struct tr_device_speed {
    double flops_per_s;  /* products of a rank, in the precision that it trains in */
    double link_bytes;   /* bytes a second from one rank to another */
    double memory_bytes; /* that it reads and writes in its memory a second */
} tr_device_speed;

/* Returns the speed of the kind of device of this name; of the cpu device if the name is
 * unknown. */
const tr_device_speed *tr_device_speed_of(const char *name);
