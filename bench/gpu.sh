#!/usr/bin/env bash
# Runs every GPU benchmark, from a build tree or an unpacked bundle, the most informative first:
#   doctor     the machine: driver, libraries, clocks
#   operators  every operator in BF16 at the sizes of GPT-2 124M and 1.5B against the roofs of this run (a product
#              of 8192^3, a copy of 1 GiB)
#   profile    a training step of 124M, kernel by kernel: Nsight Systems, Nsight Compute, or the program's trace
#   products   the products of a step with every plan of cuBLASLt, in 32 and 256 MiB of workspace, fused and in parts
#   updates    steps of a matrix by every optimizer in every storage of its numbers, over the rate of a copy
#   batches    training steps with micro-batches of several sizes
#   training   training steps of 524,288 tokens, and what train.deterministic costs
#   ranks      the same on all GPUs of the machine, over NCCL
#   pytorch    the same in PyTorch, compiled, if Python has it
#
#   [PYTHON=DIR/bin/python] bench/gpu.sh [STEP...]          (all when none is given)
#
# Each measurement has its own time limit, and its failure does not stop the others. Every row is written to
# results/bench.md of the build at once; the table is printed at the end, also when the script is stopped.
# Ends with 1 when something failed, with 77 and the reason where there is no GPU.
# TRIREME_BENCH_DEVICE: the device (cuda; cpu uses small sizes, to test the script itself).
# TRIREME_BENCH_SECONDS: measurements that have not begun after this time (460) are left out, with a row that
# says so.
# TRIREME_TEST_GPUS: the number of GPUs, if it is not the one that doctor prints.
# TRIREME_RESULTS: the folder of bench.md.
# shellcheck disable=SC2317 # the steps are called by name
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
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
seconds=${TRIREME_BENCH_SECONDS:-460}
python=${PYTHON:-python3}
all="doctor operators profile products updates batches training ranks pytorch"
chosen=${*:-$all}
for name in $chosen; do
    [[ " $all " == *" $name "* ]] || {
        echo "bench/gpu.sh: unknown step '$name'; the steps are: $all" >&2
        exit 64
    }
done
work=$(mktemp -d)
rows=$work/rows failed=0
trap 'rm -rf "$work"' EXIT

[[ -f env.sh || -n ${TRIREME_BUILD:-} ]] || build trireme benches # a bundle has them
for name in bench_op bench_train bench_updates; do
    [[ -x $programs/bench/$name ]] || {
        echo "bench/gpu.sh: there is no $programs/bench/$name: build the benchmarks first (--target benches)" >&2
        exit 66
    }
done
need_device "$device" "$programs/tests" "$work/device"
mkdir -p "$results"
results=$(realpath "$results")

# The models: NAME LAYERS WIDTH HEADS CONTEXT VOCAB, the sizes of micro-batch, the steps of a measurement. A
# step of the training has `tokens`.
if [[ $device == cpu ]]; then
    models=("small 2 128 2 64 256") tokens=256
    declare -A sizes=([small]="1 2") steps=([small]=3)
else
    models=("124M 12 768 12 1024 50304" "1.5B 48 1600 25 1024 50304") tokens=524288
    declare -A sizes=([124M]="32 16 64 8 4" [1.5B]="8 16 32 4") steps=([124M]=8 [1.5B]=3)
fi
declare -A best=() # micro-batch that was the fastest, by model

# --- rows, limits and failures ----------------------------------------------------------------------

