#!/usr/bin/env bash
# data train-bpe: the same file from the same text, in a file or a folder; tokenizers reads it and trains the
# same one, where Python has it; bad input leaves nothing behind.
# usage: train_bpe.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# learn WANT ARGUMENTS...
learn() {
    local want=$1 code=0
    shift
    timeout 120 "$trireme" data train-bpe "$@" >out 2>err || code=$?
    [[ $code == "$want" ]] || fail "train-bpe $*: exit code $code, not $want: $(<err)"
}

: >a.json.tmp # as a process that is killed while it writes leaves it
learn 0 "$text" --vocab 600 -o a.json
[[ ! -e a.json.tmp ]] || fail "a.json.tmp is left"
grep -q '^trained  600 tokens' out && grep -q '^text     60.8 kB, ' out || fail "the output: $(<out)"
mkdir folder
learn 0 "$text" -o folder --vocab 600
cmp -s a.json folder/tokenizer.json || fail "a folder gets another tokenizer"
learn 0 --vocab 600 "$text" -o new/
cmp -s a.json new/tokenizer.json || fail "a new folder gets another tokenizer"
grep -q '^wrote    new/tokenizer.json$' out || fail "the output: $(<out)"
for out in a.json folder new/; do # nothing is overwritten
    learn 64 "$text" --vocab 700 -o $out
    grep -qE "'(a.json|(folder|new)/tokenizer.json)' exists: remove it, or choose another -o" err || fail "$out exists: $(<err)"
    cmp -s a.json folder/tokenizer.json && cmp -s a.json new/tokenizer.json || fail "$out was overwritten"
done
cp "$text" ./--vocab
learn 0 -o dash.json --vocab 600 -- --vocab
cmp -s a.json dash.json || fail "a file after -- gives another tokenizer"
learn 0 "$text" --vocab 600 -o other.json --pattern llama3
cmp -s a.json other.json && fail "the pattern changes nothing"
printf 'abab' >short.txt
learn 0 short.txt --vocab 1000 -o short.json
grep -q '^note .* 259 tokens instead of 1000' out || fail "a short text: $(<out)"

# A compressed text is the same text.
gzip -c "$text" >text.gz
learn 0 text.gz --vocab 600 -o packed.json
cmp -s a.json packed.json || fail "a compressed text gives another tokenizer"

# Texts are read in parts, which leaves the tokenizer as it is: the same text often, also compressed.
for i in $(seq 30); do cat "$text"; done >once.txt
for i in 1 2 3; do gzip -1c once.txt; done >often.txt.gz
learn 0 often.txt.gz --vocab 600 -o often.json
cmp -s a.json often.json || fail "a text of several parts gives another tokenizer"
awk '{ gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); printf "{\"text\": \"%s\"}\n", $0 }' once.txt >once.jsonl
for i in 1 2 3; do gzip -1c once.jsonl; done >often.jsonl.gz
learn 0 once.jsonl --vocab 600 -o once.json
learn 0 often.jsonl.gz --vocab 600 -o often-lines.json
cmp -s once.json often-lines.json || fail "lines of JSON in several parts give another tokenizer"

# A few bytes that decompress to one endless word are refused, without the memory for all of them.
head -c 16777216 /dev/zero | gzip -1c >zeros
for i in 1 2 3 4 5 6; do cat zeros; done >zeros.gz
learn 65 zeros.gz --vocab 600 -o b.json
grep -q "'zeros.gz' has 67108864 bytes of text without a place where the pattern always cuts: divide them" err || fail "zeros: $(<err)"
head -c 17000000 /dev/zero >zeros.txt
learn 65 "$text" zeros.txt --vocab 600 -o b.json
grep -q "the text has a piece of 17000000 bytes that the pattern does not cut" err || fail "a long word: $(<err)"
rm -f zeros* often* once*

# Lines of JSON, with a byte-order mark: the same text as one line each. Every line of the text is a document.
{ printf '\xef\xbb\xbf'; awk '{ gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); printf "{\"id\": 1, \"body\": \"%s\"}\n", $0 }' "$text"; } >body.jsonl
learn 0 body.jsonl --vocab 600 -o body.json --key body
tr -d '\n' <"$text" >joined.txt
learn 0 joined.txt --vocab 600 -o joined.json
cmp -s body.json joined.json && fail "lines of JSON were joined"
learn 64 --vocab 600 -o b.json
learn 64 "$text" -o b.json
learn 64 "$text" --vocab 600
learn 64 "$text" --vocab 600 -o ""
learn 64 "$text" --vocab 256 -o b.json
learn 64 "$text" --vocab 99999999999 -o b.json
learn 64 "$text" --vocab 600 -o b.json --pattern words
learn 64 "$text" --vocab 600 -o b.json --fast
printf '{"text":"lines"}\n{"text": 3}\n' >lines.jsonl
learn 65 lines.jsonl --vocab 600 -o b.json
grep -q "'lines.jsonl', line 2, byte 10: .* (the key is \"text\")" err || fail "lines: $(<err)"
learn 65 lines.jsonl --vocab 600 -o b.json --key body
code=0
"$trireme" data tokenise x >out 2>err || code=$?
[[ $code == 64 ]] && grep -q "did you mean 'tokenize'" err || fail "tokenise: $code, $(<err)"
: >empty.txt
learn 65 empty.txt --vocab 600 -o b.json
printf 'word caf\351' >latin.txt
learn 65 "$text" latin.txt --vocab 600 -o b.json
grep -q "'latin.txt' is not UTF-8: byte 8 of its text (0xe9) " err || fail "latin: $(<err)"
learn 66 no-such-file --vocab 600 -o b.json
learn 74 "$text" --vocab 600 -o no/such/folder/b.json
learn 74 "$text" --vocab 600 -o /proc/b.json
for name in - /dev/stdout; do # stdout is a file
    learn 64 "$text" --vocab 600 -o $name
    grep -q "prints its progress to stdout: name a file or a folder, not $name$" err && [[ ! -e ./- ]] || fail "-o $name: $(<err)"
done
learn 64 "$text" --vocab 600 -o /dev/null
grep -q "'/dev/null' is not a regular file: choose another -o" err || fail "-o /dev/null: $(<err)"
[[ ! -e b.json && -z $(find . -name '*.tmp') ]] || fail "bad input left a file: $(ls)"

python=${TRIREME_PYTHON:-python3}
if "$python" -c 'import tokenizers' 2>err; then
    "$python" - "$text" >out 2>err <<'P' || fail "tokenizers: $(tail -n 1 err)"
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
t = Tokenizer(models.BPE())
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
t.train_from_iterator([open(sys.argv[1], newline="").read()], trainers.BpeTrainer(
    vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
ours, theirs = (json.loads(x.to_str())["model"] for x in (Tokenizer.from_file("a.json"), t))
assert ours["vocab"] == theirs["vocab"] and ours["merges"] == theirs["merges"], "another tokenizer"
P
else
    echo "train_bpe: the comparison with tokenizers is skipped: Python does not have it"
fi
finish
