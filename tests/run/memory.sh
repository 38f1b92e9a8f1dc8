#!/usr/bin/env bash
# Tests docs/memory.md: its table is what `trireme plan` prints, and plans follow the page's formulas.
# usage: memory.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1
scratch=$2
source "$(dirname "$0")/common.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
page=$root/docs/memory.md
source "$root/tools/plan_table.sh"

bash "$root/tools/memory_table.sh" "$trireme" >"$scratch/table"
[[ $(grep -c '^| `' "$scratch/table") -gt 9 ]] || fail "the table has few rows: $(<"$scratch/table")"
diff "$scratch/table" <(sed '1,/^<!-- from here: /d; /^<!-- to here -->/,$d' "$page" | sed '$d') ||
    fail "docs/memory.md is old: run tools/memory_table.sh build/release/trireme --write"

sed -n '/^```yaml$/,/^```$/{//!p}' "$page" >"$scratch/x.yaml"

# of RANK COLUMN SETTINGS...: prints a number of the plan's row that has that rank.
of() {
    local rank=$1 column=$2
    shift 2
    "$trireme" plan "$scratch/x.yaml" --rate 1 "$@" | awk -v rank="$rank" -v column="$column" "$plan_table"'
        is_row() && has_rank($2, rank) { print $(column); found = 1 }
        END { exit !found }'
}
params=4 parameters=5 gradients=6 optimizer=7 activations=8 transfers=10 data=11

# host SETTINGS...: prints the MiB in host memory.
host() { "$trireme" plan "$scratch/x.yaml" --rate 1 "$@" | sed -n 's/^offload  at most \([0-9.]*\) MiB a rank in host memory, .*/\1/p'; }

# less A B: prints A - B.
less() { awk "BEGIN { print $1 - $2 }"; }

# is WHAT MIB FORMULA [LIMIT]: the planned MiB must be the formula's bytes, within what the plan rounds; LIMIT of a difference.
is() {
    awk -v have="$2" "BEGIN {
        V = 50257; T = 1024; C = 768; L = 12; h = 12; R = 4 * T; mib = 2 ^ 20
        want = ($3) / mib; d = have - want
        if (d < 0) d = -d
        if (d > ${4:-0.07}) { print want; exit 1 }
    }" >"$scratch/want" || fail "$1: $2 MiB planned, by the formula $(<"$scratch/want")"
}

