#!/usr/bin/env bash
# Tests races: when fresh starts and resumes want one directory, it has the steps of one run.
# TRIREME_RACES: the number of races (default 6); TRIREME_SEED: the seed of their random choices.
# usage: races.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
# With a constant learning rate the number of steps changes no step.
options=(optim.min_lr=0.003 log.every=1000 checkpoint.every=7 train.steps=40)
seed=${TRIREME_SEED:-$RANDOM}
echo "seed $seed"
RANDOM=$seed
modes=("" --resume --resume=auto)
train 0 1 whole "${options[@]}"

# race RUN: starts several jobs in one directory at about the same time, and may kill one; then one continues
# to the end. Each must end with 0 or with a sentence that says why not, and the steps must be those of one
# run.
race() {
    local run=$1 jobs=() i code words
    for i in 0 1 2; do
        # shellcheck disable=SC2206 # no argument, or one
        words=(${modes[RANDOM % 3]})
        "$trireme" train base.yaml log.dir="$run" "${options[@]}" "${words[@]}" \
            >"$run.$i.out" 2>"$run.$i.err" &
        jobs+=($!)
        sleep "0.0$((RANDOM % 8))"
    done
    ((RANDOM % 2)) || { sleep "0.$((RANDOM % 4))"; kill -9 "${jobs[RANDOM % 3]}" 2>/dev/null || true; }
    for i in 0 1 2; do
        code=0
        wait "${jobs[i]}" 2>/dev/null || code=$?
        [[ $code == 0 || $code == 137 ]] && continue
        grep -Eq "^trireme: ('$run' is in use by |'$run' contains another run: |there is no checkpoint under )" \
            "$run.$i.err" || fail "$run: job $i ended with $code: $(<"$run.$i.err")"
    done
    train 0 1 "$run" "${options[@]}" --resume=auto
    same_curve "$run" whole
    same_tensors "$run" whole 40
    rm -rf "$run" "$run".*
}
for ((n = 1; n <= ${TRIREME_RACES:-6}; n++)); do race race-$n; done
finish
