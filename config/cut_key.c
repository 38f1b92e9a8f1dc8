/* The key parallel.cut. */
#include "config/config_impl.h"
#include "pipeline/orders/generate.h"

#include <inttypes.h>
#include <string.h>

const char *tr_config_cut(const tr_config *c) {
    return strcmp(c->parallel.cut, TR_LAYER_CUT_AUTO) == 0 ? NULL : c->parallel.cut;
}

tr_status tr_config_cut_stages(const tr_config *c, int *stages) {
    *stages = 0;
    if (!tr_config_cut(c)) return TR_OK;
    const tr_status status = tr_layer_cut_count(c->parallel.cut, c->model.layers, stages);
    if (status != TR_ERR_CONFIG) return status;
    char why[512];
    (void)snprintf(why, sizeof why, "%s", tr_error_message());
    REFUSE("parallel.cut", "%s", why);
}

tr_status tr_config_check_cut(const tr_config *c) {
    static const char key[] = "parallel.cut";
    const int64_t pp = c->parallel.pp, virtual = c->parallel.virtual_stages;
    const int own = tr_schedule_chunks(c->parallel.schedule);
    int stages;
    TR_TRY(tr_config_cut_stages(c, &stages));
    if (stages == 0) return TR_OK;
    if (stages % pp != 0)
        REFUSE(key,
               "parallel.cut has %d stage%s, which is not a multiple of parallel.pp %" PRId64
               ": give every pipeline rank the same number, or set parallel.cut=auto",
               stages, stages == 1 ? "" : "s", pp);
    if (own > 0 && stages != pp * own)
        REFUSE(key,
               "parallel.cut has %d stage%s, but parallel.schedule %s has %" PRId64
               " with parallel.pp %" PRId64 ": give it as many, or set parallel.cut=auto",
               stages, stages == 1 ? "" : "s", c->parallel.schedule, pp * own, pp);
    if (virtual > 0 && stages != pp * virtual)
        REFUSE(key,
               "parallel.cut has %d stage%s, but parallel.pp %" PRId64 " with parallel.virtual "
               "%" PRId64 " makes %" PRId64 ": leave parallel.virtual out, or give parallel.cut as "
               "many",
               stages, stages == 1 ? "" : "s", pp, virtual, pp * virtual);
    return TR_OK;
}
