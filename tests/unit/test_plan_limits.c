/* Tests plans under a limit of memory: which fit, the advice for those that do not, and what
 * train.recompute auto chooses. */
#include "support/plan_config.h"

#include "partition/advice.h"
#include "partition/least_memory.h"
#include "partition/recompute_choice.h"
#include "partition/request.h"
#include "partition/run_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void plan_with_limit(const char *limit, tr_device *device, tr_config *config,
                            tr_run_plan **plan) {
    const char *const overrides[] = {"parallel.pp=2", "model.vocab=256", limit};
    read_config(config, 3, overrides);
    assert_int_equal(tr_run_plan_make(config, device, plan), TR_OK);
}

/* Returns the bytes of the rank that takes most. */
static size_t most_bytes(int count, const char *const *overrides, tr_device *device) {
    tr_config config;
    tr_run_plan *plan;
    read_config(&config, count, overrides);
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const size_t most = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    return most;
}

enum { ADVICE = 512 };

/* Writes the advice for a config. */
static void make_advice(const tr_config *config, tr_device *device, char advice[ADVICE]) {
    tr_run_plan *plan;
    assert_int_equal(tr_run_plan_make(config, device, &plan), TR_OK);
    assert_int_equal(tr_advice_make(config, plan, device, advice, ADVICE), TR_OK);
    tr_run_plan_destroy(plan);
}

/* Advice for a layout, where a rank may use as much as one of another layout takes. */
static void expect_advice(int count, const char *const *layout, int other_count,
                          const char *const *other, tr_device *device, const char *change) {
    char advice[ADVICE];
    tr_config config;
    read_config(&config, count, layout);
    config.device.memory = (int64_t)most_bytes(other_count, other, device);
    make_advice(&config, device, advice);
    if (!strstr(advice, change)) fail_msg("'%s' without '%s'", advice, change);
}

/* Advice gives data ranks to the model, and combines pp and tp where it takes no more ranks. */
static void test_advice_of_several_degrees(void **state) {
    (void)state;
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    expect_advice(1, (const char *[]){"parallel.dp=4"}, 2,
                  (const char *[]){"parallel.dp=2", "parallel.pp=2"}, device,
                  "parallel.dp=2 parallel.pp=2, or");
    expect_advice(1, (const char *[]){"model.heads=2"}, 3,
                  (const char *[]){"model.heads=2", "parallel.pp=4", "parallel.tp=2"}, device,
                  "parallel.pp=4 parallel.tp=2 on 8 ranks");
    tr_device_close(device);
}

/* Reads the keys of a change of the advice, "a=b c=d on N ranks, or ...", which begins at `change`,
 * over the layout's, and expects that the model fits the same memory with them. */
static void expect_fit(int count, const char *const *layout, int64_t memory, const char *change,
                       tr_device *device) {
    char text[ADVICE], *words[16] = {0};
    const char *all[32];
    tr_config config;
    tr_run_plan *plan;
    int n = 0;
    (void)snprintf(text, sizeof text, "%.*s", (int)strcspn(change, ","), change);
    memcpy(all, layout, (size_t)count * sizeof *all);
    for (char *word = strtok(text, " "); word && n < 16; word = strtok(NULL, " "))
        if (strchr(word, '=')) words[n++] = word;
    assert_true(n > 1);
    for (int i = 0; i < n; i++) all[count + i] = words[i];
    read_config(&config, count + n, all);
    config.device.memory = memory;
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    if (!tr_run_plan_fits(plan)) fail_msg("it does not fit with %s", change);
    tr_run_plan_destroy(plan);
}

/* Where no key suffices alone on the same ranks, several do, of which each is needed; and where no
 * keys do, several with fewer ranks than more of pp and tp take. */
