#!/usr/bin/env bash
# Compares 200 steps on a device and on the CPU: the device's losses stay within twice the spread of the CPU's
# own runs in layouts with another order of sums, on one rank and on two that share the device; a second run has
# the bits of the first. Differences of rounding grow by chance, so one other layout would not tell the spread.
# usage: curves.sh TRIREME SCRATCH_DIR PRECISION      TRIREME_TEST_DEVICE: the device (cpu)
set -euo pipefail
trireme=$1 scratch=$2 precision=$3
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
device=${TRIREME_TEST_DEVICE:-cpu}
cat >"$scratch/base.yaml" <<Y
model: {layers: 3, width: 128, heads: 2, context: 64, dropout: 0.1}
data: {path: $text}
train: {steps: 200, batch: 4, micro_batch: 2, seed: 7, threads: 1, precision: $precision, deterministic: true, validate_every: 100, validate_batches: 1}
optim: {lr: 0.002, warmup: 20}
log: {every: 200}
Y

others=(cpu-tp cpu-dp cpu-dp-tp cpu-large)
mapfile -t spread < <(printf '%s.losses\n' "${others[@]/#/$scratch/}")

# within RUN: its largest distance from cpu-1 must be at most twice that of the others.
within() {
    paste "$scratch"/{cpu-1,"$1"}.losses "${spread[@]}" | awk -v what="$1" '
        function far(a, b) { return a > b ? a - b : b - a }
        { for (i = 3; i <= NF; i++) if (far($1, $i) > spread) spread = far($1, $i)
          if (far($1, $2) > most) { most = far($1, $2); at = NR } }
        END {
            printf "%s: largest distance %.3g (step %d), spread of the CPU %.3g\n", what, most, at, spread
            exit NR != 200 || spread == 0 || most > 2 * spread
        }' || fail "$1 is too far from the CPU's curve"
}

train 0 1 cpu-1 &
train 0 2 cpu-tp parallel.tp=2 &
train 0 2 cpu-dp parallel.dp=2 &
wait
train 0 4 cpu-dp-tp parallel.dp=2 parallel.tp=2 &
train 0 1 cpu-large train.micro_batch=4 &
wait
train 0 1 one device.name="$device"
train 0 1 one-again device.name="$device"
train 0 2 two device.name="$device" parallel.tp=2
train 0 2 two-again device.name="$device" parallel.tp=2
for run in cpu-1 "${others[@]}" one two; do
    [[ -s $scratch/$run/metrics.jsonl ]] || fail "$run has no metrics"
    field "$run" loss >"$scratch/$run.losses"
done
within one
within two
same_curve one-again one
same_curve two-again two
same_tensors one-again one 200
same_tensors two-again two 200
finish
