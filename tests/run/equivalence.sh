#!/usr/bin/env bash
# Tests layout equivalence: the same small GPT, 20 steps (10 in BF16 and FP16), with dropout, one thread a rank, on
# every layout pp x tp x dp of at most 8 ranks (TRIREME_TEST_RANKS) and both schedules, in FP32, BF16 or FP16; and
# with offload, and data ranks in two factors. With TRIREME_DRAW 10 steps, and of the layouts that no other is compared
# with, half.
#
#   at fixed tp and dp: losses and final parameters bit-identical across pp and schedules
#   across tp and dp (FP32): loss of step 1 within 1e-6, of all steps within 1e-5 relative; gradients of
#   step 1 (adam_m, clipping off) norm-wise within 1e-5
#
# usage: equivalence.sh TRIREME SCRATCH PRECISION     (ckpt_compare is next to the tests' programs)
# TRIREME_TEST_DEVICE: where the ranks compute (cpu); TRIREME_TEST_TRANSPORT: what carries their data (auto);
# TRIREME_TEST_SIZES: width, heads and context of the model; TRIREME_TEST_JOBS: runs at a time (1).
set -euo pipefail
trireme=$1 scratch=$2 precision=$3
device=${TRIREME_TEST_DEVICE:-cpu} sizes=${TRIREME_TEST_SIZES:-width: 32, heads: 4, context: 32}
most=${TRIREME_TEST_RANKS:-8} steps=20
[[ $precision == fp32 && -z ${TRIREME_DRAW:-} ]] || steps=10
source "$(dirname "$0")/common.sh"
cat >"$scratch/base.yaml" <<Y
model: {layers: 4, $sizes, vocab: 700, dropout: 0.1}
data: {path: $text}
train: {steps: $steps, batch: 12, micro_batch: 1, seed: 7, precision: $precision, threads: 1, deterministic: true, validate_every: $((steps / 2)), validate_batches: 1}
optim: {lr: 0.003, warmup: 4, clip: 0}
checkpoint: {every: $steps, keep: 2}
log: {every: 20}
device: {name: $device}
parallel: {transport: ${TRIREME_TEST_TRANSPORT:-auto}}
Y

run() { # NAME PP TP DP SCHEDULE [ARGUMENT...]: in the background once there is a place
  while [ "$(jobs -pr | wc -l)" -ge "${TRIREME_TEST_JOBS:-1}" ]; do wait -n || true; done
  echo "$1 begins after $SECONDS s"
  trireme_on $(($2 * $3 * (${4/x/*}))) train "$scratch/base.yaml" parallel.pp="$2" parallel.tp="$3" parallel.dp="$4" \
    parallel.schedule="$5" log.dir="$scratch/$1" "${@:6}" >"$scratch/$1.out" 2>&1 ||
    { echo $? >"$scratch/$1.failed"; } &
}

layouts() { # COMMAND ARGUMENT...: for each layout, with its name, degrees and schedule
  local tp dp pp schedule
  for tp in 1 2; do
    for dp in 1 2 3; do
      for pp in 1 2 4; do
        [ $((pp * tp * dp)) -le "$most" ] || continue
        for schedule in gpipe 1f1b; do "$@" "pp$pp-tp$tp-dp$dp-$schedule" $pp $tp $dp $schedule; done
      done
    done
  done
}

same_bits() { # NAME REFERENCE
  same_curve "$1" "$2"
  same_tensors "$1" "$2" $steps
}

count=0
judge() { # NAME PP TP DP SCHEDULE
  [ -d "$scratch/$1" ] || return 0
  count=$((count + 1))
  local reference=pp1-tp$3-dp$4-gpipe first=first-tp$3-dp$4
  [ "$1" = "$reference" ] || { same_bits "$1" "$reference"; return; }
  [ "$precision" = fp32 ] || return 0
  near "$reference" pp1-tp1-dp1-gpipe
  "$tools/ckpt_compare" gradients "$(step_dir first-tp1-dp1 1)" "$(step_dir "$first" 1)" 1e-5 || fail "gradients of tp $3 dp $4"
}

# run_drawn NAME PP TP DP SCHEDULE: a layout that others are compared with, or is drawn.
run_drawn() { if [[ $1 == pp1-tp*-gpipe ]] || drawn "$1"; then run "$@"; fi; }
layouts run_drawn
# State and activations in the host's memory; data ranks in two factors, which divide everything or nothing.
apart=$device
[ "$device" != cpu ] || apart=guarded
run offload 2 1 1 gpipe device.name="$apart" device.offload=optimizer,activations
if [ "$most" -ge 4 ]; then
  run near 1 1 2x2 gpipe
  run near-divided 1 1 2x2 bfs parallel.virtual=4 parallel.zero=3
fi
if [ "$precision" = fp32 ]; then
  for tp in 1 2; do
    for dp in 1 2 3; do [ $((tp * dp)) -gt "$most" ] || run "first-tp$tp-dp$dp" 1 $tp $dp gpipe train.steps=1 checkpoint.every=1; done
  done
fi
wait
for failed in "$scratch"/*.failed; do
  [ -e "$failed" ] || continue
  fail "$(basename "$failed" .failed) ended with $(cat "$failed")"
  tail -5 "${failed%.failed}.out"
done
layouts judge
same_bits offload pp1-tp1-dp1-gpipe
if [ "$most" -ge 4 ]; then
  same_bits near-divided near
  [ "$precision" != fp32 ] || near near pp1-tp1-dp1-gpipe
fi
echo "$count runs"
finish