static void test_advice_of_several_keys(void **state) {
    (void)state;
    static const char *const layout[] = {"parallel.dp=3", "train.batch=36", "train.micro_batch=4",
                                         "model.layers=24", "model.context=256"};
    static const char *const expected[][3] = {
        {"parallel.zero=1", "train.micro_batch=2", "train.recompute=full"},
        {"parallel.zero=1", "train.micro_batch=1", "train.recompute=full"},
        {"parallel.zero=0", "train.micro_batch=1", "train.recompute=full"}};
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
        const char *const *keys = expected[k];
        const char *const other[] = {layout[0], layout[1], layout[3], layout[4],
                                     keys[0],   keys[1],   keys[2]};
        char advice[ADVICE], first[128];
        tr_config config;
        (void)snprintf(first, sizeof first, "it fits with %s%s%s %s, or", k < 2 ? keys[0] : "",
                       k < 2 ? " " : "", keys[1], keys[2]);
        read_config(&config, 5, layout);
        config.device.memory = (int64_t)most_bytes(7, other, device);
        make_advice(&config, device, advice);
        if (strncmp(advice, first, strlen(first)) != 0) fail_msg("'%s', not '%s'", advice, first);
        expect_fit(5, layout, config.device.memory, advice + strlen("it fits with "), device);
        if (k == 2) break; /* with less memory several keys still suffice on the same ranks */

        config.device.memory -= config.device.memory / 4;
        make_advice(&config, device, advice);
        const char *smallest = strstr(advice, "parallel.zero=1");
        if (!smallest || !strstr(smallest, " ranks")) fail_msg("%s", advice);
        expect_fit(5, layout, config.device.memory, smallest, device);
    }
    tr_device_close(device);
}

/* One byte decides whether the model fits; every change that is advised fits; with a limit below
 * all of them there is no advice. */
static void test_what_fits(void **state) {
    (void)state;
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    char limit[64], advice[ADVICE];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    plan_with_limit("device.memory=0", device, &config, &plan);
    size_t need = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    (void)snprintf(limit, sizeof limit, "device.memory=%zu", need);
    plan_with_limit(limit, device, &config, &plan);
    assert_true(tr_run_plan_fits(plan));
    tr_run_plan_destroy(plan);

    (void)snprintf(limit, sizeof limit, "device.memory=%zu", need - 1);
    plan_with_limit(limit, device, &config, &plan);
    assert_false(tr_run_plan_fits(plan));
    tr_run_plan_destroy(plan);
    make_advice(&config, device, advice);
    assert_string_equal(advice,
                        "it fits with train.recompute=selective, or train.micro_batch=1, or "
                        "parallel.pp=3 on 3 ranks, or parallel.tp=2 on 4 ranks");
    (void)strcpy(config.device.name, "guarded"); /* has memory of its own, like a GPU */
    make_advice(&config, device, advice);
    assert_non_null(strstr(advice, "train.micro_batch=1, or device.offload=optimizer, or"));
    (void)strcpy(config.device.offload, "optimizer"); /* and what else could go there */
    (void)strcpy(config.parallel.schedule, "gpipe");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    config.device.memory = (int64_t)plan->memory[tr_run_plan_largest(plan)].total - 1;
    tr_run_plan_destroy(plan);
    make_advice(&config, device, advice);
    assert_non_null(strstr(advice, "device.offload=optimizer,activations:1, or"));
    config.device.memory = 1000;
    make_advice(&config, device, advice);
    assert_non_null(strstr(advice, "no larger parallel.pp"));
    assert_int_equal(tr_memory_taken(device), 0);
    tr_device_close(device);
}

/* Plans in ever less memory: those that fit have another cut than the fastest, and are no faster.
 * Returns how many cuts fit. */
static int fit_below(int count, const char *const *overrides, tr_device *device) {
    int cuts = 0;
    tr_config c;
    tr_run_plan *fastest, *plan;
    read_config(&c, count, overrides);
    assert_int_equal(tr_run_plan_make_fastest(&c, device, &fastest), TR_OK);
    const tr_layout *l = fastest->layout;
    const size_t bytes = ((size_t)l->placement.stages + 1) * sizeof *l->first;
    size_t limit = fastest->memory[tr_run_plan_largest(fastest)].total;
    assert_int_equal(tr_run_plan_make_within(&c, device, limit, &plan), TR_OK);
    assert_true(tr_run_plan_fits(plan) && !plan->room);
    assert_memory_equal(plan->layout->first, l->first, bytes);
    for (bool fits = true; fits; cuts += fits) {
        tr_run_plan_destroy(plan);
        limit--; /* the fullest rank's bytes do not fit any more */
        assert_int_equal(tr_run_plan_make_within(&c, device, limit, &plan), TR_OK);
        const size_t most = plan->memory[tr_run_plan_largest(plan)].total;
        fits = tr_run_plan_fits(plan);
        assert_true(fits == (most <= limit));
        if (!fits) continue;
        assert_non_null(plan->room);
        assert_true(memcmp(plan->layout->first, l->first, bytes) != 0);
        assert_true(plan->fastest == fastest->time->makespan);
        assert_true(plan->time->makespan >= plan->fastest * (1 - 1e-9));
        limit = most;
    }
    tr_run_plan_destroy(fastest);
    tr_run_plan_destroy(plan);
    return cuts;
}

