#!/usr/bin/env bash
# Texts that a run makes while it trains: the same on every layout and after --resume, and those of `trireme
# sample`; training keeps its bits and its planned memory; refusals.
# usage: samples.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
here=$(realpath "$(dirname "$0")")
cd "$scratch"

# of STEP RUN: prints the texts of the records of a step.
of() { sed -n "s/^{\"step\":$1,.*\"text\":\"\(.*\)\"}$/\1/p" "$2/samples.jsonl"; }

printf 'The \n\nand he said "now"\nThe \n' >prompts.txt
head -n 1 prompts.txt >first.txt
texts=(train.sample_every=5 train.sample_prompts=prompts.txt train.sample_tokens=40)
long=(checkpoint.every=5 checkpoint.keep=9)
train 0 1 without "${long[@]}"
train 0 1 one "${long[@]}" "${texts[@]}"
same_curve one without
same_tensors one without 20
as_planned one
[[ ! -e without/samples.jsonl && $(wc -l <one/samples.jsonl) == 12 ]] || fail "records: $(<one/samples.jsonl)"
[[ $(grep -c '^sample   step 15, "and he said \\"now\\"": "' one.out) == 1 ]] || fail "lines: $(<one.out)"
[[ $(grep -c '^sample ' one/log.txt) == 12 ]] || fail "log.txt: $(<one/log.txt)"
for step in 5 20; do
    "$trireme" sample one --step $step --seed $step -n 40 --prompts first.txt >alone
    [[ $(sed 's/.*"text":"\(.*\)"}$/\1/' alone) == "$(of $step one | head -n 1)" ]] || fail "step $step: $(<alone), not $(of $step one)"
done
# Each prompt has its own draws.
[[ $(of 5 one | head -n 1) != "$(of 5 one | tail -n 1)" && $(of 5 one) != "$(of 20 one)" ]] || fail "equal texts: $(<one/samples.jsonl)"

# A rank decodes on its stages, between the steps of any schedule, with the step's memory.
for layout in '2 parallel.pp=2' '2 parallel.tp=2' '2 parallel.dp=2 parallel.zero=3' '4 parallel.pp=2 parallel.dp=2 parallel.zero=1 parallel.schedule=zbv'; do
    read -ra words <<<"$layout"
    rm -rf several
    train 0 "${words[0]}" several "${long[@]}" "${texts[@]}" "${words[@]:1}"
    cmp one/samples.jsonl several/samples.jsonl || fail "other texts with $layout"
    as_planned several
    [[ $layout == *tp=2 || $layout == *dp=2* ]] || same_curve several without
done
planned() { sed -n 's/^memory   rank 0: \([0-9.]*\) MiB planned.*/\1/p' "$1.out"; }
[[ $(planned one) == "$(planned without)" ]] || fail "samples take memory: $(planned one), not $(planned without)"
timeout 60 "$trireme" plan base.yaml "${texts[@]}" train.sample_prompts=none.txt >plan.out || fail "no plan"
# Where the logits of one token are more than a step's activations, they are planned.
words=(model.context=1 model.layers=2 model.width=8 model.heads=1 model.vocab=50257 train.batch=1 train.steps=2 train.validate_every=0 parallel.pp=2)
train 0 2 short "${words[@]}" train.sample_every=1 train.sample_tokens=2
as_planned short
activations() { timeout 60 "$trireme" plan base.yaml "${words[@]}" "$@" | awk '$1 == 1 && $2 == 1 {print $8}'; }
[[ $(activations train.sample_every=1) > $(activations) ]] || fail "planned: $(activations train.sample_every=1), without samples $(activations)"

# Resumed on another layout, the run makes the same texts again, each once.
cp -r one again
rm -r again/ckpt/step-00000015 again/ckpt/step-00000020
train 0 2 again "${long[@]}" "${texts[@]}" parallel.pp=2 --resume
cmp one/samples.jsonl again/samples.jsonl || fail "other texts after --resume: $(<again/samples.jsonl)"
rm -r again/ckpt/step-00000010 again/ckpt/step-00000015 again/ckpt/step-00000020
train 0 1 again "${long[@]}" train.steps=6 --resume
[[ $(wc -l <again/samples.jsonl) == 3 ]] || fail "records that were not removed: $(<again/samples.jsonl)"

# A tokenizer; packed documents; the default prompt; a device that the host cannot read.
bash "$here/make_tokenizer.sh" >tokenizer.json
words=(model.vocab=320 data.format=text data.tokenizer=tokenizer.json data.documents=packed data.document_end=10 train.steps=2)
train 0 1 words "${words[@]}" train.sample_every=2 train.sample_tokens=12 device.name=guarded
"$trireme" sample words --seed 2 -n 12 device.name=cpu >shown
tail -c +2 shown | head -c -1 >want
printf '%b' "$(of 2 words)" | cmp - want || fail "a tokenizer: $(<words/samples.jsonl), not $(<want)"

# A request to stop does not wait for a text.
code=0
timeout 300 "$trireme" run -n 2 train base.yaml log.dir=stopped train.sample_every=1 train.sample_tokens=1000000000 parallel.pp=2 \
    >stopped.out 2>stopped.err &
job=$!
until_true 120 past stopped 1 || fail "no step"
kill -TERM $job
wait $job || code=$?
[[ $code == 75 && -d $(step_dir stopped 1) && ! -s stopped/samples.jsonl ]] || fail "stopped: exit code $code: $(<stopped.err)"
grep -Eq "^trireme: warning: the run stops without the samples of step 1: .trireme sample .*stopped --step 1 --seed 1 --prompts FILE -n 1000000000. makes them$" \
    stopped.err || fail "stopped: $(<stopped.err)"

# Parameters that overflow end the run, which names the step.
train 65 2 beyond train.sample_every=1 train.precision=fp16 optim.lr=1000 optim.warmup=0 parallel.pp=2
says beyond 'training has diverged: after step 1 the logits of a sample are not finite; lower optim.lr, .*'

# Bad input.
refused_run() {
    local code=$1 pattern=$2 ranks=$3
    shift 3
    train "$code" "$ranks" refused train.sample_every=5 "$@"
    grep -q "$pattern" refused.err || fail "refused with '$(<refused.err)', not '$pattern'"
    [[ ! -s refused/metrics.jsonl ]] || fail "a step was taken: $*"
}
refused_run 66 'none.txt' 2 train.sample_prompts=none.txt parallel.pp=2
{ echo short; printf '%033d\n' 0; } >prompts.txt
refused_run 78 "line 2 of train.sample_prompts 'prompts.txt' has 33 tokens, and model.context is 32" 1 train.sample_prompts=prompts.txt
printf 'a\377\n' >prompts.txt
refused_run 65 'prompts.txt:1: the prompt is not UTF-8' 1 train.sample_prompts=prompts.txt
: >prompts.txt
refused_run 65 'is empty: write one prompt a line' 1 train.sample_prompts=prompts.txt
refused_run 78 'train.sample_tokens' 1 train.sample_tokens=0
head -c 8000 /dev/zero >tokens.bin
refused_run 78 'train.sample_every needs the tokenizer of the data' 1 data.path=tokens.bin data.format=u16
finish
