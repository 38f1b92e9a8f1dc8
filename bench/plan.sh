#!/usr/bin/env bash
# Compares the steps that `trireme plan` predicts, at the speed that it measures, with those of a run: GPT-2 124M with
# a context of 256 tokens, layouts of one and two ranks on two cores, plan and run in turn.
#   bench/plan.sh [rounds] [key=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-3}
shift || true
build trireme
trireme=$PWD/$release/trireme
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 1000000 /dev/urandom >"$work/text"
cat >"$work/run.yaml" <<'Y'
model: {preset: gpt2-124m, context: 256}
data: {path: text, format: bytes}
train: {steps: 5, batch: 8, micro_batch: 1, precision: fp32, threads: 1}
optim: {lr: 1e-4}
log: {dir: run}
Y
layouts=("" "parallel.pp=2" "parallel.pp=2 parallel.schedule=zb-h1" "parallel.tp=2" "parallel.tp=2 parallel.sequence=true"
    "parallel.dp=2" "parallel.dp=2 parallel.zero=1" "train.recompute=full")

# Prints how many ranks a layout has.
ranks_of() { [[ $1 == *parallel.[ptd]p=2* ]] && echo 2 || echo 1; }

cd "$work"
for layout in "${layouts[@]}"; do
    read -ra keys <<<"$layout"
    : >planned
    : >ran
    for ((round = 1; round <= rounds; round++)); do
        rm -rf run
        "$trireme" plan run.yaml "${keys[@]}" "$@" >plan.out
        sed -n 's/^in all .* a step, \([0-9.]*\) tok.*/\1/p' plan.out >>planned
        mpi "$(ranks_of "$layout")" "$trireme" train run.yaml "${keys[@]}" "$@" >train.out 2>&1 || fail "$layout: $(<train.out)"
        sed -n 's/.*"tokens_per_s":\([0-9.]*\).*/\1/p' run/metrics.jsonl >>ran
    done
    row "plan against run, GPT-2 124M, ${layout:-one rank}, load $(load)" "bench/plan.sh $rounds $*" \
        "$(awk -v planned="$(median <planned)" -v ran="$(most <ran)" \
            'BEGIN { printf "%.0f tokens/s planned, %.0f the fastest step: it takes %.2f of the planned", planned, ran, planned / ran }')" "1"
done
