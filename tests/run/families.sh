#!/usr/bin/env bash
# Tests that every family, two of them with packed documents, trains, samples and resumes: with the same bits
# under every cut and schedule, and with the same losses except for the order of sums under tensor and data
# ranks (also with more tensor ranks than key heads). Planned bytes are allocated bytes, and a checkpoint of
# any layout can be resumed on another one.
# usage: families.sh TRIREME SCRATCH_DIR     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1
scratch=$2
source "$(dirname "$0")/common.sh"
cat >"$scratch/base.yaml" <<Y
model: {layers: 4, width: 32, heads: 4, kv_heads: 2, context: 32, vocab: 300, window: 9}
data: {path: $text}
train: {steps: 6, batch: 8, micro_batch: 1, seed: 7, precision: fp32, threads: 1, validate_every: 3, validate_batches: 1}
optim: {lr: 0.003, warmup: 2, clip: 0}
checkpoint: {every: 1, keep: 7}
log: {every: 6}
Y

# same_bits A B: losses, norms and parameters must be the same bits.
same_bits() {
    same_curve "$1" "$2"
    same_tensors "$1" "$2" 6
}

# The schedule of each family's pipeline: its ranks, name and stages of a rank.
declare -A pipeline=([llama]="2 zbv 2" [qwen2]="4 1f1b 1" [qwen3]="2 zbv 2" [mistral]="2 interleaved 2" [gpt2]="2 zb-h2 1")

# family NAME ARGUMENTS...: tests its layouts.
family() {
    local name=$1 tp=4 dp=1 pp schedule stages
    shift
    train 0 1 "$name" "$@"
    as_planned "$name"
    read -r pp schedule stages <<<"${pipeline[$name]}"
    train 0 "$pp" "$name-pp" parallel.pp="$pp" parallel.schedule="$schedule" parallel.virtual="$stages" "$@"
    same_bits "$name-pp" "$name"
    as_planned "$name-pp"
    train 0 $((tp * dp)) "$name-tp" parallel.tp=$tp parallel.dp=$dp "$@"
    near "$name-tp" "$name"
    "$tools/ckpt_compare" gradients "$(step_dir "$name-tp" 1)" "$(step_dir "$name" 1)" 1e-5 ||
        fail "$name: gradients of step 1 under tp $tp dp $dp"
}

packed=(data.documents=packed data.document_end=10)
family llama model.family=llama "${packed[@]}"
family qwen2 model.family=qwen2 model.tie=true model.rope_scaling="llama3 8 1 4 16"
family qwen3 model.family=qwen3 model.head_size=10 model.activation=geglu
family mistral model.family=mistral model.kv_heads=1 model.rope_scaling="yarn 4 16"
family gpt2 model.family=gpt2 model.tie=false model.window=0 model.activation=gelu "${packed[@]}"

# Without dropout products add the residual and W reads the gradient of the output: the bits are the same with
# schedules that split I and W.
for precision in fp32 bf16; do
    bare=(model.family=gpt2 model.layers=6 model.window=0 model.dropout=0 train.precision=$precision)
    train 0 1 bare-$precision "${bare[@]}"
    train 0 2 bare-$precision-h2 parallel.pp=2 parallel.schedule=zb-h2 "${bare[@]}"
    train 0 2 bare-$precision-v3 parallel.pp=2 parallel.virtual=3 parallel.schedule=interleaved-zb "${bare[@]}"
    for layout in h2 v3; do same_bits bare-$precision-$layout bare-$precision; done
done

# A run of tensor ranks continues with data ranks and stages, and is sampled on one rank.
rm -rf "$scratch/llama-tp/ckpt/step-0000000"[456]
train 0 4 llama-tp --resume parallel.tp=1 parallel.dp=2 parallel.pp=2 model.family=llama "${packed[@]}"
near llama-tp llama
"$trireme" sample "$scratch/qwen3-tp" -p "The " -n 8 >"$scratch/sample.out" || fail "no sample"
grep -q '^The ' "$scratch/sample.out" || fail "the sample is '$(<"$scratch/sample.out")'"

# transformers has no gpt2 with fewer key heads than heads.
refused 65 'transformers has no gpt2 with model.kv_heads below model.heads' ckpt export "$scratch/gpt2" "$scratch/out"
[[ ! -e $scratch/out ]] || fail "a refused export left a folder"

# A published model is planned without data, and its size is printed. Keys that contradict each other end with
# 78.
echo '{model.preset: llama-3-8b, train: {precision: bf16, batch: 8, micro_batch: 1}, parallel: {pp: 4, tp: 2}, device.memory: 80GiB}' >"$scratch/8b.yaml"
timeout 60 "$trireme" plan "$scratch/8b.yaml" --rate 400000 >"$scratch/plan.out" || fail "no plan of llama-3-8b"
grep -q '^model .* 8030.26 M parameters' "$scratch/plan.out" || fail "another size: $(head -n 1 "$scratch/plan.out")"
train 78 1 refused model.family=llama parallel.tp=3 model.heads=12 model.width=48 model.kv_heads=4
says refused '.*model.kv_heads 4 and parallel.tp 3 do not divide each other'
finish
