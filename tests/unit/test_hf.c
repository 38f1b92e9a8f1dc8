/* Models of other programs: every case of tests/golden/hf (make_hf.py) is imported on one and on
 * three ranks, gives transformers' logits, and is exported byte for byte; the same for llm.c's
 * files. An import or an export that fails leaves nothing behind. */
#include "ckpt/weights.h"
#include "config/config.h"
#include "config/hf.h"
#include "support/scratch.h"
#include "train/decoder.h"
#include "train/store_tensors.h"
#include "train/transfer.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEQ = 12, VOCAB = 37, MOST_RANKS = 3 };

/* --- on several ranks ------------------------------------------------------------------------- */

typedef struct job {
    tr_world *world;
    tr_board *board;
    const char *from, *to;
    const tr_export_options *options; /* NULL: an import */
    FILE *out;
    tr_status status;
    tr_error error;
} job;

static void *run_job(void *context) {
    job *j = context;
    j->status = j->options ? tr_export(j->world, j->board, j->options, j->out)
                           : tr_import(j->world, j->board, j->from, j->to, j->out);
    tr_error_save(&j->error);
    tr_world_close(j->world);
    return NULL;
}

/* Where the ranks look for a request to stop. */
static tr_board *stop_board;

static tr_status on_ranks(int ranks, const char *from, const char *to,
                          const tr_export_options *options) {
    tr_world *world[MOST_RANKS];
    pthread_t thread[MOST_RANKS];
    job j[MOST_RANKS];
    FILE *out = fopen("/dev/null", "w");
    must(tr_world_open_local(ranks, world));
    for (int r = 0; r < ranks; r++) {
        j[r] = (job){.world = world[r],
                     .board = stop_board,
                     .from = from,
                     .to = to,
                     .options = options,
                     .out = out};
        assert_int_equal(pthread_create(&thread[r], NULL, run_job, &j[r]), 0);
    }
    for (int r = 0; r < ranks; r++) (void)pthread_join(thread[r], NULL);
    (void)fclose(out);
    for (int r = 1; r < ranks; r++) assert_int_equal(j[r].status, j[0].status);
    tr_error_restore(&j[0].error);
    return j[0].status;
}

static tr_status import(int ranks, const char *from, const char *to) {
    return on_ranks(ranks, from, to, NULL);
}

static tr_status export(int ranks, const char *run, const char *to, const char *dtype,
                        int64_t shard_bytes) {
    const tr_export_options options = {
        .run = run, .folder = to, .dtype = dtype, .step = -1, .shard_bytes = shard_bytes};
    return on_ranks(ranks, run, to, &options);
}

/* --- logits ----------------------------------------------------------------------------------- */

/* Loads the newest checkpoint of a run. */
static void load_run(const char *run, tr_world *world, tr_store *store, const tr_mesh *mesh) {
    tr_ckpt_tensor *tensors;
    tr_ckpt_state *state = calloc(1, sizeof *state);
    int count;
    char root[256];
    (void)snprintf(root, sizeof root, "%s/ckpt", run);
    must(tr_store_list_tensors(store, mesh, &tensors, &count));
    must(tr_ckpt_load(world, root, -1, tensors, count, state, NULL));
    free(tensors);
    free(state);
}

