#include "partition/offload_choice.h"

#include "partition/run_plan.h"

const tr_config_offloads tr_offload_choices[TR_OFFLOAD_CHOICES] = {
    {.optimizer = true},
    {.stages = TR_CONFIG_ALL_STAGES},
    {.optimizer = true, .stages = TR_CONFIG_ALL_STAGES}};

bool tr_offload_adds(const tr_config *c, const tr_config_offloads *choice) {
    tr_config_offloads has;
    if (tr_config_on_host(c) || !tr_config_offload(c, &has)) return false;
    const bool keeps = (!has.optimizer || choice->optimizer) && has.stages <= choice->stages;
    return keeps && (choice->optimizer != has.optimizer || choice->stages != has.stages);
}

/* Offloads the activations of the stages first to last. */
static void set_range(tr_config *c, int first, int last) {
    tr_config_offloads offload;
    (void)tr_config_offload(c, &offload); /* tr_config_check has read it */
    offload.first = first;
    offload.stages = last - first + 1;
    (void)tr_config_offload_text(&offload, c->device.offload, sizeof c->device.offload);
}

/* Sets *fits to whether they suffice. */
static tr_status try_range(tr_config *c, tr_device *device, int first, int last, bool *fits) {
    int stages;
    set_range(c, first, last);
    return tr_run_plan_try(c, device, fits, &stages);
}

tr_status tr_offload_narrow(tr_config *c, tr_device *device, int stages) {
    int first = 0, last = stages - 1;
    bool fits;
    for (int low = 0; low < last;) {
        const int middle = (low + last) / 2;
        TR_TRY(try_range(c, device, 0, middle, &fits));
        if (fits) last = middle;
        else low = middle + 1;
    }
    for (int high = last; first < high;) {
        const int middle = (first + high + 1) / 2;
        TR_TRY(try_range(c, device, middle, last, &fits));
        if (fits) first = middle;
        else high = middle - 1;
    }
    set_range(c, first, last);
    return TR_OK;
}
