#!/usr/bin/env bash
# Every GPU benchmark in under 8 minutes, from a build tree or an unpacked bundle: the roofs (a product of
# 8192^3 in BF16, a copy of 1 GiB), every operator's bytes, time and share of its roof, training steps of
# GPT-2 124M and 1.5B at T = 1024, and PyTorch, compiled, on the same model, batch and precision where
# Python has it, all in one run on one device. Each measurement has a limit of its own, whatever becomes of
# the others; one table at the end, also when the script is stopped, and in results/bench.md of the build.
# Ends with 1 when something failed, with 77 and the reason where there is no GPU.
#   [PYTHON=DIR/bin/python] bench/gpu.sh
# TRIREME_BENCH_DEVICE: the device (cuda; cpu takes small sizes and shows that the script itself works).
# TRIREME_BENCH_SECONDS: what has not begun after these (460) is left out, and said so.
# TRIREME_RESULTS: the folder of bench.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
plain_path=${LD_LIBRARY_PATH:-} # PyTorch brings its own libraries
# shellcheck source=/dev/null
[[ ! -f env.sh ]] || source ./env.sh
# shellcheck source=bench/lib.sh
source bench/lib.sh
# shellcheck source=tests/gpu_lib.sh
source tests/gpu_lib.sh
programs=${TRIREME_BUILD:-$release}
results=${TRIREME_RESULTS:-$programs/results}
device=${TRIREME_BENCH_DEVICE:-cuda}
seconds=${TRIREME_BENCH_SECONDS:-460}
python=${PYTHON:-python3}
work=$(mktemp -d)
rows=$work/rows failed=0
trap 'rm -rf "$work"' EXIT

[[ -f env.sh || -n ${TRIREME_BUILD:-} ]] || build bench_op bench_train # a bundle has them
for name in bench_op bench_train; do
    [[ -x $programs/bench/$name ]] || {
        echo "bench/gpu.sh: there is no $programs/bench/$name: build the benchmarks first (--target benches)" >&2
        exit 66
    }
done
need_device "$device" "$programs/tests" "$work/device"

# say WHAT COMMAND MEASURED: a row of the table.
say() { row "$1" "$2" "$3" "-" >/dev/null; }

# What there is, at the end or earlier.
table() {
    local code=$?
    trap - EXIT INT TERM
    mkdir -p "$results"
    {
        echo
        stamp "$device"
        echo
        echo "| what | command | measured | target |"
        echo "|---|---|---|---|"
        cat "$rows" 2>/dev/null || true
    } | tee "$results/bench.md"
    cp "$work/operators" "$results/bench_op.txt" 2>/dev/null || true
    echo "written to $results/bench.md; every operator: $results/bench_op.txt" >&2
    rm -rf "$work"
    ((code == 0)) || exit "$code"
    exit "$failed"
}
trap table EXIT
child=
exec 3>&1 4>&2
stopped() {
    exec 1>&3 2>&4 # not where the measurement writes
    [[ -z $child ]] || kill "$child" 2>/dev/null || true
    say "the script was stopped" - "what follows is missing"
    exit 1
}
trap stopped INT TERM

# limited SECONDS COMMAND...: ends it after that time, or when the time of all is over.
limited() {
    local left=$((seconds - SECONDS)) code=0
    ((left > 0)) || return 124
    timeout --kill-after=5 "$(($1 < left ? $1 : left))" "${@:2}" &
    child=$!
    wait "$child" || code=$? # what stops the script comes through a wait at once
    child=
    return "$code"
}
# over SECONDS WHAT: true, and said so, when less than that is left.
over() {
    ((seconds - SECONDS < $1)) || return 1
    say "$2" - "left out: the time was over"
}
# why CODE FILE: a failure in words.
why() {
    case $1 in
    124 | 137) echo "FAILED: it had not ended in its time" ;;
    *) echo "FAILED: it ended with $1: $(tail -n 1 "$2" | tr '|' ' ' | cut -c 1-120)" ;;
    esac
}

# --- operators and roofs ----------------------------------------------------------------------------

echo "operators, with the roofs that this run reached:"
code=0 matmul=
limited 150 "$programs/bench/bench_op" 1 "" "$device" >"$work/operators" 2>"$work/operators.err" || code=$?
cat "$work/operators"
if roofs=$(grep -m 1 ', bf16; roofs ' "$work/operators"); then
    read -r matmul _ copy _ <<<"${roofs#*, bf16; roofs }" # "1.2 GFLOP/s, 3.4 GB/s"
    say "roof: product in BF16" "bench_op 1 '' $device" "$(awk -v x="$matmul" 'BEGIN { printf "%.1f TFLOP/s", x / 1e3 }')"
    say "roof: copy" "bench_op 1 '' $device" "$copy GB/s, read and written"
