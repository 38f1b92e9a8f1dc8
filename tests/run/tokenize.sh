#!/usr/bin/env bash
# data tokenize: the tokens do not depend on threads, compression, interruptions or on how a long text is
# divided among threads; what it writes is what training reads; bad input leaves no token file behind.
# usage: tokenize.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
here=$(realpath "$(dirname "$0")")
cd "$scratch"
bash "$here/make_tokenizer.sh" >tokenizer.json

# tokenize WANT PREFIX ARGUMENTS...
tokenize() {
    local want=$1 prefix=$2 code=0
    shift 2
    timeout 120 "$trireme" data tokenize --tokenizer tokenizer.json -o "$prefix" "$@" >"${prefix//\//_}.out" 2>"${prefix//\//_}.err" || code=$?
    [[ $code == "$want" ]] || fail "$prefix ($*): exit code $code, not $want: $(<"${prefix//\//_}.err")"
    if [[ $want != 0 && (-e $prefix.bin || -e $prefix.idx) ]]; then fail "$prefix: failed, and wrote a token file"; fi
}
same_files() { cmp "$1.bin" "$2.bin" && cmp "$1.idx" "$2.idx" || fail "$1 and $2 differ"; }

# Lines of JSON: each line of the text is a document.
awk '{ gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); printf "{\"id\": %d, \"text\": \"%s\\n\"}\n", NR, $0 }' "$text" >lines.jsonl
documents=$(wc -l <lines.jsonl)
tokenize 0 lines lines.jsonl --threads 1
grep -Eq "^tokens +[0-9]+ in $documents documents$" lines.out && grep -Eq '^read +[0-9.]+ kB of text' lines.out || fail "lines: $(<lines.out)"
[[ $(stat -c %s lines.idx) == $((34 + 20 * documents + 8)) ]] || fail "lines: the index has $(stat -c %s lines.idx) bytes"
cmp -s lines.tokenizer.json tokenizer.json || fail "lines: another tokenizer"
gzip -k lines.jsonl
tokenize 0 packed lines.jsonl.gz --threads 2
same_files packed lines
{ printf '\xef\xbb\xbf' && cat lines.jsonl; } >marked.jsonl
tokenize 0 marked marked.jsonl
same_files marked lines
awk '{ sub(/"text"/, "\"content\""); print }' lines.jsonl >other.jsonl
tokenize 0 keyed other.jsonl --key content
same_files keyed lines

# A long text, encoded at once by one thread (its lines begin with a space, where no cut is tried), and
# the same lines as they are; both in one output as two documents.
for ((i = 0; i < 60; i++)); do cat "$text"; done >long.txt
tokenize 0 long long.txt --threads 2
tokenize 0 single long.txt --threads 1
same_files long single
head -c 900000 long.txt >short.txt
tokenize 0 two short.txt long.txt
grep -q ' in 2 documents$' two.out || fail "two: $(<two.out)"

# The same text as one string, which nothing divides, has the same tokens.
awk 'BEGIN { printf "{\"text\": \"" } { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); printf "%s\\n", $0 } END { print "\"}" }' long.txt >long.jsonl
tokenize 0 string long.jsonl
same_files string long

# `trireme data` encodes the text in the same parts, in memory.
"$trireme" data base.yaml data.path=long.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 >data.out
grep -Eq "^tokens +$(sed -n 's/^tokens *\([0-9]*\) in.*/\1/p' long.out), " data.out || fail "data: $(<data.out)"

# A reader of Megatron's form and of the vocabulary, which was written without Trireme's code, finds the text of
# every document.
cat >read.py <<'P'
import array, json, struct, sys
prefix, key = sys.argv[1:3]
index = open(prefix + ".idx", "rb").read()
magic, version, kind, sequences, documents = struct.unpack_from("<9sQBQQ", index)
assert (magic, version) == (b"MMIDIDX\0\0", 1) and documents == sequences + 1
lengths = struct.unpack_from(f"<{sequences}i", index, 34)
pointers = struct.unpack_from(f"<{sequences}q", index, 34 + 4 * sequences)
assert struct.unpack_from(f"<{documents}q", index, 34 + 12 * sequences) == tuple(range(documents))
assert len(index) == 34 + 12 * sequences + 8 * documents
size = {4: 4, 8: 2}[kind]
ids = array.array({4: "i", 2: "H"}[size], open(prefix + ".bin", "rb").read())
if sys.byteorder == "big": ids.byteswap()
spec = json.load(open(prefix + ".tokenizer.json"))
own = [*range(33, 127), *range(161, 173), *range(174, 256)]
byte = {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in own)}
token = {i: bytes(byte[c] for c in text) for text, i in spec["model"]["vocab"].items() if text != "<|endoftext|>"}
at = 0
lines = open(sys.argv[3], "rb").read().splitlines() if key else None
for number, (length, pointer) in enumerate(zip(lengths, pointers)):
    assert pointer == at * size, f"document {number} begins at {pointer}"
    *text, end = ids[at:at + length]
    assert end == 300, f"document {number} ends with {end}"
    want = json.loads(lines[number])[key].encode() if key else open(sys.argv[3], "rb").read()
    assert b"".join(token[i] for i in text) == want, f"document {number} has another text"
    at += length
