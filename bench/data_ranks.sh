#!/usr/bin/env bash
# Two data ranks on two cores against two independent processes with the same work each: what summing gradients costs a
# step. PyTorch's DistributedDataParallel is measured in the same way, in the same rounds; the best step of each counts.
# Then four data ranks that divide the optimizer's state (parallel.zero 1) against four that do not.
#   PYTHON=DIR/bin/python bench/data_ranks.sh [rounds [option=value of bench_train ...]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-3}
shift || true
build bench_train
train=$release/bench/bench_train
sizes=(layers=8 width=512 heads=8 context=256 vocab=256 batch=8 micro_batch=8 threads=1 steps=5 "$@")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Options of bench_train as those of torch_gpt.py, which knows no others.
words=()
mode=fp32
for word in "${sizes[@]}"; do
    case $word in
    precision=bf16) mode=autocast ;;
    precision=* | dp=*) ;;
    *) words+=("--${word%%=*}" "${word#*=}") ;;
    esac
done
both=()
for word in "${sizes[@]}"; do # of two ranks together
    [[ $word == batch=* ]] && word=batch=$((2 * ${word#*=}))
    both+=("$word")
done
# Of four ranks, with little to compute: sums, updates and gathers take most of the step.
four=(layers=8 width=512 heads=8 context=8 vocab=256 batch=4 micro_batch=1 threads=1 steps=20)
best_of() { awk '/^step best/ { print $3 }' "$1"; }
# twice NAME COMMAND...: two processes at the same time; the slower one's best step counts.
twice() {
    local name=$1
    shift
    "$@" >"$work/other" &
    "$@" >"$work/one"
    wait $!
    { best_of "$work/one" && best_of "$work/other"; } | most >>"$work/$name"
}

for ((round = 0; round < rounds; round++)); do
    twice alone "$train" "${sizes[@]}"
    mpi 2 "$train" "${both[@]}" dp=2 >"$work/out"
    best_of "$work/out" >>"$work/data"
    for zero in 0 1; do # in turn
        mpi 4 "$train" "${four[@]}" dp=4 zero=$zero >"$work/out"
        best_of "$work/out" >>"$work/zero-$zero"
    done
    [[ -n ${PYTHON:-} ]] || continue
    twice torch-alone "$PYTHON" bench/torch_gpt.py "${words[@]}" --mode $mode
    "$PYTHON" -m torch.distributed.run --nproc-per-node 2 bench/torch_gpt.py "${words[@]}" --mode $mode >"$work/out" 2>"$work/err" ||
        fail "$(tail -n 3 "$work/err")"
    best_of "$work/out" >>"$work/torch-data"
done
# compared WHAT ALONE DATA
compared() {
    awk -v what="$1" -v alone="$(least <"$work/$2")" -v both="$(least <"$work/$3")" 'BEGIN {
        printf "%s: %.0f ms for a step of two data ranks, %.0f ms of two independent processes: %.3f of their rate\n", what, both, alone, alone / both }'
}
row "two data ranks, ${sizes[*]}, load $(load)" "bench/data_ranks.sh $rounds" "$(compared trireme alone data)" "0.95"
row "parallel.zero 1 on four data ranks, ${four[*]}, load $(load)" "bench/data_ranks.sh $rounds" \
    "$(awk -v whole="$(least <"$work/zero-0")" -v divided="$(least <"$work/zero-1")" 'BEGIN {
        printf "%.0f ms a step, undivided %.0f ms: %.3f of its time\n", divided, whole, divided / whole }')" "1"
if [[ -n ${PYTHON:-} ]]; then
    row "the same in PyTorch's DDP, $mode" "bench/data_ranks.sh $rounds" "$(compared PyTorch torch-alone torch-data)" "-"
fi
