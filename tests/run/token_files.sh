#!/usr/bin/env bash
# The same tokens from every format give the same bits; mixtures go on exactly where they were, on other
# layouts and with corpora added at their end; what does not fit the model ends with a sentence.
# usage: token_files.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
# Runs are continued with more steps: their learning rate's schedule is set apart from them.
sed -i 's/^optim: {/optim: {horizon: 1000, /' "$scratch/base.yaml"
cd "$scratch"

head -c 9000 "$text" >data.txt
head -c 4000 data.txt >first.txt
tail -c +4001 data.txt >second.txt
for format in u16 u32 llmc llmc3 megatron; do "$tools/token_files" $format data.$format <data.txt; done
for part in first second; do "$tools/token_files" llmc "$part shard.bin" <$part.txt; done
options=(train.steps=6 train.validate_every=3 checkpoint.every=3 checkpoint.keep=9)

# --- formats ------------------------------------------------------------------------------------------

train 0 1 bytes "${options[@]}" data.path=data.txt
# same_as WANT RUN ARGUMENTS...
same_as() {
    local want=$1 run=$2
    shift 2
    train 0 1 "$run" "${options[@]}" "$@"
    same_curve "$run" "$want"
    same_tensors "$run" "$want" 6
}
same_as bytes u16 data.path=data.u16 data.format=u16
same_as bytes u32 data.path=data.u32 data.format=u32
same_as bytes llmc data.path=data.llmc data.format=llmc
same_as bytes llmc3 data.path=data.llmc3 data.format=llmc
same_as bytes megatron data.path=data.megatron data.format=megatron
same_as bytes joined "data.path=first.txt second.txt"
same_as bytes shards "data.path='* shard.bin'" data.format=llmc
printf 'data: {path: [first shard.bin, "second shard*"], format: llmc}\n' | cat base.yaml - >list.yaml
sed -i '/^data: {path: \//d' list.yaml
trireme_on 1 train list.yaml log.dir=list "${options[@]}" >list.out 2>list.err || fail "list: $(<list.err)"
same_curve list bytes
train 0 1 packed "${options[@]}" data.path=data.txt data.documents=packed data.document_end=10
same_as packed packed-megatron data.path=data.megatron.bin data.format=megatron data.documents=packed
same_as packed packed-u16 data.path=data.u16 data.format=u16 data.documents=packed data.document_end=10
diff <(field packed loss) <(field bytes loss) >/dev/null && fail "packed documents change nothing"
# The plan of packed documents is the same, wherever their ends come from.
long=(data.documents=packed model.context=1024 train.micro_batch=48 train.batch=48)
plan() { "$trireme" plan base.yaml "${long[@]}" "$@" | grep '^0 '; } # the memory of rank 0, with its step inputs
[[ $(plan data.path=data.txt data.document_end=10 | tee plan.bytes) == $(plan data.path=data.megatron data.format=megatron) ]] ||
    fail "plan: the inputs of packed documents are not all planned: $(<plan.bytes)"
# llm.c's shards of GPT-2 say the token between documents.
train 0 1 separated "${options[@]}" data.path=data.llmc data.format=llmc data.documents=packed model.vocab=50257 train.steps=1
grep -q 'document_end: 50256$' separated/config.yaml || fail "separated: $(grep document_end separated/config.yaml)"
train 78 1 shards-small "${options[@]}" data.path=data.llmc data.format=llmc data.documents=packed
says shards-small "data.documents packed needs data.document_end, .*"

# --- mixtures -----------------------------------------------------------------------------------------

