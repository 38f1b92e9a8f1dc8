#include "config/elsewhere.h"

#include <stdbool.h>
#include <string.h>

/* What Megatron-LM, torchtitan, transformers, PEFT and nanoGPT call a key, and what they and others
 * call a command, which is in backticks here; '-' is written as '_'. */
static const struct {
    const char *ours, *names; /* with one space between them */
} elsewhere[] = {
    {"`trireme ckpt export RUN FOLDER`", "merge merge_adapter merge_and_unload"},
    {"`trireme ckpt import` or `trireme ckpt export`", "convert converter checkpoint_convert"},
    {"`trireme data tokenize`", "preprocess preprocess_data prepare encode"},
    {"`trireme data train-bpe`", "train_tokenizer"},
    {"`trireme eval RUN`", "evaluate evaluation lm_eval validate"},
    {"`trireme help parallel.cut`", "split partition"},
    {"`trireme plan CONFIG`", "estimate estimate_memory memory"},
    {"`trireme plan CONFIG --search RANKS`", "search tune autotune"},
    {"`trireme run -n RANKS train CONFIG`", "launch torchrun mpirun distributed"},
    {"`trireme sample RUN`", "generate inference infer predict complete"},
    {"`trireme sample RUN --interactive`", "chat serve server interactive"},
    {"`trireme schedule show NAME`", "draw visualize visualise"},
    {"`trireme train CONFIG`", "pretrain fit"},
    {"`trireme train CONFIG --resume`", "resume continue"},
    {"`trireme train CONFIG --trace N`", "profile"},
    {"`trireme train CONFIG model.init_from=FOLDER`", "finetune fine_tune finetuning sft lora"},
    {"model.layers", "num_layers num_hidden_layers n_layers n_layer"},
    {"model.width", "hidden_size n_embd d_model dim"},
    {"model.heads", "num_attention_heads n_heads n_head"},
    {"model.kv_heads", "num_key_value_heads num_query_groups n_kv_heads"},
    {"model.head_size", "head_dim kv_channels"},
    {"model.mlp_width", "intermediate_size ffn_hidden_size n_inner"},
    {"model.context",
     "seq_length seq_len max_seq_len max_position_embeddings block_size n_positions"},
    {"model.vocab", "vocab_size"},
    {"model.norm_eps", "rms_norm_eps norm_epsilon layer_norm_epsilon"},
    {"model.rope_theta", "rotary_base"},
    {"model.window", "sliding_window"},
    {"model.tie", "tie_word_embeddings"},
    {"model.init_from", "model_name_or_path"},
    {"model.lora.rank", "lora_rank lora_r"},
    {"model.lora.alpha", "lora_alpha"},
    {"model.lora.targets", "target_modules"},
    {"data.path", "data_path dataset_path"},
    {"data.tokenizer", "tokenizer_model tokenizer_path"},
    {"train.steps", "train_iters max_iters max_steps"},
    {"train.batch", "global_batch_size"},
    {"train.micro_batch", "micro_batch_size local_batch_size pipeline_parallel_microbatch_size "
                          "per_device_train_batch_size"},
    {"train.batch_warmup", "rampup_batch_size"},
    {"train.recompute", "recompute_granularity activation_checkpoint gradient_checkpointing"},
    {"train.validate_every", "eval_interval eval_steps"},
    {"optim.lr", "learning_rate"},
    {"optim.warmup", "lr_warmup_iters warmup_iters lr_warmup_steps warmup_steps"},
    {"optim.schedule", "lr_decay_style lr_scheduler_type"},
    {"optim.horizon", "lr_decay_iters"},
    {"optim.clip", "clip_grad grad_clip max_norm max_grad_norm"},
    {"parallel.tp", "tensor_model_parallel_size tensor_parallel_degree"},
    {"parallel.pp", "pipeline_model_parallel_size pipeline_parallel_degree"},
    {"parallel.dp", "data_parallel_replicate_degree"},
    {"parallel.zero", "use_distributed_optimizer data_parallel_shard_degree"},
    {"parallel.sequence", "sequence_parallel"},
    {"parallel.virtual", "num_virtual_stages_per_pipeline_rank"},
    {"parallel.schedule", "pipeline_parallel_schedule pipeline_parallel_schedule_csv"},
    {"parallel.cut", "pipeline_model_parallel_layout"},
    {"checkpoint.every", "save_interval save_steps"},
    {"log.dir", "output_dir dump_folder"},
    {"log.every", "log_interval log_freq logging_steps"},
};

static const char *find(const char *name, bool command) {
    char word[64];
    const size_t length = strlen(name);
    if (length == 0 || length >= sizeof word || strchr(name, ' ')) return NULL;
    for (size_t i = 0; i <= length; i++) word[i] = name[i] == '-' ? '_' : name[i];
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        if ((*elsewhere[i].ours == '`') != command) continue;
        for (const char *at = elsewhere[i].names; (at = strstr(at, word)); at += length)
            if ((at == elsewhere[i].names || at[-1] == ' ') && strchr(" ", at[length]))
                return elsewhere[i].ours;
    }
    return NULL;
}

const char *tr_key_elsewhere(const char *name) {
    return find(name, false);
}

const char *tr_command_elsewhere(const char *name) {
    return find(name, true);
}
