#!/usr/bin/env bash
# Tests guard.*: a run over data with one window unlike the others warns, skips the step, or goes back to its
# newest checkpoint; and a run that diverges skips steps until it ends.
# usage: spikes.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
source "$(dirname "$0")/odd_window.sh"

# A warning changes nothing.
train 0 1 none guard.sigma=0
train 0 1 warn
same_lines none warn 240
[[ ! -s $scratch/none.err ]] || fail "none: $(head -n 1 "$scratch/none.err")"
odd=$(beyond warn | head -n 1)
[[ -n $odd ]] || fail "no step is out of line"
saved=$(((odd - 1) / 30 * 30))

# A skipped step has its record, and changes no parameter.
train 0 1 skip guard.action=skip
same_lines skip warn $((odd - 1))
steps_once skip
[[ $(beyond skip | head -n 1) == "$odd" ]] || fail "skip: another step was skipped"
grep -q 'above its running mean [0-9.]*; the step is skipped$' "$scratch/skip.err" || fail "skip: does not say so"
sed -n "${odd}p" "$scratch/skip/metrics.jsonl" | grep -q '"skipped":true}$' || fail "skip: step $odd has no mark"
grep -q loss_scale "$scratch/skip/metrics.jsonl" && fail "skip: a loss scale in fp32"
[[ $(grep -c skipped "$scratch/skip/metrics.jsonl") == $(beyond skip | wc -l) ]] || fail "skip: marks and warnings differ"
[[ $(state_of skip 240 skipped) == $(beyond skip | wc -l) ]] || fail "skip: the checkpoint counts other steps"
diff <(lines skip $((odd + 1)) | tail -n 1) <(lines warn $((odd + 1)) | tail -n 1) >/dev/null &&
    fail "skip: step $odd changed the parameters"

# A run that goes back to a step that is still being saved in the background waits for it.
train 0 1 once guard.action=rollback checkpoint.every=$((odd - 1))
LD_PRELOAD=$tools/libslow_disk.so SLOW_DISK_BYTES=30000 \
    train 0 1 behind guard.action=rollback checkpoint.every=$((odd - 1)) checkpoint.background=true
same_lines behind once 240
diff "$scratch/behind.err" "$scratch/once.err" >/dev/null || fail "behind: $(head -n 1 "$scratch/behind.err")"
grep -q "step $odd: .*; the run goes back, .*: step $((odd - 1)) is saved" "$scratch/behind.err" ||
    fail "behind: $(head -n 1 "$scratch/behind.err")"

# Going back: each step once, other data after the checkpoint, the same on another layout.
train 0 1 back guard.action=rollback
same_lines back warn "$saved"
steps_once back
grep -q "step $odd: .*; the run goes back, and steps over the data since: step $saved is saved" "$scratch/back.err" ||
    fail "back: $(head -n 1 "$scratch/back.err")"
diff <(lines back $((saved + 1)) | tail -n 1) <(lines warn $((saved + 1)) | tail -n 1) >/dev/null &&
    fail "back: step $((saved + 1)) has the same data again"
[[ $(beyond back | wc -l) != 1 ]] || [[ $(state_of back 240 next_sample) == $((2 * (240 + odd - saved))) ]] ||
    fail "back: the data cursor is $(state_of back 240 next_sample)"
[[ $(state_of back $((saved + 30)) guard_skips) == 0 ]] || fail "back: the next checkpoint counts returns to the one before"
[[ $(state_of back 240 guard_steps) == 240 ]] || fail "back: the means hold steps that were taken again"
train 0 2 back-2 guard.action=rollback parallel.pp=2
same_lines back back-2 240

# Data ranks that divide the optimizer's state, gradients and parameters skip and go back as those that do not.
for action in skip rollback; do
    for zero in 0 3; do
        train 0 2 "$action-$zero" guard.action=$action parallel.dp=2 train.precision=bf16 parallel.zero=$zero log.noise_scale=true
    done
    same_lines "$action-0" "$action-3" 240
    same_tensors "$action-0" "$action-3" 240
    [[ -n $(beyond "$action-3") ]] || fail "$action-3: no step is out of line"
done
grep -q 'the run goes back' "$scratch/rollback-3.err" || fail "rollback-3: $(head -n 1 "$scratch/rollback-3.err")"
[[ $(state_of rollback-3 240 noise_steps) == 240 ]] || fail "rollback-3: the noise scale holds steps that were taken again"

