#!/usr/bin/env bash
# Runs one trial: functions that the kinds share, then the kind's own file.
# usage: one.sh KIND SEED SCRATCH_DIR
# shellcheck disable=SC2034 # the kinds use what is set here
set -euo pipefail
kind=$1 seed=$2 scratch=$3
trireme=$TRIREME_BUILD/trireme
compare=$(realpath "$TRIREME_BUILD")/tests # ckpt_compare
folder=$(realpath "$(dirname "$0")")
source "$folder/../run/common.sh"
tools=$compare
cd "$scratch"
RANDOM=$(cksum <<<"$kind $seed" | cut -d" " -f1) # neighbouring seeds give similar numbers

# --- chance -----------------------------------------------------------------------------------------

# draw NAME N: sets NAME to a number below N, up to 2^30. Not for $(...), because a subshell would repeat the
# same numbers.
draw() { printf -v "$1" %d $(((RANDOM * 32768 + RANDOM) % $2)); }

# pick NAME WORD...: sets NAME to one of the words.
pick() {
    local name=$1 index
    shift
    draw index $#
    shift "$index"
    printf -v "$name" %s "$1"
}

# Orders, each with its number of stages on a rank (0: its own choice).
orders=("gpipe 1" "1f1b 1" "zb-h1 1" "zb-h2 1" "zb-1p 1" "zb-2p 1" "interleaved 2" "bfs 2" "interleaved-zb 2" "zbv 2" "v-half 2"
    "v-min 2" "1f1b-v 2" "dualpipev 2" "auto 0")

# --- jobs -------------------------------------------------------------------------------------------

# A run slow enough for signals to arrive within steps, with a constant learning rate, so that the number of
# steps changes no step.
options=(train.steps=60 train.batch=24 checkpoint.every=15 optim.min_lr=0.003 log.every=60)

# pick_layout: sets the number of ranks, the arguments of a layout for them, and whether launched jobs save in the
# background.
pick_layout() {
    pick layout "1" "2 parallel.pp=2" "2 parallel.tp=2" "2 parallel.dp=2" "3 parallel.dp=3" \
        "4 parallel.pp=2 parallel.tp=2" "4 parallel.pp=2 parallel.dp=2" "4 parallel.pp=4" "4 parallel.dp=2x2 parallel.zero=1" \
        "3 parallel.dp=3 parallel.zero=3 parallel.schedule=bfs parallel.virtual=4" \
        "2 parallel.pp=2 parallel.schedule=gpipe device.name=guarded device.offload=optimizer,activations"
    read -r -a layout <<<"$layout"
    ranks=${layout[0]}
    layout=("${layout[@]:1}")
    pick in_background false true
}

# reference: runs the same training without a fault, in `whole`.
reference() { train 0 "$ranks" whole "${options[@]}" "${layout[@]}"; }

# draw_moment: draws a moment of the start or of a step, as $moment_step and $moment_ms; $moment describes it.
draw_moment() {
    pick moment_step start steps steps steps
    if [[ $moment_step == start ]]; then
        moment_step=0
        draw moment_ms 1000
        moment="$moment_ms ms after its processes were there"
    else
        draw moment_step 59
        draw moment_ms 60
        moment_step=$((moment_step + 1))
        moment="$moment_ms ms after step $moment_step"
    fi
}

# await_moment RUN: waits until that moment, or until $job has ended.
await_moment() {
    until gone "$job" || ((moment_step == 0)) || { count_steps "$1" && ((steps >= moment_step)); }; do nap 5; done
    nap "$moment_ms"
}

# nap MILLISECONDS: sleeps without starting a process, which would take longer than a step.
exec {never}<> <(:)
nap() {
    local seconds
    printf -v seconds '%d.%03d' $(($1 / 1000)) $(($1 % 1000))
    read -r -t "$seconds" -u "$never" || true
}

launcher=() # options of `trireme run`
# launch RUN OUTPUT ARGUMENTS...: starts a job in a session of its own, with no signal ignored; $job is its
# process, and its output goes to OUTPUT.out and .err.
launch() {
    local run=$1 output=$2 words=()
    shift 2
    [[ $ranks == 1 ]] || words=(run -n "$ranks" "${launcher[@]}")
    setsid env --default-signal "$trireme" "${words[@]}" train base.yaml log.dir="$run" "${options[@]}" "${layout[@]}" \
        checkpoint.background="$in_background" "$@" >"$output.out" 2>"$output.err" &
    job=$!
}

# ranks_of_job: prints the processes of this trial's ranks, whatever their parent is now.
ranks_of_job() {
    local p
    for p in /proc/[0-9]*; do
        if [[ $(readlink "$p/exe") == "$trireme" && $(readlink "$p/cwd") == "$scratch" ]]; then echo "${p#/proc/}"; fi
    done 2>/dev/null
}
# Jobs have sessions of their own, and ranks may have lost their parents.
trap 'leave_nothing; ranks_of_job | xargs -r kill -KILL 2>/dev/null || true' EXIT
none_left() { [[ -z $(ranks_of_job) ]]; }

# ends RUN: waits for $job, which must leave no process or file; $code is its exit code.
ends() {
    code=0
    until_true 120 gone "$job" || { fail "$1: it still runs after 120 s"; descendants "$job" | xargs kill -9; }
    wait "$job" 2>/dev/null || code=$?
    until_true 60 none_left || { fail "$1: processes are left: $(ranks_of_job | tr '\n' ' ')"; ranks_of_job | xargs kill -9; }
    compgen -G "/dev/shm/trireme-$UID-$job-*" >/dev/null && fail "$1: shared memory is left in /dev/shm"
    grep -Eq "Process received signal|Backtrace|Sanitizer" "$1.err" && fail "$1: something crashed: $(<"$1.err")"
    true
}

# catches PROCESS SIGNAL: succeeds when the process would handle the signal. The launcher waits for signals
# once it has a child, which its masks do not show; the other processes have handlers.
catches() {
    local mask
    [[ $1 != "$job" || $ranks == 1 ]] || { [[ -n $(cat "/proc/$1/task/"*/children 2>/dev/null) ]] && return; }
    while read -r mask; do
        ((16#$mask >> ($2 - 1) & 1)) && return
    done < <(sed -n 's/^Sig\(Cgt\|Ign\):\s*//p' "/proc/$1/status" 2>/dev/null)
    return 1
}

# count_steps RUN: sets $steps to the steps in its metrics.
count_steps() {
    local lines=()
    { mapfile -t lines <"$scratch/$1/metrics.jsonl"; } 2>/dev/null || true
    steps=${#lines[@]}
}

# goes_on RUN: resumes the run, which must end with the bits of the reference.
goes_on() {
    train 0 "$ranks" "$1" "${options[@]}" "${layout[@]}" --resume=auto
    same_curve "$1" whole
    same_tensors "$1" whole 60
}

# shellcheck source=/dev/null
source "$folder/$kind.sh"
[[ ${in_background:-false} == false ]] || what+=", saves in the background"
if ((failures)); then
    echo "$kind $seed: $what: $failures failures"
    exit 1
fi
echo "$kind $seed: $what: ok"
