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
write_raw() { # the model's first 256 MiB, which stay in memory, again and again: a virtual disk may store zeros for nothing
    local i
    for ((i = 0; i < at >> 28; i++)); do
        dd if=model/model.safetensors of=raw bs=4M count=64 seek=$((64 * i)) conv=notrunc status=none
    done
    dd if=/dev/null of=raw bs=4M seek=$((64 * i)) conv=fsync status=none
}
seconds() { # of a command, and those of the system alone
    local TIMEFORMAT='%R %S'
    { time "$@" >/dev/null 2>&3; } 3>&2 2>&1
}
printf '%-6s %10s %10s %10s %10s %9s %9s   %s\n' round 'read MB/s' 'write MB/s' import export \
    'imp/slow' 'exp/slow' 'system time of the four in s'
for ((round = 1; round <= rounds; round++)); do
    rm -rf run out raw
    cold model/model.safetensors
    read=$(seconds dd if=model/model.safetensors of=/dev/null bs=4M status=none)
    write=$(seconds write_raw)
    rm raw
    cold model/model.safetensors
    import=$(seconds "$trireme" ckpt import model run)
    cold run/ckpt/step-00000000/*
    export=$(seconds "$trireme" ckpt export run out --max-shard-size 100GB)
    awk -v n="$at" -v w="$(((at >> 28) << 28))" -v k="$round" -v all="$read $write $import $export" 'BEGIN {
        split(all, t)
        raw = t[3] * n / w
        slow = t[1] > raw ? t[1] : raw
        printf "%-6d %10.0f %10.0f %10.0f %10.0f %9.2f %9.2f   %s %s %s %s\n", k, n / t[1] / 1e6, w / t[3] / 1e6,
            n / t[5] / 1e6, n / t[7] / 1e6, slow / t[5], slow / t[7], t[2], t[4], t[6], t[8] }'
done
rm -rf model run out
