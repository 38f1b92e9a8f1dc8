/* Tests evaluation: an engine without gradients gives the loss of each sequence, which is the one
 * that the decoder's logits have, and takes the planned memory. */
#include "base/memory.h"
#include "support/generate_order.h"
#include "train/decoder.h"
#include "train/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 6, MICRO_BATCH = 2, CONTEXT = 12, SEQ = 9, VOCAB = 70, SEED = 11 };

static const tr_model_config config = {
    .family = "gpt2", .layers = 2, .width = 16, .heads = 2, .context = CONTEXT, .vocab = VOCAB};

static int32_t token_at(int64_t sequence, int64_t position) {
    return (int32_t)((sequence * 31 + position * position * 7 + position) % VOCAB);
}

/* Sequence k counts its positions from k on. */
static int32_t label_at(int64_t sequence, int64_t position) {
    return position < sequence ? -1 : token_at(sequence, position + 1);
}

static tr_status fetch(void *context, bool validation, int64_t sample, const tr_fetch *wanted,
                       int count) {
    const int64_t *from = context;
    assert_true(validation);
    for (int64_t t = 0; t < SEQ; t++) {
        int32_t *tokens = tr_fetch_place(wanted, count, TR_STEP_INPUT_TOKENS);
        int32_t *labels = tr_fetch_place(wanted, count, TR_STEP_INPUT_LABELS);
        if (tokens) tokens[t] = token_at(sample - *from, t);
        if (labels) labels[t] = label_at(sample - *from, t);
    }
    return TR_OK;
}

typedef struct rig {
    tr_world *world;
    tr_device *device;
    tr_mesh mesh;
} rig;

static void open_rig(rig *r, const char *device) {
    assert_int_equal(tr_world_open_local(1, &r->world), TR_OK);
    assert_int_equal(tr_device_open(device, &(tr_device_options){.threads = 1}, &r->device), TR_OK);
    assert_int_equal(tr_mesh_make(1, 1, 1, 0, 1, &r->mesh), TR_OK);
}

static void close_rig(rig *r) {
    tr_device_close(r->device);
    tr_world_close(r->world);
}

/* Computes each sequence's loss from the logits that decoding its tokens one by one gives. */
static void decode_losses(rig *r, tr_sequence_loss *out) {
    const tr_model_shape shape = {
        .batch = BATCH, .seq = CONTEXT, .dtype = TR_F64, .decode = 1, .tp_size = 1};
    const int owner[] = {0};
    int first[2] = {0};
    tr_model *model;
    tr_mesh_groups *groups;
    tr_store *store;
    tr_decoder *decoder;
    assert_int_equal(tr_model_create(&config, &shape, &model), TR_OK);
    first[1] = model->count;
    const tr_placement placement = {.stages = 1, .first = first, .owner = owner};
    assert_int_equal(tr_mesh_groups_create(r->world, r->device, &r->mesh, &groups), TR_OK);
    assert_int_equal(tr_store_create(&(tr_store_desc){.device = r->device,
                                                      .world = r->world,
                                                      .mesh = &r->mesh,
                                                      .model = model,
                                                      .placement = &placement,
                                                      .dtype = TR_F64},
                                     &store),
                     TR_OK);
    assert_int_equal(tr_store_init(store, SEED, NULL), TR_OK);
    const tr_decoder_desc desc = {.world = r->world,
                                  .device = r->device,
                                  .mesh = r->mesh,
                                  .groups = groups,
                                  .model = model,
                                  .rows = BATCH,
                                  .placement = &placement};
    assert_int_equal(tr_decoder_create(&desc, &decoder), TR_OK);
    double *logits;
    assert_int_equal(tr_calloc(BATCH * VOCAB, sizeof *logits, &logits), TR_OK);
    memset(out, 0, BATCH * sizeof *out);
    for (int64_t t = 0; t < SEQ; t++) {
        int32_t token[BATCH];
        int64_t position[BATCH];
        for (int64_t s = 0; s < BATCH; s++) token[s] = token_at(s, t);
        for (int64_t s = 0; s < BATCH; s++) position[s] = t;
        assert_int_equal(tr_decoder_step(decoder, token, position), TR_OK);
        assert_int_equal(tr_decoder_logits(decoder, logits), TR_OK);
        for (int64_t s = 0; s < BATCH; s++) {
            double sum = 0;
            if (label_at(s, t) < 0) continue;
            for (int v = 0; v < VOCAB; v++) sum += exp(logits[s * VOCAB + v]);
            out[s].nats += log(sum) - logits[s * VOCAB + label_at(s, t)];
            out[s].labels++;
        }
    }
    free(logits);
    tr_decoder_destroy(decoder);
    tr_store_destroy(store);
    tr_mesh_groups_destroy(groups);
    tr_model_destroy(model);
}

