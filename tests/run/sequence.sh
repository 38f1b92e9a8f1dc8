#!/usr/bin/env bash
# Tests parallel.sequence: losses, norms, parameters and moments have the same bits on every cut and schedule, and are
# near those of runs without it; the first loss has their bits. Of the first gradients only those of norms differ.
# Every class of memory takes the planned bytes; activations and messages shrink. Runs continue with the other
# value of the key, decode and evaluate. Numbers of tokens that the tensor ranks cannot divide are refused.
# usage: sequence.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1
scratch=$2
source "$(dirname "$0")/common.sh"
halve

# on and off NAME RANKS ARGUMENTS...: a run with, or without, sequence parallelism.
on() { train 0 "$2" "$1" "${@:3}" parallel.sequence=true; as_planned "$1"; }
off() { train 0 "$2" "$1" "${@:3}"; }

# same RUN REFERENCE: both have the same bits, and the same parameters and moments at the end.
same() { same_curve "$1" "$2"; same_tensors "$1" "$2" 10; }

first_loss() { field "$1" loss | head -n 1; }

# check NAME TP ARGUMENTS...: one stage, and two with I and W apart and not, have the bits of each other, and are near
# the run without sequence parallelism.
check() {
    local name=$1 tp=$2
    shift 2
    [[ $name == gpt2 ]] || drawn "$name" || return 0 # later runs are compared with gpt2
    off "$name-off" "$tp" parallel.tp="$tp" "$@"
    on "$name" "$tp" parallel.tp="$tp" "$@"
    on "$name-zb" $((2 * tp)) parallel.tp="$tp" parallel.pp=2 parallel.schedule=zbv "$@"
    same "$name-zb" "$name"
    near "$name" "$name-off"
    [[ $(first_loss "$name") == "$(first_loss "$name-off")" ]] || fail "$name: the first loss has other bits than without"
}

# 96 and 64 tokens of a micro-batch: slices that begin within sequences.
check gpt2 2 train.micro_batch=3
for order in "interleaved parallel.virtual=2" gpipe; do
    read -ra words <<<"$order"
    drawn "${words[0]}" || continue
    on "gpt2-${words[0]}" 4 parallel.tp=2 train.micro_batch=3 parallel.pp=2 parallel.schedule="${words[0]}" "${words[@]:1}"
    same "gpt2-${words[0]}" gpt2
done
check gpt2-tp4 4 train.micro_batch=2
check llama 2 model.family=llama model.kv_heads=1 train.micro_batch=3
check qwen3 4 model.family=qwen3 model.kv_heads=2 train.recompute=selective
check qwen2 2 model.family=qwen2 train.recompute=full model.dropout=0
check mistral 2 model.family=mistral model.window=5
off bf16-off 2 parallel.tp=2 train.precision=bf16
on bf16 2 parallel.tp=2 train.precision=bf16
# Messages of texts that are decoded between steps have more tokens than slices.
on bf16-zb 4 parallel.tp=2 parallel.pp=2 parallel.schedule=zb-h1 train.precision=bf16 train.sample_every=5
same bf16-zb bf16
[[ $(first_loss bf16) == "$(first_loss bf16-off)" ]] || fail "bf16: the first loss has other bits than without"

# What recomputes or offers no choice changes no bit.
for mode in selective full full:0-1,selective:3; do
    drawn "$mode" || continue
    on "recompute-$mode" 2 parallel.tp=2 train.micro_batch=3 train.recompute="$mode"
    same "recompute-$mode" gpt2
done
if drawn zero; then
    on zero0 4 parallel.tp=2 parallel.dp=2
    on zero3 4 parallel.tp=2 parallel.dp=2 parallel.zero=3
    same zero3 zero0
fi

# Documents, and learned positions in them; low-rank updates; frozen parts.
check documents 2 data.documents=packed data.document_end=10 train.micro_batch=3
check lora 2 model.family=llama model.kv_heads=1 model.lora.rank=4 train.micro_batch=3 model.lora.targets=all-linear
check frozen 2 "train.freeze=*.h.[01].* *.wte.* *.wpe.* *.mlp.c_fc.*"

