#include "partition/memory_plan.h"

#include "base/text.h"

#include <string.h>

static double mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}

/* Returns true for the classes of host memory. */
static bool is_hosts(int kind) {
    return kind == TR_MEMORY_OFFLOAD || kind == TR_MEMORY_SNAPSHOT;
}

/* Returns true for a class that is part of the totals. */
static bool is_counted(bool apart, int kind) {
    return !(apart && is_hosts(kind));
}

size_t tr_memory_in_host(const tr_memory_plan *plan) {
    return plan->apart ? plan->of[TR_MEMORY_OFFLOAD] + plan->of[TR_MEMORY_SNAPSHOT] : 0;
}

void tr_memory_sum(tr_memory_plan *plan) {
    plan->total = 0;
    for (int k = 0; k < TR_MEMORY_CLASSES; k++)
        if (is_counted(plan->apart, k)) plan->total += plan->of[k];
}

size_t tr_memory_taken(const tr_device *device) {
    size_t sum = 0;
    for (int k = 0; k < TR_MEMORY_CLASSES; k++)
        if (is_counted(!tr_device_on_host(device), k)) sum += tr_device_peak(device, (tr_memory)k);
    return sum;
}

tr_memory_rank tr_memory_measure(const tr_device *device, const tr_memory_plan *plan) {
    tr_memory_rank rank = {.plan = *plan, .taken_total = tr_memory_taken(device)};
    for (int k = 0; k < TR_MEMORY_CLASSES; k++)
        rank.taken[k] = tr_device_peak(device, (tr_memory)k);
    return rank;
}

/* Returns true for a class that is printed: classes that most runs do not have are left out when
 * they are 0. */
static bool is_shown(const tr_memory_plan *plan, int kind) {
    return (kind != TR_MEMORY_NCCL && !is_hosts(kind)) || plan->of[kind] > 0;
}

void tr_memory_text(const tr_memory_plan *p, char text[TR_MEMORY_TEXT]) {
    bool whole = p->of[TR_MEMORY_ACTIVATIONS] > 0;
    text[0] = '\0';
    tr_text_add(text, TR_MEMORY_TEXT, "%s%.1f MiB (", whole ? "" : "more than ", mib(p->total));
    for (int k = 0; k < TR_MEMORY_CLASSES; k++) {
        bool known = whole || (k != TR_MEMORY_ACTIVATIONS && k != TR_MEMORY_TRANSFERS);
        if (known && is_shown(p, k) && is_counted(p->apart, k))
            tr_text_add(text, TR_MEMORY_TEXT, "%s%s %.1f", k ? ", " : "",
                        tr_device_memory_name((tr_memory)k), mib(p->of[k]));
    }
    tr_text_add(text, TR_MEMORY_TEXT, "%s)", whole ? "" : ", and activations");
}

/* Returns what is printed before a class; between: those of the total. */
static const char *before(const tr_memory_plan *plan, int kind, const char *between) {
    if (is_counted(plan->apart, kind)) return kind ? between : "";
    const bool first = kind == TR_MEMORY_OFFLOAD || plan->of[TR_MEMORY_OFFLOAD] == 0;
    return first ? "; in host memory:" : ",";
}

tr_status tr_memory_refuse(const tr_memory_plan *plan, int pp_rank, size_t limit, bool is_free,
                           const char *remedies) {
    char parts[TR_MEMORY_TEXT], may_use[32], less[32];
    tr_memory_text(plan, parts);
    return TR_FAIL(TR_ERR_FIT,
                   "rank %d of the pipeline needs %s and a rank may use %s (%s), %s less: %s",
                   pp_rank, parts, tr_text_memory(limit, may_use, sizeof may_use),
                   is_free ? "free memory" : "device.memory",
                   tr_text_memory(plan->total - limit, less, sizeof less), remedies);
}

void tr_memory_print_plan(const tr_memory_plan *p, FILE *out) {
    (void)fprintf(out, "memory   rank 0: %.1f MiB planned =", mib(p->total));
    for (int k = 0; k < TR_MEMORY_CLASSES; k++) {
        if (!is_shown(p, k)) continue;
        (void)fprintf(out, "%s %s %.1f", before(p, k, " +"), tr_device_memory_name((tr_memory)k),
                      mib(p->of[k]));
        if (k == TR_MEMORY_ACTIVATIONS) (void)fprintf(out, " (live peak %.1f)", mib(p->live_peak));
        if (k == TR_MEMORY_NCCL) (void)fputs(" (measured)", out);
    }
    (void)fputc('\n', out);
}

/* Returns true when the bytes are exactly those planned. */
static bool as_planned(const tr_memory_rank *m) {
    return memcmp(m->taken, m->plan.of, sizeof m->taken) == 0;
}

static void print_taken(const tr_memory_rank *m, int rank, FILE *out) {
    bool same = as_planned(m);
    (void)fprintf(out, "memory   rank %d: took %.1f", rank, mib(m->taken_total));
    if (same) (void)fputs(" MiB, as planned:", out);
    else (void)fprintf(out, " of %.1f MiB planned:", mib(m->plan.total));
    for (int k = 0; k < TR_MEMORY_CLASSES; k++) {
        if (!is_shown(&m->plan, k)) continue;
        (void)fprintf(out, "%s %s %.1f", before(&m->plan, k, ","),
                      tr_device_memory_name((tr_memory)k), mib(m->taken[k]));
        if (!same) (void)fprintf(out, " of %.1f", mib(m->plan.of[k]));
    }
    (void)fputc('\n', out);
}

void tr_memory_print_taken(const tr_memory_rank *memory, int ranks, FILE *out) {
    print_taken(&memory[0], 0, out);
    for (int r = 1; r < ranks; r++) {
        if (as_planned(&memory[r])) continue;
        print_taken(&memory[r], r, out);
        return;
    }
}
