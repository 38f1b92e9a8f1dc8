#!/usr/bin/env bash
# Text on several ranks is that of one rank, byte for byte; several prompts, stop strings, bad
# arguments, and a killed rank.
# usage: sampling.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
cd "$scratch"

# sample RANKS OUT ARGUMENTS...
sample() {
    local ranks=$1 out=$2
    shift 2
    trireme_on "$ranks" sample "$@" >"$out" 2>"$out.err" || fail "sample $* on $ranks ranks: $(<"$out.err")"
}
# refuses CODE SENTENCE RANKS ARGUMENTS...
refuses() {
    local want=$1 sentence=$2 ranks=$3 code=0
    shift 3
    trireme_on "$ranks" sample "$@" >refused.out 2>refused.err || code=$?
    [[ $code == "$want" ]] || fail "sample $*: exit code $code, not $want"
    grep -qF -- "$sentence" refused.err || fail "sample $*: '$(<refused.err)' without '$sentence'"
    [[ ! -s refused.out ]] || fail "sample $*: wrote a text"
}

train 0 1 gpt2
train 0 2 llama model.family=llama model.kv_heads=2 parallel.pp=2

# The context (32) becomes full on the way. What is not the text goes to stderr.
for run in gpt2 llama; do
    sample 1 "$run.one" "$run" -p 'The ' -n 60 --seed 3 train.threads=1
    grep -q 'the context of 32 tokens was full: the older half of a text was forgotten' "$run.one.err" || fail "$run: $(<"$run.one.err")"
    for layout in '2 parallel.pp=2' '3' '2 parallel.tp=2' '4 parallel.pp=2 parallel.tp=2'; do
        read -ra words <<<"$layout"
        sample "${words[0]}" "$run.several" "$run" -p 'The ' -n 60 --seed 3 train.threads=1 "${words[@]:1}"
        cmp "$run.one" "$run.several" || fail "$run: other text with $layout"
    done
done

# Greedy texts of several prompts together are those of each alone, whatever their lengths.
printf 'The \nHe who sees\n\nA\n' >prompts
sample 1 together gpt2 --prompts prompts -n 40 --temperature 0
sample 2 spread gpt2 --prompts prompts -n 40 --temperature 0 parallel.tp=2
cmp together spread || fail "other texts of several prompts on two ranks"
[[ $(wc -l <together) == 3 ]] || fail "three prompts gave $(wc -l <together) lines"
number=0
while read -r prompt; do
    [[ -n $prompt ]] || continue
    number=$((number + 1))
    grep -n . prompts | sed -n "${number}p" | sed 's/^[0-9]*://' >prompt
    sample 1 alone gpt2 -p "$(cat prompt)" -n 40 --temperature 0
    # The line's text, with its escapes resolved, follows the prompt.
    printf '%b\n' "$(sed -n "${number}p" together | sed 's/^.*"text":"\(.*\)"}$/\1/')" >lines
    tail -c "+$(($(wc -c <prompt)))" alone >follows
    cmp lines follows || fail "prompt $number: another text together than alone"
done <prompts

# Bytes are the tokens of a run that was trained on bytes. A folder and an imported run do not say what they were trained
# on, and have bytes only when their tokens are few: 600 need a tokenizer. So do ids from a file.
train 0 1 wide model.vocab=600 train.steps=1 optim.warmup=0
sample 1 bytes wide -p 'The ' -n 1
"$trireme" ckpt export wide folder >/dev/null || fail "no export"
"$trireme" ckpt import folder imported >/dev/null || fail "no import"
"$tools/token_files" u16 ids.bin <"$text"
train 0 1 ids data.path="$scratch/ids.bin" data.format=u16 train.steps=1 optim.warmup=0
for from in "folder 'folder'" "run 'imported'" "run 'ids'"; do
    refuses 78 "the prompt needs a tokenizer, which the $from does not have: name one with data.tokenizer=FILE" \
        1 "$(cut -d"'" -f2 <<<"$from")" -p 'The '
done

# A stop string ends the text in front of it; options that switch every choice off are greedy.
sample 1 greedy gpt2 -p 'The ' -n 40 --temperature 0
for off in '--top-k 1' '--top-p 0.0001' '--min-p 1'; do
    # shellcheck disable=SC2086
    sample 1 off gpt2 -p 'The ' -n 40 --temperature 1.3 $off
    cmp greedy off || fail "$off is not greedy"
