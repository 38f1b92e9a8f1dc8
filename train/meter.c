#include "train/meter.h"

#include "base/clock.h"
#include "base/text.h"
#include "job/terminal.h"

static void show(tr_meter *m, double share, double now_s) {
    const double seconds = now_s - m->begin_s, bytes = share * (double)m->total;
    const double left = share > 0 ? seconds / share - seconds : 0;
    char done[32], total[32], rate[32];
    (void)fprintf(m->file, "%s%s %s of %s, %s/s, %.0f s left%s", m->terminal ? "\r" : "", m->verb,
                  tr_text_bytes(bytes, done, sizeof done),
                  tr_text_bytes((double)m->total, total, sizeof total),
                  tr_text_bytes(bytes / seconds, rate, sizeof rate), left,
                  m->terminal ? "\033[K" : "\n");
    (void)fflush(m->file);
    m->shown_s = now_s;
}

static void take_work(void *context, int64_t done, int64_t total) {
    tr_meter *m = context;
    const double now_s = tr_now_s(), pause_s = m->terminal ? 0.2 : 10;
    if (m->before.work) m->before.work(m->before.context, done, total);
    if (now_s - m->shown_s >= pause_s && total > 0) show(m, (double)done / (double)total, now_s);
}

static void take_wait(void *context, bool begin, const char *what, int peer) {
    const tr_meter *m = context;
    if (m->before.wait) m->before.wait(m->before.context, begin, what, peer);
}

void tr_meter_open(tr_world *world, FILE *file, const char *verb, int64_t total, tr_meter *out) {
    const double now_s = tr_now_s();
    *out = (tr_meter){.file = file,
                      .verb = verb,
                      .terminal = tr_terminal_shows(file),
                      .before = tr_world_get_hook(world),
                      .begin_s = now_s,
                      .shown_s = now_s,
                      .total = total};
    if (tr_world_rank(world) != 0) return;
    out->world = world;
    const tr_world_hook hook = {
        .wait = take_wait, .work = take_work, .context = out, .deadline_s = out->before.deadline_s};
    tr_world_set_hook(world, &hook);
}

void tr_meter_close(tr_meter *m, bool done) {
    if (!m->world) return;
    tr_world_set_hook(m->world, &m->before);
    const double seconds = tr_now_s() - m->begin_s;
    if (m->terminal) (void)fprintf(m->file, "\r\033[K");
    char total[32], rate[32];
    if (done)
        (void)fprintf(m->file, "%s %s in %.1f s, %s/s\n", m->verb,
                      tr_text_bytes((double)m->total, total, sizeof total), seconds,
                      tr_text_bytes((double)m->total / seconds, rate, sizeof rate));
    m->world = NULL;
}
