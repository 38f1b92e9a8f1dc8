#!/usr/bin/env bash
# Tests the loss scale of FP16, which skips steps on all layouts alike, and --debug-nan.
# usage: loss_scale.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
source "$(dirname "$0")/odd_window.sh"

# FP16: a step with gradients that overflow is skipped with every guard.action, on all ranks alike, and halves
# the loss scale; the layout changes neither the steps that are skipped nor, where it changes none, a bit.
half=(train.precision=fp16 train.steps=40 checkpoint.every=20 guard.sigma=0)
# forged RUN SCALE RANKS ARGUMENTS...: continues the run `half` from step 20 as RUN, with that loss scale.
forged() {
    mkdir -p "$scratch/$1/ckpt"
    cp -r "$(step_dir half 20)" "$scratch/$1/ckpt"
    "$tools/ckpt_forge" "$(step_dir "$1" 20)" loss_scale "$2" || fail "$1: the scale was not set"
    head -n 20 "$scratch/half/metrics.jsonl" >"$scratch/$1/metrics.jsonl"
    train 0 "$3" "$1" --resume "${half[@]}" "${@:4}"
}
train 0 1 half "${half[@]}"
train 0 2 half-2 "${half[@]}" parallel.pp=2
same_lines half half-2 40
same_tensors half half-2 40
[[ $(field half loss_scale | wc -l) == 40 && $(field half loss_scale | head -n 1) == 4096 ]] ||
    fail "half: no scale, or not from 4096: $(field half loss_scale | head -n 1)"
[[ $(grep -c 'CPUs store it and multiply in fp32' "$scratch/half-2.out") == 1 ]] || fail "half-2: $(head -n 1 "$scratch/half-2.out")"
as_planned half-2
# A run that goes back, by no step or by one, counts the steps that it takes again once.
calm=("${half[@]}" guard.sigma=3 optim.lr=0.003 optim.min_lr=0.003)
train 0 1 half-warn "${calm[@]}" train.steps=60
far=$(sed -n 's/.*warning: step \([0-9]*\): the .* is more than 3 standard deviations .*/\1/p' "$scratch/half-warn.err" | head -n 1)
[[ -n $far ]] || fail "half-warn: no step is out of line"
for by in 0 1; do
    run=half-back-$by saved=$((far - 1 - by))
    train 0 1 $run "${calm[@]}" guard.action=rollback train.steps=$((far + 1)) checkpoint.every=$saved
    grep -q "step $far: .*; the run goes back, .*: step $saved is saved$" "$scratch/$run.err" || fail "$run: $(head -n 1 "$scratch/$run.err")"
    [[ $(state_of $run $((far + 1)) loss_scale_steps) == $((far + 1)) ]] ||
        fail "$run: the scale holds for $(state_of $run $((far + 1)) loss_scale_steps) steps"
done
# Steps that are skipped, and again after the run has gone back, count once.
run=half-back-skips
mkdir -p "$scratch/$run/ckpt"
cp -r "$(step_dir half-warn 20)" "$scratch/$run/ckpt"
"$tools/ckpt_forge" "$(step_dir $run 20)" loss_scale 32768 || fail "$run: the scale was not set"
head -n 20 "$scratch/half-warn/metrics.jsonl" >"$scratch/$run/metrics.jsonl"
train 0 1 $run --resume "${calm[@]}" guard.sigma=2 guard.action=rollback train.steps=50 checkpoint.every=1000
grep -q 'gradients overflow FP16 .*; the step is skipped$' "$scratch/$run.err" && grep -q 'the run goes back, .*: step 20 is saved$' "$scratch/$run.err" ||
    fail "$run: $(head -n 2 "$scratch/$run.err")"
[[ $(state_of $run 50 skipped) == $(skipped $run | wc -w) ]] ||
    fail "$run: the checkpoint counts $(state_of $run 50 skipped) skipped steps, not $(skipped $run)"
