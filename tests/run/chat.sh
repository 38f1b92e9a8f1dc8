#!/usr/bin/env bash
# Conversations: the answers are those of `sample -p` with the whole text so far, also on several
# ranks; turns of a chat template; a full context; Ctrl-C and Ctrl-D on a terminal.
# usage: chat.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
golden=$(realpath "$(dirname "$0")/../golden/tokenizers")
cd "$scratch"
export TERM=xterm NO_COLOR=1

# talk RANKS OUT ARGUMENTS...: answers to the lines of stdin
talk() {
    local ranks=$1 out=$2
    shift 2
    trireme_on "$ranks" sample "$@" --interactive >"$out" 2>"$out.err" || fail "chat $* on $ranks ranks: $(<"$out.err")"
}
# text_of MODEL PROMPT TOKENS OPTIONS...: what follows the prompt
text_of() {
    "$trireme" sample "$1" -p "$2" -n "$3" --temperature 0 "${@:4}" >sampled 2>sampled.err || fail "sample: $(<sampled.err)"
    tail -c "+$((${#2} + 1))" sampled
}

train 0 1 bytes
train 0 1 words data.format=text data.tokenizer="$golden/gpt2.json" model.vocab=1302 model.context=128 train.validate_every=0

# Without a template each line is added to the text so far.
printf 'The \n\nand he\n' | talk 1 plain bytes --temperature 0 -n 8
first=$(text_of bytes 'The ' 8)
second=$(text_of bytes "The ${first}and he" 8)
printf '%s\n%s\n' "$first" "$second" | cmp - plain || fail "other answers: '$(<plain)', not '$first' and '$second'"
for layout in '2' '2 parallel.tp=2' '4 parallel.pp=2 parallel.tp=2'; do
    read -ra words <<<"$layout"
    printf 'The \n\nand he' | talk "${words[0]}" several bytes --temperature 0 -n 8 "${words[@]:1}"
    cmp plain several || fail "other answers with $layout"
done

# The template's tokens surround the turns; the text of a special token in a turn is plain text with --no-special.
[[ -e words/tokenizer/tokenizer.json ]] || fail "the run has no tokenizer"
sed 's/"added_tokens":\[/&{"id":1300,"content":"<|im_start|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},{"id":1301,"content":"<|im_end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},/' \
    "$golden/gpt2.json" >words/tokenizer/tokenizer.json
turn() { printf '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n' "$1"; printf x; }
printf 'He who\nsees it\n' | talk 1 none words --temperature 0 -n 12 --repetition-penalty 3
printf '{"chat_template": "<|im_start|>{{ role }}\\n{{ content }}<|im_end|>\\n"}' >words/tokenizer/tokenizer_config.json
printf 'He who\nsees it\n' | talk 2 turns words --temperature 0 -n 12 --repetition-penalty 3 parallel.tp=2
prompt=$(turn 'He who') prompt=${prompt%x}
first=$(text_of words "$prompt" 12 --repetition-penalty 3; printf x) first=${first%?x}
prompt="$prompt$first<|im_end|>
$(turn 'sees it')" prompt=${prompt%x}
second=$(text_of words "$prompt" 12 --repetition-penalty 3; printf x) second=${second%?x}
printf '%s\n%s\n' "$first" "$second" | cmp - turns || fail "turns: '$(<turns)', not '$first' and '$second'"
! cmp -s none turns || fail "the template makes no difference"

# A system's turn comes first, in both forms; without a template there is none.
system='Answer in "one" word: '
with_system() {
    local run=$1 prompt=$2
    printf 'He who\n' | talk 2 system $run --system "$system" --temperature 0 -n 12 --repetition-penalty 3 parallel.tp=2
    text_of $run "$prompt" 12 --repetition-penalty 3 | cmp - system || fail "a system's turn: '$(<system)' after '$prompt'"
}
prompt="<|im_start|>system
$system<|im_end|>
<|im_start|>user
He who<|im_end|>
<|im_start|>assistant
"
with_system words "$prompt"
# Newlines of the template for which the tokenizer has no token are left out, as from a prompt.
mv words/tokenizer/tokenizer.json kept.json
sed -E 's/"[^" ]*Ċ[^" ]* [^" ]*",?//g; s/"[^" ]* [^" ]*Ċ[^" ]*",?//g; s/"[^" ]*Ċ[^" ]*":([0-9]+)/"(newline \1)":\1/g' kept.json >words/tokenizer/tokenizer.json
! grep -q Ċ words/tokenizer/tokenizer.json || fail "the tokenizer has a token for newlines"
with_system words "$prompt"
mv kept.json words/tokenizer/tokenizer.json
added() { printf '{"id":%d,"content":"%s","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},' "$@"; }
train 0 1 headers data.format=text data.tokenizer="$golden/gpt2.json" model.vocab=1303 model.context=128 train.validate_every=0 train.steps=5
sed "s/\"added_tokens\":\[/&$(added 1300 '<|start_header_id|>' 1301 '<|end_header_id|>' 1302 '<|eot_id|>')/" "$golden/gpt2.json" >headers/tokenizer/tokenizer.json
echo '{"chat_template": "<|start_header_id|>{{ role }}<|end_header_id|>\n\n{{ content }}<|eot_id|>"}' >headers/tokenizer/tokenizer_config.json
with_system headers "<|start_header_id|>system<|end_header_id|>