/* Fills logits[SEQ][VOCAB] with those of a run, or of the weights in a folder. */
static void compute_logits(const tr_model_config *config, const char *run, const char *folder,
                           tr_dtype dtype, const int32_t *tokens, double *logits) {
    const tr_model_shape shape = {
        .batch = 1, .seq = config->context, .dtype = dtype, .decode = true, .tp_size = 1};
    const tr_device_options options = {.threads = 1};
    tr_world *world;
    tr_device *device;
    tr_mesh_groups *groups;
    tr_model *model;
    tr_store *store;
    tr_decoder *decoder;
    tr_mesh mesh;
    must(tr_world_open_local(1, &world));
    must(tr_device_open("cpu", &options, &device));
    must(tr_model_create(config, &shape, &model));
    must(tr_mesh_make(1, 1, 1, 0, 1, &mesh));
    must(tr_mesh_groups_create(world, device, &mesh, &groups));
    const int first[2] = {0, model->count}, owner[1] = {0};
    const tr_placement placement = {.stages = 1, .first = first, .owner = owner};
    must(tr_store_create(&(tr_store_desc){.device = device,
                                          .world = world,
                                          .mesh = &mesh,
                                          .model = model,
                                          .placement = &placement,
                                          .dtype = dtype},
                         &store));
    if (run) {
        load_run(run, world, store, &mesh);
    } else {
        tr_weights weights;
        tr_ckpt_tensor *tensors;
        int count;
        must(tr_weights_open(folder, &weights));
        must(tr_weights_check(&weights, model, folder));
        must(tr_store_list_tensors(store, &mesh, &tensors, &count));
        must(tr_weights_load(world, &weights, tensors, count));
        tr_weights_close(&weights);
        free(tensors);
    }
    must(tr_store_publish(store));
    const tr_decoder_desc desc = {.world = world,
                                  .device = device,
                                  .mesh = mesh,
                                  .groups = groups,
                                  .model = model,
                                  .rows = 1,
                                  .placement = &placement};
    must(tr_decoder_create(&desc, &decoder));
    for (int i = 0; i < SEQ; i++) {
        must(tr_decoder_step(decoder, &tokens[i], (int64_t[]){i}));
        must(tr_decoder_logits(decoder, logits + (size_t)i * VOCAB));
    }
    tr_decoder_destroy(decoder);
    tr_store_destroy(store);
    tr_model_destroy(model);
    tr_mesh_groups_destroy(groups);
    tr_device_close(device);
    tr_world_close(world);
}

/* Fails unless the logits are transformers', to 1e-5 of the largest one. */
static void compare_logits(const char *name, const double *ours, const float *theirs,
                           double tolerance) {
    double most = 0, scale = 0;
    for (int i = 0; i < SEQ * VOCAB; i++) {
        const double away = fabs(ours[i] - (double)theirs[i]), size = fabs((double)theirs[i]);
        if (!(away <= most)) most = isnan(away) ? (double)INFINITY : away;
        if (size > scale) scale = size;
    }
    if (!(most <= tolerance * scale)) fail_msg("%s: logits differ by %g of %g", name, most, scale);
}

static void check_logits(const char *name, const char *run, const char *folder, double tolerance) {
    double logits[SEQ * VOCAB];
    size_t bytes;
    char file[128];
    tr_ckpt_state *state = calloc(1, sizeof *state);
    tr_config *config = calloc(1, sizeof *config);
    (void)snprintf(file, sizeof file, "%s/tokens.i32", name);
    char *tokens = read_file(golden(file), &bytes);
    assert_int_equal(bytes, SEQ * sizeof(int32_t));
    (void)snprintf(file, sizeof file, "%s/logits.f32", name);
    char *theirs = read_file(golden(file), &bytes);
    assert_int_equal(bytes, SEQ * VOCAB * sizeof(float));
    if (run) {
        char root[256];
        (void)snprintf(root, sizeof root, "%s/ckpt", run);
        must(tr_ckpt_read_state(root, -1, state));
        must(tr_config_parse(state->config, strlen(state->config), root, NULL, 0, config));
    } else {
        tr_hf hf;
        must(tr_hf_read(folder, &hf, NULL));
        config->model = hf.model;
    }
    compute_logits(&config->model, run, folder, TR_F32, (const int32_t *)(void *)tokens, logits);
    compare_logits(name, logits, (const float *)(void *)theirs, tolerance);
    free(tokens);
    free(theirs);
    free(state);
    free(config);
}

/* --- the goldens ------------------------------------------------------------------------------ */

