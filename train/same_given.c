#include "train/same_given.h"

#include "pipeline/orders/csv.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What a rank was given. */
typedef struct given {
    tr_config config;
    int trace;
    bool debug_nan;
} given;

static tr_status check(const given *mine, int rank, const given *first) {
    TR_TRY(tr_config_check_same(&mine->config, rank, &first->config));
    if (mine->trace != first->trace || mine->debug_nan != first->debug_nan)
        return TR_FAIL(TR_ERR_CONFIG,
                       "rank %d has other options than rank 0: give every rank the same --trace "
                       "and --debug-nan",
                       rank);
    return TR_OK;
}

tr_status tr_same_given(tr_world *world, const tr_config *config, const tr_train_options *options) {
    given *mine = NULL;
    tr_status status = tr_world_calloc(world, 2, sizeof *mine, &mine);
    if (status == TR_OK) {
        mine[0] =
            (given){.config = *config, .trace = options->trace, .debug_nan = options->debug_nan};
        mine[1] = mine[0];
        status = tr_world_broadcast(world, 0, &mine[1], sizeof *mine);
    }
    if (status == TR_OK)
        status = tr_world_agree(world, check(&mine[0], tr_world_rank(world), &mine[1]));
    free(mine);
    return status;
}

/* Makes *hash that of an order, too. */
static tr_status add_order(const tr_schedule *schedule, uint64_t *hash) {
    char *text;
    TR_TRY(tr_schedule_print(schedule, false, &text));
    *hash = XXH3_64bits_withSeed(text, strlen(text), *hash);
    free(text);
    return TR_OK;
}

static tr_status hash_orders(const tr_config *config, const tr_orders *orders, uint64_t *hash) {
    *hash = XXH3_64bits(config->model.recompute, strlen(config->model.recompute));
    TR_TRY(add_order(orders->schedule, hash));
    for (int k = 0; k < orders->smaller_count; k++)
        TR_TRY(add_order(orders->smaller[k].schedule, hash));
    return TR_OK;
}

tr_status tr_same_orders(tr_world *world, const tr_config *config, const tr_orders *orders) {
    uint64_t mine = 0;
    TR_TRY(tr_world_agree(world, hash_orders(config, orders, &mine)));
    uint64_t first = mine;
    TR_TRY(tr_world_broadcast(world, 0, &first, sizeof first));
    if (mine == first) return tr_world_agree(world, TR_OK);
    return tr_world_agree(
        world, TR_FAIL(TR_ERR_CONFIG,
                       "rank %d has another order of micro-batches, or another choice of "
                       "train.recompute, than rank 0: give every rank the same config, device and "
                       "threads, and the same file as parallel.schedule",
                       tr_world_rank(world)));
}
