#!/usr/bin/env bash
# Compares the training speed of one rank with one thread with the roof (a product of 1024^3 in oneDNN) and
# with PyTorch on the same shapes, alternately, in several rounds; the best step of each counts.
#   PYTHON=DIR/bin/python bench/torch.sh [rounds]      (without PYTHON: only the roof)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-3}
build bench_train bench_op
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rate_of() { sed -n 's|.* \([0-9.]*\) GFLOP/s (best).*|\1|p' "$1" | most; }
quotient() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }
tokens_of() { sed -n 's|.* \([0-9]*\) tok/s.*|\1|p' "$1" | most; }

# round WORD...: one round of ours and theirs, for bench_train's words.
round() {
    local word peer=()
    for word in "$@"; do peer+=("--${word%%=*}" "${word#*=}"); done
    "$release/bench/bench_op" 1 none >"$work/roof" # times no operator, only the roofs
    for precision in fp32 bf16; do
        sed -n "s|.*, ${precision/fp/f}; roofs \([0-9.]*\) .*|\1|p" "$work/roof" | head -n 1 \
            >>"$work/roof.$precision"
        "$release/bench/bench_train" "$@" precision=$precision >>"$work/ours.$precision"
        [[ -z ${PYTHON:-} ]] || for mode in $precision $([[ $precision == fp32 ]] || echo autocast); do
            "$PYTHON" bench/torch_gpt.py "${peer[@]}" --mode "$mode" >>"$work/torch.$precision.$mode"
        done
    done
}

# shape NAME WORD...: the rows of one shape.
shape() {
    local name=$1 before
    shift
    rm -f "$work"/*
    before=$(load)
    for ((i = 0; i < rounds; i++)); do round "$@" threads=1; done
    for precision in fp32 bf16; do
        ours=$(rate_of "$work/ours.$precision") roof=$(most <"$work/roof.$precision")
        row "training step, $name, $precision, load $before" "bench/torch.sh $rounds" \
            "$(tokens_of "$work/ours.$precision") tok/s, $ours GFLOP/s: $(quotient "$ours" "$roof") of the roof $roof" "-"
        for file in "$work/torch.$precision."*; do
            [[ -s $file ]] || continue
            theirs=$(rate_of "$file")
            row "the same in PyTorch, ${file##*.}" "bench/torch.sh $rounds" \
                "$(tokens_of "$file") tok/s, $theirs GFLOP/s; trireme: $(quotient "$ours" "$theirs") times as fast" "-"
        done
    done
}

shape "L6 C384 T256 B8" layers=6 width=384 heads=6 context=256 vocab=256 batch=8 steps=5
for size in "256 4" "1024 1"; do
    shape "GPT-2 124M T${size% *} B${size#* }" layers=12 width=768 heads=12 vocab=50257 "context=${size% *}" \
        "batch=${size#* }" "micro_batch=${size#* }" steps=2
done
