#!/usr/bin/env bash
# Tests requests to stop: the run ends after the step in progress, whichever processes get the signal; a
# second signal ends it at once; a closed output, closed terminal or ignored signal does not end it. Also
# tests log.txt and the time limit.
# usage: stopping.sh TRIREME SCRATCH_DIR [SIGNALS [SEED]]
# SIGNALS: how many signals come at random moments.
# shellcheck disable=SC2154,SC2086,SC2046
set -euo pipefail
trireme=$1 scratch=$2 trials=${3:-2} seed=${4:-$RANDOM}
source "$(dirname "$0")/common.sh"
cd "$scratch"
export TERM=xterm
RANDOM=$seed
echo "seed $seed"
base=(data.validation=0 train.validate_every=0 checkpoint.every=0 log.every=1 train.steps=100000)
# long BATCH: sets ${long[@]} to settings with long steps after a short first one, for which begin waits.
long() { long=("train.batch=$1" "train.batch_warmup=12 1"); }
long 1200
second=("${long[@]}") # steps of about a second, on two ranks too

launcher=() # options of `trireme run`
# choose RANKS RUN ARGUMENTS...: sets ${words[@]} to the run's command. A shell starts background commands
# with Ctrl-C ignored, and nohup starts this test with SIGHUP ignored.
choose() {
    local ranks=$1 run=$2
    shift 2
    rm -rf "$run"
    words=(env "${signals:---default-signal=INT,HUP}" "$trireme")
    [[ $ranks == 1 ]] || words+=(run -n "$ranks" "${launcher[@]}")
    words+=(train base.yaml "log.dir=$scratch/$run" "${base[@]}" "parallel.pp=$ranks" "$@")
}

# begin RANKS RUN ARGUMENTS...: starts the run and waits for its first step; $job is its process.
begin() {
    local run=$2
    choose "$@"
    "${words[@]}" >"$run.out" 2>"$run.err" &
    job=$!
    until_true 120 past "$run" 1 || fail "$run: never took a step"
}

# ends RUN CODE: $job must end with that code.
ends() {
    local code=0
    until_true 120 gone "$job" || { fail "$1: still there"; descendants "$job" | xargs kill -9; }
    wait "$job" || code=$?
    [[ $code == "$2" ]] || { fail "$1: exit code $code, not $2"; tail -n 5 "$1.err"; }
}
saved_step() { find "$1" -path '*/ckpt/step-*' -prune | sed 's/.*step-0*//' | sort -n | tail -n 1; }

# older PID SECONDS: succeeds when the process has lasted longer.
older() { (($(ps -o etimes= -p "$1") > $2)); }

# said RUN LINE...: its stderr must be exactly these lines (patterns).
said() {
    local run=$1 n=0 line
    shift
    for line; do
        n=$((n + 1))
        sed -n "${n}p" "$run.err" | grep -qx -- "trireme: $line" || fail "$run: line $n is not '$line': $(<"$run.err")"
    done
    [[ $(wc -l <"$run.err") == "$n" ]] || fail "$run: said '$(<"$run.err")'"
}
saved='stopped by a signal after step [0-9]*, which is saved: .*--resume.*'
term='SIGTERM: finishing this step and saving; a second SIGTERM aborts immediately'
ctrl_c='Ctrl-C: finishing this step and saving; press Ctrl-C again to abort immediately'
hup='SIGHUP: finishing this step and saving'

# The step in progress is the last one. A signal may come between the end of a step and its record, so some
# signals may be followed by another step.
late=0
for ((i = 0; i < trials; i++)); do
    ranks=$((1 + i % 2))
    begin $ranks moment "${second[@]}"
    sleep "$((RANDOM % 2)).$((RANDOM % 10))$((RANDOM % 10))"
    kill -TERM "$job"
    recorded=$(last_step moment)
    ends moment 75
    step=$(saved_step moment)
    [[ $step == "$(last_step moment)" ]] || fail "moment $i: step $step is saved, not $(last_step moment)"
    ((step >= recorded && step <= recorded + 2)) || fail "moment $i: step $recorded was recorded, step $step saved"
    ((step <= recorded + 1)) || late=$((late + 1))
