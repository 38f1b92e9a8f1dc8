/* Tests sums of gradients in BF16 (optim.gradients): one rank's sums over the micro-batches of a
 * step are as near to those in FP32 as independent stochastic rounding leaves them, tensor ranks
 * round their parts of a gradient independently, all of their memory is planned, and it falls. */
#include "base/memory.h"
#include "support/engine_ranks.h"
#include "support/small_engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_BATCHES = 16 };

static tr_status same_sample(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                             int count) {
    (void)sample;
    return fetch(context, validation, 3, wanted, count);
}

/* Makes B of low-rank updates, which begins at 0, something else, so that A has a gradient. */
static void set_updates(const tr_store *store) {
    for (int i = 0; i < store->slots; i++) {
        const tr_param *param = store->slot[i].param;
        float *value = param->value;
        for (int64_t k = 0; k < param->count && strstr(tr_param_name(param), "lora_B"); k++)
            value[k] = 0.01f * (float)(k % 7 - 3);
    }
}

typedef struct owned {
    engine_rank r;
    tr_schedule *schedule;
    tr_memory_plan plan;
} owned;

/* Takes a step of equal micro-batches. lora: the rank of low-rank updates, in an FP32 model; 0:
 * none. */
static void open_and_step(owned *o, tr_dtype gradients, tr_dtype dtype, int lora,
                          int micro_batches) {
    tr_step_result result;
    engine_rank *r = &o->r;
    assert_int_equal(tr_world_open_local(1, &r->world), TR_OK);
    assert_int_equal(tr_device_open("cpu", &(tr_device_options){.threads = 2}, &r->device), TR_OK);
    o->schedule = schedule_of("1f1b", 1, micro_batches);
    tr_engine_desc desc = small(r->world, r->device, o->schedule);
    desc.batch = micro_batches;
    desc.micro_batch = 1;
    desc.model.lora.rank = lora;
    desc.dtype = dtype;
    desc.fetch = same_sample;
    desc.optimizer.gradients = gradients;
    if (tr_engine_create(&desc, &r->engine) != TR_OK) fail_msg("%s", tr_error_message());
    assert_int_equal(tr_store_init(tr_engine_store(r->engine), 1, NULL), TR_OK);
    set_updates(tr_engine_store(r->engine));
    assert_int_equal(tr_engine_step(r->engine, 1, 1, 0, 1e-3, &result), TR_OK);
    assert_true(result.finite);
    tr_engine_plan(r->engine, &o->plan);
    if (check_planned_memory(r) != TR_OK) fail_msg("%s", tr_error_message());
}

static void close_engine(owned *o) {
    tr_engine_destroy(o->r.engine);
    tr_schedule_destroy(o->schedule);
    tr_device_close(o->r.device);
    tr_world_close(o->r.world);
}

/* After m micro-batches the sum is m / 16 of the whole one, S. A rounding moves it by less than a
 * gap, at most 2^-7 of it. Its variance is at most a quarter of the gap's square, so that
 * independent roundings leave a root mean square of at most 2^-8 sqrt(1 + 4 + ... + 256) / 16 of
 * that of S. Those with the same draws in each micro-batch, which are correlated by a half, leave
 * more. */
static void compare(const tr_param *narrow, const tr_param *wide, double *squares, double *errors) {
    const uint16_t *got = narrow->grad;
    const float *want = wide->grad;
    for (int64_t i = 0; i < wide->count; i++) {
        const double size = fabs((double)want[i]);
        const double error = (double)tr_bf16_to_f32(got[i]) - (double)want[i];
        double most = 0;
        for (int m = 1; m <= MICRO_BATCHES; m++)
            most = most * (1 + 0x1p-7) + 0x1p-7 * size * m / MICRO_BATCHES;
        /* FP32 sums have their own errors. */
        if (!(fabs(error) <= most + 0x1p-19 * size + 1e-30))
            fail_msg("%s, element %lld: %g, not within %g of %g", tr_param_name(narrow),
                     (long long)i, (double)tr_bf16_to_f32(got[i]), most, (double)want[i]);
        *squares += size * size;
        *errors += error * error;
    }
}

