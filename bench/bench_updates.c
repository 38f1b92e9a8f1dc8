/* Times the steps of a parameter's elements (train/updates.h) by every optimizer, in every storage
 * of moments, masters and gradients, on one matrix of 9.4 M elements, and prints the bytes that
 * they must move, the median time, and their rate over that of a copy, which is measured before
 * each row. LAMB and Adafactor take the norms and sums between their directions and steps, too;
 * muon's products are left out.
 *
 * Usage: bench_updates [threads [part of a row's name]] */
#include "bench/measure.h"
#include "device/device.h"
#include "train/updates.h"

#include <stdio.h>
#include <string.h>

enum { KEYS = 8 };

/* A store of one matrix, and its steps. */
typedef struct matrix {
    int64_t side;
    tr_store store;
    tr_store_slot slot;
    tr_param param;
    tr_global global;
    tr_box box;
    tr_run run;
    tr_updates *updates;
    tr_directions *directions; /* NULL: between directions and steps nothing is measured */
    tr_step_state *state;
    void *scratch;
    double *norms; /* two */
} matrix;

static void check(tr_status status) {
    if (status == TR_OK) return;
    fprintf(stderr, "bench_updates: %s (%s)\n", tr_error_message(), tr_error_trace());
    exit((int)status);
}

/* Returns `size` bytes of device memory, filled with `pattern` of `bytes` bytes again and again. */
static void *memory_with(tr_device *device, size_t size, const void *pattern, size_t bytes) {
    void *memory, *staging;
    check(tr_device_alloc(device, TR_MEMORY_DATA, size, &memory));
    check(tr_device_staging_alloc(device, BENCH_PATTERN, &staging));
    for (size_t at = 0; at + bytes <= BENCH_PATTERN; at += bytes)
        memcpy((char *)staging + at, pattern, bytes);
    check(bench_fill(device, memory, (int64_t)size, staging));
    tr_device_staging_free(device, staging);
    return memory;
}

/* Returns memory for so many elements of this type, filled with 1s, which every type has as bits
 * that are not subnormal. */
static char *memory_of(tr_device *device, tr_dtype dtype, int64_t count) {
    const uint16_t one = 0x3f80;
    const size_t size =
        dtype == TR_U8 ? tr_code8_bytes(count) : (size_t)count * tr_dtype_size(dtype);
    return memory_with(device, size, &one, sizeof one);
}

static tr_step_state *state_of(tr_device *device) {
    const tr_step_state state = {.seed = 3,
                                 .step = 1,
                                 .lr = 1e-3,
                                 .gradient_factor = 1,
                                 .bias_correction1 = 0.1,
                                 .bias_correction2 = 0.05,
                                 .square_weight = 0.1};
    return memory_with(device, sizeof state, &state, sizeof state);
}

static void make_store(matrix *m, tr_device *device, tr_dtype dtype, tr_optim_memory optimizer) {
    const int64_t side = m->side, count = side * side;
    const tr_dtype acc = tr_dtype_acc(dtype), grad = tr_optim_grad_dtype(optimizer, dtype);
    m->box = (tr_box){.extent = {side, side}, .local_stride = {side, 1}};
    m->global =
        (tr_global){.name = "matrix", .rank = 2, .shape = {side, side}, .boxes = 1, .box = &m->box};
    m->param = (tr_param){.tensors = 1,
                          .tensor = &m->global,
                          .local = {side, side},
                          .count = count,
                          .decay = true,
                          .is_linear = true,
                          .lr_scale = 1,
                          .dtype = dtype};
    m->slot = (tr_store_slot){
        .param = &m->param,
        .layout = {.replicas = {.count = {1, 1, 1}}, .parts = 1, .counted_in_tp = true},
        .portion = {.extent = count},
        .grad = memory_of(device, grad, count),
        .value = memory_of(device, dtype, count),
        .optimizer = tr_optim_kind_for(optimizer.kind, &m->param),
        .shares = -1};
    m->slot.direction = grad == acc ? m->slot.grad : memory_of(device, acc, count);
    m->slot.master = dtype == acc          ? m->slot.value
                     : optimizer.no_master ? NULL
                                           : memory_of(device, acc, count);
    for (int k = 0; k < tr_optim_states(m->slot.optimizer); k++)
        m->slot.state[k] = memory_of(device, tr_optim_state_dtype(optimizer, dtype), count);
    m->run = (tr_run){.grad = m->slot.grad,
                      .direction = m->slot.direction,
                      .master = m->slot.master,
                      .state = {m->slot.state[0], m->slot.state[1]},
                      .value = m->slot.value,
                      .count = count,
                      .optimizer = m->slot.optimizer,
                      .decay = true,
                      .lr_scale = 1};
    m->store = (tr_store){.device = device,
                          .dtype = dtype,
                          .acc = acc,
                          .optimizer = optimizer.kind,
                          .grad_dtype = grad,
                          .state_dtype = tr_optim_state_dtype(optimizer, dtype),
                          .no_master = optimizer.no_master,
                          .slot = &m->slot,
                          .slots = 1,
                          .laps = 1,
                          .run = &m->run,
                          .runs = 1};
}

