#!/usr/bin/env bash
# Tests stages placed in loops and in a V, by every generator and by CSV files: all train with the bits of one
# rank.
#
# usage: placements.sh TRIREME SCRATCH     (TRIREME_TEST_DEVICE, _TRANSPORT as for equivalence.sh; ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
samples=$(dirname "$text")/pytorch_csv
cat >"$scratch/base.yaml" <<Y
model: {layers: 8, ${TRIREME_TEST_SIZES:-width: 32, heads: 4, context: 32}, vocab: 700, dropout: 0.1}
data: {path: $text}
train:
  {steps: 6, batch: 8, micro_batch: 1, seed: 7, precision: fp32, threads: 1, deterministic: true, validate_every: 3, validate_batches: 1}
optim: {lr: 0.003, warmup: 2, clip: 1}
log: {every: 20}
device: {name: ${TRIREME_TEST_DEVICE:-cpu}}
parallel: {transport: ${TRIREME_TEST_TRANSPORT:-auto}}
Y

run() { # NAME RANKS KEY=VALUE...
  train 0 "$2" "$1" parallel.pp="${pp:-$2}" "${@:3}"
}

same_bits() { # NAME REFERENCE
  same_curve "$1" "$2"
  [ "$(field "$1" loss | wc -l)" = 6 ] || fail "$1: not 6 steps"
  same_tensors "$1" "$2" 6
}

refused_run() { # CODE TEXT ARGUMENT...
  refused "$1" "$2" train "$scratch/base.yaml" log.dir="$scratch/refused" "${@:3}"
}

# Four stages in a V on two ranks, the first and the last on rank 0 (so the tied embedding is not sent), and
# all four on one rank.
v=$scratch/v.csv
cat >"$v" <<C
0F0,0F1,0F2,3F0,3B0,0F3,3F1,3B1,3F2,3I2,0I0,3W2,0W0,3F3,3B3,0B1,0B2,0B3,0F4,0F5,0F6,0F7,3F4,3F5,3F6,3F7,3B4,3B5,3B6,3B7,0B4,0B5,0B6,0B7
1F0,2F0,1F1,2F1,1F2,2F2,2B0,1B0,1F3,2F3,2B1,1B1,2B2,1B2,2I3,2W3,1B3,1F4,2F4,1F5,2F5,1F6,2F6,1F7,2F7,2B4,1B4,2B5,1B5,2B6,1B6,2B7,1B7
C
tr '\n' ',' <"$v" | sed 's/,$//' >"$scratch/none.csv" # two ranks' rows in one: it cannot run
seq -s, -f '0F%g' 0 7 >"$scratch/one.csv"
sed -i "s/\$/,$(seq -s, -f '1F%g' 0 7),$(seq -s, -f '1B%g' 0 7),$(seq -s, -f '0B%g' 0 7)/" "$scratch/one.csv"
# Three stages; the first and last, which share the tied embedding, are on the last rank and in the
# middle.
turned=$scratch/turned.csv
for stage in 1 2 0; do
  echo "$(seq -s, -f "${stage}F%g" 0 7),$(seq -s, -f "${stage}B%g" 0 7)"
done >"$turned"

for precision in fp32 bf16; do
  run one-$precision 1 train.precision=$precision
  run v-$precision 2 train.precision=$precision parallel.schedule="$v"
  same_bits v-$precision one-$precision
  run turned-$precision 3 train.precision=$precision parallel.schedule="$turned"
  same_bits turned-$precision one-$precision
  run loop-$precision 2 train.precision=$precision parallel.virtual=2 \
    parallel.schedule="$samples/torchtitan_custom_schedule_2rank_4stage_8mb.csv"
  same_bits loop-$precision one-$precision
done
run zb1p 2 parallel.schedule="$samples/zb1p_2rank_2stagep_compute.csv"
same_bits zb1p one-fp32
run zb1p-comms 2 parallel.schedule="$samples/zb1p_2rank_2stagep_comms.csv"
same_bits zb1p-comms one-fp32
for precision in fp32 bf16; do
  run colocated-$precision 1 train.precision=$precision parallel.schedule="$scratch/one.csv"
  same_bits colocated-$precision one-$precision
done
run dualpipev-file 4 parallel.schedule="$samples/dualpipev_4rank_10mb.csv" train.batch=10
run ten 1 train.batch=10
same_bits dualpipev-file ten
# Every generator, with its number of stages a rank; loops with two and, on two ranks, four.
names=$("$trireme" help parallel.schedule | sed -n 's/^ *takes *one of \(.*\), or a path.*/\1/p' | tr -d ,)
[ "$(wc -w <<<"$names")" = 15 ] || fail "schedules: $names"
for precision in fp32 bf16; do
  for name in $names; do
    [[ $name-$precision == auto-fp32 ]] || drawn "$name-$precision" || continue # auto's order runs again below
    run "$name-$precision" 2 train.precision=$precision parallel.schedule="$name"
    same_bits "$name-$precision" one-$precision
  done
