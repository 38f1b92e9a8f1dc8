#!/usr/bin/env bash
# Tests train.batch_warmup: the same losses and parameters as a chain of runs, each with one batch, that continue
# each other; on several layouts and schedules, and resumed in the middle of the warm-up on the same and on
# another layout.
# usage: batch_warmup.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
same=(optim.horizon=20 train.validate_every=20)
warmup=("${same[@]}" train.batch_warmup="4 6 8 14")

# chain RANKS RUN ARGUMENTS...: the steps of the warm-up by runs with one batch.
chain() {
    local ranks=$1 run=$2
    shift 2
    train 0 "$ranks" "$run" "${same[@]}" "$@" train.batch=4 train.steps=6
    train 0 "$ranks" "$run" "${same[@]}" "$@" train.batch=8 train.steps=14 --resume
    train 0 "$ranks" "$run" "${same[@]}" "$@" train.batch=12 train.steps=20 --resume
}

# same_steps RUN REFERENCE: the same losses and norms, and at the end the same validation loss. (Each run of a chain
# ends with a validation.)
same_steps() {
    local key
    for key in step loss grad_norm; do
        diff <(field "$1" $key) <(field "$2" $key) >"$scratch/diff" ||
            fail "$1 and $2: $key differs: $(head -n 4 "$scratch/diff" | tr '\n' ' ')"
    done
    [[ $(field "$1" val_loss | tail -n 1) == "$(field "$2" val_loss | tail -n 1)" ]] || fail "$1 and $2: val_loss differs"
}

# as_chain RUN REFERENCE: the same bits, and memory as planned.
as_chain() {
    same_steps "$1" "$2"
    same_tensors "$1" "$2" 20
    as_planned "$1"
}

chain 1 chain
train 0 1 warm "${warmup[@]}"
as_chain warm chain
grep -q '^batch    4 sequences until step 6, 8 until step 14, then 12$' "$scratch/warm.out" ||
    fail "warm: the batches are not in the plan: $(head -n 5 "$scratch/warm.out")"
grep -q '4 sequences until step 6, 8 until step 14, then 12' "$scratch/warm/report.html" ||
    fail "warm: the batches are not in the report"

# Every schedule on two and four stages has these bits.
for schedule in gpipe 1f1b zb-h1 zb-2p; do
    drawn "four-$schedule" || continue
    train 0 4 "four-$schedule" "${warmup[@]}" parallel.pp=4 parallel.schedule=$schedule
    as_chain "four-$schedule" chain
done
for schedule in interleaved interleaved-zb bfs zbv v-half dualpipev auto; do
    drawn "two-$schedule" || continue
    train 0 2 "two-$schedule" "${warmup[@]}" parallel.pp=2 parallel.schedule=$schedule
    as_chain "two-$schedule" chain
done
train 0 2 limited "${warmup[@]}" parallel.pp=2 parallel.schedule=auto device.memory=2MiB
as_chain limited chain

# The data ranks' samples, losses and norms.
chain 2 data-chain parallel.dp=2 log.noise_scale=true
train 0 2 data "${warmup[@]}" parallel.dp=2 log.noise_scale=true
as_chain data data-chain
for key in grad_square grad_variance noise_scale; do
    diff <(field data $key) <(field data-chain $key) >/dev/null || fail "data: $key differs"
done
train 0 2 divided "${warmup[@]}" parallel.dp=2 parallel.zero=3 parallel.schedule=gpipe
as_chain divided data-chain
train 0 4 data-stages "${warmup[@]}" parallel.dp=2 parallel.pp=2 device.name=guarded
as_chain data-stages data-chain
chain 4 grid-chain parallel.dp=2 parallel.tp=2
train 0 4 grid "${warmup[@]}" parallel.dp=2 parallel.tp=2
as_chain grid grid-chain
near grid chain

# Other precisions, and optimizers that step each tensor.
chain 2 bf16-chain parallel.pp=2 train.precision=bf16
train 0 2 bf16 "${warmup[@]}" parallel.pp=2 train.precision=bf16
as_chain bf16 bf16-chain
chain 1 muon-chain optim.name=muon
train 0 1 muon "${warmup[@]}" optim.name=muon
as_chain muon muon-chain

