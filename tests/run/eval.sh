#!/usr/bin/env bash
# Tests trireme eval: the loss is that of the run's own validation and the same on every layout; questions are
# answered as losses of whole texts say; bad input.
# usage: eval.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
here=$(realpath "$(dirname "$0")")
cd "$scratch"

# evaluate RANKS OUT ARGUMENTS...
evaluate() {
    local ranks=$1 out=$2
    shift 2
    trireme_on "$ranks" eval "$@" >"$out" 2>"$out.err" || fail "eval $* on $ranks ranks: $(<"$out.err")"
}
# refuses CODE SENTENCE RANKS ARGUMENTS...
refuses() {
    local want=$1 sentence=$2 ranks=$3 code=0
    shift 3
    trireme_on "$ranks" eval "$@" >refused.out 2>refused.err || code=$?
    [[ $code == "$want" ]] || fail "eval $*: exit code $code, not $want: $(<refused.err)"
    grep -qF -- "$sentence" refused.err || fail "eval $*: '$(<refused.err)' without '$sentence'"
    [[ ! -s refused.out ]] || fail "eval $*: wrote a result"
}
# number FILE KEY: prints a number of a line of JSON.
number() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$1"; }
# close_to A B TOLERANCE
close_to() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(d <= t * b && -d <= t * b) }'; }

# 189 held-out windows are 15 batches of 12, and 9 more. The run measures them all, as the command does.
train 0 2 run train.steps=10 train.batch=12 train.micro_batch=3 train.validate_batches=0 data.validation=0.1 parallel.pp=2 optim.lr=0.01
evaluate 1 one run --json
close_to "$(number one loss)" "$(field run val_loss | tail -n 1)" 1e-14 || fail "the loss is $(number one loss), not that of the run"
[[ $(number one tokens) == 6048 && $(number one bytes) == 6048 ]] || fail "other tokens: $(<one)"
close_to "$(number one perplexity)" "$(awk -v l="$(number one loss)" 'BEGIN { print exp(l) }')" 1e-4 || fail "the perplexity of $(<one)"
close_to "$(number one bits_per_byte)" "$(awk -v l="$(number one loss)" 'BEGIN { print l / log(2) }')" 1e-5 || fail "bits of $(<one)"
for layout in '2 parallel.pp=2' '4 ' '2 parallel.dp=2' '4 parallel.pp=2 parallel.dp=2'; do
    read -ra words <<<"$layout"
    evaluate "${words[0]}" several run --json train.threads=1 "${words[@]:1}"
    cmp one several || fail "another loss with $layout"
done
for layout in '2 parallel.tp=2' '4 parallel.pp=2 parallel.tp=2'; do
    read -ra words <<<"$layout"
    evaluate "${words[0]}" several run --json train.threads=1 "${words[@]:1}"
    close_to "$(number several loss)" "$(number one loss)" 1e-6 || fail "another loss with $layout: $(<several)"
done
evaluate 1 words run
for line in loss perplexity 'bits per byte'; do grep -q "^$line  *[0-9]" words || fail "no line of $line"; done
evaluate 1 early run --step 10 --json
cmp one early || fail "--step 10 is another step"
# Keys that only training reads are named; those of the run's own config are not.
evaluate 2 idle run --json --optim.lr=3 train.steps=7 parallel.pp=2 train.precision=fp32
cmp one idle || fail "keys for training change the loss: $(<idle)"
[[ $(grep -o "^trireme: note: eval does not read .*" idle.err) == $(printf 'trireme: note: eval does not read %s, which is for training\n' optim.lr train.steps) ]] ||
    fail "keys for training: $(<idle.err)"
[[ ! -s one.err ]] || fail "eval run: $(<one.err)"
evaluate 1 short run --json model.context=20
[[ $(number short sequences) == 303 ]] || fail "shorter sequences: $(<short)"