# Returns to one checkpoint end, too.
train 65 1 stuck guard.action=rollback guard.sigma=0.5 guard.skips=3
grep -q 'diverged: 3 steps were out of line since the newest checkpoint (guard.skips), and at step [0-9]* the .* is more than 0.5 standard' "$scratch/stuck.err" ||
    fail "stuck: $(tail -n 1 "$scratch/stuck.err")"
grep -q '; lower optim.lr, lengthen optim.warmup, set a smaller optim.clip, or raise guard.sigma above 0.5 (' "$scratch/stuck.err" ||
    fail "stuck: no word of guard.sigma: $(tail -n 1 "$scratch/stuck.err")"
[[ $(grep -c 'warning: step .*; the run goes back' "$scratch/stuck.err") -ge 2 ]] || fail "stuck: does not go back twice"
train 65 1 never guard.action=rollback guard.skips=1
grep -q "diverged: 1 step was out of line since the newest checkpoint (guard.skips), and at step $odd the " "$scratch/never.err" ||
    fail "never: $(tail -n 1 "$scratch/never.err")"

# A save that fails is no other checkpoint to go back to, so the returns count on.
mkdir -p "$scratch/full/ckpt"
cp -r "$(step_dir warn 150)" "$scratch/full/ckpt"
head -n 150 "$scratch/warn/metrics.jsonl" >"$scratch/full/metrics.jsonl"
(
    ulimit -f 100
    train 65 1 full --resume guard.action=rollback guard.sigma=1 guard.skips=3 checkpoint.every=5 train.steps=260
    finish >/dev/null
) || fail "full: $(tail -n 1 "$scratch/full.err")"
grep -q 'the save of step [0-9]* failed: .*File too large' "$scratch/full.err" || fail "full: a save has room"
grep -q 'diverged: 3 steps were out of line since the newest checkpoint (guard.skips), and at .*(step 150 is saved)$' "$scratch/full.err" ||
    fail "full: $(tail -n 1 "$scratch/full.err")"

# With the run's directory its checkpoints are gone: no rank goes back, although only rank 0 knows. A long sample
# after step 70 leaves the time to move the directory.
trireme_on 2 train "$scratch/base.yaml" log.dir="$scratch/gone" guard.action=rollback parallel.dp=2 parallel.deadline=30 \
    train.steps=140 checkpoint.every=69 train.sample_every=70 train.sample_tokens=30000 >"$scratch/gone.out" 2>"$scratch/gone.err" &
job=$! code=0
until_true 60 test -e "$scratch/gone/ckpt/step-00000069/COMMIT" || fail "gone: step 69 is not saved"
mv "$scratch/gone" "$scratch/moved"
wait "$job" || code=$?
[[ $code == 74 ]] && grep -q "step [0-9]*: the .*; the step is skipped$" "$scratch/gone.err" || fail "gone: ended with $code: $(tail -n 1 "$scratch/gone.err")"

# A step that has become corrupt ends the run that goes back to it, and --resume goes on from the one before, with the
# bits of a run that has it intact. A long sample after it leaves the time for the damage.
each=$(((odd - 2) / 2)) newest=$(((odd - 2) / 2 * 2))
train 0 1 whole guard.action=rollback checkpoint.every=$each
for ranks in 1 2; do
    run=corrupt-$ranks code=0 options=(guard.action=rollback checkpoint.every=$each parallel.pp=$ranks)
    trireme_on $ranks train "$scratch/base.yaml" log.dir="$scratch/$run" "${options[@]}" train.sample_every=$((newest + 1)) \
        train.sample_tokens=20000 >"$scratch/$run.out" 2>"$scratch/$run.err" &
    job=$!
    until_true 60 test -e "$(step_dir $run $newest)/COMMIT" || fail "$run: step $newest is not saved"
    shard=$(ls -S "$(step_dir $run $newest)"/shard-* | head -n 1)
    flip "$shard" $(($(stat -c %s "$shard") * 2 / 3)) 3
    wait $job || code=$?
    [[ $code == 65 ]] && grep -q "checksum.*: it is corrupt .*; the newest valid step before it is $each$" "$scratch/$run.err" ||
        fail "$run: ended with $code: $(tail -n 1 "$scratch/$run.err")"
    [[ $(field $run step | tail -n 1) == $((odd - 1)) ]] || fail "$run: the last record is of step $(field $run step | tail -n 1)"
    train 0 $ranks $run --resume "${options[@]}"
    grep -q "resuming from step $each, because a newer one is not valid: " "$scratch/$run.err" || fail "$run: $(head -n 1 "$scratch/$run.err")"
    same_lines $run whole 240
    same_tensors $run whole 240
done

