#!/usr/bin/env bash
# Times the whole quickstart in a fresh clone of the committed tree, after its packages are installed: build,
# text, training, sampling.
#   bench/quickstart.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

bash tools/setup.sh >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone -q . "$work/clone"
before=$(load)
bash "$work/clone/examples/quickstart.sh" </dev/null >"$work/output" 2>&1 ||
    fail "the quickstart failed: $(tail -n 3 "$work/output")"
grep '^quickstart:.* s)$' "$work/output"
row "quickstart after apt, load $before before" bench/quickstart.sh \
    "$(sed -n 's/^quickstart: done in //p' "$work/output")" "240 s"
