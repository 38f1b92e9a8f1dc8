#include "partition/whole.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tr_status open(const tr_config *c, tr_whole *out) {
    const tr_mesh mesh = tr_request_mesh(c);
    TR_TRY(tr_request_schedule(c, &out->orders.schedule, NULL));
    const tr_layout_desc desc = tr_request_layout(c, &out->orders, &mesh);
    return tr_layout_create(&desc, &out->layout);
}

tr_status tr_whole_open(const tr_config *c, tr_whole *out) {
    tr_config *whole = NULL;
    tr_config_offloads offload;
    *out = (tr_whole){0};
    TR_TRY(tr_calloc(1, sizeof *whole, &whole));
    *whole = *c;
    whole->parallel.pp = whole->parallel.virtual_stages = 1;
    whole->train.batch = c->train.micro_batch * c->parallel.dp;
    (void)snprintf(whole->parallel.schedule, sizeof whole->parallel.schedule, "1f1b");
    (void)strcpy(whole->parallel.cut, TR_LAYER_CUT_AUTO);
    if (tr_config_offload(c, &offload) && offload.stages > 0)
        (void)snprintf(whole->device.offload, sizeof whole->device.offload, "%s",
                       offload.optimizer ? "optimizer" : "none");
    const tr_status status = open(whole, out);
    free(whole);
    if (status != TR_OK) tr_whole_close(out);
    return status;
}

void tr_whole_close(tr_whole *whole) {
    tr_layout_destroy(whole->layout);
    tr_orders_close(&whole->orders);
    *whole = (tr_whole){0};
}
