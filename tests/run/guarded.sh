#!/usr/bin/env bash
# Tests the guarded device, the cpu device with memory that the host cannot access and a compute stream of its
# own: training, validation, saving, resuming and sampling on it give the cpu device's bits, so a run never
# accesses device memory from the host, and no wait is missing. Several ranks stage their messages, like ranks
# that share a GPU.
# usage: guarded.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
halve

# from RUN REFERENCE RANKS ARGUMENTS...: continues REFERENCE from its step 5 as RUN.
from() {
    cp -r "$scratch/$2" "$scratch/$1"
    rm -r "$(step_dir "$1" 10)"
    train 0 "$3" "$1" --resume "${@:4}"
}

for precision in fp32 bf16 fp16; do
    options=(train.precision="$precision")
    train 0 1 "cpu-$precision" "${options[@]}"
    train 0 1 "guarded-$precision" "${options[@]}" device.name=guarded
    same_curve "guarded-$precision" "cpu-$precision"
    same_tensors "guarded-$precision" "cpu-$precision" 10
done
# Saved on one device, resumed on the other, and the other way round.
from to-cpu guarded-fp32 1
from to-guarded cpu-fp32 1 device.name=guarded
for run in to-cpu to-guarded; do
    same_curve "$run" cpu-fp32
    same_tensors "$run" cpu-fp32 10
done
for run in cpu guarded; do
    "$trireme" sample "$scratch/$run-bf16" -p 'In ' -n 60 --temperature 1 --seed 3 >"$scratch/$run.txt" ||
        fail "no sample of $run-bf16"
done
cmp "$scratch/cpu.txt" "$scratch/guarded.txt" || fail "the samples differ"

compare_layout() { # NAME RANKS KEY=VALUE...
    train 0 "$2" "cpu-$1" "${@:3}"
    train 0 "$2" "guarded-$1" "${@:3}" device.name=guarded
    same_curve "guarded-$1" "cpu-$1"
    same_tensors "guarded-$1" "cpu-$1" 10
    as_planned "guarded-$1"
    diff <(grep '^memory' "$scratch/cpu-$1.out") <(grep '^memory' "$scratch/guarded-$1.out") >"$scratch/diff" ||
        fail "$1: memory of cpu and guarded: $(<"$scratch/diff")"
}
compare_layout pp2 2 parallel.pp=2 train.precision=bf16
compare_layout pp2-tp2 4 parallel.pp=2 parallel.tp=2 parallel.schedule=gpipe
compare_layout pp2-dp2 4 parallel.pp=2 parallel.dp=2 parallel.schedule=zbv

# The optimizer's state in the host's memory: the same bits and files, also when a run is continued without it or with it.
offload=(device.name=guarded device.offload=optimizer train.precision=bf16)
train 0 2 offload-pp2 "${offload[@]}" parallel.pp=2
same_curve offload-pp2 cpu-pp2
same_tensors offload-pp2 cpu-pp2 10
as_planned offload-pp2
grep -Eq '^memory +rank 0: [0-9.]+ MiB planned = parameters .* optimizer 0.0 .*; in host memory: offload [0-9.]*[1-9]' "$scratch/offload-pp2.out" ||
    fail "offload: $(grep ^memory "$scratch/offload-pp2.out")"
# Activations of a schedule that keeps all micro-batches, and of one stage, with dropout and data ranks.
train 0 4 offload-all "${offload[@]}" 'device.offload=optimizer activations' parallel.pp=2 parallel.tp=2 parallel.schedule=gpipe train.precision=fp32
same_curve offload-all cpu-pp2-tp2
same_tensors offload-all cpu-pp2-tp2 10
as_planned offload-all
activations() { sed -n 's/^memory .* took .* activations \([0-9.]*\),.*/\1/p' "$scratch/$1.out"; }
awk -v a="$(activations offload-all)" -v b="$(activations cpu-pp2-tp2)" 'BEGIN { exit !(a > 0 && a < 0.6 * b) }' ||
    fail "activations: $(activations offload-all) of $(activations cpu-pp2-tp2) MiB"
train 0 4 offload-one device.name=guarded device.offload=activations:3 parallel.pp=2 parallel.dp=2 parallel.schedule=zbv
same_curve offload-one cpu-pp2-dp2
same_tensors offload-one cpu-pp2-dp2 10
as_planned offload-one
from offload-on cpu-bf16 1 "${offload[@]}"
from offload-off offload-pp2 1 train.precision=bf16
for run in offload-on offload-off; do
    same_curve "$run" cpu-pp2
    same_tensors "$run" cpu-pp2 10
done
train 78 1 offload-cpu device.offload=optimizer
says offload-cpu ".*device.offload optimizer moves memory of the device to the host, where device.name cpu has it anyway: leave"
train 78 1 offload-what device.name=guarded device.offload=optimiser
says offload-what ".*device.offload must be none, optimizer, activations, activations:FIRST-LAST .*, not 'optimiser'"
# Directions go to the device, which completes them, and back.
train 0 2 adafactor device.name=guarded train.precision=bf16 optim.name=adafactor parallel.tp=2
train 0 2 offload-adafactor "${offload[@]}" optim.name=adafactor parallel.tp=2
same_curve offload-adafactor adafactor
same_tensors offload-adafactor adafactor 10
as_planned offload-adafactor

finish
