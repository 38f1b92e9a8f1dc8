/* Tests the time limit: its notation, and which step has to be the last. */
#include "train/time_limit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void reads_durations(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"90", 90},    {"5s", 5},        {"30m", 1800},  {"1h30m", 5400}, {"2h", 7200},
                {"1m30s", 90}, {"1h1m1s", 3661}, {"120m", 7200}, {"1h30s", 3630}, {"0m10s", 10}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        double seconds;
        assert_int_equal(tr_time_limit_parse(good[i].text, &seconds), TR_OK);
        assert_true(seconds == good[i].seconds);
    }
    static const char *const bad[] = {"",     "0",  "0s",    "-5",   "5 s",
                                      "s",    "5x", "30m1h", "5s5s", "1h30",
                                      "1.5h", "+5", "1e3",   "5s ",  "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        double seconds;
        assert_int_equal(tr_time_limit_parse(bad[i], &seconds), TR_ERR_USAGE);
        assert_non_null(strstr(tr_error_message(), "1h30m"));
    }
}

/* Simulates a run: steps of step_s, with a validation and a save now and then. behind: a save is
 * always in progress, and the one that is due and the last one wait for it. Returns how long before
 * the limit (in steps) the last save ended; negative: after it. */
static double play(double limit_s, double step_s, double validation_s, double save_s, bool behind) {
    tr_time_limit limit;
    double now = 0;
    tr_time_limit_open(limit_s, 0, &limit);
    tr_time_limit_took(&limit.save_s, save_s);
    for (int step = 1;; step++) {
        const bool due = step % 5 == 0;
        tr_time_need need = {.examines = {step % 7 == 0, (step + 1) % 7 == 0},
                             .saves = due + behind};
        bool last = tr_time_limit_is_near(&limit, now, &need);
        double took = step_s + (need.examines[0] ? validation_s : 0);
        now += took;
        tr_time_limit_took(&limit.step_s[need.examines[0]], took);
        if (due || last) now += save_s;
        if (behind && last) now += save_s;
        if (last) return (limit_s - now) / step_s;
    }
}

static void saves_in_time_and_not_long_before(void **state) {
    (void)state;
    for (int i = 1; i <= 200; i++) {
        double limit_s = 100 + 3.7 * i;
        double left = play(limit_s, 1, 4, 6, false);
        if (left < 0 || left > 20) fail_msg("limit %g s: %g steps left", limit_s, left);
        left = play(limit_s, 1, 4, 6, true);
        if (left < 0 || left > 26)
            fail_msg("limit %g s, with a save behind: %g steps left", limit_s, left);
        left = play(limit_s, 10, 0, 0.1, false);
        if (left < 0 || left > 2) fail_msg("limit %g s, long steps: %g steps left", limit_s, left);
    }
}

static void no_limit_and_no_time(void **state) {
    (void)state;
    tr_time_limit limit;
    tr_time_need need = {0};
    tr_time_limit_open(INFINITY, 1e12, &limit);
    assert_false(tr_time_limit_is_near(&limit, 1e9, &need));
    tr_time_limit_open(100, 9.9e9, &limit); /* the save alone takes 99 s, as far as is known */
    assert_true(tr_time_limit_is_near(&limit, 0, &need));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_durations),
        cmocka_unit_test(saves_in_time_and_not_long_before),
        cmocka_unit_test(no_limit_and_no_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
