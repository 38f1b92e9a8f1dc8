#include "config/schema.h"

#include "base/nearest.h"
#include "config/elsewhere.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define BIG            1099511627776.0 /* 2^40: a larger count is a typing error */
#define EXACT_INTEGERS 9007199254740992.0

#define AT(field)               .offset = offsetof(tr_config, field), .size = sizeof(((tr_config *)0)->field)
#define INT(field, low, high)   .type = TR_KEY_INT, AT(field), .min = (low), .max = (high)
#define ANSWER(field)           .type = TR_KEY_ANSWER, AT(field)
#define FLOAT(field, low, high) .type = TR_KEY_FLOAT, AT(field), .min = (low), .max = (high)

const tr_key tr_schema[] = {
    {"model.family", TR_KEY_CHOICE, AT(model.family), .fallback = "gpt2",
     .choices = "gpt2 llama qwen2 qwen3 mistral",
     .help = "Architecture: gpt2 (learned positions, LayerNorm, GELU, tied head); llama (rotary "
             "positions, RMSNorm, SwiGLU); or, like llama, qwen2 (biases of queries, keys and "
             "values), qwen3 (norms of queries and keys) and mistral."},
    {"model.preset", TR_KEY_CHOICE, AT(preset), .example = "gpt2-124m",
     .choices = "tiny gpt2-124m gpt2-350m gpt2-774m gpt2-1.5b llama-tiny llama-3.2-1b llama-3-8b "
                "llama-3-70b llama-3-405b qwen2-tiny qwen2.5-0.5b qwen3-tiny qwen3-0.6b qwen3-8b "
                "mistral-tiny mistral-7b",
     .help = "A published model, which sets the model's keys that are not given. Default: none, "
             "which means the sizes of tiny and model.family's other values."},
    {"model.init_from", TR_KEY_TEXT, AT(init_from), .example = "models/llama-3.2-1b",
     .help = "A folder of transformers (config.json and *.safetensors): the model is that one, and "
             "a new run starts with its weights. Of the model's other keys only dropout, context "
             "and rope_scaling may differ. Or a folder of PEFT (adapter_config.json): a model and "
             "its updates. Default: none."},
    {"model.layers", INT(model.layers, 1, 4096), .example = "12",
     .help = "Number of transformer blocks. Default: the preset's."},
    {"model.width", INT(model.width, 1, 1048576), .example = "768",
     .help = "Size of a token's vector. Default: the preset's."},
    {"model.heads", INT(model.heads, 1, 65536), .example = "12",
     .help = "Attention heads, a multiple of parallel.tp. Default: the preset's."},
    {"model.context", INT(model.context, 1, 16777216), .example = "1024",
     .help = "Tokens of one sequence. Default: the preset's."},
    {"model.vocab", INT(model.vocab, 2, 16777216), .example = "256",
     .help = "Number of different tokens, at least 256 for bytes. Default: the preset's."},
    {"model.dropout", FLOAT(model.dropout, 0, 0.95), .fallback = "0",
     .help = "Fraction of elements dropped on embeddings and residuals while training."},

    {"model.kv_heads", INT(model.kv_heads, 1, 65536), .example = "8",
     .help = "Key and value heads; each is shared by model.heads / model.kv_heads query heads. A "
             "divisor or a multiple of parallel.tp. Default: model.heads."},
    {"model.head_size", INT(model.head_size, 1, 65536), .example = "128",
     .help = "Size of a head's vectors. Default: model.width / model.heads."},
    {"model.mlp_width", INT(model.mlp_width, 1, 16777216), .example = "3072",
     .help = "Size of the MLP's hidden vector. Default: 4 model.width, or with a gated activation "
             "8/3 model.width, rounded up to a multiple of 64."},
    {"model.norm_eps", FLOAT(model.norm_eps, 1e-12, 0.1), .example = "1e-05",
     .help = "Number added to the mean square in norms. Default: the family's."},
    {"model.qk_norm", ANSWER(model.qk_norm), .example = "true",
     .help = "Whether every head's queries and keys pass an RMSNorm. Default: the family's."},
    {"model.qkv_bias", ANSWER(model.qkv_bias), .example = "true",
     .help = "Whether queries, keys and values have biases; the projection after them has none "
             "(attention_bias of transformers gives llama one there, too). Default: the "
             "family's."},
    {"model.activation", TR_KEY_CHOICE, AT(model.activation), .example = "swiglu",
     .choices = "gelu_tanh gelu relu2 swiglu geglu geglu_tanh",
     .help = "Activation of the MLP: gelu_tanh (GPT-2's GELU), gelu (exact), relu2 (squared ReLU), "
             "or gated by SiLU (swiglu), exact GELU (geglu) or GPT-2's GELU (geglu_tanh). Default: "
             "the family's."},
    {"model.tie", ANSWER(model.tie), .example = "true",
     .help = "Whether the head shares the word embedding. Default: true for gpt2, false for the "
             "others."},
    {"model.window", INT(model.window, 0, 16777216), .example = "4096",
     .help = "Tokens that a token attends to, including itself; 0: all earlier ones. Default: the "
             "preset's."},
    {"model.rope_theta", FLOAT(model.rope_theta, 0, 1e15), .example = "500000",
     .help = "Base of the wavelengths of rotary positions. Default: the preset's, otherwise 10000 "
             "if the family has them."},
    {"model.rope_scaling", TR_KEY_TEXT, AT(model.rope_scaling), .example = "llama3 8 1 4 8192",
     .help = "Scaling of rotary positions for a longer context: none, linear FACTOR, llama3 FACTOR "
             "LOW HIGH ORIGINAL, or yarn FACTOR ORIGINAL, where ORIGINAL is the context that the "
             "model was trained with. yarn takes further numbers: BETA_FAST BETA_SLOW (32 1), then "
             "ATTENTION, the factor on cosines and sines (0.1 ln FACTOR + 1). Default: none."},

    {"model.init", TR_KEY_CHOICE, AT(model.init), .fallback = "normal",
     .choices = "normal truncated xavier he orthogonal",
     .help =
         "How the matrices of the blocks are drawn: normal (deviation 0.02), truncated (the same "
         "within two deviations), xavier (uniform), he (normal) or orthogonal, which makes every "
         "matrix whole on each rank that has a part of it. Those that are added to the residual "
         "stream are scaled by the root of 1 / (2 model.layers). Embeddings and an untied head are "
         "normal (deviation 0.02), learned positions with deviation 0.01."},

    {"model.lora.rank", INT(model.lora.rank, 0, 65536), .fallback = "0", .example = "8",
     .help = "Rank of low-rank updates (LoRA): with a rank above 0 the model's own parameters are "
             "frozen, and each target y = W x becomes W x + alpha / rank B A x, with A and B "
             "trained. 0: none."},
    {"model.lora.alpha", FLOAT(model.lora.alpha, 0, 1e9), .fallback = "0", .example = "16",
     .help = "Factor of the updates, times the rank; 0: the rank, for a factor of 1."},
    {"model.lora.targets", TR_KEY_PATHS, AT(model.lora.targets), .example = "q_proj v_proj",
     .help = "Linear layers of the blocks that are updated, by the last parts of their names: "
             "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj, or c_attn, c_proj "
             "and c_fc for gpt2. Also a YAML list. Default: all-linear."},
    {"model.lora.base", TR_KEY_TEXT, AT(lora_base), .example = "models/llama-3.2-1b",
     .help = "The folder of the model, where model.init_from is an adapter of PEFT. Default: the "
             "one that adapter_config.json names."},

    {"data.path", TR_KEY_PATHS, AT(data.path), .example = "corpus.txt", .local = true,
     .help = "The files to learn from, relative to the working directory: a path, patterns like "
             "shard-*.bin, a list of both, or a mixture with weights, WEIGHT PATH WEIGHT PATH or "
             "[{path: A, weight: 0.7}, ...]. Training needs it."},
    {"data.format", TR_KEY_CHOICE, AT(data.format), .fallback = "bytes",
     .choices = "bytes text u16 u32 llmc megatron instruct",
     .help =
         "What the files hold: bytes (every byte is a token), text (tokenized by data.tokenizer "
         "when a run begins), u16 or u32 (tokens of 2 or 4 "
         "bytes, nanoGPT's), llmc (shards of llm.c), megatron (data.path is the prefix of a "
         ".bin and .idx), or instruct (lines of JSON with messages, or a prompt and an answer; "
         "only "
         "answers count in the loss)."},
    {"data.tokenizer", TR_KEY_TEXT, AT(data.tokenizer), .example = "tokenizer.json",
     .help =
         "A tokenizer.json, a tiktoken file, or a folder with one. Default: the one next to "
         "the data (PREFIX.tokenizer.json), in model.init_from, or in log.dir of an imported or "
         "continued run, otherwise none."},
    {"data.validation", TR_KEY_SHARE, AT(data.validation), .min = 0, .max = 0.9, .fallback = "0.1",
     .help = "What is held out for validation: a fraction of each corpus, at its end, or files of "
             "the same format, written like data.path without weights."},
    {"data.documents", TR_KEY_CHOICE, AT(data.documents), .fallback = "windows",
     .choices = "windows packed",
     .help = "Whether a sequence is split where documents end: windows (no: tokens also attend to "
             "earlier documents), or packed (no attention across documents, positions "
             "restart, and the label of a document's last token does not count). data.format "
             "instruct is always "
             "packed: each conversation is whole within a sequence."},
    {"data.document_end", INT(data.document_end, -1, 16777215), .fallback = "-1", .example = "10",
     .help =
         "The token that ends a document, which data.documents packed needs; -1: the tokenizer's, "
         "if there is one, or that of llm.c's shards. With data.format megatron the index says "
         "where documents end."},
    {"data.changed", TR_KEY_CHOICE, AT(data.changed), .fallback = "refuse",
     .choices = "refuse allow",
     .help = "What --resume does when the data differ from the checkpoint's: refuse (exit code "
             "78), or allow (a new epoch begins with the new data). Data that have only grown at "
             "their end are always allowed."},

    {"train.freeze", TR_KEY_PATTERNS, AT(model.tuning.freeze), .example = "*.wte.weight *.h.0.*",
     .help =
         "Parameters that are not trained: patterns of their names (as transformers has them; * "
         "and ? as in a shell). They keep their values, have no optimizer state and no gradient. "
         "Also a YAML list. Default, and with an empty value: none."},
    {"train.lr_scale", TR_KEY_SCALES, AT(model.tuning.lr_scale), .example = "0.1 *.wte.weight",
     .help = "Factors of the learning rate: SCALE PATTERN SCALE PATTERN, or a list of "
             "{match: PATTERN, scale: SCALE}; the first pattern that matches a name wins. Default, "
             "and with an empty value: 1 for all."},
    {"train.recompute", TR_KEY_PATTERNS, AT(model.recompute), .fallback = "none",
     .example = "full:0-5,selective:6-11",
     .help =
         "Activations that backward computes again instead of keeping them: none; selective "
         "(outputs of norms and of the MLP's activation); full (a block keeps only its input); "
         "auto (for each stage the first of these that fits device.memory); or "
         "a list by block, MODE:FIRST-LAST or MODE:NUMBER, where blocks are numbered from 0 as in "
         "the names of their tensors, and the others recompute nothing. The bits of a run stay. "
         "Also a YAML list."},
    {"train.steps", INT(train.steps, 1, BIG), .fallback = "1000",
     .help = "Optimizer steps of the whole run."},
    {"train.batch", INT(train.batch, 1, BIG), .fallback = "16",
     .help = "Sequences of a step, over all ranks: a multiple of parallel.dp * train.micro_batch."},
    {"train.batch_warmup", TR_KEY_BATCHES, AT(train.batch_warmup), .example = "8 100 16 300",
     .help =
         "Smaller batches of the first steps, BATCH UNTIL BATCH UNTIL: 8 100 16 300 is 8 "
         "sequences until step 100, 16 until step 300, and then train.batch. Also a "
         "YAML list of {until: STEP, batch: SEQUENCES}. Both numbers ascend, and each batch is a "
         "multiple of parallel.dp * train.micro_batch below train.batch. Default, and with an "
         "empty value: none."},
    {"train.micro_batch", INT(train.micro_batch, 1, 1048576), .fallback = "4",
     .help = "Sequences that pass through the pipeline together."},
    {"train.seed", INT(train.seed, 0, EXACT_INTEGERS), .fallback = "1",
     .help = "Seed of initial values, dropout and sample order."},
    {"train.precision", TR_KEY_CHOICE, AT(train.precision), .fallback = "fp32", .on_gpu = "bf16",
     .choices = "fp32 bf16 fp16 fp64",
     .help = "Type of stored tensors and matrix products. Sums, gradients and master weights are "
             "FP32. With fp16 the loss is multiplied by a scale, from 4096 on, so that small "
             "gradients do not vanish: a step in which gradients overflow is skipped and halves "
             "the scale, and 2000 steps without that double it; CPUs store FP16 and multiply in "
             "FP32. With fp64, only on device.name ref, everything is FP64."},
    {"train.threads", INT(train.threads, 0, 4096), .fallback = "0", .local = true,
     .help = "Threads of each rank; 0: the cores of the machine, or of its container, divided by "
             "the ranks there."},
    {"train.deterministic", TR_KEY_BOOL, AT(train.deterministic), .fallback = "true",
     .on_gpu = "false",
     .help = "Whether to use only algorithms that give the same bits in every run. With false the "
             "fastest of the library's plans for each matrix product (on GPUs also for attention) "
             "is measured before step 1 and kept in log.dir/plans.txt, which a resumed run reads."},
    {"train.validate_every", INT(train.validate_every, 0, BIG), .fallback = "100",
     .help = "Steps between two validations; one follows the last step, too. 0: only that one."},
    {"train.validate_batches", INT(train.validate_batches, 0, BIG), .fallback = "8",
     .help = "Batches of one validation; 0: the whole held-out part."},
    {"train.eval", TR_KEY_PATHS, AT(train.eval), .example = "questions.jsonl",
     .help = "Files of multiple-choice questions, as `trireme eval` reads them, that are answered "
             "every train.validate_every steps. Also a YAML list. Default: none."},
    {"train.sample_every", INT(train.sample_every, 0, BIG), .fallback = "0",
     .help = "Steps between two samples, the texts that the model makes of train.sample_prompts; "
             "0: never."},
    {"train.sample_prompts", TR_KEY_TEXT, AT(train.sample_prompts), .example = "prompts.txt",
     .help = "A file with a prompt a line, as `trireme sample --prompts` reads it. Default: one "
             "prompt, the end of a line."},
    {"train.sample_tokens", INT(train.sample_tokens, 1, BIG), .fallback = "200",
     .help = "The most tokens that are drawn for a sample."},

    {"optim.name", TR_KEY_CHOICE, AT(optim.name), .fallback = "adamw",
     .choices = "adamw adam sgd lion lamb muon adafactor",
     .help =
         "Optimizer: adamw (Adam with decoupled weight decay), adam (weight decay is part of "
         "the gradient), sgd (with optim.momentum and optim.nesterov; weight decay is part of "
         "the gradient), lion (the sign of a mean gradient), lamb (adamw's direction, with a "
         "step as long as the tensor's norm allows), muon (for the matrices of linear layers a "
         "momentum that is made orthogonal, in bf16 where train.precision is bf16 or fp16, with "
         "steps about as long as adamw's; adamw for the others) or adafactor (the mean squared "
         "gradient of a matrix by row and column, without momentum; optim.lr is relative to the "
         "size of each tensor's elements)."},
    {"optim.schedule", TR_KEY_CHOICE, AT(optim.schedule), .fallback = "cosine",
     .choices = "constant linear cosine inverse-root steps wsd cycles",
     .help = "Learning rate after the warm-up: constant; linear or cosine (falls to optim.min_lr "
             "at optim.horizon); inverse-root (falls with the root of the step); steps (times "
             "optim.milestone_factor at optim.milestones); wsd (constant, then linear for "
             "optim.decay steps up to the horizon); or cycles (triangles of optim.cycle steps "
             "between optim.lr and optim.min_lr)."},
    {"optim.lr", FLOAT(optim.lr, 0, 1e3), .fallback = "0.001",
     .help = "Highest learning rate. Default: 0.01 for adafactor."},
    {"optim.min_lr", FLOAT(optim.min_lr, 0, 1e3), .fallback = "0",
     .help = "Lowest learning rate after the warm-up."},
    {"optim.warmup", INT(optim.warmup, 0, BIG), .fallback = "0",
     .help = "Steps during which the learning rate grows from 0 to optim.lr."},
    {"optim.horizon", INT(optim.horizon, 0, BIG), .fallback = "0",
     .help = "The step at which the schedule ends; 0: train.steps, or what it was in the run that "
             "--resume continues."},
    {"optim.restarts", TR_KEY_POINTS, AT(optim.restarts), .example = "1000 3000",
     .help = "Steps after which the schedule begins again, with its warm-up; each part ends where "
             "the next one begins, the last one at optim.horizon. Also a YAML list. Default, "
             "and with an empty value: none."},
    {"optim.milestones", TR_KEY_POINTS, AT(optim.milestones), .example = "500 750",
     .help = "For optim.schedule steps: the steps from which on the learning rate is multiplied by "
             "optim.milestone_factor once more. They count from the last restart. Also a YAML "
             "list. Default, and with an empty value: half and three quarters of "
             "each part between restarts."},
    {"optim.milestone_factor", FLOAT(optim.milestone_factor, 0, 1), .fallback = "0.1",
     .help = "For optim.schedule steps: factor of the learning rate at each milestone."},
    {"optim.decay", INT(optim.decay, 0, BIG), .fallback = "0",
     .help = "For optim.schedule wsd: steps of the decay; 0: a tenth of those after the warm-up."},
    {"optim.cycle", INT(optim.cycle, 0, BIG), .fallback = "0",
     .help = "For optim.schedule cycles: steps of a cycle, half of them down and half of them up; "
             "0: a quarter of the steps after the warm-up."},
    {"optim.clip", FLOAT(optim.clip, 0, 1e30), .fallback = "1",
     .help = "Largest norm of the whole gradient; a larger one is scaled down to it. 0: never."},
    {"optim.clip_value", FLOAT(optim.clip_value, 0, 1e30), .fallback = "0",
     .help = "Largest size of an element of the gradient, after optim.clip; larger ones are set to "
             "it. 0: none."},
    {"optim.weight_decay", FLOAT(optim.weight_decay, 0, 1e3), .fallback = "0.1",
     .help = "Decay of matrices and embeddings (not of biases and norms). Default: 0 for adam, sgd "
             "and adafactor, 0.01 for lamb, 0.1 for the others."},
    {"optim.l1", FLOAT(optim.l1, 0, 1e3), .fallback = "0",
     .help = "Weight of L1 regularization: its gradient is added to that of matrices and "
             "embeddings, after clipping."},
    {"optim.l2", FLOAT(optim.l2, 0, 1e3), .fallback = "0",
     .help = "Weight of L2 regularization: l2 times the parameter is added to the gradient of "
             "matrices and embeddings, after clipping."},
    {"optim.momentum", FLOAT(optim.momentum, 0, 0.999999), .fallback = "0.9",
     .help = "For optim.name sgd and muon: factor of the sum of earlier gradients; with 0 sgd "
             "keeps no state. Default: 0.95 for muon."},
    {"optim.nesterov", TR_KEY_BOOL, AT(optim.nesterov), .fallback = "false",
     .help = "For optim.name sgd and muon: whether the momentum looks a step ahead (Nesterov). "
             "Default: true for muon."},
    {"optim.beta1", FLOAT(optim.beta1, 0, 0.999999), .fallback = "0.9",
     .help = "Decay rate of the mean gradient; for lion in the step's sign."},
    {"optim.beta2", FLOAT(optim.beta2, 0, 0.999999), .fallback = "0.95",
     .help = "Decay rate of the mean squared gradient; for lion of the mean gradient. Default: "
             "0.99 for lion, 0.999 for lamb."},
    {"optim.eps", FLOAT(optim.eps, 1e-30, 1), .fallback = "1e-08",
     .help = "Number added to the root of the mean squared gradient. Default: 1e-06 for lamb."},

    {"optim.moments", TR_KEY_CHOICE, AT(optim.moments), .fallback = "fp32",
     .choices = "fp32 bf16 int8",
     .help = "Type in which the optimizer's moments are kept; bf16 takes half of their memory, and "
             "int8 (8 bits, with a scale for every 256) about a quarter. Each is rounded up or "
             "down at random, so that the mean is exact. Not with optim.name adafactor, and sgd "
             "without momentum, which have no such moments, and train.precision fp64."},
    {"optim.gradients", TR_KEY_CHOICE, AT(optim.gradients), .fallback = "fp32",
     .choices = "fp32 bf16",
     .help =
         "Type in which gradients are summed over the micro-batches of a step; bf16 halves their "
         "memory and adds one fp32 buffer of the size of the largest layer's gradients. Each sum "
         "is rounded up or down at random, so that the mean is exact. bf16 not with "
         "train.precision fp64."},
    {"optim.master", TR_KEY_CHOICE, AT(optim.master), .fallback = "fp32", .choices = "fp32 none",
     .help = "With train.precision bf16: fp32 keeps a copy of the parameters that has all bits of "
             "small steps; none steps the bf16 parameters themselves, each rounded up or down at "
             "random, so that the mean is exact, and saves two thirds of their memory."},

    {"parallel.pp", INT(parallel.pp, 1, 4096), .fallback = "1",
     .help = "Pipeline-parallel ranks: each has some of the layers."},
    {"parallel.tp", INT(parallel.tp, 1, 4096), .fallback = "1",
     .help = "Tensor-parallel ranks: they share the work of each layer."},
    {"parallel.sequence", TR_KEY_BOOL, AT(model.sequence), .fallback = "false",
     .help = "Sequence parallelism: the tensor ranks also divide the tokens of a micro-batch, for "
             "norms, dropout and residual additions. Less memory, and gathers and scatters instead "
             "of sums. Only gradients of norms are summed in another order. parallel.tp must "
             "divide train.micro_batch x model.context. Not for evaluation and samples."},
    {"parallel.dp", TR_KEY_FACTORS, .offset = offsetof(tr_config, parallel.dp),
     .size = 2 * sizeof(int64_t), .min = 1, .max = 65536, .fallback = "1", .example = "2x4",
     .help =
         "Data-parallel ranks: they share the batch. 2x4 is 8 ranks in 2 runs of 4 neighbours, for "
         "example the GPUs of a host: the ranks of a run divide what parallel.zero says, and sum "
         "gradients first; ranks at the same place of all runs then sum these sums, so that few "
         "bytes travel between runs. Other bits than 8, and the same with every parallel.zero."},
    {"parallel.zero", INT(parallel.zero, 0, 3), .fallback = "0",
     .help =
         "What data ranks divide among them (ZeRO): 0: nothing; 1: the optimizer's state, and in "
         "bf16 the fp32 copies of parameters; 2: the gradients, too, which saves memory with "
         "parallel.schedule bfs and three stages a rank or more; 3: the parameters, too, which are "
         "gathered stage by stage before they are used, for the same orders. The same bits with "
         "all. A matrix that muon steps, and a tensor of adafactor, belongs to one data rank."},
    {"parallel.reduce", TR_KEY_CHOICE, AT(parallel.reduce), .fallback = "fp32",
     .choices = "fp32 bf16",
     .help =
         "Type in which gradients travel between the data ranks, and the tensor ranks, that sum "
         "them. bf16 halves the bytes: "
         "each rank rounds its gradient, the rounded ones are added in fp32 in the order of the "
         "ranks, and the sum is rounded once. The same bits with every parallel.zero. Not with "
         "train.precision fp64."},
    {"parallel.virtual", INT(parallel.virtual_stages, 0, 4096), .fallback = "0",
     .help = "Stages of each rank; 0: the schedule's own number (2 for zbv, v-half, v-min, 1f1b-v "
             "and dualpipev, 1 for most others; with 1 interleaved is 1f1b)."},
    {"parallel.schedule", TR_KEY_SCHEDULE, AT(parallel.schedule), .fallback = "1f1b", .local = true,
     .help = "Order of the micro-batches: a name (gpipe: all forward, then all backward; 1f1b: "
             "alternating; ...; docs/schedules.md compares them), or the path of a CSV file in "
             "PyTorch's form, which ends in .csv."},
    {"parallel.cut", TR_KEY_TEXT, AT(parallel.cut), .fallback = TR_LAYER_CUT_AUTO,
     .example = "Ett|ttL",
     .help = "Which layers each stage has: auto (the cut with the shortest simulated step), or a "
             "text in the form of Megatron-LM's --pipeline-model-parallel-layout, like "
             "Et*3|(t*4|)*2tL: E the embedding, t a block, L the head, | the end of a stage. The "
             "number of stages gives parallel.virtual unless that is set."},
    {"parallel.deadline", FLOAT(parallel.deadline, 0.1, 1e9), .fallback = "600",
     .help = "Seconds that a rank may wait for another one that is alive; then the run ends with "
             "exit code 77."},
    {"parallel.transport", TR_KEY_CHOICE, AT(parallel.transport), .fallback = "auto",
     .choices = "auto mpi nccl",
     .help = "How data travel between GPUs: nccl (one GPU a rank), mpi (through the hosts), or "
             "auto (nccl if every rank has its own GPU)."},

    {"checkpoint.every", INT(checkpoint.every, 0, BIG), .fallback = "0",
     .help = "Steps between two checkpoints; 0: only at the end of the run."},
    {"checkpoint.keep", INT(checkpoint.keep, 2, 1048576), .fallback = "2",
     .help = "How many of the newest checkpoints are kept."},
    {"checkpoint.keep_every", INT(checkpoint.keep_every, 0, BIG), .fallback = "0",
     .help =
         "Checkpoints of steps that are multiples of this number stay, too; it is a multiple of "
         "checkpoint.every. 0: none."},
    {"checkpoint.background", TR_KEY_BOOL, AT(checkpoint.background), .fallback = "false",
     .help =
         "Train on while a checkpoint is written, from a copy in the host's memory of what each "
         "rank saves. That takes as many bytes as the checkpoint, so it is not the default. The "
         "last save of a run is never made in the background. Needs checkpoint.every."},

    {"guard.action", TR_KEY_CHOICE, AT(guard.action), .fallback = "warn",
     .choices = "warn skip rollback",
     .help =
         "When the loss or gradient norm of a step is beyond guard.sigma: warn; "
         "skip (it changes no parameter); or rollback, which needs guard.sigma (the run goes back "
         "to its newest checkpoint and steps over the data read since; without one the step is "
         "skipped). A loss or norm that is not finite ends the run (exit code 65); with skip, and "
         "in fp16, the step is skipped."},
    {"guard.sigma", FLOAT(guard.sigma, 0, 1e9), .fallback = "0", .example = "6",
     .help =
         "Standard deviations above its running mean from which a step's loss or gradient "
         "norm is out of line; 0: never. Mean and deviation weigh the newest 100 steps most, so "
         "for some hundred steps after a fast fall of the loss only a large jump is out of line. "
         "None of the first 20 steps is."},
    {"guard.skips", INT(guard.skips, 1, BIG), .fallback = "20",
     .help =
         "The run ends (exit code 65) after this many skipped steps in a row; with guard.action "
         "rollback, after this many steps out of line since the newest checkpoint."},

    {"log.dir", TR_KEY_TEXT, AT(log.dir), .example = "runs/first",
     .help = "Run directory: metrics, resolved config, checkpoints. Default: runs/ and the name of "
             "the config file."},
    {"log.every", INT(log.every, 1, BIG), .fallback = "10",
     .help = "Steps between two progress lines when the output is not a terminal."},
    {"log.noise_scale", TR_KEY_BOOL, AT(log.noise_scale), .fallback = "false",
     .help = "Measure the gradient noise scale, the tokens of a batch beyond which a larger one "
             "saves few steps."},

    {"device.name", TR_KEY_DEVICE, AT(device.name), .fallback = "cpu", .example = "cpu",
     .local = true,
     .help =
         "Where ranks compute: cpu, cuda (a host's GPUs in turn), cuda:N, or ref (slow, exact)."},
    {"device.memory", TR_KEY_BYTES, AT(device.memory), .min = 0, .max = 1e15, .fallback = "0",
     .example = "16GiB", .local = true,
     .help = "Memory that a rank may use, like 16GiB; 0: what is free on its device."},
    {"device.offload", TR_KEY_PATTERNS, AT(device.offload), .fallback = "none",
     .example = "optimizer activations:0-1",
     .help =
         "What a GPU keeps in its host's memory: none; optimizer (the optimizer's state, and in "
         "bf16 and fp16 the fp32 copies of parameters, which the host's cores step); activations "
         "(what forward keeps for backward, of all stages, or with :FIRST-LAST or :NUMBER of "
         "these), which go out and come back while the GPU computes; or both. The same bits. Also "
         "a YAML list. Not on CPUs."},
    {"device.link", FLOAT(device.link, 0, 1e6), .fallback = "0", .example = "300",
     .help =
         "GB/s from a rank to another one on its host, for the plan and the order auto; 0: 1 on "
         "a CPU, 10 on a GPU."},
    {"device.link_latency", FLOAT(device.link_latency, 0, 1e9), .fallback = "0", .example = "5",
     .help = "Microseconds that a message takes between ranks of a host, besides its bytes."},
    {"device.network", FLOAT(device.network, 0, 1e6), .fallback = "0", .example = "25",
     .help = "GB/s from a rank to one on another host; 0: those of device.link."},
    {"device.network_latency", FLOAT(device.network_latency, 0, 1e9), .fallback = "0",
     .example = "20",
     .help = "Microseconds that a message takes between hosts, besides its bytes; 0: those of "
             "device.link_latency."},
    {"device.host_ranks", INT(device.host_ranks, 0, 1 << 20), .fallback = "0", .example = "8",
     .help = "Ranks of a host, for the plan and the order auto, which fill one host after another; "
             "0: all are on one host."},
    {"device.host_link", FLOAT(device.host_link, 0, 1e6), .fallback = "0", .example = "50",
     .help = "GB/s from a rank's device to its host's memory, and back at one time, for what "
             "device.offload copies; 0: those of device.link, at most 10 on a GPU."},
    {"device.host_memory", TR_KEY_BYTES, AT(device.host_memory), .min = 0, .max = 1e15,
     .fallback = "0", .example = "512GiB",
     .help =
         "Memory of a host that device.offload of all its ranks may take, for the plan; 0: what "
         "is free on this machine, if it has the device."},
};
const int tr_schema_count = sizeof tr_schema / sizeof *tr_schema;
_Static_assert(sizeof tr_schema / sizeof *tr_schema <= TR_CONFIG_KEYS, "tr_config.place is short");