# write_table: all rows so far, to the file.
write_table() {
    {
        stamp "$device"
        echo
        echo "| what | command | measured | target |"
        echo "|---|---|---|---|"
        cat "$rows" 2>/dev/null || true
    } >"$results/bench.md"
}
# say WHAT COMMAND MEASURED: a row of the table.
say() {
    row "$1" "$2" "$3" "-" >/dev/null
    write_table
}
# finish: prints the table, at the end or earlier.
finish() {
    local code=$?
    trap - EXIT INT TERM
    write_table
    echo
    cat "$results/bench.md"
    echo "written to $results/, with what the steps printed" >&2
    rm -rf "$work"
    ((code == 0)) || exit "$code"
    exit "$failed"
}
trap finish EXIT
child=
exec 3>&1 4>&2
stopped() {
    exec 1>&3 2>&4 # to the script's own output, not the measurement's
    [[ -z $child ]] || kill "$child" 2>/dev/null || true
    say "the script was stopped" - "what follows is missing"
    exit 1
}
trap stopped INT TERM

# limited SECONDS COMMAND...: runs it, and ends it after that time, or when the total time is over.
limited() {
    local left=$((seconds - SECONDS)) code=0
    ((left > 0)) || return 124
    timeout --kill-after=5 "$(($1 < left ? $1 : left))" "${@:2}" &
    child=$!
    wait "$child" || code=$? # a signal to the script interrupts wait at once
    child=
    return "$code"
}
# over SECONDS WHAT: succeeds when less time than that is left, and adds a row that says so.
over() {
    ((seconds - SECONDS < $1)) || return 1
    say "$2" - "left out: the time was over"
}
# why CODE FILE: describes a failure.
why() {
    case $1 in
    76) echo "does not fit: $(tail -n 1 "$2" | tr '|' ' ' | cut -c 1-120)" ;;
    124 | 137) echo "FAILED: it did not end within its time limit" ;;
    *) echo "FAILED: it ended with $1: $(tail -n 1 "$2" | tr '|' ' ' | cut -c 1-120)" ;;
    esac
}

# --- the machine, operators -----------------------------------------------------------------------

step_doctor() {
    local code=0
    limited 30 "$programs/trireme" doctor >"$results/doctor.txt" 2>&1 || code=$?
    timeout 10 nvidia-smi -q >>"$results/doctor.txt" 2>/dev/null || true
    cat "$results/doctor.txt"
    if ((code != 0)); then
        failed=1
        say doctor "trireme doctor" "$(why $code "$results/doctor.txt")"
    else
        say doctor "trireme doctor" "$(sed -n 's/^ *[a-z]* *cuda *//p' "$results/doctor.txt" | tr '|' ' ')"
    fi
}

matmul= # the roof, in GFLOP/s
step_operators() {
    local code=0 roofs copy command=(bench_op 1 "" "$device")
    over 20 "operators" && return
    limited 150 "$programs/bench/${command[0]}" "${command[@]:1}" >"$results/bench_op.txt" 2>"$work/operators.err" || code=$?
    cat "$results/bench_op.txt"
    if roofs=$(grep -m 1 ', bf16; roofs ' "$results/bench_op.txt"); then
        read -r matmul _ copy _ <<<"${roofs#*, bf16; roofs }" # "1.2 GFLOP/s, 3.4 GB/s"
        say "roof: product in BF16" "bench_op 1 '' $device" "$(awk -v x="$matmul" 'BEGIN { printf "%.1f TFLOP/s", x / 1e3 }')"
        say "roof: copy" "bench_op 1 '' $device" "$copy GB/s, read and written"
    fi
    ((code != 0)) || return 0
    failed=1
    say "operators" "bench_op 1 '' $device" "$(why $code "$work/operators.err")"
}

# --- training steps -------------------------------------------------------------------------------

# tokens_of and rate_of FILE: of its line "... 123 tok/s 4.5 GFLOP/s ...".
tokens_of() { sed -n 's|.* \([0-9]*\) tok/s.*|\1|p' "$1"; }
rate_of() { sed -n 's|.* \([0-9.]*\) GFLOP/s.*|\1|p' "$1"; }

