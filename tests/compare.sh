#!/usr/bin/env bash
# Compares two builds of the program: the same small GPT-2, 20 steps, on layouts, schedules and precisions,
# first with OLD, then with NEW, on this machine. Losses and gradient norms of every step, parameters and
# moments after the last must be the same bits (+0 and -0 are the same number); then OLD's run of 10 steps is
# resumed by NEW. Nothing is stored. The exit code is not 0 when a case differs.
#
# usage: tests/compare.sh [--near] [--every=N] OLD [NEW]
#   OLD, NEW   a program, or a git commit, which is built first; without NEW: the program of the build folder
#   --near     for a change that reorders sums. FP32: loss and gradient norm of step 1 within 1e-6, each
#              gradient of step 1 within 1e-5 norm-wise, 20 losses within 1e-5. BF16: the gradients of
#              step 1 no more than 1.1 times as far from OLD's FP32 gradients as OLD's
#   --every=N  only every Nth case, from the first
# TRIREME_BUILD: the build folder, which has tests/ckpt_compare too (default build/release)
# TRIREME_JOBS: cases that run at one time (default 1). The runs of a comparison that failed stay in the build
# folder's folder compare.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${TRIREME_BUILD:-$root/build/release}")
scratch=$build/compare
near=0 every=1
while [[ ${1:-} == --* ]]; do
    case $1 in
    --near) near=1 ;;
    --every=*) every=${1#*=} ;;
    *) break ;;
    esac
    shift
done
[[ $# == [12] && $1 != --* && $every == [1-9]* && $every != *[!0-9]* ]] || { sed -n '/^# usage/,/^set/{/^#/s/^# //p}' "$0"; exit 64; }
[[ -x $build/tests/ckpt_compare ]] || { echo "compare: $build/tests/ckpt_compare is missing: build with -DBUILD_TESTING=ON"; exit 69; }
ckpt_compare=$build/tests/ckpt_compare

# program NAME: prints the program's path; a git commit is built first.
program() {
    local commit
    if [[ -f $1 && -x $1 ]]; then realpath "$1"; return; fi
    commit=$(git -C "$root" rev-parse --verify --quiet "$1^{commit}") ||
        { echo "compare: $1 is neither a program nor a commit" >&2; exit 66; }
    local source=$scratch/source-${commit:0:12}
    if [[ ! -x $source/build/release/trireme ]]; then
        echo "compare: building ${commit:0:12} in $source" >&2
        rm -rf "$source" && mkdir -p "$source"
        git -C "$root" archive "$commit" | tar -x -C "$source"
        (cd "$source" && cmake --preset release -DTRIREME_CUDA=OFF && cmake --build build/release --target trireme) \
            >"$source.log" 2>&1 || { tail -n 20 "$source.log" >&2; exit 70; }
    fi
    echo "$source/build/release/trireme"
}
mkdir -p "$scratch"
old=$(program "$1")
new=$(program "${2:-$build/trireme}")

runs=$(mktemp -d "$scratch/runs.XXXXXX")
cat >"$runs/base.yaml" <<Y
model: {layers: 4, width: 32, heads: 4, context: 32, vocab: 300, dropout: 0.1}
data: {path: $root/tests/data/devil.txt}
train: {steps: 20, batch: 12, micro_batch: 1, seed: 7, precision: fp32, threads: 1, deterministic: true, validate_every: 10, validate_batches: 1}
optim: {lr: 0.003, warmup: 4}
checkpoint: {every: 10, keep: 2}
log: {every: 20}
Y

# The cases: PP TP DP PRECISION SCHEDULE [KEY=VALUE...].
cases() {
    cat <<'C'
1 1 1 fp32 1f1b
1 1 1 bf16 1f1b
1 1 1 fp32 1f1b model.dropout=0 train.micro_batch=3
1 1 1 bf16 1f1b model.dropout=0 train.micro_batch=4
1 1 1 fp32 1f1b device.name=ref train.steps=10 checkpoint.every=10
1 1 1 fp32 1f1b model.context=45 model.width=24 model.heads=2 model.vocab=257 optim.clip=0
1 1 1 fp32 1f1b train.threads=2 optim.clip=0.01 optim.weight_decay=0
2 1 1 fp32 gpipe
2 1 1 bf16 1f1b model.dropout=0
4 1 1 fp32 1f1b
2 1 1 fp32 interleaved parallel.virtual=2
2 1 1 bf16 interleaved-zb parallel.virtual=2
2 1 1 fp32 bfs parallel.virtual=2
3 1 1 fp32 zb-h1
2 1 1 bf16 zb-h2
2 1 1 fp32 zb-1p
4 1 1 bf16 zb-2p
2 1 1 fp32 zbv
2 1 1 bf16 v-half
2 1 1 fp32 v-min
2 1 1 fp32 1f1b-v
2 1 1 bf16 dualpipev
2 1 1 fp32 auto
1 2 1 fp32 1f1b
1 2 1 bf16 1f1b
1 4 1 fp32 1f1b model.dropout=0
1 1 2 fp32 1f1b
1 1 3 bf16 1f1b train.micro_batch=2
2 2 1 fp32 zb-h1
2 1 2 bf16 1f1b
1 2 2 fp32 gpipe
2 2 2 fp32 1f1b
2 2 2 bf16 zbv
C
}

# run PROGRAM FOLDER RANKS ARGUMENTS...: runs one training.
run() {
    local program=$1 folder=$2 ranks=$3 launch=()
    shift 3
    ((ranks > 1)) && launch=(run -n "$ranks")
    timeout 300 "$program" "${launch[@]}" train "$runs/base.yaml" log.dir="$folder" "$@" >"$folder.out" 2>&1 && return
    echo "ended with $?: $(tail -n 1 "$folder.out")" >"$folder.failed"
    return 1
}

# table_row RESULT LOSS1 NORM1 LOSSES CASE: prints a row: relative differences of loss and norm of step 1, and
# of all losses.
table_row() { printf '%-10s %9s %9s %9s  %s\n' "$@"; }
field() { sed -n "s/.*\"$2\": *\([^,}]*\).*/\1/p" "$1/metrics.jsonl"; } # RUN KEY: one value a step
last() { find "$1/ckpt" -name 'step-*' | sort | tail -n 1; }

# farthest KEY STEPS: prints the largest relative difference of old and new in the first STEPS steps.
farthest() {
    paste <(field old "$1") <(field new "$1") | head -n "$2" |
        awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (NF != 2 || d != d) d = "inf"; if (d + 0 > most + 0) most = d } END { printf "%.3g", NR ? most : "inf" }'
}

# differs: prints what differs between old and new; nothing when all bits are the same.
differs() {
    local key line
    for key in step loss grad_norm val_loss; do
        line=$(diff <(field old "$key") <(field new "$key") | head -n 1) || true
        [[ -z $line ]] || echo "$key from value ${line%%[,acd]*} on"
    done
    "$ckpt_compare" numbers "$(last old)" "$(last new)" | head -n 1 || true
}

# distance A B: prints the distance of the gradients of step 1 over all tensors together, relative to B's.
distance() { "$ckpt_compare" distance "$(last "$1")" "$(last "$2")"; }

below() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 <= b + 0) }'; }

