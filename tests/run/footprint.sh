#!/usr/bin/env bash
# Tests a rank outside of its plan: little anonymous memory, no GPU library unless it opens
# a GPU, and the run directory in its command line.
# usage: footprint.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
cd "$scratch"
most=$((30 << 10)) # KiB besides the plan

"$trireme" run -n 2 train base.yaml log.dir="$scratch/run" parallel.pp=2 train.steps=1000000 checkpoint.every=0 \
    >run.out 2>run.err &
job=$!
until_true 60 past run 3 || fail "no third step: $(<run.err)"
planned=$(sed -n 's/^memory .* rank 0: \([0-9.]*\) MiB planned.*/\1/p' run.out)
for rank in 0 1; do
    process=$(rank_process "$rank")
    anonymous=$(awk '/^Anonymous:/ { print $2 }' "/proc/$process/smaps_rollup")
    # Both ranks are compared with rank 0's plan; with such a small model all plans are a few MiB.
    awk -v a="$anonymous" -v p="$planned" -v most="$most" 'BEGIN { exit !(a < p * 1024 + most) }' ||
        fail "rank $rank has $anonymous KiB of anonymous memory; its plan is $planned MiB"
    # Those who look for the ranks of a run find them by its directory.
    grep -qzFx "log.dir=$scratch/run" "/proc/$process/cmdline" || fail "rank $rank: $(tr '\0' ' ' <"/proc/$process/cmdline")"
    libraries=$(grep -oE '[^/]*(cublas|cudnn|nccl|libcuda)[^/]*$' "/proc/$process/maps" | sort -u || true)
    [[ -z $libraries ]] || fail "rank $rank, which uses no GPU, has loaded $libraries"
done
finish
