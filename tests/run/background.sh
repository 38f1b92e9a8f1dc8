#!/usr/bin/env bash
# Tests checkpoint.background on a slow disk: training goes on while a step is saved, and the files are those of a
# save at once; the plan counts the copy; a rank that is killed while it writes leaves the older step; a request to
# stop, and the step that a run goes back to, wait for the save.
# usage: background.sh TRIREME SCRATCH_DIR
# shellcheck disable=SC2154
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# slowly BYTES COMMAND...: runs it with a disk on which every write of this many bytes or more takes a quarter of a
# second.
slowly() { LD_PRELOAD=$tools/libslow_disk.so SLOW_DISK_BYTES=$1 "${@:2}"; }

# same_files RUN REFERENCE STEP: the shards must be the same bytes, and the tensors and the state of the index.
same_files() {
    local shard
    for shard in "$(step_dir "$2" "$3")"/shard-*; do
        cmp "$shard" "$(step_dir "$1" "$3")/$(basename "$shard")" || fail "$1 and $2: shards of step $3 differ"
    done
    same_tensors "$1" "$2" "$3"
    diff <(h5dump -g /state "$(step_dir "$1" "$3")/index.h5" | tail -n +2) \
        <(h5dump -g /state "$(step_dir "$2" "$3")/index.h5" | tail -n +2) >/dev/null || fail "$1 and $2: state of step $3"
}

# both RUN RANKS BYTES SETTINGS...: saved in the background and at once, the same run, bits and files. Writes of this
# many bytes or more are slow: those of the wte (32 KiB where a rank has all of it, otherwise 16 KiB) and of its moments,
# while steps 11 to 20 change them.
both() {
    local run=$1 ranks=$2 bytes=$3
    shift 3
    train 0 "$ranks" "$run-once" "$@"
    slowly "$bytes" train 0 "$ranks" "$run" "$@" checkpoint.background=true
    same_curve "$run" "$run-once"
    same_files "$run" "$run-once" 10
    same_files "$run" "$run-once" 20
    as_planned "$run"
    grep -q '^memory .* took .* snapshot [0-9.]*[1-9]' "$run.out" || fail "$run: $(grep '^memory' "$run.out")"
    grep -q '^memory .* snapshot' "$run-once.out" && fail "$run-once: has a snapshot"
    intact "$run" 10
}
both one 1 30000
both mesh 4 16000 parallel.pp=2 parallel.tp=2 train.precision=bf16
both zero 2 16000 parallel.dp=2 parallel.zero=3 train.precision=bf16
both int8 2 30000 parallel.dp=2 optim.moments=int8
both guarded 2 30000 device.name=guarded parallel.dp=2 device.offload=optimizer train.precision=bf16
both adafactor 2 16000 device.name=guarded parallel.tp=2 optim.name=adafactor
grep -q '; in host memory: offload [0-9.]*, snapshot [0-9.]*$' guarded.out || fail "guarded: $(grep '^memory' guarded.out)"

# A run goes on from a step that was saved in the background.
rm -r "$(step_dir one 20)"
train 0 1 one checkpoint.background=true --resume
same_files one one-once 20

# The plan of a rank is its memory, and counts the copy.
planned() { sed -n "s/^memory .* snapshot \([0-9.]*\)$/\1/p" "$1.out" | tail -n 1; }
"$trireme" plan base.yaml --rate 1 checkpoint.background=true >plan.out
grep -q "^snapshot at most $(planned one) MiB a rank in host memory, .* (part of the sum above)" plan.out ||
    fail "plan: $(grep snapshot plan.out), run: $(planned one)"
code=0
"$trireme" plan base.yaml --rate 1 checkpoint.background=true device.name=guarded device.host_memory=64KiB >plan.out 2>plan.err || code=$?
[[ $code == 76 ]] || fail "a host without room for the copy: exit code $code, not 76"
says plan "checkpoint.background keeps .* in the memory of a host, .* \(device.host_memory\); set checkpoint.background to false, or "

# start RUN RANKS BYTES SETTINGS...: starts a run with checkpoint.background and does not wait for it; $job is its
# process.
start() {
    local run=$1 ranks=$2 bytes=$3
    shift 3
    slowly "$bytes" trireme_on "$ranks" train base.yaml log.dir="$scratch/$run" checkpoint.background=true "$@" \
        >"$run.out" 2>"$run.err" &
    job=$!
}
# writes RUN STEP: succeeds while the step is being saved, and a later one was taken.
writes() { compgen -G "$scratch/$1/ckpt/.tmp-$(basename "$(step_dir "$1" "$2")").*/shard-*" >/dev/null && past "$1" $(($2 + 1)); }

# A rank is killed while it and the other rank write step 20: step 10 stays, and nothing has to be repaired.
train 0 2 whole parallel.pp=2 train.steps=40
start killed 2 16000 parallel.pp=2 train.steps=40
until_true 120 writes killed 20 || fail "killed: did not train while it saved step 20"
kill -KILL "$(rank_process 1)"
code=0
wait $job || code=$?
[[ $code == 77 ]] || fail "killed: exit code $code, not 77: $(<killed.err)"
[[ ! -e $(step_dir killed 20) ]] || fail "killed: step 20 is saved"
intact killed 10
train 0 2 killed parallel.pp=2 train.steps=40 checkpoint.background=true --resume
grep -q 'warning' killed.err && fail "killed: $(<killed.err)"
same_files killed whole 40
[[ -z $(find killed/ckpt -name '.*-step-*') ]] || fail "killed: $(ls -A killed/ckpt)"

# A request to stop while step 10 is being saved: this save and the last one are complete.
start stopped 1 30000 train.steps=100000 checkpoint.every=10 train.validate_every=0 optim.horizon=100000 checkpoint.keep=1000
until_true 60 writes stopped 10 || fail "stopped: did not train while it saved"
for p in $(descendants $job); do
    [[ $(readlink "/proc/$p/exe") != "$trireme" ]] || kill -TERM "$p"
done
code=0
wait $job || code=$?
[[ $code == 75 ]] || fail "stopped: exit code $code, not 75: $(<stopped.err)"
intact stopped 10
intact stopped "$(last_step stopped)"
finish