# Several files are one text, as in data.path.
printf '%s' "The man said that it was " >"a 1.txt"
printf '%s' "so, and went away." >b1.txt
cat "a 1.txt" b1.txt >both.txt
evaluate 1 both run --data both.txt --json
for files in "'a 1.txt' b1.txt" "a*.txt b?.txt"; do
    evaluate 1 parts run --data "$files" --json
    [[ $(number parts loss) == "$(number both loss)" && $(number parts bytes) == "$(number both bytes)" ]] ||
        fail "$files: $(<parts), not $(<both)"
done
cp both.txt $'both\xff.txt'
evaluate 1 named run --data $'both\xff.txt' --json
grep -qaF '{"data":"both?.txt",' named || fail "a name that is not UTF-8: $(<named)"
refuses 64 "--data takes files without weights" 1 run --data '0.5 both.txt 0.5 b1.txt'
refuses 66 "no file" 1 run --data 'none-*.txt'

# Questions. The loss of an ending is the loss of the whole text less that of the context.
nats() { # TEXT: of all its bytes but the first
    printf '%s' "$1" >part
    evaluate 1 part.out run --data part --json
    awk -v l="$(number part.out loss)" -v n="$(number part.out tokens)" 'BEGIN { printf "%.12f\n", l * n }'
}
contexts=('The devil is' 'A man' 'Love: the ')
endings=('an old one|e|zq xx' 'who sees it|and her' 'thing that was|of the|xxxxx|e')
: >questions.jsonl
: >other.jsonl
for q in 0 1 2; do
    base=$(nats "${contexts[q]}") best='' list=''
    IFS='|' read -ra choice <<<"${endings[q]}"
    for k in "${!choice[@]}"; do
        whole="${contexts[q]}"
        [[ $whole == *' ' ]] || whole+=' '
        all=$(nats "$whole${choice[k]}")
        awk -v a="$all" -v b="$base" -v n="${#choice[k]}" -v k="$k" 'BEGIN { print a - b, (a - b) / n, k }' >>"losses.$q"
        list+="${list:+,}\"${choice[k]}\""
    done
    best=$(sort -g "losses.$q" | head -n 1 | cut -d ' ' -f 3)
    by_length=$(sort -g -k 2 "losses.$q" | head -n 1 | cut -d ' ' -f 3)
    echo "{\"context\":\"${contexts[q]}\",\"choices\":[$list],\"label\":$best}" >>questions.jsonl
    echo "{\"ctx\":\"${contexts[q]}\",\"endings\":[$list],\"gold\":\"$by_length\"}" >>other.jsonl
done
evaluate 1 answers run --data questions.jsonl --json
refuses 64 "--data takes one file of questions" 1 run --data '*.jsonl'
refuses 64 "'other.jsonl' has questions" 1 run --data 'both.txt other.jsonl'
[[ $(number answers acc) == 1 && $(number answers questions) == 3 ]] || fail "answers: $(<answers) $(cat losses.*)"
evaluate 1 others run --data other.jsonl --json
[[ $(number others acc_norm) == 1 ]] || fail "answers by length: $(<others) $(cat losses.*)"
for layout in '2 parallel.pp=2' '2 parallel.dp=2'; do
    read -ra words <<<"$layout"
    evaluate "${words[0]}" several run --data questions.jsonl --json "${words[1]}"
    cmp answers several || fail "other answers with $layout"
done
evaluate 1 shown run --data questions.jsonl
grep -q '^accuracy  *1.0000 +- 0.0000' shown || fail "no accuracy in $(<shown)"

# llm.c's layout: transformers' answers to the same questions.
golden=$here/../golden
for model in gpt2-hub qwen3; do
    want=$golden/questions/$model.json
    sed 's/: /:/g' "$want" >want
    for layout in '1 ' '2 parallel.tp=2'; do
        read -ra words <<<"$layout"
        evaluate "${words[0]}" answered "$golden/hf/$model" --data "$golden/questions/$model.bin" --json "${words[@]:1}"
        for key in acc acc_norm acc_stderr acc_norm_stderr; do
            close_to "$(number answered $key)" "$(number want $key)" 1e-12 || fail "$model $layout: $(<answered), not $(<want)"
        done
    done