# read_model NAME LAYERS ...: sets $words, options of bench_train, and $shape.
# shellcheck disable=SC2034 # their callers read them
read_model() {
    words=(layers="$2" width="$3" heads="$4" context="$5" vocab="$6" precision=bf16 threads=0 device="$device")
    shape="GPT-2 $1, L$2 C$3 T$5 V$6, bf16"
}

# train WHAT FILE SECONDS RANKS OPTION...: adds a row of bench_train; its output is in FILE, which is removed
# when it failed. The share of the roof is that of one GPU. An operator that runs without its library counts
# as a failure too.
train() {
    local what=$1 file=$2 time=$3 ranks=$4 code=0 slow command=(bench_train "${@:5}")
    local full=("$programs/bench/${command[0]}" "${command[@]:1}")
    over 15 "$what" && return 1
    ((ranks == 1)) || full=(mpirun --bind-to none -n "$ranks" "${full[@]}")
    limited "$time" "${full[@]}" >"$file" 2>&1 </dev/null || code=$?
    cat "$file"
    if ((code == 0)) && [[ -n $(rate_of "$file") ]]; then
        slow=$(sed -n 's/^slow  */; FAILED: /p' "$file" | head -n 1 | tr '|' ' ')
        [[ -z $slow ]] || failed=1
        say "$what" "${command[*]}" "$(tokens_of "$file") tok/s, $(awk -v x="$(rate_of "$file")" -v n="$ranks" -v r="${matmul:-0}" \
            'BEGIN { printf "%.1f model TFLOP/s", x / 1e3; if (r > 0) printf ": %.3f of the roof", x / n / r }')$slow"
        return 0
    fi
    ((code == 76)) || failed=1
    say "$what" "${command[*]}" "$(why $code "$file")"
    rm "$file"
    return 1
}

# Four micro-batches of each size; the later steps take the fastest size.
step_batches() {
    local model size words shape most=0 now
    for model in "${models[@]}"; do
        # shellcheck disable=SC2086 # words
        read_model $model
        for size in ${sizes[${model%% *}]}; do
            train "$shape, 4 micro-batches of $size" "$work/batches" 60 1 "${words[@]}" batch=$((4 * size)) micro_batch="$size" \
                steps=3 deterministic=0 || continue
            now=$(tokens_of "$work/batches")
            ((now > most)) || continue
            most=$now best[${model%% *}]=$size
        done
        most=0
    done
}

# choice NAME LAYERS ...: sets $words, $shape, $size and $batch of a model's training.
choice() {
    read_model "$@"
    size=${best[$1]:-8} batch=$((tokens / $5))
    ((batch % size == 0)) || size=1
    shape+=", $((batch / size)) micro-batches of $size"
    words+=(batch="$batch" micro_batch="$size" steps="${steps[$1]}")
}

step_training() {
    local model words shape size batch
    for model in "${models[@]}"; do
        # shellcheck disable=SC2086
        choice $model
        train "$shape" "$work/ours-${model%% *}" 150 1 "${words[@]}" deterministic=0 || continue
        [[ $model == "${models[0]}" ]] || continue
        train "$shape, deterministic" "$work/fixed" 60 1 "${words[@]}" deterministic=1 || true
    done
}

step_ranks() {
    local count words shape size batch axis
    count=$(gpus "$programs/trireme")
    ((count >= 2)) || {
        say "training over NCCL" - "left out: it needs two GPUs, and there is $count"
        return
    }
    # shellcheck disable=SC2086
    choice ${models[0]}
    for axis in dp pp tp; do
        train "$shape, $axis=$count" "$work/ranks" 90 "$count" "${words[@]}" deterministic=0 $axis="$count" transport=nccl || true
    done
}

# --- inside a step --------------------------------------------------------------------------------

