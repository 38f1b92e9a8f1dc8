#!/usr/bin/env bash
# Tests train.precision=fp64 on the device ref: layouts agree to FP64's rounding, the planned bytes are
# allocated, a run is saved, resumed and sampled; other devices refuse it.
# usage: fp64.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
options=(device.name=ref train.precision=fp64 train.steps=6 train.batch=4 checkpoint.every=6 model.layers=2)

train 0 1 one "${options[@]}"
train 0 4 four "${options[@]}" parallel.pp=2 parallel.tp=2
for run in one four; do as_planned "$run"; done
paste <(field one loss) <(field four loss) | awk '
    { off = ($1 - $2) / $1; if (NF != 2 || off > 1e-12 || -off > 1e-12) { print "step", NR ": losses", $1, "and", $2; bad = 1 } }
    END { exit bad || NR != 6 }' || fail "pp 2 x tp 2 has other losses than one rank"
train 0 1 one "${options[@]}" --resume train.steps=8 optim.horizon=8
says one "warning: the checkpoint is of a run with train.precision fp64: its parameters and moments were rounded to fp32 when"
intact one 8
"$trireme" sample "$scratch/one" -p A -n 4 >"$scratch/sample" 2>&1 || fail "sample: $(<"$scratch/sample")"
for command in "sample one -p A" "eval one"; do
    read -ra words <<<"$command"
    code=0
    (cd "$scratch" && "$trireme" "${words[@]}" device.name=cpu >refused 2>&1) || code=$?
    [[ $code == 78 ]] && grep -q '^trireme: .*train.precision fp64 needs device.name ref' "$scratch/refused" ||
        fail "$command: exit code $code: $(<"$scratch/refused")"
done
train 78 1 cpu train.precision=fp64
says cpu '.*train.precision fp64 needs device.name ref: cpu computes in fp32, bf16 and fp16; set device.name=ref, or train.precision=fp32'
sed -i 's/precision: fp32, //' "$scratch/base.yaml"
train 78 1 one model.layers=2 --resume train.steps=10
says one 'the checkpoint has train.precision fp64, which needs device.name ref: continue it with device.name=ref, or with train.precision=fp32 on cpu$'
finish
