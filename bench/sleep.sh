#!/usr/bin/env bash
# Compares measured with simulated times: every schedule on 2, 4 and 8 real ranks with stages that sleep
# (bench_sleep), and PyTorch's pipeline runtime on sleeping stages in the same run, with its orders simulated
# at the same durations and latency. Prints a table for each number of ranks.
#   [PYTHON=DIR/bin/python] bench/sleep.sh [steps [ranks ...]]
# Ranks that sleep need a core only when they wake. Where real-time priority is allowed they get it at once,
# so that other processes do not matter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

steps=${1:-3}
shift || true
ranks=("$@")
[[ ${#ranks[@]} -gt 0 ]] || ranks=(2 4 8)
build trireme bench_sleep
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
front=()
if chrt -f 1 true 2>/dev/null; then front=(chrt -f 1); fi

# Prints the makespan in milliseconds of an order's file, or of our schedule with one stage a rank.
simulated() { # NAME RANKS MICRO_BATCHES STAGES LATENCY_US
    local what=${1,,} costs order=$work/orders/$1.csv
    costs=$(awk -v v="$4" -v c="$5" 'BEGIN { printf "F=%d,I=%d,W=%d,c=%g", 10 * v, 10 * v, 10 * v, c / 1e3 }')
    if [[ -f $order ]]; then "$release/trireme" simulate --schedule "$order" --costs "$costs" --json
    else "$release/trireme" simulate --schedule "$what" -p "$2" -m "$3" --costs "$costs" --json; fi |
        sed -n 's/.*"makespan": *\([0-9.e+]*\).*/\1/p'
}

measure_torch() { # RANKS MICRO_BATCHES LATENCY_US
    local name chunks ms due
    mkdir -p "$work/orders"
    OMP_NUM_THREADS=1 "${front[@]}" "$PYTHON" -m torch.distributed.run --nproc-per-node "$1" bench/torch_pp.py \
        --micro-batches "$2" --steps "$steps" --orders "$work/orders" 2>"$work/torch.err" >"$work/torch" ||
        { tail -n 5 "$work/torch.err" >&2; return 1; }
    while read -r name chunks ms; do
        due=$(simulated "$name" "$1" "$2" "$chunks" "$3")
        awk -v name="$name" -v p="$1" -v m="$2" -v v="$chunks" -v ms="$ms" -v due="$due" 'BEGIN {
            printf "| PyTorch %s | %d | %d | %d | %.1f | %.1f | %.4f | |\n", name, p, m, v, due, ms, ms / due }'
    done <"$work/torch"
}

for p in "${ranks[@]}"; do
    m=$((p == 8 ? 16 : 4 * p))
    mpi "$p" "${front[@]}" "$release/bench/bench_sleep" m=$m steps="$steps" >"$work/ours"
    latency=$(awk '$1 == "latency" { print $2 }' "$work/ours")
    echo
    echo "$p ranks, actions of 10 ms, latency of a transfer $latency us, load $(load)"
    echo
    echo "| schedule | p | m | v | simulated, ms | measured (median of $steps) | ratio | worst step |"
    echo "|---|---|---|---|---|---|---|---|"
    grep '^|' "$work/ours" | tee -a "$work/all"
    rm -rf "$work/orders"
    if [[ -z ${PYTHON:-} ]]; then echo "PyTorch: not measured, as PYTHON names no interpreter" >&2
    elif ! "$PYTHON" -c 'import torch' 2>/dev/null; then echo "PyTorch: not measured, as $PYTHON has no torch" >&2
    else measure_torch "$p" "$m" "$latency" | tee -a "$work/theirs"; fi
done
echo
range_of() { awk -F'|' '{ r = $8 + 0; if (!n || r < least) least = r; if (r > most) most = r; n++ } END { printf "%.3f to %.3f (%d)", least, most, n }' "$1"; }
row "sleeping ranks, p = ${ranks[*]}, every schedule: measured over simulated" "bench/sleep.sh $steps" "$(range_of "$work/all")" "at most 1.03"
[[ ! -s $work/theirs ]] ||
    row "the same in PyTorch's pipeline runtime, its own orders" "bench/sleep.sh $steps" "$(range_of "$work/theirs")" "-"
