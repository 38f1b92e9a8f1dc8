#!/usr/bin/env bash
# Steps on tokenized files against steps on random tokens that are in memory, in turn in one process: what reading
# costs a step.
#   bench/data.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

build trireme bench_train
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for ((i = 0; i < 40; i++)); do cat README.md docs/*.md; done >"$work/text.txt"
"$release/trireme" data train-bpe "$work/text.txt" --vocab 4096 -o "$work/tokenizer" >/dev/null
"$release/trireme" data tokenize "$work/text.txt" --tokenizer "$work/tokenizer" -o "$work/tokens" >/dev/null
before=$(load)
mpi 1 "$release/bench/bench_train" vocab=4096 batch=4 micro_batch=4 data="$work/tokens" format=megatron pairs=20 >"$work/out"
row "reading ahead: step on files / on random tokens, medians of 20 alternating pairs of blocks, load $before before" \
    bench/data.sh "$(sed -n 's/.*tokens \(.*\) ms, files \(.*\) ms: \(.*\) times/\2 ms of \1 ms: \3/p' "$work/out")" "1.02"
