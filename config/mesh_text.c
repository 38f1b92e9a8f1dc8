/* How the ranks, and what they divide, are written. */
#include "config/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *tr_config_dp_text(const tr_config *c, char *text, size_t size) {
    const int64_t near = tr_config_near(c);
    if (near == c->parallel.dp) (void)snprintf(text, size, "%" PRId64, near);
    else (void)snprintf(text, size, "%" PRId64 "x%" PRId64, c->parallel.copies, near);
    return text;
}

static const char *sequence_text(const tr_config *c) {
    if (!c->model.sequence) return "";
    return c->parallel.tp > 1 ? " (sequence)" : " (sequence divides nothing with tp 1)";
}

static const char *zero_text(const tr_config *c) {
    static const char *const level[] = {"", "zero 1", "zero 2", "zero 3"};
    if (c->parallel.zero == 0 || tr_config_near(c) > 1) return level[c->parallel.zero];
    return c->parallel.dp == 1 ? "zero divides nothing with dp 1"
                               : "zero divides nothing in runs of 1";
}

static const char *reduce_text(const tr_config *c) {
    const bool sums = c->parallel.dp > 1 || c->parallel.tp > 1;
    if (strcmp(c->parallel.reduce, "fp32") == 0) return "";
    return sums ? "reduce bf16" : "reduce sums nothing with tp 1 and dp 1";
}

const char *tr_config_mesh_text(const tr_config *c, char *text, size_t size) {
    const char *zero = zero_text(c), *reduce = reduce_text(c);
    const bool both = zero[0] && reduce[0], any = zero[0] || reduce[0];
    char dp[48];
    (void)snprintf(text, size, "pp %" PRId64 " x tp %" PRId64 "%s x dp %s%s%s%s%s%s",
                   c->parallel.pp, c->parallel.tp, sequence_text(c),
                   tr_config_dp_text(c, dp, sizeof dp), any ? " (" : "", zero, both ? ", " : "",
                   reduce, any ? ")" : "");
    return text;
}