# 27 and 9 windows an epoch: several of both within 12 steps of 12.
head -c 1000 "$text" >a.txt
tail -c 400 "$text" >b.txt
tail -c 5000 "$text" >end.txt && head -c 700 end.txt >c.txt # no pipe: head would stop tail while it writes
options=(train.steps=12 train.validate_every=3 checkpoint.every=4 checkpoint.keep=9 data.validation=0.1)
mixture=("data.path=0.75 a.txt 0.25 b.txt")
train 0 1 mixed "${options[@]}" "${mixture[@]}"
for run in again pipeline; do cp -r mixed $run && rm -r "$(step_dir $run 8)" "$(step_dir $run 12)"; done
train 0 1 again --resume "${options[@]}" "${mixture[@]}"
[[ ! -s again.err ]] || fail "again: said '$(<again.err)'"
same_curve again mixed
same_tensors again mixed 12
train 0 2 pipeline --resume "${options[@]}" "${mixture[@]}" parallel.pp=2
same_curve pipeline mixed
same_tensors pipeline mixed 12
# Another data degree has other sums, and the same samples.
cp -r mixed data && rm -r "$(step_dir data 8)" "$(step_dir data 12)"
train 0 2 data --resume "${options[@]}" "${mixture[@]}" parallel.dp=2
paste <(field data loss) <(field mixed loss) | awk '{ d = $1 / $2 - 1; if (d > 1e-4 || d < -1e-4) bad = 1 } END { exit bad || NR != 12 }' ||
    fail "data: other samples: $(paste <(field data loss) <(field mixed loss) | tr '\n' ' ')"
[[ $("$trireme" data base.yaml "${mixture[@]}" data.validation=0.1 | grep -c '^weight    0\.[27]5$') == 2 ]] || fail "data does not show the weights"

# The mixture with another corpus from step 4 on.
added=("data.path=0.6 a.txt 0.2 b.txt 0.2 c.txt")
cp -r again grown && rm -r "$(step_dir grown 8)" "$(step_dir grown 12)"
train 0 1 grown --resume "${options[@]}" "${added[@]}"
says grown "warning: 'c.txt' was added to the mixture: its proportions are those of data.path from sample 48 on"
diff <(field grown loss | head -n 4) <(field mixed loss | head -n 4) >/dev/null || fail "grown: what was before changed"
diff <(field grown loss) <(field mixed loss) >/dev/null && fail "grown: the new corpus was never read"
cp -r grown twice && rm -r "$(step_dir twice 12)"
train 0 1 twice --resume "${options[@]}" "${added[@]}"
[[ ! -s twice.err ]] || fail "twice: said '$(<twice.err)'"
same_curve twice grown
same_tensors twice grown 12
# Before sample 48, a.txt and b.txt gave 36 and 12; the numbers of a corpus begin with its weight.
h5dump -d /state/mixture "$(step_dir grown 8)/index.h5" | tr -d '\n ' | sed 's/([0-9]*)://g' |
    grep -q '48,600000,36,1000,.*,200000,12,400,.*,200000,0,700,' ||
    fail "grown: $(h5dump -d /state/mixture "$(step_dir grown 8)/index.h5")"
# One corpus that becomes a mixture.
train 0 1 single "${options[@]}" data.path=a.txt train.steps=4
train 0 1 single --resume "${options[@]}" "data.path=0.5 a.txt 0.5 c.txt" train.steps=8
says single "warning: 'c.txt' was added to the mixture: .* from sample 48 on"

# A file that joins the end of a corpus is growth.
train 0 1 files "${options[@]}" "data.path=a.txt" train.steps=4
train 0 1 files --resume "${options[@]}" "data.path=a.txt c.txt" train.steps=8
says files "warning: 'a.txt and 1 more files' has grown from 1000 to 1700 bytes: the new bytes are read from epoch [0-9]+ on, .*"

# Two corpora that grow at the same time.
cp a.txt a2.txt && cp b.txt b2.txt
train 0 1 both "${options[@]}" "data.path=0.75 a2.txt 0.25 b2.txt" train.steps=4
cat c.txt >>a2.txt && cat c.txt >>b2.txt
train 0 1 both --resume "${options[@]}" "data.path=0.75 a2.txt 0.25 b2.txt" train.steps=8
says both "warning: 'a2.txt' has grown from 1000 to 1700 bytes: .*; 'b2.txt' has grown from 400 to 1100 bytes: .*"

