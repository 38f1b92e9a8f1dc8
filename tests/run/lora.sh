#!/usr/bin/env bash
# Low-rank updates in whole runs: the same bits under every cut, the same losses on tensor and data ranks, resumed
# and sampled; frozen weights keep their bits, a merged export is base + update, an adapter is written and
# read back. Where the Python package peft is installed, it loads the adapter.
# usage: lora.sh TRIREME SCRATCH_DIR     (ckpt_compare is next to the tests' programs)
set -euo pipefail
trireme=$1
scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
cd "$scratch"

# The model, and runs that update it. lora RUN RANKS ARGUMENTS...
small=(train.steps=1 checkpoint.every=0 model.dropout=0 model.vocab=300 model.layers=2 model.width=16)
train 0 1 born model.family=llama model.kv_heads=2 "${small[@]}"
"$trireme" ckpt export born base >out
cat >lora.yaml <<Y
model: {init_from: base, lora: {rank: 3, alpha: 6, targets: [q_proj, v_proj, o_proj, gate_proj, down_proj]}}
data: {path: $text}
train: {steps: 6, batch: 8, micro_batch: 1, seed: 7, threads: 1, validate_every: 3, validate_batches: 1}
optim: {lr: 0.01, warmup: 2, clip: 0}
checkpoint: {every: 1, keep: 7}
log: {every: 6}
Y
config=lora.yaml
lora() {
    local run=$1 ranks=$2
    shift 2
    trireme_on "$ranks" train "$config" log.dir="$run" "$@" >"$run.out" 2>"$run.err" || fail "$run: $(<"$run.err")"
    as_planned "$run"
}
lora one 1
grep -q '^trained  0.00 M parameters, 0.02 M frozen' one.out || fail "the plan's sizes: $(head -n 1 one.out)"
"$trireme" plan lora.yaml >out && grep -q '^trained  0.00 M parameters, 0.02 M frozen' out || fail "plan: $(head -n 1 out)"
lora pp 2 parallel.pp=2 parallel.schedule=zb-h1
diff <(field pp loss; field pp grad_norm) <(field one loss; field one grad_norm) >/dev/null || fail "pp: other losses"
"$tools/ckpt_compare" exact pp/ckpt/step-00000006 one/ckpt/step-00000006 >/dev/null || fail "pp: other parameters"
lora tp 4 parallel.tp=4
lora dp 4 parallel.dp=2 parallel.tp=2
for run in tp dp; do
    near "$run" one
    "$tools/ckpt_compare" gradients "$run/ckpt/step-00000001" one/ckpt/step-00000001 1e-5 >/dev/null ||
        fail "$run: other gradients of step 1"
done
# BF16, with an odd rank: the mean of 256 losses, each of about 30 roundings of logits below 1; unit.test_golden compares gradients.
lora bf16 1 train.precision=bf16
near bf16 one loss 2e-4
near bf16 one grad_norm 0.08

# A run goes on, also on another layout, with the rank of its start only.
rm -rf one/ckpt/step-0000000[456]
lora one 2 --resume parallel.pp=2
near one pp
"$tools/ckpt_compare" exact pp/ckpt/step-00000006 one/ckpt/step-00000006 >/dev/null || fail "resumed: other parameters"
refused 65 "its model.lora.rank is 3" train lora.yaml log.dir=one --resume model.lora.rank=2

# The default targets, and targets in another order, are those of the saved run; and alpha 0 is the rank.
echo "{model.init_from: base, data.path: $text, train: {steps: 1, batch: 4, threads: 1}}" >short.yaml
for targets in '' 'v_proj q_proj'; do
    more=(model.lora.rank=2 log.dir=order)
    rm -rf order
    "$trireme" train short.yaml "${more[@]}" ${targets:+"model.lora.targets=$targets"} >out 2>err || fail "targets '$targets': $(<err)"
    [[ -z $targets ]] || targets='q_proj v_proj'
    "$trireme" train short.yaml "${more[@]}" ${targets:+"model.lora.targets=$targets"} --resume train.steps=2 >out 2>err ||
        fail "targets '$targets' do not go on: $(<err)"