static void test_cuts_that_fit(void **state) {
    (void)state;
    static const char *const overrides[][6] = {
        {"parallel.pp=4", "model.layers=12", "train.batch=8", "parallel.schedule=1f1b"},
        {"parallel.pp=2", "model.layers=12", "train.batch=8", "parallel.schedule=interleaved",
         "parallel.virtual=2", "model.vocab=3000"},
        {"parallel.pp=3", "model.layers=12", "train.batch=12", "parallel.schedule=zb-h1",
         "parallel.tp=2", "model.vocab=3000"},
        {"parallel.pp=4", "model.layers=12", "train.batch=24", "parallel.dp=3", "parallel.zero=1",
         "optim.name=muon"},
        {"parallel.pp=2", "model.layers=12", "train.batch=6", "parallel.schedule=zb-2p"},
        {"parallel.pp=2", "model.layers=12", "train.batch=6", "parallel.schedule=auto"},
    };
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    for (size_t k = 0; k < sizeof overrides / sizeof *overrides; k++) {
        const int count = overrides[k][4] ? 6 : 4, cuts = fit_below(count, overrides[k], device);
        printf("%s: %d other cuts fit\n", overrides[k][3], cuts);
        assert_true(cuts >= 2);
    }
    tr_device_close(device);
}

/* The advice to offload activations names the stages of the ranks that need more than the limit,
 * and those between them: of four ranks the last one, and then also the first one. */
static void test_which_stages_to_offload(void **state) {
    (void)state;
    static const char *const overrides[] = {"parallel.pp=4", "parallel.schedule=gpipe",
                                            "model.vocab=256"};
    static const char *const advised[] = {"device.offload=optimizer,activations:3, or",
                                          "device.offload=optimizer,activations:0-3, or"};
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    char advice[ADVICE];
    size_t total[4];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    read_config(&config, 3, overrides);
    (void)strcpy(config.device.name, "guarded");
    (void)strcpy(config.device.offload, "optimizer");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    for (int r = 0; r < 4; r++) total[r] = plan->memory[r].total;
    tr_run_plan_destroy(plan);
    assert_true(total[3] > total[0] && total[0] > total[1] && total[1] == total[2]);
    for (int k = 0; k < 2; k++) {
        config.device.memory = (int64_t)total[k];
        make_advice(&config, device, advice);
        if (!strstr(advice, advised[k])) fail_msg("%s", advice);
    }
    tr_device_close(device);
}

/* Advice has full recomputation when it suffices, with the fastest cut or with another one only,
 * and then not together with other keys. */
static void test_advice_of_recompute(void **state) {
    (void)state;
    static const char *const overrides[] = {"parallel.pp=4",   "model.layers=12",
                                            "model.vocab=256", "model.context=512",
                                            "train.batch=32",  "train.recompute=full"};
    static const char first[] = "it fits with train.recompute=full";
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    const size_t fastest = most_bytes(6, overrides, device);
    for (int less = 0; less < 2; less++) {
        char advice[ADVICE];
        tr_config config;
        tr_run_plan *plan;
        read_config(&config, 6, overrides);
        config.device.memory = (int64_t)fastest - less;
        assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
        assert_true(tr_run_plan_fits(plan) && (plan->room != NULL) == (less > 0));
        tr_run_plan_destroy(plan);
        (void)strcpy(config.model.recompute, "none");
        (void)strcpy(config.device.name, "guarded");
        make_advice(&config, device, advice);
        if (strncmp(advice, first, strlen(first)) != 0 || !strchr(",", advice[strlen(first)]) ||
            strstr(advice + strlen(first), "train.recompute=full"))
            fail_msg("%d: %s", less, advice);
    }
    tr_device_close(device);
}