done
stop=$(head -c 12 greedy | tail -c 3)
sample 1 stopped gpt2 -p 'The ' -n 40 --temperature 0 --stop "$stop"
{
    text=$(cat greedy)
    text=${text#The }
    printf 'The %s\n' "${text%%"$stop"*}"
} >wanted
cmp wanted stopped || fail "the stop string '$stop' gave '$(<stopped)'"

# What contradicts the run's model, also where no tensor shows it.
refuses 78 "model.window is 4, but the run 'gpt2' says 0: leave the key out" 1 gpt2 model.window=4
refuses 78 "model.preset is gpt2-124m, but the run 'gpt2' says tiny: leave the key out" 1 gpt2 model.preset=gpt2-124m
refuses 78 "model.lora.rank is 4, but the run 'gpt2' says 0: leave the key out" 2 gpt2 model.lora.rank=4
refuses 78 "model.context is 16, but the run 'gpt2' says 32: leave the key out" 1 gpt2 model.context=16
sample 1 shorter llama -p 'The ' -n 8 model.context=16 # its positions have no parameters
sample 1 whole gpt2 -p 'The ' -n 8 model.window=0 model.dropout=0.3
refuses 78 "parallel.dp is 2, but a text is decoded without data ranks" 2 gpt2 parallel.dp=2
refuses 78 "parallel.pp is 5, but the model has only 4 layers: use fewer ranks, or raise parallel.tp" 5 gpt2
refuses 78 "parallel.pp * parallel.tp is 2, but there are 3 ranks" 3 gpt2 parallel.tp=2
refuses 64 "more than one run: The (give a prompt with -p)" 1 gpt2 The
refuses 64 "-p and --prompts both give prompts" 1 gpt2 -p x --prompts prompts
refuses 64 "-p is given twice: write several prompts to a file" 1 gpt2 -p x -p y
refuses 64 "--prompts is given twice: " 1 gpt2 --prompts prompts --prompts=prompts
refuses 64 "--top-p must be above 0: 1 draws from all tokens" 1 gpt2 --top-p 0
refuses 64 "a stop string is empty" 1 gpt2 --stop ''
refuses 66 "the file of prompts 'none' cannot be opened" 1 gpt2 --prompts none
printf 'short\n\n%s\n' 'a prompt of thirty-three letters.' >long
refuses 65 "the prompt in line 3 of 'long' has 33 tokens, and model.context is 32: shorten it" 2 gpt2 --prompts long
refuses 65 "the prompt has 33 tokens, and model.context is 32: shorten it" 1 gpt2 -p "$(tail -n 1 long)"
sample 1 whole gpt2 -p "$(tail -c 33 long)" -n 1
[[ ! -s whole.err ]] || fail "a prompt that fills the context: $(<whole.err)"
: >empty
refuses 65 "the file of prompts 'empty' is empty" 1 gpt2 --prompts empty

# Of damaged parameters no part of a text is written, not even the prompt; the end of the file becomes NaN.
"$trireme" ckpt export gpt2 damaged >/dev/null
bytes=$(stat -c %s damaged/model.safetensors)
printf '\377%.0s' {1..4096} | dd of=damaged/model.safetensors bs=1 seek=$((bytes - 4096)) conv=notrunc status=none
for prompt in $'\n' 'The '; do
    refuses 65 "the model's logits are not finite: its parameters are damaged; " 1 damaged -p "$prompt"
done

printf 'good\nbad \377\n' >bad
refuses 65 "bad:2: the prompt is not UTF-8" 1 gpt2 --prompts bad
refuses 64 "the prompt is not UTF-8" 1 gpt2 -p $'bad \377'

# A CR within a line is part of the prompt.
printf 'The \rand\r\n' >returns
sample 1 returned gpt2 --prompts returns -n 0
grep -q '"prompt":"The \\u000dand"' returned || fail "a CR within a line: $(<returned)"
# Equal prompts get texts of their own, also beyond those that are made together; line ends of DOS, and a byte order mark.
printf '\357\273\277' >same
for ((i = 0; i < 17; i++)); do printf 'The \r\n'; done >>same
sample 1 many gpt2 --prompts same -n 20 --temperature 2 --seed 1
[[ $(sort -u many | wc -l) == 17 ]] || fail "equal prompts: $(sort -u many | wc -l) different texts of 17"
[[ $(grep -c '^{"prompt":"The ","text":"' many) == 17 ]] || fail "a line end or a mark is part of a prompt: $(head -n 1 many)"
sample 2 transport gpt2 -n 5 parallel.transport=mpi

# Every token is written when it comes; a reader that has enough ends the work.
"$tools/write_sizes" "$trireme" sample gpt2 -p 'The ' -n 40 --seed 3 >sizes 2>sizes.err || fail "sizes: $(<sizes.err)"
awk '$1 > 4 { bad = 1 } END { exit bad || NR < 20 }' sizes || fail "tokens did not come one by one: $(tr '\n' ' ' <sizes)"
codes=$(set +o pipefail; timeout 60 "$trireme" sample gpt2 -n 1000000000 2>closed.err | head -c 10 >closed.out; echo "${PIPESTATUS[@]}")
[[ $codes == '74 0' && -s closed.out ]] || fail "a reader that has enough: exit codes $codes"
grep -q '^trireme: the text cannot be written: Broken pipe' closed.err || fail "a reader that has enough: $(<closed.err)"

# So does one that reads from several ranks: the launcher ends them.
codes=$(set +o pipefail; timeout 60 "$trireme" run -n 2 sample gpt2 -n 1000000000 2>closed.err | head -c 10 >closed.out; echo "${PIPESTATUS[@]}")
[[ $codes == '74 0' && -s closed.out ]] || fail "a reader that has enough of two ranks: exit codes $codes"
grep -q '^trireme: stdout cannot be written: ' closed.err || fail "a reader that has enough of two ranks: $(<closed.err)"

# begin OUT COMMAND...: starts a sample without end, with no signal ignored, and returns when it has written
# something to OUT.out; $process is its process.
begin() {
    local out=$1
    shift
    rm -f "$out.out" # of an earlier one: the job's shell may empty it after the first look
    env --default-signal=INT "$@" sample gpt2 -n 1000000000 >"$out.out" 2>"$out.err" &
    process=$!
    until_true 120 test -s "$out.out" || fail "$out: no text: $(<"$out.err")"
}

# Ctrl-C and SIGTERM end it at the next token.
for signal in INT TERM; do
    code=0
    begin signal "$trireme"
    kill -$signal $process
    wait $process || code=$?
    [[ $code == 75 ]] || fail "SIG$signal: exit code $code"
    grep -q 'stopped before the end of the text' signal.err || fail "SIG$signal: $(<signal.err)"
done

# Ranks that were started with different arguments do not wait for each other.
code=0
apart "$trireme" sample gpt2 -n 5 parallel.pp=2 : "$trireme" sample gpt2 -n 9 parallel.pp=2 >apart.out 2>apart.err || code=$?
[[ $code == 64 ]] || fail "other arguments: exit code $code"
says apart 'rank 1 has other arguments of sample than rank 0: start every rank with the same command$'
apart "$trireme" sample gpt2 -n 5 parallel.pp=2 : "$trireme" sample gpt2 -n 5 parallel.pp=2 train.threads=1 --device.name=cpu \
    >machines.out 2>machines.err || fail "other threads: $(<machines.err)"

# A rank that is killed ends the others.
begin long "$trireme" run -n 2
job=$process
kill -KILL "$(rank_process 1)"
code=0
wait $process || code=$?
[[ $code == 77 ]] || fail "a killed rank: exit code $code: $(<long.err)"
grep -q 'lost rank 1 .*: next token for ' long.err || fail "a killed rank: $(<long.err)"

# A signal to the launcher: its sentence says nothing of steps.
begin signalled "$trireme" run -n 2
kill -TERM $process
wait $process || true
grep -q 'stopping on a signal' signalled.err || fail "SIGTERM: $(<signalled.err)"
! grep -q 'finishing this step' signalled.err || fail "SIGTERM: $(<signalled.err)"
finish
