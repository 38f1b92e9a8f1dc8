#!/usr/bin/env bash
# Runs most measurements that bench/README.md lists, one after another, and prints one table.
#   [PYTHON=DIR/bin/python] bench/run.sh [rounds]
# PYTHON: an interpreter with PyTorch, for the rows that compare with it. Nothing else should run meanwhile;
# the table states the load.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-3}
rows=$(mktemp)
export BENCH_ROWS=$rows
trap 'rm -f "$rows"' EXIT

# Nanoseconds of the slower of the two schedules.
measure_runner() {
    local ns
    ns=$("$release/bench/bench_runner" | awk '{ print $2 }' | most)
    row "runner, per action (one rank, empty stages)" build/release/bench/bench_runner \
        "$ns ns" "5000 ns"
}

# Nanoseconds of a normal number.
measure_param() {
    row "initial values, normal: one thread; two, load $(load)" build/release/bench/bench_param \
        "$("$release/bench/bench_param" | awk '/^normal/ { printf "%s ns; %s times as fast", $2, $4 }')" "60 ns; 1.8 times"
}

# Stages only sleep, so the difference of the two steps divided by the delay is the number of delays in a
# step.
measure_overlap() {
    local all
    all=$(for ((i = 0; i < rounds; i++)); do "$release/bench/bench_overlap"; done)
    row "GPipe p=2 m=8, messages delayed by F/2: delays in a step" \
        build/release/bench/bench_overlap "$(awk '
            { ms = $5 + 0; d = $2 + 0; if (!(d in best) || ms < best[d]) best[d] = ms }
            d > 0 { delay = d }
            END { printf "%.2f times (%.1f against %.1f ms)", (best[delay] - best[0]) / delay, best[delay], best[0] }
        ' <<<"$all")" "2 times, not 8"
}

# The slowest of the profiles at 32 ranks and 256 micro-batches.
measure_search() {
    local seconds
    seconds=$("$release/bench/bench_auto" | awk '/ 32 +256 / { print $(NF - 1) }' | most)
    row "schedule auto, p=32 m=256, found and simulated, load $(load)" build/release/bench/bench_auto \
        "$seconds s of a core" "0.3 s"
}

# 25 million actions, the whole command.
measure_simulation() {
    local command=(simulate --schedule interleaved-zb -p 1024 -m 4096 -v 2 --json) used
    used=$({ /usr/bin/time -f '%e s, %M KiB' "$release/trireme" "${command[@]}" >/dev/null; } 2>&1)
    row "simulating p=1024 m=4096 v=2, load $(load)" "trireme ${command[*]}" "$used" "10 s, 2 GiB"
}

flags=$(grep -m 1 '^flags' /proc/cpuinfo | grep -oE 'avx512f|avx512_bf16|amx_bf16' | tr '\n' ' ')
build trireme bench_runner bench_param bench_overlap bench_train bench_op bench_auto
measure_runner
measure_param
measure_overlap
measure_search
measure_simulation
bash bench/sleep.sh "$rounds"
bash bench/launch.sh "$rounds"
bash bench/two_ranks.sh "$rounds"
bash bench/plan.sh "$rounds"
bash bench/torch.sh "$rounds"
bash bench/quickstart.sh

echo
echo "$(date -u '+%Y-%m-%d %H:%M') UTC, commit $(git describe --always --dirty),$(lscpu |
    sed -n 's/^Model name: *\(.*\)/ \1/p'), $(nproc) cores, flags: ${flags:-none of avx512, amx}"
echo
echo "| what | command | measured | target |"
echo "|---|---|---|---|"
cat "$rows"
