#!/usr/bin/env bash
# Tests whole jobs of tests/mpi/spin.c under `run`: when a rank is killed or stopped, all end within 10 s with
# 77 and one message; a long action does not end a job; requests to stop and exit codes are passed on.
# usage: watchdog.sh SPIN SCRATCH_DIR TRIREME
# shellcheck disable=SC2317 # functions are called through check
set -u
spin=$(realpath "$1")
scratch=$2
trireme=$3
source "$(dirname "$0")/common.sh"
cd "$scratch" || exit 1

check() { # check WHAT CONDITION...
    local what=$1
    shift
    if "$@"; then
        echo "ok: $what"
    else
        fail "$what: $(sed 's/^/    /' out err)"
    fi
}

lines_of() { grep -c "$1" err; }
# A killed process ends only when it is scheduled again.
# shellcheck disable=SC2046 # one word for each process
no_rank_left() { until_true 60 gone $(pids); }
pids() { sed -n 's/^rank [0-9]* pid \([0-9]*\).*/\1/p' out | tr -d '\r'; }
pid_of() { sed -n "s/^rank $1 pid \([0-9]*\).*/\1/p" out | tr -d '\r'; }
# For ranks that print no pid: each has this job's mode among its arguments, and works in this folder.
no_children() {
    local p
    for p in $(grep -lzx "[u]nborn" /proc/[0-9]*/cmdline 2>/dev/null | cut -d / -f 3); do
        [[ $p == "$job" || $(readlink "/proc/$p/cwd") != "$PWD" ]] || return 1
    done
}
no_child_left() { until_true 60 no_children; }
# unborn STATE: succeeds when rank 1 is there, in that state.
unborn() {
    local p
    for p in $(descendants "$job"); do
        if has_state "$p" "$1" && grep -qzx OMPI_COMM_WORLD_RANK=1 "/proc/$p/environ" 2>/dev/null; then return; fi
    done
    return 1
}
board_gone() { ! ls /dev/shm/trireme-"$UID"-"$job"-* >/dev/null 2>&1; }

# start RANKS ARGUMENTS...: starts a job in the background, and returns when all ranks are in their first
# action.
start() {
    local ranks=$1
    shift
    rm -f out err # the job's shell may empty them after the first look
    "$spin" run "$ranks" spin "$@" >out 2>err &
    job=$!
    until_true 60 has_begun "$ranks"
}
# has_begun RANKS: succeeds when all ranks are there, or the job has ended.
has_begun() { [[ -e out && $(pids | wc -l) == "$1" ]] || ! kill -0 "$job" 2>/dev/null; }

# await_end: waits for the job; $code is its exit code, $took its seconds.
await_end() {
    local begin=$SECONDS
    wait "$job"
    code=$?
    took=$((SECONDS - begin))
}

for signal in KILL STOP; do
    start 3 steps 1000 0.3
    kill -"$signal" "$(pid_of 1)"
    # A request to stop that comes after the loss promises no save.
    until_true 60 grep -q 'lost rank 1' err
    kill -TERM "$job" 2>/dev/null || true
    await_end
    check "SIG$signal: exit code 77 (was $code)" [ "$code" = 77 ]
    check "SIG$signal: over within 40 s (took $took)" [ "$took" -le 40 ]
    check "SIG$signal: one message" [ "$(wc -l <err)" = 1 ]
    check "SIG$signal: it names rank 1 and its step" grep -q 'lost rank 1 .*: step [0-9]' err
    check "SIG$signal: no process is left" no_rank_left
    check "SIG$signal: no board is left" board_gone
done

# Requests to stop that come until the launcher has ended do not change its exit code.
start 3 steps 1000 0.3
kill -KILL "$(pid_of 1)"
until_true 60 grep -q 'lost rank 1' err
while kill -TERM "$job" 2>/dev/null; do :; done
await_end
check "SIGTERM until the launcher has ended: exit code 77 (was $code)" [ "$code" = 77 ]

# A rank of another host, which no board shows: mpirun notices its death, and the deadline notices that it is
# stopped; no rank of this host is named.
for signal in KILL STOP; do
    start 2 far 1 3
    kill -"$signal" "$(pid_of 1)"
    await_end
    check "SIG$signal far away: exit code 77 (was $code)" [ "$code" = 77 ]
    check "SIG$signal far away: over within 40 s (took $took)" [ "$took" -le 40 ]
    check "SIG$signal far away: one message" [ "$(wc -l <err)" = 1 ]
    check "SIG$signal far away: rank 0 is not blamed" [ "$(lines_of 'lost rank 0')" = 0 ]
    check "SIG$signal far away: no process is left" no_rank_left
    check "SIG$signal far away: no board is left" board_gone