/* What ranks keep in the memory of a host: no host may have more than the limit. */
static void test_host_memory(void **state) {
    (void)state;
    static const char *const overrides[] = {"parallel.pp=4", "model.vocab=256"};
    tr_config config;
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    read_config(&config, 2, overrides);
    (void)strcpy(config.device.name, "guarded");
    (void)strcpy(config.device.offload, "optimizer");
    for (int host = 0; host <= 4; host++) {
        size_t most = 0, bytes = 0;
        tr_run_plan *plan;
        config.device.host_ranks = host; /* the last host may have fewer ranks */
        config.device.host_memory = 0;
        assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
        for (int r = 0; r < 4; r++) {
            if (host && r % host == 0) bytes = 0;
            bytes += plan->memory[r].of[TR_MEMORY_OFFLOAD];
            if (bytes > most) most = bytes;
        }
        assert_true(most > 0 && plan->host_bytes == most);
        tr_run_plan_destroy(plan);
        for (int less = 0; less < 2; less++) {
            config.device.host_memory = (int64_t)most - less;
            assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
            assert_int_equal(tr_run_plan_fits_host(plan), !less);
            assert_true(tr_run_plan_fits_device(plan));
            assert_int_equal(tr_run_plan_fits(plan), !less);
            tr_run_plan_destroy(plan);
        }
    }
    (void)strcpy(config.device.name, "cuda"); /* of another machine */
    config.device.memory = 1 << 30;
    config.device.host_memory = 0;
    tr_run_plan *plan;
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    assert_true(plan->host_limit == SIZE_MAX && tr_run_plan_fits(plan));
    tr_run_plan_destroy(plan);
    tr_device_close(device);
}

/* Advice for the ranks' memory: changes that fill a host's beyond its limit, or further when it is
 * exceeded already, are none; and what is missing there is no reason against other changes. */
static void test_advice_leaves_the_host_its_memory(void **state) {
    (void)state;
    static const char *const overrides[] = {"parallel.pp=2", "parallel.schedule=gpipe",
                                            "model.vocab=256"};
    tr_config config;
    tr_device *device;
    tr_run_plan *plan;
    char advice[ADVICE];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    read_config(&config, 3, overrides);
    (void)strcpy(config.device.name, "guarded");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    assert_true(plan->host_bytes == 0 && plan->host_limit == SIZE_MAX); /* nobody asks */
    tr_run_plan_destroy(plan);

    (void)strcpy(config.device.offload, "optimizer");
    assert_int_equal(tr_run_plan_make(&config, device, &plan), TR_OK);
    const int64_t host_bytes = (int64_t)plan->host_bytes;
    assert_true(plan->host_limit < SIZE_MAX);
    config.device.memory = (int64_t)plan->memory[tr_run_plan_largest(plan)].total - 1;
    tr_run_plan_destroy(plan);
    const struct {
        int64_t limit;
        bool offloads;
    } cases[] = {{4 * host_bytes, true}, {host_bytes, false}, {1, false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        config.device.host_memory = cases[k].limit;
        make_advice(&config, device, advice);
        if (!strstr(advice, "train.micro_batch=1") || !strstr(advice, "train.recompute=selective"))
            fail_msg("limit %lld: %s", (long long)cases[k].limit, advice);
        if ((strstr(advice, "optimizer,activations") != NULL) != cases[k].offloads)
            fail_msg("limit %lld: %s", (long long)cases[k].limit, advice);
    }
    tr_device_close(device);
}

/* Plans with a limit in bytes and returns what the fullest rank takes; *c gets the modes that auto
 * chooses. */
static size_t need_under(size_t limit, const char *mode, tr_device *device, tr_config *c) {
    char memory[64], recompute[64];
    tr_run_plan *plan;
    (void)snprintf(memory, sizeof memory, "device.memory=%zu", limit);
    (void)snprintf(recompute, sizeof recompute, "train.recompute=%s", mode);
    read_config(c, 4, (const char *[]){"parallel.pp=2", "model.vocab=256", memory, recompute});
    assert_int_equal(tr_config_check(c, 2), TR_OK);
    assert_int_equal(tr_request_recompute(c, device), TR_OK);
    assert_int_equal(tr_run_plan_make(c, device, &plan), TR_OK);
    const size_t need = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    return need;
}

/* auto takes the first mode that fits, only on the stage that needs it, and full where none fits.
 * Under 1f1b the first stage holds more than the second one. */
static void test_auto_takes_the_cheapest_that_fits(void **state) {
    (void)state;
    const size_t much = (size_t)1 << 40;
    tr_config c;
    tr_device *device;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    const size_t none = need_under(much, "none", device, &c);
    const size_t selective = need_under(much, "selective", device, &c);
    const size_t full = need_under(much, "full", device, &c);
    assert_true(full < selective && selective < none);

    assert_true(need_under(much, "auto", device, &c) == none);
    assert_string_equal(c.model.recompute, "none");
    assert_true(need_under(none, "auto", device, &c) == none);
    assert_string_equal(c.model.recompute, "none");
    assert_true(need_under(none - 1, "auto", device, &c) < none);
    assert_string_equal(c.model.recompute, "selective:0-1");
    assert_true(need_under(selective - 1, "auto", device, &c) < selective);
    assert_int_equal(tr_recompute_of(c.model.recompute, 0), TR_RECOMPUTE_FULL);
    assert_int_not_equal(tr_recompute_of(c.model.recompute, 3), TR_RECOMPUTE_FULL);
    assert_true(need_under(full - 1, "auto", device, &c) == full);
    assert_string_equal(c.model.recompute, "full");

    /* Without a limit the choice would depend on this machine. */
    read_config(&c, 1, (const char *[]){"train.recompute=auto"});
    assert_int_equal(tr_config_check(&c, 1), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "set device.memory to the memory"));
    assert_int_equal(tr_memory_taken(device), 0);
    tr_device_close(device);
}