done
((late <= 1 + trials / 10)) || fail "$late of $trials runs took another step"

for ranks in 1 2; do
    # The signal reaches every process, as from a batch system, systemd or a closed terminal. A long step
    # takes longer than mpirun would wait for its ranks.
    for signal in TERM INT HUP; do
        long "$([[ $ranks$signal == 2TERM ]] && echo 9600 || echo 300)"
        begin $ranks all "${long[@]}"
        kill -$signal $(descendants "$job")
        ends all 75
        case $signal in TERM) said all "$term" "$saved" ;; INT) said all "$ctrl_c" "$saved" ;; *) said all "$hup" "$saved" ;; esac
    done

    # A second signal ends the run; one of SIGHUP does not, and none does once the run is saved.
    launcher=(--restarts 1) # never after a signal
    long 9600
    begin $ranks twice "${long[@]}"
    launcher=()
    kill -TERM "$job"
    until_true 60 grep -q SIGTERM twice.err || fail "SIGTERM was not noticed"
    sleep 0.7 # two within half a second count as one
    kill -INT "$job"
    ends twice 77
    said twice "$term" "aborted by a second signal; nothing was saved: start again"
    long 2400
    begin $ranks hups "${long[@]}"
    kill -HUP "$job"
    until_true 60 grep -q SIGHUP hups.err || fail "SIGHUP was not noticed"
    sleep 0.7
    kill -HUP "$job" || true
    ends hups 75
    said hups "$hup" "$saved"

    # Thousands of them: no kernel is interrupted.
    if drawn "storm-$ranks"; then
        begin $ranks storm "${long[@]}"
        for ((i = 0; i < 20000; i++)); do kill -HUP "$job" 2>/dev/null || break; done
        ends storm 75
        said storm "$hup" "$saved"
    fi

    # nohup: the signal stays ignored, whichever process gets it.
    signals=--ignore-signal=HUP choose $ranks ignored
    "${words[@]}" >ignored.out 2>ignored.err &
    job=$!
    until_true 120 past ignored 1 || fail "nohup: never took a step"
    kill -HUP $(descendants "$job")
    before=$(last_step ignored)
    until_true 60 past ignored $((before + 5)) || fail "nohup: SIGHUP ended the run"
    kill -TERM "$job"
    ends ignored 75
    said ignored "$term" "$saved"

    # The reader of the output has exited, or the output is closed.
    choose $ranks piped train.steps=20
    "${words[@]}" 2>piped.err | head -n 1 >/dev/null && true
    ended=("${PIPESTATUS[@]}")
    [[ ${ended[0]} == 0 && $(saved_step piped) == 20 && ! -s piped.err ]] || fail "| head, $ranks ranks: ${ended[0]}: $(<piped.err)"
    choose $ranks piped train.steps=20
    { "${words[@]}" 2>&1 >/dev/null || echo $? >code; } | true
    [[ $(saved_step piped) == 20 ]] || fail "stderr | true, $ranks ranks: $(<code)"
    choose $ranks closed train.steps=20
    "${words[@]}" >&- 2>&- || fail "closed output, $ranks ranks: exit code $?"
    [[ $(saved_step closed) == 20 ]] || fail "closed output, $ranks ranks: not saved"

    # In a terminal the sentence has its own line, below the last refreshed line.
    choose $ranks terminal "${second[@]}"
    code=0
    "$tools/pty_run" record 100x30 'wait:step 2/' 'keys:^C' -- "${words[@]}" || code=$?
    [[ $code == 75 ]] || fail "Ctrl-C in a terminal, $ranks ranks: exit code $code"
    grep -qx "trireme: $ctrl_c" record.screen || fail "Ctrl-C in a terminal, $ranks ranks: $(tail -n 5 record.screen)"
    choose $ranks terminal "${second[@]}"
    "$tools/pty_run" record 100x30 'wait:step 2/' hangup -- "${words[@]}" && code=0 || code=$?
    [[ $code == 75 && $(saved_step terminal) -ge 2 ]] || fail "a closed terminal, $ranks ranks: exit code $code"
done

