#!/usr/bin/env bash
# What an import or an export of weights leaves that does not come to its end: after a signal nothing, after
# SIGKILL what the next one removes; few descriptors for many files; models that Trireme cannot read.
# usage: transfer.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1
scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
models=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../golden/hf")
cd "$scratch"

# A run of 300 MB without data of its own: a sparse file.
width=1024 vocab=65536
mkdir -p large
header="{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[$vocab,$width],\"data_offsets\":[0,$((2 * vocab * width))]}"
at=$((2 * vocab * width))
tensor() { # NAME SHAPE ELEMENTS
    header+=",\"$1.weight\":{\"dtype\":\"BF16\",\"shape\":[$2],\"data_offsets\":[$at,$((at + 2 * $3))]}"
    at=$((at + 2 * $3))
}
tensor model.norm $width $width
for name in q k v o; do tensor "model.layers.0.self_attn.${name}_proj" "$width,$width" $((width * width)); done
for name in gate up; do tensor "model.layers.0.mlp.${name}_proj" "64,$width" $((64 * width)); done
tensor model.layers.0.mlp.down_proj "$width,64" $((64 * width))
for name in input post_attention; do tensor "model.layers.0.${name}_layernorm" $width $width; done
header+='}'
length=$(printf %016x ${#header}) bytes=
for i in 14 12 10 8 6 4 2 0; do bytes+="\\x${length:i:2}"; done
printf '%b%s' "$bytes" "$header" >large/model.safetensors
truncate -s $((8 + ${#header} + at)) large/model.safetensors
cat >large/config.json <<J
{"model_type": "llama", "vocab_size": $vocab, "hidden_size": $width, "num_hidden_layers": 1, "num_attention_heads": 8,
 "intermediate_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": true}
J
"$trireme" ckpt import large run >/dev/null || fail "import of the large model"

# stopped SIGNAL RANK PATTERN FOLDER DONE COMMAND...: runs the command and signals it (RANK -: this process, otherwise
# that rank) when a path matches; a command that was faster, so that it ended well or made DONE, is repeated. Sets
# $code.
stopped() {
    local signal=$1 rank=$2 pattern=$3 folder=$4 done=$5 tries to
    shift 5
    for ((tries = 0; tries < 50; tries++)); do
        rm -rf "$folder"
        code=0
        "$trireme" "$@" >said 2>err &
        job=$!
        to=$job
        until [[ $rank == - || $to != "$job" ]] || ! kill -0 $job 2>/dev/null; do
            to=$(rank_process "$rank" || true)
            to=${to:-$job}
        done
        until compgen -G "$pattern" >/dev/null || ! kill -0 $job 2>/dev/null; do :; done
        kill "-$signal" $to 2>/dev/null || true
        wait $job || code=$?
        [[ $code == 0 || -e $done ]] || return 0
    done
    fail "$*: ended $tries times before SIG$signal"
}

for ranks in 1 2; do
    launch=()
    [[ $ranks == 1 ]] || launch=(run -n "$ranks")
    stopped TERM - 'out.tmp-*' out out "${launch[@]}" ckpt export run out
    [[ $code == 75 ]] || fail "an export on $ranks ranks that was stopped: exit code $code: $(<err)"
    grep -q 'the export was stopped' err || fail "an export that was stopped: $(<err)"
    [[ -z $(compgen -G 'out*') ]] || fail "an export on $ranks ranks that was stopped left $(ls -d out*)"

    stopped TERM - 'new/.ckpt-import/.tmp-*' new new/ckpt "${launch[@]}" ckpt import large new
    [[ $code == 75 ]] || fail "an import on $ranks ranks that was stopped: exit code $code: $(<err)"
    grep -q 'the import was stopped' err || fail "an import that was stopped: $(<err)"
    [[ ! -e new ]] || fail "an import on $ranks ranks that was stopped left $(ls -A new)"

    lost=-
    [[ $ranks == 1 ]] || lost=1
    stopped KILL $lost 'out.tmp-*' out out "${launch[@]}" ckpt export run out
    stopped KILL $lost 'new/.ckpt-import/.tmp-*' new new/ckpt "${launch[@]}" ckpt import large new
    "$trireme" ckpt import "$models/qwen3" new >/dev/null 2>err || fail "an import after one that was killed: $(<err)"
    [[ ! -e new/.ckpt-import ]] || fail "an import left $(ls -A new) of an earlier one"
    "$trireme" ckpt export new out >/dev/null 2>err || fail "an export after one that was killed: $(<err)"
    [[ -z $(compgen -G 'out.tmp-*') && ! -e out/.trireme-export ]] || fail "an export left $(ls -Ad out* out/*)"
done

# A model of over 100 files with few descriptors.
cat >deep.yaml <<Y
model: {family: llama, layers: 12, width: 32, heads: 4, context: 32, vocab: 300}
data: {path: $text}
train: {steps: 1, batch: 1, micro_batch: 1, threads: 1, validate_batches: 1}
Y
"$trireme" train deep.yaml log.dir=deep >/dev/null 2>err || fail "train: $(<err)"
(
    ulimit -n 24
    "$trireme" ckpt export deep many --max-shard-size 1kB >/dev/null 2>err || fail "an export of many files: $(<err)"
    "$trireme" ckpt import many many-run >/dev/null 2>err || fail "an import of many files: $(<err)"
    "$trireme" ckpt export many-run again --max-shard-size 1kB >/dev/null 2>err || fail "an export of many files: $(<err)"
    exit $failures
) || failures=$((failures + 1))
[[ $(ls many/*.safetensors | wc -l) -gt 100 ]] || fail "many/ has $(ls many | wc -l) files"
for file in many/*.safetensors; do cmp -s "$file" "again/${file#many/}" || fail "$file is not that of again/"; done

# Where the file system cannot reserve room, the files of an export are not written twice for that.
if strace -qq -o /dev/null true 2>/dev/null; then
    strace -qq -f -o calls -e trace=pwrite64,fallocate -e inject=fallocate:error=EOPNOTSUPP \
        "$trireme" ckpt export deep once >/dev/null 2>err || fail "an export without room reserved: $(<err)"
    grep -q INJECTED calls && ! grep -q 'pwrite64(.*, 1, [0-9]*) = 1$' calls ||
        fail "an export without room reserved: $(grep -c 'pwrite64(.*, 1, [0-9]*) = 1$' calls) writes of one byte"
    # Nor does it need one that can sync folders.
    strace -qq -f -o calls -P "$PWD" -e trace=fsync -e inject=fsync:error=EINVAL \
        "$trireme" ckpt export deep unsynced >/dev/null 2>err || fail "an export without synced folders: $(<err)"
    grep -q INJECTED calls || fail "an export does not sync the folder that it is in"
    mkdir unsynced-run
    strace -qq -f -o calls -P "$PWD/unsynced-run" -e trace=fsync -e inject=fsync:error=EINVAL \
        "$trireme" ckpt import "$models/qwen3" unsynced-run >/dev/null 2>err ||
        fail "an import without synced folders: $(<err)"
    grep -q INJECTED calls || fail "an import does not sync the run's folder"
    # A power cut leaves a run with all its files, or none.
    strace -qq -f -y -o calls -e trace=fsync,rename "$trireme" ckpt import "$models/qwen3" synced-run >/dev/null 2>err ||
        fail "an import: $(<err)"
    grep -q 'rename.*\.ckpt-import"' calls || fail "an import is not named by a rename: $(<calls)"
    for file in origin.json config.yaml tokenizer; do
        sed '/rename.*\.ckpt-import"/,$d' calls | grep -q "fsync(.*/synced-run/$file>" ||
            fail "an import names the run before $file is on the disk"
    done
fi

# Weights of other types and names, and what a user may name by mistake.
damage() { # NAME MODEL FROM TO: a copy of a model with words of the same length in its header
    cp -r "$models/$2" "$1"
    LC_ALL=C sed -i "s/$3/$4/g" "$1"/model.safetensors
    ! cmp -s "$models/$2/model.safetensors" "$1/model.safetensors" || fail "$1 is not damaged"
}
damage other-type qwen2-v4 '"F16"' '"I16"'
refused 65 'is of type I16, and Trireme reads F32, BF16 and F16: load' ckpt import other-type x
damage packed qwen3 '\.up_proj\.weight' '.up_pro.qweight'
refused 65 'call dequantize()' ckpt import packed x
damage missing qwen3 '\.up_proj\.weight' '.up_proj.Weight'
refused 65 'holds no tensor model.layers.0.mlp.up_proj.weight, which its config asks for: files are missing' ckpt import missing x
cp -r "$models/qwen3" untied
sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' untied/config.json
refused 65 'set "tie_word_embeddings" to true' ckpt import untied x
cp "$models/qwen3/model.safetensors" alone.safetensors
refused 65 'there is no config.json next to' ckpt import alone.safetensors x
refused 65 'one of the 3 files of a model' ckpt import "$models/llama-shards/model-00001-of-00003.safetensors" x
cp -r "$models/qwen3" own
refused 64 'is the folder of the model' ckpt import own own
refused 65 'not a folder' ckpt export run err
refused 64 "--dtype must be fp32, bf16 or fp16, not 'fp8'" ckpt export run x --dtype=fp8
[[ ! -e x && ! -e own/lock ]] || fail "a refusal left files"
finish
