#!/usr/bin/env bash
# Fine-tunes a small model from beginning to end with Trireme's own commands: trains a base model on the dialogue
# of examples/finetune_base.txt, exports it as a folder of transformers, trains examples/finetune.yaml from there
# with half of the parameters frozen, samples, and exports the result. All files are in build/finetune and runs/finetune
# of the working directory. A few seconds on two cores. usage: finetune.sh [TRIREME]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trireme=${1:-build/release/trireme}
work=build/finetune
rm -rf "$work" runs/finetune
mkdir -p "$work"

cat >"$work/base.yaml" <<Y
model: {family: llama, layers: 4, width: 64, heads: 4, kv_heads: 2, context: 64, vocab: 256}
data: {path: $here/finetune_base.txt, validation: 0}
train: {steps: 80, batch: 8, micro_batch: 4, validate_every: 0}
optim: {lr: 0.003, warmup: 5}
log: {dir: $work/run}
Y
echo "finetune: a base model"
"$trireme" train "$work/base.yaml"
"$trireme" ckpt export "$work/run" "$work/base"
echo "finetune: examples/finetune.yaml on 2 ranks"
"$trireme" run -n 2 train "$here/finetune.yaml" data.path="$here/finetune.txt"
echo "finetune: 120 bytes sampled from the result:"
"$trireme" sample runs/finetune -p "The lighthouse" -n 120 --temperature 0.5
echo
"$trireme" ckpt export runs/finetune "$work/tuned"
