#!/usr/bin/env bash
# Tests runs that are continued when the newest checkpoint is corrupt: they go on from the one before, with one
# warning and the bits of an undisturbed run, also in a job that starts again by itself. When none can be loaded they
# end with 65, and leave all checkpoints as they are.
# usage: corrupt.sh TRIREME SCRATCH_DIR
# shellcheck disable=SC2154
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
options=(parallel.pp=2 optim.schedule=constant data.validation=0 train.validate_every=0)
cause='/shard-0000[01]-of-00002.h5: block 0 of tensor .* does not have its checksum: it is corrupt'

# steps RUN: prints the steps that have a directory, on one line.
steps() { (cd "$1/ckpt" && echo step-*) | sed 's/step-0*//g'; }

# spoil RUN STEP: flips a bit amid the numbers of each shard.
spoil() {
    local shard
    for shard in "$(step_dir "$1" "$2")"/shard-*; do flip "$shard" 60000 2; done
}

# unmarked RUN: no step may be marked as corrupt.
unmarked() { ! compgen -G "$1/ckpt/*/CORRUPT" >/dev/null || fail "$1: $(echo "$1"/ckpt/*/CORRUPT)"; }

# once RUN PATTERN: its stderr and its log.txt have one line each that matches.
once() {
    local file
    for file in "$1.err" "$1/log.txt"; do
        [[ $(grep -Ec -- "$2" "$file") == 1 ]] || fail "$1: $file has not once '$2': $(<"$1.err")"
    done
}

# restarted CODE RUN newest|all: starts a job that starts again, spoils its newest or all its checkpoints amid the run,
# and kills a rank. $steps: those saved by then.
restarted() {
    local want=$1 run=$2 code=0 held step
    timeout 300 "$trireme" run -n 2 --restarts 2 train base.yaml log.dir="$run" "${options[@]}" train.steps=100 \
        checkpoint.every=5 checkpoint.keep=3 >"$run.out" 2>"$run.err" &
    job=$!
    until_true 120 past "$run" 25 || fail "$run: never took 25 steps"
    held=$(hold "$job")
    while compgen -G "$run/ckpt/.tmp-*" >/dev/null; do # amid a save, which may yet succeed
        # shellcheck disable=SC2086 # a word for each process
        kill -CONT $held
        held=$(hold "$job")
    done
    lost=$(rank_process 1)
    read -r -a saved <<<"$(steps "$run")"
    for step in "${saved[@]}"; do
        [[ $3 == newest && $step != "${saved[-1]}" ]] || spoil "$run" "$step"
    done
    kill -KILL "$lost"
    # shellcheck disable=SC2086 # a word for each process
    kill -CONT $held 2>/dev/null || true
    wait "$job" || code=$?
    [[ $code == "$want" ]] || fail "$run: exit code $code, not $want: $(<"$run.err")"
    [[ $(grep -c '' "$run.err") == 3 ]] || fail "$run: not three lines: $(<"$run.err")"
    grep -q '^trireme: lost rank 1 ' "$run.err" || fail "$run: no loss: $(<"$run.err")"
    grep -q '^trireme: the job starts again (restart 1 of 2)$' "$run.err" || fail "$run: no restart: $(<"$run.err")"
    unmarked "$run"
}

train 0 2 whole "${options[@]}" train.steps=100 checkpoint.every=5 checkpoint.keep=3
restarted 0 again newest
once again "^trireme: warning: resuming from step ${saved[-2]}, because a newer one is not valid: .*step-0*${saved[-1]}$cause"
grep -q "^resumed  after step ${saved[-2]} of 100$" again.out || fail "again: $(grep ^resumed again.out)"
[[ $(grep -c '^layout ' again.out) == 2 ]] || fail "again: the plan is not printed once for each job: $(<again.out)"
same_curve again whole
same_tensors again whole 100
[[ $(steps again) == "90 95 100" ]] || fail "again: steps $(steps again)"