int tr_schema_find(const char *name) {
    for (int i = 0; i < tr_schema_count; i++)
        if (!strcmp(tr_schema[i].name, name)) return i;
    return -1;
}

static const char *full_name(const void *names, int index) {
    return ((const tr_key *)names)[index].name;
}

static const char *last_part(const void *names, int index) {
    return strchr(((const tr_key *)names)[index].name, '.') + 1;
}

bool tr_schema_ends_with(int index, const char *name) {
    static const char separators[] = ".-_";
    const char *full = tr_schema[index].name;
    const size_t length = strlen(full), n = strlen(name);
    if (n == 0 || n > length || (n < length && full[length - n - 1] != '.')) return false;
    full += length - n;
    for (size_t i = 0; i < n; i++)
        if (name[i] != full[i] && (!strchr(separators, name[i]) || !strchr(separators, full[i])))
            return false;
    return true;
}

/* Returns the index of the shortest key that begins with this name, the first one among equals, or
 * -1. */
static int shortest_that_begins(const char *name) {
    int best = -1;
    for (int i = 0; i < tr_schema_count; i++) {
        if (strncmp(tr_schema[i].name, name, strlen(name)) != 0) continue;
        if (best < 0 || strlen(tr_schema[i].name) < strlen(tr_schema[best].name)) best = i;
    }
    return best;
}