/* Lowers the mode of the rank's last stage that recomputes; returns false when none does. */
static bool lower_last_stage(tr_config *c, const tr_layout *l, int rank) {
    const int64_t blocks = c->model.layers;
    uint8_t modes[16];
    for (int64_t b = 0; b < blocks; b++) modes[b] = (uint8_t)tr_recompute_of(c->model.recompute, b);
    for (int s = l->placement.stages - 1; s >= 0; s--) {
        bool lower = false;
        for (int64_t b = l->first[s] - 1; b < l->first[s + 1] - 1 && l->owner[s] == rank; b++) {
            if (b < 0 || b >= blocks || modes[b] == 0) continue;
            modes[b]--;
            lower = true;
        }
        if (!lower) continue;
        assert_int_equal(tr_recompute_print(modes, blocks, c->model.recompute), TR_OK);
        return true;
    }
    return false;
}

static size_t need_of(const tr_config *c, tr_device *device) {
    tr_run_plan *plan;
    assert_int_equal(tr_run_plan_make_fastest(c, device, &plan), TR_OK);
    const size_t need = plan->memory[tr_run_plan_largest(plan)].total;
    tr_run_plan_destroy(plan);
    return need;
}

/* With several stages a rank auto chooses for each: a rank's last stage could not have the mode
 * before its own, because the ranks would not fit. Returns how many choices have several modes. */
static int choose_for_stages(const char *layers, const char *virtual, const char *vocab) {
    int mixed = 0;
    tr_device *device;
    tr_config c, other;
    size_t need[2];
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    for (int full = 0; full < 2; full++) {
        read_config(&c, 7,
                    (const char *[]){"parallel.pp=2", "parallel.schedule=interleaved", layers,
                                     virtual, vocab, "device.memory=1TiB",
                                     full ? "train.recompute=full" : "train.recompute=none"});
        need[full] = need_of(&c, device);
    }
    for (size_t part = 0; part <= 8; part++) {
        tr_run_plan *plan;
        c.device.memory = (int64_t)(need[1] + (need[0] - need[1]) / 8 * part);
        (void)strcpy(c.model.recompute, TR_RECOMPUTE_AUTO);
        assert_int_equal(tr_request_recompute(&c, device), TR_OK);
        mixed += strchr(c.model.recompute, ':') != NULL;
        assert_int_equal(tr_run_plan_make(&c, device, &plan), TR_OK);
        assert_true(tr_run_plan_fits(plan));
        for (int rank = 0; rank < 2; rank++) {
            other = c;
            if (lower_last_stage(&other, plan->layout, rank) &&
                need_of(&other, device) <= (size_t)c.device.memory)
                fail_msg("%s, %s: %s is enough, not %s", layers, vocab, other.model.recompute,
                         c.model.recompute);
        }
        tr_run_plan_destroy(plan);
    }
    tr_device_close(device);
    return mixed;
}

