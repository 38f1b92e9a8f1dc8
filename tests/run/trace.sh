#!/usr/bin/env bash
# Tests train --trace: planned and measured times of all ranks in one file that trace viewers can read.
# usage: trace.sh TRIREME SCRATCH_DIR TRACE_CHECK
set -euo pipefail
trireme=$1 scratch=$2
check=$(realpath "$3")
source "$(dirname "$0")/common.sh"
cd "$scratch"

cat >x.yaml <<END
data.path: $text
model: {layers: 4, width: 32, heads: 4, context: 32}
train: {steps: 4, batch: 8, micro_batch: 1, threads: 1}
checkpoint.every: 0
END

# Two steps of 8 micro-batches that cross one boundary twice, planned and measured.
timeout 120 "$trireme" run -n 2 train x.yaml --trace 2 parallel.pp=2 log.dir=pp >log 2>&1 || fail "$(<log)"
"$check" pp/trace.json 4 64 || fail "a pipeline's trace"
grep -q '"name":"rank 1: planned"' pp/trace.json || fail "rank 1 has no plan"
grep -q '"name":"rank 1: measured"' pp/trace.json || fail "rank 1 has no times"
# Two data ranks of two stages each: 4 micro-batches on each.
timeout 120 "$trireme" run -n 4 train x.yaml --trace 1 parallel.pp=2 parallel.dp=2 log.dir=dp >log 2>&1 || fail "$(<log)"
"$check" dp/trace.json 8 32 || fail "the trace of a mesh"
# On a device where work is not done when a call returns, times are those of the stream.
timeout 120 "$trireme" run -n 2 train x.yaml --trace 2 parallel.pp=2 log.dir=guarded device.name=guarded >log 2>&1 || fail "$(<log)"
"$check" guarded/trace.json 4 64 || fail "the trace of a stream"
# More steps than the run has: all of them but the first. Only one step: no trace, and a warning.
"$trireme" train x.yaml --trace 99 log.dir=long >log 2>&1 || fail "$(<log)"
"$check" long/trace.json 2 0 || fail "a trace cut short"
! grep 'no trace' log || fail "a trace that was written is said to be missing"
"$trireme" train x.yaml --trace 1 train.steps=1 log.dir=short >log 2>err || fail "$(<err)"
grep -q 'warning: no trace: it would begin at step 2' err || fail "no warning: $(<err)"
[[ ! -e short/trace.json ]] || fail "a trace of nothing"
finish