done
check "SIGSTOP far away: rank 1 is named" grep -q 'rank 0 waited [0-9.]* s for rank 1' err

# A rank that is lost while MPI starts.
for signal in KILL STOP; do
    "$spin" run 3 spin early 1 "$(kill -l $signal)" >out 2>err &
    job=$!
    await_end
    check "SIG$signal early: exit code 77 (was $code)" [ "$code" = 77 ]
    check "SIG$signal early: over within 40 s (took $took)" [ "$took" -le 40 ]
    check "SIG$signal early: one message" [ "$(wc -l <err)" = 1 ]
    check "SIG$signal early: it names rank 1" grep -q 'lost rank 1 .*before its first step' err
    check "SIG$signal early: no board is left" board_gone
done

# A rank that is lost before its main, while the dynamic linker still runs: it is not on the board yet.
for signal in KILL STOP; do
    "$spin" run 3 spin unborn 1 "$(kill -l $signal)" >out 2>err &
    job=$!
    await_end
    cp err err.$signal
    check "SIG$signal before main: exit code 77 (was $code)" [ "$code" = 77 ]
    check "SIG$signal before main: over within 40 s (took $took)" [ "$took" -le 40 ]
    check "SIG$signal before main: one message" [ "$(wc -l <err)" = 1 ]
    check "SIG$signal before main: no process is left" no_child_left
    check "SIG$signal before main: no board is left" board_gone
done
check "SIGKILL before main: it says so" \
    grep -qE '^trireme: a rank was ended by a signal \(Killed\) before (rank 1|[23] ranks) had begun$' err.KILL
check "SIGSTOP before main: it names rank 1" grep -q 'lost rank 1 (pid [0-9]*): before it began' err

# A request to stop ends such a job too; when a rank does not begin, the job waits 10 s for it, and a second request
# ends the job at once.
"$spin" run 3 spin unborn 1 "$(kill -l STOP)" >out 2>err &
job=$!
until_true 60 unborn T
kill -TERM $job
await_end
check "SIGTERM next to a stopped rank: exit code 77 (was $code)" [ "$code" = 77 ]
check "SIGTERM next to a stopped rank: over within 40 s (took $took)" [ "$took" -le 40 ]
check "SIGTERM next to a stopped rank: no process is left" no_child_left
"$spin" run 3 spin unborn 1 0 >out 2>err &
job=$!
until_true 60 unborn S
kill -TERM $job
await_end
check "SIGTERM before a rank begins: exit code 77 (was $code)" [ "$code" = 77 ]
check "SIGTERM before a rank begins: over within 40 s (took $took)" [ "$took" -le 40 ]
check "SIGTERM before a rank begins: it says so" grep -q 'MPI does not start: a rank has not begun' err
check "SIGTERM before a rank begins: no process is left" no_child_left
"$spin" run 3 spin unborn 1 0 >out 2>err &
job=$!
until_true 60 unborn S
kill -TERM $job
until_true 30 grep -q "stopping on a signal" err
sleep 1 # a second signal within half a second counts as the first
kill -TERM $job
await_end
check "two SIGTERM before a rank begins: exit code 77 (was $code)" [ "$code" = 77 ]
check "two SIGTERM before a rank begins: over within 40 s (took $took)" [ "$took" -le 40 ]
check "two SIGTERM before a rank begins: no process is left" no_child_left

# Under plain mpirun the ranks notice that by themselves, and the first one says it.
process_of() { # process_of RANK: prints the job's process of that rank
    local p
    for p in $(descendants "$job"); do
        if grep -qzx "OMPI_COMM_WORLD_RANK=$1" "/proc/$p/environ" 2>/dev/null; then echo "$p"; fi
    done
}
takes_signals() { # takes_signals RANK: succeeds when it has a thread for them, and the watchdog's
    local threads
    threads=$(ls "/proc/$(process_of "$1")/task" 2>/dev/null | wc -l)
    [ "$threads" -ge 3 ]
}
apart "$spin" spin steps 1 0.1 : sleep 60 : "$spin" spin steps 1 0.1 >out 2>err &
job=$!
for r in 0 2; do
    until_true 60 takes_signals $r
    kill -USR1 "$(process_of $r)"
