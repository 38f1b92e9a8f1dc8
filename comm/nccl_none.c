/* A build without NCCL. No communicator is opened, because tr_world_choose_data_plane refuses
 * NCCL. */
#include "comm/nccl_impl.h"

static tr_status none(void) {
    return TR_FAIL(TR_ERR_INTERNAL, "this build of Trireme has no NCCL");
}

int tr_nccl_version(void) {
    return 0;
}

tr_status tr_nccl_sync(tr_world *world, tr_stream *stream, const tr_nccl_comm *own) {
    (void)world, (void)stream, (void)own;
    return none();
}

bool tr_nccl_look(tr_world *world, char *sentence, size_t size) {
    (void)world, (void)sentence, (void)size;
    return false;
}

tr_status tr_group_make_nccl(const tr_group_desc *desc, tr_group **out) {
    (void)desc, (void)out;
    return none();
}

tr_status tr_channel_make_nccl(const tr_channel_desc *desc, tr_channel **out) {
    (void)desc, (void)out;
    return none();
}
