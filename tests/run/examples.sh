#!/usr/bin/env bash
# Runs every config of examples/ for a few steps and tests what its comments promise; also the form of
# progress lines on terminals and in pipes.
# usage: examples.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
source "$(dirname "$0")/common.sh"
cd "$scratch"
export TRIREME_BACKTRACE=0 TERM=xterm
unset TRIREME_TERMINAL
small="data.path=$text model.context=32 train.validate_batches=1 log.every=2"

# train_example RUN RANKS CONFIG ARGUMENTS...: runs a few steps into RUN, with output in RUN.out.
train_example() {
    local run=$1 ranks=$2 config=$root/examples/$3
    shift 3
    # shellcheck disable=SC2086 # the words of $small are arguments
    timeout 120 "$trireme" run -n "$ranks" train "$config" $small log.dir="$run" "$@" >"$run.out" 2>&1 ||
        fail "$run ended with $?: $(tail -n 3 "$run.out")"
    grep -Eq "^step [0-9]+/[0-9]+ loss " "$run.out" || fail "$run: no progress line"
}

shows() { grep -Eq -- "$2" "$1.out" || fail "$1: no line like '$2'"; }
losses() { sed 's/.*"loss":\([^,]*\).*/\1/' "$1/metrics.jsonl"; }

# The script makes the folder that finetune.yaml starts from, and trains it.
timeout 300 bash "$root/examples/finetune.sh" "$trireme" >finetune_script.out 2>&1 ||
    fail "finetune.sh ended with $?: $(tail -n 3 finetune_script.out)"
for line in '^trained  0.11 M parameters, 0.12 M frozen$' '^step 60/60 ' '^The lighthouse' '^exported '; do
    shows finetune_script "$line"
done
sed -n 's/.* val \([0-9.]*\) .*/\1/p' finetune_script.out | awk 'NR == 1 { first = $1 } END { exit !($1 < first) }' ||
    fail "finetune.yaml: the validation loss does not fall"
cmp -s build/finetune/base/model.safetensors build/finetune/tuned/model.safetensors && fail "finetune.yaml trains nothing"
if command -v python3 >/dev/null; then
    python3 - <<'P' || fail "finetune.yaml: other tensors changed than those that are trained"
import fnmatch, json, struct
def read(folder):
    data = open(f"build/finetune/{folder}/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = json.loads(data[8:8 + size])
    tensors.pop("__metadata__", None)
    return {n: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]] for n, t in tensors.items()}
base, tuned = read("base"), read("tuned")
frozen = ["*.embed_tokens.weight", "*.layers.[01].*", "*_layernorm.weight"]
for name in base:
    is_frozen = any(fnmatch.fnmatchcase(name, p) for p in frozen)
    assert (base[name] == tuned[name]) == is_frozen, name
P
else
    echo "skipped: there is no python3 to compare tensors"
fi

# The commands for low-rank updates.
grep -q '^#   trireme run -n 2 train examples/finetune.yaml train.freeze= train.lr_scale= model.lora.rank=4 optim.lr=0.01 log.dir=runs/lora$' \
    "$root/examples/finetune.yaml" || fail "finetune.yaml: other words for low-rank updates than the test's"
timeout 120 "$trireme" run -n 2 train "$root/examples/finetune.yaml" train.freeze= train.lr_scale= model.lora.rank=4 optim.lr=0.01 \
    log.dir=runs/lora data.path="$root/examples/finetune.txt" >finetune_lora.out 2>&1 || fail "LoRA: $(tail -n 1 finetune_lora.out)"
shows finetune_lora '^trained  0.02 M parameters, 0.23 M frozen$'
sed -n 's/.* val \([0-9.]*\) .*/\1/p' finetune_lora.out | awk 'NR == 1 { first = $1 } END { exit !($1 < first) }' ||
    fail "LoRA: the validation loss does not fall"
"$trireme" ckpt export runs/lora build/finetune/adapter --adapter >/dev/null || fail "LoRA: no export"
(($(stat -c %s build/finetune/adapter/adapter_model.safetensors) * 10 < $(stat -c %s build/finetune/base/model.safetensors))) ||
    fail "LoRA: the adapter is more than a tenth of the model"