/* In the second case the cut follows the modes. */
static void test_auto_chooses_for_each_stage(void **state) {
    (void)state;
    assert_true(choose_for_stages("model.layers=8", "parallel.virtual=4", "model.vocab=256") > 4);
    assert_true(choose_for_stages("model.layers=9", "parallel.virtual=2", "model.vocab=1000") > 4);
}

/* Returns whether the fastest cut fits, and expects that a try says so, too. */
static bool fastest_fits(const tr_config *config, tr_device *device) {
    tr_run_plan *plan;
    bool fits;
    int stages = 0;
    assert_int_equal(tr_run_plan_make_fastest(config, device, &plan), TR_OK);
    assert_int_equal(tr_run_plan_try(config, device, &fits, &stages), TR_OK);
    if (fits != tr_run_plan_fits(plan))
        fail_msg("%s in %lld bytes: %d", config->parallel.schedule,
                 (long long)config->device.memory, fits);
    if (fits) assert_int_equal(stages, plan->layout->desc.schedule->stages);
    tr_run_plan_destroy(plan);
    return fits;
}

/* A try fits exactly when the plan of the fastest cut does. In its bytes the ranks hold the layers,
 * and with room for half of the activations they do not, which is known without a cut for the
 * orders with whole backwards at least. */
static void test_tries_say_what_plans_say(void **state) {
    (void)state;
    tr_device *device;
    int early = 0;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    for (int k = 0; k < SCHEDULES; k++) {
        char schedule[64];
        tr_config config;
        tr_run_plan *plan;
        tr_least_memory least;
        tr_held held;
        (void)snprintf(schedule, sizeof schedule, "parallel.schedule=%s", schedules[k]);
        const char *const overrides[] = {"parallel.pp=4", "model.layers=16", "model.vocab=64",
                                         schedule};
        read_config(&config, 4, overrides);
        assert_int_equal(tr_run_plan_make_fastest(&config, device, &plan), TR_OK);
        const tr_memory_plan most = plan->memory[tr_run_plan_largest(plan)];
        const double half = (double)(most.total - most.of[TR_MEMORY_ACTIVATIONS] / 2);
        const tr_schedule *order = plan->orders.schedule;
        assert_int_equal(tr_least_memory_of(&config, device, &least), TR_OK);
        assert_false(tr_least_memory_exceeds(&least, 4, (double)most.total));
        assert_int_equal(tr_held_of(order, &held), TR_OK);
        if (isinf(tr_least_memory_blocks(&least, &held, (double)most.total)))
            fail_msg("%s fits, and is said to exceed its bytes", schedules[k]);
        early += isinf(tr_least_memory_blocks(&least, &held, half));
        tr_held_free(&held);
        tr_run_plan_destroy(plan);
        const bool is_auto = strcmp(schedules[k], "auto") == 0; /* its order follows the memory */
        config.device.memory = (int64_t)most.total;
        assert_true(fastest_fits(&config, device) || is_auto);
        config.device.memory--;
        assert_true(!fastest_fits(&config, device) || is_auto);
        config.device.memory = (int64_t)half;
        assert_true(!fastest_fits(&config, device) || is_auto);
    }
    printf("%d of %d orders are known to have no room\n", early, SCHEDULES);
    assert_true(early >= 5);
    tr_device_close(device);
}

/* The search for the least bytes ends, too, where neighbouring numbers are further apart than
 * bytes. */
static void test_least_bytes_of_huge_layers(void **state) {
    (void)state;
    for (double bytes = 1000; bytes < 1e22; bytes *= 1000) {
        const tr_least_part half = {.state = bytes};
        const tr_least_memory least = {.block = half, .all = {.state = 2 * bytes}, .blocks = 2};
        assert_true(fabs(tr_least_memory_in(&least, NULL, 1) / (2 * bytes) - 1) < 1e-3);
        assert_true(fabs(tr_least_memory_in(&least, NULL, 2) / bytes - 1) < 1e-3);
    }
}

