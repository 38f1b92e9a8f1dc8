#!/usr/bin/env bash
# Tests tests/run.sh itself, in a tree where set-up, builds and tests are substitutes: it prints how far a
# slow step is and ctest's last lines, and its exit code is not 0 when a step fails.
# usage: suite.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
here=$(cd "$(dirname "$0")/.." && pwd)
source "$(dirname "$0")/common.sh"
cd "$scratch" && mkdir tests tools bin

# The file `broken` names the substitute that fails.
sed 's/-t 30 /-t 0.3 /' "$here/run.sh" >tests/run.sh
cmp -s tests/run.sh "$here/run.sh" && { echo "FAIL: the interval of tests/run.sh was not found"; exit 1; }
printf 'echo "setup: $*" >>called\n' >tools/setup.sh
mkdir tests/unit
for test in "$here"/unit/test_*.c; do : >"tests/unit/${test##*/}"; done
cp "$here/unit/test_op_cuda.c" tests/unit/
printf 'echo "long: a seed"\n' >tests/long.sh
cat >bin/cmake <<'S'
#!/bin/sh
echo "cmake $*" >>called
echo "[1/2] Compiling"
case "$(cat broken) $*" in
stuck\ --build*tsan*) exec sleep 1000 ;;
killed\ --build*tsan*) kill -KILL "$PPID" ;; # the shell of the build
esac
case "$*" in --build*$(cat broken)*) echo "this does not compile"; exit 1 ;; esac
S
mkdir -p build/clang
cat >bin/ninja <<'S'
#!/bin/sh
[ "$*" = "-C build/clang -t commands all benches" ] || exit 1
echo "echo checked -MD -MT a.o -MF a.o.d -o a.o -c a.c"
[ "$(cat broken)" != clang ] || { echo "echo 'b.c:1:1: error: unused'; false -o b.o -c b.c"; echo "echo -c c.c"; }
echo "ar qc a.a a.o"
S
cat >bin/ctest <<'S'
#!/bin/sh
echo "ctest $*" >>called
case "$*" in *" -N "*) echo "Total Tests: 1"; exit ;; *build/release*) ;; *) exit 0 ;; esac
printf '      Start  1: unit.quick\n 1/3 Test  #1: unit.quick ....   Passed    0.01 sec\n'
printf '      Start  2: run.slow\n      Start 13: run.slower\n'
n=0
until grep -q 'tests have ended' out || [ $((n += 1)) -gt 600 ]; do sleep 0.1; done
printf ' 2/3 Test  #2: run.slow ....   Passed    1.01 sec\n'
if [ "$(cat broken)" = one-test ]; then
    printf ' 3/3 Test #13: run.slower ....***Failed    1.01 sec\n'
    for i in $(seq 80); do echo "ok: check $i"; done
    printf 'FAIL: the loss is not the same\n\n'
    printf '67%% tests passed, 1 tests failed out of 3\n\nThe following tests FAILED:\n\t 13 - run.slower (Failed)\n'
    exit 8
fi
printf ' 3/3 Test #13: run.slower ....   Passed    1.01 sec\n\n100%% tests passed, 0 tests failed out of 3\n'
S
printf '#!/bin/sh\nshift\nexec "$@"\n' >bin/setarch
chmod +x bin/*

# suite CODE BROKEN: runs it and expects that exit code.
suite() {
    local code=0
    echo "$2" >broken
    PATH=$PWD/bin:$PATH bash tests/run.sh >out 2>&1 </dev/null || code=$?
    [[ $code == "$1" ]] || fail "exit code $code, not $1: $(<out)"
}
suite_says() { grep -Eq -- "$1" out || fail "it does not say '$1': $(<out)"; }

suite 0 nothing
suite_says '^tests \(release\): [0-9]+ s: 1/3 tests have ended; running: (run.slow run.slower|run.slower run.slow)$'
suite_says '^100% tests passed, 0 tests failed out of 3$'
suite_says '^tests: all passed in [0-9]+ s$'
grep -qx 'checked -o a.o -c a.c -Ino_gpu -fsyntax-only' build/log/check-clang.log || fail "clang checks nothing: $(<build/log/check-clang.log)"
# The sanitizers' tests: each is built, and one of two runs.
sed -n 's/^ctest --test-dir build.asan .* -R ^unit\\.test_(\(.*\))\$$/\1/p' called | tr '|' '\n' | sed 's/^/test_/' >ran
sed 's/\.avx2$//' ran | sort >targets
diff targets <(sed -n 's/^cmake --build build.asan --target //p' called | tr -s ' ' '\n' | sort) || fail "other tests are built with the sanitizers"
all=$(ls tests/unit | wc -l)
(($(wc -l <ran) > all / 8 && $(wc -l <ran) < all * 3 / 4)) || fail "the sanitizers run $(wc -l <ran) tests of $all: $(<ran)"
# Of tests in three precisions one runs.
left_out=$(sed -n 's/^ctest --test-dir build.release .* -E //p' called | grep -o 'run[^|)]*' | grep -c equivalence)
[[ $left_out == 2 ]] || fail "$left_out of three tests are left out: $(<called)"
grep -q 'ctest --test-dir build/tsan .*-L \^tsan\$$' called || fail "no test ran with ThreadSanitizer"
# alone: succeeds when no process but this one works in this folder.
alone() {
    local process
    for process in /proc/[0-9]*; do
        [[ $process == "/proc/$$" || $(readlink "$process/cwd" || true) != "$PWD" ]] || return 1
    done
}
until_true 60 alone || fail "a process was left"

suite 1 one-test
suite_says '^tests \(release\): FAILED after'
suite_says '^     3/3 Test #13: run.slower'
suite_says '^    FAIL: the loss is not the same$'
suite_says '^	 13 - run.slower \(Failed\)$'
suite_says '^tests: FAILED \(test\) after'

# Of two sanitizers, of which one does not build, the other one's tests run.
rm called
suite 1 build/tsan
suite_says '^build \(thread\): FAILED after'
suite_says '^    this does not compile$'
suite_says '^tests: FAILED \(build-tsan\) after'
! grep -q 'ctest --test-dir build/tsan' called || fail "tests ran that are not built"
grep -q 'ctest --test-dir build/asan' called || fail "no test ran with AddressSanitizer"
until_true 60 alone || fail "a process was left"

suite 1 killed
suite_says '^tests: FAILED \(build-tsan\) after'
until_true 60 alone || fail "a process was left"

# Ctrl-C also ends the build in the background.
rm called
echo stuck >broken
set -m # a process group, and with env the script does not ignore Ctrl-C, even if this test does
PATH=$PWD/bin:$PATH env --default-signal=INT bash tests/run.sh >out 2>&1 </dev/null &
script=$!
set +m
until_true 60 grep -qs '^cmake --build build/tsan' called || fail "the build in the background has not begun: $(<out)"
kill -INT -- "-$script"
code=0 && wait "$script" || code=$?
[[ $code == 130 ]] || fail "after Ctrl-C: exit code $code, not 130: $(<out)"
until_true 60 alone || fail "a process was left after Ctrl-C"

suite 1 clang
suite_says '^warnings of clang: FAILED after'
suite_says '^    b.c:1:1: error: unused$'
suite_says '^tests: FAILED \(check-clang\) after'
finish
