#!/usr/bin/env bash
# Tests that an impossible state with valid checksums is refused by every command that reads it, at once, with
# 65 and one sentence.
# usage: forged.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

train 0 1 good train.steps=4 checkpoint.every=4

# refuses RUN COMMAND...: the command must end with 65 and one line that names the field, without a hang.
refuses() {
    local run=$1 code=0
    shift
    timeout -k 1 100 "$trireme" "$@" >"$run.out" 2>"$run.err" || code=$?
    [[ $code == 65 ]] || fail "$run: trireme $1 ended with $code, not 65"
    says $run ".*/state/$field is not .*"
}

while read -r field value; do
    run=$field.$value
    cp -r good "$run"
    "$tools/ckpt_forge" "$(step_dir "$run" 4)" "$field" "$value" || fail "$run: not forged"
    refuses "$run" train base.yaml log.dir="$run" --resume train.steps=6
    refuses "$run" sample "$run" -n 1
    refuses "$run" ckpt verify "$run"
done <<'END'
step -4
next_sample -1
next_sample 9223372036854775807
optimizer_step -1
optimizer_step 5
skipped 1
tokens_seen nan
tokens_seen -1
END

# Several ranks read it through rank 0; an older valid step is used instead.
train 0 2 two parallel.pp=2 train.steps=8 checkpoint.every=4
"$tools/ckpt_forge" "$(step_dir two 8)" next_sample -1
train 0 2 two parallel.pp=2 train.steps=8 checkpoint.every=4 --resume
says two "warning: resuming from step 4, because a newer one is not valid: .*/state/next_sample is not "
finish
