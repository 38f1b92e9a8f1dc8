#!/usr/bin/env bash
# Saves and loads of 1.6 GB by one rank and by two, in turn with raw writes and reads of the same disk and with PyTorch's
# distributed checkpoints. All writes are on the disk when they end, and nothing that is read is in memory. The medians
# of the rounds count.
#   [PYTHON=DIR/bin/python] bench/ckpt.sh FOLDER [rounds]     PYTHON: with torch and numpy; FOLDER: on the disk to measure
set -euo pipefail
folder=$(mkdir -p "$1" && realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${2:-3} gib=1.5
build bench_ckpt
work=$(mktemp -d "$folder/bench-XXXXXX")
trap 'rm -rf "$work"' EXIT
head -c $((256 << 20)) /dev/urandom >"$work/random"

# raw: writes as many bytes past the page cache and reads them; prints both rates in GB/s. The data are the same 256 MiB again
# and again, since a virtual disk may store zeros for nothing, and go on writing for some time.
raw() {
    local i begin=$EPOCHREALTIME
    for ((i = 0; i < 6; i++)); do
        dd if="$work/random" of="$work/raw" bs=4M count=64 seek=$((64 * i)) oflag=direct conv=notrunc,fsync status=none
    done
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "raw: save %.2f GB/s, ", 1.5 * 1.073741824 / (b - a) }'
    sleep 10
    begin=$EPOCHREALTIME
    dd if="$work/raw" of=/dev/null bs=4M status=none
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "cold load %.2f GB/s\n", 1.5 * 1.073741824 / (b - a) }'
    rm "$work/raw"
}
# rates WORD NAME: the median of a kind's rates after WORD.
rates() { sed -n "s|.*$1 \([0-9.]*\) GB/s.*|\1|p" "$work/$2" | median; }

for ranks in 1 2; do
    rm -f "$work"/{raw,ours,torch}.rates
    before=$(load)
    for ((i = 0; i < rounds; i++)); do
        raw | tee -a "$work/raw.rates"
        mpi "$ranks" "$release/bench/bench_ckpt" "$work" "$gib" 1 | tee -a "$work/ours.rates"
        [[ -z ${PYTHON:-} ]] || "$PYTHON" -m torch.distributed.run --nproc-per-node "$ranks" bench/torch_ckpt.py \
            "$work" "$gib" 1 2>/dev/null | tee -a "$work/torch.rates"
    done
    for word in save "cold load"; do
        text="$(rates "$word" ours.rates) GB/s; raw $(rates "$word" raw.rates)"
        [[ -z ${PYTHON:-} ]] || text+="; PyTorch $(rates "$word" torch.rates)"
        row "$word of 1.6 GB, $ranks rank(s), load $before" "bench/ckpt.sh FOLDER $rounds" "$text" "-"
    done
done
