#!/usr/bin/env bash
# Tests optim.gradients bf16 in whole runs: the same bits with every schedule and for data ranks that divide the state,
# the memory that was planned, a run that is continued, other optimizers and precisions, and refusals.
# usage: gradients.sh TRIREME SCRATCH_DIR     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
halve

options=(model.width=96 model.vocab=700 optim.clip=0.5 optim.gradients=bf16)

# norm_is_near RUN REFERENCE: the norms of the first step's gradients differ by no more than the sums of n = 12
# micro-batches do, 2^-8 sqrt(n / 3) of them if micro-batches are equal (docs/config.md). Their noise raises the error, but
# only errors in the direction of the sum change its norm much.
norm_is_near() {
    awk -v a="$(field "$1" grad_norm | head -1)" -v b="$(field "$2" grad_norm | head -1)" '
        BEGIN { d = a / b - 1; exit !(b > 0 && d * d <= 2 ^ -16 * 12 / 3) }' ||
        fail "$1: the first gradient has the norm $(field "$1" grad_norm | head -1), $2's $(field "$2" grad_norm | head -1)"
}

train 0 1 wide "${options[@]}" optim.gradients=fp32
train 0 1 one "${options[@]}" log.noise_scale=true
as_planned one
diff <(field one loss) <(field wide loss) >/dev/null && fail "optim.gradients=bf16 changes no loss"
norm_is_near one wide
same_run pp2 one 2 parallel.pp=2 parallel.schedule=interleaved parallel.virtual=2
same_run zbv one 2 parallel.pp=2 parallel.schedule=zbv device.name=guarded
# Data ranks have other sums, of the same bits with each parallel.zero.
train 0 2 dp2 "${options[@]}" parallel.dp=2
as_planned dp2
norm_is_near dp2 wide
"$trireme" plan "$scratch/base.yaml" "${options[@]}" parallel.dp=2 >"$scratch/plan" || fail "no plan"
grep -q '^reduce .* bf16 gradients in ' "$scratch/plan" || fail "the plan says '$(grep '^reduce' "$scratch/plan")'"
same_run dp2-zero dp2 2 parallel.dp=2 parallel.zero=1 parallel.reduce=bf16
same_run dp2-zero3 dp2 4 parallel.dp=2 parallel.zero=3 parallel.pp=2 parallel.schedule=bfs parallel.virtual=2
narrow=(parallel.tp=2 parallel.sequence=true train.precision=bf16 optim.moments=bf16 optim.master=none)
train 0 2 tp2 "${options[@]}" "${narrow[@]}"
as_planned tp2
train 0 2 tp2-wide "${options[@]}" "${narrow[@]}" optim.gradients=fp32 train.steps=1
norm_is_near tp2 tp2-wide
# A family with joined matrices, of which some are frozen, in FP16, with another optimizer.
other=(model.family=llama model.kv_heads=1 train.precision=fp16 optim.name=lion optim.lr=0.0003 'train.freeze=*.q_proj.*')
train 0 1 lion "${options[@]}" "${other[@]}"
same_run lion-pp2 lion 2 parallel.pp=2 "${other[@]}"
# An optimizer with directions, of which those of a bucket exist at one time.
train 0 2 lamb "${options[@]}" optim.name=lamb parallel.tp=2
same_run lamb-pp2 lamb 4 parallel.pp=2 parallel.tp=2 parallel.schedule=zb-h1 optim.name=lamb

cp -r "$scratch/one" "$scratch/on"
rm -r "$(step_dir on 10)"
train 0 2 on --resume "${options[@]}" parallel.pp=2
same_curve on one
same_tensors on one 10
[[ ! -s $scratch/on.err ]] || fail "on: said '$(<"$scratch/on.err")'"

train 78 1 f64 "${options[@]}" train.precision=fp64 device.name=ref
says f64 ".*train.precision fp64 keeps gradients in fp64: leave optim.gradients out"
finish