/* Fails unless every tensor of `want` that a model reads is in `have`, with the same bytes. */
static void same_tensors(tr_weights *have, tr_weights *want) {
    int64_t read = 0;
    for (int64_t i = 0; i < have->count; i++) {
        const tr_weight *a = &have->tensor[i], *b = tr_weights_find(want, a->name);
        if (!b) fail_msg("%s is new", a->name);
        assert_int_equal(a->bytes, b->bytes);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->rank, b->rank);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
        char *x = malloc((size_t)a->bytes + 1), *y = malloc((size_t)a->bytes + 1);
        must(tr_weights_read_bytes(have, a->file, x, (size_t)a->bytes, a->offset));
        must(tr_weights_read_bytes(want, b->file, y, (size_t)a->bytes, b->offset));
        if (memcmp(x, y, (size_t)a->bytes)) fail_msg("%s has other bytes", a->name);
        free(x);
        free(y);
        read++;
    }
    for (int64_t i = 0; i < want->count; i++) {
        const char *name = want->tensor[i].name;
        const bool mask = strstr(name, ".attn.bias") || strstr(name, "masked_bias");
        read -= !mask;
    }
    assert_int_equal(read, 0); /* none is missing */
}

static void same_folders(const char *have, const char *want) {
    tr_weights a, b;
    must(tr_weights_open(have, &a));
    must(tr_weights_open(want, &b));
    same_tensors(&a, &b);
    tr_weights_close(&a);
    tr_weights_close(&b);
}

static const char *const cases[] = {"gpt2-hub", "llama-shards",   "qwen2-v4", "qwen3",
                                    "yarn-v4",  "mistral-window", "mixed"};
enum { CASES = sizeof cases / sizeof *cases };

static void models_come_in_and_go_out(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c++)
        for (int ranks = 1; ranks <= MOST_RANKS; ranks += 2) {
            const char *run = path_of("deep/run"), *out = path_of("out"), *again = path_of("again");
            must(import(ranks, golden(cases[c]), run));
            check_logits(cases[c], run, NULL, 1e-5);
            check_logits(cases[c], NULL, golden(cases[c]), 1e-5);
            must(export(ranks, run, out, NULL, ranks == 1 ? 1 << 30 : 4000));
            same_folders(out, golden(cases[c]));
            /* The config that was written says the same, and the folder can be read again. */
            check_logits(cases[c], NULL, out, 1e-5);
            assert_int_equal(access(path_of("out/generation_config.json"), F_OK), 0);
            must(import(1, out, again));
            check_logits(cases[c], again, NULL, 1e-5);
            remove_all(path_of("deep"));
            remove_all(out);
            remove_all(again);
        }
}

/* Returns the distance of BF16 logits from those in FP64, as a share of their length. */
static double distance(const double *have, const float *narrow, const double *want) {
    double error = 0, length = 0;
    for (int i = 0; i < SEQ * VOCAB; i++) {
        const double d = (have ? have[i] : (double)narrow[i]) - want[i];
        error += d * d;
        length += want[i] * want[i];
    }
    return sqrt(error / length);
}

/* In BF16 the logits are as near to FP64, computed from the rounded weights, as those of
 * transformers, on average over the models. Both distances are noise of rounding: half as much
 * again is allowed for one. */
static void bf16_is_as_near_as_transformers(void **state) {
    (void)state;
    double ratios = 0;
    for (int c = 0; c < CASES; c++) {
        double logits[SEQ * VOCAB];
        char file[128];
        size_t bytes;
        tr_hf hf;
        (void)snprintf(file, sizeof file, "%s/tokens.i32", cases[c]);
        char *tokens = read_file(golden(file), &bytes);
        (void)snprintf(file, sizeof file, "%s/logits.f64", cases[c]);
        char *exact = read_file(golden(file), &bytes);
        assert_int_equal(bytes, sizeof logits);
        (void)snprintf(file, sizeof file, "%s/logits.bf16", cases[c]);
        char *theirs = read_file(golden(file), &bytes);
        assert_int_equal(bytes, sizeof(float) * SEQ * VOCAB);
        must(tr_hf_read(golden(cases[c]), &hf, NULL));
        compute_logits(&hf.model, NULL, golden(cases[c]), TR_BF16, (const int32_t *)(void *)tokens,
                       logits);
        const double *want = (const double *)(void *)exact;
        const double ours = distance(logits, NULL, want);
        const double other = distance(NULL, (const float *)(void *)theirs, want);
        if (!(ours <= 1.5 * other && other < 0.1))
            fail_msg("%s in BF16: %g from FP64, transformers %g", cases[c], ours, other);
        ratios += ours / other;
        free(tokens);
        free(exact);
        free(theirs);
    }
    print_message("BF16: %.2f times transformers' distance on average\n", ratios / CASES);
    assert_true(ratios <= CASES);
}

