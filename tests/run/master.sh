#!/usr/bin/env bash
# Tests optim.master none in whole runs: the same bits on every cut and for data ranks that divide the state, the memory
# that was planned, checkpoints that hold BF16, runs that are continued with and without masters, and refusals.
# usage: master.sh TRIREME SCRATCH_DIR     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
halve

options=(model.width=96 model.vocab=700 optim.clip=0.5 train.precision=bf16 optim.master=none)

parameter_bytes() { sed -n 's/^memory .* took .* parameters \([0-9.]*\),.*/\1/p' "$scratch/$1.out"; }
payload() { cat "$(step_dir "$1" 10)"/shard-* | wc -c; }
# is_part WHAT A B SHARE: A is that share of B.
is_part() {
    awk -v a="$2" -v b="$3" -v f="$4" 'BEGIN { d = a / b - f; exit !(d < 0.04 && d > -0.04) }' || fail "$1: $2 of $3, not $4"
}

train 0 1 wide "${options[@]}" optim.master=fp32
train 0 1 one "${options[@]}"
as_planned one
diff <(field one loss) <(field wide loss) >/dev/null && fail "optim.master=none changes no loss"
near one wide loss 0.02
is_part parameters "$(parameter_bytes one)" "$(parameter_bytes wide)" 0.333
is_part "a checkpoint" "$(payload one)" "$(payload wide)" 0.833 # 10 of 12 bytes a parameter
same_run pp2 one 2 parallel.pp=2 parallel.schedule=gpipe
train 0 2 dp2 "${options[@]}" parallel.dp=2
as_planned dp2
same_run dp2-zero dp2 4 parallel.dp=2 parallel.pp=2 parallel.zero=1
same_run dp2-zero3 dp2 2 parallel.dp=2 parallel.zero=3 parallel.schedule=bfs parallel.virtual=4
train 0 2 tp2 "${options[@]}" parallel.tp=2
as_planned tp2
near tp2 one loss 0.02
# With moments in BF16, and of an optimizer without states: checkpoints of 6 and 2 bytes a parameter.
train 0 1 small "${options[@]}" optim.moments=bf16
same_run small-pp2 small 2 parallel.pp=2 optim.moments=bf16
is_part "a checkpoint of BF16" "$(payload small)" "$(payload wide)" 0.5
train 0 1 sgd "${options[@]}" optim.name=sgd optim.momentum=0 optim.lr=0.1
as_planned sgd
is_part "a checkpoint of sgd" "$(payload sgd)" "$(payload wide)" 0.167
# An optimizer with directions of whole matrices, which one data rank owns.
train 0 2 muon "${options[@]}" optim.name=muon parallel.dp=2
as_planned muon
same_run muon-pp2 muon 4 parallel.pp=2 optim.name=muon parallel.dp=2 parallel.zero=1

continue_run on one 2 parallel.pp=2
same_curve on one
same_tensors on one 10
[[ ! -s $scratch/on.err ]] || fail "on: said '$(<"$scratch/on.err")'"
continue_run on-zero dp2-zero 2 parallel.dp=2 parallel.zero=1
same_curve on-zero dp2
continue_run narrowed wide 1
says narrowed "warning: optim.master is none: the checkpoint's parameters, which were kept in fp32, are rounded to bf16 and lose bits"
near narrowed wide loss 0.02
continue_run widened one 1 optim.master=fp32
[[ ! -s $scratch/widened.err ]] || fail "widened: said '$(<"$scratch/widened.err")'"

# Weights leave and come back as they are, and a step of length 0 rounds none of them.
"$trireme" ckpt export "$scratch/one" "$scratch/hf" --dtype bf16 >"$scratch/export.out" 2>&1 || fail "export: $(<"$scratch/export.out")"
train 0 1 from "${options[@]}" model.init_from="$scratch/hf" train.steps=1 optim.lr=0
"$tools/ckpt_compare" weights "$(step_dir one 10)" "$(step_dir from 1)" || fail "model.init_from: other weights than were exported"

# Parameters that are frozen now have no masters; once they are saved as they are, nothing is lost.
frozen=(optim.master=fp32 'train.freeze=*.mlp.* *.wpe.weight')
continue_run frozen wide 1 "${frozen[@]}" train.steps=7 optim.horizon=10
says frozen "warning: train.precision is bf16: the checkpoint's parameters that are frozen now are rounded to it and may lose bits"
train 0 1 frozen --resume "${options[@]}" "${frozen[@]}" train.steps=8 optim.horizon=10
[[ ! -s $scratch/frozen.err ]] || fail "frozen again: said '$(<"$scratch/frozen.err")'"
# Parameters that are no longer frozen lose moments, and those that stay frozen no bits.
train 0 1 frozen --resume "${options[@]}" optim.master=fp32 'train.freeze=*.wpe.weight' train.steps=9 optim.horizon=10
says frozen "warning: train.freeze is not that of the checkpoint: the moments of parameters that were frozen and are trained now start at zero"
# Patterns of another form that freeze the same parameters change nothing.
train 0 1 frozen --resume "${options[@]}" optim.master=fp32 'train.freeze=*wpe.weight' train.steps=10 optim.horizon=10 checkpoint.every=0
[[ ! -s $scratch/frozen.err ]] || fail "frozen alike: said '$(<"$scratch/frozen.err")'"
# Another pattern more freezes others, and no moments begin again.
train 0 1 frozen --resume "${options[@]}" optim.master=fp32 'train.freeze=*.attn.* *.wpe.weight' train.steps=10 optim.horizon=10
says frozen "warning: train.precision is bf16: the checkpoint's parameters that are frozen now are rounded to it and may lose bits"

train 78 1 f32 "${options[@]}" train.precision=fp32
says f32 ".*optim.master none works with train.precision bf16, not fp32: leave optim.master out, or set train.precision to bf16"
finish