# The first gradients (AdamW's first moments without clipping) are those without, except of norms.
off grad-off 2 parallel.tp=2 train.steps=1 optim.clip=0 checkpoint.every=1 train.micro_batch=3
on grad 2 parallel.tp=2 train.steps=1 optim.clip=0 checkpoint.every=1 train.micro_batch=3
"$tools/ckpt_compare" gradients "$(step_dir grad-off 1)" "$(step_dir grad 1)" 1e-5 || fail "gradients"

# A run continues on the same layout with the same bits, and with the other value.
continued() { # RUN REFERENCE ARGUMENTS...: continues REFERENCE, a run of 2 ranks, from its step 5 as RUN.
    cp -r "$scratch/$2" "$scratch/$1"
    rm -r "$(step_dir "$1" 10)"
    train 0 2 "$1" --resume parallel.tp=2 train.micro_batch=3 "${@:3}"
}
continued again gpt2 parallel.sequence=true
same again gpt2
continued to-off gpt2 parallel.sequence=false
continued to-on gpt2-off parallel.sequence=true
near to-off gpt2-off
near to-on gpt2

# Evaluation and samples, on ranks that could not divide the tokens.
"$trireme" run -n 3 eval "$scratch/gpt2" parallel.pp=3 >"$scratch/eval" || fail "eval"
"$trireme" run -n 4 eval "$scratch/gpt2" parallel.tp=4 >"$scratch/eval" || fail "eval with tp 4"
"$trireme" sample "$scratch/gpt2" -p "The " -n 8 train.threads=1 >"$scratch/one" || fail "sample"
"$trireme" run -n 2 sample "$scratch/gpt2" -p "The " -n 8 train.threads=1 parallel.tp=2 >"$scratch/two" || fail "sample with tp 2"
diff "$scratch/one" "$scratch/two" || fail "samples differ"

# Messages are 1 / tp: MiB and the sums of `plan`.
plan() { "$trireme" plan "$scratch/base.yaml" parallel.pp=2 parallel.tp=2 device.memory=1GiB --rate 100 device.link=1 "$@"; }
plan >"$scratch/plan-off" model.width=1024 model.vocab=500
plan >"$scratch/plan" model.width=1024 model.vocab=500 parallel.sequence=true
messages() { sed -nE 's/^messages ([0-9.]+) MiB .*/\1/p' "$1"; }
[[ $(messages "$scratch/plan-off") == 1.5 && $(messages "$scratch/plan") == 0.8 ]] ||
    fail "messages: $(messages "$scratch/plan-off") and $(messages "$scratch/plan") MiB"
grep -q '^layout   pp 2 x tp 2 (sequence) x dp 1' "$scratch/plan" || fail "plan: $(grep ^layout "$scratch/plan")"
grep -Eq '^tensor   .* in [0-9]+ collectives take' "$scratch/plan" || fail "plan: $(grep ^tensor "$scratch/plan")"
grep -q 'tp 2 (sequence) x dp 1' "$scratch/gpt2.out" || fail "the run's layout: $(grep ^layout "$scratch/gpt2.out")"
grep -q 'tp 2 (sequence) x dp 1' "$scratch/gpt2/report.html" || fail "the report's layout"

# One tensor rank has all rows: the key changes nothing.
train 0 1 whole train.steps=2 checkpoint.every=2
train 0 1 whole-on train.steps=2 checkpoint.every=2 parallel.sequence=true
same_curve whole-on whole
same_tensors whole-on whole 2

# What cannot be divided, and no answer.
train 78 1 odd parallel.tp=2 parallel.sequence=true model.context=33
says odd '.*parallel.sequence divides the 33 tokens of a micro-batch \(train.micro_batch 1 x 33\) equally among the ranks of parallel.tp 2'
train 78 1 third parallel.tp=4 parallel.sequence=true model.context=30 train.micro_batch=3
says third '.*parallel.sequence divides the 90 tokens'
train 78 1 maybe parallel.sequence=maybe
says maybe '.*parallel.sequence'
finish
