/* The key device.offload. */
#include "config/config_impl.h"

#include "base/digits.h"
#include "base/text.h"
#include "config/elsewhere.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char separators[] = ", \t\r\n";
static const int64_t most_stage = 999999999;

static const char *const words[] = {"none", "optimizer", "activations"};

/* Returns the hint at the first word of `text` that is none of these. */
static tr_hint hint_at(const char *text) {
    tr_hint hint = {.text = ""};
    for (size_t length; !*hint.text && *(text += strspn(text, separators)); text += length) {
        char word[64];
        length = strcspn(text, separators);
        (void)snprintf(word, sizeof word, "%.*s", (int)strcspn(text, ":, \t\r\n"), text);
        hint = tr_value_hint(word, words, 3);
    }
    return hint;
}

/* Reads the word "activations", "activations:NUMBER" or "activations:FIRST-LAST" of this length. */
static bool read_activations(const char *word, size_t length, tr_config_offloads *out) {
    static const char name[] = "activations";
    const char *at = word + strlen(name), *end = word + length;
    if (length < strlen(name) || strncmp(word, name, strlen(name)) != 0) return false;
    int64_t last;
    if (out->stages > 0) return false; /* named twice */
    out->stages = TR_CONFIG_ALL_STAGES;
    if (at == end) return true;
    if (*at++ != ':' || !tr_digits_read(&at, most_stage, &out->first)) return false;
    last = out->first;
    if (at != end && (*at++ != '-' || !tr_digits_read(&at, most_stage, &last))) return false;
    if (at != end) return false;
    out->stages = last - out->first + 1; /* below 1: the range runs backwards */
    return out->stages > 0;
}

bool tr_config_offload(const tr_config *c, tr_config_offloads *out) {
    const char *at = c->device.offload + strspn(c->device.offload, separators);
    *out = (tr_config_offloads){0};
    if (!strcmp(at, "none")) return true;
    for (size_t length; (length = strcspn(at, separators)) > 0;) {
        const bool optimizer = length == strlen("optimizer") && !strncmp(at, "optimizer", length);
        if (!optimizer && !read_activations(at, length, out)) return false;
        out->optimizer |= optimizer;
        at += length;
        at += strspn(at, separators);
    }
    return true;
}

const char *tr_config_offload_text(const tr_config_offloads *x, char *text, size_t size) {
    const bool all = x->stages >= TR_CONFIG_ALL_STAGES;
    (void)snprintf(text, size, "%s", x->optimizer ? "optimizer" : x->stages > 0 ? "" : "none");
    if (x->stages == 0) return text;
    tr_text_add(text, size, "%sactivations%s", x->optimizer ? "," : "", all ? "" : ":");
    if (!all) tr_text_add_range(text, size, (int)x->first, (int)(x->first + x->stages - 1));
    return text;
}

bool tr_config_on_host(const tr_config *c) {
    return !strcmp(c->device.name, "cpu") || !strcmp(c->device.name, "ref");
}

tr_status tr_config_check_offload(const tr_config *c) {
    tr_config_offloads offload;
    const bool good = tr_config_offload(c, &offload);
    if (!good && offload.first > 0 && offload.stages <= 0) {
        const int64_t last = offload.first + offload.stages - 1;
        REFUSE("device.offload",
               "device.offload activations:%" PRId64 "-%" PRId64
               " runs backwards: write activations:%" PRId64 "-%" PRId64,
               offload.first, last, last, offload.first);
    }
    if (!good)
        REFUSE("device.offload",
               "device.offload must be none, optimizer, activations, activations:FIRST-LAST with "
               "numbers of stages, or a list of both, not '%.80s'%s",
               c->device.offload, hint_at(c->device.offload).text);
    if (!offload.optimizer && offload.stages == 0) return TR_OK;
    if (tr_config_on_host(c))
        REFUSE("device.offload",
               "device.offload %s moves memory of the device to the host, where device.name %s "
               "has it anyway: leave device.offload out",
               c->device.offload, c->device.name);
    return TR_OK;
}

tr_status tr_config_check_offload_stages(const tr_config *c, int stages) {
    tr_config_offloads offload;
    (void)tr_config_offload(c, &offload); /* tr_config_check has read it */
    const int64_t last = offload.first + offload.stages - 1;
    if (offload.stages < TR_CONFIG_ALL_STAGES && last >= stages)
        REFUSE(
            "device.offload",
            "device.offload names stage %lld, but parallel.schedule %.80s has %d stage%s, numbered "
            "from 0",
            (long long)last, c->parallel.schedule, stages, stages == 1 ? "" : "s");
    return TR_OK;
}
