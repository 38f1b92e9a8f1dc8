#include "support/engine_ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

/* One rank and what its thread is told. */
typedef struct thread_of_rank {
    pthread_t thread;
    engine_rank r;
    const char *device;
    engine_rank_fn run;
    void *state;
    tr_status status;
    char error[256];
} thread_of_rank;

static void *thread_main(void *argument) {
    thread_of_rank *t = argument;
    engine_rank *r = &t->r;
    tr_status status = tr_device_open(t->device, &(tr_device_options){.threads = 1}, &r->device);
    if (status == TR_OK) status = t->run(r, t->state);
    t->status = status;
    if (status != TR_OK) {
        (void)snprintf(t->error, sizeof t->error, "%s", tr_error_message());
        tr_world_abort(r->world, TR_ERR_INTERNAL);
    }
    tr_engine_destroy(r->engine);
    if (r->device) tr_device_close(r->device);
    tr_world_close(r->world);
    return NULL;
}

void run_engine_ranks(int ranks, const char *device, engine_rank_fn run, void *states,
                      size_t state_size) {
    thread_of_rank of[MOST_ENGINE_RANKS];
    tr_world *world[MOST_ENGINE_RANKS];
    assert_in_range(ranks, 1, MOST_ENGINE_RANKS);
    assert_int_equal(tr_world_open_local(ranks, world), TR_OK);
    for (int i = 0; i < ranks; i++) {
        of[i] = (thread_of_rank){.r = {.world = world[i], .rank = i, .ranks = ranks},
                                 .device = device,
                                 .run = run,
                                 .state = (char *)states + (size_t)i * state_size};
        assert_int_equal(pthread_create(&of[i].thread, NULL, thread_main, &of[i]), 0);
    }
    for (int i = 0; i < ranks; i++) assert_int_equal(pthread_join(of[i].thread, NULL), 0);
    bool failed = false;
    for (int i = 0; i < ranks; i++) {
        if (of[i].status == TR_OK) continue;
        print_message("rank %d of %d: %s\n", i, ranks, of[i].error);
        failed = true;
    }
    if (failed) fail();
}

tr_status check_planned_memory(const engine_rank *r) {
    tr_memory_plan plan;
    tr_engine_plan(r->engine, &plan);
    for (int c = 0; c < TR_MEMORY_CLASSES; c++) {
        const size_t taken = tr_device_peak(r->device, (tr_memory)c);
        if (plan.of[c] != taken)
            return TR_FAIL(TR_ERR_INTERNAL, "%s: %zu bytes planned, %zu taken",
                           tr_device_memory_name((tr_memory)c), plan.of[c], taken);
    }
    return TR_OK;
}