# A parent that ignores the end of its children does not make the launcher wait for ever.
signals=--ignore-signal=CHLD choose 2 childless train.steps=2
timeout -k 1 60 "${words[@]}" >childless.out 2>&1 || fail "SIGCHLD ignored: exit code $?"

# log.txt has the lines of all starts, complete and without terminal codes.
choose 2 logged train.steps=30
"$tools/pty_run" record 100x30 -- "${words[@]}" || fail "log.txt: exit code $?"
"${words[@]}" --resume=auto train.steps=40 >logged.out 2>logged.err || fail "log.txt: exit code $?"
[[ $(grep -c '^step ' logged/log.txt) == 40 && $(grep -c '^model ' logged/log.txt) == 2 ]] ||
    fail "log.txt: $(<logged/log.txt)"
grep -q '^resumed  after step 30' logged/log.txt || fail "log.txt: $(<logged/log.txt)"
grep -q $'[\r\x1b]' logged/log.txt && fail "log.txt: control codes: $(cat -v logged/log.txt)"
diff <(sed -n '/^resumed/,$p' logged/log.txt) <(sed -n '/^resumed/,$p' logged.out | tr -d '\r') || fail "log.txt is not what was shown"

# A time limit ends the run like a signal, before the time is over; test_time_limit tests how long before.
for ranks in 1 2; do
    for limit in 6s 1m; do # on a busy machine the first limit may pass before a step ends
        choose $ranks limit --time-limit $limit
        code=0
        timeout 120 "${words[@]}" >limit.out 2>limit.err || code=$?
        grep -q 'before a step was taken' limit.err || break
    done
    [[ $code == 75 ]] || fail "--time-limit, $ranks ranks: exit code $code: $(<limit.err)"
    said limit "stopped by --time-limit $limit after step [0-9]*, which is saved: .*--resume.*"
    grep -q '^trireme: stopped by --time-limit' limit/log.txt || fail "log.txt: the last sentence is missing"
done

# The limit counts from the start of the first job: a restart after it takes one step.
launcher=(--restarts 1)
for limit in 5 30; do # on a busy machine the first limit may end the job before it is held
    begin 2 restarted --time-limit $limit
    held=$(hold "$job")
    lost=$(rank_process 1)
    [[ -z $lost ]] || break
done
launcher=()
until_true 60 older "$job" $limit || fail "restarted: not held"
kill -KILL $lost
kill -CONT $held
ends restarted 75
said restarted "lost rank 1 .*" "the job starts again (restart 1 of 1)" \
    "stopped by --time-limit $limit after step 1, which is saved: .*"

# A request during the set-up ends the run: nothing is saved, and it can be started again. One that came in the first
# step is repeated.
for ranks in 1 2; do
    for ((i = 0; i < 5; i++)); do
        choose $ranks early model.layers=12 model.width=384
        rm -f early.out # of the turn before: the job's shell may empty it after the first look
        "${words[@]}" >early.out 2>early.err &
        job=$!
        until_true 60 grep -qs '^memory' early.out || fail "early: no plan"
        kill -TERM "$job"
        ends early 75
        [[ -s early/metrics.jsonl ]] || break
    done
    said early "$term" "stopped by a signal before a step was taken, .*: start again with the same command"
    [[ -z $(saved_step early) && ! -s early/metrics.jsonl ]] || fail "early: took a step"
    "${words[@]}" train.steps=1 >early.out 2>early.err || fail "early: cannot be started again: $(<early.err)"
done

# Only mpirun gets the signal (killall mpirun).
begin 2 mpirun "${second[@]}"
kill -TERM "$(descendants "$job" | sed -n 2p)"
ends mpirun 75
said mpirun "$term" "$saved"

# The launcher is killed: the ranks save, and no process is left.
begin 2 orphans "${second[@]}"
all=$(descendants "$job")
before=$(last_step orphans)
kill -KILL "$job"
wait "$job" || true
until_true 60 gone $all || { fail "the launcher was killed: a process is left"; kill -9 $all; }
[[ $(saved_step orphans) -ge $before ]] || fail "the launcher was killed: nothing is saved"
finish
