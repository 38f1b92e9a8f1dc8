/* Tests that the ranks of a run agree on the plans of their operators, and measure each description
 * once. */
#include "device/device_impl.h"
#include "partition/request.h"
#include "support/must.h"
#include "train/plans.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char model[] =
    "data.path: x\n"
    "model: {layers: 4, width: 32, heads: 4, context: 16, vocab: 99}\n"
    "train: {batch: 16, micro_batch: 2, threads: 1, deterministic: false}\n";

enum { RANKS = 4 };
static tr_op_prepare_fn prepare_matmul;
static atomic_int measured; /* calls that prepare a product to measure it */

static tr_status count_measured(const tr_op_context *context, const tr_op_desc *desc, tr_op **out) {
    measured += context->choice == TR_OP_MEASURED;
    return prepare_matmul(context, desc, out);
}

typedef struct rank_thread {
    pthread_t thread;
    const tr_config *config;
    tr_world *world;
    bool resumes;
    tr_plans plans;
    char *text; /* of the book */
    tr_status status;
} rank_thread;

static tr_status settle(rank_thread *t, tr_device *device) {
    const tr_config *c = t->config;
    tr_mesh mesh;
    tr_orders orders;
    tr_schedule_report report;
    tr_device_ops counting = *device->ops;
    counting.prepare[TR_OP_MATMUL] = count_measured;
    device->ops = &counting;
    TR_TRY(tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp,
                        tr_world_rank(t->world), tr_world_size(t->world), &mesh));
    TR_TRY(tr_request_orders(c, &orders, &report));
    tr_status status = tr_plans_settle(t->world, c, device, &mesh, &orders, t->resumes, &t->plans);
    tr_orders_close(&orders);
    if (status == TR_OK && t->plans.book) status = tr_plan_book_print(t->plans.book, &t->text);
    device->ops = &tr_device_ops_cpu;
    return status;
}

static void *run_rank(void *argument) {
    rank_thread *t = argument;
    tr_device *device = NULL;
    t->status = tr_device_open("cpu", &(tr_device_options){.threads = 1}, &device);
    if (t->status == TR_OK) t->status = settle(t, device);
    if (device) tr_device_close(device);
    tr_world_close(t->world);
    return NULL;
}

static void run(const tr_config *config, int ranks, rank_thread *t) {
    tr_world *world[RANKS];
    prepare_matmul = tr_device_ops_cpu.prepare[TR_OP_MATMUL];
    measured = 0;
    must(tr_world_open_local(ranks, world));
    for (int r = 0; r < ranks; r++) {
        t[r] = (rank_thread){.config = config, .world = world[r]};
        assert_int_equal(pthread_create(&t[r].thread, NULL, run_rank, &t[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(t[r].thread, NULL);
        assert_int_equal(t[r].status, TR_OK);
    }
}

static void finish(int ranks, rank_thread *t) {
    for (int r = 0; r < ranks; r++) {
        free(t[r].text);
        tr_plan_book_destroy(t[r].plans.book);
    }
}

static void read_config(tr_config *config, int count, const char *const *overrides) {
    must(tr_config_parse(model, strlen(model), "model.yaml", overrides, count, config));
}

static void test_ranks_agree(void **state) {
    (void)state;
    static const char *const layouts[][2] = {{"parallel.dp=4", "parallel.pp=1"},
                                             {"parallel.dp=2", "parallel.pp=2"},
                                             {"parallel.tp=2", "parallel.pp=2"},
                                             {"parallel.dp=1", "parallel.pp=4"}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        tr_config config;
        rank_thread t[RANKS];
        read_config(&config, 2, layouts[i]);
        run(&config, RANKS, t);
        assert_true(t[0].plans.measured > 10);
        assert_int_equal(t[0].plans.measured, measured);
        assert_int_equal(t[0].plans.read, 0);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(t[r].plans.measured, tr_plan_book_count(t[r].plans.book));
            assert_string_equal(t[r].text, t[0].text);
            assert_false(t[r].plans.refused);
        }
        finish(RANKS, t);
    }
}

static void test_deterministic(void **state) {
    (void)state;
    tr_config config;
    rank_thread t[RANKS];
    read_config(&config, 1, (const char *[]){"train.deterministic=true"});
    run(&config, 1, t);
    assert_null(t[0].plans.book);
    assert_int_equal(measured, 0);
    finish(1, t);
}

/* A zero byte does not hide what follows it. */
static void test_damaged_file(void **state) {
    (void)state;
    static const char text[] = "trireme plans 1\n\0matmul\n";
    char dir[] = "plans-XXXXXX", path[64], key[64];
    tr_config config;
    tr_world *world;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/plans.txt", dir);
    (void)snprintf(key, sizeof key, "log.dir=%s", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, sizeof text - 1, f), sizeof text - 1);
    assert_int_equal(fclose(f), 0);
    read_config(&config, 1, (const char *[]){key});
    must(tr_world_open_local(1, &world));
    rank_thread t = {.config = &config, .world = world, .resumes = true};
    (void)run_rank(&t);
    assert_int_equal(t.status, TR_ERR_DATA);
    assert_non_null(strstr(tr_error_message(), "plans.txt:2: it has a character that is not"));
    finish(1, &t);
    assert_int_equal(unlink(path) + rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranks_agree),
                                       cmocka_unit_test(test_deterministic),
                                       cmocka_unit_test(test_damaged_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
