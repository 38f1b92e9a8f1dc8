#!/usr/bin/env bash
# Import and export of a model of about GB gigabytes in FP32, with files that are not in the page cache, against
# raw reads and writes of as many bytes in the same minutes.
# usage: bench/bench_models.sh TRIREME FOLDER [GB [ROUNDS]]      default: 5 GB, 3 rounds; takes 4 times the room
set -euo pipefail
trireme=$(realpath "$1")
gigabytes=${3:-5}
rounds=${4:-3}
mkdir -p "$2"
cd "$2"
layers=$((gigabytes * 1000 / 268 - 1))
((layers >= 1)) || { echo "at least 1 GB"; exit 64; }

# --- the model: random bytes ------------------------------------------------------------------------------

mkdir -p model
at=0
header='{"__metadata__":{"format":"pt"}'
tensor() { # NAME SHAPE ELEMENTS
    header+=",\"$1.weight\":{\"dtype\":\"F32\",\"shape\":[$2],\"data_offsets\":[$at,$((at + 4 * $3))]}"
    at=$((at + 4 * $3))
}
tensor model.embed_tokens 32768,2048 $((32768 * 2048))
for ((i = 0; i < layers; i++)); do
    for name in q k v o; do tensor "model.layers.$i.self_attn.${name}_proj" 2048,2048 $((2048 * 2048)); done
    for name in gate up; do tensor "model.layers.$i.mlp.${name}_proj" 8192,2048 $((8192 * 2048)); done
    tensor "model.layers.$i.mlp.down_proj" 2048,8192 $((8192 * 2048))
    tensor "model.layers.$i.input_layernorm" 2048 2048
    tensor "model.layers.$i.post_attention_layernorm" 2048 2048
done
tensor model.norm 2048 2048
header+='}'
length=$(printf %016x ${#header}) bytes=
for i in 14 12 10 8 6 4 2 0; do bytes+="\\x${length:i:2}"; done
cat >model/config.json <<J
{"model_type": "llama", "vocab_size": 32768, "hidden_size": 2048, "num_hidden_layers": $layers, "num_attention_heads": 16,
 "intermediate_size": 8192, "max_position_embeddings": 64, "tie_word_embeddings": true}
J
{
    printf '%b%s' "$bytes" "$header"
    head -c "$at" /dev/urandom
} >model/model.safetensors

# --- the measurements -------------------------------------------------------------------------------------

cold() { # writes back, and drops the files' pages
    local file
    sync
    for file in "$@"; do dd of="$file" oflag=nocache conv=notrunc,fdatasync count=0 status=none; done
}
seconds() { # of a command
    local begin=$EPOCHREALTIME
    "$@" >/dev/null
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}
printf '%-7s %10s %10s %10s %10s %9s %9s\n' round 'read MB/s' 'write MB/s' import export 'imp/slow' 'exp/slow'
for ((round = 1; round <= rounds; round++)); do
    rm -rf run out raw
    cold model/model.safetensors
    read=$(seconds dd if=model/model.safetensors of=/dev/null bs=4M status=none)
    write=$(seconds dd if=/dev/zero of=raw bs=4M count=$((at >> 22)) conv=fsync status=none)
    rm raw
    cold model/model.safetensors
    import=$(seconds "$trireme" ckpt import model run)
    cold run/ckpt/step-00000000/*
    export=$(seconds "$trireme" ckpt export run out --max-shard-size 100GB)
    awk -v n="$at" -v r="$read" -v w="$write" -v i="$import" -v e="$export" -v k="$round" 'BEGIN {
        slow = r > w ? r : w
        printf "%-7d %10.0f %10.0f %10.0f %10.0f %9.2f %9.2f\n", k, n / r / 1e6, n / w / 1e6, n / i / 1e6, n / e / 1e6, slow / i, slow / e }'
done
rm -rf model run out