static void sums_are_near_those_in_fp32(void **state) {
    (void)state;
    const double steps = MICRO_BATCHES * (MICRO_BATCHES + 1) * (2 * MICRO_BATCHES + 1) / 6.0;
    static const struct {
        tr_dtype dtype;
        int lora;
    } cases[] = {{TR_F32, 0}, {TR_BF16, 0}, {TR_F32, 4}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const tr_dtype dtype = cases[k].dtype;
        owned narrow, wide;
        double squares = 0, errors = 0;
        open_and_step(&narrow, TR_BF16, dtype, cases[k].lora, MICRO_BATCHES);
        open_and_step(&wide, TR_F32, dtype, cases[k].lora, MICRO_BATCHES);
        const tr_store *a = tr_engine_store(narrow.r.engine), *b = tr_engine_store(wide.r.engine);
        assert_true(a->slots > 0 && a->slots == b->slots);
        for (int i = 0; i < a->slots; i++) {
            /* The optimizer has added the second use of a tied one to the first. */
            const bool tied = a->slot[i].param->use > 0 || strcmp(tr_param_name(a->slot[i].param),
                                                                  "transformer.wte.weight") == 0;
            if (!tied && !a->slot[i].param->frozen)
                compare(a->slot[i].param, b->slot[i].param, &squares, &errors);
        }
        const double off = sqrt(errors / squares), most = 0x1p-8 * sqrt(steps) / MICRO_BATCHES;
        if (!(off > most / 8 && off <= most))
            fail_msg("%s, updates of rank %d: sums are %g off, not at most %g",
                     tr_dtype_name(dtype), cases[k].lora, off, most);
        if (!cases[k].lora)
            assert_true(narrow.plan.of[TR_MEMORY_GRADIENTS] < wide.plan.of[TR_MEMORY_GRADIENTS]);
        close_engine(&narrow);
        close_engine(&wide);
    }
}

/* The memory is 2 bytes for each gradient, and 4 for each of the layer that has most: a block, with
 * 12 C^2 + 13 C parameters. */
static void memory_is_as_documented(void **state) {
    (void)state;
    enum { C = 32 };
    owned narrow, wide;
    open_and_step(&narrow, TR_BF16, TR_BF16, 0, 2);
    open_and_step(&wide, TR_F32, TR_BF16, 0, 2);
    const size_t gaps = 12 * TR_ALIGN, addend = 4 * (12 * C * C + 13 * C),
                 have = narrow.plan.of[TR_MEMORY_GRADIENTS] - wide.plan.of[TR_MEMORY_GRADIENTS] / 2;
    assert_in_range(have, addend, addend + 2 * gaps);
    close_engine(&narrow);
    close_engine(&wide);
}

/* --- tensor ranks ----------------------------------------------------------------------------- */

enum { TENSOR_RANKS = 2, MOST_SLOTS = 64 };

/* The gradient of the first micro-batch, as FP32 bits. */
typedef struct first_gradient {
    char name[TR_NAME_SIZE];
    bool held_by_both, summed;
    int64_t count;
    uint32_t *bits;
} first_gradient;

typedef struct tensor_rank {
    engine_rank *r;
    tr_model_config model;
    tr_dtype gradients;
    first_gradient of[MOST_SLOTS];
} tensor_rank;

/* Copies the gradients after the first B, to which the second one adds. */
static void keep_first(void *context, const tr_instr *instr, bool begin) {
    tensor_rank *t = context;
    if (begin || instr->action.type != TR_ACTION_B || instr->adds) return;
    const tr_store *store = tr_engine_store(t->r->engine);
    assert_in_range(store->slots, 1, MOST_SLOTS);
    for (int i = 0; i < store->slots; i++) {
        const tr_param *param = store->slot[i].param;
        if (param->frozen) continue;
        const int holders = store->slot[i].layout.replicas.count[TR_AXIS_TP];
        const bool summed = store->slot[i].layout.sum.count[TR_AXIS_TP] > 1;
        first_gradient *g = &t->of[i];
        *g = (first_gradient){
            .held_by_both = holders == TENSOR_RANKS, .summed = summed, .count = param->count};
        (void)snprintf(g->name, sizeof g->name, "%s", tr_param_name(param));
        g->bits = malloc((size_t)g->count * sizeof *g->bits);
        assert_non_null(g->bits);
        for (int64_t k = 0; k < g->count; k++)
            if (t->gradients == TR_BF16)
                g->bits[k] = (uint32_t)((const uint16_t *)param->grad)[k] << 16;
            else g->bits[k] = ((const uint32_t *)param->grad)[k];
    }
}

