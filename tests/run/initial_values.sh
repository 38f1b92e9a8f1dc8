#!/usr/bin/env bash
# Tests model.init in whole runs: other values with each rule, the same ones under every layout.
# usage: initial_values.sh TRIREME SCRATCH_DIR     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
options=(train.steps=1 train.validate_every=0 checkpoint.every=0 optim.lr=0 optim.weight_decay=0)

train 0 1 default "${options[@]}"
seen=$(field default loss)
for rule in normal truncated xavier he orthogonal; do
    train 0 1 $rule "${options[@]}" model.init=$rule
    loss=$(field $rule loss)
    if [[ $rule == normal ]]; then
        [[ $loss == "$seen" ]] || fail "normal is not the default"
    else
        ! grep -qxF "$loss" <<<"$seen" || fail "$rule: the loss of another rule"
        seen+=$'\n'$loss
    fi
done
# The step changes nothing, so the checkpoints hold the initial values.
for rule in truncated orthogonal; do
    train 0 4 $rule-grid "${options[@]}" model.init=$rule parallel.pp=2 parallel.tp=2
    "$tools/ckpt_compare" weights "$(step_dir $rule-grid 1)" "$(step_dir $rule 1)" || fail "$rule: other values on a grid"
done
train 0 1 normal "${options[@]}" train.steps=2 model.init=xavier --resume # only a new run draws
grep -q "^trireme: warning: model.init is not that of the checkpoint, and chooses only the parameters of a new run: this one continues with those of the checkpoint$" \
    normal.err || fail "normal: $(<normal.err)"
finish