tune() { timeout 120 "$trireme" train "$root/examples/finetune.yaml" data.path="$root/examples/finetune.txt" parallel.pp=1 "$@"; }
tune --resume train.steps=61 train.freeze='*.layers.0.*' >finetune_more.out 2>&1 || fail "frozen otherwise: $(tail -n 1 finetune_more.out)"
shows finetune_more 'train.freeze is not that of the checkpoint: the moments of parameters that were frozen and are trained'
shows finetune_more '^step 61/61 '
tune --resume train.steps=62 train.freeze='*' >finetune_none.out 2>&1 && fail "trains nothing"
shows finetune_none 'train.freeze matches every parameter'
"$trireme" plan "$root/examples/finetune.yaml" >finetune_plan.out || fail "finetune.yaml has no plan"
shows finetune_plan '^trained  0.11 M parameters, 0.12 M frozen; a checkpoint has 1.[0-9] MiB of tensors$'

for config in "$root"/examples/*.yaml; do
    name=$(basename "$config")
    case $name in
        quickstart.yaml) ranks=2 ;;
        pipeline.yaml) ranks=4 ;;
        data_parallel.yaml) ranks=2 ;;
        llama.yaml) ranks=2 ;;
        finetune.yaml) ranks=2 ;;
        *) fail "$name is not known here: give its ranks" ;;
    esac
    train_example "${name%.yaml}" "$ranks" "$name" train.steps=4 checkpoint.every=2
    grep -q "run -n $ranks train examples/$name" "$config" "$root/examples/quickstart.sh" ||
        fail "$name does not say how it is run"
done

shows pipeline '^layout   pp 2 x tp 2 x dp 1, 1f1b, 8 micro-batches; stages of layers 0-3 \| 4-7$'
train_example gpipe 4 pipeline.yaml parallel.schedule=gpipe train.steps=4
[[ $(losses pipeline) == "$(losses gpipe)" ]] || fail "gpipe and 1f1b: other losses"
activations() { sed -n 's/.* planned = .*activations \([0-9]*\)\..*/\1/p' "$1.out"; }
(($(activations gpipe) > 3 * $(activations pipeline))) || fail "gpipe does not hold all micro-batches"
train_example pipeline 1 pipeline.yaml --resume parallel.pp=1 parallel.tp=1 train.steps=5
shows pipeline '^step 5/5 '

train_example one 1 data_parallel.yaml parallel.dp=1 train.steps=4
paste <(losses data_parallel) <(losses one) |
    awk '{ d = $1 / $2 - 1; bad += d * d > 1e-10 } END { exit bad || NR != 4 }' ||
    fail "one and two data ranks: losses too far apart"
# shellcheck disable=SC2046 # words
train_example three 3 data_parallel.yaml $(grep -o 'parallel.dp=3 .*' "$root/examples/data_parallel.yaml") train.steps=1

# A pipe gets lines without control codes, also from plain mpirun, where ranks see a
# pseudo-terminal.
grep -q $'[\r\e]' pipeline.out && fail "a pipe got control codes from trireme run"
# shellcheck disable=SC2086
plain_mpirun -n 2 "$trireme" train "$root/examples/data_parallel.yaml" $small log.dir=plain \
    train.steps=2 >plain.out 2>&1 || fail "plain mpirun ended with $?: $(tail -n 3 plain.out)"
shows plain '^step 2/2 '
grep -q $'\e' plain.out && fail "a pipe got control codes from plain mpirun"
# A terminal gets one refreshed line.
if ! script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    echo "examples.sh: the form on a terminal is not checked: script(1) or a pseudo-terminal is missing"
else
    script -qec "$trireme run -n 2 train $root/examples/data_parallel.yaml $small log.dir=terminal train.steps=4" \
        /dev/null </dev/null >terminal.out 2>&1 || fail "on a terminal: ended with $?"
    grep -q $'\rstep 4/4 .*\e' terminal.out || fail "a terminal got no refreshed line"
fi
finish