static tr_status take_step(engine_rank *r, void *state) {
    tensor_rank *t = state;
    tr_step_result result;
    tr_schedule *schedule = schedule_of("1f1b", 1, 2);
    tr_engine_desc desc = small(r->world, r->device, schedule);
    t->r = r;
    desc.batch = 2;
    desc.micro_batch = 1;
    desc.model = t->model;
    desc.dtype = TR_F32;
    desc.fetch = fetch;
    desc.optimizer.gradients = t->gradients;
    desc.observe = keep_first;
    desc.observe_context = t;
    tr_status status = tr_mesh_make(1, 1, TENSOR_RANKS, r->rank, r->ranks, &desc.mesh);
    if (status == TR_OK) status = tr_engine_create(&desc, &r->engine);
    if (status == TR_OK) status = tr_store_init(tr_engine_store(r->engine), 1, NULL);
    if (status == TR_OK) {
        set_updates(tr_engine_store(r->engine));
        status = tr_engine_step(r->engine, 1, 1, 0, 1e-3, &result);
    }
    if (status == TR_OK) status = check_planned_memory(r);
    tr_engine_destroy(r->engine);
    r->engine = NULL;
    tr_schedule_destroy(schedule);
    return status;
}

/* Returns 1 if `narrow` is above the BF16 number at or below `wide` in size, 0 if it is that
 * number; *chance becomes the chance of 1. */
static double is_up(const first_gradient *narrow, const first_gradient *wide, int64_t k,
                    double *chance) {
    const uint32_t gaps = (narrow->bits[k] - (wide->bits[k] & 0xffff0000u)) >> 16;
    *chance = (double)(wide->bits[k] & 0xffffu) / 65536;
    if (gaps > 1) fail_msg("%s, element %lld is not a neighbour", narrow->name, (long long)k);
    return gaps;
}

/* The product of two independent rounding errors has the mean 0 and the product of their variances
 * p (1 - p). The sum over all summed gradients is within 5 deviations of 0; with one word for both
 * ranks the mean is min(p, q) - p q, 1/12 on average. Where both ranks compute the whole gradient,
 * they round it to the same bits. */
static void compare_ranks(const tensor_rank *narrow, const tensor_rank *wide, int64_t *summed) {
    double sum = 0, variance = 0;
    for (int i = 0; i < MOST_SLOTS; i++) {
        const first_gradient *a = &narrow[0].of[i], *b = &narrow[1].of[i];
        if (!a->held_by_both) continue;
        if (!a->summed) assert_memory_equal(a->bits, b->bits, (size_t)a->count * sizeof *a->bits);
        for (int64_t k = 0; k < a->count && a->summed; k++) {
            double p, q;
            const double error = is_up(a, &wide[0].of[i], k, &p) - p;
            sum += error * (is_up(b, &wide[1].of[i], k, &q) - q);
            variance += p * (1 - p) * q * (1 - q);
            *summed += p > 0 && q > 0;
        }
    }
    if (!(fabs(sum) <= 5 * sqrt(variance)))
        fail_msg("%s: the ranks' errors have products of %g, not within %g of 0",
                 narrow->model.family, sum, 5 * sqrt(variance));
}

/* Norms and biases that divide rows; key heads that the ranks share; low-rank updates. */
static void tensor_ranks_round_independently(void **state) {
    (void)state;
    const tr_model_config gpt2 = {.family = "gpt2",
                                  .layers = 2,
                                  .width = 64,
                                  .heads = 4,
                                  .context = 16,
                                  .vocab = 256,
                                  .sequence = true};
    tr_model_config llama = gpt2, updated = gpt2;
    strcpy(llama.family, "llama");
    llama.sequence = false;
    llama.kv_heads = 1;
    updated.sequence = false;
    updated.lora = (tr_lora_config){.rank = 4, .alpha = 8};
    const tr_model_config *const models[] = {&gpt2, &llama, &updated};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        static tensor_rank narrow[TENSOR_RANKS], wide[TENSOR_RANKS];
        int64_t summed = 0;
        for (int r = 0; r < TENSOR_RANKS; r++) {
            narrow[r] = (tensor_rank){.model = *models[k], .gradients = TR_BF16};
            wide[r] = (tensor_rank){.model = *models[k], .gradients = TR_F32};
        }
        run_engine_ranks(TENSOR_RANKS, "cpu", take_step, narrow, sizeof *narrow);
        run_engine_ranks(TENSOR_RANKS, "cpu", take_step, wide, sizeof *wide);
        compare_ranks(narrow, wide, &summed);
        assert_true(summed >= 500); /* so many have a sum of 11 deviations with one word for both */
        for (int r = 0; r < TENSOR_RANKS; r++)
            for (int i = 0; i < MOST_SLOTS; i++) {
                free(narrow[r].of[i].bits);
                free(wide[r].of[i].bits);
            }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_near_those_in_fp32),
                                       cmocka_unit_test(tensor_ranks_round_independently),
                                       cmocka_unit_test(memory_is_as_documented)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
