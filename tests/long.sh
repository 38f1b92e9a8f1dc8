#!/usr/bin/env bash
# Exhaustive runs: the suite with all cases, and the tests with the sanitizers, of which tests/run.sh draws a part, a
# build by clang, every random test and every trial of tests/trials.sh with many seeds, a save that is killed at every file-system call, jobs that race for
# one directory, and the equivalence suite on memory that the host cannot access, with staged messages and over
# NCCL's calls. A stopped script continues when it is started again: build/long/done lists what has passed.
#
# usage: tests/long.sh [FIRST_SEED [SEEDS]]     default: 1 1000
#        tests/long.sh --sample TEXT            some random tests and a trial of every other kind, with seeds from
#                                               the text (CI: the commit)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset TRIREME_DRAW

tests=build/release/tests
work=build/long
random=(test_op_cpu test_op_ref test_op_gradients test_comm_local test_stream test_check test_lower test_arena
  test_plan test_runner test_cut test_ckpt test_ckpt_damage test_csv test_mutations test_program_mutations test_mixture test_data_formats test_textfile test_text_cut test_tokenizer_back test_tokenizer_damage)
trials=(lost restart stop race damage hostile families options chain advice)
mkdir -p "$work"
touch "$work/done"

# once NAME COMMAND...: runs it unless it has passed before, and keeps the log of a failure.
once() {
  local name=$1
  shift
  grep -qxF "$name" "$work/done" && return 0
  if "$@" </dev/null >"$work/$name.log" 2>&1; then
    echo "$name" >>"$work/done"
    rm "$work/$name.log"
  else
    echo "long: FAILED $name: see $work/$name.log, which ends with:"
    tail -n 20 "$work/$name.log" | sed 's/^/    /'
    failed=1
  fi
}

seeded() { # TEST SEED
  once "$1-$2" env TRIREME_SEED="$2" timeout 600 "$tests/$1"
}

trial() { # KIND SEED
  once "trial-$1-$2" bash tests/trials.sh "$1" "$2"
}

failed=0
[[ -x $tests/test_ckpt ]] || { echo "long: build first: tests/run.sh"; exit 69; }
if [[ ${1:-} == --sample ]]; then
  text=${2:?usage: tests/long.sh --sample TEXT}
  seed=$(printf %s "$text" | cksum | cut -d' ' -f1)
  for i in 0 1 2; do
    seeded "${random[$(((seed / (i + 1) + i) % ${#random[@]}))]}" $((seed + i))
  done
  for ((i = seed % 2; i < ${#trials[@]}; i += 2)); do
    echo "long: tests/trials.sh ${trials[i]} $seed"
    trial "${trials[i]}" "$seed"
  done
  exit $failed
fi
first=${1:-1} count=${2:-1000}
once suite ctest --test-dir build/release --output-on-failure
# Every layout and placement, staged and over NCCL's calls, which the stand-in for its library checks.
for transport in mpi nccl; do
  [[ $transport == mpi || -d $tests/nccl_mock ]] || continue
  checked=(env LD_LIBRARY_PATH="$PWD/$tests/nccl_mock:${LD_LIBRARY_PATH:-}" TRIREME_TEST_DEVICE=guarded TRIREME_TEST_TRANSPORT=$transport)
  for precision in fp32 bf16; do
    once $transport-equivalence-$precision "${checked[@]}" bash tests/run/equivalence.sh build/release/trireme "$tests/$transport-equivalence" $precision
  done
  once $transport-placements "${checked[@]}" bash tests/run/placements.sh build/release/trireme "$tests/$transport-placements"
done
once races env TRIREME_RACES=200 bash tests/run/races.sh build/release/trireme "$tests/run-races-long"
# What tests/run.sh draws or leaves to this script: all unit tests with the address sanitizer, then damaged files of
# weights, tokenizers, tokens and questions; and everything built by clang.
fuzzers=(test_weights test_tokenizer_damage test_tokenizer_back test_data_formats test_textfile test_choices)
build_by() { cmake --preset "$1" -DBUILD_TESTING=ON -DTRIREME_WERROR=ON && cmake --build "build/$1" --target "${@:2}"; }
once build-clang build_by clang all benches
if build_by asan unit_tests >"$work/build-asan.log" 2>&1; then
  once unit-asan ctest --test-dir build/asan -L '^unit$' --output-on-failure
  for name in "${fuzzers[@]}"; do once "fuzz-$name" env TRIREME_ROUNDS=100000 "build/asan/tests/$name"; done
else
  echo "long: FAILED: the build with the address sanitizer failed: see $work/build-asan.log"
  failed=1
fi
if build_by tsan tsan_tests >"$work/build-tsan.log" 2>&1; then
  alone=()
  ! setarch -R true 2>/dev/null || alone=(setarch -R)
  once tsan "${alone[@]}" ctest --test-dir build/tsan -L '^tsan$' --output-on-failure
else
  echo "long: FAILED: the build with the thread sanitizer failed: see $work/build-tsan.log"
  failed=1
fi
once kill-everywhere env TRIREME_LONG=1 "$tests/test_ckpt_kill"
for ((seed = first; seed < first + count; seed++)); do
  for name in "${random[@]}"; do seeded "$name" "$seed"; done
  for kind in "${trials[@]}"; do trial "$kind" "$seed"; done
  echo "long: seed $seed done"
done
exit $failed
