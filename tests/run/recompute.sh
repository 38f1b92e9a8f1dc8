#!/usr/bin/env bash
# Tests train.recompute: with every mode, on pipelines, tensor and data ranks, a run has the bits of one that
# keeps all its activations, takes exactly the planned bytes, and fewer of them; a checkpoint of one mode is
# resumed with another.
# usage: recompute.sh TRIREME SCRATCH_DIR     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1
scratch=$2
source "$(dirname "$0")/common.sh"
sed -i 's/steps: 20, batch: 12/steps: 4, batch: 4/; s/every: 10/every: 2/g; s/every: 20/every: 4/' "$scratch/base.yaml"

# activations RUN: prints the planned MiB of rank 0's activations.
activations() { sed -n 's/^memory .* planned = .* + activations \([0-9.]*\).*/\1/p' "$scratch/$1.out"; }

# same RUN REFERENCE: the bits must be the same, and the bytes those of the plan.
same() {
    same_curve "$1" "$2"
    same_tensors "$1" "$2" 4
    as_planned "$1"
}

# less A B: run A must plan fewer bytes of activations than B.
less() {
    awk -v a="$(activations "$1")" -v b="$(activations "$2")" 'BEGIN { exit !(a != "" && a < b) }' ||
        fail "$1 plans $(activations "$1") MiB of activations, $2 $(activations "$2")"
}

# layout NAME RANKS ARGUMENTS...: tests the modes on it.
layout() {
    local name=$1 ranks=$2 mode
    shift 2
    train 0 "$ranks" "$name" "$@"
    for mode in "${modes[@]}"; do
        train 0 "$ranks" "$name-$mode" train.recompute=$mode "$@"
        same "$name-$mode" "$name"
    done
}

modes=(full:0,selective:2-3 selective full)
layout gpt2 1 model.width=64 model.context=64
less gpt2-full gpt2-selective
less gpt2-selective gpt2
modes=(selective full)
layout llama 4 model.family=llama model.kv_heads=2 train.precision=bf16 parallel.pp=2 parallel.tp=2 parallel.schedule=zb-h1
layout qwen3 4 model.family=qwen3 parallel.tp=2 parallel.dp=2

# The first half with one mode and the second half with another has the same bits.
train 0 1 half model.width=64 model.context=64 train.steps=2
train 0 1 half model.width=64 model.context=64 --resume train.recompute=full parallel.schedule=gpipe
same_tensors half gpt2 4

# auto: the plan and the run choose alike, by device.memory; the run fits, and records its choice.
limited=(model.width=64 model.context=64 parallel.pp=2 device.memory=2800KiB)
train 76 2 unlimited "${limited[@]}"
"$trireme" plan "$scratch/base.yaml" "${limited[@]}" train.recompute=auto >"$scratch/auto.plan" ||
    fail "the plan of auto does not fit: $(<"$scratch/auto.plan")"
train 0 2 auto "${limited[@]}" train.recompute=auto
choice=$(sed -n 's/^recompute \([sf].*\)/\1/p' "$scratch/auto.out")
[[ -n $choice ]] && grep -qxF "recompute $choice" "$scratch/auto.plan" && grep -qF "recompute: \"$choice\"" "$scratch/auto/config.yaml" ||
    fail "auto: '$choice' by the run; $(grep recompute "$scratch/auto.plan" "$scratch/auto/config.yaml")"
as_planned auto
same_tensors auto gpt2 4

# Another cut fits without recompute: auto takes it when full would be needed with the fastest cut, and not when
# selective suffices, with which a step is shorter.
# chosen KIB: prints the modes and the cut of auto in that memory.
chosen() {
    "$trireme" plan "$scratch/base.yaml" device.name=ref model.layers=7 parallel.pp=2 train.batch=12 train.recompute=auto \
        device.memory="$1KiB" --rate 1 | sed -n 's/^recompute \([sf].*\)/\1/p; s/^cut  *\([^:]*\).*/\1/p' | tr '\n' ' '
}
[[ $(chosen 1390) == "Et*3|t*4L " && $(chosen 1470) == "selective:0-3 Et*4|t*3L " ]] || fail "another cut: $(chosen 1390)- $(chosen 1470)"
finish