static void files_of_llmc_come_in(void **state) {
    (void)state;
    must(import(1, golden("gpt2.llmc3.bin"), path_of("run3")));
    check_logits("gpt2-hub", path_of("run3"), NULL, 1e-5);
    must(import(3, golden("gpt2.llmc5.bin"), path_of("run5")));
    check_logits("gpt2-hub", path_of("run5"), NULL, 0.02); /* rounded to BF16 */
    /* The same values, transposed, as those that transformers stored. */
    must(export(2, path_of("run3"), path_of("out3"), NULL, 1 << 30));
    same_folders(path_of("out3"), golden("gpt2-hub"));
    remove_all(path_of("run3"));
    remove_all(path_of("run5"));
    remove_all(path_of("out3"));
}

static void dtypes_are_converted(void **state) {
    (void)state;
    tr_weights w;
    must(import(1, golden("mistral-window"), path_of("run")));
    must(export(1, path_of("run"), path_of("bf16"), "bf16", 1 << 30));
    check_logits("mistral-window", NULL, path_of("bf16"), 0.03);
    must(tr_weights_open(path_of("bf16"), &w));
    for (int64_t i = 0; i < w.count; i++) assert_int_equal(w.tensor[i].type, TR_WEIGHT_BF16);
    tr_weights_close(&w);
    must(export(1, path_of("run"), path_of("fp16"), "fp16", 1 << 30));
    check_logits("mistral-window", NULL, path_of("fp16"), 0.005);
    remove_all(path_of("run"));
    remove_all(path_of("bf16"));
    remove_all(path_of("fp16"));
}

/* transformers would take the class of the model's family for a tokenizer.json by itself. A
 * tokenizer_config.json that came with it is passed on. */
static void tokenizers_keep_their_kind(void **state) {
    (void)state;
    static const char own[] = "{\"tokenizer_class\": \"Own\"}";
    char command[1200];
    size_t bytes;
    must(import(1, golden("mistral-window"), path_of("run")));
    (void)snprintf(command, sizeof command, "mkdir -p '%s' && cp '%s' '%s'",
                   path_of("run/tokenizer"), TRIREME_TEST_GOLDEN "/tokenizers/gpt2.json",
                   path_of("run/tokenizer/tokenizer.json"));
    assert_int_equal(system(command), 0);
    (void)unlink(path_of("run/tokenizer/generation_config.json"));
    for (int round = 0; round < 2; round++) {
        if (round) write_file(path_of("run/tokenizer/tokenizer_config.json"), own, sizeof own - 1);
        must(export(1, path_of("run"), path_of("out"), NULL, 1 << 30));
        char *text = read_file(path_of("out/tokenizer_config.json"), &bytes);
        if (round) assert_memory_equal(text, own, sizeof own - 1);
        else
            assert_string_equal(text, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                      "  \"eos_token\": \"<|endoftext|>\"\n}\n");
        free(text);
        remove_all(path_of("out"));
    }
    remove_all(path_of("run"));
}

/* --- bad input -------------------------------------------------------------------------------- */