# Parameters, gradients and optimizer of one pipeline rank.
for n in 1 2 4; do
    P="(int((V + $n - 1) / $n) * C + T * C + L * (12 * C * C / $n + 7 * C / $n + 6 * C) + 2 * C)"
    is "tp $n: parameters" "$(of 0 $parameters parallel.tp=$n)" "4 * $P"
    is "tp $n: gradients" "$(of 0 $gradients parallel.tp=$n)" "4 * $P + 4 * int((V + $n - 1) / $n) * C"
    is "tp $n: optimizer" "$(of 0 $optimizer parallel.tp=$n)" "8 * $P"
    is "tp $n: BF16" "$(of 0 $parameters parallel.tp=$n train.precision=bf16)" "6 * $P"
    is "tp $n: BF16 without masters" "$(of 0 $parameters parallel.tp=$n train.precision=bf16 optim.master=none)" "2 * $P"
    is "tp $n: BF16 moments" "$(of 0 $optimizer parallel.tp=$n optim.moments=bf16)" "4 * $P"
    is "tp $n: BF16 gradients" "$(of 0 $gradients parallel.tp=$n optim.gradients=bf16)" \
        "2 * $P + 2 * int((V + $n - 1) / $n) * C + 4 * (int((V + $n - 1) / $n) * C + T * C)"
    is "tp $n: 8-bit moments" "$(of 0 $optimizer parallel.tp=$n optim.moments=int8)" "2 * 260 / 256 * $P" 0.15
    # In the host's memory: moments, and in BF16 masters, besides three parts of gradients and values.
    offload=(parallel.tp=$n device.name=guarded device.offload=optimizer)
    is "tp $n: offload in BF16" "$(host "${offload[@]}" train.precision=bf16)" "12 * $P + 3 * 2 ^ 18 * (4 + 2)" 0.15
    is "tp $n: offload in FP32, 8 bits" "$(host "${offload[@]}" optim.moments=int8)" "2 * 260 / 256 * $P + 3 * 2 ^ 18 * (4 + 4)" 0.15
    is "tp $n: parameters without masters" "$(of 0 $parameters "${offload[@]}" train.precision=bf16)" "2 * $P"
    is "tp $n: offloaded optimizer" "$(of 0 $optimizer "${offload[@]}" train.precision=bf16)" 0
    # Divided among data ranks, within a block of each parameter.
    is "tp $n: divided optimizer" "$(of 0 $optimizer parallel.tp=$n parallel.dp=2 parallel.zero=1)" "8 * $P / 2" 1.5
    is "tp $n: divided gradients" "$(of 0 $gradients parallel.tp=$n parallel.dp=2 parallel.zero=2)" \
        "(4 * $P + 4 * int((V + $n - 1) / $n) * C) / 2" 1.5
    is "tp $n: divided parameters" "$(of 0 $parameters parallel.tp=$n parallel.dp=2 parallel.zero=3)" "4 * $P / 2" 0.8
    is "tp $n: divided BF16 parameters" "$(of 0 $parameters parallel.tp=$n parallel.dp=2 parallel.zero=3 train.precision=bf16)" \
        "6 * $P / 2" 1.2
    is "tp $n: divided masters" "$(of 0 $parameters parallel.tp=$n parallel.dp=2 parallel.zero=1 train.precision=bf16)" \
        "2 * $P + 4 * $P / 2" 0.8
    # What a block keeps: the difference of 12 more blocks.
    for mode in none selective full; do
        case $mode in
        none) kept="4 * R * ((4 + 12 / $n) * C + 4 + h / $n)" ;;
        selective) kept="4 * R * ((2 + 8 / $n) * C + 4 + h / $n)" ;;
        full) kept="4 * R * C" ;;
        esac
        small=$(of 0 $activations parallel.tp=$n train.recompute=$mode)
        large=$(of 0 $activations parallel.tp=$n train.recompute=$mode model.layers=24)
        is "tp $n: 12 blocks, recompute $mode" "$(less "$large" "$small")" "12 * $kept" 0.11
        case $mode in
        none) kept="4 * R / $n * (16 * C + 4 + h)" ;;
        selective) kept="4 * R / $n * (10 * C + 4 + h)" ;;
        full) kept="4 * R / $n * C" ;;
        esac
        small=$(of 0 $activations parallel.tp=$n parallel.sequence=true train.recompute=$mode)
        large=$(of 0 $activations parallel.tp=$n parallel.sequence=true train.recompute=$mode model.layers=24)
        is "tp $n: 12 blocks, sequence, recompute $mode" "$(less "$large" "$small")" "12 * $kept" 0.11
    done
done

# Ranks 1 and 2 of 4 have 4 blocks each, and 3 and 2 micro-batches in flight under 1f1b; both have all 8 under gpipe.
block="4 * R * (16 * C + 4 + h)"
pp=(parallel.pp=4)
for column in $params $parameters $gradients $optimizer; do
    [[ $(of 1 "$column" "${pp[@]}") == $(of 2 "$column" "${pp[@]}") ]] || fail "ranks 1 and 2 differ in column $column"
done
is "1f1b: parameters" "$(of 1 $parameters "${pp[@]}")" "4 * 4 * (12 * C * C + 13 * C)"
is "1f1b: a micro-batch less" "$(less "$(of 1 $activations "${pp[@]}")" "$(of 2 $activations "${pp[@]}")")" "4 * $block" 0.11
fewer=$(of 1 $activations "${pp[@]}" parallel.schedule=gpipe train.batch=16)
more=$(of 1 $activations "${pp[@]}" parallel.schedule=gpipe)
is "gpipe: 4 micro-batches more" "$(less "$more" "$fewer")" "4 * 3 * $block" 0.11
[[ $(of 1 $activations "${pp[@]}") == $(of 1 $activations "${pp[@]}" train.batch=64) ]] || fail "1f1b: more micro-batches take more"
is "transfers of the first rank" "$(of 0 $transfers "${pp[@]}")" "2 * 4 * R * C"
is "transfers of a rank in the middle" "$(of 1 $transfers "${pp[@]}")" "4 * 4 * R * C"

# Data ranks divide only the data.
for column in $params $parameters $gradients $optimizer $activations; do
    [[ $(of 0 "$column") == $(of 0 "$column" parallel.dp=4) ]] || fail "data ranks change column $column"
done
is "data" "$(of 0 $data train.batch=1024)" "8 * 1024 * T" 0.2
is "data of 4 ranks" "$(of 0 $data train.batch=1024 parallel.dp=4)" "8 * 1024 * T / 4" 0.2
finish
