#!/usr/bin/env bash
# Compares the step of two pipeline stages with half of one rank's step times the schedule's bubble
# (m + p - 1) / m. The one rank runs while an independent copy of it keeps the other core busy. Rounds
# alternate the three, and the best step of each counts.
#   bench/two_ranks.sh [rounds] [option=value of bench_train ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-3}
shift || true
build bench_train
train=$release/bench/bench_train
model=(layers=8 width=512 heads=8 context=256 vocab=256 batch=16 micro_batch=2 threads=1 steps=3
    report=1 "$@")
work=$(mktemp -d)
twin=
trap 'kill ${twin:-} 2>/dev/null || true; rm -rf "$work"' EXIT

# Waits until the copy has taken its first steps: from then on the other core is busy.
start_twin() {
    : >"$work/twin"
    "$train" "${model[@]}" steps=100000 >"$work/twin" 2>&1 &
    twin=$!
    until grep -q ready "$work/twin"; do
        kill -0 "$twin" || fail "the twin ended: $(cat "$work/twin")"
        sleep 0.1
    done
}

stop_twin() {
    kill "$twin"
    wait "$twin" 2>/dev/null || true
    twin=
}

best_of() { awk '/^step best/ { print $3 }' "$1"; }

echo "model: ${model[*]}"
for ((round = 1; round <= rounds; round++)); do
    start_twin
    "$train" "${model[@]}" >"$work/one.$round"
    stop_twin
    for schedule in gpipe 1f1b; do
        mpi 2 "$train" "${model[@]}" pp=2 schedule=$schedule >"$work/$schedule.$round"
    done
    echo "round $round (load $(load)): one rank $(best_of "$work/one.$round") ms," \
        "gpipe $(best_of "$work/gpipe.$round"), 1f1b $(best_of "$work/1f1b.$round")"
done
one=$(for f in "$work"/one.*; do best_of "$f"; done | least)
for schedule in gpipe 1f1b; do
    best=$(for f in "$work/$schedule".*; do echo "$(best_of "$f") $f"; done | least)
    sed -n 's/^rank/    rank/p' "${best#* }"
    awk -v one="$one" -v two="${best%% *}" -v m=8 '
        / rank/ { next }
        /^rank/ {
            match($0, /F [0-9.]+/); f = substr($0, RSTART + 2, RLENGTH - 2)
            match($0, /B [0-9.]+/); b = substr($0, RSTART + 2, RLENGTH - 2)
            work = f + b; sum += work; if (work > most) most = work
        }
        END {
            due = one / 2 * (m + 1) / m
            printf "%.0f ms against %.0f / 2 * 9/8 = %.0f: %+.1f %%; against its own compute in that step * 9/8: %+.1f %%; busier stage over the mean: %+.1f %%",
                two, one, due, 100 * (two / due - 1),
                100 * (two / (sum / 2 * (m + 1) / m) - 1), 100 * (2 * most / sum - 1)
        }' "${best#* }" >"$work/measured"
    row "two busy ranks, $schedule, load $(load)" "bench/two_ranks.sh $rounds" "$(<"$work/measured")" "within 10 %"
done
