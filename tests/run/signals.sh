#!/usr/bin/env bash
# Tests the ends of a run: after SIGTERM and SIGUSR1 it finishes the step, saves and ends with 75, and resumes
# with the same bits; when a rank is killed or stopped, the job ends within 10 s with 77 and one message.
# usage: signals.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
# With a constant learning rate the number of steps changes no step. Interrupted runs have too many steps to
# end, and are resumed for some more steps.
options=(checkpoint.every=20 log.every=50 optim.min_lr=0.003)
forever=train.steps=100000
grid=(parallel.pp=2 parallel.tp=2)

# begin RANKS RUN ARGUMENTS...: starts a run; $job is the process that a user would signal.
begin() {
    local ranks=$1 run=$2 launch=()
    shift 2
    [[ $ranks == 1 ]] || launch=(run -n "$ranks")
    "$trireme" "${launch[@]}" train base.yaml log.dir="$scratch/$run" "${options[@]}" $forever "$@" >"$run.out" 2>"$run.err" &
    job=$!
}

# ends RUN CODE: $job must end with that code soon, otherwise it is killed.
ends() {
    local code=0
    until_true 60 gone "$job" || { fail "$1: still there"; descendants "$job" | xargs kill -9; }
    wait "$job" || code=$?
    [[ $code == "$2" ]] || { fail "$1: exit code $code, not $2"; tail -n 5 "$1.err"; }
}

for ranks in 1 4; do
    layout=()
    [[ $ranks == 1 ]] || layout=("${grid[@]}")
    end=0
    for signal in TERM USR1; do
        run=$signal-$ranks
        begin $ranks $run "${layout[@]}"
        until_true 120 past $run 25 || fail "$run: never reached step 25"
        kill -$signal $job
        ends $run 75
        step=$(last_step $run)
        ((end >= step + 10)) || end=$((step + 10))
        grep -qx "trireme: stopped by a signal after step $step, which is saved: .*--resume.*" $run.err ||
            fail "$run: said '$(<$run.err)'"
        [[ $(wc -l <$run.err) == 2 ]] || fail "$run: said '$(<$run.err)'"
        intact $run "$step"
    done
    train 0 $ranks whole-$ranks "${options[@]}" "${layout[@]}" train.steps=$end
    for run in TERM-$ranks USR1-$ranks; do
        train 0 $ranks $run --resume "${options[@]}" "${layout[@]}" train.steps=$end
        same_curve $run whole-$ranks
        same_tensors $run whole-$ranks $end
    done
done

# A rank of the last stage is lost in the middle of a run.
for signal in KILL STOP; do
    run=$signal
    begin 4 $run "${grid[@]}"
    until_true 120 past $run 30 || fail "$run: never reached step 30"
    lost=$(rank_process 2)
    kill -$signal "$lost"
    ends $run 77
    # Open MPI may add a line of its own about a lost peer.
    [[ $(grep -c "^trireme: " $run.err) == 1 ]] || fail "$run: said '$(<$run.err)'"
    grep -q "Process received signal" $run.err && fail "$run: something crashed: $(<$run.err)"
    grep "^trireme: " $run.err >said.err
    # The end of a step, such as the optimizer, has no micro-batch and may have no stage.
    says said "lost rank 2 .*pid $lost.*step [0-9]+, (stage [01], )?(micro-batch [0-9]+, )?([a-z ]+( \\([FIWB]\\))? for [0-9.]+ s|between actions).* All ranks end; --resume continues after step [0-9]+$"
    intact $run "$(sed -n 's/.*continues after step //p' said.err)"
    until_true 60 gone "$lost" || fail "$run: rank 2 is still there"
    train 0 4 $run --resume "${grid[@]}" "${options[@]}" train.steps=$(($(last_step $run) + 10))
done
finish
