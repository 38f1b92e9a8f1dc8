#!/usr/bin/env bash
# Tests text from a checkpoint that a device has saved: it is the same on the device twice, and greedy text
# begins like the CPU's.
# usage: sampled.sh TRIREME SCRATCH_DIR      TRIREME_TEST_DEVICE: the device (cpu)
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
device=${TRIREME_TEST_DEVICE:-cpu}

train 0 1 there device.name="$device"
train 0 1 cpu
for run in there cpu; do
    timeout 300 "$trireme" sample "$scratch/$run" -p 'The ' -n 40 --temperature 0 >"$scratch/$run.text" 2>"$scratch/$run.err" ||
        fail "no sample of $run: $(<"$scratch/$run.err")"
done
for time in 1 2; do
    timeout 300 "$trireme" sample "$scratch/there" -p 'The ' -n 60 --temperature 1 --seed 5 >"$scratch/drawn.$time" || fail "no sample"
done
cmp "$scratch/drawn.1" "$scratch/drawn.2" || fail "two samples of one seed differ"
cmp -n 12 "$scratch/there.text" "$scratch/cpu.text" || fail "greedy text differs at once"
finish