${system% }<|eot_id|><|start_header_id|>user<|end_header_id|>

He who<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"
code=0
printf 'He who' | "$trireme" sample words --interactive --system "$(printf 'a\377')" >bad.out 2>bad.err || code=$?
[[ $code == 64 ]] || fail "a system's text that is not UTF-8: exit code $code: $(<bad.err)"
code=0
printf 'He who' | "$trireme" sample bytes --interactive --system "$system" >bad.out 2>bad.err || code=$?
[[ $code == 78 && ! -s bad.out ]] || fail "a system's turn without a template: exit code $code: $(<bad.err)"
grep -q 'needs a chat template' bad.err || fail "a system's turn without a template: $(<bad.err)"
echo '{"chat_template": "[INST] {{ content }} [/INST]"}' >words/tokenizer/tokenizer_config.json
code=0
echo hello | "$trireme" sample words --interactive >other.out 2>other.err || code=$?
[[ $code == 65 && ! -s other.out ]] || fail "another template: exit code $code"
grep -q "knows only these two forms" other.err || fail "another template: $(<other.err)"

# The context has 32 positions.
printf 'The \nand \n' | talk 1 full bytes -n 20
[[ $(grep -c 'context of 32 tokens is full' full.err) == 1 ]] || fail "a full context: $(<full.err)"
printf 'bad \377\n' | talk 1 bad bytes
grep -q "the line is not UTF-8 text" bad.err || fail "bad text: $(<bad.err)"
[[ ! -s bad ]] || fail "an answer to bad text"
{ head -c 1500000 /dev/zero | tr '\0' a; echo; } | talk 1 long bytes -n 2
[[ $(grep -c 'longer than 1 MiB: it is cut' long.err) == 1 && $(wc -l <long) == 1 ]] || fail "a long line: $(<long.err)"
code=0
"$trireme" sample bytes --interactive -p x >/dev/null 2>usage.err </dev/null || code=$?
[[ $code == 64 ]] || fail "--interactive with -p: exit code $code"

# On a terminal Ctrl-C ends an answer without end; then it, or Ctrl-D, ends the conversation.
for ranks in 1 2; do
    words=("$trireme") prompt='^> $'
    if [[ $ranks != 1 ]]; then
        words+=(run -n "$ranks")
        prompt='> ' # mpirun may pass it on before the end of the answer, which is another output
    fi
    for key in '^C' '^D'; do
        code=0
        "$tools/pty_run" record 100x30 'wait:^> $' 'keys:The
' 'wait:.{40}' 'keys:^C' "wait:$prompt" 'keys:and
' 'wait:.{40}' 'keys:^C' "wait:$prompt" "keys:$key" -- "${words[@]}" sample bytes --interactive -n 1000000000 || code=$?
        [[ $code == 0 ]] || fail "terminal, $ranks ranks, $key: exit code $code: $(tail -c 500 record)"
        ! grep -q 'finishing\|aborted\|stopped' record || fail "terminal, $ranks ranks, $key: $(grep -a 'finishing\|aborted\|stopped' record)"
    done
done

# SIGTERM stops a conversation that waits for its second line.
mkfifo lines
exec {typed}<>lines
echo 'The ' >&"$typed"
"$trireme" run -n 2 sample bytes --interactive -n 4 <lines >term.out 2>term.err &
job=$! code=0
answered() { [[ -e term.out && $(wc -l <term.out) -ge 1 ]]; }
until_true 120 answered || fail "no answer: $(<term.err)"
kill -TERM $job
wait $job || code=$?
[[ $code == 75 ]] || fail "SIGTERM: exit code $code"
grep -q 'stopping on a signal' term.err || fail "SIGTERM: $(<term.err)"
! grep -q 'finishing this step' term.err || fail "SIGTERM: $(<term.err)"

# A stdin that another program has made non-blocking is waited for (dd leaves it so).
exec {in}<lines
dd iflag=nonblock count=0 status=none <&"$in"
"$trireme" run -n 2 sample bytes --interactive --temperature 0 -n 8 <&"$in" {typed}>&- >nonblocking 2>nonblocking.err &
job=$! code=0
first_rank() { [[ -n $(rank_process 0) ]]; }
until_true 60 first_rank || fail "non-blocking: no rank: $(<nonblocking.err)"
printf 'The \nand he\n' >&"$typed"
exec {typed}>&-
wait $job || code=$?
[[ $code == 0 ]] || fail "non-blocking: exit code $code: $(<nonblocking.err)"
cmp plain nonblocking || fail "non-blocking: other answers: '$(<nonblocking)', not '$(<plain)'"
finish
