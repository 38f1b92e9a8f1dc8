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
# So are samples and evaluations. Both need the parameters in train.precision alone, without masters.
for words in "sample $scratch/small -p a -n 4" "eval $scratch/small train.micro_batch=1"; do
    read -ra words <<<"$words"
    for precision in fp32 bf16 fp16; do
        code=0
        "$trireme" "${words[@]}" device.name="$device" train.precision=$precision device.memory=1kB >/dev/null 2>"$scratch/low.err" || code=$?
        [[ $code == 76 ]] || fail "${words[0]} in $precision: exit code $code"
        says low 'rank 0 of the pipeline needs more than .* \(parameters 0\.[0-9], .* and a rank may use 1000 bytes \(device.memory\), .* less: .*'
        sed -nE 's/.*\(device.memory\), ([0-9.]+) KiB less.*/\1/p' "$scratch/low.err" >"$scratch/least.${words[0]}.$precision"
    done
    for precision in bf16 fp16; do
        awk 'NR == 1 { wide = $1 } END { exit !($1 > 0 && ($1 + 1) / (wide + 1) < 0.55) }' "$scratch/least.${words[0]}.fp32" \
            "$scratch/least.${words[0]}.$precision" || fail "${words[0]} in $precision: $(tail -n 1 "$scratch/least.${words[0]}".*)"
    done
    "$trireme" "${words[@]}" device.name="$device" device.memory=1GiB >/dev/null 2>"$scratch/enough.err" || fail "${words[0]}: $(<"$scratch/enough.err")"
done
# With a cache that does not fit, all that a text takes is listed.
code=0
least=$(cut -d. -f1 "$scratch/least.sample.fp32")
"$trireme" sample "$scratch/small" device.name="$device" device.memory=$((least + 2))KiB >/dev/null 2>"$scratch/cache.err" || code=$?
[[ $code == 76 ]] || fail "a cache: exit code $code"
says cache 'rank 0 of the pipeline needs [0-9.]+ MiB \(parameters .*, activations .* and a rank may use .*: start it on more ranks .*'
finish
