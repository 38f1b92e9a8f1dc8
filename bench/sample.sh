#!/usr/bin/env bash
# Decoding one text with a model of GPT-2's 124M shape (random weights) on one core: milliseconds a token against
# the bound, bytes of weights a token over the rate at which the core reads memory, and against transformers, in turn.
#   PYTHON=DIR/bin/python bench/sample.sh [rounds]      (without PYTHON: only the bound)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-3} short=8 long=136
build trireme bench_read
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trireme=$PWD/$release/trireme
cat >"$work/model.yaml" <<Y
model: {preset: gpt2-124m, context: 256}
data: {path: $PWD/README.md}
train: {steps: 1, batch: 1, micro_batch: 1, threads: 1}
log: {dir: $work/run}
Y
"$trireme" train "$work/model.yaml" >/dev/null
"$trireme" ckpt export "$work/run" "$work/folder" >/dev/null
milliseconds() { # of a text with that many tokens, in that precision
    local begin=$EPOCHREALTIME
    "$trireme" sample "$work/run" -p "The " -n "$2" --temperature 0 train.precision="$1" train.threads=1 >/dev/null
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print (b - a) * 1e3 }'
}
for ((round = 1; round <= rounds; round++)); do
    "$release/bench/bench_read" | sed 's/read \([0-9.]*\).*/\1/' >>"$work/read"
    for precision in fp32 bf16; do
        a=$(milliseconds $precision $short) b=$(milliseconds $precision $long)
        awk -v a="$a" -v b="$b" -v n=$((long - short)) 'BEGIN { print (b - a) / n }' >>"$work/ours.$precision"
        [[ -z ${PYTHON:-} ]] || "$PYTHON" bench/torch_sample.py "$work/folder" $precision $short $long \
            2>>"$work/err" | sed 's/ ms.*//' >>"$work/theirs.$precision"
    done
done
rate=$(most <"$work/read")
for precision in fp32 bf16; do
    ours=$(median <"$work/ours.$precision")
    # Every weight but the table of positions: 124.44 M - 0.79 M.
    bound=$(awk -v r="$rate" -v s=$([[ $precision == fp32 ]] && echo 4 || echo 2) 'BEGIN { print 123.65e6 * s / r * 1e-6 }')
    theirs=
    [[ ! -s $work/theirs.$precision ]] || theirs=$(median <"$work/theirs.$precision")
    row "decoding, 124M, $precision, one core, load $(load)" "bench/sample.sh $rounds" \
        "$(awk -v o="$ours" -v b="$bound" -v r="$rate" -v t="$theirs" 'BEGIN {
            printf "%.1f ms a token; bound %.1f ms (%.1f GB/s): %.2f of it", o, b, r, b / o
            if (t) printf "; transformers %.1f ms: %.2f times as fast", t, t / o }')" "0.6, > 1"
done