/* Returns the first number of pipeline ranks from 1 on with which the fastest cut fits, or one more
 * than there are layers. */
static int64_t first_that_fits(tr_config config, tr_device *device) {
    for (config.parallel.pp = 1; config.parallel.pp <= config.model.layers; config.parallel.pp++) {
        tr_run_plan *plan;
        if (tr_run_plan_make_fastest(&config, device, &plan) != TR_OK) continue;
        const bool fits = tr_run_plan_fits(plan);
        tr_run_plan_destroy(plan);
        if (fits) break;
    }
    return config.parallel.pp;
}

static void test_fewest_ranks(void **state) {
    (void)state;
    static const struct {
        const char *keys[3], *memory;
    } cases[] = {{{"parallel.schedule=1f1b"}, "1MiB"},
                 {{"parallel.schedule=gpipe"}, "2MiB"},
                 {{"parallel.schedule=zbv"}, "2MiB"},
                 {{"parallel.schedule=v-min"}, "2MiB"},
                 {{"parallel.schedule=zbv"}, "1MiB"}, /* more than 4 ranks are refused */
                 {{"parallel.zero=1"}, "2MiB"},
                 {{"parallel.zero=1", "optim.name=muon"}, "2MiB"},
                 {{"parallel.zero=2", "parallel.schedule=bfs", "parallel.virtual=2"}, "2MiB"},
                 {{"parallel.zero=3", "parallel.schedule=bfs", "parallel.virtual=2"}, "1500KiB"},
                 {{"parallel.schedule=interleaved", "parallel.virtual=2"}, "1500KiB"},
                 {{"optim.moments=int8", "optim.gradients=bf16"}, "1MiB"},
                 {{"train.recompute=full"}, "1MiB"},
                 {{"train.recompute=full:0-3"}, "2MiB"},
                 {{"train.freeze=*.h.0.*"}, "2MiB"},
                 {{"parallel.tp=2", "parallel.sequence=true"}, "1MiB"},
                 {{"parallel.schedule=1f1b"}, "64MiB"},
                 {{"parallel.schedule=1f1b"}, "32KiB"},
                 {{"model.layers=144"}, "800KiB"}}; /* not every number is tried */
    tr_device *device;
    int between = 0;
    assert_int_equal(tr_device_open("cpu", &one_thread, &device), TR_OK);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *overrides[7] = {"parallel.dp=2", "model.layers=8", "model.vocab=256"};
        char memory[64];
        int64_t pp;
        int count = 3;
        tr_config config;
        (void)snprintf(memory, sizeof memory, "device.memory=%s", cases[k].memory);
        overrides[count++] = memory;
        for (int i = 0; i < 3 && cases[k].keys[i]; i++) overrides[count++] = cases[k].keys[i];
        read_config(&config, count, overrides);
        assert_int_equal(tr_run_plan_fewest_ranks(&config, device, &pp), TR_OK);
        const int64_t expected = first_that_fits(config, device);
        printf("%s in %s: %lld\n", cases[k].keys[0], cases[k].memory, (long long)pp);
        if (pp != expected)
            fail_msg("%s in %s: %lld, not %lld", cases[k].keys[0], cases[k].memory, (long long)pp,
                     (long long)expected);
        between += pp > 1 && pp <= 8;
        tr_error_clear();
    }
    assert_true(between > 3);
    tr_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fewest_ranks),
        cmocka_unit_test(test_least_bytes_of_huge_layers),
        cmocka_unit_test(test_what_fits),
        cmocka_unit_test(test_advice_of_several_degrees),
        cmocka_unit_test(test_advice_of_several_keys),
        cmocka_unit_test(test_cuts_that_fit),
        cmocka_unit_test(test_which_stages_to_offload),
        cmocka_unit_test(test_advice_of_recompute),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_advice_leaves_the_host_its_memory),
        cmocka_unit_test(test_auto_takes_the_cheapest_that_fits),
        cmocka_unit_test(test_auto_chooses_for_each_stage),
        cmocka_unit_test(test_tries_say_what_plans_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
