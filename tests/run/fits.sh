#!/usr/bin/env bash
# Tests the memory of a device: the planned bytes are allocated, and a model that exceeds the free memory or
# device.memory is refused with 76 before anything is allocated.
# usage: fits.sh TRIREME SCRATCH_DIR      TRIREME_TEST_DEVICE: the device (cpu)
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
device=${TRIREME_TEST_DEVICE:-cpu}

train 0 1 small device.name="$device" train.steps=2 optim.warmup=1 checkpoint.every=0
as_planned small
grep -qE 'mem ([0-9]+)/\1 MiB' "$scratch/small.out" || fail "planned and allocated differ: $(grep ^step "$scratch/small.out")"

# No device has enough memory: 10^5 layers of width 16384 are hundreds of terabytes.
start=$SECONDS
train 76 1 huge device.name="$device" model.width=16384 model.heads=128 model.layers=2000
says huge 'rank 0 of the pipeline needs more than .* MiB .* and a rank may use .* \(free memory\), .*'
((SECONDS - start < 60)) || fail "the refusal took $((SECONDS - start)) s"
train 76 1 limited device.name="$device" device.memory=1MiB model.width=128
says limited 'rank 0 of the pipeline needs .* \(device\.memory\).*'
finish
