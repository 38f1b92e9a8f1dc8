/* The angles of rotary positions (Su et al. 2021, "RoFormer"), in double precision on the host.
 * Every device prepares ROPE with them. Private to device/. */
#pragma once

#include "device/op.h"

/* Returns the radians by which pair i of a head (elements i and i + head_size / 2) turns per
 * position: theta^(-2 i / head_size), scaled. */
double tr_rope_frequency(const tr_rope_desc *desc, int64_t pair);

/* Returns the factor of cosines and sines: YaRN's attention factor, or 1. */
double tr_rope_magnitude(const tr_rope_desc *desc);

/* Fills turns[head_size / 2] with the same frequencies in turns of 2^-64, for tr_rope_rotation. */
void tr_rope_turns(const tr_rope_desc *desc, uint64_t *turns);