static void free_store(matrix *m) {
    tr_device *device = m->store.device;
    tr_updates_destroy(m->updates);
    tr_directions_destroy(m->directions);
    tr_device_free(device, m->scratch);
    tr_device_free(device, m->state);
    tr_device_free(device, m->norms);
    for (int k = 0; k < TR_OPTIM_STATES; k++) tr_device_free(device, m->slot.state[k]);
    if (m->slot.master != m->slot.value) tr_device_free(device, m->slot.master);
    if (m->slot.direction != m->slot.grad) tr_device_free(device, m->slot.direction);
    tr_device_free(device, m->slot.value);
    tr_device_free(device, m->slot.grad);
}

/* Returns the bytes that a step must move: its gradient is read, and its states and its master (or
 * the value) are read and written; a BF16 value with a master is written; directions are written
 * and read, as the master is read for each of both passes. Adafactor needs the sums of all squares
 * before the first direction, and the norm of all directions before the first step, so it reads the
 * gradient three times, from which it can make directions again instead of writing them; its states
 * are of rows and columns. */
static double bytes_of(const matrix *m) {
    const tr_store *s = &m->store;
    const bool directs = tr_run_has_directions(s, 0);
    const double master = s->no_master ? 2 : 4;
    const bool factors = m->run.optimizer == TR_OPTIM_ADAFACTOR;
    double each = (double)tr_dtype_size(s->grad_dtype) + 2 * master;
    if (tr_optim_row_of(m->run.optimizer)->rule != TR_UPDATE_SGD)
        for (int k = 0; k < tr_optim_states(m->run.optimizer); k++)
            each += 2 * (double)tr_dtype_size(s->state_dtype);
    if (s->dtype == TR_BF16 && !s->no_master) each += 2;
    if (directs) each += master + 2 * (factors ? (double)tr_dtype_size(s->grad_dtype) : 4);
    return each * (double)(m->side * m->side);
}

static tr_status step(void *context) {
    matrix *m = context;
    tr_stream *stream = tr_device_compute(m->store.device);
    const tr_run_part part = tr_run_part_of(&m->store, 0, 0, m->run.count);
    if (m->directions || !part.direction)
        return tr_updates_run(m->updates, m->directions, stream, m->state, m->scratch);
    TR_TRY(tr_updates_step(m->updates, &part, stream, m->state, m->scratch));
    return tr_updates_descend(m->updates, &part, m->norms, stream, m->state, m->scratch);
}

typedef struct copying {
    tr_op *op;
    tr_op_args args;
} copying;

static tr_status copy(void *context) {
    copying *c = context;
    return tr_op_run(c->op, tr_device_compute(c->op->context.device), &c->args);
}

/* Returns the bytes read and written per second by a copy of `count` elements. */
static double copy_rate(tr_device *device, int64_t count) {
    const tr_op_desc desc = {.kind = TR_OP_CAST, .rows = {.rows = 1, .width = count, .to = TR_F32}};
    copying c = {.args = {.t = {[TR_CAST_X] = tr_tensor_matrix(memory_of(device, TR_F32, count),
                                                               TR_F32, 1, count),
                                [TR_CAST_Y] = tr_tensor_matrix(memory_of(device, TR_F32, count),
                                                               TR_F32, 1, count)}}};
    double seconds = 0;
    check(tr_op_prepare(&(tr_op_context){.device = device}, &desc, &c.op));
    check(bench_time(device, copy, &c, 0.1, &seconds));
    tr_op_release(c.op);
    tr_device_free(device, c.args.t[TR_CAST_X].data);
    tr_device_free(device, c.args.t[TR_CAST_Y].data);
    return (double)count * 8 / seconds;
}

