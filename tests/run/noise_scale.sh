#!/usr/bin/env bash
# Tests log.noise_scale in whole runs: it changes no bit of a run, is the same on every schedule, and continues
# with a resumed run.
# usage: noise_scale.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
noise=(log.noise_scale=true log.every=10)

# same_noise RUN REFERENCE: the measurements must be the same text.
same_noise() {
    local key
    for key in grad_square grad_variance noise_scale; do
        [[ -n $(field "$1" "$key") ]] || fail "$1: no $key"
        diff <(field "$1" "$key") <(field "$2" "$key") >/dev/null || fail "$1 and $2: $key differs"
    done
}

train 0 1 plain
train 0 1 noise "${noise[@]}"
same_curve noise plain
same_tensors noise plain 20
as_planned noise
[[ -z $(field plain grad_square) && -z $(field plain noise_scale) ]] || fail "plain: it measures the noise scale"
[[ $(field noise grad_variance | wc -l) == 20 ]] || fail "noise: not one estimate a step"
grep -Eq '^step 20/20 .* gnorm [0-9.]+ noise [0-9.]+[kM]? tok lr ' "$scratch/noise.out" || fail "noise: not in the line: $(grep '^step 20' "$scratch/noise.out")"
# The mean of all estimates so far, divided.
paste <(field noise grad_square) <(field noise grad_variance) | awk '{ s += $1; v += $2 } END { print v / s }' >"$scratch/want"
field noise noise_scale | tail -n 1 | awk -v want="$(<"$scratch/want")" '{ d = $1 / want - 1; exit !(d < 1e-5 && d > -1e-5) }' ||
    fail "noise: $(field noise noise_scale | tail -n 1), not $(<"$scratch/want")"

train 0 2 stages "${noise[@]}" parallel.pp=2 parallel.schedule=zb-h1
same_noise stages noise
train 0 1 guarded "${noise[@]}" device.name=guarded
same_noise guarded noise
as_planned guarded
train 0 4 parts "${noise[@]}" parallel.dp=2 parallel.tp=2
near parts noise grad_variance 1e-3
as_planned parts

train 0 2 data "${noise[@]}" parallel.dp=2
train 0 2 divided "${noise[@]}" parallel.dp=2 parallel.zero=1
same_noise divided data

train 0 1 resumed "${noise[@]}" train.steps=10 optim.horizon=20
train 0 1 resumed "${noise[@]}" optim.horizon=20 --resume
same_noise resumed noise

train 78 1 one "${noise[@]}" train.micro_batch=12
says one "log.noise_scale compares a micro-batch with the whole batch, .*: raise train.batch, or lower train.micro_batch"
printf '%s\n' "0F0,0F1,0B1,0B0" >"$scratch/down.csv"
train 78 1 down "${noise[@]}" train.batch=2 parallel.schedule="$scratch/down.csv"
says down "(warning: .*)?log.noise_scale needs a schedule that adds the weight gradients of every stage in ascending order"
finish
