#!/usr/bin/env bash
# Tests the run directory: one job at a time, whichever process dies; a job that is started again continues
# where it stopped.
# usage: rundir.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
host=$(uname -n)
# With a constant learning rate the number of steps changes no step.
options=(optim.min_lr=0.003 log.every=1000)
grid=(parallel.pp=2 parallel.tp=2)

# begin RANKS RUN ARGUMENTS...: starts a job in the background; $job is its process.
begin() {
    local ranks=$1 run=$2 launch=()
    shift 2
    [[ $ranks == 1 ]] || launch=(run -n "$ranks")
    "$trireme" "${launch[@]}" train base.yaml log.dir="$run" "${options[@]}" "$@" >"$run.out" 2>"$run.err" &
    job=$!
}

# end_job: kills it with all its processes.
end_job() { { descendants "$job" | xargs kill -9; wait "$job"; } 2>/dev/null || true; }

# in_use RANKS RUN ARGUMENTS...: another job must end with a sentence that names the holder of the directory.
in_use() {
    local ranks=$1 run=$2 code=0
    shift 2
    trireme_on "$ranks" train base.yaml log.dir="$run" "${options[@]}" "$@" >second.out 2>second.err || code=$?
    [[ $code == 78 ]] || fail "$run: a second job ended with $code, not 78"
    says second "'$run' is in use by process $holder on host $host: wait until that run ends, or choose another directory with log.dir="
}

