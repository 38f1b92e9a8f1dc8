#!/usr/bin/env bash
# Tests optim.name in whole runs with only optim.lr set: the same bits under every cut, the memory that was planned,
# the states that checkpoints hold, and runs that are continued with the same and with another optimizer.
# usage: optimizers.sh TRIREME SCRATCH_DIR     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
options=(optim.lr=0.001 optim.schedule=constant checkpoint.every=3 train.validate_every=3 train.batch=8 train.micro_batch=2)

# holds RUN STEP GROUP...: the checkpoint must have these groups of tensors.
holds() {
    local run=$1 index
    index=$(step_dir "$1" "$2")/index.h5
    shift 2
    command -v h5ls >/dev/null || return 0
    diff <(h5ls "$index" | sed -n 's/ .*//p' | grep -Ev '^(state|manifest|config|corpora)' | sort) \
        <(printf '%s\n' "$@" weights | sort) || fail "$run: other groups in the checkpoint"
}

# states NAME: those of an optimizer in a checkpoint.
states() {
    case $1 in
    adam | adamw | lamb) echo adam_m adam_v ;;
    sgd) echo momentum ;;
    muon) echo adam_m adam_v muon_m ;;
    adafactor) echo factor_c factor_r factor_v ;;
    *) echo "$1_m" ;;
    esac
}

for name in sgd adam adamw lion lamb muon adafactor; do
    one=("${options[@]}" optim.name=$name)
    train 0 1 $name "${one[@]}" train.steps=6
    as_planned $name
    # shellcheck disable=SC2046 # several words
    holds $name 6 $(states $name)
    train 0 2 $name-cut "${one[@]}" train.steps=3 parallel.pp=2
    as_planned $name-cut
    train 0 1 $name-cut "${one[@]}" train.steps=6 --resume
    same_curve $name-cut $name
    same_tensors $name-cut $name 6
done
train 0 1 plain "${options[@]}" optim.name=sgd optim.momentum=0 train.steps=3
as_planned plain
holds plain 3
for a in plain sgd lion adam adamw lamb muon adafactor; do
    for b in plain sgd lion adam adamw lamb muon adafactor; do
        [[ $a == "$b" ]] || ! diff <(field $a loss | sed -n 3p) <(field $b loss | sed -n 3p) >/dev/null || fail "$a and $b: the same losses"
    done
done

# Tensor ranks sum the norms of their parts, the products of muon's matrices with themselves, or the sums of adafactor's
# rows and columns; data ranks continue their checkpoint, with fewer bits of parameters and gradients, and one rank theirs.
for name in lamb muon adafactor; do
    one=("${options[@]}" optim.name=$name)
    train 0 2 $name-tensor "${one[@]}" train.steps=3 train.precision=bf16 parallel.tp=2
    as_planned $name-tensor
    cp -r $name-tensor $name-zero
    narrow=(train.steps=6 train.precision=bf16 optim.master=none optim.gradients=bf16 parallel.dp=2)
    train 0 2 $name-tensor "${one[@]}" "${narrow[@]}" --resume
    train 0 2 $name-zero "${one[@]}" "${narrow[@]}" parallel.zero=1 --resume
    as_planned $name-zero
    same_curve $name-zero $name-tensor
    same_tensors $name-zero $name-tensor 6
    as_planned $name-tensor
    says $name-tensor "warning: optim.master is none: the checkpoint's parameters, which were kept in fp32, are rounded to bf16 and lose bits"
    train 0 1 $name-tensor "${one[@]}" train.steps=7 train.precision=bf16 --resume
    [[ ! -s $name-tensor.err ]] || fail "$name-tensor: said '$(<$name-tensor.err)'"
done

# Another optimizer: what it shares with the saved one goes on, the rest begins at zero.
cp -r plain plain-on
train 0 1 plain-on "${options[@]}" optim.name=lion train.steps=4 --resume
says plain-on "warning: the checkpoint does not have the state of optim.name lion \(lion_m\), which begins at zero"
train 0 1 plain-on "${options[@]}" optim.name=lion train.steps=5 --resume
[[ ! -s plain-on.err ]] || fail "the same optimizer again: said '$(<plain-on.err)'"
cp -r plain plain-momentum
train 0 1 plain-momentum "${options[@]}" optim.name=sgd train.steps=4 --resume
says plain-momentum "warning: the checkpoint does not have the state of optim.name sgd \(momentum\), which begins at zero"
train 0 1 adam "${options[@]}" optim.name=adamw train.steps=7 --resume
[[ ! -s adam.err ]] || fail "adamw goes on with adam's state: said '$(<adam.err)'"
# The bias correction counts from where the states were zero: as if no step had been taken before.
cp -r plain counted
cp -r plain fresh
"$tools/ckpt_forge" "$(step_dir fresh 3)" optimizer_step 0
"$tools/ckpt_forge" "$(step_dir fresh 3)" skipped 3
train 0 1 counted "${options[@]}" optim.name=adamw train.steps=5 --resume
train 0 1 counted "${options[@]}" optim.name=adamw train.steps=6 --resume
train 0 1 fresh "${options[@]}" optim.name=adamw train.steps=6 --resume
same_tensors counted fresh 6
train 0 1 lamb "${options[@]}" optim.name=muon train.steps=7 --resume
says lamb "warning: the checkpoint does not have the state of optim.name muon \(muon_m\), which begins at zero"
# Muon has Adam's moments of some parameters, AdamW begins with those of none, as after a step by SGD; both steps are too
# short to change a parameter.
still=("${options[@]}" optim.lr=1e-40 train.steps=7 --resume)
cp -r muon stochastic
train 0 1 muon "${still[@]}" optim.name=muon
train 0 1 stochastic "${still[@]}" optim.name=sgd optim.momentum=0
for run in muon stochastic; do
    train 0 1 $run "${options[@]}" optim.name=adamw train.steps=9 --resume
    says $run "warning: the checkpoint does not have the state of optim.name adamw \(adam_m, adam_v\), which begins at zero"
done
same_tensors muon stochastic 9
# Adafactor's states are of a tensor's axes, whatever the layout; it reads no decay rates, and counts its own steps.
train 0 1 adafactor-long "${options[@]}" optim.name=adafactor train.steps=9
train 0 4 factors "${options[@]}" optim.name=adafactor train.steps=3 parallel.tp=2 parallel.pp=2
train 0 1 factors "${options[@]}" optim.name=adafactor train.steps=6 --resume
train 0 4 factors "${options[@]}" optim.name=adafactor train.steps=9 parallel.tp=4 --resume
near factors adafactor-long
cp -r plain factored
train 0 1 factored "${options[@]}" optim.name=adafactor train.steps=4 --resume
says factored "warning: the checkpoint does not have the state of optim.name adafactor \(factor_r, factor_c, factor_v\), which begins at zero"
train 78 1 rates "${options[@]}" optim.name=adafactor optim.beta2=0.9 train.steps=2
says rates "optim.name adafactor does not read optim.beta2: leave optim.beta2 out, or set optim.name to one of: "
train 78 1 ahead "${options[@]}" optim.nesterov=true train.steps=2
says ahead "optim.name adamw does not read optim.nesterov: leave optim.nesterov out, or set optim.name to one of: sgd muon"
finish
