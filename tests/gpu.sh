#!/usr/bin/env bash
# Runs everything that needs a GPU, in under 8 minutes, from a build tree or an unpacked bundle, the most
# informative checks first. Each has its own time limit, whatever happens to the others. Prints one table at
# the end, also when the script is stopped; results/tests.md of the build (tests-CHECK.md when some are
# chosen) has it up to the last check that ended. Ends with 1 when something failed, with 77 and the reason
# where there is no GPU.
#   tests/gpu.sh [CHECK...]          (all when none is given)
# TRIREME_TEST_DEVICE: the device (cuda; cpu and guarded test the checks themselves).
# TRIREME_TEST_GPUS: the number of GPUs (guarded: any number; cuda: by default the number that doctor prints).
# TRIREME_TEST_SECONDS: a check that has not ended after this time (470) has failed. TRIREME_TEST_LIMIT: the
# same for each check, where its own limit is longer. TRIREME_RESULTS: the folder of tests.md.
# shellcheck disable=SC2317 # the checks are called by name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# shellcheck source=/dev/null
[[ ! -f $root/env.sh ]] || source "$root/env.sh"
# shellcheck source=tests/gpu_lib.sh
source tests/gpu_lib.sh
build=${TRIREME_BUILD:-$root/build/release}
results=${TRIREME_RESULTS:-$build/results}
programs=$build/tests
export TRIREME_TEST_DEVICE=${TRIREME_TEST_DEVICE:-cuda}
limit=${TRIREME_TEST_SECONDS:-470}
cores=$(nproc)
jobs=$((cores / 4 > 0 ? cores / 4 : 1)) # checks that run at one time
work=$build/gpu-tests${1:+-$1}
unset OMPI_COMM_WORLD_RANK PMIX_RANK
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1

# --- the checks: each prints what it did; its last line goes to the table; 77: skipped --------------

missing() {
    echo "skipped: $1"
    return 77
}

check_doctor() {
    local code=0 text
    text=$("$build/trireme" doctor) || code=$?
    printf '%s\n\n' "$text"
    grep ' cuda ' <<<"$text"
    return $code
}
check_device() { "$programs/test_device"; }

# Compares operators with ref: in BF16 at the sizes of GPT-2 124M; then all, with the cases and tolerances of
# the cpu device.
operators() {
    [[ -x $programs/test_op_cuda ]] || { missing "there is no test_op_cuda in this build"; return; }
    TRIREME_TEST_ONLY=$1 "$programs/test_op_cuda"
}
check_models() { operators test_models; }
check_operators() { operators ''; }

# sanitizer TOOL OPTION...: runs the device's own kernels under compute-sanitizer. It does not support the
# GPUs of some virtual machines.
sanitizer() {
    local tool log code=0
    [[ -x $programs/test_op_cuda ]] || { missing "there is no test_op_cuda in this build"; return; }
    for tool in $(command -v compute-sanitizer) /usr/local/cuda*/bin/compute-sanitizer \
        /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
        [[ -x $tool ]] || continue
        log=$(mktemp)
        TRIREME_TEST_KERNELS=own "$tool" --tool "$1" --error-exitcode 9 "${@:2}" "$programs/test_op_cuda" 2>&1 | tee "$log" || code=$?
        ((code == 0)) || ! grep -q "Device not supported" "$log" || code=77
        rm "$log"
        return "$code"
    done
    missing "compute-sanitizer is not installed (it comes with the CUDA toolkit)"
}
# Return values of calls are not checked here: libraries ask the driver for optional functions, and the
# program checks its own calls.
check_memcheck() { sanitizer memcheck --leak-check no --report-api-errors no; }
# It finds races in shared memory and is slow: one type, and products, of which there are the most cases, last.
check_racecheck() {
    local only
    for only in ways:\ '*' table:\ {'attention*','factor*','*_wgrad*','matmul*'}; do
        TRIREME_TEST_ONLY="test_$only bf16" sanitizer racecheck || return
    done
}