assert at == len(ids) and sequences == (len(lines) if key else 1)
P
if command -v python3 >/dev/null; then
    python3 read.py lines text lines.jsonl && python3 read.py long "" long.txt || fail "another reader finds other documents"
else
    echo "skipped: no python3, for another reader of the token files"
fi

# Digits without white space, which this tokenizer takes one by one, with a space in front of each.
digits=$here/../golden/tokenizers/prefix.json
for ((i = 0; i < 32; i++)); do od -An -v -tu1 "$text" | tr -d ' \n'; done >digits.txt
{ printf '{"text": "' && cat digits.txt && printf '"}\n'; } >digits.jsonl
tokenize 0 digits-string digits.jsonl --tokenizer "$digits"
tokenize 0 digits digits.txt --tokenizer "$digits" --threads 2
same_files digits digits-string

# Killed, and run again: unit.test_tokenize stops at every place.
tokenize 0 whole long.jsonl long.txt lines.jsonl
for ((i = 0; i < 3; i++)); do
    [[ -e killed.idx ]] || timeout -s KILL 0.1 "$trireme" data tokenize --tokenizer tokenizer.json -o killed long.jsonl long.txt lines.jsonl --threads 1 >/dev/null 2>&1 || true
done
if [[ ! -e killed.idx ]]; then
    tokenize 0 killed long.jsonl long.txt lines.jsonl
    [[ ! -e killed.part && ! -e killed.bin.part ]] || fail "killed: parts were left"
fi
same_files killed whole

# Stopped by a signal (one that is pending when the process starts): what was done is kept.
for signal in TERM USR1; do
    code=0
    env --block-signal=$signal sh -c 'kill -$0 $$; exec "$@"' $signal "$trireme" data tokenize --tokenizer tokenizer.json -o stopped long.jsonl long.txt lines.jsonl \
        --threads 1 >stopped.out 2>stopped.err || code=$?
    [[ $code == 75 && -s stopped.part && ! -e stopped.bin ]] || fail "stopped: exit code $code, not 75: $(ls stopped*)"
    grep -q '^trireme: stopped by a signal: the same command goes on from here$' stopped.err || fail "stopped: $(<stopped.err)"
    tokenize 0 stopped long.jsonl long.txt lines.jsonl
    grep -q '^continuing where an earlier process was stopped$' stopped.err || fail "stopped: $(<stopped.err)"
    same_files stopped whole
    rm stopped.*
done
env --block-signal=TERM sh -c 'kill -TERM $$; exec "$@"' sh "$trireme" data tokenize --tokenizer "$digits" -o parted digits.txt --threads 1 >parted.out 2>&1 && fail "parted: not stopped"
tokenize 0 parted digits.txt --tokenizer "$digits"
same_files parted digits

# Another process has the output.
: >held.bin.part
flock held.bin.part "$trireme" data tokenize --tokenizer tokenizer.json -o held lines.jsonl >held.out 2>held.err && fail "held: no failure"
grep -q "^trireme: another process is writing 'held'" held.err || fail "held: $(<held.err)"
rm held.bin.part

