#include "config/elsewhere.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* What Megatron-LM, torchtitan, transformers, PEFT and nanoGPT call a key, and what they, PyTorch
 * and others call a command (in backticks here), an option (as in our usage), an operand that they
 * have an option for (likewise, in capital letters) and a value (after '='). A remark is for
 * options, commands and keys without such a name here; it begins in brackets with the commands that
 * have not the option, "trireme" for a command, and "key" for a key. Their names are in small
 * letters here, and '-' is written as '_'. */
static const struct {
    const char *ours, *names; /* with one space between them */
} elsewhere[] = {
    {"(trireme) every run writes report.html to its log.dir", "report plot tensorboard dashboard"},
    {"(ckpt) nothing is overwritten: name a new folder", "force overwrite yes"},
    {"(key plan train) FP8 is not supported: set train.precision to bf16",
     "fp8 fp8_format fp8_recipe float8"},
    {"(key plan train) mixtures of experts are not supported: every layer has one MLP",
     "moe experts num_experts num_local_experts n_routed_experts num_experts_per_tok "
     "num_experts_per_token moe_router_topk ep expert_parallel expert_parallel_size "
     "expert_parallel_degree expert_model_parallel_size"},
    {"(key plan train) ranks do not divide the attention over a sequence: parallel.tp with "
     "parallel.sequence, or train.recompute, saves memory for long ones",
     "cp context_parallel context_parallel_size context_parallel_degree"},
    {"(plan ckpt schedule) only eval and simulate write JSON", "json"},
    {"(sample) with --prompts FILE every text is a line of JSON", "json jsonl"},
    {"(train) every run writes metrics.jsonl and TensorBoard events to log.dir",
     "wandb use_wandb wandb_project wandb_name report_to tensorboard logger json csv"},
    {"(train) log.every sets how often a line is printed", "verbose v quiet q silent log_level"},
    {"(train) nothing is overwritten: continue the run with --resume, or set another log.dir",
     "force overwrite overwrite_output_dir yes"},
    {"`trireme ckpt export RUN FOLDER`", "merge merge_adapter merge_and_unload"},
    {"`trireme ckpt import` or `trireme ckpt export`", "convert converter checkpoint_convert"},
    {"`trireme data tokenize`", "preprocess preprocess_data prepare encode"},
    {"`trireme data train-bpe`", "train_tokenizer"},
    {"`trireme eval RUN`", "evaluate evaluation lm_eval validate"},
    {"`trireme help parallel.cut`", "split partition"},
    {"`trireme plan CONFIG`", "estimate estimate_memory memory dry_run"},
    {"`trireme plan CONFIG --search RANKS`", "search tune autotune"},
    {"`trireme run -n RANKS train CONFIG`", "launch torchrun mpirun distributed"},
    {"`trireme sample RUN`", "generate inference infer predict complete"},
    {"`trireme sample RUN --interactive`", "chat serve server interactive"},
    {"`trireme schedule show NAME`", "draw visualize visualise"},
    {"`trireme train CONFIG`", "pretrain fit"},
    {"`trireme train CONFIG --resume`", "resume continue"},
    {"`trireme train CONFIG --trace N`", "profile"},
    {"`trireme train CONFIG model.init_from=FOLDER`", "finetune fine_tune finetuning sft lora"},
    {"--adapter", "lora peft adapter_only"},
    {"--data FILES", "dataset tasks task input file data_path"},
    {"--dtype fp32|bf16|fp16", "torch_dtype precision"},
    {"--hostfile FILE", "machinefile hosts host_file host h nnodes nodes num_nodes"},
    {"--interactive", "chat"},
    {"--key KEY", "json_key json_keys text_column text_key"},
    {"--prompts FILE", "prompt_file input input_file file"},
    {"--rate GFLOP/s", "flops gflops tflops"},
    {"--repetition-penalty R", "repeat_penalty presence_penalty frequency_penalty"},
    {"--resume", "resume_from resume_from_checkpoint load checkpoint ckpt continue auto_resume"},
    {"--search RANKS",
     "n ranks gpus world_size nproc nproc_per_node num_gpus num_processes tune autotune"},
    {"--step N", "iter iteration global_step"},
    {"--stop TEXT", "stop_sequence stop_sequences stop_strings"},
    {"--svg FILE", "o out output png"},
    {"--temperature T", "t greedy do_sample"},
    {"--threads N", "workers num_workers num_proc j jobs"},
    {"--time-limit T", "timeout max_time walltime"},
    {"--tokenizer FILE|DIR",
     "tokenizer_model tokenizer_path tokenizer_name vocab_file model vocab t"},
    {"--trace N", "profile"},
    {"--vocab N", "vocab_size"},
    {"-m M", "micro_batches microbatches num_microbatches n_microbatches"},
    {"-n RANKS", "nproc_per_node num_gpus num_processes nproc np gpus ranks world_size devices"},
    {"-n TOKENS", "max_new_tokens max_tokens max_length num_tokens length n_predict"},
    {"-o FILE.csv", "out output"},
    {"-o FILE|DIR", "out output output_dir"},
    {"-o PREFIX", "output_prefix output output_path out"},
    {"-p P", "pp ranks stages num_stages pipeline_parallel_size world_size"},
    {"-p TEXT", "prompt start"},
    {"-v V", "virtual virtual_stages chunks num_chunks"},
    {"CONFIG", "config config_file config_path cfg yaml c f"},
    {"CONFIG|FILE", "input file data i"},
    {"FILES...", "input inputs file files i"},
    {"FOLDER|FILE RUN", "input output model from to"},
    {"NAME|FILE", "schedule name"},
    {"RUN", "model run load checkpoint ckpt model_path model_name_or_path"},
    {"RUN FOLDER", "output output_dir out o to"},
    {"RUN [STEP]", "step iter iteration"},
    {"=1f1b", "schedule1f1b pipedream_flush one_f_one_b"},
    {"=adamw", "adamw_torch adamw_torch_fused adamw_hf fusedadam"},
    {"=bf16", "bfloat16 bf16_mixed"},
    {"=bfs", "breadth_first looped_bfs loopedbfs schedulelooped_bfs scheduleloopedbfs"},
    {"=constant", "constant_with_warmup"},
    {"=cosine", "cosine_with_warmup cosine_with_restarts cosine_with_min_lr"},
    {"=cpu", "host"},
    {"=cuda", "gpu nvidia"},
    {"=cycles", "cyclic"},
    {"=dualpipev", "scheduledualpipev"},
    {"=false", "no off 0"},
    {"=fp16", "float16 half fp16_mixed"},
    {"=fp32", "float32 float"},
    {"=fp64", "float64 double"},
    {"=gelu_tanh", "gelu_new gelu_pytorch_tanh gelu_fast"},
    {"=gpipe", "schedulegpipe fthenb"},
    {"=he", "kaiming kaiming_normal"},
    {"=int8", "8bit"},
    {"=interleaved", "depth_first looped_dfs interleaved1f1b interleaved_1f1b "
                     "scheduleinterleaved1f1b 1f1b_interleaved vpp"},
    {"=interleaved-zb", "interleavedzerobubble scheduleinterleavedzerobubble"},
    {"=inverse-root", "inverse_sqrt inverse_square_root"},
    {"=linear", "linear_with_warmup"},
    {"=optimizer", "cpu"}, /* of device.offload */
    {"=relu2", "squared_relu relu_squared"},
    {"=steps", "multistep"},
    {"=swiglu", "silu"},
    {"=text", "txt"},
    {"=true", "yes on 1"},
    {"=truncated", "trunc_normal truncated_normal"},
    {"=wsd", "warmup_stable_decay"},
    {"=xavier", "glorot xavier_uniform glorot_uniform"},
    {"=zb-h1", "zero_bubble"},
    {"=zbv", "zbvzerobubble schedulezbvzerobubble"},
    {"model.preset", "model model_name model.name"},
    {"model.family", "model_type model.type architecture"},
    {"model.layers", "num_layers num_hidden_layers n_layers n_layer"},
    {"model.width", "hidden_size n_embd d_model dim"},
    {"model.heads", "num_attention_heads n_heads n_head"},
    {"model.kv_heads", "num_key_value_heads num_query_groups n_kv_heads"},
    {"model.head_size", "head_dim kv_channels"},
    {"model.mlp_width", "intermediate_size ffn_hidden_size n_inner"},
    {"model.context",
     "seq_length seq_len max_seq_len max_position_embeddings block_size n_positions "
     "context_length max_seq_length"},
    {"model.vocab", "vocab_size"},
    {"model.norm_eps", "rms_norm_eps norm_epsilon layer_norm_epsilon"},
    {"model.rope_theta", "rotary_base"},
    {"model.window", "sliding_window"},
    {"model.tie", "tie_word_embeddings"},
    {"model.init_from", "model_name_or_path pretrained"},
    {"model.lora.rank", "lora_rank lora_r lora"},
    {"model.lora.alpha", "lora_alpha"},
    {"model.lora.targets", "target_modules"},
    {"data.path", "data_path dataset_path data dataset train_data train_file input"},
    {"data.validation", "val_data valid_data eval_data validation_file"},
    {"data.tokenizer", "tokenizer_model tokenizer_path vocab_file"},
    {"train.steps",
     "train_iters max_iters max_steps num_steps train_steps iterations epochs num_epochs "
     "num_train_epochs"},
    {"train.batch", "global_batch_size train_batch_size batch_size gradient_accumulation_steps"},
    {"train.micro_batch", "micro_batch_size local_batch_size pipeline_parallel_microbatch_size "
                          "per_device_train_batch_size"},
    {"train.batch_warmup", "rampup_batch_size"},
    {"train.precision", "dtype torch_dtype mixed_precision bf16 fp16 amp"},
    {"train.recompute", "recompute_granularity activation_checkpoint gradient_checkpointing"},
    {"train.validate_every", "eval_interval eval_steps"},
    {"optim.name", "optimizer"},
    {"optim.lr", "learning_rate"},
    {"optim.weight_decay", "wd"},
    {"optim.beta1", "adam_beta1"},
    {"optim.beta2", "adam_beta2"},
    {"optim.eps", "adam_eps adam_epsilon"},
    {"optim.warmup", "lr_warmup_iters warmup_iters lr_warmup_steps warmup_steps warmup_ratio"},
    {"optim.schedule", "lr_decay_style lr_scheduler_type"},
    {"optim.horizon", "lr_decay_iters"},
    {"optim.clip", "clip_grad grad_clip max_norm max_grad_norm"},
    {"parallel.tp", "tensor_model_parallel_size tensor_parallel_degree"},
    {"parallel.pp", "pipeline_model_parallel_size pipeline_parallel_degree"},
    {"parallel.dp", "data_parallel_replicate_degree"},
    {"parallel.zero",
     "use_distributed_optimizer data_parallel_shard_degree zero_stage fsdp deepspeed"},
    {"parallel.sequence", "sequence_parallel"},
    {"parallel.virtual", "num_virtual_stages_per_pipeline_rank"},
    {"parallel.schedule", "pipeline_parallel_schedule pipeline_parallel_schedule_csv"},
    {"parallel.cut", "pipeline_model_parallel_layout"},
    {"checkpoint.every", "save_interval save_steps save_every"},
    {"device.name", "device cpu cuda use_cpu no_cuda"},
    {"device.memory", "gpu_memory max_memory"},
    {"device.offload", "cpu_offload"},
    {"log.dir",
     "output_dir dump_folder output out o save save_dir run_dir run_name logdir logging_dir "
     "tensorboard_dir checkpoint_dir ckpt_dir"},
    {"log.every", "log_interval log_freq logging_steps"},
};

