# A family's tiny preset, with options that are drawn, trains on a layout that is drawn, and on one rank: the same
# bits where only stages and schedule differ, otherwise near ones; every rank allocates what was planned.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
cat >base.yaml <<Y
model: {context: 32, layers: 8, width: 32, mlp_width: 64}
data: {path: $text}
train: {steps: 3, batch: 16, micro_batch: 1, seed: $seed, threads: 1, deterministic: true, validate_every: 3, validate_batches: 1}
optim: {lr: 0.003, warmup: 2, clip: 0}
checkpoint: {every: 1, keep: 3}
log: {every: 3}
Y

# --- what is drawn -------------------------------------------------------------------------------------

pick family gpt2 llama qwen2 qwen3 mistral
pick tied model.tie=true model.tie=false
pick documents "" "data.documents=packed data.document_end=10"
pick precision fp32 fp32 bf16 fp64
pick dropout 0 0.1
pick recompute none none selective full full:2-5,selective:6-7
pick pp 1 2 2 4
pick tp 1 1 2
pick dp 1 1 2
((pp * tp * dp > 1 && pp * tp * dp <= 8)) || pp=2 # of 2 to 8 ranks
pick placement "${orders[@]}"
read -r schedule stages <<<"$placement"
preset=$family-tiny
[[ $family != gpt2 ]] || preset=tiny
device=cpu
[[ $precision != fp64 ]] || device=ref
read -r -a words <<<"model.preset=$preset $tied $documents train.precision=$precision device.name=$device"
words+=(model.dropout=$dropout train.recompute=$recompute)
mesh=(parallel.tp="$tp" parallel.dp="$dp")
pipe=(parallel.pp="$pp")
((pp == 1)) || pipe+=(parallel.schedule="$schedule")
((pp == 1 || stages == 0)) || pipe+=(parallel.virtual="$stages")
what="${words[*]} ${mesh[*]} ${pipe[*]}"

# --- what must hold ------------------------------------------------------------------------------------

train 0 1 one "${words[@]}"
as_planned one
flat=one
if ((tp * dp > 1)); then
    flat=flat
    train 0 $((tp * dp)) flat "${words[@]}" "${mesh[@]}"
    as_planned flat
    # In BF16 a loss is off by less than one rounding.
    case $precision in
        fp32) near flat one ;;
        bf16) near flat one loss 0.004 ;;
        fp64) near flat one loss 1e-11 ;;
    esac
    if [[ $precision == fp32 ]]; then
        "$tools/ckpt_compare" gradients "$(step_dir flat 1)" "$(step_dir one 1)" 1e-5 || fail "gradients of step 1 under ${mesh[*]}"
    fi
fi
if ((pp > 1)); then
    train 0 $((pp * tp * dp)) piped "${words[@]}" "${mesh[@]}" "${pipe[@]}"
    as_planned piped
    same_curve piped "$flat"
    same_tensors piped "$flat" 3
fi
[[ $(last_step one) == 3 ]] || fail "one: not 3 steps"