# Interrupted in the middle of the warm-up, and resumed with the same bits; on the same layout, and on another.
for layout in "1 1" "4 1" "2 2"; do
    read -r pp dp <<<"$layout"
    run=resumed-pp$pp-dp$dp reference=chain
    [[ $dp == 1 ]] || reference=data-chain
    train 0 "$dp" "$run" "${warmup[@]}" parallel.dp="$dp" train.steps=10
    train 0 $((pp * dp)) "$run" "${warmup[@]}" parallel.pp="$pp" parallel.dp="$dp" --resume
    as_chain "$run" "$reference"
done
train 0 2 moved "${warmup[@]}" parallel.dp=2 train.steps=5
train 0 2 moved "${warmup[@]}" parallel.tp=2 --resume
near moved chain

# A run that a signal ends within the warm-up.
slow=(optim.min_lr=0.003 train.validate_every=0 train.batch_warmup="4 100000 8 200000" train.steps=100000 optim.horizon=100000)
"$trireme" run -n 2 train "$scratch/base.yaml" log.dir="$scratch/stopped" "${slow[@]}" parallel.pp=2 \
    >"$scratch/stopped.out" 2>"$scratch/stopped.err" &
until_true 120 past stopped 15 || fail "stopped: never reached step 15"
{ descendants $! | xargs kill -9; wait $!; } 2>/dev/null || true
end=$(($(last_step stopped) + 5))
train 0 1 stopped "${slow[@]}" train.steps=$end --resume
train 0 1 whole "${slow[@]}" train.steps=$end
same_curve stopped whole
same_tensors stopped whole $end

# Validation between smaller batches reads train.batch sequences, on any layout, and changes no step.
train 0 1 validated "${warmup[@]}" train.validate_every=4 train.validate_batches=2
train 0 4 validated-stages "${warmup[@]}" train.validate_every=4 train.validate_batches=2 parallel.pp=4
same_curve validated-stages validated
diff <(field validated loss) <(field chain loss) >/dev/null || fail "validated: the losses differ"
[[ $(field validated val_loss | wc -l) == 5 ]] || fail "validated: $(field validated val_loss | wc -l) validations"

# A run that goes back over the end of a batch: each step has the batch of its number, and the data go on.
{
    for ((i = 0; i < 188; i++)); do echo 'the quick brown fox jumps over it'; done
    for ((i = 0; i < 32; i++)); do printf '%b' "\\x$(printf %x $((128 + i * 41 % 128)))"; done
    for ((i = 0; i < 188; i++)); do echo 'the quick brown fox jumps over it'; done
} >"$scratch/odd.txt"
odd=(data.path="$scratch/odd.txt" data.validation=0 model.layers=2 model.dropout=0 train.seed=3 train.validate_every=0
    optim.lr=0.01 optim.min_lr=0.01 guard.sigma=5 checkpoint.every=30 checkpoint.keep=100 train.steps=150 train.batch=4
    parallel.dp=2)
train 0 2 odd "${odd[@]}" train.batch=2
at=$(sed -n 's/.*warning: step \([0-9]*\): the .* is more than 5 standard deviations .*/\1/p' "$scratch/odd.err" | head -n 1)
[[ -n $at ]] || fail "odd: no step is out of line"
saved=$(((at - 1) / 30 * 30))
for pp in 1 2; do
    train 0 $((2 * pp)) back-$pp "${odd[@]}" train.batch_warmup="2 $((at - 1))" guard.action=rollback guard.sigma=3 parallel.pp=$pp
    grep -q "step $at: .*; the run goes back, and steps over the data since: step $saved is saved" "$scratch/back-$pp.err" ||
        fail "back-$pp: $(head -n 1 "$scratch/back-$pp.err")"
done
same_curve back-1 back-2
diff <(field back-1 step) <(seq 150) >/dev/null || fail "back-1: a step is missing"
diff <(field back-1 loss | head -n "$saved") <(field odd loss | head -n "$saved") >/dev/null || fail "back-1: other steps before"
[[ $(grep -c 'the run goes back' "$scratch/back-1.err") != 1 ]] ||
    [[ $(h5dump -d /state/next_sample "$(step_dir back-1 150)/index.h5" | sed -n 's/.*(0): \(.*\)/\1/p') == \
        $((2 * (at - 1) + 4 * (150 - at + 1) + 2 * (at - 1 - saved) + 4)) ]] || fail "back-1: the data cursor is wrong"

