#!/usr/bin/env bash
# The whole suite: set-up, release build and every test, then the unit tests under AddressSanitizer
# and UndefinedBehaviorSanitizer, then the tests of streams and threads under ThreadSanitizer.
# Logs stay in build/log. Ends non-zero when any step fails.
# shellcheck disable=SC2317 # functions are called through step
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

logs=build/log
mkdir -p "$logs"
failed=()

# step NAME WHAT COMMAND...: runs the command with its output in build/log/NAME.log and says in one
# line how it went. A failure shows the end of the log and is remembered.
step() {
    local name=$1 what=$2 start=$SECONDS
    shift 2
    if "$@" </dev/null >"$logs/$name.log" 2>&1; then
        echo "$what: ok ($((SECONDS - start)) s)"
        return 0
    fi
    failed+=("$name")
    echo "$what: FAILED after $((SECONDS - start)) s; the end of $logs/$name.log:"
    tail -n 120 "$logs/$name.log" | sed 's/^/    /'
    return 1
}

# build PRESET TARGET OPTIONS...: configures and builds one preset.
build() {
    local preset=$1 target=$2
    shift 2
    cmake --preset "$preset" -DBUILD_TESTING=ON -DTRIREME_WERROR=ON "$@" && cmake --build "build/$preset" --target "$target"
}

# suite PRESET CTEST_OPTIONS...: two tests at a time, less where a test declares more processors.
suite() {
    local preset=$1
    shift
    ctest --test-dir "build/$preset" -j2 --output-on-failure --no-tests=error "$@"
}

# ThreadSanitizer cannot place its shadow memory where the kernel randomises addresses widely.
suite_tsan() {
    if setarch -R true 2>/dev/null; then
        setarch -R ctest --test-dir build/tsan -j2 --output-on-failure --no-tests=error -L '^tsan$'
    else
        suite tsan -L '^tsan$'
    fi
}

finish() {
    if [[ -f $logs/test.log ]]; then
        sed -n '/tests passed/,$p' "$logs/test.log" | grep -v '^Errors while' || true
    fi
    if ((${#failed[@]})); then
        echo "tests: FAILED (${failed[*]}) after $SECONDS s"
        exit 1
    fi
    echo "tests: all passed in $SECONDS s"
    exit 0
}

bash tools/setup.sh </dev/null || {
    failed+=(setup)
    finish
}
step build "build (release)" build release all || finish
step build-bench "build of the benchmarks" build release benches || true
step test "tests (release)" suite release || true
commit=$(git rev-parse HEAD 2>/dev/null || echo none)
step long "a sample of tests/long.sh for commit ${commit:0:12}" bash tests/long.sh --sample "$commit" || true
gpu=$(ctest --test-dir build/release -N -L '^gpu$' | sed -n 's/^Total Tests: //p')
skipped=$(grep -c '\(Skipped\|Not Run\)' <(grep -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: gpu\.' "$logs/test.log") || true)
echo "GPU tests: ${skipped:-0} skipped of ${gpu:-0}"

if step build-asan "build (address, undefined)" build asan unit_tests; then
    step test-asan "unit tests (address, undefined)" suite asan -L '^unit$' || true
fi
if step build-tsan "build (thread)" build tsan tsan_tests; then
    step test-tsan "stream and thread tests (thread)" suite_tsan || true
fi
finish
