#!/usr/bin/env bash
# Instruction data: only answers count, whatever the layout; a run resumes in the middle on another layout with
# the same losses; a file may grow; invalid keys and lines end with one sentence.
# usage: instruct.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
root=$(realpath "$(dirname "$0")/../..")
cd "$scratch"
tokenizers=$root/tests/golden/instruct examples=$root/examples/instruct.jsonl
cat >base.yaml <<Y
model: {layers: 2, width: 16, heads: 2, context: 160, vocab: 384}
data: {path: $examples, format: instruct, tokenizer: $tokenizers/chatml}
train: {steps: 6, batch: 4, micro_batch: 1, precision: fp64, threads: 1, validate_every: 3}
optim: {horizon: 100}
log: {every: 6}
checkpoint: {every: 3}
device: {name: ref}
Y

# all_near RUN REFERENCE LIMIT: losses and norms must agree up to this relative difference.
all_near() {
    local key
    for key in loss grad_norm val_loss; do near "$1" "$2" $key "$3"; done
}

# The layouts have different numbers of answers on each data rank and micro-batch.
train 0 1 one
train 0 4 four parallel.pp=2 parallel.dp=2
all_near four one 1e-11
cp -rp one half
rm -r "$(step_dir half 6)"
kept() { (cd "$1/tokens" && ls -i --time-style=+%s%N -l); }
kept half >kept.before
train 0 4 half --resume parallel.pp=2 parallel.dp=2
kept half | cmp - kept.before || fail "half: the rows were made again"
[[ $(wc -l <kept.before) == 2 ]] && grep -q '\.rows$' kept.before || fail "half: kept $(<kept.before)"
all_near half one 1e-7 # a checkpoint holds FP32
[[ $(field half loss | wc -l) == 6 ]] || fail "half: $(field half loss | wc -l) steps"
rounded='^trireme: warning: the checkpoint is of a run with train.precision fp64' # tested in fp64.sh
sed -i "/$rounded/d" half.err
for run in one four half; do [[ ! -s $run.err ]] || fail "$run: said '$(<$run.err)'"; done
grep -q 'documents: packed' one/config.yaml || fail "one: documents: $(grep documents one/config.yaml)"

