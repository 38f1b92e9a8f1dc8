/* The cpu device's facts, for `trireme doctor` and the run's header. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The instruction set that oneDNN uses here, as it names it ("avx512_core_bf16"). */
const char *tr_cpu_isa(void);

/* The version of the oneDNN that was loaded, "2.6.3", in text[size]; returns it. */
const char *tr_cpu_onednn_version(char *text, size_t size);

/* Whether oneDNN multiplies BF16 matrices here. Where it cannot, the cpu device widens operands to
 * FP32 before the product: same storage and rounding, less speed. */
bool tr_cpu_bf16_native(void);