done
refuses 64 "has questions" 1 "$golden/hf/qwen3" --data "$golden/questions/*.bin"

# The same answers while training, which do not change its bits; a resumed run has each record once.
asked=(train.steps=4 train.batch=8 train.micro_batch=2 train.validate_every=2 checkpoint.every=2 checkpoint.keep=9 data.validation=0 optim.lr=0.01)
questions=(train.eval='questions.jsonl other.jsonl')
for layout in '1 ' '2 parallel.pp=2' '2 parallel.dp=2'; do
    read -ra words <<<"$layout"
    rm -rf unasked asked
    train 0 "${words[0]}" unasked "${asked[@]}" "${words[@]:1}"
    train 0 "${words[0]}" asked "${asked[@]}" "${questions[@]}" "${words[@]:1}"
    diff <(field unasked loss) <(field asked loss) >/dev/null || fail "train.eval changes the losses with $layout"
    [[ $(wc -l <asked/eval.jsonl) == 4 ]] || fail "records with $layout: $(<asked/eval.jsonl)"
    line=0
    for step in 2 4; do
        for file in questions other; do
            line=$((line + 1))
            sed -n "${line}p" asked/eval.jsonl >record
            evaluate 1 later asked --data $file.jsonl --step $step --json parallel.pp=1 parallel.dp=1
            for key in step acc acc_stderr acc_norm acc_norm_stderr; do
                want=$(number later $key)
                [[ $key == step ]] && want=$step
                [[ $(number record $key) == "$want" ]] || fail "$layout, step $step: $(<record), not $(<later)"
            done
            grep -q "\"eval\":\"$file.jsonl\"" record || fail "another file: $(<record)"
        done
    done
done
# Of a run with a damaged newest checkpoint the one before it is used, which is said; a folder has none.
evaluate 1 before asked --data questions.jsonl --step 2
cp -r asked damaged
rm damaged/ckpt/step-00000004/shard-*
evaluate 1 after damaged --data questions.jsonl
cmp before after || fail "the damaged step: $(<after)"
trireme_on 1 sample damaged -p a -n 1 >/dev/null 2>sample.err
trireme_on 1 ckpt export damaged exported >/dev/null 2>export.err
for command in after sample export; do
    grep -q '^trireme: warning: using step 2, because a newer one is not valid: .*step-00000004' $command.err || fail "$command: $(<$command.err)"
done
[[ ! -s before.err ]] || fail "a named step: $(<before.err)"
cp asked/eval.jsonl whole
rm -r asked/ckpt/step-00000004
train 0 2 asked "${asked[@]}" "${questions[@]}" parallel.dp=2 --resume
cmp whole asked/eval.jsonl || fail "other records of a resumed run: $(<asked/eval.jsonl)"
# A run that is asked to stop leaves out the answers of its last step, and says what makes them.
code=0
timeout 300 "$trireme" run -n 2 train base.yaml log.dir=stopped "${asked[@]}" train.eval=questions.jsonl train.validate_every=1 \
    checkpoint.every=0 train.steps=1000000 parallel.pp=2 >stopped.out 2>stopped.err &
job=$!
until_true 120 past stopped 1 || fail "no step"
kill -TERM $job
wait $job || code=$?
last=$(field stopped step | tail -n 1)
[[ $code == 75 && $(tail -n 1 stopped/eval.jsonl) != *"\"step\":$last,"* ]] || fail "stopped: exit code $code, $(tail -n 1 stopped/eval.jsonl)"
grep -Eq "^trireme: warning: the run stops without the answers of step $last: .trireme eval stopped --step $last --data FILE. makes them$" \
    stopped.err || fail "stopped: $(<stopped.err)"