/* Nothing is left of an import or an export that fails. */
static void failures_leave_nothing(void **state) {
    (void)state;
    refused(import(2, path_of("nowhere"), path_of("run")), TR_ERR_NOFILE, "nowhere");
    assert_int_equal(access(path_of("run"), F_OK), -1);
    char command[1200];
    (void)snprintf(
        command, sizeof command,
        "cp -r '%s' '%s' && sed -i 's/\"num_hidden_layers\": 2/\"num_hidden_layers\": 1/' '%s'",
        golden("qwen3"), path_of("other"), path_of("other/config.json"));
    assert_int_equal(system(command), 0);
    refused(import(3, path_of("other"), path_of("run")), TR_ERR_DATA, "does not have");
    assert_int_equal(access(path_of("run"), F_OK), -1);
    must(import(1, golden("qwen3"), path_of("run")));
    refused(import(1, golden("qwen3"), path_of("run")), TR_ERR_USAGE, "contains another run");
    refused(export(2, path_of("run"), path_of("other"), NULL, 1 << 30), TR_ERR_USAGE, "not empty");
    refused(export(2, path_of("other"), path_of("new"), NULL, 1 << 30), TR_ERR_DATA, "checkpoint");
    refused(export(2, path_of("gone"), path_of("new"), NULL, 1 << 30), TR_ERR_NOFILE, "checkpoint");
    /* One bit of the payload: the export ends, and leaves no folder. */
    char *shard = path_of("run/ckpt/step-00000000/shard-00000-of-00001.h5");
    struct stat info;
    assert_int_equal(stat(shard, &info), 0);
    int fd = open(shard, O_RDWR);
    char byte;
    assert_int_equal(pread(fd, &byte, 1, info.st_size - 9), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, info.st_size - 9), 1);
    (void)close(fd);
    refused(export(1, path_of("run"), path_of("new"), NULL, 1 << 30), TR_ERR_DATA, "checksum");
    (void)snprintf(command, sizeof command, "test -z \"$(ls -d '%s'/new* 2>/dev/null)\"", scratch);
    assert_int_equal(system(command), 0);
    remove_all(path_of("run"));
    remove_all(path_of("other"));
}

/* After a request to stop, work in progress ends, and nothing of it is left. */
static void a_request_to_stop_leaves_nothing(void **state) {
    (void)state;
    char name[64];
    must(import(1, golden("qwen3"), path_of("run")));
    tr_board_make_name(name, sizeof name);
    must(tr_board_open(name, 1, &stop_board));
    tr_board_unlink(name);
    must(export(1, path_of("run"), path_of("out"), NULL, 1 << 30)); /* nobody has asked */
    tr_board_request_stop(stop_board);
    assert_int_equal(mkdir(path_of("kept"), 0777), 0);
    for (int ranks = 1; ranks <= MOST_RANKS; ranks += 2) {
        refused(import(ranks, golden("qwen3"), path_of("new/with/parents")), TR_ERR_STOPPED,
                "import was stopped");
        refused(import(ranks, golden("qwen3"), path_of("kept")), TR_ERR_STOPPED, "was stopped");
        assert_int_equal(access(path_of("new"), F_OK), -1);
        assert_int_equal(access(path_of("kept/lock"), F_OK), -1);
        assert_int_equal(rmdir(path_of("kept")), 0);
        assert_int_equal(mkdir(path_of("kept"), 0777), 0);
        refused(export(ranks, path_of("run"), path_of("new/with/parents"), NULL, 4000),
                TR_ERR_STOPPED, "export was stopped");
        char command[1200];
        (void)snprintf(command, sizeof command, "test -z \"$(ls -d '%s'/new* 2>/dev/null)\"",
                       scratch);
        assert_int_equal(system(command), 0);
    }
    tr_board_close(stop_board);
    stop_board = NULL;
    remove_all(path_of("kept"));
    remove_all(path_of("run"));
    remove_all(path_of("out"));
}

/* An export removes what killed ones to the same folder left: not a living one's, and no other
 * folder of a similar name. An import does the same. */
