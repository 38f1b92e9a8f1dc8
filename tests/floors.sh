#!/usr/bin/env bash
# Checks house rules that a compiler does not: a folder includes headers only of its own floor and of those
# below, *_impl.h stay in their folder, only device/cuda/ calls CUDA and only comm/nccl*.c NCCL, and no file
# contains a path of one machine.
# Usage: floors.sh [SOURCE_DIR]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

# Each folder and what it may include besides itself; pipeline, ckpt and data do not include each other.
declare -A below=(
    [base]=""
    [text]="base"
    [device]="base"
    [comm]="base device"
    [job]="base device comm"
    [layers]="base device comm"
    [pipeline]="base device comm layers"
    [ckpt]="base device comm layers"
    [data]="base device comm text layers"
    [config]="base device comm layers pipeline data"
    [partition]="base device comm layers pipeline data config"
    [train]="base device comm job text layers pipeline ckpt data config partition"
    [cli]="base device comm job text layers pipeline ckpt data config partition train"
)
faults=0
for folder in "${!below[@]}"; do
    found=0
    while IFS=: read -r file line text; do
        found=1
        header=${text#*\"}
        header=${header%%\"*}
        if [[ " $folder ${below[$folder]} " != *" ${header%%/*} "* ]]; then
            echo "$file:$line: $folder/ must not include $header"
            faults=$((faults + 1))
        elif [[ $header == *_impl.h && ${header%/*} != "${file%/*}" && $file != "${header%/*}"/* ]]; then
            echo "$file:$line: $header is private to ${header%/*}/"
            faults=$((faults + 1))
        fi
    done < <(grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' '^ *# *include *"' "$folder")
    if ((!found)); then
        echo "$folder/ holds no source: is this the root of the repository?"
        faults=$((faults + 1))
    fi
done
# The folders of pipeline/: draw/ reads programs, programs are made from orders, orders consist of actions;
# includes do not go the other way.
while read -r line; do
    echo "an include that goes up within pipeline/: $line"
    faults=$((faults + 1))
done < <(grep -nE '^ *# *include *"pipeline/(program|draw)/' pipeline/orders/*.[ch] || true
    grep -nE '^ *# *include *"pipeline/(orders|program|draw)/' pipeline/*.[ch] || true
    grep -nE '^ *# *include *"pipeline/draw/' pipeline/program/*.[ch] || true)
# Who owns, counts, sums and saves a parameter is answered by layers/param_layout.h alone.
while read -r line; do
    echo "a data or tensor rank is asked here: $line"
    faults=$((faults + 1))
done < <(grep -nE 'index\[TR_AXIS_(DP|TP)\]' train/*.c ckpt/*.c partition/*.c |
    grep -vE 'index\[TR_AXIS_..\] = ' | # of a mesh that is described, not asked
    grep -vE '^train/(feed|generation|engine_create)\.c:|^partition/layout\.c:' | # samples, and models and plans of a rank
    grep -vE '^partition/step_end\.c:.*(== 0\)$|micro_batches)' || true) # the place of a rank's losses
while read -r line; do
    echo "a library of GPUs is not used here: $line"
    faults=$((faults + 1))
done < <(grep -rnE --include='*.[ch]' '^ *# *include *<(cuda|cublas|cudnn|nvtx|nccl)|\b(cuda|cu|cublas|cudnn|nvtx|nccl)[A-Z][A-Za-z]*\(' \
    "${!below[@]}" | grep -vE '^device/cuda/|^comm/nccl[a-z_]*\.[ch]:[0-9]+:.*\b(nccl\.h|nccl[A-Z])' || true)
while read -r line; do
    echo "a path of one machine: $line"
    faults=$((faults + 1))
done < <(grep -rnIE --exclude-dir={build,.git,shared} --exclude=.git \
    '(^|[^A-Za-z0-9_.$}-])/(work|home|root|Users|workspace)/' . || true)
((faults == 0)) || exit 1
