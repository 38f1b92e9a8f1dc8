/* The search over layouts: how to divide a model among a given number of ranks so that every rank's
 * part fits its memory and a step is as short as possible. */
#pragma once

#include "config/config.h"
#include "device/device.h"
#include "layers/recompute.h"

/* What the search chooses; a bit of each in tr_search_request.kept. */
typedef enum tr_search_key {
    TR_SEARCH_PP,
    TR_SEARCH_TP,
    TR_SEARCH_DP,
    TR_SEARCH_SEQUENCE,
    TR_SEARCH_ZERO,
    TR_SEARCH_SCHEDULE,
    TR_SEARCH_VIRTUAL,
    TR_SEARCH_MICRO_BATCH,
    TR_SEARCH_RECOMPUTE,
    TR_SEARCH_OFFLOAD,
    TR_SEARCH_KEYS
} tr_search_key;

/* Returns the config's key: "parallel.pp". */
const char *tr_search_key_name(tr_search_key key);

typedef struct tr_layout_choice {
    int64_t pp, tp, dp, zero, virtual_stages, micro_batch;
    int64_t copies;       /* runs of data ranks, as in tr_config; 0: one */
    const char *schedule; /* a name, or the config's */
    tr_recompute recompute;
    bool sequence;
    tr_config_offloads offload;
} tr_layout_choice;

typedef struct tr_search_request {
    const tr_config *config;
    tr_device *device; /* on which operators are prepared, as in tr_run_plan_make */
    int ranks;
    unsigned kept; /* 1 << tr_search_key: stays as the config has it */
    /* Sets the FLOP/s of a rank with the micro-batch of *config. */
    tr_status (*rate)(void *context, const tr_config *config, double *flops_per_s);
    void *context;
} tr_search_request;

/* A layout that fits. */
typedef struct tr_found {
    tr_layout_choice choice;
    double seconds; /* of a step, with what travels and the optimizer (tr_traffic_of) */
    double bubble;  /* share of the step's computation, without what travels */
    size_t bytes;   /* of the rank that takes most */
} tr_found;

enum { TR_SEARCH_MOST = 10 };

typedef struct tr_search {
    int64_t layouts; /* that the model, the batch and the ranks allow */
    int64_t plans;   /* made of some of them, also with device.offload */
    size_t limit;    /* bytes of a rank */
    /* Without found: bytes of the layout that takes least, and its choice; INFINITY: there is none
     * that does not fit the ranks' memory. */
    double least;
    tr_layout_choice least_choice;
    /* Without found: the fewest bytes that layouts which fit the ranks' memory keep in a host's,
     * those that they may keep there, and the choice; 0: no layout fits the ranks' memory. */
    size_t host_bytes, host_limit;
    tr_layout_choice host_choice;
    int count;                      /* of found; 0: none fits */
    tr_found found[TR_SEARCH_MOST]; /* the best one of each pp x tp x dp, the shortest step first */
} tr_search;

/* Estimates every layout (tr_layout_estimate), and sketches their plans (tr_run_plan_sketch), the
 * shortest estimate first, except those that cannot fit, and those with a longer step than the best
 * one of their mesh or than the TR_SEARCH_MOST-th best; completes the plans of those that it keeps.
 * Bytes and seconds of a layout are those of its plan, and a mesh has no layout only if none of its
 * layouts fits: an estimate never has more bytes than a plan. When no layout fits at all, continues
 * until no other one can take less.
 *
 * Messages and sums of gradients only make a step longer than its estimate; unequal stages may
 * shorten its bubble, by half at most, as the search assumes. The first plan of an order and a
 * micro-batch on a mesh corrects the estimates of the same order with other recomputations, values
 * of zero and of sequence. These are assumptions: a mesh may have a layout that is a little better
 * (docs/layout.md says how often).
 *
 * Data ranks of several hosts that divide something (parallel.zero) are also tried in runs, each as
 * large as fits a host with all of its tensor ranks. A layout that does not fit is tried again with
 * each of tr_offload_choices. Activations are offloaded only on meshes where nothing else fits, and
 * only when fewer than TR_SEARCH_MOST meshes have a layout: those of as few neighbouring stages as
 * suffice (tr_offload_narrow). Orders: 1f1b, interleaved, interleaved-zb, zb-h1 and zbv; with
 * parallel.zero 2 and 3 bfs. Depends only on the request. Fails with TR_ERR_CONFIG when there is no
 * layout at all, and for a parallel.cut that cannot be read, although the search does not use
 * it. */
tr_status tr_search_make(const tr_search_request *request, tr_search *out);

/* Sets the chosen keys. */
void tr_layout_choice_apply(const tr_layout_choice *choice, unsigned kept, tr_config *config);
