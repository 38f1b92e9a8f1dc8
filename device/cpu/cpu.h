/* Information about the cpu device, for `trireme doctor` and the run's header. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns oneDNN's name of the instruction set that it uses here ("avx512_core_bf16"). A set that
 * its version 2 does not know goes by the richest that it contains of those. */
const char *tr_cpu_isa(void);

/* Writes the version of the loaded oneDNN, "2.6.3", to text[size]; returns it. */
const char *tr_cpu_onednn_version(char *text, size_t size);

/* Returns true when the cpu device multiplies BF16 by the processor's BF16 instructions: it has
 * them, oneDNN uses them (DNNL_MAX_CPU_ISA may forbid them), and they are faster than those of
 * FP32. If not, the cpu device widens BF16 operands to FP32 before a product, with the same
 * storage, and rounds the result once. */
bool tr_cpu_bf16_native(void);
