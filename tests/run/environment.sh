#!/usr/bin/env bash
# Tests the environment that the program sets before it looks for a GPU: several ranks load all kernels at
# once; one rank does not, nor does a user who has set the variable. A substitute for the driver prints what
# it finds.
# usage: environment.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
unset CUDA_MODULE_LOADING CUDA_VISIBLE_DEVICES
export DRIVER_SHIM_TELLS=CUDA_MODULE_LOADING
export LD_LIBRARY_PATH=$tools/driver_shim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

train 69 1 one device.name=cuda
if grep -q "has no CUDA backend" one.err; then
    echo "skipped: this build has no CUDA backend"
    exit 77
fi

# finds RUN RANKS VALUE: each rank's driver must find that value.
finds() {
    local found
    found=$(grep "^CUDA_MODULE_LOADING=" "$1.err") || true
    [[ $(wc -l <<<"$found") -ge $2 && $(sort -u <<<"$found") == "CUDA_MODULE_LOADING=$3" ]] ||
        fail "$1: not '$3' on $2 ranks, but: $(<"$1.err")"
}
finds one 1 ""
train 69 2 several device.name=cuda parallel.dp=2
finds several 2 EAGER
CUDA_MODULE_LOADING=LAZY train 69 2 own device.name=cuda parallel.dp=2
finds own 2 LAZY
# The test of NCCL opens the device before it knows the number of ranks.
code=0
"$tools/gpu_nccl" cuda >nccl.out 2>nccl.err || code=$?
[[ $code == 77 ]] || fail "gpu_nccl without a GPU ended with $code"
finds nccl 1 EAGER
finish