# Resumed with its scale: the same bits on both layouts. With one at which no gradient of a label fits: both steps
# after it are lost everywhere, and the run goes on.
forged half-again "$(field half loss_scale | sed -n 21p)" 1
same_lines half-again half 40
same_tensors half-again half 40
forged over 262144 1
forged over-pp 262144 2 parallel.pp=2
forged over-dp 262144 2 parallel.dp=2
forged over-zero 262144 2 parallel.dp=2 parallel.zero=1 guard.action=rollback guard.sigma=1e9
forged over-tp 262144 2 parallel.tp=2 guard.action=skip
[[ $(skipped over) == "21 22 "* && $(field over loss_scale | sed -n 23p) == 65536 ]] ||
    fail "over: steps $(skipped over)were skipped, then the scale is $(field over loss_scale | sed -n 23p)"
grep -q 'warning: step 21: gradients overflow FP16 with the loss scale 262144; the step is skipped$' "$scratch/over.err" ||
    fail "over: $(head -n 1 "$scratch/over.err")"
[[ $(state_of over 40 optimizer_step) == $((40 - $(skipped over | wc -w))) ]] || fail "over: the checkpoint counts other steps"
[[ $(state_of over 40 loss_scale) == $(field over loss_scale | tail -n 1) ]] || fail "over: the checkpoint has the scale $(state_of over 40 loss_scale)"
grep -qi 'nan\|inf' "$scratch/over/metrics.jsonl" && fail "over: NaN in the records"
for run in over-pp over-dp over-zero over-tp; do
    [[ $(skipped $run) == "$(skipped over)" ]] || fail "$run: steps $(skipped $run)were skipped, not $(skipped over)"
    diff <(field $run loss_scale) <(field over loss_scale) >"$scratch/diff" || fail "$run: $(head -n 3 "$scratch/diff")"
done
same_lines over over-pp 40
same_tensors over over-pp 40
same_lines over-dp over-zero 40
same_tensors over-dp over-zero 40
# As many in a row as guard.skips end the run.
mkdir -p "$scratch/ends/ckpt"
cp -r "$(step_dir over 20)" "$scratch/ends/ckpt"
train 65 1 ends --resume "${half[@]}" guard.skips=2
grep -q 'diverged: 2 steps in a row were skipped (guard.skips), and at step 22 gradients overflow FP16' "$scratch/ends.err" ||
    fail "ends: $(tail -n 1 "$scratch/ends.err")"
mkdir -p "$scratch/first/ckpt"
cp -r "$(step_dir over 20)" "$scratch/first/ckpt"
train 65 1 first --resume "${half[@]}" guard.skips=1
grep -q 'diverged: 1 step was skipped (guard.skips), and at step 21 gradients overflow FP16' "$scratch/first.err" ||
    fail "first: $(tail -n 1 "$scratch/first.err")"
# A step that guard.sigma has skipped before them counts, and is named.
mkdir -p "$scratch/mixed/ckpt"
cp -r "$(step_dir over 20)" "$scratch/mixed/ckpt"
"$tools/ckpt_forge" "$(step_dir mixed 20)" guard_skips 1 || fail "mixed: the count was not set"
train 65 1 mixed --resume "${half[@]}" guard.sigma=1e6 guard.action=skip guard.skips=3
grep -q '3 steps in a row were skipped (guard.skips), 1 of them because of guard.sigma, and at step 22 gradients overflow .* or raise guard.sigma above 1e+06' \
    "$scratch/mixed.err" || fail "mixed: $(tail -n 1 "$scratch/mixed.err")"

# --debug-nan names where it begins, the same on two ranks, and changes no bit.
on=()
for ranks in 1 2; do
    train 65 $ranks named-$ranks --debug-nan optim.lr=1000 optim.clip=0 guard.sigma=0 parallel.pp=$ranks "${on[@]}"
    on=(device.name=guarded) # memory that the host cannot access
    sed -n 's/.*; operand \(.*\), rank.*/\1/p' "$scratch/named-$ranks.err" >"$scratch/named-$ranks.at"
done
grep -q '^[a-z]* of [a-z_]* is the first that is not finite ([FIW] of layer transformer\..*, micro-batch [01]$' "$scratch/named-1.at" ||
    fail "named: $(tail -n 1 "$scratch/named-1.err")"
grep -q 'all that it read was finite); lower optim.lr' "$scratch/named-1.err" || fail "named: an operator that passes it on"
cmp -s "$scratch/named-1.at" "$scratch/named-2.at" || fail "named: another place on two ranks: $(cat "$scratch/named-2.at")"
train 0 1 plain train.steps=20 --debug-nan device.name=guarded
train 0 1 none train.steps=20
same_lines plain none 20

finish
