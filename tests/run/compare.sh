#!/usr/bin/env bash
# Tests that tests/compare.sh finds no difference between the program and itself, and finds a changed learning
# rate.
# usage: compare.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$scratch"
cat >other <<P
#!/bin/sh
case "\$*" in *train*) exec "$trireme" "\$@" optim.lr=0.00301 ;; *) exec "$trireme" "\$@" ;; esac
P
chmod +x other
TRIREME_BUILD=$(dirname "$tools")
export TRIREME_BUILD

bash "$here/compare.sh" --every=12 "$trireme" "$trireme" >same.out 2>&1 || fail "the program and itself: $(<same.out)"
grep -Eqx '[0-9]+ cases, 0 differ, [0-9]+ s' same.out || fail "the program and itself: $(tail -n 1 same.out)"
for option in "" --near; do
    code=0
    # shellcheck disable=SC2086 # without an option there is no argument
    bash "$here/compare.sh" $option --every=99 "$trireme" ./other >other.out 2>&1 || code=$?
    [[ $code == 1 ]] || fail "another learning rate $option: exit code $code, not 1: $(<other.out)"
done
rm -rf "$TRIREME_BUILD"/compare/runs.*
finish