# Ways of profiling, the best first. Each sets its description in $profile and the longest items in $summary.
profile_nsys() {
    limited 90 nsys profile -t cuda,nvtx --sample=none --cpuctxsw=none --force-overwrite=true -o "$results/step" \
        "$programs/bench/bench_train" "$@" >"$profile" 2>&1 || return
    limited 60 nsys stats --force-export=true --report cuda_gpu_kern_sum "$results/step.nsys-rep" >"$profile" 2>&1 || return
    summary=$(awk '/^ *--/ { line = NR + 1 } NR == line { print $1 " % of the kernel time: " $9; exit }' "$profile")
}
# It runs each kernel only once, because only times are measured, at the clocks of a usual run.
profile_ncu() {
    limited 150 ncu --csv --print-units base --clock-control none --metrics gpu__time_duration.sum --launch-count 4000 \
        "$programs/bench/bench_train" "$@" >"$work/launches.csv" 2>&1 || {
        mv "$work/launches.csv" "$profile"
        return 1
    }
    cp "$work/launches.csv" "$results/launches.csv"
    awk -F'","' 'NF >= 15 && $13 == "gpu__time_duration.sum" {
            gsub(/[",]/, "", $15); name = substr($5, 1, 100); sum[name] += $15; count[name]++; total += $15
        }
        END { for (name in sum) printf "%6.2f %% %10.3f ms %5d x %s\n", 100 * sum[name] / total, sum[name] / 1e6, count[name], name }' \
        "$work/launches.csv" | sort -rn >"$profile"
    summary=$(awk 'NR <= 3 { line = $0; sub(/^ */, "", line); gsub(/ +/, " ", line); printf "%s%s", (NR > 1 ? "; " : ""), substr(line, 1, 60) }' "$profile")
}
# The program's own trace of its second step, with the milliseconds of each kind of action.
profile_trace() {
    local model
    read -ra model <<<"${models[0]}"
    cat >"$work/step.yaml" <<Y
model: {layers: ${model[1]}, width: ${model[2]}, heads: ${model[3]}, context: ${model[4]}, vocab: ${model[5]}}
data: {path: tests/data/devil.txt}
train: {steps: 2, batch: 32, micro_batch: 32, precision: bf16, deterministic: false, validate_every: 0}
device: {name: $device}
log: {dir: $work/step}
Y
    limited 90 "$programs/trireme" train "$work/step.yaml" --trace 1 >"$profile" 2>&1 || return
    cp "$work/step/trace.json" "$results/step.json"
    awk -F'"' '/: measured"/ { split($0, part, /"pid":/); pid = part[2] + 0 }
        /"ph":"X"/ && pid != "" && index($0, "\"pid\":" pid ",") {
            kind = $4; gsub(/[0-9]/, "", kind); split($0, part, /"dur":/); sum[kind] += part[2] / 1000
        }
        END { for (kind in sum) printf "%-10s %10.3f ms\n", kind, sum[kind] }' "$results/step.json" >"$work/actions"
    cat "$work/actions" >>"$profile"
    summary=$(sort -k 2 -rn "$work/actions" | awk '{ printf "%s%s %s ms", (NR > 1 ? ", " : ""), $1, $2 }')
}

# The step runs once without a profiler, to measure the plans that it takes under one.
profile=$results/profile.txt
step_profile() {
    local words shape code tool what summary=
    # shellcheck disable=SC2086
    read_model ${models[0]}
    words+=(batch=32 micro_batch=32 steps=1 deterministic=0 plans="$work")
    what="profile of a step, $shape"
    over 20 "$what" && return
    limited 60 "$programs/bench/bench_train" "${words[@]}" >"$profile" 2>&1 || true # it fails below, too
    for tool in nsys ncu trace; do
        [[ $tool == trace ]] || command -v $tool >/dev/null || continue
        code=0
        profile_$tool "${words[@]}" || code=$?
        tail -n 40 "$profile" || true
        ((code == 0)) || {
            say "$what" $tool "$(why $code "$profile")"
            continue
        }
        say "$what" $tool "${summary:+$summary; }all in ${profile##*/}"
        return
    done
    failed=1
}

# The device uses the first plan within 32 MiB.
step_products() {
    local code=0 line
    [[ $device != cpu && -x $programs/bench/bench_matmul ]] || {
        say products - "left out: cuBLASLt is not in this build, or the device is the cpu"
        return
    }
    over 20 products && return
    limited 150 "$programs/bench/bench_matmul" "$device" >"$results/bench_matmul.txt" 2>"$work/products.err" || code=$?
    cat "$results/bench_matmul.txt"
    while read -r line; do
        say "products of a block, ${line%%, *}" "bench_matmul $device" "${line#*: }"
    done < <(grep ', products of a block: ' "$results/bench_matmul.txt")
    ((code != 0)) || return 0
    failed=1
    say products "bench_matmul $device" "$(why $code "$work/products.err")"
}

# Of the rows AdamW's go to the table.
step_updates() {
    local code=0 line
    over 20 updates && return
    limited 90 "$programs/bench/bench_updates" 1 "" "$device" >"$results/bench_updates.txt" 2>"$work/updates.err" || code=$?
    cat "$results/bench_updates.txt"
    while read -r line; do
        say "steps of ${line%%  *}" "bench_updates 1 '' $device" "$(awk '{ print $(NF - 2) " of a copy at " $NF " GB/s" }' <<<"$line")"
    done < <(sed -n 's/^name=//; /^adamw /p' "$results/bench_updates.txt")
    ((code == 0)) || {
        failed=1
        say updates "bench_updates 1 '' $device" "$(why $code "$work/updates.err")"
    }
}

# --- PyTorch --------------------------------------------------------------------------------------

peer() { # MODE NAME LAYERS ...: the training step in PyTorch
    local mode=$1 words shape size batch word code=0 arguments=() ours=$work/ours-$2
    shift
    choice "$@"
    over 60 "$shape: PyTorch, compiled, $mode" && return
    for word in "${words[@]}"; do
        case $word in precision=* | threads=* | device=*) ;; *) arguments+=("--${word%%=*}" "${word#*=}") ;; esac
    done
    LD_LIBRARY_PATH=$plain_path limited 200 "$python" bench/torch_gpt.py "${arguments[@]}" --mode "$mode" \
        --device "$device" --compile >"$work/torch" 2>"$work/torch.err" || code=$?
    cat "$work/torch"
    if ((code != 0)) || [[ -z $(rate_of "$work/torch") ]]; then # a failure of PyTorch is not one of the benchmark
        say "$shape: PyTorch, compiled, $mode" bench/torch_gpt.py "$(why $code "$work/torch.err")"
        return
    fi
    say "$shape: PyTorch, compiled, $mode" "bench/torch_gpt.py ${arguments[*]} --mode $mode --compile" \
        "$(tokens_of "$work/torch") tok/s, $(awk -v x="$(rate_of "$work/torch")" -v o="$(rate_of "$ours" 2>/dev/null || true)" \
            'BEGIN { printf "%.1f model TFLOP/s", x / 1e3; if (o > 0) printf "; trireme: %.2f times as fast", o / x }')"
}

step_pytorch() {
    local model mode check="import torch; assert '$device' == 'cpu' or torch.cuda.is_available()"
    over 60 "the same in PyTorch, compiled" && return
    LD_LIBRARY_PATH=$plain_path limited 60 "$python" -c "$check" 2>/dev/null || {
        say "the same in PyTorch, compiled" - "not measured: $python has no PyTorch for this device"
        return
    }
    # shellcheck disable=SC2086
    for model in "${models[@]}"; do for mode in autocast bf16; do peer $mode $model; done; done
}

echo "model FLOP a token = 6 N + 6 L T C, N = 12 L C^2 + V C (parameters in products, head included, embeddings"
echo "and norms not; causal attention once)"
for name in $chosen; do
    echo
    echo "$name:"
    "step_$name"
done
