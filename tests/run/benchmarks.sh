#!/usr/bin/env bash
# Tests the benchmarks for GPUs: a training step with micro-batches and with several ranks, each on its own
# device, over NCCL's calls, gives the loss of one rank; operators are timed on a device with memory that the
# host cannot access, and so is a step of an optimizer; plans that were measured are read from their file; every plan of an
# emulated cuBLASLt is timed.
# usage: benchmarks.sh TRIREME SCRATCH_DIR MOCK_FOLDER     (of a libnccl.so.2 that checks its callers, or "")
set -euo pipefail
trireme=$1 scratch=$2 mock=${3:-}
source "$(dirname "$0")/common.sh"
bench=$(dirname "$trireme")/bench
for name in bench_train bench_op bench_updates; do
    [[ -x $bench/$name ]] || {
        echo "skipped: there is no $name: build the target benches first"
        exit 77
    }
done
cd "$scratch"
set -a
source "$tests_root/mpi.env"
set +a
export OMP_NUM_THREADS=1
model=(layers=2 width=64 heads=4 context=32 vocab=256 batch=8 steps=2)

# step NAME RANKS OPTION...: runs bench_train; its output is in NAME.out.
step() {
    local command=("$bench/bench_train" "${model[@]}" "${@:3}")
    (($2 == 1)) || command=(mpirun --bind-to none -n "$2" "${command[@]}")
    timeout 100 "${command[@]}" >"$1.out" 2>"$1.err" </dev/null || fail "$1 ended with $?: $(<"$1.err")"
}
loss() { sed -n 's/.*; loss \([0-9.]*\)$/\1/p' "$1.out"; }
shows() { grep -q -- "$2" "$1.out" || fail "$1: no '$2' in: $(<"$1.out")"; }
same_loss() { [[ -n $(loss one) && $(loss "$1") == "$(loss one)" ]] || fail "$1: loss $(loss "$1"), not $(loss one)"; }

step one 1 micro_batch=8
step llama 1 micro_batch=4 family=llama kv_heads=2
[[ -n $(loss llama) && $(loss llama) != "$(loss one)" ]] || fail "llama: loss $(loss llama), as gpt2's"
step micro 1 micro_batch=2 threads=0
same_loss micro
step staged 2 micro_batch=2 pp=2 device=guarded:0
same_loss staged
shows staged '^2 ranks, messages: .*staged on the host'
if [[ -n $mock ]]; then
    export LD_LIBRARY_PATH=$mock${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    for axis in pp dp tp; do
        step nccl-$axis 2 micro_batch=2 $axis=2 device=guarded transport=nccl
        same_loss nccl-$axis
        shows nccl-$axis '^2 ranks, messages: NCCL '
    done
fi
step measured 1 micro_batch=8 deterministic=0 plans="$PWD"
grep -q '^matmul .* = ' plans.txt || fail "no plans in plans.txt: $(<plans.txt)"
echo nonsense >plans.txt
code=0
"$bench/bench_train" "${model[@]}" micro_batch=8 deterministic=0 plans="$PWD" 2>unread.err || code=$?
[[ $code == 65 ]] && grep -q plans.txt unread.err || fail "plans.txt was not read: exit code $code: $(<unread.err)"
code=0
"$bench/bench_train" "${model[@]}" micro_batch=3 2>uneven.err || code=$?
[[ $code == 64 ]] || fail "an uneven batch ended with $code"
grep -q 'batch must be a multiple of micro_batch \* dp' uneven.err || fail "uneven: $(<uneven.err)"
timeout 100 "$bench/bench_op" 1 attention_decode guarded >op.out 2>&1 || fail "bench_op: $(<op.out)"
grep -q '^attention_decode .* us ' op.out || fail "bench_op: $(<op.out)"
timeout 100 "$bench/bench_updates" 1 'lion precision=bf16 moments=bf16' guarded >updates.out 2>&1 || fail "bench_updates: $(<updates.out)"
[[ $(grep -c '^name=lion .* ms .* GB/s ' updates.out) == 2 ]] || fail "bench_updates: $(<updates.out)"

# Three plans for each product, in two sizes of workspace; six of the products also in parts. Without the
# library there are no plans.
plans=$(dirname "$trireme")/tests/bench_matmul_emulated
if [[ -x $plans ]]; then
    timeout 100 "$plans" cuda:3 64 32 64 >plans.out 2>&1 || fail "bench_matmul: $(<plans.out)"
    rows() { grep -Ec "^matmul .* $1 +3 +[0-9]" plans.out || true; } # with three plans
    [[ "$(rows 32) $(rows 256) $(rows 'fused +256') $(rows 'parts +256')" == "15 21 6 6" ]] ||
        fail "bench_matmul: other rows: $(<plans.out)"
    grep -q '^these sizes, products of a block: first plans [1-9][0-9.]* us; ' plans.out || fail "no sum: $(<plans.out)"
    timeout 100 "$plans" cuda:0 64 32 64 >none.out 2>&1 || fail "bench_matmul without plans: $(<none.out)"
    grep -q '^matmul proj .* the library has no plan$' none.out || fail "without plans: $(<none.out)"
fi
finish