# near_enough PRECISION RANKS ARGUMENTS...: succeeds when a case with different bits is within the tolerances
# of --near.
near_enough() {
    local precision=$1 ranks=$2 way one=(train.steps=1 checkpoint.every=1 optim.clip=0)
    shift 2
    for way in old new; do run "${!way}" "$PWD/$way-one" "$ranks" "$@" "${one[@]}" || return 1; done
    if [[ $precision == bf16 ]]; then
        run "$old" "$PWD/truth" "$ranks" "$@" "${one[@]}" train.precision=fp32 || return 1
        below "$(distance new-one truth)" "$(awk -v d="$(distance old-one truth)" 'BEGIN { print 1.1 * d }')"
    else
        below "$(farthest loss 1)" 1e-6 && below "$(farthest grad_norm 1)" 1e-6 && below "$(farthest loss 20)" 1e-5 &&
            "$ckpt_compare" gradients "$(last old-one)" "$(last new-one)" 1e-5 >/dev/null
    fi
}

# verdict PRECISION RANKS ARGUMENTS...: runs the case in the working folder, which is only its own, and prints
# the result.
verdict() {
    local precision=$1 ranks=$2 way how
    shift 2
    for way in old new; do
        run "${!way}" "$PWD/$way" "$ranks" "$@" || { echo "FAIL: $way $(cat "$way.failed")"; return; }
    done
    how=$(differs)
    [[ -n $how ]] || { echo "same bits"; return; }
    if ((near)) && near_enough "$precision" "$ranks" "$@"; then echo near; return; fi
    for way in old-one new-one truth; do
        [[ ! -f $way.failed ]] || { echo "FAIL: $way $(cat "$way.failed")"; return; }
    done
    echo "FAIL: other ${how//$'\n'/, }"
}

# resumed: NEW continues OLD's run, which was saved after 10 of 20 steps.
resumed() {
    local how
    cp -r ../1/old .
    cp -r old new
    rm -rf "$(last new)"
    run "$new" "$PWD/new" 1 --resume || { echo "FAIL: $(cat new.failed)"; return; }
    how=$(differs)
    if [[ -z $how ]]; then echo "same bits"
    elif ((near)) && below "$(farthest loss 99)" 1e-5; then echo near
    else echo "FAIL: other ${how//$'\n'/, }"; fi
}

# judge NUMBER NAME COMMAND...: runs the case in a folder of its own, prints its line and writes its row.
judge() {
    local start=$SECONDS number=$1 name=$2 how
    shift 2
    mkdir "$runs/$number"
    cd "$runs/$number"
    how=$("$@")
    printf '%d/%d %s (%d s): %s\n' "$number" "$total" "$name" $((SECONDS - start)) "$how"
    local numbers=(- - -)
    [[ ! -f new/metrics.jsonl ]] || numbers=("$(farthest loss 1)" "$(farthest grad_norm 1)" "$(farthest loss 99)")
    table_row "${how%%:*}" "${numbers[@]}" "$name" >row
}

echo "old: $("$old" --version | head -n 1) ($old)"
echo "new: $("$new" --version | head -n 1) ($new)"
mapfile -t list < <(cases | awk -v every="$every" 'NR % every == 1 || every == 1')
total=$((${#list[@]} + 1)) number=0
for line in "${list[@]}"; do
    read -r pp tp dp precision schedule more <<<"$line"
    read -ra more <<<"$more"
    while (($(jobs -pr | wc -l) >= ${TRIREME_JOBS:-1})); do wait -n || true; done
    number=$((number + 1))
    judge "$number" "$line" verdict "$precision" $((pp * tp * dp)) parallel.pp="$pp" parallel.tp="$tp" \
        parallel.dp="$dp" train.precision="$precision" parallel.schedule="$schedule" "${more[@]}" &
done
wait
judge "$total" "NEW resumes OLD's run of the first case" resumed
echo
table_row "" "loss 1" "norm 1" losses "pp tp dp precision schedule"
for ((n = 1; n <= total; n++)); do cat "$runs/$n/row"; done
bad=$(cat "$runs"/*/row | grep -c '^FAIL' || true)
echo "$total cases, $bad differ, $SECONDS s"
((bad == 0)) || exit 1
rm -rf "$runs"
