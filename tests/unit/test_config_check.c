/* Tests the checks of a whole config: keys that contradict each other, ranks, data. Every sentence
 * has the place and the remedy. */
#include "config/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tr_status parse(const char *text, tr_config *config) {
    return tr_config_parse(text, strlen(text), "x.yaml", NULL, 0, config);
}

static void checks_name_place_and_remedy(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int world;
        const char *message;
    } bad[] = {
        {"parallel.pp: 2\n", 1,
         "x.yaml:2:14: parallel.pp * tp * dp = 2 * 1 * 1 needs 2 ranks, but 1 was started: use "
         "`trireme run -n 2 train ...`, or change the degrees"},
        {"parallel.pp: 2\n", 4,
         "x.yaml:2:14: parallel.pp * tp * dp = 2 * 1 * 1 needs 2 ranks, but 4 were started: use "
         "`trireme run -n 2 train ...`, or set parallel.dp=2"},
        {"train.batch: 10\nparallel.dp: 2", 2,
         "x.yaml:2:14: train.batch 10 is not a multiple of parallel.dp * train.micro_batch = 2 * "
         "4: "
         "the next multiple is 16"},
        {"train.batch: 1099511627776\n", 1,
         "x.yaml:2:14: train.batch 1099511627776 is 274877906944 micro-batches a step on each data "
         "rank, more than 16384: raise train.micro_batch"},
        {"parallel.tp: 3\n", 3,
         "x.yaml:2:14: model.heads 4 is not divisible by parallel.tp 3: a tensor rank holds whole "
         "heads, the same number on each; parallel.tp=2 works"},
        {"parallel.pp: 5\n", 5,
         "x.yaml:2:14: parallel.pp 5 with parallel.virtual 1 makes 5 stages, but model.layers is "
         "4: "
         "every stage needs a layer"},
        {"parallel.pp: 2\nparallel.virtual: 3\n", 2,
         "x.yaml:3:19: parallel.pp 2 with parallel.virtual 3 makes 6 stages, but model.layers is "
         "4: "
         "every stage needs a layer"},
        {"model.width: 130\n", 1,
         "x.yaml:2:14: model.width 130 is not divisible by model.heads 4: every head has the same "
         "width, which model.head_size can set"},
        {"model.family: llama\nparallel.tp: 3\nmodel.heads: 12\nmodel.width: 120\nmodel.kv_heads: "
         "4\n",
         3,
         "x.yaml:6:17: model.kv_heads 4 and parallel.tp 3 do not divide each other: a tensor rank "
         "holds whole key and value heads, or shares one with the next; parallel.tp=2 works"},
        {"model.heads: 5\nparallel.tp: 2\nmodel.width: 130\n", 2,
         "x.yaml:2:14: model.heads 5 is not divisible by parallel.tp 2: a tensor rank holds whole "
         "heads, the same number on each; parallel.tp=1 works"},
        {"optim.min_lr: 1\n", 1, "x.yaml:2:15: optim.min_lr 1 is above optim.lr 0.001"},
        {"optim.nesterov: true\n", 1,
         "x.yaml:2:17: optim.name adamw does not read optim.nesterov: leave optim.nesterov out, or "
         "set optim.name to one of: sgd muon"},
        {"optim: {name: sgd, nesterov: true, momentum: 0}\n", 1,
         "x.yaml:2:30: optim.nesterov needs optim.momentum above 0: set it, or leave "
         "optim.nesterov out"},
        {"optim: {name: muon, momentum: 0}\n", 1,
         "x.yaml:2:31: optim.name muon has optim.nesterov true, which needs optim.momentum above "
         "0: "
         "raise optim.momentum, or set optim.nesterov to false"},
        {"optim: {name: sgd, beta1: 0.8}\n", 1,
         "x.yaml:2:27: optim.name sgd does not read optim.beta1: leave optim.beta1 out, or set "
         "optim.name to one of: adamw adam lion lamb muon"},
        {"optim: {name: lion, eps: 1e-6}\n", 1,
         "x.yaml:2:26: optim.name lion does not read optim.eps: leave optim.eps out, or set "
         "optim.name to one of: adamw adam lamb muon"},
        {"optim: {milestones: [10, 20], schedule: linear}\n", 1,
         "x.yaml:2:21: optim.schedule linear does not read optim.milestones: leave "
         "optim.milestones "
         "out, or set optim.schedule to steps"},
        {"optim: {schedule: constant, min_lr: 1e-4}\n", 1,
         "x.yaml:2:37: optim.schedule constant does not read optim.min_lr: leave optim.min_lr out, "
         "or set optim.schedule to one of: linear cosine inverse-root steps wsd cycles"},
        {"optim: {schedule: wsd, milestone_factor: 0.5}\n", 1,
         "x.yaml:2:42: optim.schedule wsd does not read optim.milestone_factor: leave "
         "optim.milestone_factor out, or set optim.schedule to steps"},
        {"optim.decay: 10\n", 1,
         "x.yaml:2:14: optim.schedule cosine does not read optim.decay: leave optim.decay out, or "
         "set optim.schedule to wsd"},
        {"optim.cycle: 10\n", 1,
         "x.yaml:2:14: optim.schedule cosine does not read optim.cycle: leave optim.cycle out, or "
         "set optim.schedule to cycles"},
        {"model.layers: 4\nparallel: {pp: 2, cut: Ett|tL}\n", 1,
         "x.yaml:3:24: parallel.cut has 3 blocks (t), but model.layers is 4: give it as many"},
        {"model.layers: 4\nparallel: {pp: 3, schedule: bfs, cut: Ett|ttL}\n", 1,
         "x.yaml:3:39: parallel.cut has 2 stages, which is not a multiple of parallel.pp 3: give "
         "every pipeline rank the same number, or set parallel.cut=auto"},
        {"model.layers: 4\nparallel: {pp: 2, schedule: zbv, cut: Ett|ttL}\n", 1,
         "x.yaml:3:39: parallel.cut has 2 stages, but parallel.schedule zbv has 4 with parallel.pp "
         "2: give it as many, or set parallel.cut=auto"},
        {"model.layers: 4\nparallel: {pp: 2, virtual: 2, schedule: bfs, cut: Ett|ttL}\n", 1,
         "x.yaml:3:51: parallel.cut has 2 stages, but parallel.pp 2 with parallel.virtual 2 makes "
         "4: leave parallel.virtual out, or give parallel.cut as many"},
        {"checkpoint.background: true\n", 1,
         "x.yaml:2:24: checkpoint.background lets training go on while it saves, but with "
         "checkpoint.every 0 only the end of a run is saved: set checkpoint.every, or leave "
         "checkpoint.background out"},
        {"checkpoint: {every: 300, keep_every: 1000}\n", 1,
         "x.yaml:2:38: checkpoint.keep_every 1000 must be a multiple of checkpoint.every, which is "
         "300: set checkpoint.every to a divisor of it, because only saved steps can stay"},
        {"checkpoint.keep_every: 1000\n", 1,
         "x.yaml:2:24: checkpoint.keep_every 1000 must be a multiple of checkpoint.every, which is "
         "0: set checkpoint.every to a divisor of it, because only saved steps can stay"},
        {"guard.action: rollback\n", 1,
         "x.yaml:2:15: guard.action rollback needs guard.sigma above 0, from which a step is out "
         "of "
         "line: set it (for example 6), or leave guard.action out"},
        {"device: {name: cuda, offload: [optimizer, activations:2-1]}\n", 1,
         "x.yaml:2:31: device.offload activations:2-1 runs backwards: write activations:1-2"},
        {"device: {name: cuda, offload: \"activations:3-0,optimizer\"}\n", 1,
         "x.yaml:2:31: device.offload activations:3-0 runs backwards: write activations:0-3"},
        {"device: {name: cuda, offload: [optimizer, activations:2x1]}\n", 1,
         "x.yaml:2:31: device.offload must be none, optimizer, activations, activations:FIRST-LAST "
         "with numbers of stages, or a list of both, not 'optimizer activations:2x1'"},
        {"device: {name: cuda, offload: [activations:0, optimiser]}\n", 1,
         "x.yaml:2:31: device.offload must be none, optimizer, activations, activations:FIRST-LAST "
         "with numbers of stages, or a list of both, not 'activations:0 optimiser'; did you mean "
         "'optimizer'?"},
        {"device: {name: cuda, offload: cpu}\n", 1,
         "x.yaml:2:31: device.offload must be none, optimizer, activations, activations:FIRST-LAST "
         "with numbers of stages, or a list of both, not 'cpu'; did you mean 'optimizer'?"},
        {"device: {name: cuda, offload: activations:2-1x}\n", 1,
         "x.yaml:2:31: device.offload must be none, optimizer, activations, activations:FIRST-LAST "
         "with numbers of stages, or a list of both, not 'activations:2-1x'"},
        {"device: {name: cuda, offload: activations:0-9223372036854775807}\n", 1,
         "x.yaml:2:31: device.offload must be none, optimizer, activations, activations:FIRST-LAST "
         "with numbers of stages, or a list of both, not 'activations:0-9223372036854775807'"},
        {"parallel: {dp: 2, transport: nccl}\ntrain.batch: 8\n", 0,
         "x.yaml:2:30: parallel.transport nccl connects GPUs, but device.name cpu is not a GPU: "
         "leave parallel.transport out"},
        {"device.offload: activations\n", 1,
         "x.yaml:2:17: device.offload activations moves memory of the device to the host, where "
         "device.name cpu has it anyway: leave device.offload out"},
        {"optim.restarts: 10 900\ntrain.steps: 900\n", 1,
         "x.yaml:2:17: optim.restarts has step 900, but the schedule ends at step 900 "
         "(optim.horizon, which is train.steps unless it is set): raise optim.horizon, or leave "
         "that step out"},
        {"optim: {restarts: 10 900, horizon: 800}\n", 1,
         "x.yaml:2:19: optim.restarts has step 900, but the schedule ends at step 800 "
         "(optim.horizon): raise optim.horizon, or leave that step out"},
    };
    tr_config c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "data.path: a\n%s", bad[i].text);
        assert_int_equal(parse(text, &c), TR_OK);
        assert_int_equal(tr_config_check(&c, bad[i].world), TR_ERR_CONFIG);
        assert_string_equal(tr_error_message(), bad[i].message);
    }
    tr_config_offloads offload;
    assert_int_equal(parse("device: {name: cuda, offload: [activations:1-2, optimizer]}\n", &c),
                     TR_OK);
    assert_true(tr_config_offload(&c, &offload) && offload.optimizer);
    assert_true(offload.first == 1 && offload.stages == 2);
    assert_int_equal(tr_config_check_offload_stages(&c, 3), TR_OK);
    assert_int_equal(tr_config_check_offload_stages(&c, 2), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(),
                        "x.yaml:1:31: device.offload names stage 2, but parallel.schedule 1f1b has "
                        "2 stages, numbered from 0");
    /* Another optimizer's keys may have their defaults. */
    assert_int_equal(parse("optim: {name: sgd, beta1: 0.90, eps: 1e-8}\n", &c), TR_OK);
    assert_int_equal(tr_config_check(&c, 0), TR_OK);
}