# Every rank reads the rows that are kept.
cp -r one broken
for file in broken/tokens/*; do truncate -s 100 "$file"; done
train 65 2 broken --resume parallel.dp=2 train.steps=7
says broken "the tokens in '.*broken/tokens' are damaged: remove this folder, and the run makes them again \\('.*\.rows' is damaged\\)"
rm broken/tokens/*
train 0 2 broken --resume parallel.dp=2 train.steps=7

# A user's words after the last answer are only labels that do not count: other words change nothing. Another
# answer does.
say() { printf '{"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "%s"}, {"role": "user", "content": "%s"}]}\n' "$1" "$2"; }
say yes 'red' >a.jsonl
say yes 'a blue one' >b.jsonl
say not 'red' >c.jsonl
for name in a b c; do
    train 0 1 $name data.path=$name.jsonl data.validation=0 train.batch=1 train.steps=2
done
same_curve b a
[[ $(field c loss) != "$(field a loss)" ]] || fail "another answer has the same loss"

# Without a template a prompt and its answer follow each other; messages need one.
grep prompt "$examples" >pairs.jsonl
train 0 1 pairs data.path=pairs.jsonl data.tokenizer="$tokenizers/plain" data.validation=0 train.steps=2
train 65 1 messages data.tokenizer="$tokenizers/plain"
says messages "'.*instruct.jsonl', line 1: messages need a chat template, which the tokenizer '.*' does not have: .*"
mkdir other
cp "$tokenizers/plain/tokenizer.json" other
printf '[INST] {{ messages[0].content }} [/INST]' >other/chat_template.jinja
train 65 1 other-run data.tokenizer=other
says other-run "the chat template in 'other/chat_template.jinja' has neither ChatML's tokens .*"

# Growth, read from the next epoch on; a changed line is other data.
head -n 9 "$examples" >grows.jsonl
train 0 1 grown data.path=grows.jsonl data.validation=0 train.steps=3
cp -r grown changed
cat "$examples" >grows.jsonl
train 0 1 grown --resume data.path=grows.jsonl data.validation=0
sed -i "/$rounded/d" grown.err
says grown "warning: 'grows.jsonl' has grown from [0-9]+ to [0-9]+ tokens: the new tokens are read from epoch [0-9]+ on, and .*"
[[ $(ls grown/tokens | wc -l) == 1 ]] || fail "grown: kept $(ls grown/tokens)"
sed 's/warship/vessel/' "$examples" >grows.jsonl
train 78 1 changed --resume data.path=grows.jsonl data.validation=0
says changed "'grows.jsonl' is not the data that the checkpoint was made with: .*"

# The next conversation does not fit into the last sequence; the padding that is left there is no sequence.
say yes red >padded.jsonl
small=(data.path=padded.jsonl data.validation=0 model.context=64 train.batch=1)
train 0 1 padded "${small[@]}" train.steps=1
say "$(printf 'no%.0s' {1..40})" red >>padded.jsonl
train 0 1 padded --resume "${small[@]}" train.steps=12
[[ $(grep -Ec "^trireme: warning: 'padded.jsonl' has grown from [0-9]+ to [0-9]+ tokens: the new tokens are read from epoch [0-9]+ on, and " padded.err) == 1 ]] ||
    fail "padded: $(<padded.err)"

# A run keeps the template and the other settings next to its tokenizer: a chat uses them, and an export passes
# them on. They replace those of model.init_from.
mkdir talks
cp "$tokenizers"/chatml/tokenizer*.json talks
echo '{"eos_token_id": 383}' >talks/generation_config.json
echo '{}' >talks/special_tokens_map.json
train 0 1 talk data.tokenizer=talks data.validation=0 train.steps=2
echo hi | "$trireme" sample talk --interactive -n 4 --temperature 0 --repetition-penalty 3 >talk.answer 2>talk.chat
prompt=$(printf '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n.') prompt=${prompt%.}
"$trireme" sample talk -p "$prompt" -n 4 --temperature 0 --repetition-penalty 3 2>/dev/null | tail -c "+$((${#prompt} + 1))" |
    cmp - talk.answer || fail "a chat without the template: '$(<talk.answer)'"
"$trireme" ckpt export talk exported >export.out 2>&1 || fail "export: $(<export.out)"
for file in talks/*; do
    cmp "$file" "talk/tokenizer/${file##*/}" && cmp "$file" "exported/${file##*/}" || fail "$file was not kept"
done
sed -i 's/layers: 2, width: 16, heads: 2, //' base.yaml
train 0 1 other-form model.init_from=exported data.tokenizer="$tokenizers/llama3" data.validation=0 train.steps=2
for file in tokenizer.json chat_template.jinja; do
    cmp "$tokenizers/llama3/$file" "other-form/tokenizer/$file" || fail "$file is that of model.init_from"
done
cp "$tokenizers"/llama3/chat_template.jinja exported
train 0 1 one-template model.init_from=exported data.tokenizer=talks data.validation=0 train.steps=2
[[ ! -e one-template/tokenizer/chat_template.jinja ]] || fail "the template of model.init_from goes before that of data.tokenizer"

# What is cut is said in one line, by rank 0; `trireme data` says it, too.
train 0 2 cut model.context=64 train.steps=1 parallel.dp=2
says cut "warning: of 12 conversations, [0-9]+ are cut after model.context 64 tokens, and [0-9]+ are skipped because no answer is left"
"$trireme" data base.yaml model.context=64 >data.out
grep -Eq '^note +of 12 conversations, ' data.out && grep -Eq '^answers +[0-9]+ tokens count in the loss, ' data.out || fail "data: $(<data.out)"

train 78 1 windows data.documents=windows
says windows "data.documents windows would cut conversations: .*"
{ cat "$examples"; echo '{"messages": [{"role": "user", "content": "a}]}'; } >bad.jsonl
train 65 2 bad data.path=bad.jsonl parallel.dp=2
says bad "'bad.jsonl', line 13: byte 43: a string does not end"
[[ ! -e bad ]] || fail "a refused run left $(ls -R bad)"
printf '{"prompt": "a", "answer": "\377"}\n' >bad.jsonl
train 65 2 bad data.path=bad.jsonl parallel.dp=2
says bad "'bad.jsonl' is not UTF-8: byte 27 of its text \(0xff\) .*"
[[ ! -e bad/ckpt ]] || fail "bad: something was written"
sed -i "s/, tokenizer:[^}]*//" base.yaml
train 78 1 without
says without "data.format instruct needs data.tokenizer: .*"
finish