static tr_engine *open_engine(rig *r, tr_dtype dtype) {
    tr_schedule *schedule;
    tr_engine *engine;
    assert_int_equal(generate_order("forward", 1, 1, BATCH / MICRO_BATCH, &schedule), TR_OK);
    const tr_engine_desc desc = {.world = r->world,
                                 .device = r->device,
                                 .mesh = r->mesh,
                                 .model = config,
                                 .batch = BATCH,
                                 .micro_batch = MICRO_BATCH,
                                 .dtype = dtype,
                                 .deterministic = true,
                                 .seq = SEQ,
                                 .forward_only = true,
                                 .schedule = schedule};
    assert_int_equal(tr_engine_create(&desc, &engine), TR_OK);
    tr_schedule_destroy(schedule);
    assert_int_equal(tr_store_init(tr_engine_store(engine), SEED, NULL), TR_OK);
    return engine;
}

static void test_losses_of_sequences(void **state) {
    (void)state;
    rig r;
    tr_sequence_loss want[BATCH];
    const tr_sequence_loss *got;
    tr_step_result result;
    const int64_t from = 40;
    double nats = 0, labels = 0;
    open_rig(&r, "ref");
    decode_losses(&r, want);
    tr_engine *engine = open_engine(&r, TR_F64);
    for (int time = 0; time < 2; time++) {
        assert_int_equal(tr_engine_evaluate(engine, fetch, (void *)&from, from, &result, &got),
                         TR_OK);
        nats = labels = 0;
        for (int s = 0; s < BATCH; s++) {
            assert_true(got[s].labels == want[s].labels && got[s].labels == SEQ - s);
            assert_true(fabs(got[s].nats - want[s].nats) < 1e-12 * want[s].nats);
            nats += got[s].nats;
            labels += got[s].labels;
        }
        assert_true(result.tokens == labels);
        assert_true(fabs(result.loss - nats / labels) < 1e-15 * result.loss);
        assert_int_equal(result.unread, TR_OK);
    }
    tr_engine_destroy(engine);
    close_rig(&r);
}

/* An engine that takes no training step has no memory for one, and allocates what it planned. */
static void test_memory_without_gradients(void **state) {
    (void)state;
    rig r;
    tr_memory_plan plan;
    open_rig(&r, "cpu");
    tr_engine *engine = open_engine(&r, TR_BF16);
    tr_engine_plan(engine, &plan);
    assert_true(plan.of[TR_MEMORY_PARAMETERS] > 0);
    assert_int_equal(plan.of[TR_MEMORY_GRADIENTS], 0);
    assert_int_equal(plan.of[TR_MEMORY_OPTIMIZER], 0);
    const tr_memory_rank rank = tr_memory_measure(r.device, &plan);
    for (int k = 0; k < TR_MEMORY_CLASSES; k++) assert_int_equal(rank.taken[k], plan.of[k]);
    tr_engine_destroy(engine);
    close_rig(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_of_sequences),
        cmocka_unit_test(test_memory_without_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