fi
if ((code != 0)); then
    failed=1
    say "operators" "bench_op 1 '' $device" "$(why $code "$work/operators.err")"
fi

# --- training steps -----------------------------------------------------------------------------------

# tokens and rate FILE: of its line "... 123 tok/s 4.5 GFLOP/s ...".
tokens() { sed -n 's|.* \([0-9]*\) tok/s.*|\1|p' "$1"; }
rate() { sed -n 's|.* \([0-9.]*\) GFLOP/s.*|\1|p' "$1"; }

# A model: NAME LAYERS WIDTH HEADS CONTEXT VOCAB BATCH STEPS SECONDS.
if [[ $device == cpu ]]; then
    models=("small 2 128 2 64 256 4 5 60")
else
    models=("124M 12 768 12 1024 50304 32 20 60" "1.5B 48 1600 25 1024 50304 8 8 150") # a minute of it draws the parameters
fi
# read_model NAME LAYERS ...: sets $words, $shape, $time and $ours, where our numbers are.
read_model() {
    words=(layers="$2" width="$3" heads="$4" context="$5" vocab="$6" batch="$7" steps="$8")
    shape="GPT-2 $1, L$2 C$3 T$5 V$6 B$7, bf16" time=$9 ours=$work/ours-$1
}

step() { # NAME LAYERS ...
    local words shape time ours code=0
    read_model "$@"
    over 20 "$shape" && return
    local command=(bench_train "${words[@]}" micro_batch="$7" precision=bf16 deterministic=0 device="$device")
    limited "$time" "$programs/bench/${command[0]}" "${command[@]:1}" threads=1 >"$ours" 2>&1 || code=$?
    cat "$ours"
    if ((code != 0)) || [[ -z $(rate "$ours") ]]; then
        failed=1
        say "$shape" "${command[*]}" "$(why $code "$ours")"
        rm "$ours"
        return
    fi
    say "$shape" "${command[*]}" "$(tokens "$ours") tok/s, $(awk -v x="$(rate "$ours")" -v r="${matmul:-0}" \
        'BEGIN { printf "%.1f model TFLOP/s", x / 1e3; if (r > 0) printf ": %.3f of the roof", x / r }')"
}

peer() { # MODE NAME LAYERS ...: the same in PyTorch
    local mode=$1 words shape time ours code=0 arguments=() word
    shift
    read_model "$@"
    over 60 "$shape: PyTorch, compiled, $mode" && return
    for word in "${words[@]}"; do arguments+=("--${word%%=*}" "${word#*=}"); done
    LD_LIBRARY_PATH=$plain_path limited 200 "$python" bench/torch_gpt.py "${arguments[@]}" --mode "$mode" \
        --device "$device" --compile >"$work/torch" 2>"$work/torch.err" || code=$?
    cat "$work/torch"
    if ((code != 0)) || [[ -z $(rate "$work/torch") ]]; then # the other's failure is not ours
        say "$shape: PyTorch, compiled, $mode" bench/torch_gpt.py "$(why $code "$work/torch.err")"
        return
    fi
    say "$shape: PyTorch, compiled, $mode" "bench/torch_gpt.py ${arguments[*]} --mode $mode --compile" \
        "$(tokens "$work/torch") tok/s, $(awk -v x="$(rate "$work/torch")" -v o="$(rate "$ours" 2>/dev/null || true)" \
            'BEGIN { printf "%.1f model TFLOP/s", x / 1e3; if (o > 0) printf "; trireme: %.2f times as fast", o / x }')"
}

echo
echo "training steps; model FLOP a token = 6 N + 6 L T C, N = 12 L C^2 + V C (parameters in products, head"
echo "included, embeddings and norms not; causal attention once):"
# shellcheck disable=SC2086 # words
for model in "${models[@]}"; do step $model; done
check="import torch; assert '$device' == 'cpu' or torch.cuda.is_available()"
if over 60 "the same in PyTorch, compiled"; then
    : # said
elif LD_LIBRARY_PATH=$plain_path limited 60 "$python" -c "$check" 2>/dev/null; then
    # shellcheck disable=SC2086
    for model in "${models[@]}"; do for mode in autocast bf16; do peer $mode $model; done; done
else
    say "the same in PyTorch, compiled" - "not measured: $python has no PyTorch for this device"
fi
