#!/usr/bin/env bash
# Tests the machine code of the CUDA kernels: code for compute capability 8.0 and 9.0a and PTX for later GPUs,
# accesses of 16 bytes in every kernel that reads its tensors in packs, and no arrays outside of registers. With
# TRIREME_DRAW it reads the kernels of half of the files, and of rows.cu, which has the most.
# usage: kernels.sh TRIREME SCRATCH_DIR NVCC      (of a build tree)
set -euo pipefail
trireme=$1 scratch=$2 nvcc=$3
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
here=$(cd "$(dirname "$0")/../.." && pwd)
build=$(dirname "$trireme")

# --- for which GPUs -----------------------------------------------------------------------------------

# One line for each .cu file of the program.
grep -E '"command".* -x cu -c [^ ]*/device/cuda/[a-z_]+\.cu ' "$build/compile_commands.json" >"$scratch/commands" || true
files=("$here"/device/cuda/*.cu)
[[ $(wc -l <"$scratch/commands") == "${#files[@]}" ]] || fail "the build compiles $(wc -l <"$scratch/commands") .cu files, not ${#files[@]}"
if grep -q '^CMAKE_CUDA_ARCHITECTURES:[A-Z]*=native$' "$build/CMakeCache.txt"; then
    echo "for this machine's GPUs alone"
else
    for code in 'sm_80' 'sm_90a' 'compute_[0-9]+'; do
        missing=$(grep -cvE "code=\[([a-z0-9_]*,)*$code(,[a-z0-9_]*)*\]" "$scratch/commands" || true)
        [[ $missing == 0 ]] || fail "$missing of ${#files[@]} files are not compiled for $code"
    done
fi

# --- how they access memory ---------------------------------------------------------------------------

# Kernels with a pack of more than one element as template argument, or that always use packs. Threads of
# sum_squares have columns that are far apart.
packs='I[^(]*L[il][48]E|[0-9](row_max|row_sum|row_gradient|row_xent)I|(sumsq_blocks|apply)ILb1E|[0-9]quantizeE'
# Of these, kernels that write sums, or one number a row or block.
sums='tr_columns_partial|[0-9](row_max|row_sum)I|sumsq_blocks'
for file in "${files[@]}"; do
    [[ $file == */rows.cu ]] || drawn "$(basename "$file")" >&2 || continue
    "$nvcc" -ptx -std=c++17 -I"$here" -arch=compute_80 --fmad=false "$file" -o "$scratch/kernels.ptx" ||
        fail "$(basename "$file") does not compile to PTX"
    cat "$scratch/kernels.ptx"
done >"$scratch/all.ptx"
awk '/^(\.visible |\.weak )?\.entry/ { name = $NF; sub(/\(.*/, "", name); print name, "entry" }
    /ld\.global[a-z0-9.]*\.v4\./ { print name, "load" }
    /st\.global[a-z0-9.]*\.v4\./ { print name, "store" }' "$scratch/all.ptx" | sort -u >"$scratch/accesses"
count=0
while read -r kernel _; do
    count=$((count + 1))
    # A cast from BF16 or FP16 to FP32 reads half as many bytes as it writes, and a cast back twice as many.
    narrow=$(grep -cE 'identityELi4E((7tr_bf16|6tr_f16)f|f(7tr_bf16|6tr_f16))E' <<<"$kernel" || true)
    [[ $narrow == 1 ]] || grep -qxF "$kernel load" "$scratch/accesses" || fail "$kernel: no load of 16 bytes"
    [[ $narrow == 1 ]] || [[ $kernel =~ $sums ]] || grep -qxF "$kernel store" "$scratch/accesses" ||
        fail "$kernel: no store of 16 bytes"
done < <(grep -E " entry$" "$scratch/accesses" | grep -E "$packs" | grep -v '[0-9]sum_squaresI')
((count >= 30)) || fail "$count kernels in packs: their names have changed"
echo "$count kernels in packs of 16 bytes"
# An array with an index that varies is in memory, each thread's own.
awk '/^(\.visible |\.weak )?\.entry/ { name = $NF } /^[ \t]*\.local/ { print name }' "$scratch/all.ptx" >"$scratch/local"
[[ ! -s $scratch/local ]] || fail "arrays in local memory: $(sort -u "$scratch/local" | tr '\n' ' ')"
finish