static void leftovers_of_killed_processes_go(void **state) {
    (void)state;
    static const char *const folders[] = {"out.tmp-7",  "out.tmp-8",  "out.tmp-9",
                                          "else.tmp-7", "out.tmp-7x", "out.tmp-"};
    static const bool stays[] = {false, true, true, true, true, true};
    char path[300];
    int lock = -1;
    must(import(1, golden("qwen3"), path_of("run")));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        assert_int_equal(mkdir(path_of(folders[i]), 0777), 0);
        (void)snprintf(path, sizeof path, "%s/model.safetensors", path_of(folders[i]));
        write_file(path, "part", 4);
        (void)snprintf(path, sizeof path, "%s/.trireme-export", path_of(folders[i]));
        if (i != 2) write_file(path, "", 0); /* without it: a folder of the user's */
        if (i == 1) lock = open(path, O_RDWR);
        if (i == 1) assert_int_equal(flock(lock, LOCK_EX), 0);
    }
    assert_int_equal(mkdir(path_of("out.tmp-10"), 0777), 0); /* killed before it made the file */
    must(export(1, path_of("run"), path_of("out"), NULL, 1 << 30));
    assert_int_equal(access(path_of("out/.trireme-export"), F_OK), -1);
    assert_int_equal(access(path_of("out.tmp-10"), F_OK), -1);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if ((access(path_of(folders[i]), F_OK) == 0) != stays[i]) fail_msg("%s", folders[i]);
        if (stays[i]) remove_all(path_of(folders[i]));
    }
    (void)close(lock);
    /* The import was killed after the small files and before the checkpoint had its name. */
    assert_int_equal(rename(path_of("run/ckpt"), path_of("run/.ckpt-import")), 0);
    must(import(1, golden("qwen3"), path_of("run")));
    assert_int_equal(access(path_of("run/.ckpt-import"), F_OK), -1);
    /* It was killed before that: a file is the user's, and stays. */
    remove_all(path_of("run/ckpt"));
    assert_int_equal(mkdir(path_of("run/.ckpt-import"), 0777), 0);
    refused(import(1, golden("qwen3"), path_of("run")), TR_ERR_USAGE, "name a new folder");
    assert_int_equal(access(path_of("run/config.yaml"), F_OK), 0);
    remove_all(path_of("run"));
    remove_all(path_of("out"));
}

/* A folder with a file of the user's is refused, and keeps it; so does a folder in which a later
 * part of the import fails. */
static void imports_keep_the_users_files(void **state) {
    (void)state;
    static const char *const files[] = {"run/config.yaml", "run/origin.json",
                                        "run/tokenizer/tokenizer.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t bytes;
        assert_int_equal(mkdir(path_of("run"), 0777), 0);
        assert_int_equal(mkdir(path_of("run/ckpt"), 0777), 0);
        if (strstr(files[i], "tokenizer"))
            assert_int_equal(mkdir(path_of("run/tokenizer"), 0777), 0);
        write_file(path_of(files[i]), "mine", 4);
        refused(import(2, golden("qwen3"), path_of("run")), TR_ERR_USAGE, "name a new folder");
        char *text = read_file(path_of(files[i]), &bytes);
        assert_string_equal(text, "mine");
        free(text);
        remove_all(path_of("run"));
    }
    /* The tokenizer cannot be copied: an empty ckpt/ does not keep the rest from being removed. */
    char command[1200];
    (void)snprintf(command, sizeof command,
                   "cp -r '%s' '%s' && mkdir -p '%s' '%s' && echo mine > '%s'", golden("qwen3"),
                   path_of("other"), path_of("other/merges.txt"), path_of("run/ckpt"),
                   path_of("run/notes"));
    assert_int_equal(system(command), 0);
    refused(import(2, path_of("other"), path_of("run")), TR_ERR_DATA, "merges.txt");
    assert_int_equal(access(path_of("run/notes"), F_OK), 0);
    assert_int_equal(access(path_of("run/tokenizer"), F_OK), -1);
    assert_int_equal(access(path_of("run/.ckpt-import"), F_OK), -1);
    remove_all(path_of("run"));
    remove_all(path_of("other"));
    char longest[1300];
    memset(longest, 'x', sizeof longest - 1);
    for (int i = 0; i < 1290; i += 100) longest[i] = '/';
    longest[sizeof longest - 1] = '\0';
    /* A refusal leaves not even a lock, and the model's own folder is not a run. */
    assert_int_equal(mkdir(path_of("run"), 0777), 0);
    write_file(path_of("run/config.yaml"), "mine", 4);
    refused(import(1, golden("qwen3"), path_of("run")), TR_ERR_USAGE, "name a new folder");
    assert_int_equal(access(path_of("run/lock"), F_OK), -1);
    remove_all(path_of("run"));
    (void)snprintf(command, sizeof command, "cp -r '%s' '%s'", golden("qwen3"), path_of("other"));
    assert_int_equal(system(command), 0);
    refused(import(2, path_of("other"), path_of("other")), TR_ERR_USAGE,
            "is the folder of the model");
    assert_int_equal(access(path_of("other/lock"), F_OK), -1);
    remove_all(path_of("other"));
    (void)snprintf(command, sizeof command, "%s/%.1100s", scratch, longest + 1);
    refused(import(2, golden("qwen3"), command), TR_ERR_USAGE, "too long");
}

