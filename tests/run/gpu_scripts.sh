#!/usr/bin/env bash
# Tests tests/gpu.sh and bench/gpu.sh: the most informative checks come first; a check that fails, hangs, is
# missing or is stopped does not affect the others; each row is written to a file at once, and one table is
# printed at the end. Without a GPU, or with one that cannot be used, they say so. The device is the guarded
# one; substitutes replace programs that must fail.
# usage: gpu_scripts.sh TRIREME SCRATCH_DIR
# shellcheck disable=SC2016 # the stand-ins expand what is in single quotes
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(dirname "$trireme")
mkdir "$scratch/bin" "$scratch/results"
export TRIREME_RESULTS=$scratch/results PATH=$scratch/bin:$PATH TRIREME_TEST_GPUS=0

# stand_in NAME: makes a build folder of links to this one, in which the test replaces programs.
stand_in() {
    mkdir -p "$scratch/$1/tests" "$scratch/$1/bench"
    ln -s "$trireme" "$scratch/$1/trireme"
    for name in test_device comm ckpt_compare ckpt_relayout gpu_nccl test_op_cuda; do
        [[ ! -e $build/tests/$name ]] || ln -s "$build/tests/$name" "$scratch/$1/tests/$name"
    done
}
program() { # PATH LINE...: writes a program of these lines
    rm -f "$1"
    printf '%s\n' '#!/bin/sh' "${@:2}" >"$1"
    chmod +x "$1"
}
# scripts CODE NAME BUILD SCRIPT ARGUMENT...: the script must end with that code; its output is in NAME.out
# and .err.
scripts() {
    local code=0
    # From the folder that holds it, as the documents run a bundle.
    (cd "$here/.." && TRIREME_BUILD=$scratch/$3 exec timeout 120 bash "$(basename "$here")/$4" "${@:5}") >"$scratch/$2.out" 2>"$scratch/$2.err" || code=$?
    [[ $code == "$1" ]] || fail "$2 ended with $code, not $1: $(tail -n 5 "$scratch/$2.out" "$scratch/$2.err")"
}
row() { # NAME FILE PATTERN...: each must match a line of that file
    for pattern in "${@:3}"; do grep -Eq -- "$pattern" "$scratch/$2" || fail "$1: no '$pattern' in $2: $(<"$scratch/$2")"; done
}

# All checks pass.
stand_in well
TRIREME_TEST_DEVICE=guarded scripts 0 well well tests/gpu.sh device comm fits across sample
row well well.out '^\| device +\| ok ' '^\| comm +\| ok ' '^\| fits +\| ok ' '^\| across +\| ok ' '^\| sample +\| ok ' \
    '^trireme .* UTC, commit .*, device guarded' '^5 checks, 0 failed$'
diff "$scratch/well.out" "$scratch/results/tests-device.md" >"$scratch/diff" || fail "the file and the table differ: $(<"$scratch/diff")"
# The order.
TRIREME_TEST_DEVICE=guarded scripts 64 unknown well tests/gpu.sh nonsense
row unknown unknown.err "unknown check 'nonsense'; the checks are: doctor models operators device fits sample across curves_bf16 "
# One check hangs, one fails, one is not possible here: the others run.
stand_in ill
program "$scratch/ill/tests/comm" 'sleep 100'
program "$scratch/ill/tests/test_device" 'echo "a copy is wrong"; exit 1'
export TRIREME_TEST_LIMIT=20 # the checks that do not hang take a second, also next to other tests
TRIREME_TEST_DEVICE=guarded scripts 1 ill ill tests/gpu.sh comm device memcheck fits
row ill ill.out '^\| comm +\| TIMEOUT +\| +([2-9][0-9]|1[0-9]{2}) ' '^\| device +\| FAILED ' '^\| fits +\| ok ' '^4 checks, 2 failed$' \
    '^device, the end of its output:$' '^a copy is wrong$'
