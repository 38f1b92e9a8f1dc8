/* Tests warm-up and cosine against the formula and its fixed points. */
#include "train/lr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void near(double got, double want) {
    if (!(fabs(got - want) <= 4 * 2.3e-16 * fabs(want) + 1e-20))
        fail_msg("%.17g, not %.17g", got, want);
}

static void follows_the_curve(void **state) {
    (void)state;
    const tr_lr lr = {.highest = 3e-4, .lowest = 3e-5, .warmup = 10, .steps = 110};
    near(tr_lr_at(&lr, 1), 3e-5);
    near(tr_lr_at(&lr, 5), 1.5e-4);
    near(tr_lr_at(&lr, 10), 3e-4);
    near(tr_lr_at(&lr, 60), 0.5 * (3e-4 + 3e-5));
    near(tr_lr_at(&lr, 110), 3e-5);
    near(tr_lr_at(&lr, 500), 3e-5);
    for (int64_t s = 11; s <= 110; s++) assert_true(tr_lr_at(&lr, s) < tr_lr_at(&lr, s - 1));
}

static void no_warmup_and_only_warmup(void **state) {
    (void)state;
    const tr_lr none = {.highest = 1, .lowest = 0, .warmup = 0, .steps = 4};
    near(tr_lr_at(&none, 2), 0.5);
    near(tr_lr_at(&none, 4), 0);
    assert_true(tr_lr_at(&none, 1) < 1);
    const tr_lr longer = {.highest = 1, .lowest = 0, .warmup = 8, .steps = 4};
    near(tr_lr_at(&longer, 4), 0.5);
    const tr_lr equal = {.highest = 1, .lowest = 0, .warmup = 4, .steps = 4};
    near(tr_lr_at(&equal, 4), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(follows_the_curve),
                                       cmocka_unit_test(no_warmup_and_only_warmup)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