# The plan: its sizes, and the largest arena, which may be that of any batch.
"$trireme" plan "$scratch/base.yaml" "${warmup[@]}" parallel.pp=2 --rate 1 >"$scratch/plan"
[[ $(grep -cE '^(4 +6 +4|8 +14 +8|12 +20 +12) +[0-9.]+ ' "$scratch/plan") == 3 ]] ||
    fail "the plan has not every batch: $(grep -A 4 '^batch' "$scratch/plan")"
grep -q ' for 20 steps' "$scratch/plan" || fail "the plan has no time of the run"
"$trireme" data "$scratch/base.yaml" "${warmup[@]}" | grep -q '^run       20 steps of 4 sequences until step 6, 8 until step 14, then 12: ' ||
    fail "trireme data has no batches"

# The list in a file is the text of the command line.
sed 's/^train:$/train:\n  batch_warmup: [{until: 6, batch: 4}, {until: 14, batch: 8}]/; /^  {steps/s/.*/  steps: 20/' "$scratch/base.yaml" >"$scratch/list.yaml"
printf 'train.batch: 12\ntrain.micro_batch: 1\n' >>"$scratch/list.yaml"
"$trireme" plan "$scratch/list.yaml" --rate 1 >"$scratch/plan"
[[ $(grep -cE '^(4 +6 +4|8 +14 +8|12 +20 +12) +[0-9.]+ ' "$scratch/plan") == 3 ]] || fail "the list of a file: $(<"$scratch/plan")"

# What cannot be: exit code 78 with one sentence.
wrong() { # SENTENCE ARGUMENTS...
    local words=$1
    shift
    refused 78 "$words" plan "$scratch/base.yaml" "$@"
}
takes="train.batch_warmup must be pairs of a batch and its last step, both ascending (for example 8 100 16 300), not"
wrong "$takes '8'" train.batch_warmup=8
wrong "$takes '8 100 4 300'" train.batch_warmup="8 100 4 300"
wrong "$takes '4 100 8 100'" train.batch_warmup="4 100 8 100"
wrong "$takes '0 100'" train.batch_warmup="0 100"
wrong "$takes 'x'" train.batch_warmup=x
wrong "train.batch_warmup has a batch of 12, which is not below train.batch 12: lower it, or raise train.batch" train.batch_warmup="12 6"
wrong "train.batch_warmup: 5 is not a multiple of parallel.dp * train.micro_batch = 2 * 2: the nearest multiples are 4 and 8" \
    train.batch_warmup="5 6" parallel.dp=2 train.micro_batch=2
wrong "train.batch_warmup: 2 is not a multiple of parallel.dp * train.micro_batch = 2 * 2: the smallest batch is 4" \
    train.batch_warmup="2 6" parallel.dp=2 train.micro_batch=2
wrong "a file as parallel.schedule has that of one batch" train.batch_warmup="4 6" parallel.schedule=x.csv
wrong "train.batch_warmup has a batch of one micro-batch, 4" train.batch_warmup="4 6" train.micro_batch=4 log.noise_scale=true
printf 'train.batch_warmup: [{until: 6}]\n' >"$scratch/half.yaml"
refused 78 "half.yaml:1:22: an item with keys needs both, an until and a batch above 0, like {until: 100, batch: 8}" plan "$scratch/half.yaml"
printf 'train.batch_warmup: [4, 8]\n' >"$scratch/plain.yaml"
refused 78 "an item of this list is like {until: 100, batch: 8}" plan "$scratch/plain.yaml"
train 78 1 traced "${warmup[@]}" --trace 6
says traced "--trace 6 begins with step 2, but train.batch_warmup changes the batch after step 6: record at most 5 steps"
train 0 1 traced "${warmup[@]}" --trace 5
[[ -s $scratch/traced/trace.json ]] || fail "traced: no trace"
finish
