/* Loads a checkpoint under one layout and saves it again. With ckpt_compare this shows that a
 * layout reads what another wrote, bit for bit, without a training step in between.
 *
 *   [mpirun -n N] ckpt_relayout CONFIG FROM TO [key=value ...]
 *
 * FROM and TO are folders of checkpoints (RUN/ckpt); the newest step of FROM is copied. */
#include "ckpt/ckpt.h"
#include "config/config.h"
#include "pipeline/orders/schedule.h"
#include "tests/unit/support/generate_order.h"
#include "train/engine.h"
#include "train/store_tensors.h"

#include <stdio.h>
#include <stdlib.h>

static tr_status open_engine(const tr_config *c, tr_world *world, tr_device *device,
                             const tr_schedule *schedule, tr_engine_desc *desc, tr_engine **out) {
    *desc = (tr_engine_desc){.world = world,
                             .device = device,
                             .model = c->model,
                             .batch = c->train.batch,
                             .micro_batch = c->train.micro_batch,
                             .dtype = tr_config_dtype(c),
                             .schedule = schedule};
    TR_TRY(tr_mesh_make((int)c->parallel.pp, (int)c->parallel.dp, (int)c->parallel.tp,
                        tr_world_rank(world), tr_world_size(world), &desc->mesh));
    return tr_engine_create(desc, out);
}

static tr_status copy(const tr_config *config, tr_world *world, const char *from, const char *to) {
    static tr_ckpt_state state; /* too large for a stack */
    tr_device_options options = {.threads = 1};
    tr_device *device;
    tr_engine_desc desc;
    tr_schedule *schedule = NULL;
    tr_engine *engine = NULL;
    tr_ckpt_tensor *tensors = NULL;
    int count;
    TR_TRY(tr_device_open(config->device.name, &options, &device));
    tr_status status;
    int pp = (int)config->parallel.pp;
    int64_t sequences = config->train.batch / config->parallel.dp;
    TR_TRY_OUT(
        generate_order("1f1b", pp, pp, (int)(sequences / config->train.micro_batch), &schedule));
    TR_TRY_OUT(open_engine(config, world, device, schedule, &desc, &engine));
    TR_TRY_OUT(tr_store_list_tensors(tr_engine_store(engine), &desc.mesh, &tensors, &count));
    TR_TRY_OUT(tr_ckpt_load(world, from, -1, tensors, count, &state, NULL));
    TR_TRY_OUT(tr_ckpt_save(world, to, &state, tensors, count));
out:
    free(tensors);
    tr_engine_destroy(engine);
    tr_schedule_destroy(schedule);
    tr_device_close(device);
    return status;
}

int main(int argc, char **argv) {
    static tr_config config;
    tr_world *world = NULL;
    if (argc < 4) {
        fprintf(stderr, "usage: ckpt_relayout CONFIG FROM TO [key=value ...]\n");
        return TR_ERR_USAGE;
    }
    tr_status status = tr_config_load(argv[1], (const char *const *)argv + 4, argc - 4, &config);
    if (status == TR_OK) status = tr_world_open_mpi(&world);
    if (status == TR_OK) status = tr_config_check(&config, tr_world_size(world));
    if (status == TR_OK) status = copy(&config, world, argv[2], argv[3]);
    if (status != TR_OK) {
        fprintf(stderr, "ckpt_relayout: %s\n", tr_error_message());
        if (world) tr_world_abort(world, (int)status);
    }
    tr_world_close(world);
    return (int)status;
}
