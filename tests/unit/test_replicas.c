/* Tests the comparison of replicas: equal ones pass, also of other shapes in memory, and one wrong
 * bit on any rank is found, with the parameter's name and the ranks. */
#include "ckpt/ckpt.h"
#include "support/seed.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, WIDTH = 300, ROWS = 8, BIG = 3 << 20 };

/* What a rank holds: a norm that all hold; a matrix [rows, width] of which ranks 0 and 2 hold the
 * left half, and 1 and 3 the right one, where ranks 2 and 3 have more space between its rows; a
 * large vector; and moments, which differ. */
typedef struct holding {
    float norm[WIDTH], matrix[ROWS * 2 * WIDTH], moment[WIDTH], *large;
    tr_box box[4];
    tr_ckpt_tensor tensor[4];
} holding;

static float value_of(int64_t element) {
    return (float)element * 0.37f - 5.0f;
}

static void hold(holding *h, int rank) {
    const int64_t half = WIDTH / 2, pitch = rank < 2 ? half : 2 * WIDTH;
    for (int i = 0; i < WIDTH; i++) h->norm[i] = value_of(i);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t c = 0; c < half; c++)
            h->matrix[r * pitch + c] = value_of(r * WIDTH + (rank % 2) * half + c);
    for (int64_t i = 0; i < BIG; i++) h->large[i] = value_of(i % 1000);
    for (int i = 0; i < WIDTH; i++) h->moment[i] = (float)rank;
    h->box[0] = (tr_box){.extent = {WIDTH}, .local_stride = {1}};
    h->box[1] = (tr_box){
        .offset = {0, rank % 2 * half}, .extent = {ROWS, half}, .local_stride = {pitch, 1}};
    h->box[2] = (tr_box){.extent = {BIG}, .local_stride = {1}};
    h->box[3] = h->box[0];
    static const char *const name[] = {"weights/norm", "weights/matrix", "weights/large",
                                       "adam_m/norm"};
    float *const local[] = {h->norm, h->matrix, h->large, h->moment};
    for (int t = 0; t < 4; t++) {
        h->tensor[t] = (tr_ckpt_tensor){.rank = t == 1 ? 2 : 1,
                                        .shape = {t == 1   ? ROWS
                                                  : t == 2 ? BIG
                                                           : WIDTH,
                                                  WIDTH},
                                        .boxes = 1,
                                        .box = &h->box[t],
                                        .local = local[t],
                                        .dtype = TR_F32};
        (void)snprintf(h->tensor[t].name, sizeof h->tensor[t].name, "%s", name[t]);
    }
}

typedef struct job {
    tr_world *world;
    holding *holding;
    tr_status status;
    char message[256];
} job;

static void *compare(void *argument) {
    job *j = argument;
    j->status = tr_ckpt_compare_replicas(j->world, j->holding->tensor, 4);
    if (j->status != TR_OK) (void)snprintf(j->message, sizeof j->message, "%s", tr_error_message());
    tr_world_close(j->world);
    return NULL;
}

/* Compares on all ranks; `says` is the sentence that every rank must return, NULL: none. */
static void expect(holding *holdings, const char *says) {
    tr_world *world[RANKS];
    pthread_t thread[RANKS];
    static job jobs[RANKS];
    assert_int_equal(tr_world_open_local(RANKS, world), TR_OK);
    for (int r = 0; r < RANKS; r++) {
        jobs[r] = (job){.world = world[r], .holding = &holdings[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, compare, &jobs[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) (void)pthread_join(thread[r], NULL);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(jobs[r].status, says ? TR_ERR_DATA : TR_OK);
        assert_string_equal(jobs[r].message, says ? says : "");
    }
}

static void flip(float *value) {
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    bits ^= 1;
    memcpy(value, &bits, sizeof bits);
}

static void one_wrong_bit_is_found(void **state) {
    (void)state;
    const uint64_t seed = tr_test_seed(7);
    const int64_t any = (int64_t)(seed % BIG);
    holding *h = calloc(RANKS, sizeof *h);
    assert_non_null(h);
    for (int r = 0; r < RANKS; r++) {
        h[r].large = malloc(BIG * sizeof(float));
        assert_non_null(h[r].large);
        hold(&h[r], r);
    }
    expect(h, NULL);
    const struct {
        float *value;
        const char *says;
    } fault[] = {
        {&h[1].norm[WIDTH - 1], "the copies of parameter norm on rank 0 and rank 1 differ"},
        {&h[0].norm[0], "the copies of parameter norm on rank 0 and rank 1 differ"},
        {&h[2].matrix[(ROWS - 1) * 2 * WIDTH + 3],
         "the copies of parameter matrix on rank 0 and rank 2 differ"},
        {&h[1].matrix[5], "the copies of parameter matrix on rank 1 and rank 3 differ"},
        {&h[3].large[any], "the copies of parameter large on rank 0 and rank 3 differ"},
    };
    for (size_t f = 0; f < sizeof fault / sizeof *fault; f++) {
        flip(fault[f].value);
        expect(h, fault[f].says);
        flip(fault[f].value);
    }
    flip(&h[2].matrix[WIDTH]); /* between two rows of the box */
    expect(h, NULL);
    for (int r = 0; r < RANKS; r++) free(h[r].large);
    free(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_wrong_bit_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