/* A tied model with a head of its own: the same bits are ignored, others are refused. */
static void tied_heads_are_compared(void **state) {
    (void)state;
    static const char folder[] = "tied";
    char command[1200], path[300];
    size_t bytes;
    tr_weights w;
    (void)snprintf(command, sizeof command, "cp -r '%s' '%s'", golden("qwen3"), path_of(folder));
    assert_int_equal(system(command), 0);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", path_of(folder));
    must(tr_weights_open(path, &w));
    const tr_weight *embedding = tr_weights_find(&w, "model.embed_tokens.weight");
    const size_t from = (size_t)embedding->offset, size = (size_t)embedding->bytes;
    tr_weights_close(&w);
    char *whole = read_file(path, &bytes);
    uint64_t n, data;
    memcpy(&n, whole, 8);
    data = bytes - 8 - n;
    for (int change = 0; change < 2; change++) {
        char entry[200];
        const int length =
            snprintf(entry, sizeof entry,
                     ",\"lm_head.weight\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":"
                     "[%zu,%zu]}}",
                     VOCAB, (int)size / VOCAB / 2, (size_t)data, (size_t)data + size);
        size_t end = 8 + n; /* behind the last '}' of the header */
        while (whole[end - 1] != '}') end--;
        const uint64_t header = end - 9 + (uint64_t)length;
        FILE *f = fopen(path, "w");
        (void)fwrite(&header, 8, 1, f);
        (void)fwrite(whole + 8, 1, end - 9, f);
        (void)fwrite(entry, 1, (size_t)length, f);
        (void)fwrite(whole + 8 + n, 1, data, f);
        whole[from + size - 1] ^= (char)change;
        (void)fwrite(whole + from, 1, size, f);
        whole[from + size - 1] ^= (char)change;
        assert_int_equal(fclose(f), 0);
        tr_status status = import(2, path_of(folder), path_of("run"));
        if (change) refused(status, TR_ERR_DATA, "lm_head.weight differs from model.embed_tokens");
        else must(status);
        if (!change) remove_all(path_of("run"));
    }
    assert_int_equal(access(path_of("run"), F_OK), -1);
    free(whole);
    remove_all(path_of(folder));
}

/* A file of llm.c with heads that do not divide the width; one with fewer tokens than a config may
 * have, so that the run's could not be read. */
static void sizes_of_llmc_are_checked(void **state) {
    (void)state;
    size_t bytes;
    char *whole = read_file(golden("gpt2.llmc3.bin"), &bytes);
    ((int32_t *)(void *)whole)[5] = 7;
    write_file(path_of("heads.bin"), whole, bytes);
    refused(import(1, path_of("heads.bin"), path_of("run")), TR_ERR_DATA, "heads.bin: model.");
    ((int32_t *)(void *)whole)[5] = 4;
    ((int32_t *)(void *)whole)[3] = 1;
    write_file(path_of("vocab.bin"), whole, bytes);
    free(whole);
    refused(import(1, path_of("vocab.bin"), path_of("run")), TR_ERR_DATA,
            "vocab.bin: model.vocab must be between 2 and");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_come_in_and_go_out),
        cmocka_unit_test(files_of_llmc_come_in),
        cmocka_unit_test(dtypes_are_converted),
        cmocka_unit_test(tokenizers_keep_their_kind),
        cmocka_unit_test(failures_leave_nothing),
        cmocka_unit_test(a_request_to_stop_leaves_nothing),
        cmocka_unit_test(leftovers_of_killed_processes_go),
        cmocka_unit_test(imports_keep_the_users_files),
        cmocka_unit_test(sizes_of_llmc_are_checked),
        cmocka_unit_test(tied_heads_are_compared),
        cmocka_unit_test(bf16_is_as_near_as_transformers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
