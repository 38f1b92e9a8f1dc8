#!/usr/bin/env bash
# Tests training over NCCL's calls, with a library that checks every one of them: order, counts, types, pairs,
# no call after the end. Every schedule and kind of layout gives the bits of the mpi transport; a rank that is
# lost, stuck or gets an error ends the job with 77 and one message; ranks on one GPU stage their messages
# automatically, with a line that says so.
# usage: nccl.sh TRIREME SCRATCH_DIR MOCK_FOLDER     (of that libnccl.so.2)
set -euo pipefail
trireme=$1 scratch=$2 mock=$(realpath "$3")
source "$(dirname "$0")/common.sh"
cd "$scratch"
export LD_LIBRARY_PATH=$mock${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
grep -q "calling init: $mock/libnccl.so.2" <(LD_DEBUG=libs "$trireme" doctor 2>&1) || fail "the program does not load the library of $mock"
by_nccl=(device.name=guarded parallel.transport=nccl)
cat >base.yaml <<Y
model: {layers: 8, width: 32, heads: 4, context: 32, dropout: 0.1}
data: {path: $text}
train: {steps: 4, batch: 8, micro_batch: 1, seed: 7, threads: 1, validate_every: 2, validate_batches: 1}
optim: {lr: 0.003, warmup: 2}
log: {every: 20}
Y

same_bits() { # RUN REFERENCE
    same_curve "$1" "$2"
    same_tensors "$1" "$2" 4
}

# Every schedule on two pipeline ranks; the cut changes no bit, so one rank is the reference.
for precision in fp32 bf16; do train 0 1 one-$precision train.precision=$precision; done
names=$("$trireme" help parallel.schedule | sed -n 's/^ *takes *one of \(.*\), or a path.*/\1/p' | tr -d ,)
[[ $(wc -w <<<"$names") -ge 15 ]] || fail "schedules: $names"
precision=bf16
for name in $names; do
    [[ $precision == fp32 ]] && precision=bf16 || precision=fp32
    [[ $name == 1f1b ]] || drawn "$name" || continue # 1f1b's plan is read below
    train 0 2 "$name" "${by_nccl[@]}" parallel.pp=2 parallel.schedule="$name" train.precision=$precision
    same_bits "$name" one-$precision
done
grep -q '^transport *NCCL ' 1f1b.out || fail "the plan does not name the transport"

# Layouts, compared with the same ones over the mpi transport.
compare_layout() { # NAME RANKS KEY=VALUE...
    train 0 "$2" "mpi-$1" "${@:3}"
    train 0 "$2" "nccl-$1" "${by_nccl[@]}" "${@:3}"
    same_bits "nccl-$1" "mpi-$1"
    as_planned "mpi-$1"
    as_planned "nccl-$1"
}
compare_layout pp4-loop 4 parallel.pp=4 parallel.schedule=interleaved parallel.virtual=2
compare_layout tp4 4 parallel.tp=4 parallel.sequence=true train.precision=bf16
compare_layout dp3 3 parallel.dp=3 train.batch=12
compare_layout zero 3 parallel.dp=3 train.batch=12 parallel.zero=1
same_bits nccl-zero nccl-dp3
train 0 3 nccl-zero3 "${by_nccl[@]}" parallel.dp=3 train.batch=12 parallel.zero=3 parallel.schedule=bfs parallel.virtual=4
same_bits nccl-zero3 nccl-dp3
compare_layout pp2-zero 4 parallel.pp=2 parallel.dp=2 parallel.zero=3 parallel.schedule=bfs parallel.virtual=4 train.precision=bf16 \
    optim.name=muon # whole matrices, and vectors that are cut
compare_layout near 6 parallel.dp=3x2 train.batch=12 parallel.zero=1
compare_layout half 6 parallel.dp=3x2 train.batch=12 parallel.reduce=bf16
# Ranks that do not add in their order say so. The plan has the landing buffers of those that do, and portions half of
# the bytes.
grep -q '^sums ' nccl-zero.out && fail "zero: $(grep '^sums ' nccl-zero.out)"
train 0 3 free "${by_nccl[@]}" parallel.dp=3 train.batch=12 parallel.zero=1 train.deterministic=false train.steps=1 train.validate_every=0
grep -q '^sums     NCCL adds the gradients of three or more ranks in an order of its own' free.out || fail "free: $(<free.out)"
reduce_ms() { # KEY=VALUE...
    "$trireme" plan base.yaml "${by_nccl[@]}" device.link=0.01 --rate 1 train.batch=12 parallel.dp=3 "$@" >plan.out 2>&1 || true
    sed -n 's/^reduce .* take \([0-9.]*\) ms.*/\1/p' plan.out
}
whole=$(reduce_ms)
reduce_ms parallel.zero=1 >half.ms
awk -v w="${whole:-0}" -v half="$(<half.ms)" 'BEGIN { exit !(w > 1 && w > 1.98 * half && w < 2.02 * half) }' ||
    fail "the plan's sums: $whole and $(<half.ms) ms"
[[ $(awk '$1 == 0 && $2 ~ /^0(,|-|$)/ { print $10 }' plan.out) == 4.0 && $(<nccl-zero.out) == *"+ transfers 4.0 + "* ]] ||
    fail "landing buffers: $(<plan.out); run: $(grep '^memory' nccl-zero.out)"
compare_layout pp2-tp2-dp2 8 parallel.pp=2 parallel.tp=2 parallel.dp=2 parallel.schedule=zbv train.batch=16

# --- the choice of the transport
# -----------------------------------------------------------------------------------

# "guarded:N" replaces the N-th GPU.
train 0 2 shared device.name=guarded:0 parallel.pp=2
same_bits shared one-fp32
grep -q '^transport *ranks 0 and 1 share a GPU (guarded:0), which NCCL refuses: .*staged' shared.out ||
    fail "no line names the shared GPU: $(<shared.out)"
grep -q '^device *guarded:0 guarded:0, 2 ranks: ' shared.out || fail "the ranks of the GPU: $(<shared.out)"
train 78 2 forced device.name=guarded:0 parallel.pp=2 parallel.transport=nccl
says forced "ranks 0 and 1 are on one GPU \(guarded:0\), but NCCL needs one for each"
mkdir -p unloadable
: >unloadable/libnccl.so.2
LD_LIBRARY_PATH=$scratch/unloadable train 69 2 unloadable device.name=guarded parallel.pp=2 parallel.transport=nccl
says unloadable "rank 0 has no NCCL: its library cannot be loaded"
train 78 2 host parallel.pp=2 parallel.transport=nccl
says host ".*parallel.transport nccl connects GPUs, but device.name cpu is not a GPU"
train 0 2 staged device.name=guarded parallel.pp=2 parallel.transport=mpi
same_bits staged one-fp32
# shellcheck disable=SC2016 # the ranks' own shells expand it
plain_mpirun -n 2 bash -c \
    'exec "$@" device.name=guarded:$OMPI_COMM_WORLD_RANK' sh "$trireme" train base.yaml \
    log.dir="$scratch/own" parallel.pp=2 >own.out 2>own.err || fail "own: code $? $(<own.err)"
same_bits own one-fp32
grep -q '^transport *NCCL ' own.out || fail "ranks with a GPU each do not use NCCL: $(<own.out)"
grep -q '^device *guarded:0 guarded:0, 1 rank: ' own.out || fail "the ranks of each GPU: $(<own.out)"

# --- failures -----------------------------------------------------------------------------------------

# lost RUN PATTERN: $job must end within 40 s of its last step, with 77 and one matching message.
lost() {
    local code=0 took
    timeout 60 tail --pid="$job" -f /dev/null || { fail "$1: still there"; descendants "$job" | xargs kill -9; }
    wait "$job" || code=$?
    [[ $code == 77 ]] || fail "$1: exit code $code, not 77"
    took=$(($(date +%s) - $(stat -c %Y "$(ls "$1/metrics.jsonl" 2>/dev/null || echo "$1.out")")))
    [[ $took -le 40 ]] || fail "$1: ended $took s after its last step"
    # Open MPI may add a line of its own about a lost peer.
    grep "^trireme: " "$1.err" >"$1.said" || true
    [[ $(wc -l <"$1.said") == 1 ]] || fail "$1: said '$(<"$1.err")'"
    grep -Eq "$2" "$1.said" || fail "$1: said '$(<"$1.said")', not '$2'"
    grep -q "nccl mock: " "$1.err" && fail "$1: $(grep "nccl mock: " "$1.err")"
    return 0
}
begin() { # RUN DEADLINE [VARIABLE=VALUE...]
    env "${@:3}" "$trireme" run -n 4 train base.yaml log.dir="$scratch/$1" "${by_nccl[@]}" parallel.pp=2 parallel.tp=2 \
        train.steps=100000 train.validate_every=0 parallel.deadline="$2" >"$1.out" 2>"$1.err" &
    job=$!
}
for signal in KILL STOP; do
    begin $signal 60
    until_true 120 past $signal 5 || fail "$signal: never reached step 5: $(<$signal.err)"
    kill -$signal "$(rank_process 2)"
    lost $signal '^trireme: lost rank 2 .*: step [0-9]+'
done
# A stopped rank, with a deadline that passes before the rank counts as lost: the message names that rank, not
# the one that waits for it.
begin late 2
until_true 120 past late 5 || fail "late: never reached step 5: $(<late.err)"
kill -STOP "$(rank_process 2)"
lost late '(; late is|waited [0-9.]+ s for) rank 2 '
# A rank that is alive but makes no progress, outside of NCCL: the deadline ends the job, and the message
# names that rank.
over='([3-9]|[1-9][0-9])\.[0-9]' # the deadline of 3 s, or longer on a busy machine
begin stuck 3 LD_PRELOAD="$mock/libstuck_read.so" STUCK_READ=3:100
lost stuck "^trireme: rank [0-9] waited $over s for .*; late is rank 3 "
# A call of NCCL that does not return: an abort from another thread ends it. A call that does not return even
# then ends with the process, and so does one that cannot be aborted because the communicator is being made.
stuck_call="^trireme: rank (3: a call of NCCL .* has not returned for $over s: |[0-9] waited $over s .*; late is rank 3 )"
begin blocked 3 NCCL_MOCK_STUCK=3:400
lost blocked "$stuck_call"
begin meeting 3 NCCL_MOCK_STUCK=3:1
lost meeting "^trireme: rank [0-9] waited $over s for "
begin deaf 3 NCCL_MOCK_DEAF=3:400
lost deaf "$stuck_call"
begin making 3 NCCL_MOCK_STUCK=3:0
lost making "^trireme: rank [0-9] waited $over s for .* in set-up by NCCL of "
# NCCL's own error, on one rank.
begin error 60 NCCL_MOCK_ERROR=1:400
lost error '^trireme: NCCL: .* failed: '
# A rank that alone cannot start one of its threads while the others wait for its groups and channels, in the order
# in which it starts them: the job ends before the deadline, with that rank's sentence.
for thread in 3 4 5 6; do
    code=0
    LD_PRELOAD=$mock/libno_thread.so NO_THREAD=1:$thread timeout 60 "$trireme" run -n 2 train base.yaml \
        log.dir="$scratch/thread$thread" "${by_nccl[@]}" parallel.dp=2 parallel.deadline=50 \
        >"thread$thread.out" 2>"thread$thread.err" || code=$?
    [[ $code == 69 && $(wc -l <"thread$thread.err") == 1 ]] || fail "thread$thread: code $code, said '$(<"thread$thread.err")'"
    says "thread$thread" "cannot start a thread for (messages|a stream|reading ahead): .*\(ulimit -u\)$"
done
says thread3 "cannot start a thread for messages"
says thread6 "cannot start a thread for reading ahead"

finish
