/* trireme sample RUN [-p TEXT] [-n TOKENS] [--temperature T] [--top-k K] [--seed S] [--step N]:
 * text from a checkpoint of a run, whatever layout saved it. */
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "cli/cli.h"
#include "config/config.h"
#include "train/sampler.h"
#include "train/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *run, *prompt;
    int64_t tokens, step;
    tr_sample_options options;
} request;

static tr_status parse_option(const char *option, const char *value, request *r) {
    int64_t n;
    double x;
    if (strcmp(option, "-p") == 0) {
        r->prompt = value;
    } else if (strcmp(option, "-n") == 0) {
        return cli_take_integer("sample", option, value, 0, INT64_MAX, &r->tokens);
    } else if (strcmp(option, "--temperature") == 0) {
        TR_TRY(cli_take_number("sample", option, value, 0, 1e6, &x));
        r->options.temperature = (float)x;
    } else if (strcmp(option, "--top-k") == 0) {
        TR_TRY(cli_take_integer("sample", option, value, 0, INT32_MAX, &n));
        r->options.top_k = (int)n;
    } else if (strcmp(option, "--seed") == 0) {
        TR_TRY(cli_take_integer("sample", option, value, 0, INT64_MAX, &n));
        r->options.seed = (uint64_t)n;
    } else if (strcmp(option, "--step") == 0) {
        return cli_take_integer("sample", option, value, 0, INT64_MAX, &r->step);
    } else return cli_unknown_option("sample", option);
    return TR_OK;
}

static tr_status parse(int argc, char **argv, request *r) {
    *r = (request){.prompt = "\n", .tokens = 200, .step = -1, .options = {.temperature = 0.8f}};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (option[0] != '-') {
            if (r->run) return cli_usage("sample", "more than one run: %s", option);
            r->run = option;
            continue;
        }
        if (i + 1 == argc) return cli_usage("sample", "a value is missing after %s", option);
        TR_TRY(parse_option(option, argv[++i], r));
    }
    if (!r->run || !*r->run) return cli_usage("sample", "no run directory was given");
    if (!r->prompt[0])
        return cli_usage("sample", "the prompt is empty: give at least one character with -p");
    return TR_OK;
}

typedef struct session {
    tr_world *world;
    tr_device *device;
    tr_group *alone;
    tr_model *model;
    tr_store *store;
    tr_sampler *sampler;
    tr_config config;
    tr_mesh mesh;
} session;

/* Reads the run's config from its checkpoint. */
static tr_status read_config(const char *root, int64_t step, tr_config *config) {
    tr_ckpt_state *state;
    TR_TRY(tr_calloc(1, sizeof *state, &state));
    tr_status status = tr_ckpt_read_state(root, step, state);
    if (status == TR_OK)
        status = tr_config_parse(state->config, strlen(state->config), root, NULL, 0, config);
    free(state);
    return status;
}

static tr_status load_model(session *s, const char *root, int64_t step) {
    const tr_config *c = &s->config;
    tr_model_shape shape = {.batch = 1,
                            .seq = c->model.context,
                            .dtype = tr_config_dtype(c),
                            .decode = true,
                            .tp_size = 1};
    TR_TRY(tr_model_create(&c->model, &shape, &s->model));
    TR_TRY(tr_mesh_make(1, 1, 1, 0, 1, &s->mesh));
    const int first[2] = {0, s->model->count}, owner[1] = {0};
    const tr_placement placement = {.stages = 1, .first = first, .owner = owner};
    TR_TRY(tr_store_create(s->device, s->world, &s->mesh, s->model, &placement, shape.dtype, NULL,
                           &s->store));
    tr_ckpt_tensor *tensors;
    tr_ckpt_state *state;
    int count;
    TR_TRY(tr_calloc(1, sizeof *state, &state));
    tr_status status = tr_snapshot_tensors(s->store, &s->mesh, &tensors, &count);
    if (status == TR_OK) {
        status = tr_ckpt_load(s->world, root, step, tensors, count, state, NULL);
        free(tensors);
    }
    free(state);
    TR_TRY(status);
    return tr_store_publish(s->store);
}

static tr_status write_text(session *s, const request *r) {
    size_t length = strlen(r->prompt);
    for (size_t i = 0; i < length; i++)
        TR_TRY(tr_sampler_feed(s->sampler, (unsigned char)r->prompt[i]));
    fputs(r->prompt, stdout);
    for (int64_t i = 0; i < r->tokens; i++) {
        int32_t token;
        TR_TRY(tr_sampler_draw(s->sampler, &token));
        fputc((int)token, stdout);
        if (fflush(stdout) != 0)
            return TR_FAIL(TR_ERR_IO, "the text cannot be written: %s", strerror(errno));
        TR_TRY(tr_sampler_feed(s->sampler, token));
    }
    fputc('\n', stdout);
    return TR_OK;
}

/* Opens the run's device, or the CPU when the run's GPU is not on this machine. */
static tr_status open_device(session *s) {
    const tr_device_options options = {.threads = 1};
    tr_status status = tr_device_open(s->config.device.name, &options, &s->device);
    if (status != TR_ERR_DEVICE || !tr_config_on_gpu(&s->config)) return status;
    TR_TRY(tr_device_open("cpu", &options, &s->device));
    fprintf(stderr, "trireme: this machine has no device %s: sampling on the CPU\n",
            s->config.device.name);
    return TR_OK;
}

tr_status cli_sample(cli_context *cli, int argc, char **argv) {
    (void)cli;
    request r;
    char root[TR_CONFIG_PATH + 8];
    TR_TRY(parse(argc, argv, &r));
    if (strlen(r.run) >= TR_CONFIG_PATH)
        return cli_usage("sample", "the run's path is too long: name the run by a shorter path");
    (void)snprintf(root, sizeof root, "%s/ckpt", r.run);
    session *s;
    TR_TRY(tr_calloc(1, sizeof *s, &s));
    const int self = 0;
    tr_status status;
    TR_TRY_OUT(read_config(root, r.step, &s->config));
    TR_TRY_OUT(tr_world_open_local(1, &s->world));
    TR_TRY_OUT(open_device(s));
    TR_TRY_OUT(tr_group_open(s->world, s->device, &self, 1, 0, 1, &s->alone));
    TR_TRY_OUT(load_model(s, root, r.step));
    TR_TRY_OUT(tr_sampler_create(s->device, s->alone, s->model, &r.options, &s->sampler));
    TR_TRY_OUT(write_text(s, &r));
out:
    tr_sampler_destroy(s->sampler);
    tr_store_destroy(s->store);
    tr_model_destroy(s->model);
    tr_group_close(s->alone);
    if (s->device) tr_device_close(s->device);
    if (s->world) tr_world_close(s->world);
    free(s);
    return status;
}