enum { ROWS = sizeof elsewhere / sizeof *elsewhere };

/* Returns the first row from number `row` on that has this name, or ROWS. */
static int find(const char *name, int row) {
    char word[64];
    const size_t length = strlen(name);
    if (length == 0 || length >= sizeof word || strchr(name, ' ')) return ROWS;
    for (size_t i = 0; i <= length; i++)
        word[i] = name[i] == '-' ? '_' : (char)tolower((unsigned char)name[i]);
    for (; row < ROWS; row++)
        for (const char *at = elsewhere[row].names; (at = strstr(at, word)); at += length)
            if ((at == elsewhere[row].names || at[-1] == ' ') && strchr(" ", at[length]))
                return row;
    return ROWS;
}

const char *tr_key_elsewhere(const char *name) {
    for (int row = -1; (row = find(name, row + 1)) < ROWS;)
        if (islower((unsigned char)*elsewhere[row].ours)) return elsewhere[row].ours;
    return NULL;
}

const char *tr_command_elsewhere(const char *name) {
    for (int row = -1; (row = find(name, row + 1)) < ROWS;)
        if (*elsewhere[row].ours == '`') return elsewhere[row].ours;
    return NULL;
}

const char *tr_remark_elsewhere(const char *name, const char *command) {
    const size_t length = strlen(command);
    for (int row = -1; (row = find(name, row + 1)) < ROWS;) {
        const char *ours = elsewhere[row].ours, *end = strchr(ours, ')');
        if (*ours != '(') continue;
        for (const char *at = ours; (at = strstr(at + 1, command)) && at < end;)
            if (strchr("( ", at[-1]) && strchr(" )", at[length])) return end + 2;
    }
    return NULL;
}

/* Returns true when the usage has these words, and not only parts of them. */
static bool has_words(const char *usage, const char *words) {
    for (const char *at = usage; (at = strstr(at, words)); at++)
        if ((at == usage || strchr(" [", at[-1])) && strchr(" []|", at[strlen(words)])) return true;
    return false;
}

const char *tr_option_elsewhere(const char *name, const char *usage) {
    for (int row = -1; (row = find(name, row + 1)) < ROWS;) {
        const char *ours = elsewhere[row].ours;
        if ((*ours == '-' || isupper((unsigned char)*ours)) && has_words(usage, ours)) return ours;
    }
    return NULL;
}

tr_hint tr_value_hint(const char *value, const char *const *words, int count) {
    for (int row = -1; (row = find(value, row + 1)) < ROWS;)
        for (int i = 0; *elsewhere[row].ours == '=' && i < count; i++)
            if (!strcmp(elsewhere[row].ours + 1, words[i])) return tr_hint_at(words[i]);
    return tr_nearest_hint(value, strlen(value), words, count);
}