static void time_row(tr_device *device, int64_t side, const char *name, const tr_config *config) {
    const tr_optim_config optimizer = tr_optim_of(config);
    const double roof = copy_rate(device, side * side), one = 1;
    matrix m = {.side = side,
                .state = state_of(device),
                .norms = memory_with(device, 2 * sizeof one, &one, sizeof one)};
    tr_mesh mesh;
    size_t scratch = 1;
    double seconds = 0;
    make_store(&m, device, tr_config_dtype(config), tr_optim_memory_of(&optimizer));
    check(tr_mesh_make(1, 1, 1, 0, 1, &mesh));
    check(tr_updates_create(&m.store, &optimizer, &scratch, &m.updates));
    if (m.run.optimizer != TR_OPTIM_MUON)
        check(tr_directions_create(&m.store, &optimizer, &mesh, NULL, &scratch, &m.directions));
    check(tr_device_alloc(device, TR_MEMORY_DATA, scratch, &m.scratch));
    check(bench_time(device, step, &m, 0.3, &seconds));
    printf("%-44s %7.1f MB %8.2f ms %6.1f GB/s  %.2f of %.1f\n", name, bytes_of(&m) * 1e-6,
           seconds * 1e3, bytes_of(&m) / seconds * 1e-9, bytes_of(&m) / seconds / roof,
           roof * 1e-9);
    fflush(stdout);
    free_store(&m);
}

int main(int argc, char **argv) {
    static const char *const optimizers[][3] = {{"optim.name=adamw"},
                                                {"optim.name=sgd", "optim.momentum=0"},
                                                {"optim.name=sgd", "optim.momentum=0.9"},
                                                {"optim.name=lion"},
                                                {"optim.name=lamb"},
                                                {"optim.name=adafactor"},
                                                {"optim.name=muon"}};
    static const char *const storages[][KEYS] = {
        {"train.precision=fp32"},
        {"train.precision=bf16"},
        {"train.precision=bf16", "optim.moments=bf16"},
        {"train.precision=bf16", "optim.moments=int8"},
        {"train.precision=bf16", "optim.moments=bf16", "optim.master=none", "optim.gradients=bf16"},
        {"train.precision=bf16", "optim.moments=int8", "optim.master=none", "optim.gradients=bf16"},
        {"train.precision=bf16", "optim.master=none", "optim.gradients=bf16"}};
    tr_device *device;
    const tr_device_options options = {.threads = argc > 1 ? atoi(argv[1]) : 1};
    const char *device_name = argc > 3 ? argv[3] : "cpu";
    const bool gpu = strncmp(device_name, "cuda", 4) == 0;
    check(tr_device_open(device_name, &options, &device));
    for (size_t o = 0; o < sizeof optimizers / sizeof *optimizers; o++)
        for (size_t s = 0; s < sizeof storages / sizeof *storages; s++) {
            const char *keys[2 * KEYS];
            char name[160] = "";
            tr_config config;
            int count = 0;
            for (int i = 0; optimizers[o][i]; i++) keys[count++] = optimizers[o][i];
            for (int i = 0; i < KEYS && storages[s][i]; i++) keys[count++] = storages[s][i];
            for (int i = 0; i < count; i++) { /* the values, without the sections' names */
                const size_t used = strlen(name);
                (void)snprintf(name + used, sizeof name - used, "%s%s", i ? " " : "",
                               strchr(keys[i], '.') + 1);
            }
            if (argc > 2 && !strstr(name, argv[2])) continue;
            check(tr_config_parse("", 0, "keys", keys, count, &config));
            if (tr_config_check(&config, 0) == TR_OK)
                time_row(device, gpu ? 8192 : 3072, name, &config);
        }
    tr_device_close(device);
    return 0;
}