done
"$trireme" train short.yaml "${more[@]}" "model.lora.targets=$targets" model.lora.alpha=2 --resume train.steps=3 >out 2>err ||
    fail "alpha, which is the rank, does not go on: $(<err)"
refused 65 "its model.lora.alpha is 2, and this config's is 3" train short.yaml "${more[@]}" "model.lora.targets=$targets" \
    model.lora.alpha=3 --resume train.steps=4
refused 78 "model.lora.targets is set, but model.lora.rank is not" plan short.yaml model.lora.targets=q_proj

# Decoding of the run, of the merged model and of the adapter; both exports do not depend on the ranks.
"$trireme" ckpt export one merged >out
"$trireme" run -n 2 ckpt export one merged-2 >out
"$trireme" ckpt export one adapter --adapter >out
cmp -s merged/model.safetensors merged-2/model.safetensors || fail "two ranks merge other bits"
for from in merged adapter one; do
    "$trireme" sample "$from" -p "The " -n 24 --temperature 1 >"sample.$from" || fail "no sample of $from"
    cmp -s "sample.$from" sample.merged || fail "$from and merged: other texts"
done
trireme_on 2 sample adapter -p "The " -n 24 --temperature 1 parallel.tp=2 >sample.tp 2>err || fail "sample on tp 2: $(<err)"
cmp -s sample.tp sample.merged || fail "a sample on two tensor ranks: another text"

cp -r adapter cycle && sed -i 's|"base_model_name_or_path":[^,]*|"base_model_name_or_path":"cycle"|' cycle/adapter_config.json
refused 65 "cycle, the model of the adapter 'cycle', is itself an adapter" sample cycle -p "The "

# An adapter that is read back has the same bits.
echo "{model.init_from: adapter, data.path: $text, train: {steps: 1, batch: 4, threads: 1}}" >again.yaml
"$trireme" train again.yaml log.dir=again optim.lr=0 >out 2>err || fail "an adapter as a start: $(<err)"
"$trireme" ckpt export again again-adapter --adapter >out
cmp -s again-adapter/adapter_model.safetensors adapter/adapter_model.safetensors || fail "read back: other bits"

# PEFT's dropout of an update's input is left out, and the run says so.
cp -r adapter dropped && sed -i 's/"lora_dropout":.*,/"lora_dropout": 0.05,/' dropped/adapter_config.json
trireme_on 2 train again.yaml log.dir=dropped-run parallel.dp=2 train.micro_batch=2 model.init_from=dropped >out 2>err || fail "lora_dropout: $(<err)"
[[ $(grep -c "lora_dropout" err) == 1 ]] && grep -q "warning: the adapter 'dropped' was trained with lora_dropout 0.05, which is not applied" err ||
    fail "lora_dropout: said '$(<err)'"

# base + update, computed from the files alone; what has no update keeps its bits.
if command -v python3 >/dev/null; then
    python3 - base merged adapter <<'P' >out 2>err || fail "merged is not base + update: $(tail -n 1 err)"
import json, struct, sys
def load(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {n: (t["shape"], struct.unpack(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 4}f",
            data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]))
            for n, t in header.items() if n != "__metadata__"}
base, merged = (load(f"{f}/model.safetensors") for f in sys.argv[1:3])
adapter = load(f"{sys.argv[3]}/adapter_model.safetensors")
config = json.load(open(f"{sys.argv[3]}/adapter_config.json"))
assert base.keys() == merged.keys() and len(adapter) == 2 * 2 * 5 and config["base_model_name_or_path"] == "base"
updated = 0
for name, (shape, values) in base.items():
    stem = "base_model.model." + name.removesuffix("weight") + "lora_"
    if stem + "A.weight" not in adapter:
        assert merged[name][1] == values, name
        continue
    (rank, columns), a = adapter[stem + "A.weight"]
    b = adapter[stem + "B.weight"][1]
    assert any(b), name
    for i, value in enumerate(values):
        row, column = divmod(i, columns)
        update = sum(b[row * rank + k] * a[k * columns + column] for k in range(rank))
        want = struct.unpack("<f", struct.pack("<f", value + config["lora_alpha"] / config["r"] * update))[0]
        assert merged[name][1][i] == want, (name, i)
    updated += 1
