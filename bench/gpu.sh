#!/usr/bin/env bash
# Every GPU benchmark in under 8 minutes, from a build tree or an unpacked bundle; one table at the end.
# All in one run on one device: the roofs (a product of 8192^3 in BF16, a copy of 1 GiB), every operator's
# bytes, time and share of its roof, training steps of GPT-2 124M and 1.5B at T = 1024, and PyTorch,
# compiled, on the same model, batch and precision where Python has it. Ends with 77 and the reason where
# there is no GPU.
#   [PYTHON=DIR/bin/python] bench/gpu.sh
# TRIREME_BENCH_DEVICE: the device (cuda; cpu takes small sizes and shows that the script itself works).
# TRIREME_BENCH_SECONDS: what has not begun after these (460) is left out, and said so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
plain_path=${LD_LIBRARY_PATH:-} # PyTorch brings its own libraries
# shellcheck source=/dev/null
[[ ! -f env.sh ]] || source ./env.sh
# shellcheck source=bench/lib.sh
source bench/lib.sh
programs=${TRIREME_BUILD:-$release}
device=${TRIREME_BENCH_DEVICE:-cuda}
seconds=${TRIREME_BENCH_SECONDS:-460}
python=${PYTHON:-python3}
work=$(mktemp -d)
rows=$work/rows
trap 'rm -rf "$work"' EXIT

[[ -f env.sh ]] || build bench_op bench_train # a bundle has them
code=0
TRIREME_TEST_DEVICE=$device "$programs/tests/test_device" >"$work/device" 2>&1 || code=$?
if [[ $code == 77 ]]; then
    grep -m 1 '^skipped' "$work/device"
    exit 77
fi

left() { echo $((seconds - SECONDS > 0 ? seconds - SECONDS : 0)); }

# --- operators and roofs ----------------------------------------------------------------------------

echo "operators, with the roofs that this run reached:"
timeout "$(($(left) + 1))" "$programs/bench/bench_op" 1 "" "$device" | tee "$work/operators" || fail "bench_op ended with $?"
read -r matmul copy < <(sed -n 's|.*, bf16; roofs \([0-9.]*\) GFLOP/s, \([0-9.]*\) GB/s.*|\1 \2|p' "$work/operators" | head -n 1)
row "roof: product in BF16" "bench_op 1 '' $device" "$(awk -v x="$matmul" 'BEGIN { printf "%.1f TFLOP/s", x / 1e3 }')" "-" >/dev/null
row "roof: copy" "bench_op 1 '' $device" "$copy GB/s, read and written" "-" >/dev/null

# --- training steps -----------------------------------------------------------------------------------

# tokens and rate FILE: of its line "... 123 tok/s 4.5 GFLOP/s ...".
tokens() { sed -n 's|.* \([0-9]*\) tok/s.*|\1|p' "$1"; }
rate() { sed -n 's|.* \([0-9.]*\) GFLOP/s.*|\1|p' "$1"; }

# step NAME LAYERS WIDTH HEADS CONTEXT VOCAB BATCH STEPS: ours, then PyTorch's.
step() {
    local name=$1 mode words ours shape="L$2 C$3 T$5 V$6 B$7, bf16"
    words=(layers="$2" width="$3" heads="$4" context="$5" vocab="$6" batch="$7" steps="$8")
    if (($(left) < 20)); then
        row "$name, $shape" - "left out: the time was over" "-" >/dev/null
        return
    fi
    if timeout "$(left)" "$programs/bench/bench_train" "${words[@]}" micro_batch="$7" precision=bf16 threads=1 \
        deterministic=0 device="$device" >"$work/ours" 2>&1; then
        ours=$(rate "$work/ours")
        row "$name, $shape" "bench_train ${words[*]} micro_batch=$7 precision=bf16 deterministic=0 device=$device" \
            "$(tokens "$work/ours") tok/s, $(awk -v x="$ours" -v r="$matmul" 'BEGIN { printf "%.1f model TFLOP/s: %.3f of the roof", x / 1e3, x / r }')" "-" >/dev/null
    else
        row "$name, $shape" bench_train "FAILED: $(tail -n 1 "$work/ours")" "-" >/dev/null
        failed=1 ours=0
    fi
    cat "$work/ours"
    ((have_torch)) || return 0
    for mode in autocast bf16; do
        if (($(left) < 60)); then
            row "the same in PyTorch, compiled, $mode" - "left out: the time was over" "-" >/dev/null
            continue
        fi
        local peer=() word
        for word in "${words[@]}"; do peer+=("--${word%%=*}" "${word#*=}"); done
        if LD_LIBRARY_PATH=$plain_path timeout "$(left)" "$python" bench/torch_gpt.py "${peer[@]}" --mode $mode \
            --device "$device" --compile >"$work/torch" 2>"$work/torch.err"; then
            row "the same in PyTorch, compiled, $mode" "bench/torch_gpt.py ${peer[*]} --mode $mode --compile" \
                "$(tokens "$work/torch") tok/s, $(awk -v x="$(rate "$work/torch")" -v o="$ours" 'BEGIN { printf "%.1f model TFLOP/s; trireme: %.2f times as fast", x / 1e3, o / x }')" "-" >/dev/null
            cat "$work/torch"
        else
            row "the same in PyTorch, compiled, $mode" bench/torch_gpt.py "did not run: $(tail -n 1 "$work/torch.err" | tr '|' ' ' | cut -c 1-120)" "-" >/dev/null
        fi
    done
}

failed=0 have_torch=0
check="import torch; assert '$device' == 'cpu' or torch.cuda.is_available()"
if LD_LIBRARY_PATH=$plain_path timeout 60 "$python" -c "$check" 2>/dev/null; then have_torch=1; fi
echo
echo "training steps; model FLOP a token = 6 N + 6 L T C, N = 12 L C^2 + V C (parameters in products, head"
echo "included, embeddings and norms not; causal attention once):"
if [[ $device == cpu ]]; then
    step "GPT-2 in small" 2 128 2 64 256 4 5
else
    step "GPT-2 124M" 12 768 12 1024 50304 32 20
    step "GPT-2 1.5B" 48 1600 25 1024 50304 8 8
fi
((have_torch)) || row "the same in PyTorch, compiled" - "not measured: $python has no PyTorch for this device" "-" >/dev/null

# --- the table ----------------------------------------------------------------------------------------

gpu=$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null | head -n 1 || true)
commit=$(sed -n 's/^commit *//p' VERSION 2>/dev/null || git describe --always --dirty 2>/dev/null || echo unknown)
echo
echo "$(date -u '+%Y-%m-%d %H:%M') UTC, commit ${commit:-unknown}, device $device${gpu:+ ($gpu)}, $SECONDS s"
echo
echo "| what | command | measured | target |"
echo "|---|---|---|---|"
cat "$rows"
((failed == 0))
