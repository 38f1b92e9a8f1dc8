/* Calls that end the test when they fail. */
#pragma once

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Fails the test with the error's sentence. */
static inline void must(tr_status status) {
    if (status != TR_OK) fail_msg("%s (%s)", tr_error_message(), tr_error_trace());
}