restarted 65 none all
grep -q "^trireme: no checkpoint under none/ckpt is valid; the newest: .*step-0*${saved[-1]}/" none.err ||
    fail "none: $(<none.err)"
[[ $(tail -n 1 none/log.txt) == "trireme: no checkpoint under none/ckpt is valid; "* ]] || fail "none: $(tail -n 3 none/log.txt)"
[[ $(steps none) == *"${saved[*]: -3}" ]] || fail "none: steps $(steps none), not ${saved[*]: -3}"

# Two corrupt steps. The run ends before it has reached them: until it passes them they stay, marked with their
# causes, and are not among those that are kept.
options+=(checkpoint.every=5 checkpoint.keep=2)
train 0 2 two "${options[@]}" checkpoint.keep=4
spoil two 15
spoil two 20
train 0 2 two "${options[@]}" --resume train.steps=13
says two "warning: resuming from step 10, because a newer one is not valid: .*step-00000020$cause"
[[ $(steps two) == "10 13 15 20" ]] || fail "two: steps $(steps two)"
for step in 15 20; do
    grep -Eq "^$scratch/two/ckpt/step-000000$step$cause" "$(step_dir two $step)/CORRUPT" || fail "two: no mark in step $step"
done
"$trireme" ckpt ls two >two.ls || fail "two: ckpt ls failed"
[[ $(grep -Ec "^(10|13) .* complete$" two.ls) == 2 && $(grep -Ec "^(15|20) .*$cause" two.ls) == 2 ]] || fail "two: $(<two.ls)"
train 0 2 two "${options[@]}" --resume=auto
says two "warning: resuming from step 13, because a newer one is not valid: .*step-00000020$cause"
[[ $(steps two) == "15 20" ]] || fail "two: steps $(steps two)"
unmarked two
intact two 15
intact two 20

# The step before is of other data, so the run does not go on from it: then the corrupt step is named, too.
tr e E <"$text" >other.txt
train 0 2 data "${options[@]}" checkpoint.every=10 train.steps=10
train 0 2 data "${options[@]}" checkpoint.every=10 --resume data.path=other.txt data.changed=allow
spoil data 20
train 78 2 data "${options[@]}" --resume data.path=other.txt train.steps=30
grep -Eq "^trireme: warning: step 20 cannot be loaded: .*step-00000020$cause" data.err || fail "data: $(<data.err)"
grep -q "^trireme: 'other.txt' is not the data that the checkpoint was made with: " data.err || fail "data: $(<data.err)"
unmarked data

# It goes on when that is allowed, and a line that only the step before causes is printed.
train 0 2 data "${options[@]}" --resume data.path=other.txt data.changed=allow
grep -q "^trireme: warning: 'other.txt' is not the data that the checkpoint was made with .* begins with it$" data.err ||
    fail "data: $(<data.err)"
grep -Eq "^trireme: warning: resuming from step 10, .*step-00000020$cause" data.err || fail "data: $(<data.err)"
[[ $(grep -c '' data.err) == 2 ]] || fail "data: not two lines: $(<data.err)"

# The fault was not the disk's: verify finds the marked step intact, and says how it is used again.
train 0 2 gone "${options[@]}" checkpoint.keep=4
spoil gone 20
train 0 2 gone "${options[@]}" checkpoint.keep=4 --resume train.steps=16
spoil gone 20 # restores the bits
"$trireme" ckpt verify gone 20 >gone.out || fail "gone: verify failed"
grep -q "^step 20: all blocks .* are intact; a run has marked it as corrupt: remove the file CORRUPT " gone.out || fail "gone: $(<gone.out)"
rm gone/ckpt/step-00000020/CORRUPT
"$trireme" ckpt verify gone >gone.out || fail "gone: verify failed"
grep -q "^step 20: all blocks of all shards are intact$" gone.out || fail "gone: $(<gone.out)"

