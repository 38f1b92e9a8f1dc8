/* Configs that tests write as text. */
#pragma once

#include "config/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static inline tr_status parse(const char *text, tr_config *config) {
    return tr_config_parse(text, strlen(text), "x.yaml", NULL, 0, config);
}

/* Checks that the text is refused with this message. */
static inline void refused(const char *text, const char *message) {
    tr_config config;
    assert_int_equal(parse(text, &config), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(), message);
}