/* A plan needs no data; commands that read data do. */
static void data_are_checked_where_they_are_read(void **state) {
    (void)state;
    tr_config c;
    char *text;
    assert_int_equal(parse("train.steps: 5\n", &c), TR_OK);
    assert_int_equal(tr_config_check(&c, 0), TR_OK);
    assert_int_equal(tr_config_check_data(&c), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(), "x.yaml: data.path is missing: name the file to learn "
                                            "from, like data.path: corpus.txt");
    assert_int_equal(tr_config_text(&c, &text), TR_OK); /* without the key that has no value */
    assert_int_equal(parse(text, &c), TR_OK);
    free(text);
    assert_int_equal(parse("data.path: a\nmodel.vocab: 100\n", &c), TR_OK);
    assert_int_equal(tr_config_check_data(&c), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(),
                        "x.yaml:2:14: model.vocab 100 is too small: without a tokenizer "
                        "(data.format bytes) there are 256 tokens");
}

/* data.document_end must be a token: of the model for a plan, of the file for a run. */
static void documents_need_their_end(void **state) {
    (void)state;
    tr_config c;
    assert_int_equal(parse("data: {path: a, document_end: 10}\n", &c), TR_OK);
    assert_int_equal(tr_config_document_end(&c), -1);
    assert_int_equal(parse("data: {path: a, documents: packed, document_end: 0}\n", &c), TR_OK);
    assert_int_equal(tr_config_document_end(&c), 0);
    assert_int_equal(tr_config_check(&c, 0), TR_OK);
    assert_int_equal(tr_config_check_data(&c), TR_OK);
    assert_int_equal(parse("data: {path: a, documents: packed}\n", &c), TR_OK);
    assert_int_equal(tr_config_check(&c, 0), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(),
                        "x.yaml:1:28: data.documents packed needs data.document_end, the token "
                        "that ends a document (10 for the end of a line in data.format bytes)");
    assert_int_equal(tr_config_check_data(&c), TR_ERR_CONFIG);
    assert_non_null(strstr(tr_error_message(), "packed needs data.document_end"));
    assert_int_equal(parse("data: {path: a, document_end: 256}\n", &c), TR_OK);
    assert_int_equal(tr_config_check(&c, 0), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(), "x.yaml:1:31: data.document_end 256 is not a token: "
                                            "model.vocab 256 has tokens 0 to 255");
    assert_int_equal(parse("data: {path: a, document_end: 256}\nmodel.vocab: 300\n", &c), TR_OK);
    assert_int_equal(tr_config_check(&c, 0), TR_OK);
    assert_int_equal(tr_config_check_data(&c), TR_ERR_CONFIG);
    assert_string_equal(tr_error_message(), "x.yaml:1:31: data.document_end 256 is not a token: "
                                            "data.format bytes has tokens 0 to 255");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checks_name_place_and_remedy),
        cmocka_unit_test(data_are_checked_where_they_are_read),
        cmocka_unit_test(documents_need_their_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