# Checkpoints of a later format are not read by this build, and stay as they are.
sed -i 's/^format=1$/format=2/' gone/ckpt/*/COMMIT
train 65 2 gone "${options[@]}" --resume train.steps=30
says gone "no checkpoint under .*/gone/ckpt is valid; .*/COMMIT was written by format 2, this build reads up to 1: use a newer build$"
refused 65 "/COMMIT was written by format 2, this build reads up to 1: use a newer build" sample gone --step 20
[[ $(<refused.err) != *"start again"* ]] || fail "gone: two remedies: $(<refused.err)"
unmarked gone

# A rank that does not see rank 0's files blames no checkpoint: its folder has rank 0's lock, but at first no run, then
# another one.
train 0 2 apart "${options[@]}"
mkdir elsewhere
for other in nothing another; do
    rm -rf elsewhere/apart
    if [[ $other == nothing ]]; then mkdir elsewhere/apart; else train 0 2 elsewhere/apart "${options[@]}" optim.lr=0.001; fi
    ln -sf ../../apart/lock elsewhere/apart/lock
    code=0
    apart "$trireme" train "$scratch/base.yaml" log.dir=apart "${options[@]}" --resume train.steps=30 : \
        env -C "$scratch/elsewhere" "$trireme" train "$scratch/base.yaml" log.dir=apart "${options[@]}" --resume train.steps=30 \
        >apart.out 2>apart.err </dev/null || code=$?
    [[ $code == 74 ]] || fail "apart ($other): exit code $code, not 74: $(<apart.err)"
    grep -q "shard-00000-of-00002.h5.*; rank 0 has found other files there: the run must be on one file system" apart.err ||
        fail "apart ($other): $(<apart.err)"
    unmarked apart
done

options=(optim.schedule=constant data.validation=0 train.validate_every=0)
train 0 1 read "${options[@]}"
# A folder in a run is not the run, which is named.
for inside in read/ckpt read/ckpt/ read/ckpt/step-00000020; do
    refused 65 "there is no checkpoint under $inside/ckpt: did you mean the run 'read'?" ckpt ls $inside
    refused 65 "'$inside' has no checkpoints ($inside/ckpt): did you mean the run 'read'?" sample $inside
done
cd read
refused 65 "did you mean the run '.'?" eval ckpt
cd ..
# A run that could not read the newest step, and reaches it again, replaces it, whether it is whole again by then
# (after the four tries of the beginning) or still cannot be read.
if strace -qq -o /dev/null true >/dev/null 2>&1; then
    for when in 1..4 1+; do
        run=unread-$when code=0
        cp -r read "$run"
        timeout 300 strace -qq -f -o /dev/null -P "$(step_dir "$run" 20)/COMMIT" -e trace=openat -e inject=openat:error=EIO:when="$when" \
            "$trireme" train base.yaml log.dir="$scratch/$run" "${options[@]}" --resume >"$run.out" 2>"$run.err" || code=$?
        [[ $code == 0 ]] || fail "$run: exit code $code: $(<"$run.err")"
        once "$run" "^trireme: warning: resuming from step 10, because a newer one is not valid: .*/step-00000020/COMMIT: Input/output error"
        once "$run" "^trireme: warning: step 20, which was passed over when the run was resumed, is replaced$"
        [[ $(steps "$run") == "10 20" ]] || fail "$run: steps $(steps "$run")"
        unmarked "$run"
        same_tensors "$run" read 20
    done
    code=0
    strace -qq -o /dev/null -P "$(step_dir read 20)/COMMIT" -e trace=openat -e inject=openat:error=EIO:when=1+ \
        "$trireme" ckpt ls "$scratch/read" >ls.out 2>ls.err || code=$?
    [[ $code == 74 ]] && grep -q "^20 .*Input/output error$" ls.out || fail "ckpt ls: exit code $code: $(<ls.out)"
    grep -q "^trireme: 1 of 2 steps could not be read: look after the file system, and try again$" ls.err || fail "ckpt ls: $(<ls.err)"
else
    echo "not run: strace cannot trace here"
fi
finish