int tr_schema_nearest(const char *name) {
    const char *dot = strrchr(name, '.');
    const char *last = dot ? dot + 1 : name;
    for (int i = 0; i < tr_schema_count; i++)
        if (tr_schema_ends_with(i, name)) return i;
    const char *own = tr_key_elsewhere(name);
    if (own) return tr_schema_find(own);
    for (int i = 0; i < tr_schema_count; i++)
        if (!strcmp(last_part(tr_schema, i), last)) {
            int full = dot ? tr_nearest(name, full_name, tr_schema, tr_schema_count) : -1;
            return full >= 0 && !strcmp(last_part(tr_schema, full), last) ? full : i;
        }
    own = tr_key_elsewhere(last);
    if (own) return tr_schema_find(own);
    const int begun = dot ? shortest_that_begins(name) : -1;
    if (begun >= 0) return begun;
    /* A name with a section is compared as a whole only when its last part is near, too. */
    if (dot) {
        int full = tr_nearest(name, full_name, tr_schema, tr_schema_count);
        int far =
            tr_edit_distance(last, full >= 0 ? strrchr(full_name(tr_schema, full), '.') + 1 : "");
        if (full >= 0 && far < (int)strlen(last)) return full;
    }
    return tr_nearest(last, last_part, tr_schema, tr_schema_count);
}

const char *const tr_sections[] = {"model",    "model.lora", "data",  "train", "optim",
                                   "parallel", "checkpoint", "guard", "log",   "device"};
const int tr_section_count = sizeof tr_sections / sizeof *tr_sections;

bool tr_schema_is_section(const char *name) {
    for (int i = 0; i < tr_section_count; i++)
        if (!strcmp(tr_sections[i], name)) return true;
    return false;
}

const char *tr_schema_nearest_section(const char *name) {
    for (int i = 0; i < tr_section_count; i++)
        if (!strncmp(name, tr_sections[i], strlen(tr_sections[i]))) return tr_sections[i];
    char section[32];
    (void)snprintf(section, sizeof section, "%.*s", (int)strcspn(name, "."), name);
    const int near = tr_nearest(section, tr_word_at, tr_sections, tr_section_count);
    return near < 0 ? NULL : tr_sections[near];
}
