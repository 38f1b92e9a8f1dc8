#!/usr/bin/env bash
# Tests checkpoints between a device and the CPU: one loads and saves again the bits that the other saved, and
# a run that continues on the other one stays on its curve.
# usage: across.sh TRIREME SCRATCH_DIR      TRIREME_TEST_DEVICE: the device (cpu)
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
device=${TRIREME_TEST_DEVICE:-cpu}

# copied RUN REFERENCE RANKS ARGUMENTS...: loads step 10 of the reference and saves it again.
copied() {
    mkdir -p "$scratch/$1.from" "$scratch/$1"
    cp -r "$(step_dir "$2" 10)" "$scratch/$1.from"
    plain_mpirun -n "$3" "$tools/ckpt_relayout" "$scratch/base.yaml" "$scratch/$1.from" \
        "$scratch/$1/ckpt" "${@:4}" </dev/null || fail "$1: loading or saving failed"
    same_tensors "$1" "$2" 10
}

# goes_on RUN REFERENCE RANKS ARGUMENTS...: the reference after its step 10, continued as RUN, stays
# within 1e-5 of the CPU's losses, as sums in another order differ.
goes_on() {
    cp -r "$scratch/$2" "$scratch/$1"
    rm -r "$(step_dir "$1" 20)"
    train 0 "$3" "$1" --resume "${@:4}"
    paste <(field "$1" loss) <(field cpu loss) | awk -v what="$1" '
        { d = ($1 - $2) / $2; if (d > 1e-5 || d < -1e-5) { print what ": step " NR ": " $0; bad = 1 } }
        END { exit bad || NR != 20 }' || fail "$1: losses too far from the CPU's"
}

train 0 2 cpu parallel.pp=2
train 0 2 there parallel.tp=2 device.name="$device"
copied there-of-cpu cpu 1 device.name="$device"
copied cpu-of-there there 2 parallel.pp=2
goes_on cpu-from-there there 2 parallel.dp=2
goes_on there-from-cpu cpu 1 device.name="$device"
finish
