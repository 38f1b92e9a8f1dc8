#!/usr/bin/env bash
# Tests optim.moments in whole runs: the same bits on every cut and for data ranks that divide the state, the memory
# that was planned, which falls as it should, runs that are continued with the same and with another type, and refusals.
# usage: moments.sh TRIREME SCRATCH_DIR MOMENTS     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1 scratch=$2 moments=$3
source "$(dirname "$0")/common.sh"
halve

# Parameters of one block of 4096 elements, of several, and of a part of one.
options=(model.width=96 model.vocab=700 optim.clip=0.5 optim.moments="$moments")

optimizer_bytes() { sed -n 's/^memory .* took .* optimizer \([0-9.]*\),.*/\1/p' "$scratch/$1.out"; }

train 0 1 wide "${options[@]}" optim.moments=fp32
train 0 1 one "${options[@]}"
as_planned one
diff <(field one loss) <(field wide loss) >/dev/null && fail "optim.moments=$moments changes no loss"
near one wide loss 0.02
case $moments in bf16) part=0.5 ;; *) part=0.27 ;; esac
awk -v a="$(optimizer_bytes one)" -v b="$(optimizer_bytes wide)" -v f=$part 'BEGIN { d = a / b - f; exit !(d < 0.06 && d > -0.06) }' ||
    fail "optimizer $(optimizer_bytes one) MiB of $(optimizer_bytes wide)"
# A checkpoint holds the moments in 2 bytes: 8 of 12 bytes a parameter, and the index.
payload() { cat "$(step_dir "$1" 10)"/shard-* | wc -c; }
awk -v a="$(payload one)" -v b="$(payload wide)" 'BEGIN { d = a / b - 2 / 3; exit !(d < 0.04 && d > -0.04) }' ||
    fail "a checkpoint of $(payload one) bytes of $(payload wide)"
same_run again one 1
same_run threads one 1 train.threads=1 parallel.schedule=gpipe
same_run pp2 one 2 parallel.pp=2
same_run pp2-gpipe one 2 parallel.pp=2 parallel.schedule=gpipe
same_run zbv one 2 parallel.pp=2 parallel.schedule=zbv
train 0 1 one-guarded "${options[@]}" device.name=guarded
same_curve one-guarded one
as_planned one-guarded
train 0 2 dp2 "${options[@]}" parallel.dp=2
as_planned dp2
same_run dp2-zero dp2 2 parallel.dp=2 parallel.zero=1
same_run dp2-pp2 dp2 4 parallel.dp=2 parallel.pp=2 parallel.zero=3
train 0 4 tp2 "${options[@]}" parallel.tp=2 parallel.dp=2
same_run tp2-zero tp2 4 parallel.tp=2 parallel.dp=2 parallel.zero=1

# Other optimizers and BF16 values; with blocks, which begin at each tensor, a family with joined matrices, and
# frozen parameters. (unit.test_optimizers has every optimizer with both types.)
kinds=("optim.name=lion optim.lr=0.0003" "optim.name=lamb" "optim.name=muon" "train.precision=bf16")
[[ $moments != int8 ]] || kinds=("optim.name=muon" "model.family=llama model.kv_heads=1" "train.freeze=*.ln_1.*")
for kind in "${kinds[@]}"; do
    read -ra keys <<<"$kind"
    name=${kind//[!a-z0-9]/-}
    train 0 1 "$name" "${options[@]}" "${keys[@]}"
    as_planned "$name"
    same_run "$name-pp2" "$name" 2 parallel.pp=2 "${keys[@]}"
done

# A run continues as one that was never stopped, on its own and on another cut.
continue_run on one 1
continue_run on-pp2 one 2 parallel.pp=2
for run in on on-pp2; do
    same_curve $run one
    same_tensors $run one 10
    [[ ! -s $scratch/$run.err ]] || fail "$run: said '$(<"$scratch/$run.err")'"
done
continue_run on-zero dp2-zero 2 parallel.dp=2 parallel.zero=1
same_curve on-zero dp2
# Moments that lose bits: a line; those that lose none: no line.
continue_run narrowed wide 1
says narrowed "warning: optim.moments is $moments: the checkpoint's moments, which were kept in fp32, are rounded to it and lose bits"
continue_run widened one 1 optim.moments=fp32
[[ ! -s $scratch/widened.err ]] || fail "widened: said '$(<"$scratch/widened.err")'"

if [[ $moments == int8 ]]; then
    grep -q '^moments  in 8 bits by blocks of 256, which parallel.tp divides' "$scratch/tp2.out" || fail "tp2: does not name its blocks"
    grep -q '^moments ' "$scratch/dp2.out" && fail "dp2: names blocks"
    continue_run reblocked one 2 parallel.tp=2
    says reblocked "warning: parallel.tp is not that of the checkpoint: the blocks of optim.moments int8 are others, so small moments may lose bits"
    near reblocked one loss 0.02
    # Key heads with a rate of their own become a parameter, so that blocks begin at other elements. Each tensor of GPT-2
    # is a parameter already.
    odd=(model.family=llama model.kv_heads=1 model.width=40)
    train 0 1 odd "${options[@]}" "${odd[@]}"
    continue_run rates odd 1 "${odd[@]}" "train.lr_scale=0.5 *.k_proj.*"
    says rates "warning: train.lr_scale is not that of the checkpoint: the blocks of optim.moments int8 are others, so small moments may lose bits"
    continue_run tensors odd 1 "${odd[@]}" optim.name=lamb
    says tensors "warning: optim.name is not that of the checkpoint: the blocks"
    continue_run same-blocks one 1 "train.lr_scale=0.5 *.ln_1.*" optim.name=lamb
    [[ ! -s $scratch/same-blocks.err ]] || fail "same-blocks: said '$(<"$scratch/same-blocks.err")'"
    continue_run from-bf16 one 1 optim.moments=bf16
    [[ ! -s $scratch/from-bf16.err ]] || fail "from int8 to bf16: said '$(<"$scratch/from-bf16.err")'"
    cp -r "$scratch/from-bf16" "$scratch/to-int8"
    train 0 1 to-int8 --resume "${options[@]}" train.steps=12
    grep -q "warning: optim.moments is int8: the checkpoint's moments, which were kept in bf16, are rounded to it" "$scratch/to-int8.err" ||
        fail "to-int8: said '$(<"$scratch/to-int8.err")'"
fi

"$trireme" train "$scratch/base.yaml" log.dir="$scratch/f64" "${options[@]}" train.precision=fp64 device.name=ref >"$scratch/f64.out" 2>"$scratch/f64.err" &&
    fail "fp64: it runs"
says f64 ".*train.precision fp64 keeps moments in fp64: leave optim.moments out"
train 78 1 adafactor "${options[@]}" optim.name=adafactor
says adafactor ".*optim.name adafactor has no moments of every element that optim.moments $moments could make smaller: leave optim.moments out"
train 78 1 plain "${options[@]}" optim.name=sgd optim.momentum=0
says plain ".*optim.name sgd without optim.momentum has no moments"
train 78 1 other optim.moments=fp8
finish
