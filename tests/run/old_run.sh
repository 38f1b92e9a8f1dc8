#!/usr/bin/env bash
# Tests that a run that Trireme wrote at commit b123273 (tests/data/run-b123273) still resumes and samples:
# losses and text are those with which that commit's program continued.
# usage: old_run.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cp -r "$(dirname "$text")/run-b123273/." "$scratch"
cd "$scratch"

# warnings RUN: stderr must have at most one line, which says what the old format lacks.
warnings() {
    [[ $(wc -l <"$1.err") -le 1 ]] || fail "$1: said '$(<"$1.err")'"
    grep -v '^trireme: warning: .*checkpoint' "$1.err" && fail "$1: said '$(<"$1.err")'"
    true
}

# resumes RANKS ARGUMENTS...: takes ten more steps on that many ranks. That commit's learning rate ended with the steps.
resumes() {
    local ranks=$1 run=resumed-$1
    shift
    cp -r run "$run"
    trireme_on "$ranks" train tiny.yaml --resume log.dir="$run" train.steps=70 optim.horizon=70 "$@" >"$run.out" 2>"$run.err" ||
        { fail "$run: $(<"$run.err")"; return; }
    warnings "$run"
    # FP32 products are summed in an order that depends on the processor, for ten steps.
    paste -d ' ' losses.txt <(field "$run" loss | tail -n +61) | awk '
        BEGIN { limit = 2 ^ -23 * sqrt(10) }
        { off = ($2 - $3) / $2; if (NF != 3 || off > limit || -off > limit) { print "step", $1 ": loss", $3 ", not", $2; bad = 1 } }
        END { exit bad || NR != 10 }' || fail "$run: other losses than those of b123273"
}

"$trireme" ckpt verify run >verify.out 2>&1 || fail "ckpt verify: $(<verify.out)"
resumes 2
resumes 1 parallel.pp=1
"$trireme" sample run -p "ABILITY, n.  " -n 80 --seed 3 >sample.out 2>sample.err || fail "sample: $(<sample.err)"
# The text is longer than the context.
sed -i '/^trireme: note: the context of 16 tokens was full: /d' sample.err
warnings sample
cmp sample.out sample.txt || fail "the sampled text is another"
finish