# Heads of 64, so that attention takes the same path as in real models. Messages are staged where ranks share
# GPUs. Every rank takes part of the GPU for its context and the kernels that it loads: two checks of layouts
# with runs of four ranks have to fit. They load what they need, not all, which takes seconds a rank; with
# staged messages no GPU waits for another rank.
export TRIREME_TEST_RANKS=4
export TRIREME_TEST_SIZES="width: 256, heads: 4, context: 64" TRIREME_TEST_JOBS=$(((jobs + 1) / 2)) TRIREME_TEST_TRANSPORT=mpi
suite() { bash tests/run/equivalence.sh "$build/trireme" "$programs/gpu-$1-$2" "$2"; }
check_equivalence_fp32() { CUDA_MODULE_LOADING=LAZY suite equivalence fp32; }
check_equivalence_bf16() { CUDA_MODULE_LOADING=LAZY suite equivalence bf16; }
check_placements() { CUDA_MODULE_LOADING=LAZY bash tests/run/placements.sh "$build/trireme" "$programs/gpu-placements"; }
check_curves_fp32() { bash tests/run/curves.sh "$build/trireme" "$programs/gpu-curves-fp32" fp32; }
check_curves_bf16() { bash tests/run/curves.sh "$build/trireme" "$programs/gpu-curves-bf16" bf16; }
check_across() { bash tests/run/across.sh "$build/trireme" "$programs/gpu-across"; }
check_fits() { bash tests/run/fits.sh "$build/trireme" "$programs/gpu-fits"; }

# Messages and collectives of device memory between ranks that share the device.
check_comm() {
    mpirun --bind-to none -n 3 "$programs/comm" "$TRIREME_TEST_DEVICE" && echo "3 ranks, one device"
}

# Samples text from a checkpoint that the device saved, on the device and on the CPU.
check_sample() { bash tests/run/sampled.sh "$build/trireme" "$programs/gpu-sampled"; }

# NCCL with one rank; then with two on one GPU, each under its own host name, so that NCCL assumes two
# machines (an experiment: the result is printed, not judged).
check_nccl_one() { mpirun --bind-to none -n 1 "$programs/gpu_nccl" "$TRIREME_TEST_DEVICE"; }
check_nccl_two() {
    # shellcheck disable=SC2016 # the ranks' own shells expand it
    NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=4 timeout --kill-after=5 40 mpirun --bind-to none -n 2 bash -c \
        'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' sh "$programs/gpu_nccl" "$TRIREME_TEST_DEVICE" ||
        missing "experiment: two ranks on one GPU did not come together (code $?)"
}
# NCCL between GPUs, one rank on each: messages and collectives, and all layouts with this many ranks, which
# must give the bits of one GPU.
between() { # COMMAND...: where there are two GPUs, with $ranks
    ranks=$(gpus "$build/trireme")
    ((ranks <= 4)) || ranks=4
    ((ranks >= 2)) || { missing "NCCL between GPUs needs two of them, and there is $ranks"; return; }
    "$@"
}
one_each() {
    # shellcheck disable=SC2016 # the ranks' own shells expand it
    mpirun --bind-to none -n "$ranks" bash -c 'exec "$0" "$1:$OMPI_COMM_WORLD_RANK"' "$programs/gpu_nccl" "$TRIREME_TEST_DEVICE"
}
nccl_suite() { TRIREME_TEST_TRANSPORT=nccl TRIREME_TEST_RANKS=$ranks suite nccl "$1"; }
check_nccl_comm() { between one_each; }
check_nccl_fp32() { between nccl_suite fp32; }
check_nccl_bf16() { between nccl_suite bf16; }

# The checks, the most informative first, and the seconds that each may take.
first="doctor models operators device fits sample across curves_bf16" last="memcheck placements equivalence_bf16 equivalence_fp32 racecheck"
declare -A most=([doctor]=60 [models]=90 [device]=60 [operators]=150 [comm]=60 [fits]=60 [across]=90 [sample]=60 [curves_fp32]=200 [curves_bf16]=200
    [memcheck]=240 [racecheck]=240 [nccl_one]=60 [nccl_two]=60 [nccl_comm]=60 [nccl_fp32]=240 [nccl_bf16]=240)
nccl=
[[ ! -x $programs/gpu_nccl || $TRIREME_TEST_DEVICE != cuda* ]] || nccl+=" nccl_one"
[[ ! -x $programs/gpu_nccl || $TRIREME_TEST_DEVICE == cpu ]] || nccl+=" nccl_comm nccl_bf16 nccl_fp32"
[[ ! -x $programs/gpu_nccl || $TRIREME_TEST_DEVICE != cuda* ]] || nccl+=" nccl_two"
all="$first$nccl comm curves_fp32 $last"