command -v compute-sanitizer >/dev/null || row ill ill.out '^\| memcheck +\| skipped .*(is not installed|there is no test_op_cuda)'
grep -q "$here/" "$scratch/results/tests-comm.md" && fail "a path of this machine in the file"
# A stopped script prints the table too; the file has the first row already.
TRIREME_BUILD=$scratch/ill TRIREME_TEST_DEVICE=guarded TRIREME_TEST_LIMIT=90 bash "$here/tests/gpu.sh" doctor comm fits >"$scratch/stopped.out" 2>&1 &
job=$!
until_true 60 test -e "$scratch/ill/gpu-tests-doctor/comm.log" || fail "stopped: comm has not begun"
until_true 60 grep -Eq '^\| doctor +\| ok ' "$scratch/results/tests-doctor.md" || fail "stopped: no row of doctor before the end"
grep -Eq '^\| comm +\| waiting ' "$scratch/results/tests-doctor.md" || fail "stopped: no row of a check that has not ended"
kill -TERM $job
wait $job && fail "a script that was stopped ended well"
row stopped stopped.out '^\| doctor +\| ok .* cuda ' '^\| comm +\| stopped ' 'the script was stopped$'
# The sanitizer checks accesses, not the return values of library calls.
if [[ -e $build/tests/test_op_cuda ]]; then
    program "$scratch/bin/compute-sanitizer" 'echo "asked: $*"'
    TRIREME_TEST_DEVICE=guarded scripts 0 judged well tests/gpu.sh memcheck
    row judged judged.out '^\| memcheck +\| ok .*asked: --tool memcheck .*--report-api-errors no '
    # Races are looked for in other operators before products.
    program "$scratch/bin/compute-sanitizer" 'echo "$TRIREME_TEST_ONLY" >>'"$scratch"'/raced; echo "asked: $*"'
    TRIREME_TEST_DEVICE=guarded scripts 0 raced well tests/gpu.sh racecheck
    row raced raced.out '^\| racecheck +\| ok .*asked: --tool racecheck '
    row raced raced '^test_ways: \* bf16$' '^test_table: attention\* bf16$' '^test_table: matmul\* bf16$'
    [[ $(tail -n 1 "$scratch/raced") == *matmul* ]] || fail "the last cases of racecheck are of: $(tail -n 1 "$scratch/raced")"
    program "$scratch/bin/compute-sanitizer" 'echo "Error: Device not supported"; exit 1'
    TRIREME_TEST_DEVICE=guarded scripts 77 virtual well tests/gpu.sh memcheck
    row virtual virtual.out '^\| memcheck +\| skipped .*Device not supported'
    program "$scratch/bin/compute-sanitizer" 'echo "Invalid write"; exit 9'
    TRIREME_TEST_DEVICE=guarded scripts 1 invalid well tests/gpu.sh memcheck
    row invalid invalid.out '^\| memcheck +\| FAILED .*Invalid write'
    rm "$scratch/bin/compute-sanitizer"
fi
# NCCL between GPUs needs two.
if [[ -e $build/tests/gpu_nccl ]]; then
    TRIREME_TEST_DEVICE=guarded scripts 77 lone well tests/gpu.sh nccl_comm
    row lone lone.out 'skipped: NCCL between GPUs needs two of them, and there is 0'
fi

# No GPU, one that nvidia-smi lists and that cannot be opened, one that does not answer.
if ! nvidia-smi -L >/dev/null 2>&1; then
    for script in tests/gpu.sh bench/gpu.sh; do
        program "$scratch/well/bench/bench_op" 'exit 1'
        program "$scratch/well/bench/bench_train" 'exit 1'
        program "$scratch/well/bench/bench_updates" 'exit 1'
        rm -f "$scratch/bin/nvidia-smi"
        scripts 77 none well $script
        row none none.out '^skipped: '
        program "$scratch/bin/nvidia-smi" 'echo "A GPU, 580.1"'
        scripts 1 unusable well $script
        row unusable unusable.err 'gpu.sh: nvidia-smi lists a GPU, but: skipped: '
        rm "$scratch/bin/nvidia-smi"
    done
fi

# Benchmarks: a failure is a row, and the next one is measured; a stopped script prints the table, of which
# the file has the rows already.
stand_in bench
program "$scratch/bench/bench/bench_op" 'echo "124M, bf16; roofs 800000.0 GFLOP/s, 3000.0 GB/s"; exit 3'
program "$scratch/bench/bench/bench_train" 'echo "best 1.0 ms; 1000 tok/s 400000.0 GFLOP/s (best)"'
program "$scratch/bench/bench/bench_updates" 'echo "name=adamw precision=fp32    1879.0 MB     0.44 ms 4246.3 GB/s  1.02 of 4176.0"' \
    'echo "name=sgd momentum=0 precision=fp32   805.3 MB     0.19 ms 4312.8 GB/s  1.03 of 4173.3"; exit 3'
program "$scratch/bin/no-python" 'exit 1'
export PYTHON=no-python TRIREME_BENCH_DEVICE=cpu
scripts 1 failing bench bench/gpu.sh
row failing failing.out '^\| roof: product in BF16 .* 800.0 TFLOP/s ' '^\| operators .* FAILED: it ended with 3' \
    '^\| profile of a step.* `trace` \| .*F [0-9.]+ ms.* profile.txt ' '^\| products .* left out: ' \
    '^\| steps of adamw precision=fp32 \| `bench_updates 1 .. cpu` \| 1.02 of a copy at 4176.0 GB/s ' '^\| updates .* FAILED: it ended with 3' \
    '^\| GPT-2 small.* 1000 tok/s, 400.0 model TFLOP/s: 0.500 of the roof' '^\| training over NCCL .* needs two GPUs, and there is 0' \
    'not measured: no-python has no PyTorch' ' UTC, commit .*, device cpu'