# Parameters that overflow end the run, which names the step.
train 65 2 beyond "${asked[@]}" "${questions[@]}" train.validate_every=1 train.precision=fp16 optim.lr=1000 optim.warmup=0 parallel.pp=2
says beyond 'training has diverged: after step 1 the losses of train.eval are not finite; lower optim.lr, .*'
train 66 1 refused "${asked[@]}" train.eval=none.jsonl
says refused "the text file 'none.jsonl' cannot be opened: No such file or directory \(train.eval\)"
train 66 1 refused "${asked[@]}" train.eval='questions.jsonl none*.jsonl'
says refused "no file matches 'none\*.jsonl' \(train.eval\)"
echo '{"context":"a","choices":["b","c"],"label":2}' >bad.jsonl
train 65 2 refused "${asked[@]}" train.eval=bad.jsonl parallel.pp=2
[[ ! -s refused/metrics.jsonl ]] || fail "a step was taken with bad questions"

# A tokenizer, and a folder of transformers.
bash "$here/make_tokenizer.sh" >tokenizer.json
train 0 1 tokens model.vocab=320 data.format=text data.tokenizer=tokenizer.json train.steps=2 data.validation=0.1
cp -r tokens torn
truncate -s 30 torn/tokens/*.idx
train 65 1 torn model.vocab=320 data.format=text data.tokenizer=tokenizer.json train.steps=3 data.validation=0.1 --resume
says torn "the tokens in '.*torn/tokens' are damaged: remove this folder, and the run makes them again \\(the index '.*"
"$trireme" ckpt export tokens folder >/dev/null
head -c 2000 "$text" >some.txt
evaluate 1 of_run tokens --data some.txt --json
evaluate 2 of_folder folder --data some.txt --json parallel.pp=2 train.micro_batch=1 train.threads=1 # as the run
close_to "$(number of_folder loss)" "$(number of_run loss)" 1e-14 || fail "another loss of the folder: $(<of_folder), not $(<of_run)"
# An adapter without a tokenizer, such as PEFT writes, has that of its model. Without dropout both add in the same order.
train 0 1 low model.init_from=folder model.vocab=320 model.dropout=0 model.lora.rank=2 data.format=text data.validation=0 train.steps=1
"$trireme" ckpt export low adapter --adapter >/dev/null
rm adapter/tokenizer.json
evaluate 1 of_low low --data some.txt --json
evaluate 1 of_adapter adapter --data some.txt --json train.micro_batch=1 train.threads=1
close_to "$(number of_adapter loss)" "$(number of_low loss)" 1e-14 || fail "another loss of the adapter: $(<of_adapter), not $(<of_low)"
for model in low adapter; do "$trireme" sample $model -p "The man" -n 8 --temperature 0 >"text.$model"; done
cmp text.low text.adapter || fail "another text of the adapter"
# The first token is not a label.
(($(number of_run bytes) >= 1990 && $(number of_run bytes) <= 2000 && $(number of_run tokens) < 1900)) || fail "bytes of $(<of_run)"
evaluate 1 held tokens --json
[[ $(number held loss) == [0-9]* ]] || fail "no loss: $(<held)"
refuses 66 "the data file 'none.txt' cannot be opened" 1 tokens data.path=none.txt
# A run on bytes has no tokenizer: one that is named is refused, and that of model.init_from is not used.
train 78 1 refused data.tokenizer=tokenizer.json
says refused "data.tokenizer is set, but data.format bytes makes every byte a token: .*"
train 0 1 on_bytes model.vocab=320 model.init_from=folder train.steps=1 optim.warmup=0 data.validation=0.1
says on_bytes ".*with data.format bytes every byte is a token, although 'folder' has a tokenizer: data.format=text uses it"
evaluate 1 bytes_held on_bytes --json
[[ $(number bytes_held bytes) == $(number bytes_held tokens) ]] || fail "tokens of a run on bytes: $(<bytes_held)"

# Bad input.
refuses 64 'has no data of its own' 1 folder
refuses 64 'no held-out part of data.path: name the file with --data FILE' 1 folder data.path=some.txt
refuses 64 'no run directory' 1
refuses 64 '--data is given twice: name several files in one' 1 run --data a.txt --data b.txt
refuses 64 'did you mean' 1 run --date x
refuses 64 'folder of a model, which has no steps: leave out --step' 1 folder --data some.txt --step 3
refuses 66 'none.txt' 1 run --data none.txt
refuses 66 'nothing' 1 nothing
refuses 78 'but there are 2 ranks' 2 run parallel.pp=3
refuses 78 'trained with 32' 1 run model.context=64
refuses 78 "model.norm_eps is 0.1, but the run 'run' says 1e-05: leave the key out" 1 run model.norm_eps=0.1
refuses 78 'has only 4 layers' 8 run parallel.pp=8
refuses 78 'parallel.transport=nccl connects GPUs, but device.name=cpu is not a GPU: set parallel.transport=auto' 2 run parallel.transport=nccl
printf a >one_byte
refuses 65 "'one_byte' has one token: a loss needs two" 1 run --data one_byte
printf '\n\n\n' >ends
refuses 65 'no token counts: every label is behind the end of a document' 1 run --data ends data.documents=packed data.document_end=10
echo '{"context":"a","choices":["b","c"],"label":2}' >bad.jsonl
refuses 65 'bad.jsonl:1: the label is 2' 2 run --data bad.jsonl
echo '{"context":"a","choices":["b",' >bad.jsonl
refuses 65 'bad.jsonl:1: this is not valid JSON' 1 run --data bad.jsonl
printf '{"context":"a\377","choices":["b","c"],"label":0}\n' >bad.jsonl
refuses 65 "'bad.jsonl' is not UTF-8: byte 13 of its text (0xff)" 1 run --data bad.jsonl
printf '{"context":"%040d","choices":["b","c"],"label":0}\n' 0 >bad.jsonl
refuses 65 'have 42 tokens together, and model.context 32 allows at most 33' 1 run --data bad.jsonl
: >empty
refuses 65 'empty' 1 run --data empty
mkfifo pipe
refuses 65 'pipe' 1 run --data pipe
mkdir hollow
refuses 65 "hollow' is a directory: name a regular file" 1 run --data hollow
refuses 65 "'hollow' has neither checkpoints (hollow/ckpt) nor a config.json" 1 hollow
printf '{"context": "Once \\\\u0000x", "choices": ["a", "b"], "label": 0}\n{"context": "Once\\u0000x", "choices": ["a", "b"], "label": 0}\n' >zero.jsonl
refuses 65 'zero.jsonl:2: the text at byte 17 has a zero character' 1 run --data zero.jsonl
refuses 78 '--data does not take data.format instruct' 1 run --data zero.jsonl data.format=instruct
mv folder/tokenizer.json folder/kept
rm -f folder/tokenizer_config.json
evaluate 1 bytes folder --data some.txt --json
[[ $(number bytes tokens) == 1999 ]] || fail "bytes are tokens of a folder without a tokenizer: $(<bytes)"
refuses 76 'device.memory' 1 run device.memory=5000

# A rank that is killed ends the others. It has evaluated for long when it has used three seconds of a core, since
# MPI and this model take a fraction of one.
for ((i = 0; i < 600; i++)); do cat "$text"; done >long.txt
timeout 300 "$trireme" run -n 2 eval run --data long.txt train.threads=1 >killed.out 2>killed.err &
job=$!
used() { local victim; victim=$(rank_process 1); [[ $victim ]] && (($(cut -d ' ' -f 14 "/proc/$victim/stat") > 3 * $(getconf CLK_TCK))); }
until_true 120 used || fail "no evaluation on two ranks: $(<killed.err)"
kill -KILL "$(rank_process 1)"
code=0
wait "$job" || code=$?
[[ $code == 77 && ! -s killed.out ]] || fail "a killed rank: exit code $code, and on stdout '$(<killed.out)'"
says killed 'lost rank 1 .*: .*evaluation for '
finish
