#!/usr/bin/env bash
# Runs the suite: set-up, release build and its tests, of which a few are drawn; then the tests of streams and threads with
# ThreadSanitizer, the unit tests with AddressSanitizer and UndefinedBehaviorSanitizer, and the warnings of clang about
# every source. Waiting ranks poll, so two steps with tests do not run at the same time; the sanitizers are built next
# to one. Logs stay in build/log, with the names of failed steps in build/log/failed. The exit code is not 0 when a step
# fails.
# shellcheck disable=SC2317 # functions are called through step
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

logs=build/log
mkdir -p "$logs"
: >"$logs/failed"

# Jobs in the background ignore Ctrl-C, so they are ended with the script. Those that `meanwhile` starts have a process
# group. A ticker that is killed as soon as it was forked still has these traps: it must leave the script's jobs alone.
leave() {
    local job
    ((BASHPID == $$)) || return 0
    for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || kill "$job" 2>/dev/null || true; done
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# progress LOG: prints how far the step with this log is: the tests that have ended and those that run, or the
# log's last line.
progress() {
    awk '
        $1 == "Start" { running[$3] = 1 }
        $2 == "Test" && $1 ~ "^[0-9]+/[0-9]+$" {
            ended = $1
            sub(/.*#[0-9]+: /, "")
            delete running[$1]
        }
        NF { last = substr($0, 1, 90) }
        END {
            for (name in running) names = names " " name
            if (names != "") last = (ended ? ended : "no") " tests have ended; running:" names
            print last
        }' "$1"
}

# tick WHAT LOG: prints every half minute how far the step is.
tick() {
    local start=$SECONDS pipe
    exec {pipe}<> <(:) # nothing is written to it; unlike sleep, read leaves no process when this one is killed
    while read -r -t 30 -u "$pipe" || kill -0 $$ 2>/dev/null; do
        echo "$1: $((SECONDS - start)) s: $(progress "$2")"
    done
}

# faults LOG: prints why a step failed: the output of each of ctest's failed tests without the lines of checks that passed,
# at most 60 lines of one, or the end of the log of another command.
faults() {
    awk '
        /^ *[0-9]+\/[0-9]+ Test +#/ { shown = /\*\*\*/ && !/\*\*\*Skipped/ ? 60 : 0; ctest = 1 }
        /^ *Start +[0-9]+: / { shown = 0 }
        /^ok: |^\[ +(RUN|OK) +\] / { next }
        shown > 0 { print; shown-- }
        { last[NR % 60] = $0 }
        END { if (!ctest) for (i = NR - 59; i <= NR; i++) if (i > 0) print last[i % 60] }' "$1"
}

# step NAME WHAT COMMAND...: runs the command with its output in build/log/NAME.log, and prints every half
# minute how far it is, and the result at the end, with the faults of a failure.
step() {
    local name=$1 what=$2 start=$SECONDS ticker code=0
    shift 2
    : >"$logs/$name.log"
    tick "$what" "$logs/$name.log" &
    ticker=$!
    "$@" </dev/null >"$logs/$name.log" 2>&1 || code=$?
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" || true
    if ((code == 0)); then
        echo "$what: ok ($((SECONDS - start)) s)"
        return 0
    fi
    echo "$name" >>"$logs/failed"
    echo "$what: FAILED after $((SECONDS - start)) s; from $logs/$name.log:"
    faults "$logs/$name.log" | sed 's/^/    /'
    return 1
}

# build PRESET [-DVARIABLE=VALUE] TARGETS...: configures and builds one preset.
build() {
    local preset=$1 set=()
    shift
    [[ $1 != -D* ]] || { set=("$1") && shift; }
    cmake --preset "$preset" -DBUILD_TESTING=ON -DTRIREME_WERROR=ON "${set[@]}" && cmake --build "build/$preset" --target "$@"
}

# build_meanwhile PRESET TARGETS...: builds with what processor time the other step leaves.
build_meanwhile() {
    renice -n 10 "$BASHPID" >/dev/null || true
    build "$@"
}

# meanwhile COMMAND...: runs the command in the background, as a process group; its number is $!.
meanwhile() {
    set -m
    "$@" &
    set +m
}

# built NAME JOB: waits for a build in the background. One that ended without a word has failed, too.
built() {
    wait "$2" && return
    grep -qx "$1" "$logs/failed" || echo "$1" >>"$logs/failed"
    return 1
}

# check_clang: lets clang warn about every source; tests/long.sh also generates and links its code. This build is without
# CUDA: where the headers of GPUs are installed, others that refuse stand before them.
check_clang() {
    local header
    cmake --preset clang -DBUILD_TESTING=ON -DTRIREME_WERROR=ON || return 1
    mkdir -p build/clang/no_gpu
    for header in nccl cudnn cublasLt cuda_runtime_api; do
        echo "#error a build without CUDA has no $header.h" >"build/clang/no_gpu/$header.h"
    done
    ninja -C build/clang -t commands all benches | awk '/ -c / { gsub(/ -M[DTF]( [^ ]+\.(o|d))?/, ""); print $0 " -Ino_gpu -fsyntax-only" }' >build/clang/checks
    echo "$(wc -l <build/clang/checks) sources"
    [[ -s build/clang/checks ]] && (cd build/clang && xargs -d '\n' -n 1 -P "$(nproc)" sh -c <checks)
}

# suite PRESET TESTS CTEST_OPTIONS...: runs TESTS tests at a time, fewer where a test declares more processors.
suite() {
    local preset=$1 tests=$2
    shift 2
    ctest --test-dir "build/$preset" -j"$tests" --output-on-failure --no-tests=error "$@"
}

# one_of WORD...: prints one of the words, by the commit.
one_of() {
    local words=("$@")
    echo "${words[$((16#$(printf %s "$commit $*" | sha256sum | cut -c1-7) % $#))]}"
}

# Prints an expression of the tests that are left out: of long tests that do the same in several precisions or forms one
# runs, by the commit. tests/long.sh runs all.
left_out() {
    local kinds kind words word drawn names=()
    kinds=("run.equivalence.fp32 run.equivalence.bf16 run.equivalence.fp16" "run.resume.fp32 run.resume.bf16"
        "run.zero.fp32 run.zero.bf16" "run.moments.int8 run.moments.bf16 run.master" "run.stopping run.signals"
        "run.sequence run.placements" "unit.test_op_cpu unit.test_op_cpu.avx2")
    for kind in "${kinds[@]}"; do
        read -ra words <<<"$kind"
        drawn=$(one_of "${words[@]}")
        for word in "${words[@]}"; do [[ $word == "$drawn" ]] || names+=("${word//./\\.}"); done
    done
    echo "^($(paste -sd'|' <(printf '%s\n' "${names[@]}")))\$"
}

# With the sanitizers one of each kind of tests that take long runs, and about a quarter of the others, by the commit;
# tests/long.sh runs all. Words with a comma run together.
draw_asan() {
    local kinds kind words word
    kinds=("arena auto generators mutations program_mutations search search_plans" "zero offload directions"
        "ckpt ckpt_kill ckpt_damage"
        "op_cpu op_cpu.avx2 op_rounded op_rounded.avx2 op_rounded_emulated op_cuda_emulated,device_emulated"
        "text_cut decoder tokenize tokenizer_golden" "layer_stage families" "ownership tensor_sums" "tuning model_order"
        "loss_scale gradients")
    asan_tests=()
    for kind in "${kinds[@]}"; do
        read -ra words <<<"$kind"
        asan_tests+=("$(one_of "${words[@]}")")
    done
    kinds+=(op_cuda cuda_graphs) # need the toolkit
    while read -r word; do
        [[ " ${kinds[*]//,/ } " == *" $word "* || $(one_of "$word" no neither nor) != "$word" ]] || asan_tests+=("$word")
    done < <(printf '%s\n' tests/unit/test_*.c | sed 's/.*test_//; s/\.c$//')
    read -ra asan_tests <<<"$(tr , ' ' <<<"${asan_tests[*]}")"
}

suite_asan() {
    local emulated
    mapfile -t emulated < <(grep -oE '(cmocka_unit_test\(|\{")test_[a-z]+' tests/unit/test_op_cuda.c | sed 's/.*[("]//')
    TRIREME_DRAW=$commit TRIREME_TEST_ONLY=$(one_of "${emulated[@]}") suite asan 2 -L '^unit$' -R "^unit\.test_($(paste -sd'|' <(printf '%s\n' "${asan_tests[@]}")))\$"
}

# Of the two tests that run layers on threads one runs, by the commit. ThreadSanitizer cannot place its shadow memory
# where the kernel randomises addresses widely.
suite_tsan() {
    local alone=()
    ! setarch -R true 2>/dev/null || alone=(setarch -R)
    "${alone[@]}" ctest --test-dir build/tsan -j2 --output-on-failure --no-tests=error \
        -E "^unit\.test_$(one_of layer_stage families)\$" -L '^tsan$'
}

finish() {
    if [[ -f $logs/test.log ]]; then
        sed -n '/tests passed/,$p' "$logs/test.log" | grep -v '^Errors while' || true
    fi
    if [[ -s $logs/failed ]]; then
        echo "tests: FAILED ($(paste -sd' ' "$logs/failed")) after $SECONDS s"
        exit 1
    fi
    echo "tests: all passed in $SECONDS s"
    exit 0
}

step setup "set-up" bash tools/setup.sh clang libomp-dev || finish
step build "build (release)" build release all || finish
step build-bench "build of the benchmarks" build release benches || true
commit=$(git rev-parse HEAD 2>/dev/null || echo none)
TRIREME_DRAW=$commit step test "tests (release)" suite release 4 -E "$(left_out)" || true # on two processors: whole runs wait for more than half of their time
# The trials, and then the tests with ThreadSanitizer, wait for much of their time, in which these builds go on. With
# AddressSanitizer the kernels for AVX-512 and AMX, a minute of the compiler, are built for one commit in three.
draw_asan
meanwhile step build-tsan "build (thread)" build_meanwhile tsan tsan_tests
tsan=$!
# shellcheck disable=SC2046 # a word for each target
meanwhile step build-asan "build (address, undefined)" build_meanwhile asan "-DTRIREME_WIDE_KERNELS=$(one_of ON OFF off)" $(printf 'test_%s ' "${asan_tests[@]%.avx2}")
asan=$!
step long "a sample of tests/long.sh for commit ${commit:0:12}" bash tests/long.sh --sample "$commit" || true
gpu=$(ctest --test-dir build/release -N -L '^gpu$' | sed -n 's/^Total Tests: //p')
skipped=$(grep -c '\(Skipped\|Not Run\)' <(grep -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: gpu\.' "$logs/test.log") || true)
echo "GPU tests: ${skipped:-0} skipped of ${gpu:-0}"
tsan_built=0
built build-tsan $tsan && tsan_built=1
if ((tsan_built)); then step test-tsan "stream and thread tests (thread)" suite_tsan || true; fi
if built build-asan $asan; then step test-asan "unit tests (address, undefined)" suite_asan || true; fi
step check-clang "warnings of clang" check_clang || true
finish
