/* Random matrices with orthonormal rows or columns. */
#pragma once

#include "base/status.h"

#include <stdint.h>

/* Fills out[rows][columns] with a matrix that has orthonormal rows, or with more rows than columns
 * orthonormal columns, drawn uniformly from those (Saxe et al. 2014; Mezzadri 2007): the vectors of
 * normal numbers of stream `name`, made orthogonal in order. A function of seed, name and shape
 * alone, not of `threads`. Takes min(rows, columns) * rows * columns * 4 FLOP, 8 bytes an element
 * and 256 bytes a row and column. Fails with TR_ERR_FIT when there is no memory. */
tr_status tr_orthogonal(uint64_t seed, uint64_t name, int64_t rows, int64_t columns, int threads,
                        float *out);