# The running means are in the checkpoint: a resumed run goes back at the same step.
mkdir -p "$scratch/again/ckpt"
cp -r "$(step_dir warn "$saved")" "$scratch/again/ckpt"
head -n "$saved" "$scratch/warn/metrics.jsonl" >"$scratch/again/metrics.jsonl"
train 0 1 again --resume guard.action=rollback
same_lines again back 240

# The same by hand: from the checkpoint, with the data after those of the step. The states of another optimizer than the
# checkpoint's are zero again, and a trace has each step once.
events() { tr '{' '\n' <"$scratch/$1/trace.json" | grep -c '"ph":"X"'; }
for name in adamw sgd; do
    for run in returns by-hand; do
        mkdir -p "$scratch/$run-$name/ckpt"
        cp -r "$(step_dir warn "$saved")" "$scratch/$run-$name/ckpt"
        head -n "$saved" "$scratch/warn/metrics.jsonl" >"$scratch/$run-$name/metrics.jsonl"
        [[ $run == returns ]] || "$tools/ckpt_forge" "$(step_dir $run-$name "$saved")" next_sample $((2 * odd))
        train 0 1 $run-$name --resume guard.action=rollback optim.name=$name train.steps=180 --trace 20
    done
    [[ $(beyond returns-$name | head -n 1) == "$odd" ]] || fail "returns-$name: $(head -n 2 "$scratch/returns-$name.err")"
    same_lines returns-$name by-hand-$name 180
    same_tensors returns-$name by-hand-$name 180
    for key in next_sample optimizer_step moments_since tokens_seen guard_steps; do
        [[ $(state_of returns-$name 180 $key) == "$(state_of by-hand-$name 180 $key)" ]] ||
            fail "returns-$name: $key $(state_of returns-$name 180 $key), by hand $(state_of by-hand-$name 180 $key)"
    done
    [[ $(events returns-$name) == "$(events by-hand-$name)" ]] ||
        fail "returns-$name: a trace of $(events returns-$name) events, by hand $(events by-hand-$name)"
done

# Before the first checkpoint there is nothing to go back to.
train 0 1 unsaved guard.action=rollback checkpoint.every=0
same_lines unsaved skip 240

# A run that diverges: the steps are skipped, recorded without NaN, and after guard.skips of them it ends.
train 65 1 broken guard.action=skip guard.skips=3 optim.lr=1000 optim.clip=0 guard.sigma=0
grep -q 'diverged: 3 steps in a row were skipped (guard.skips), and at step [0-9]* the loss is .*; lower optim.lr' \
    "$scratch/broken.err" || fail "broken: $(tail -n 1 "$scratch/broken.err")"
grep -q 'guard.sigma' "$scratch/broken.err" && fail "broken: guard.sigma had no part: $(tail -n 1 "$scratch/broken.err")"
last=$(sed -n 's/.*and at step \([0-9]*\) the loss is .*/\1/p' "$scratch/broken.err")
[[ $(skipped broken) == "$((last - 2)) $((last - 1)) $last " ]] ||
    fail "broken: the run ended at step $last, and steps $(skipped broken)have records as skipped ones"
grep -qi 'nan\|inf' "$scratch/broken/metrics.jsonl" && fail "broken: NaN in the records"
grep -q -e -nan "$scratch/broken.err" && fail "broken: NaN with a sign: $(tail -n 1 "$scratch/broken.err")"

# Saves in between change nothing of that, also those in the background.
train 65 1 broken-behind guard.action=skip guard.skips=3 optim.lr=1000 optim.clip=0 guard.sigma=0 checkpoint.every=1 checkpoint.background=true
[[ $(skipped broken-behind) == "$(skipped broken)" ]] ||
    fail "broken-behind: steps $(skipped broken-behind)were skipped, not $(skipped broken): $(tail -n 1 "$scratch/broken-behind.err")"

# Copies of parameters that differ, because a rank's device rounds otherwise, are noticed at a save, of which nothing
# stays.
code=0
command=("$trireme" train "$scratch/base.yaml" log.dir="$scratch/apart" parallel.dp=2 train.steps=6 checkpoint.every=3)
apart "${command[@]}" : "${command[@]}" device.name=ref >"$scratch/apart.out" 2>"$scratch/apart.err" || code=$?
[[ $code == 65 && ! -e $(step_dir apart 3) ]] || fail "apart: exit code $code, or step 3 is saved"
says apart 'the copies of parameter transformer[.a-z0-9_]* on rank 0 and rank 1 differ after step 3, .*\(no step is saved\)$'

finish
