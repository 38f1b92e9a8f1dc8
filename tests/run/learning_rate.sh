#!/usr/bin/env bash
# Tests optim.schedule in whole runs: the learning rate of each step. More steps of a continued run do not move
# the curve; optim.horizon does.
# usage: learning_rate.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
options=(optim.warmup=2 optim.lr=0.004 checkpoint.every=0 train.batch=4 train.micro_batch=2)

# rates RUN RATES...: those of its steps.
rates() {
    local run=$1
    shift
    diff <(field "$run" lr | awk '{ printf "%.6g\n", $1 }') <(printf '%.6g\n' "$@") || fail "$run: other learning rates"
}

linear=(optim.schedule=linear "${options[@]}")
train 0 1 more "${linear[@]}" train.steps=4
rates more 0.002 0.004 0.002 0
train 0 1 more "${linear[@]}" train.steps=6 --resume
rates more 0.002 0.004 0.002 0 0 0
says more "warning: the learning rate's schedule ends at step 4, as in the run that is continued .0 from there on.; optim.horizon=6 makes it end with the run"
# What the run recorded continues in the same way.
train 0 1 more "${linear[@]}" train.steps=7 --resume
says more "warning: the learning rate's schedule ends at step 4, .* optim.horizon=7 makes it end with the run"
train 0 1 more "${linear[@]}" train.steps=8 optim.horizon=12 --resume
rates more 0.002 0.004 0.002 0 0 0 0 0.0016
[[ ! -s more.err ]] || fail "a horizon that is set: said '$(<more.err)'"
# A run that has no step left is told that, and not what its schedule does.
train 0 1 more "${linear[@]}" train.steps=6 --resume
[[ ! -s more.err ]] || fail "no step left: said '$(<more.err)'"
grep -q "^resumed  after step 8 of 6: no step is left; to continue, set train.steps above 8$" more.out ||
    fail "no step left: $(grep ^resumed more.out)"
# A schedule without a horizon leaves none to the schedule with which the run is continued.
train 0 1 flat "${options[@]}" optim.schedule=constant train.steps=4
train 0 1 flat "${linear[@]}" train.steps=6 --resume
rates flat 0.002 0.004 0.004 0.004 0.001 0
[[ ! -s flat.err ]] || fail "no horizon: said '$(<flat.err)'"
# Steps of restarts are below the horizon, also below one that is kept.
train 78 1 flat "${linear[@]}" optim.restarts=6 train.steps=8 --resume
says flat ".*optim.restarts has step 6, but the schedule ends at step 6 \(optim.horizon, which is that of the run that is continued unless it is set\): .*"

train 0 1 again "${options[@]}" optim.schedule=constant optim.restarts='3' train.steps=6
rates again 0.002 0.004 0.004 0.002 0.004 0.004
train 0 1 steps "${options[@]}" optim.schedule=steps optim.milestones='3 5' optim.milestone_factor=0.5 train.steps=6
rates steps 0.002 0.004 0.002 0.002 0.001 0.001
train 78 1 late "${options[@]}" optim.restarts='3 9' train.steps=6
says late "optim.restarts has step 9, but the schedule ends at step 6 .*: raise optim.horizon, or leave that step out"
train 0 1 short "${options[@]}" train.steps=1
says short "warning: optim.warmup is 2, but the run ends at step 1, before the learning rate has reached optim.lr: lower optim.warmup, or raise train.steps"
finish
