#!/usr/bin/env bash
# Random trials of faults, signals, bad input and layouts. A trial has a kind and a number, which repeats it:
#   lost     a rank is killed or stopped at a random moment: it is named, 77; --resume reaches the same bits
#   restart  a rank is killed once or more often in a job with --restarts 2: it ends with 0 and the bits of an
#            undisturbed one, or with 77 after the third time
#   stop     signals reach the launcher, mpirun, a rank or all of them: 75, saved; --resume reaches the same bits
#   race     two jobs of several ranks want one log.dir: one of them gets it, the steps are those of one run
#   damage   a checkpoint's files are damaged: --resume goes on from the one before, with the same bits
#   families a family's tiny preset on a random layout: the bits of one rank, or near ones; planned bytes are allocated
#   options  drawn options of optimizer, precision, memory and data ranks: the bits without them, planned bytes, or 78
#   chain    a run is interrupted again and again, and goes on with other stages and memory: the bits of one that was not; eval,
#            sample, export and import agree on it; a run with other ranks, precision and optimizer continues it
#   advice   the changes that a plan names for a drawn limit fit, and the best of --search is what plan says of it
#   hostile  invalid files and arguments: one sentence and a documented exit code
# Timing in a trial of several ranks depends on the machine's load too; the expectations hold for any timing.
#
# usage: tests/trials.sh KIND SEED [COUNT]     default: 1 trial; the numbers count up from SEED
#        TRIREME_BUILD: the build folder (default build/release)
# The files of a trial that failed stay in build/trials.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
build=${TRIREME_BUILD:-build/release}
kind=${1:-} seed=${2:-} count=${3:-1}
[[ -f tests/trials/$kind.sh && $seed =~ ^[0-9]+$ && $count =~ ^[0-9]+$ ]] || {
    sed -n '3,/^set/{/^# usage/,/^set/{/^#/s/^# //p}}' "$0"
    exit 64
}
[[ -x $build/trireme ]] || { echo "trials: $build/trireme is missing: build first"; exit 69; }

failed=0
for ((n = seed; n < seed + count; n++)); do
    if TRIREME_BUILD=$build timeout --kill-after=10 600 bash tests/trials/one.sh "$kind" "$n" "build/trials/$kind-$n"; then
        rm -rf "build/trials/$kind-$n"
    else
        echo "trials: FAILED: repeat it with: tests/trials.sh $kind $n; its files are in $root/build/trials/$kind-$n"
        failed=1
    fi
done
exit $failed