# --- running them -----------------------------------------------------------------------------------

if [[ ${1:-} == --inner ]]; then # one check in its own process, so that a limit can end it
    "check_$2"
    exit
fi
chosen=${*:-$all}
for name in $chosen; do
    [[ " $all " == *" $name "* ]] || {
        echo "tests/gpu.sh: unknown check '$name'; the checks are: $all" >&2
        exit 64
    }
done
[[ -x $programs/test_device ]] || {
    echo "tests/gpu.sh: there is no $programs/test_device: build first (cmake --build --preset release)" >&2
    exit 66
}
rm -rf "$work" && mkdir -p "$work"
need_device "$TRIREME_TEST_DEVICE" "$programs" "$work/device.log"

# seconds NAME: prints its time limit, by its own limit and the remaining total.
seconds() {
    local own=${most[$1]:-$limit} left=$((limit - SECONDS))
    ((own <= ${TRIREME_TEST_LIMIT:-$own})) || own=$TRIREME_TEST_LIMIT
    echo $((own < left ? own : left))
}

# Runs one check in the background, with its output, exit code and seconds in files.
start() {
    local time
    time=$(seconds "$1")
    ((time > 0)) || return 0
    (
        begin=$SECONDS code=0
        timeout --kill-after=5 "$time" bash "$root/tests/gpu.sh" --inner "$1" </dev/null >"$work/$1.log" 2>&1 &
        child=$!
        trap 'kill $child' TERM
        wait $child || code=$?
        echo "$code $((SECONDS - begin))" >"$work/$1.end"
    ) &
}

# --- the table --------------------------------------------------------------------------------------

# outcome NAME: sets $outcome and $time.
unfinished=waiting # until the end
outcome() {
    local code=none
    time=-
    [[ ! -s $work/$1.end ]] || read -r code time <"$work/$1.end"
    case $code in
    0) outcome=ok ;;
    77) outcome=skipped ;;
    none) outcome=$unfinished ;;
    124 | 137) outcome=TIMEOUT ;;
    143) outcome=stopped ;;
    *) outcome=FAILED ;;
    esac
}

report() {
    local name line failed=0
    printf '\n%s\n\n' "$("$build/trireme" --version 2>/dev/null | head -n 1 || echo trireme), $(stamp "$TRIREME_TEST_DEVICE")"
    printf '| %-16s | %-7s | %4s | %s |\n|---|---|---|---|\n' check outcome s "last line"
    for name in $chosen; do
        outcome "$name"
        case $outcome in ok | skipped | waiting) ;; *) failed=$((failed + 1)) ;; esac
        line=$(grep -v '^ *$' "$work/$name.log" 2>/dev/null | tail -n 1 | cut -c 1-110 | tr '|' ' ' || true)
        printf '| %-16s | %-7s | %4s | %s |\n' "$name" "$outcome" "$time" "$line"
    done
    for name in $chosen; do
        outcome "$name"
        case $outcome in TIMEOUT | FAILED) ;; *) continue ;; esac
        printf '\n%s, the end of its output:\n\n```\n' "$name"
        tail -n 25 "$work/$name.log"
        printf '```\n'
    done
    printf '\n%d checks, %d failed%s\n' "$(wc -w <<<"$chosen")" "$failed" "${stopped:+; the script was stopped}"
}

record=$results/tests${1:+-$1}.md
# write_report: writes the table so far to the file.
write_report() { report 2>&1 | sed "s|$root/||g" >"$record"; }

# --- one after the other, or several at a time --------------------------------------------------------

mkdir -p "$results"
stopped=
# shellcheck disable=SC2046 # one word a job
trap 'stopped=yes; kill $(jobs -pr) 2>/dev/null' INT TERM
for name in $chosen; do
    while (($(jobs -pr | wc -l) >= jobs)); do
        wait -n || true
        write_report
    done
    [[ -n $stopped ]] || start "$name"
done
while [[ -n $(jobs -pr) ]]; do
    wait -n || true
    write_report
done
unfinished="no time"
write_report
cat "$record"
echo "written to ${record#"$root"/}; all output: ${work#"$root"/}/" >&2
outcome "${chosen##* }"
[[ $# != 1 || $outcome != skipped ]] || exit 77
grep -q ' checks, 0 failed$' "$record"