assert updated == 10
P
else
    echo "skipped: no python3, for base + update"
fi

# In BF16, on two data ranks, clipped, with a learning rate by name: virtual stages with separate I and W have
# the bits of one stage. Frozen: layers and a tied embedding, so that they have no backward. Updates: all blocks.
# same RUN SCHEDULE PP ARGUMENTS...: the bits of RUN-1f1b, on two data ranks.
same() {
    local run=$1 schedule=$2 pp=$3
    shift 3
    lora "$run-$schedule" $((2 * pp)) parallel.dp=2 parallel.pp="$pp" parallel.schedule="$schedule" train.steps=3 checkpoint.every=3 \
        optim.clip=0.05 train.validate_every=0 "$@"
    [[ $pp == 1 ]] || "$tools/ckpt_compare" exact "$run-$schedule/ckpt/step-00000003" "$run-1f1b/ckpt/step-00000003" >/dev/null ||
        fail "$run, $schedule: other parameters"
}
train 0 1 tied model.family=gpt2 "${small[@]}" model.layers=4
"$trireme" ckpt export tied tied-base >out
sed 's/^model: .*/model: {init_from: tied-base, dropout: 0.1}/' lora.yaml >tied.yaml
frozen=(train.precision=bf16 train.freeze='*.wpe.weight *.wte.weight *.h.[01].*' train.lr_scale='0.5 *.bias')
config=tied.yaml
same frozen 1f1b 1 "${frozen[@]}"
same frozen interleaved-zb 2 "${frozen[@]}"
same frozen zbv 2 "${frozen[@]}"
mixed=(model.lora.rank=3 train.precision=bf16 train.lr_scale='0.5 *.lora_B.weight')
same mixed 1f1b 1 "${mixed[@]}"
same mixed zbv 2 "${mixed[@]}"
config=lora.yaml

# GPT-2: its weights are [in, out].
train 0 1 gpt model.family=gpt2 "${small[@]}"
"$trireme" ckpt export gpt gpt-base >out
lora gpt-run 1 model.init_from=gpt-base model.lora.targets='c_attn c_fc mlp.c_proj' train.steps=2
lora gpt-tp 2 model.init_from=gpt-base model.lora.targets='c_attn c_fc mlp.c_proj' train.steps=2 parallel.tp=2
"$trireme" ckpt export gpt-run gpt-merged >out
"$trireme" ckpt export gpt-run gpt-adapter --adapter >out
for from in gpt-merged gpt-run gpt-adapter; do
    "$trireme" sample "$from" -p "The " -n 16 --temperature 1 >"sample.$from" || fail "no sample of $from"
    cmp -s "sample.$from" sample.gpt-merged || fail "$from: another text than that of the merged model"
done

# What does not go together.
refused 78 "did you mean 'q_proj'" train lora.yaml log.dir=no model.lora.targets=q_prj
refused 78 "names 'c_attn'" train lora.yaml log.dir=no model.lora.targets=c_attn
refused 78 "model.lora.rank 9 is above 8, the smaller side of self_attn.v_proj" train lora.yaml log.dir=no model.lora.rank=9
refused 78 "model.lora.rank is not" train lora.yaml log.dir=no model.lora.rank=0
refused 78 "is not an adapter" train lora.yaml log.dir=no model.lora.base=base
refused 78 "model.init_from is not set" train base.yaml log.dir=no model.lora.base=base
refused 78 "has rank 3" train again.yaml log.dir=no model.lora.rank=4
"$trireme" plan again.yaml model.lora.targets='down_proj gate_proj o_proj q_proj v_proj' >out 2>err ||
    fail "the adapter's targets in another order: $(<err)"
refused 78 "updates 'q_proj" train again.yaml log.dir=no model.lora.targets=q_proj
for change in 's/"r":.*/"r": 9,/ model.lora.rank 9 is above 8' "s/\"q_proj\"/\"c_attn\"/ model.lora.targets names 'c_attn'"; do
    mkdir -p unfit
    sed "${change%%/ *}/" adapter/adapter_config.json >unfit/adapter_config.json
    cp adapter/adapter_model.safetensors unfit
    refused 65 "unfit/adapter_config.json does not fit the model in base: ${change#*/ }" train again.yaml log.dir=no model.init_from=unfit
    refused 65 "unfit/adapter_config.json does not fit the model in base: " sample unfit -p "The "
