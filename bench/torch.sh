#!/usr/bin/env bash
# The training speed of one rank with one thread as a share of the roof (a product of 1024^3, see README.md), and against
# PyTorch on the same shapes, eager and compiled. Each round measures the roof, ours, the roof and the modes of PyTorch,
# one after another: a share is that of the mean of the two roofs around it. The medians of the rounds count.
#   PYTHON=DIR/bin/python bench/torch.sh [rounds [shape]]  (without PYTHON: only the roof; shape: one of those at the end)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-3} only=${2:-}
build bench_train bench_op
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rate_of() { sed -n 's|.* \([0-9.]*\) GFLOP/s (best).*|\1|p' "$1" | tail -n 1; }
tokens_of() { sed -n 's|.* \([0-9]*\) tok/s.*|\1|p' "$1" | median; }
# quotients A B: of the lines of two files, one a line.
quotients() { paste "$1" "$2" | awk '{ printf "%.3f\n", $1 / $2 }'; }
# middle FILE: the median with two digits behind the point.
middle() { median <"$1" | awk '{ printf "%.2f", $1 }'; }

roof() {
    "$release/bench/bench_op" 1 none >"$work/roofs" # times no operator, only the roofs
    sed -n "s|.*, ${1/fp/f}; roofs \([0-9.]*\) .*|\1|p" "$work/roofs" | head -n 1
}

# round PEER PRECISION WORD...: ours between two roofs, and theirs, for bench_train's words.
round() {
    local peer=$1 precision=$2 before after word words=() mode modes
    shift 2
    before=$(roof "$precision")
    "$release/bench/bench_train" "$@" precision="$precision" | tee -a "$work/ours"
    rate_of "$work/ours" >>"$work/ours.rates"
    after=$(roof "$precision")
    echo "roof before $before, after $after"
    awk -v a="$before" -v b="$after" 'BEGIN { print (a + b) / 2 }' >>"$work/roof.rates"
    [[ $peer == peer && -n ${PYTHON:-} ]] || return 0
    for word in "$@"; do words+=("--${word%%=*}" "${word#*=}"); done
    modes=("$precision" "$precision --compile")
    [[ $precision == fp32 ]] || modes+=(autocast "autocast --compile")
    for mode in "${modes[@]}"; do
        # shellcheck disable=SC2086 # a mode is one or two words
        "$PYTHON" bench/torch_gpt.py "${words[@]}" --mode $mode | tee -a "$work/torch.$mode"
        rate_of "$work/torch.$mode" >>"$work/rates.$mode"
    done
}

# shape PEER NAME WORD...: the rows of one shape, with a peer (`peer`) or without (`alone`).
shape() {
    local peer=$1 name=$2 before file mode
    shift 2
    [[ -z $only || $name == "$only" ]] || return 0
    for precision in fp32 bf16; do
        rm -f "$work"/*
        before=$(load)
        for ((i = 0; i < rounds; i++)); do round "$peer" "$precision" "$@" threads=1; done
        quotients "$work/ours.rates" "$work/roof.rates" >"$work/shares"
        row "training step, $name, $precision, load $before" "bench/torch.sh $rounds" \
            "$(tokens_of "$work/ours") tok/s, $(middle "$work/ours.rates") GFLOP/s: $(middle "$work/shares") of the roof $(middle "$work/roof.rates")" "-"
        for file in "$work/rates."*; do
            [[ -s $file ]] || continue
            mode=${file##*rates.}
            quotients "$work/ours.rates" "$file" >"$work/factors"
            row "the same in PyTorch, $mode" "bench/torch.sh $rounds" \
                "$(tokens_of "$work/torch.$mode") tok/s, $(middle "$file") GFLOP/s; trireme: $(middle "$work/factors") times as fast" "-"
        done
    done
}

shape peer "L6 C384 T256 B8" layers=6 width=384 heads=6 context=256 vocab=256 batch=8 steps=5
for size in "256 4" "1024 1"; do
    sizes=("context=${size% *}" "batch=${size#* }" "micro_batch=${size#* }")
    shape peer "GPT-2 124M T${size% *} B${size#* }" layers=12 width=768 heads=12 vocab=50257 "${sizes[@]}" steps=3
    shape alone "Llama-3.2-1B L2 T${size% *} B${size#* }" preset=llama-3.2-1b layers=2 "${sizes[@]}" steps=2
done