# refused_resumption RUN PATTERN ARGUMENTS...: a resumption of the mixture.
refused_resumption() {
    local run=$1 pattern=$2
    shift 2
    rm -rf "$run" && cp -r again "$run"
    train 78 1 "$run" --resume "${options[@]}" train.steps=16 "$@"
    says "$run" "$pattern"
}
refused_resumption weights "'a.txt' is not the data that the checkpoint was made with: its weight is 0.7, and was 0.75; .*" "data.path=0.7 a.txt 0.3 b.txt"
refused_resumption fewer "'.*' is not the data .*: data.path mixes 1 corpora, and mixed 2; .*" data.path=a.txt
sed '3s/e/x/' b.txt >other.txt
refused_resumption other "'other.txt' is not the data .*: its 400 bytes have other content; .*" "data.path=0.75 a.txt 0.25 other.txt"
train 0 1 weights --resume "${options[@]}" train.steps=16 "data.path=0.7 a.txt 0.3 b.txt" data.changed=allow
says weights "warning: 'a.txt' is not the data that .*: epoch [0-9]+ begins with it"
train 0 1 weights --resume "${options[@]}" train.steps=18 "data.path=0.7 a.txt 0.3 b.txt"
[[ ! -s weights.err ]] || fail "weights: said '$(<weights.err)'"
train 0 1 fewer --resume "${options[@]}" train.steps=16 data.path=a.txt data.changed=allow
train 0 1 fewer --resume "${options[@]}" train.steps=18 data.path=a.txt
[[ ! -s fewer.err ]] || fail "fewer: said '$(<fewer.err)'"

# --- validation of its own ------------------------------------------------------------------------------

train 0 1 held "${options[@]}" data.path=a.txt data.validation=c.txt
[[ $(field held val_loss | grep -c '[0-9]') == 4 ]] || fail "held: $(field held val_loss | wc -l) validations"
train 66 1 held-none "${options[@]}" data.path=a.txt data.validation=none.txt
says held-none "the data file 'none.txt' cannot be opened: .* \(data.validation\)$"

# --- what does not fit ----------------------------------------------------------------------------------

LC_ALL=C tr 'e' '\377' <data.txt | "$tools/token_files" u16 high.u16
for ranks in 1 2; do
    train 78 $ranks high-$ranks "${options[@]}" data.path=high.u16 data.format=u16 model.vocab=255 parallel.dp=$ranks
    says high-$ranks "the data file 'high.u16' has 255 at token [0-9]+ \(byte [0-9]+\), and model.vocab 255 has tokens 0 to 254: raise model.vocab, or check data.format"
done
# Bytes as tokens need 256 of them in every command; tokens of a file do not.
small="model.vocab 200 is too small: without a tokenizer (data.format bytes) there are 256 tokens"
train 78 1 small "${options[@]}" data.path=a.txt model.vocab=200
grep -qF "$small" small.err || fail "small: said '$(<small.err)'"
"$tools/token_files" u16 low.bin <data.txt
train 0 1 low "${options[@]}" data.path=low.bin data.format=u16 model.vocab=200
"$trireme" ckpt export low low-folder >/dev/null || fail "no export of low"
"$trireme" eval low --data low.bin >/dev/null || fail "no evaluation of low"
echo '{"context":"a","choices":["b","c"],"label":1}' >low.jsonl
refused 78 "the prompt needs a tokenizer" sample low
refused 78 "$small" sample low-folder
for from in low low-folder; do refused 78 "$small" eval "$from" --data a.txt data.format=bytes; done
refused 78 "$small" eval low-folder --data a.txt
refused 78 "$small" eval low-folder --data low.jsonl
train 78 1 quote "${options[@]}" "data.path='a.txt"
says quote "data.path has a quote ' that does not end: close it, or write .* before it"
head -c 3000 data.megatron.idx >cut.idx && cp data.megatron.bin cut.bin
train 65 2 cut "${options[@]}" data.path=cut data.format=megatron parallel.dp=2
says cut "the index 'cut.idx' has 3000 bytes, which its .* do not fill: it was cut off or damaged"
[[ ! -e cut/ckpt ]] || fail "cut: a checkpoint was made"

# An evaluation finds the format of files that show theirs, whichever of a pair is named.
want=$("$trireme" eval bytes --data data.txt) || fail "no evaluation of bytes"
for file in data.llmc data.llmc3 data.megatron data.megatron.bin data.megatron.idx; do
    [[ $("$trireme" eval bytes --data $file) == "${want//data.txt/$file}" ]] || fail "eval --data $file: another loss"
done
finish