done
refused 65 "'trireme ckpt export born FOLDER'" train lora.yaml log.dir=no model.init_from=born
for part in born/ckpt born/ckpt/ born/ckpt/step-*; do
    refused 65 "is a checkpoint of Trireme, not a folder of transformers: write one with 'trireme ckpt export RUN FOLDER'" \
        train lora.yaml log.dir=no "model.init_from=$part"
done
refused 66 "nowhere/ckpt" train lora.yaml log.dir=no model.init_from=nowhere/ckpt
mkfifo pipe
refused 65 "'pipe' is not a folder: name one with config.json" train lora.yaml log.dir=no model.init_from=pipe
refused 66 "set model.lora.base" train again.yaml log.dir=no model.lora.base=gone
refused 65 "it is not an adapter" ckpt export born no --adapter
# bad FROM TO CODE TEXT: a copy of the adapter, with a part of its config replaced, is refused.
bad() {
    mkdir -p bad
    cp adapter/adapter_model.safetensors bad/
    sed "s/$1/$2/" adapter/adapter_config.json >bad/adapter_config.json
    refused "$3" "$4" train again.yaml log.dir=no model.init_from=bad
}
bad '"lora_dropout":.*,' '"lora_dropout": 1,' 65 '"lora_dropout" must be a number from 0 to below 1'
bad '"peft_type":' '"use_dora": true, "peft_type":' 65 '"use_dora" asks for DoRA'
bad '"peft_type":' '"use_rslora": true, "peft_type":' 65 '"use_rslora"'
bad '"peft_type":' '"rank_pattern": {"q_proj": 4}, "peft_type":' 65 '"rank_pattern"'
bad '"peft_type":' '"modules_to_save": ["lm_head"], "peft_type":' 65 '"modules_to_save"'
bad '"none"' '"all"' 65 '"bias" is '
bad '"none"' '["all"]' 65 '"bias" must be "none"'
bad '"peft_type":' '"init_lora_weights": ["pissa"], "peft_type":' 65 '"init_lora_weights" must be true, false or a name'
bad '"LORA"' '"LOHA"' 65 '"peft_type" is '
bad '"r":.*,' '"r": 2.5,' 65 '"r" must be an integer'
bad '"r":.*,' '"r": 2,' 65 'lora_A.weight is (3, 16) in the file, and (2, 16) by its config'
bad '\[.*\]' '"q.*"' 65 'regular expression'
bad '\[.*\]' '["q_proj"]' 65 'holds the tensor '
bad '\[.*\]' '["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj"]' 65 'holds no tensor '
bad '"base_model_name_or_path":.*,' '"base_model_name_or_path": "hub-model",' 65 "there is no folder 'hub-model', the model of the adapter 'bad': set model.lora.base"
[[ ! -e no ]] || fail "a refused run left $(ls no)"

python=${TRIREME_PYTHON:-python3}
if "$python" -c 'import peft, transformers, torch' 2>/dev/null; then
    for name in "" gpt-; do
        "$python" - "${name}base" "${name}adapter" "${name}merged" <<'P' >out 2>err || fail "peft: $(tail -n 1 err)"
import sys, warnings, peft, torch, transformers
warnings.simplefilter("ignore", FutureWarning)
base, adapter, merged = sys.argv[1:]
load = transformers.AutoModelForCausalLM.from_pretrained
updated = peft.PeftModel.from_pretrained(load(base, dtype=torch.float32), adapter).eval()
whole = load(merged, dtype=torch.float32).eval()
tokens = torch.arange(24)[None] * 11 % 256
with torch.no_grad():
    a, b = updated(tokens).logits, whole(tokens).logits
    plain = load(base, dtype=torch.float32).eval()(tokens).logits
assert (a - plain).abs().max() > 1e-3, "the adapter changes nothing"
assert (a - b).abs().max() < 1e-5 * b.abs().max(), float((a - b).abs().max())
P
    done
else
    echo "skipped: no Python with peft, for the adapter"
fi
finish