train 0 1 whole "${options[@]}" train.steps=40 checkpoint.keep=2 checkpoint.keep_every=20
[[ $(echo whole/ckpt/*) == "$(printf 'whole/ckpt/step-%08d\n' 20 30 40 | paste -sd' ')" ]] ||
    fail "whole: has $(echo whole/ckpt/*), not the steps 20, 30 and 40"

# However long its path is, the sentence about a directory ends with what to do.
long=$(printf 'd%.0s' {1..240})
mkdir -p "$long/$long/$long/ckpt/step-00000001"
for ranks in 1 2; do
    train 78 $ranks "$long/$long/$long" parallel.dp=$ranks
    says "$long/$long/$long" "'.*/d+' contains another run: continue it with --resume, or choose another directory with log.dir=\.\.\.$"
    train 65 $ranks "$long/$long/$long" parallel.dp=$ranks --resume
    says "$long/$long/$long" "no checkpoint under .*/COMMIT is missing: the checkpoint is incomplete; start again with another log.dir$"
done

# --- a second job, and a start after a death before the first checkpoint -----------------------------

for ranks in 1 4; do
    layout=()
    [[ $ranks == 1 ]] || layout=("${grid[@]}")
    run=held-$ranks
    begin $ranks $run "${layout[@]}" train.steps=100000 checkpoint.every=0
    until_true 120 past $run 5 || fail "$run: never reached step 5"
    holder=$job
    [[ $ranks == 1 ]] || holder=$(rank_process 0)
    in_use 1 $run
    in_use 1 $run --resume
    in_use $ranks $run "${layout[@]}" --resume=auto
    if [[ $ranks == 4 ]]; then
        kill -9 "$(rank_process 2)"
        until_true 60 grep -q "^trireme: lost rank 2 .* All ranks end; nothing was saved: start again$" $run.err ||
            fail "$run: said '$(<$run.err)'"
    fi
    end_job
    lines=$(wc -l <$run/metrics.jsonl)
    train 66 $ranks $run "${options[@]}" "${layout[@]}" --resume
    says $run "there is no checkpoint under '.*/$run/ckpt' to resume from: start the run without --resume"
    [[ $(wc -l <$run/metrics.jsonl) == "$lines" ]] || fail "$run: a job that was refused changed the metrics"
    train 0 $ranks $run "${options[@]}" "${layout[@]}" train.steps=40
    grep -q "^begin    at step 1: .*metrics.old.jsonl" $run.out || fail "$run: the old metrics were taken without a word"
    [[ $(wc -l <$run/metrics.old.jsonl) == "$lines" ]] || fail "$run: the old metrics are not kept"
    [[ $ranks == 1 ]] || train 0 4 whole-4 "${options[@]}" "${layout[@]}" train.steps=40
    reference=whole
    [[ $ranks == 1 ]] || reference=whole-4
    same_curve $run $reference
    same_tensors $run $reference 40
done

# --- --resume=auto: starts, continues, and has no step left --------------------------------------

train 0 1 auto "${options[@]}" --resume=auto train.steps=20
train 78 1 auto "${options[@]}" train.steps=40
says auto "'.*/auto' contains another run: "
train 0 1 auto "${options[@]}" --resume=auto train.steps=40
grep -q "^resumed  after step 20 of 40" auto.out || fail "auto: did not resume"
same_curve auto whole
same_tensors auto whole 40
train 0 1 auto "${options[@]}" --resume=auto train.steps=40
same_curve auto whole
grep -q "^resumed  after step 40 of 40: no step is left; to continue, set train.steps above 40$" auto.out || fail "auto: $(grep ^resumed auto.out)"
! grep '^saved' auto.out || fail "auto: a step was saved without one that was taken"
train 64 1 auto --resume=yes
says auto "--resume takes =auto or nothing, not '=yes': it continues the run in log.dir; usage: "
# Where every checkpoint is damaged, --resume=auto does not start the run again.
cp -r auto broken
for step in broken/ckpt/step-*; do rm "$step/COMMIT"; done
train 65 1 broken "${options[@]}" --resume=auto train.steps=40
says broken "no checkpoint under .* is valid; "

# --- a directory that is removed while it is used -----------------------------------------------------

# held RANKS RUN ARGUMENTS...: starts a run of $steps steps and stops its processes, $processes, past step 20 and
# before its first save. A run that was faster is repeated with more steps.
held() {
    local ranks=$1 run=$2 last
    shift 2
    for steps in 500 5000 50000; do
        begin "$ranks" "$run" train.steps=$steps checkpoint.every=$((steps * 4 / 5)) "$@"
        until_true 120 past "$run" 20 || fail "$run: never reached step 20"
        mapfile -t processes < <(hold "$job")
        last=$(last_step "$run")
        ((last >= steps * 4 / 5 - 1)) || return 0
        end_job
        rm -rf "$run"
    done
    fail "$run: was never stopped in time"
}

# removed RANKS RUN ARGUMENTS...: the run must say so once, save its last step nevertheless, and end with 74.
removed() {
    local ranks=$1 run=$2 code=0
    held "$@"
    rm -r "$run"
    kill -CONT "${processes[@]}"
    wait "$job" || code=$?
    [[ $code == 74 ]] || fail "$run: ended with $code, not 74"
    [[ $(grep -c "^trireme: warning: '$run' was removed while the run used it: it is made again" "$run.err") == 1 ]] &&
        [[ $(grep -c "^trireme: '$run' was removed while the run used it: step $steps is saved" "$run.err") == 1 ]] &&
        [[ $(wc -l <"$run.err") == 2 ]] || fail "$run: said '$(<"$run.err")'"
    intact "$run" "$steps"
    [[ $(last_step "$run") == "$steps" ]] || fail "$run: the metrics do not go on"
    grep -q "^step $steps/$steps " "$run/log.txt" || fail "$run: log.txt does not go on"
}
removed 1 removed-1
removed 4 removed-4 "${grid[@]}" train.batch=4 # a small batch, because it takes 500 steps

# Another run has made the directory again: it keeps it, and the first one cannot save.
cp -r whole other
held 1 first checkpoint.every=0
mv first first.away
mv other first
kill -CONT "${processes[@]}"
code=0
wait "$job" || code=$?
[[ $code == 74 ]] || fail "first: ended with $code, not 74"
says first "'first' now contains another run"
[[ ! -e $(step_dir first "$steps") && $(last_step first) == 40 ]] || fail "first: wrote to the second run"

# A rank is lost before the ranks look at log.dir, unless it takes this script too long to find the rank: the restart does
# not continue the run that is there, on this host or on those of a hostfile.
begins() { rank=$(rank_process 1) && [[ $rank ]] || gone "$job"; }
echo "localhost slots=2" >hosts
for options in "" "--hostfile hosts"; do
    for ((i = 0; i < 10; i++)); do
        # shellcheck disable=SC2086 # words
        timeout 120 "$trireme" run -n 2 $options --restarts 1 train base.yaml parallel.dp=2 log.dir=first >late.out 2>late.err &
        job=$!
        until_true 60 begins || fail "late: there is no rank 1"
        kill -KILL "$rank" || true
        code=0
        wait "$job" || code=$?
        ! grep -q '^trireme: the job starts again (restart 1 of 1)$' late.err || break
    done
    ((i < 10)) || fail "late: never started again: $(<late.err)"
    [[ $code == 78 ]] || fail "late: ended with $code, not 78"
    grep -q "^trireme: 'first' contains another run: " late.err || fail "late: said '$(<late.err)'"
done

# restarting CONFIG: starts a job that may start again once, until its step 20.
restarting() {
    rm -rf again
    timeout 120 "$trireme" run -n 2 --hostfile hosts --restarts 1 train "$1" parallel.dp=2 log.dir=again train.steps=100000 \
        train.validate_every=0 checkpoint.every=10 >again.out 2>again.err &
    job=$!
    until_true 60 past again 20 || fail "again: $(<again.err)"
}
again='the job starts again (restart 1 of 1)'

# A killed rank that does not end, as when its disk does not answer, may still write to log.dir: the job starts again once
# the rank has ended.
restarting base.yaml
"$tools/hold_exit" "$(rank_process 1)" >holder.out &
holder=$!
until_true 10 test -s holder.out || fail "holder: is silent"
if [[ $(<holder.out) == ready ]]; then
    kill -KILL "$(rank_process 1)"
    until_true 60 grep -q '^trireme: lost rank 1 ' again.err || fail "held rank: $(<again.err)"
    sleep 8 # longer than the launcher gives mpirun
    ! grep -qF "$again" again.err || fail "the job starts again although a rank has not ended"
    kill -KILL $holder
    until_true 60 grep -qF "$again" again.err || fail "held rank: no restart: $(<again.err)"
    until_true 60 grep -q '^resumed ' again.out || fail "held rank: not resumed: $(<again.err)"
else
    echo "no rank is held: $(<holder.out)"
    kill -KILL "$(rank_process 1)"
    until_true 60 grep -qF "$again" again.err || fail "no restart: $(<again.err)"
fi
{ wait $holder || true; } 2>/dev/null # Killed
kill -TERM "$job"
wait "$job" || true

# A request to stop in mpirun's first moments, when it has no handler for a signal that it shall pass on.
started() { [[ " $(descendants "$job" | xargs -I{} cat /proc/{}/comm 2>/dev/null | paste -sd' ') " == *" mpirun "* ]]; }
for pause in 0 0 0.02 0.04 0.08 0.16; do
    rm -rf early
    timeout 120 "$trireme" run -n 2 --hostfile hosts train base.yaml parallel.dp=2 log.dir=early train.steps=100000 \
        >early.out 2>early.err &
    job=$!
    for ((i = 0; i < 1000; i++)); do ! started || break; done
    sleep $pause
    kill -TERM "$job"
    code=0
    wait "$job" || code=$?
    [[ $code == 75 ]] || fail "stopped early, after $pause s: ended with $code: $(<early.err)"
done

# A request to stop while the job starts again: its command alone would not continue the run.
for ((i = 0; i < 10; i++)); do
    restarting base.yaml
    kill -KILL "$(rank_process 1)"
    until_true 60 grep -qF "$again" again.err || fail "stopped: no restart: $(<again.err)"
    kill -TERM "$job"
    code=0
    wait "$job" || code=$?
    [[ $code == 75 ]] || fail "stopped while it starts again: ended with $code: $(<again.err)"
    ! grep -q 'before a step was taken' again.err || break
done
grep -q 'before a step was taken, so there was nothing to save: continue with the same command and --resume$' again.err ||
    fail "stopped while it starts again: $(<again.err)"

# The program's file is replaced, as by an installation, before the job starts again: its ranks are those of the program
# that began. Other hosts have only the new file.
for options in "" "--hostfile hosts"; do
    rm -rf again
    cp "$trireme" program
    # shellcheck disable=SC2086 # words
    timeout 120 ./program run -n 2 $options --restarts 1 train base.yaml parallel.dp=2 log.dir=again train.steps=100000 \
        train.validate_every=0 checkpoint.every=10 >again.out 2>again.err &
    job=$!
    until_true 60 past again 20 || fail "replaced: $(<again.err)"
    rank=$(trireme=$PWD/program rank_process 1)
    cp "$trireme" new
    mv new program
    kill -KILL "$rank"
    code=0
    if [[ $options ]]; then
        wait "$job" || code=$?
        [[ $code == 69 ]] && grep -q "^trireme: the file of this program was replaced or removed, and other hosts need it" again.err ||
            fail "replaced: ended with $code: $(<again.err)"
    else
        until_true 60 grep -q '^resumed ' again.out || fail "replaced: not resumed: $(<again.err)"
        kill -TERM "$job"
        wait "$job" || code=$?
        [[ $code == 75 ]] || fail "replaced: ended with $code: $(<again.err)"
    fi
done

# When a host is lost, the config is read again for its layout: what is wrong with it by then is said.
cp base.yaml own.yaml
restarting own.yaml
printf 'localhost slots=1\nnowhere.invalid slots=1\n' >hosts
echo 'stepz: 1' >>own.yaml
kill -KILL "$(rank_process 1)"
code=0
wait "$job" || code=$?
[[ $code == 77 ]] || fail "a config that cannot be read: ended with $code, not 77"
grep -q "^trireme: no answer from nowhere.invalid: the job does not start again, because own.yaml:[0-9]*:1: unknown key 'stepz'" again.err ||
    fail "a config that cannot be read: $(<again.err)"

# A name that the run needs is taken by a directory.
mkdir -p taken/config.yaml locked/lock
train 65 1 taken
says taken "'.*/taken/config.yaml' cannot be written, because it is a directory: remove it, or choose another place"
train 65 1 locked
says locked "'.*/locked/lock' is a directory: remove it, or choose another directory"

# A job that is refused for another reason leaves no directory.
train 66 1 nothing data.path=missing.txt
[[ ! -e nothing ]] || fail "nothing: $(ls -A nothing)"

# The config of a run names its log.dir: where its folder is a copy, or has another name, a job says so.
train 0 1 original train.steps=2 optim.warmup=1 checkpoint.every=0
sed -i 's|^  dir: .*|  dir: original|' original/config.yaml # as when log.dir is a relative path
cp -r original duplicate
copied() {
    local code=0 want=$1 run=$2
    shift 2
    "$trireme" train "$run/config.yaml" "$@" >copied.out 2>copied.err || code=$?
    [[ $code == "$want" ]] || fail "$run: exit code $code, not $want"
}
copied 0 duplicate --resume train.steps=3 optim.horizon=3
says copied "warning: log.dir is 'original', as the config says, and not 'duplicate', which has the config and checkpoints, too: log.dir=duplicate continues these"
copied 0 duplicate --resume train.steps=3 optim.horizon=3 log.dir=duplicate
[[ ! -s copied.err ]] || fail "duplicate: $(<copied.err)"
copied 0 original --resume train.steps=4 optim.horizon=4
[[ ! -s copied.err ]] || fail "original: $(<copied.err)"
mv original moved
copied 66 moved --resume
says copied "there is no checkpoint under 'original/ckpt' to resume from: log.dir=moved continues the run that has this config"
# Only to say so is the folder read: one that cannot be read is none.
rm -r moved/ckpt
ln -s ckpt moved/ckpt
copied 0 moved --resume=auto

finish