done
# two RUN CODE SENTENCE ARGUMENTS... : ARGUMENTS...: one run on two ranks that were given different arguments.
two() {
  local run=$1 code=$2 sentence=$3 ended=0
  shift 3
  local command=("$trireme" train "$scratch/base.yaml" log.dir="$scratch/$run") first=()
  while [ "$1" != : ]; do first+=("$1"); shift; done
  apart "${command[@]}" "${first[@]}" : "${command[@]}" "${@:2}" >"$scratch/$run.out" 2>"$scratch/$run.err" || ended=$?
  [ $ended = "$code" ] && [ "$(cat "$scratch/$run.err")" = "$sentence" ] || fail "$run ended with $ended: $(<"$scratch/$run.err")"
}
# Ranks that were given different orders, keys or options report that instead of waiting for each other.
two orders 78 "trireme: rank 1 has another order of micro-batches, or another choice of train.recompute, than rank 0: give \
every rank the same config, device and threads, and the same file as parallel.schedule" \
  parallel.pp=2 parallel.schedule=zb-h1 : parallel.pp=2 parallel.schedule=1f1b
two keys 78 "trireme: parallel.zero is 1 on rank 1 and 0 on rank 0: give every rank the same config and arguments" \
  parallel.dp=2 : parallel.dp=2 parallel.zero=1
two options 78 "trireme: rank 1 has other options than rank 0: give every rank the same --trace and --debug-nan" \
  parallel.dp=2 --trace 2 : parallel.dp=2
[ ! -e "$scratch/keys" ] && [ ! -e "$scratch/options" ] || fail "a run with different arguments made its directory"
# The same text may have another path, and a machine other cores. Weights, and tokenizers next to
# the data that end documents with other tokens, may not differ.
ln -s "$text" "$scratch/text"
two weights 78 "trireme: data.path gives '$scratch/text' the weight 3 here and 1 on rank 0: give every rank the same weights" \
  parallel.pp=2 data.path="1 $text 1 $text" : parallel.pp=2 data.path="1 $text 3 $scratch/text"
for tokenizer in gpt2 llama3; do
  mkdir "$scratch/$tokenizer"
  cp "$text" "$scratch/$tokenizer/ids.bin"
  cp "$(dirname "$text")/../golden/tokenizers/$tokenizer.json" "$scratch/$tokenizer/ids.tokenizer.json"
done
packed=(parallel.pp=2 model.vocab=65536 data.format=u16 data.documents=packed)
two documents 78 "trireme: the data are read as u16, packed, document_end 1 here and in another way on rank 0: give every host \
the same tokenizer, or set data.document_end" \
  "${packed[@]}" data.path="$scratch/gpt2/ids.bin" : "${packed[@]}" data.path="$scratch/llama3/ids.bin"
two machines 0 "" parallel.pp=2 : parallel.pp=2 data.path="$scratch/text" train.threads=2
# The order that auto made for the model, from the run directory.
run auto-file 2 parallel.schedule="$scratch/auto-fp32/schedule.csv"
same_bits auto-file one-fp32
run interleaved-2 4 parallel.schedule=interleaved parallel.virtual=2
same_bits interleaved-2 one-fp32
run bfs-4 2 parallel.schedule=bfs parallel.virtual=4
same_bits bfs-4 one-fp32
pp=2 run v-dp-tp 8 parallel.dp=2 parallel.tp=2 train.batch=16 parallel.schedule="$v"
run one-dp-tp 4 parallel.pp=1 parallel.dp=2 parallel.tp=2 train.batch=16
same_bits v-dp-tp one-dp-tp
grep -q "pp 2 x tp 1 x dp 1, $v, 8 micro-batches; stages of layers .* | .* | .* | " "$scratch/v-fp32.out" ||
  fail "the plan does not name the stages"
grep -qE 'stages of layers .* \| [0-9]+ \| ' "$scratch/bfs-4.out" || fail "a stage of one layer is not named by its number"

refused_run 66 "gone.csv' cannot be opened" parallel.schedule=gone.csv
refused_run 78 "has 2 ranks (rows), but the run has 1: set parallel.pp=2" parallel.schedule="$v"
refused_run 78 "has 8 micro-batches, but a step has 16" parallel.schedule="$scratch/one.csv" train.batch=16
refused_run 78 "has 2 stages on 1 ranks, but parallel.virtual is 3" parallel.schedule="$scratch/one.csv" parallel.virtual=3
refused_run 78 "has 2 stages, and model.layers is 1" parallel.schedule="$scratch/one.csv" model.layers=1
refused_run 78 "set parallel.virtual (or -v) to 2" parallel.schedule=zbv parallel.virtual=1
refused_run 78 "cannot run to its end" parallel.schedule="$scratch/none.csv"
echo "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7" >"$scratch/forward.csv"
refused_run 78 "has no backward" parallel.schedule="$scratch/forward.csv"
printf '0F0,0B0\n0X1\n' >"$scratch/bad.csv"
refused_run 78 "bad.csv:2:2: '0X1' is not an action" parallel.schedule="$scratch/bad.csv"
finish