# What training reads.
train 0 1 run data.path=lines data.format=megatron data.documents=packed model.vocab=301 train.steps=3 optim.warmup=2
tokens=$(sed -n 's/^tokens *\([0-9]*\) in.*/\1/p' lines.out)
"$trireme" data base.yaml data.path=lines data.format=megatron model.vocab=301 data.documents=packed >data.out
grep -Eq "^tokens +$tokens, " data.out && grep -q "^documents $documents$" data.out || fail "data: $(<data.out)"

# The same text, tokenized when the run begins.
tokenize 0 short short.txt
train 0 1 files data.path=short.bin data.format=megatron model.vocab=301 train.steps=3 optim.warmup=2
train 0 1 text data.path=short.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=3 optim.warmup=2
same_curve text files
# Its tokens are kept in log.dir; a run that continues does not make them again, unless the text changed.
kept() { (cd "$1/tokens" && ls -i --time-style=+%s%N -l); }
[[ $(ls text/tokens | wc -l) == 2 ]] || fail "text: kept $(ls text/tokens)"
kept text >kept.before
train 0 2 text data.path=short.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=4 parallel.pp=2 --resume
kept text | cmp - kept.before || fail "text: the tokens were made again"
# Another run's folder stays as it is when this one's name is a pattern of it, and tokens without an index are made again.
cp short.txt other.txt
train 0 1 a data.path=other.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=1
kept a >kept.before
printf 'More.\n' >>other.txt
train 0 1 '[a]' data.path=other.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=1
kept a | cmp - kept.before || fail "[a]: it removed the tokens of a"
rm '[a]'/tokens/*.idx
train 0 1 '[a]' data.path=other.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=2 --resume
cp short.txt changed.txt && cp -r text changed
train 0 2 changed data.path=changed.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=5 parallel.pp=2 --resume
printf 'More text at the end of it.\n' >>changed.txt
train 0 1 changed data.path=changed.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=6 --resume data.changed=allow
grep -q "'changed.txt' is not the data that the checkpoint was made with (its first" changed.err || fail "changed: $(<changed.err)"
dd if=/dev/zero of=changed/tokens/"$(ls -t changed/tokens | grep bin | head -n 1)" bs=200 count=1 conv=notrunc status=none
train 78 1 changed data.path=changed.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=7 --resume
[[ $(ls changed/tokens | wc -l) == 4 ]] || fail "changed: kept $(ls changed/tokens)"
same_tensors text files 3
# An imported run has its tokenizer in log.dir; a run that began with a folder goes on without it.
"$trireme" ckpt export text folder >/dev/null && "$trireme" ckpt import folder brought >/dev/null
trireme_on 1 train brought/config.yaml data.path=short.txt data.format=text train.steps=2 --resume >out 2>err ||
    fail "brought: its tokenizer is not found: $(<err)"
train 0 1 began model.init_from=folder data.path=short.txt data.format=text model.vocab=301 train.steps=2
mv folder gone
trireme_on 2 train began/config.yaml train.steps=3 optim.warmup=2 parallel.pp=2 --resume >out 2>err || fail "began: not without its folder: $(<err)"
for run in files text; do cmp -s $run/tokenizer/tokenizer.json tokenizer.json || fail "$run: no copy of the tokenizer"; done
"$trireme" sample text -p 'The ' -n 60 --temperature 3 >sampled.out 2>sampled.err || fail "sample: $(<sampled.err)"
iconv -f UTF-8 -t UTF-8 sampled.out >/dev/null || fail "the sample is not UTF-8"
mv text/tokenizer text/elsewhere
refused 78 "the prompt needs a tokenizer, which the run 'text' does not have" sample text -p 'The '
"$trireme" sample text -p 'The ' -n 60 --temperature 3 data.tokenizer=tokenizer.json >named.out || fail "no sample with a named tokenizer"
cmp sampled.out named.out || fail "the sample does not use the tokenizer that is named"
mv text/elsewhere text/tokenizer
train 0 1 packed data.path=short.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301 train.steps=3 optim.warmup=2 data.documents=packed
grep -q 'document_end: 300$' packed/config.yaml || fail "packed: $(grep document_end packed/config.yaml)"
train 78 1 vocab data.path=short data.format=megatron model.vocab=300
says vocab "model.vocab 300 is too small: the tokenizer 'short.tokenizer.json' has 301 tokens: set model.vocab to 301 or more"
# A tokenizer next to the data that cannot be read: tokens need none, other data do.
cp short.bin alone.bin && cp short.idx alone.idx && echo '{' >alone.tokenizer.json
train 0 1 alone data.path=alone data.format=megatron model.vocab=301 train.steps=3 optim.warmup=2
says alone "warning: the tokenizer 'alone.tokenizer.json'.* \(these data can be read without a tokenizer, so none is used\)$"
same_curve alone files
[[ ! -e alone/tokenizer ]] || fail "alone: kept a tokenizer"
"$trireme" data base.yaml data.path=alone data.format=megatron model.vocab=301 >alone.data
grep -q "^note  *the tokenizer 'alone.tokenizer.json'" alone.data || fail "data: no note"
train 65 1 needed data.path=alone.bin data.format=u16 data.documents=packed model.vocab=301
says needed "the tokenizer 'alone.tokenizer.json'.*"
train 65 1 needed data.path=alone data.format=megatron model.vocab=301 data.tokenizer=alone.tokenizer.json
train 65 1 braces data.path=lines.jsonl data.format=text data.tokenizer=tokenizer.json model.vocab=301
says braces "'lines.jsonl' holds lines of JSON, which data.format text does not read: .*"
[[ ! -e braces ]] || fail "a refused run left $(ls -R braces)"
train 78 1 without data.path=short.txt data.format=text model.vocab=301
says without "data.format text needs data.tokenizer: .*"
train 66 1 named data.path=short.txt data.format=text model.vocab=301 data.tokenizer=none.json

# --- bad input ------------------------------------------------------------------------------------------

says_of() { grep -Eq -- "^trireme: $2" "$1.err" || fail "$1: said '$(<"$1.err")', not '$2'"; }
printf '{"text": "a"}\n\n{"text": "b}\n' >bad.jsonl
tokenize 65 bad bad.jsonl
says_of bad "'bad.jsonl', line 3, byte 10: a string does not end \(the key is \"text\"\)"
tokenize 65 nokey lines.jsonl --key body
says_of nokey "'lines.jsonl', line 1, byte 1: the object does not have that key \(the key is \"body\"\)$"
printf '{"text": "a"}\n{"prompt": "a", "answer": "b"}\n' >talk.jsonl
tokenize 65 talk talk.jsonl
says_of talk "'talk.jsonl', line 2, byte 1: the object .* \(the key is \"text\"\): it is a conversation; to train .* data.format instruct"
head -c 1000 lines.jsonl.gz >cut.jsonl.gz
tokenize 65 cut cut.jsonl.gz
says_of cut "'cut.jsonl.gz' is damaged near byte 1000: it was cut off"
{ cat "$text" && printf 'caf\351s\n'; } >latin.txt
at=$(($(stat -c %s "$text") + 3))
gzip -k latin.txt
tokenize 65 latin "$text" latin.txt
says_of latin "'latin.txt' is not UTF-8: byte $at of its text \(0xe9\) .* \(iconv -f LATIN1 -t UTF-8\), .*"
tokenize 65 packed-latin latin.txt.gz
says_of packed-latin "'latin.txt.gz' is not UTF-8: byte $at of its text \(0xe9\) .*"
printf '{"text": "a"}\n{"text": "\303"}\n' >half.jsonl
tokenize 65 half half.jsonl
says_of half "'half.jsonl' is not UTF-8: byte 24 of its text \(0xc3\) .*"
train 65 1 latin-text data.path=latin.txt data.format=text data.tokenizer=tokenizer.json model.vocab=301
says latin-text "'latin.txt' is not UTF-8: byte $at of its text \(0xe9\) .*"
[[ ! -e latin-text/ckpt ]] || fail "latin-text: something was written"
sed 's/endoftext/endof\xfftext/' tokenizer.json >broken.json
tokenize 65 broken short.txt --tokenizer broken.json
says_of broken "the tokenizer 'broken.json': this is not JSON: byte [0-9]+ is not UTF-8$"
# A hostile regular expression ends with the text that it fails on.
sed 's/"pre_tokenizer": {[^}]*}/"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false}/' \
    tokenizer.json >backtracks.json
printf 'b %099999d.' 0 | tr 0 a >backtracks.txt
printf '{"text": "b"}\n{"text": "%s"}\n' "$(<backtracks.txt)" >backtracks.jsonl
tokenize 65 backtracks backtracks.txt --tokenizer backtracks.json
says_of backtracks "'backtracks.txt': a regular expression of the tokenizer 'backtracks.json' fails at byte 0 of a text: match limit .*"
tokenize 65 backtracks backtracks.jsonl --tokenizer backtracks.json
says_of backtracks "'backtracks.jsonl', line 2: a regular expression of the tokenizer 'backtracks.json' fails at byte 0 of a text: .*"
tokenize 66 none none.txt
says_of none "the text file 'none.txt' cannot be opened: No such file"
mkdir hollow && mkfifo fifo
tokenize 65 hollow hollow
says_of hollow "the text file 'hollow' is a directory: name a regular file"
for path in hollow fifo; do
    code=0
    "$trireme" data tokenize short.txt --tokenizer $path -o $path >/dev/null 2>$path.err || code=$?
    [[ $code == 65 ]] || fail "--tokenizer $path: exit $code, not 65: $(<$path.err)"
done
says_of hollow "the folder 'hollow' has no tokenizer: "
says_of fifo "the tokenizer 'fifo' is a pipe: name a regular file"
code=0
"$trireme" data tokenize short.txt --tokenizer gpt2 -o gpt2 >/dev/null 2>gpt2.err || code=$?
[[ $code == 66 ]] || fail "--tokenizer gpt2: exit $code, not 66"
says_of gpt2 "the tokenizer 'gpt2' cannot be opened: No such file or directory; name a tokenizer.json, a tiktoken file, or a folder with one"
: >empty.jsonl
tokenize 65 empty empty.jsonl
says_of empty "there is no text in 'empty.jsonl': name another file"
: >nothing.txt
tokenize 65 nothing nothing.txt
says_of nothing "there is no text in 'nothing.txt': name another file"
tokenize 65 nothing nothing.txt nothing.txt
says_of nothing "there is no text in 'nothing.txt' and the files after it: name another file"
[[ ! -e nothing.bin.part && ! -e nothing.idx.part ]] || fail "nothing: parts were left"
mkdir nowhere && tokenize 74 nowhere/none/at short.txt
says_of nowhere_none_at "'nowhere/none/at.bin' cannot be written: No such file or directory: make its folder first"
tokenize 74 short.txt/at short.txt
says_of short.txt_at "'short.txt/at.bin' cannot be written: Not a directory: choose another -o"
code=0
"$trireme" data tokenize --tokenizer tokenizer.json -o lines lines.jsonl >again.out 2>again.err || code=$?
[[ $code == 64 ]] && says_of again "'lines.bin' exists: remove it, or choose another -o PREFIX"
code=0
"$trireme" data tokenize lines.jsonl -o x >x.out 2>x.err || code=$?
[[ $code == 64 ]] && says_of x "--tokenizer is missing: .*"
# wrong PATTERN ARGUMENTS...: a usage error that begins so.
wrong() {
    local pattern=$1 code=0
    shift
    "$trireme" data tokenize "$@" >wrong.out 2>wrong.err || code=$?
    [[ $code == 64 ]] && says_of wrong "$pattern" || fail "$*: exit code $code: $(<wrong.err)"
}
wrong 'unknown option --toknizer; did you mean --tokenizer\?$' short.txt --toknizer tokenizer.json -o x
wrong 'unknown option --nospecial; did you mean --no-special\?$' short.txt --tokenizer tokenizer.json -o x --nospecial
wrong 'unknown option --tokeniser; did you mean --tokenizer\?$' short.txt --tokeniser=t -o x
wrong 'a value is missing after -o; ' short.txt --tokenizer tokenizer.json -o
for folder in . .. some/ some/.; do wrong '-o takes the beginning of the output.s names, such as .*corpus, not a folder; ' short.txt --tokenizer tokenizer.json -o $folder; done
"$trireme" data tokenize --help >tokenize.help
grep -q -e '--threads N' tokenize.help || fail "no help"
finish