diff <(sed -n '/UTC, commit/,$p' "$scratch/failing.out") "$scratch/results/bench.md" >"$scratch/diff" ||
    fail "the file and the table differ: $(<"$scratch/diff")"
program "$scratch/bench/bench/bench_op" 'exit 3'
program "$scratch/bench/bench/bench_train" "touch '$scratch/begun'; sleep 100"
TRIREME_BUILD=$scratch/bench bash "$here/bench/gpu.sh" operators batches >"$scratch/halted.out" 2>&1 &
job=$!
until_true 60 test -e "$scratch/begun" || fail "halted: no training step has begun"
row written results/bench.md '^\| operators .* FAILED: it ended with 3'
kill -TERM $job
wait $job && fail "benchmarks that were stopped ended well"
row halted halted.out '^\| operators .* FAILED: it ended with 3' '^\| the script was stopped '
scripts 64 step bench bench/gpu.sh nonsense
row step step.err "unknown step 'nonsense'; the steps are: doctor operators profile products updates batches training ranks pytorch"

# The order on GPUs, with a profiler that fails and one that does not; a model that does not fit is not a
# failure.
stand_in gpus
order=$scratch/order
first_rank="[ \"\${OMPI_COMM_WORLD_RANK:-0}\" = 0 ] || exit 0" # the other ranks print nothing
noted() { program "$1" "$first_rank" "echo \"$2\" >>'$order'" "${@:3}"; } # PATH WORDS LINE...
rm "$scratch/gpus/trireme"
noted "$scratch/gpus/trireme" 'trireme $1' 'echo "ok    cuda     CUDA driver 580.1, 2 devices"'
noted "$scratch/gpus/bench/bench_op" 'operators' 'echo "124M, bf16; roofs 800000.0 GFLOP/s, 3000.0 GB/s"'
noted "$scratch/gpus/bench/bench_matmul" 'products' 'echo "124M, products of a block: first plans 2.0 us"'
noted "$scratch/gpus/bench/bench_train" 'train $*' 'case "$*" in *"micro_batch=64 "*) echo "no memory"; exit 76 ;; esac' \
    'echo "best 1.0 ms; 1000 tok/s 400000.0 GFLOP/s (best)"'
noted "$scratch/gpus/bench/bench_updates" 'updates'
noted "$scratch/bin/nsys" 'nsys $1' 'exit 5'
noted "$scratch/bin/ncu" 'ncu'
TRIREME_TEST_GPUS=2 TRIREME_BENCH_DEVICE=guarded scripts 0 gpus gpus bench/gpu.sh
rm "$scratch/bin/nsys" "$scratch/bin/ncu"
row gpus gpus.out '^\| profile of a step.* `nsys` \| FAILED: it ended with 5' '^\| profile of a step.* `ncu` \| all in profile.txt' \
    '^\| products of a block, 124M .* first plans 2.0 us ' '^\| GPT-2 124M.* 4 micro-batches of 64 .* does not fit: no memory' \
    '^\| GPT-2 124M.* 16 micro-batches of 32 .* 0.500 of the roof' '^\| GPT-2 124M.* 32, deterministic ' \
    '^\| GPT-2 124M.* dp=2 .* 0.250 of the roof'
came=$(sed 's/^train .* layers=\([0-9]*\) .* batch=\([0-9]*\) .*/train \1 \2/; s/^train layers=\([0-9]*\) .* batch=\([0-9]*\) .*/train \1 \2/' "$order" | uniq | tr '\n' ',')
want='trireme doctor,operators,train 12 32,nsys profile,ncu,products,updates,train 12 128,train 12 64,train 12 256,train 12 32,train 12 16,train 48 32,'
[[ $came == "$want"*"train 12 512,train 48 512,train 12 512," ]] || fail "another order: $came"

# An operator without its library.
program "$scratch/gpus/bench/bench_train" 'echo "slow     1 operators not run whole by cuBLASLt"; echo "best 1.0 ms; 1000 tok/s 4.0 GFLOP/s"'
TRIREME_BENCH_DEVICE=guarded scripts 1 slow gpus bench/gpu.sh batches
row slow slow.out '^\| GPT-2 124M.* 1000 tok/s, .*; FAILED: 1 operators not run whole by cuBLASLt '

rm "$scratch/bench/bench/bench_op"
scripts 66 missing bench bench/gpu.sh
row missing missing.err 'there is no .*bench_op: build the benchmarks first'
finish
