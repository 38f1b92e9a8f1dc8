#!/usr/bin/env bash
# Models of transformers in whole runs: import and export on several ranks with little memory, a run that
# starts from a folder on any layout and goes on without it, keys that contradict config.json, and what is
# left after a failure. Where the Python package transformers is installed, it loads the exports.
# usage: models.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1
scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
models=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../golden/hf")
cd "$scratch"

# A model of 300 tokens for data of bytes, made here, and its export.
train 0 1 born model.family=llama model.kv_heads=2 model.vocab=300 model.dropout=0 train.steps=2 checkpoint.every=0
"$trireme" ckpt export born folder >out
grep -Eq '^exported [0-9.]+ kB in [0-9.]+ s, [0-9.]+ [kMG]B/s$' out || fail "no line of progress: $(<out)"
"$trireme" run -n 2 ckpt export born two --dtype bf16 --max-shard-size 20kB >out
[[ $(ls two/*.safetensors | wc -l) -gt 2 ]] || fail "no shards: $(ls two)"

# A resume that is refused says only why, and nothing about other frozen parameters.
refused 65 "another model" train base.yaml log.dir=born model.family=llama model.kv_heads=2 model.vocab=300 model.dropout=0 \
    checkpoint.every=0 --resume train.steps=3 'train.freeze=*.layers.0.*' model.rope_theta=7

# A run that starts from the folder: the same first loss on every layout; the recorded config is enough
# to resume without the folder.
from="model: {init_from: folder}
data: {path: $text}
train: {steps: 2, batch: 8, micro_batch: 2, threads: 1, validate_batches: 1}"
echo "$from" >from.yaml
for layout in pp=1 pp=2 tp=2 dp=2; do
    ranks=2
    [[ $layout == pp=1 ]] && ranks=1
    trireme_on "$ranks" train from.yaml "log.dir=from-$layout" "parallel.$layout" >out 2>err || fail "$layout: $(<err)"
    [[ -f from-$layout/origin.json ]] || fail "$layout: no origin.json"
done
for layout in pp=2 tp=2 dp=2; do
    paste <(field from-pp=1 loss) <(field "from-$layout" loss) |
        awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > 1e-5) bad = 1 } END { exit bad || NR != 2 }' ||
        fail "init_from on $layout: other losses"
done
# Weights that no step changed leave with the bits they came with, also those that two ranks saved in parts.
trireme_on 2 train from.yaml log.dir=still parallel.tp=2 optim.lr=0 >out 2>err || fail "still: $(<err)"
"$trireme" ckpt export still unchanged >out
cmp folder/model.safetensors unchanged/model.safetensors || fail "an export of weights in parts has other bits"
"$trireme" ckpt import folder imported >out
grep -Eq '^imported [0-9.]+ kB in ' out || fail "no line of an import: $(<out)"
"$trireme" ckpt import two halves >out
# The bytes are those of the files, half as many in BF16.
paste <(grep -o '[0-9.]* kB in' out) <(cat two/*.safetensors | wc -c) | awk '{ exit !($1 * 1000 < $4 && $1 * 1000 > 0.8 * $4) }' ||
    fail "an import of BF16 files: $(<out), and $(cat two/*.safetensors | wc -c) bytes"
"$trireme" train imported/config.yaml --resume data.path="$text" train.steps=2 train.batch=8 train.micro_batch=2 \
    train.threads=1 train.validate_batches=1 >out 2>err || fail "an imported run is not resumed: $(<err)"
diff <(field from-pp=1 loss) <(field imported loss) >/dev/null || fail "imported and init_from: other losses"
"$trireme" plan from.yaml >out || fail "plan with init_from"
# Values beyond the range of FP16, here 70000 and -100000, become infinite in an export, which says so; in FP32 they stay.
cp -r folder large
printf '\0\270\210\107\0\120\303\307' | dd of=large/model.safetensors bs=1 conv=notrunc status=none \
    seek=$(($(stat -c %s large/model.safetensors) - 8))
"$trireme" ckpt import large beyond >out
"$trireme" run -n 2 ckpt export beyond fp16 --dtype fp16 >out
grep -q '^rank [01]: 2 values beyond the range of the file.s type became infinite; --dtype fp32 keeps them$' out ||
    fail "an export of values beyond FP16: $(<out)"
[[ $(tail -c 4 fp16/model.safetensors | od -An -tx1) == " 00 7c 00 fc" ]] || fail "values beyond FP16 are not infinite"
"$trireme" ckpt export beyond fp32 >out
cmp large/model.safetensors fp32/model.safetensors || fail "an export of large values has other bits"
! grep beyond out || fail "an export in FP32 says that values are lost"
mv folder gone
"$trireme" train from-pp=1/config.yaml --resume train.steps=3 >out 2>err || fail "resume without the folder: $(<err)"
! grep "model.init_from" err || fail "resume without the folder warns of it"
refused 66 "'folder' cannot be opened" train from.yaml log.dir=new
[[ ! -e new ]] || fail "a run without weights left $(ls new)"
mv gone folder
# Another folder does not replace the parameters of a run that is continued, which is said.
cp -r from-pp=1 from-two
"$trireme" train from.yaml log.dir=from-two model.init_from=two --resume train.steps=4 >out 2>err || fail "resume with another folder: $(<err)"
grep -q "^trireme: warning: model.init_from is not that of the checkpoint, and chooses only the parameters of a new run: " err ||
    fail "resume with another folder: $(<err)"

# Targets of an export: the current folder is refused before anything is written; a link to an empty folder, and
# a path with slashes at its end, are taken.
mkdir -p empty linked
ln -s linked link
ln -s nowhere dangling
for target in . ../empty/; do
    code=0
    (cd empty && "$trireme" ckpt export ../born "$target") >out 2>err || code=$?
    [[ $code == 64 ]] || fail "an export to the current folder, $target: exit code $code: $(<err)"
    grep -q "is the current folder" err || fail "an export to $target: $(<err)"
    grep -q exported out && fail "an export that failed says exported: $(<out)"
done
refused 64 "name a new folder" ckpt export born new/.
refused 64 "name a new folder" ckpt export born dangling
# A damaged origin is not passed over: the export would have other types.
cp imported/origin.json whole.json
for change in 's/"dtype":.*,/"dtype": "F31",/' 's/"dtype":.*,//' 's/"dtypes":.*{/"dtypes": {"a": 1/' 's/"config":.*{/"config": 1, "rest": {/'; do
    sed "$change" whole.json >imported/origin.json
    refused 65 "origin.json' is damaged: restore it, or remove it" ckpt export imported no-origin
done
mv whole.json imported/origin.json
# A tokenizer that is a link to nowhere is not passed over.
cp -r folder astray && ln -s nowhere astray/tokenizer.json
refused 65 "astray/tokenizer.json' cannot be opened: it is a link to a file that does not exist" ckpt import astray no-tokenizer
refused 65 "astray/tokenizer.json' cannot be opened: it is a link to a file that does not exist" sample astray -p A
[[ ! -e no-tokenizer/ckpt ]] || fail "an import that was refused left $(ls no-tokenizer)"
# Weights that are not numbers.
header=$((8 + $(od -An -tu8 -N8 folder/model.safetensors)))
cp -r folder damaged
{
    head -c "$header" folder/model.safetensors
    tail -c +$((header + 1)) folder/model.safetensors | tr '\0-\377' '\377'
} >damaged/model.safetensors
code=0
"$trireme" sample damaged -n 2 >out 2>err || code=$?
[[ $code == 65 ]] || fail "sample of weights that are not numbers: exit code $code"
grep -q "the model's logits are not finite: its parameters are damaged; choose an earlier checkpoint (--step), or another copy of the model" err ||
    fail "sample of weights that are not numbers: $(<err)"
refused 65 "the loss of sequence 0 is not finite: the model's parameters are damaged" eval damaged --data "$text"
refused 66 "step-00000007: there is no checkpoint of step 7 here; the newest valid step is 2" ckpt export born no-step --step 7
refused 65 "'born/config.yaml' is not a folder: name a new folder" ckpt export born born/config.yaml
refused 65 "'born/config.yaml/x' is not a folder: name a new folder" ckpt export born born/config.yaml/x
refused 66 "; \`hf download some/model --local-dir some/model\` fetches a published model" plan base.yaml model.init_from=some/model
refused 66 "; \`hf download some/model --local-dir some/model\` fetches a published model" ckpt import some/model none
refused 66 "the model 'none' cannot be opened: No such file or directory (model.init_from); name the folder of a model" plan base.yaml model.init_from=none
if unshare -rm true 2>/dev/null; then
    code=0
    unshare -rm bash -c "mount -t tmpfs none empty && exec '$trireme' ckpt export born empty" >out 2>err || code=$?
    [[ $code == 64 ]] || fail "an export to a mount point: exit code $code: $(<err)"
    grep -q "is where a file system is mounted" err || fail "an export to a mount point: $(<err)"
else
    echo "skipped: no mount is possible here, for an export to a mount point"
fi
[[ ! -e new && -z $(ls -d -- *.tmp-* empty/*.tmp-* 2>/dev/null) ]] || fail "a refused export left folders: $(ls)"
"$trireme" ckpt export born link >out 2>err || fail "a link to an empty folder: $(<err)"
[[ -L link && -f linked/config.json ]] || fail "the link is not a link to the export: $(ls -l)"
"$trireme" ckpt export born deep/path// >out 2>err || fail "slashes at the end: $(<err)"
[[ -f deep/path/config.json ]] || fail "no deep/path: $(ls deep)"

# What contradicts config.json.
refused 78 "model.layers is 3, but folder/config.json, which model.init_from names, says 4" plan from.yaml model.layers=3
refused 78 "model.context is 99999, but max_position_embeddings" plan from.yaml model.context=99999
cp -r "$models/yarn-v4" scaled
sed -i 's/"original_max_position_embeddings": 8/"original_max_position_embeddings": 16/' scaled/config.json
"$trireme" plan from.yaml model.init_from=scaled model.context=64 data.format=u16 >out 2>err || fail "factor 4 x original 16: $(<err)"
refused 78 "set a context of at most 64" plan from.yaml model.init_from=scaled model.context=65
refused 78 "leave one out" plan from.yaml model.preset=llama-tiny
"$trireme" plan from.yaml model.context=16 >out || fail "a smaller context is refused"
refused 65 "config.json" plan from.yaml model.init_from="$models"
refused 65 'is a file, and not a folder with config.json: a single file (.safetensors, or llm.c'"'"'s .bin) becomes a run' plan from.yaml model.init_from=folder/model.safetensors
cp -r folder uneven
sed -i 's/"num_attention_heads":[ \t]*[0-9]*/"num_attention_heads": 3/' uneven/config.json
refused 65 "uneven/config.json: num_key_value_heads 2 does not divide num_attention_heads 3" ckpt import uneven run
cp -r folder narrow
sed -i 's/"intermediate_size":[ \t]*[0-9]*/"intermediate_size": 40/' narrow/config.json
refused 65 "narrow/model.safetensors: the tensor model.layers.0.mlp.gate_proj.weight is (128, 32) in the file, and (40, 32) by its config" ckpt import narrow run
refused 66 "nowhere" ckpt import nowhere run
cp -r folder not-utf8
sed -i 's/"model_type":[ \t]*"/&\xff/' not-utf8/config.json
cmp -s folder/config.json not-utf8/config.json && fail "not-utf8/config.json is as it was"
refused 65 "not-utf8/config.json: this is not JSON: byte " ckpt import not-utf8 run
refused 65 "holds neither model.safetensors nor model.safetensors.index.json; it is a run of Trireme, which needs no import" \
    ckpt import "$scratch/born" run
refused 64 "must be fp32, bf16 or fp16" ckpt export born x --dtype fp8
refused 64 "contains another run" ckpt import folder imported
cp -r folder cut
truncate -s -100 cut/model.safetensors
refused 65 "cut/model.safetensors" ckpt import cut run
[[ ! -e run/ckpt ]] || fail "a failed import left run/ckpt"

# A finished run does not depend on its folder: another model, a damaged one.
cp folder/config.json config.good
cp -r from-pp=1 finished
sed -i 's/"num_hidden_layers": *4/"num_hidden_layers":3/; s/"num_hidden_layers":\t4/"num_hidden_layers":3/' folder/config.json
for damage in 'another model' 'no JSON'; do
    "$trireme" ckpt export finished "of $damage" >out 2>err || fail "$damage in the folder, export: $(<err)"
    "$trireme" sample finished -n 1 -p a >out 2>err || fail "$damage in the folder, sample: $(<err)"
    "$trireme" train finished/config.yaml log.dir=finished --resume train.steps=4 >out 2>err ||
        fail "$damage in the folder, resume: $(<err)"
    echo '{' >folder/config.json
    rm -rf finished
    cp -r from-pp=1 finished
done
mv config.good folder/config.json
# A new run from a recorded config is compared with the folder, though the config has all keys.
sed 's/rope_theta: .*/rope_theta: 777/' from-pp=1/config.yaml >other.yaml
refused 78 "model.rope_theta is 777" train other.yaml log.dir=new
[[ ! -e new ]] || fail "a refused run left $(ls new)"

# A weight that is not finite: the first step blames the folder, and not optim.lr.
cp -r folder faulty
printf '\x00\x00\xc0\x7f' | dd of=faulty/model.safetensors bs=1 seek=$(($(wc -c <faulty/model.safetensors) - 4)) conv=notrunc status=none
code=0
"$trireme" train from.yaml log.dir=faulty-run model.init_from=faulty >out 2>err || code=$?
[[ $code == 65 ]] || fail "a weight that is not finite: exit code $code"
grep -q "and no parameter has changed yet: those of model.init_from 'faulty' are damaged, or too large for train.precision fp32;" err ||
    fail "a weight that is not finite: $(<err)"

# A config.json of many layers or of a great width costs no memory before it is compared with the weights.
for key in num_hidden_layers hidden_size; do
    rm -rf hostile
    cp -r folder hostile
    sed -i "s/\"$key\":[ \t]*[0-9]*/\"$key\": 1000000/" hostile/config.json
    grep -q "$key.*1000000" hostile/config.json || fail "hostile/config.json has no $key"
    for command in "ckpt import hostile x" "sample hostile -n 1 -p a" "train from.yaml model.init_from=hostile log.dir=new"; do
        (
            failures=0
            ulimit -v 3000000
            # shellcheck disable=SC2086
            refused 65 hostile $command
            [[ $failures == 0 ]]
        ) || fail "$command with $key 1000000"
    done
done

# Memory: a matrix of 128 MiB in BF16, and twice that in a checkpoint.
mkdir -p large
header='{"model.embed_tokens.weight":{"dtype":"BF16","shape":[65536,1024],"data_offsets":[0,134217728]},"model.norm.weight":{"dtype":"BF16","shape":[1024],"data_offsets":[134217728,134219776]}'
at=134219776
tensor() { # NAME SHAPE BYTES
    header+=",\"model.layers.0.$1.weight\":{\"dtype\":\"BF16\",\"shape\":[$2],\"data_offsets\":[$at,$((at + $3))]}"
    at=$((at + $3))
}
for name in q k v o; do tensor "self_attn.${name}_proj" 1024,1024 2097152; done
for name in gate up; do tensor "mlp.${name}_proj" 64,1024 131072; done
tensor mlp.down_proj 1024,64 131072
tensor input_layernorm 1024 2048
tensor post_attention_layernorm 1024 2048
header+='}'
length=$(printf %016x ${#header})
bytes=
for i in 14 12 10 8 6 4 2 0; do bytes+="\\x${length:i:2}"; done
printf '%b%s' "$bytes" "$header" >large/model.safetensors
truncate -s $((8 + ${#header} + at)) large/model.safetensors
cat >large/config.json <<'J'
{"model_type": "llama", "vocab_size": 65536, "hidden_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8,
 "intermediate_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": true}
J
# peak COMMAND...: the most resident memory of a process of it in KiB, as the process itself sees it.
peak() {
    local most=0 now process p
    "$@" >out 2>err &
    process=$!
    while kill -0 $process 2>/dev/null; do
        for p in $(descendants $process); do
            now=$(awk '/^VmHWM:/ { print $2 }' "/proc/$p/status" 2>/dev/null || true)
            if [[ ${now:-0} -gt $most ]]; then most=$now; fi
        done
    done
    wait $process || fail "$*: $(<err)"
    echo "$most"
}
# small WHAT KIB: the limit is less than the 128 MiB of the matrix; two ranks have MPI, too.
small() { [[ $2 -gt 0 && $2 -lt $((120 << 10)) ]] || fail "$1 took $2 KiB for a matrix of 131072"; }
small import "$(peak "$trireme" ckpt import large/model.safetensors big)"
small export "$(peak "$trireme" ckpt export big big-out)"
small "export to shards" "$(peak "$trireme" ckpt export big big-shards --max-shard-size 1MB)"
small "import of shards" "$(peak "$trireme" ckpt import big-shards big-again)"
small "import on two ranks" "$(peak "$trireme" run -n 2 ckpt import big-shards big-two)"
small "export on two ranks" "$(peak "$trireme" run -n 2 ckpt export big-two big-two-out)"
for out in big-out big-two-out; do
    cmp <(tail -c "$at" large/model.safetensors | md5sum) <(tail -c "$at" $out/model.safetensors | md5sum) || fail "other bytes in $out"
done
rm -rf big*

# The library itself.
python=${TRIREME_PYTHON:-python3}
if "$python" -c 'import transformers, torch' 2>/dev/null; then
    for name in llama-shards gpt2-hub qwen2-v4 qwen3 mistral-window; do
        "$trireme" ckpt import "$models/$name" "run-$name" >out
        "$trireme" ckpt export "run-$name" "out-$name" >out
    done
    "$python" - out-* folder two <<'P' >out 2>err || fail "transformers: $(tail -n 1 err)"
import sys, transformers
for folder in sys.argv[1:]:
    _, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), (folder, info)
print("transformers", transformers.__version__)
P
    cat out
    seed=${TRIREME_SEED:-1}
    echo "seed $seed"
    "$python" "$models/../make_hf.py" --seed "$seed" --out fresh >out 2>err || fail "make_hf.py: $(tail -n 1 err)"
    TRIREME_GOLDEN_HF=$PWD/fresh "$(dirname "$trireme")/tests/test_hf" >out 2>&1 ||
        fail "models that transformers made now: $(grep -v ' OK \| RUN ' out)"
else
    echo "skipped: the Python packages transformers and torch are not installed, which would load the exports and make new models"
fi
finish