done
await_end
check "plain mpirun, a rank does not begin: exit code 77 (was $code)" [ "$code" = 77 ]
check "plain mpirun, a rank does not begin: over within 40 s (took $took)" [ "$took" -le 40 ]
check "plain mpirun, a rank does not begin: rank 0 says so" grep -q 'lost rank 0 .* MPI does not start' err
check "plain mpirun, a rank does not begin: one loss" [ "$(grep -c 'lost rank' err)" = 1 ]

# All ranks have announced their end, but mpirun does not learn that they leave, as when it does not run for some
# seconds meanwhile: the job has their code, not mpirun's.
for want in 0 75; do
    "$spin" run 3 spin leave $want >out 2>err
    code=$?
    check "ranks that end, and mpirun does not learn it: $want (was $code)" [ "$code" = $want ]
    check "ranks that end, and mpirun does not learn it: nothing is said" [ ! -s err ]
done

# MPI itself ends the ranks; none was killed.
OMPI_MCA_pml=none-such "$spin" run 3 spin steps 1 0.1 >out 2>err
code=$?
check "MPI does not start: 69 (was $code)" [ "$code" = 69 ]
check "MPI does not start: one message, with the remedy" [ "$(grep -c '^trireme: MPI could not start; .* doctor$' err)" = 1 ]
check "MPI does not start: nothing else is said" [ "$(wc -l <err)" = 1 ]

# A rank cannot begin: all ranks end with the same code, and none is reported as lost.
"$spin" run 3 spin homeless 1 5 >out 2>err
code=$?
check "no board for a rank: 69 (was $code)" [ "$code" = 69 ]
check "no board for a rank: one message" [ "$(wc -l <err)" = 1 ]
check "no board for a rank: its message" grep -q '^trireme: shared memory' err

# A rank is killed in the middle of an action, which the message names.
start 2 steps 1000 20
kill -KILL "$(pid_of 1)"
await_end
check "in an action: code 77 (was $code)" [ "$code" = 77 ]
check "in an action: named" grep -q 'lost rank 1 .*stage 1, micro-batch 41, forward (F) for' err

# An action of 30 s, three times the heartbeat's limit.
start 2 steps 1 30
await_end
check "a long action survives (code $code)" [ "$code" = 0 ]
check "a long action: both ranks done" [ "$(grep -c " done" out)" = 2 ]
check "a long action: nothing said" [ ! -s err ]

for signal in TERM USR1; do
    start 2 steps 1000 0.3
    kill -"$signal" "$job"
    await_end
    check "SIG$signal to the launcher: 75 (was $code)" [ "$code" = 75 ]
    check "SIG$signal to the launcher: one line" [ "$(wc -l <err)" = 1 ]
done

"$spin" run 3 spin fail 1 65 >out 2>err
code=$?
check "a rank that fails: its code (was $code)" [ "$code" = 65 ]
check "a rank that fails: one message" [ "$(wc -l <err)" = 1 ]
check "a rank that fails: its message" grep -q '^trireme: the loss is not finite' err

"$spin" run 2 spin crash 1 >out 2>err
code=$?
check "a crash: 77 (was $code)" [ "$code" = 77 ]
check "a crash: one message" [ "$(lines_of '^trireme:')" = 1 ]
check "a crash: the action" grep -q 'rank 1 .*micro-batch 7, weight gradient (W) for' err

"$spin" run 3 spin hang 2 2 >out 2>err
code=$?
check "a deadline: 77 (was $code)" [ "$code" = 77 ]
check "a deadline: one message" [ "$(lines_of '^trireme:')" = 1 ]
check "a deadline: names the late rank" grep -q 'late is rank 2 .*micro-batch 42, forward (F) for' err

for bad in "-n 0 data x" "-n two data x" "-n" "data x" "-n 2" "--fast -n 2 data" "-n 2 spoil" "-n 2 run"; do
    # shellcheck disable=SC2086
    "$trireme" run $bad >out 2>err
    code=$?
    check "usage: run $bad: 64 (was $code)" [ "$code" = 64 ]
    check "usage: run $bad: one line" [ "$(wc -l <err)" = 1 ]
done
"$trireme" run -n 2 --hostfile none help >out 2>err
code=$?
check "a missing hostfile: 66 (was $code)" [ "$code" = 66 ]
"$trireme" run -n 2 help no.such.key >out 2>err
code=$?
check "an error of all ranks: its code (was $code)" [ "$code" -ge 64 ]
check "an error of all ranks: said once" [ "$(wc -l <err)" = 1 ]

finish
