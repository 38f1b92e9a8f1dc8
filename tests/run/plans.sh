#!/usr/bin/env bash
# The plans of operators that are not deterministic: measured once, the same on replicas, kept by a resumed
# run; a wrong file ends a run, a plan that the library does not offer does not.
# usage: plans.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"

measured=(train.deterministic=false parallel.dp=2)

# again RUN ARGUMENTS...: the first run as it was after its step 10, continued as RUN.
again() {
    local run=$1
    shift
    rm -rf "${scratch:?}/$run"
    cp -r "$scratch/first" "$scratch/$run"
    rm -r "$(step_dir "$run" 20)"
    resume=("$run" --resume "${measured[@]}" "$@")
}

train 0 2 first "${measured[@]}"
as_planned first
count=$(grep -c '^matmul m .* = [^ ]*$' "$scratch/first/plans.txt")
((count > 10)) || fail "first: $count plans: $(<"$scratch/first/plans.txt")"
[[ $(head -n 1 "$scratch/first/plans.txt") == "trireme plans 1" ]] || fail "first: no header"
[[ $(wc -l <"$scratch/first/plans.txt") == $((count + 1)) ]] || fail "first: other lines: $(<"$scratch/first/plans.txt")"
grep -qx "plans    $count measured" "$scratch/first.out" || fail "first: $(grep ^plans "$scratch/first.out")"
[[ ! -s $scratch/first.err ]] || fail "first: $(<"$scratch/first.err")"

# Resumed: the same plans, and so the same bits; nothing is measured.
again second
train 0 2 "${resume[@]}"
grep -qx "plans    $count read from plans.txt" "$scratch/second.out" || fail "second: $(grep ^plans "$scratch/second.out")"
cmp "$scratch/first/plans.txt" "$scratch/second/plans.txt" || fail "second: the plans changed"
same_curve second first
same_tensors second first 20
as_planned second

# On another layout what has other sizes is measured too, on the lowest of the ranks that want it.
again wider parallel.dp=1 parallel.tp=2
train 0 2 "${resume[@]}"
grep -Eqx "plans    $count read from plans.txt, [1-9][0-9]* measured" "$scratch/wider.out" ||
    fail "wider: $(grep ^plans "$scratch/wider.out")"
[[ $(comm -13 "$scratch/wider/plans.txt" "$scratch/first/plans.txt") == "" ]] || fail "wider: plans were lost"
as_planned wider

# What the file says is used: another implementation of oneDNN's where there is one, else a line.
again chosen
sed -i 's/ = .*/ = gemm:jit/' "$scratch/chosen/plans.txt"
cp "$scratch/chosen/plans.txt" "$scratch/chosen.plans"
train 0 2 "${resume[@]}"
cmp "$scratch/chosen.plans" "$scratch/chosen/plans.txt" || fail "chosen: the plans changed"
as_planned chosen
again gone
sed -i '2s/ = .*/ = brg:of-another-version/' "$scratch/gone/plans.txt"
train 0 2 "${resume[@]}"
says gone "warning: the library does not offer all plans of '.*/gone/plans.txt' here"

# A file that is wrong.
for fault in '3s/ = .*//' '3s/^matmul/matmal/' '3s/ = / = a b/' '3s/$/\x01/'; do
    again broken
    sed -i "$fault" "$scratch/broken/plans.txt"
    train 65 2 "${resume[@]}"
    says broken ".*broken/plans.txt:3: .* \(restore the file, or remove it to have the plans measured again\)"
done
again cut
truncate -s -1 "$scratch/cut/plans.txt"
train 65 2 "${resume[@]}"
says cut ".*cut/plans.txt:$((count + 1)): the line does not end: the file was cut off"
again large
head -c 2M /dev/zero >>"$scratch/large/plans.txt"
train 65 2 "${resume[@]}"
says large "the plans of operators '.*large/plans.txt' is larger than the limit of 1 MiB"

# A deterministic run neither reads nor writes it, and without it the plans are measured again.
again strict train.deterministic=true
echo broken >"$scratch/strict/plans.txt"
train 0 2 "${resume[@]}"
[[ $(<"$scratch/strict/plans.txt") == broken ]] || fail "strict: the file was written"
again lost
rm "$scratch/lost/plans.txt"
train 0 2 "${resume[@]}"
grep -qx "plans    $count measured" "$scratch/lost.out" || fail "lost: $(grep ^plans "$scratch/lost.out")"

# The device guarded has its own memory and the operators of the cpu device. Four stages want the same plans.
train 0 2 guarded "${measured[@]}" device.name=guarded
as_planned guarded
train 0 4 stages train.deterministic=false parallel.pp=4
as_planned stages
[[ $(sort -u "$scratch/stages/plans.txt" | wc -l) == $(wc -l <"$scratch/stages/plans.txt") ]] || fail "stages: a plan twice"
finish
