#!/usr/bin/env bash
# Everything that needs a GPU, in under 8 minutes, from a build tree or an unpacked bundle; one table at
# the end. Ends with 1 when something failed, with 77 and the reason where there is no GPU.
#   tests/gpu.sh [CHECK...]          (all when none is given)
# TRIREME_TEST_DEVICE: the device (cuda; cpu and guarded show that the checks themselves work).
# TRIREME_TEST_GPUS: how many there are (guarded has as many as it is told; cuda: those that doctor counts).
# TRIREME_TEST_SECONDS: after these (470) what has not ended has failed.
# shellcheck disable=SC2317 # the checks are called by name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# shellcheck source=/dev/null
[[ ! -f $root/env.sh ]] || source "$root/env.sh"
build=${TRIREME_BUILD:-$root/build/release}
programs=$build/tests
export TRIREME_TEST_DEVICE=${TRIREME_TEST_DEVICE:-cuda}
limit=${TRIREME_TEST_SECONDS:-470}
cores=$(nproc)
jobs=$((cores / 4 > 0 ? cores / 4 : 1)) # checks at a time
work=$build/gpu-tests${1:+-$1}
unset OMPI_COMM_WORLD_RANK PMIX_RANK
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1

# --- the checks: each prints what it did, its last line goes to the table; 77 is skipped --------------

missing() {
    echo "skipped: $1"
    return 77
}

check_device() { "$programs/test_device"; }

# Every operator against ref, with the same cases and tolerances as the cpu device's.
check_operators() {
    [[ -x $programs/test_op_cuda ]] || { missing "there is no test_op_cuda in this build"; return; }
    "$programs/test_op_cuda"
}

# sanitizer TOOL OPTION...: compute-sanitizer over the own kernels.
sanitizer() {
    local tool
    [[ -x $programs/test_op_cuda ]] || { missing "there is no test_op_cuda in this build"; return; }
    for tool in $(command -v compute-sanitizer) /usr/local/cuda*/bin/compute-sanitizer \
        /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
        [[ -x $tool ]] || continue
        TRIREME_TEST_KERNELS=own "$tool" --tool "$1" --error-exitcode 9 "${@:2}" "$programs/test_op_cuda"
        return
    done
    missing "compute-sanitizer is not installed (it comes with the CUDA toolkit)"
}
check_memcheck() { sanitizer memcheck --leak-check no; }
check_racecheck() { sanitizer racecheck; }

# Heads of 64, so that attention takes the way of real models. Staged messages, where ranks share GPUs.
export TRIREME_TEST_SIZES="width: 256, heads: 4, context: 64" TRIREME_TEST_JOBS=$jobs TRIREME_TEST_TRANSPORT=mpi
suite() { bash tests/run/equivalence.sh "$build/trireme" "$programs/gpu-$1-$2" "$2"; }
check_equivalence_fp32() { suite equivalence fp32; }
check_equivalence_bf16() { suite equivalence bf16; }
check_placements() { bash tests/run/placements.sh "$build/trireme" "$programs/gpu-placements"; }
check_curves_fp32() { bash tests/run/curves.sh "$build/trireme" "$programs/gpu-curves-fp32" fp32; }
check_curves_bf16() { bash tests/run/curves.sh "$build/trireme" "$programs/gpu-curves-bf16" bf16; }
check_across() { bash tests/run/across.sh "$build/trireme" "$programs/gpu-across"; }
check_fits() { bash tests/run/fits.sh "$build/trireme" "$programs/gpu-fits"; }

# Messages and collectives of device memory between ranks that share the device.
check_comm() {
    mpirun -q --bind-to none -n 3 "$programs/comm" "$TRIREME_TEST_DEVICE" && echo "3 ranks, one device"
}

# Text from a checkpoint that the device saved, on the device and on the CPU.
check_sample() { bash tests/run/sampled.sh "$build/trireme" "$programs/gpu-sampled"; }

all="device operators memcheck racecheck comm fits across sample curves_fp32 curves_bf16 placements equivalence_fp32 equivalence_bf16"
# NCCL with one rank; and with two on one GPU, each under a host name of its own, which NCCL takes for
# two machines (what it does then is an experiment: it is told, not judged).
check_nccl_one() { mpirun -q --bind-to none -n 1 "$programs/gpu_nccl" "$TRIREME_TEST_DEVICE"; }
check_nccl_two() {
    # shellcheck disable=SC2016 # the ranks' own shells expand it
    NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=4 mpirun -q --bind-to none -n 2 bash -c \
        'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' sh "$programs/gpu_nccl" "$TRIREME_TEST_DEVICE" ||
        missing "experiment: two ranks on one GPU did not come together (code $?)"
}
# NCCL between GPUs, one rank on each: messages and collectives, and the layouts of at most as many ranks,
# which have the bits of one GPU.
gpus() { # how many there are, at most 4
    local count=${TRIREME_TEST_GPUS:-}
    [[ -n $count ]] || count=$("$build/trireme" doctor 2>/dev/null | sed -n 's/.* CUDA driver [^,]*, \([0-9]*\) device.*/\1/p')
    echo $((${count:-0} < 4 ? ${count:-0} : 4))
}
between() { # COMMAND...: where there are two GPUs, with $ranks
    ranks=$(gpus)
    ((ranks >= 2)) || { missing "NCCL between GPUs needs two of them, and there is $ranks"; return; }
    "$@"
}
one_each() {
    # shellcheck disable=SC2016 # the ranks' own shells expand it
    mpirun -q --bind-to none -n "$ranks" bash -c 'exec "$0" "$1:$OMPI_COMM_WORLD_RANK"' "$programs/gpu_nccl" "$TRIREME_TEST_DEVICE"
}
nccl_suite() { TRIREME_TEST_TRANSPORT=nccl TRIREME_TEST_RANKS=$ranks suite nccl "$1"; }
check_nccl_comm() { between one_each; }
check_nccl_fp32() { between nccl_suite fp32; }
check_nccl_bf16() { between nccl_suite bf16; }
[[ ! -x $programs/gpu_nccl || $TRIREME_TEST_DEVICE != cuda* ]] || all+=" nccl_one nccl_two"
[[ ! -x $programs/gpu_nccl || $TRIREME_TEST_DEVICE == cpu ]] || all+=" nccl_comm nccl_fp32 nccl_bf16"

# --- running them -----------------------------------------------------------------------------------

if [[ ${1:-} == --inner ]]; then # one check, in a process of its own, so that a limit can end it
    "check_$2"
    exit
fi
chosen=${*:-$all}
for name in $chosen; do
    [[ " $all " == *" $name "* ]] || {
        echo "tests/gpu.sh: there is no check '$name'; there are: $all" >&2
        exit 64
    }
done
[[ -x $programs/test_device ]] || {
    echo "tests/gpu.sh: there is no $programs/test_device: build first (cmake --build --preset release)" >&2
    exit 66
}
rm -rf "$work" && mkdir -p "$work"
code=0
"$programs/test_device" >"$work/device.log" 2>&1 || code=$?
if [[ $code == 77 ]]; then
    # A GPU that is there and cannot be used is a failure.
    if [[ $TRIREME_TEST_DEVICE == cuda* ]] && grep -q '^GPU' <(nvidia-smi -L 2>/dev/null); then
        echo "tests/gpu.sh: nvidia-smi lists a GPU, but: $(grep -m 1 '^skipped' "$work/device.log")" >&2
        exit 1
    fi
    grep -m 1 '^skipped' "$work/device.log"
    exit 77
fi

# One check in the background, with its output, its end and its seconds in files.
start() {
    (
        begin=$SECONDS code=0
        timeout --kill-after=5 $((limit - begin > 1 ? limit - begin : 1)) \
            bash "${BASH_SOURCE[0]}" --inner "$1" </dev/null >"$work/$1.log" 2>&1 || code=$?
        echo "$code $((SECONDS - begin))" >"$work/$1.end"
    ) &
}

running() { jobs -pr | wc -l; }
for name in $chosen; do
    while (($(running) >= jobs)); do wait -n || true; done
    start "$name"
done
wait

# --- the table --------------------------------------------------------------------------------------

failed=0
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1 || true)
printf '\n%s on %s%s\n\n' "$("$build/trireme" --version 2>/dev/null | head -n 1 || echo trireme)" \
    "$TRIREME_TEST_DEVICE" "${gpu:+ ($gpu)}"
printf '%-18s %-8s %5s  %s\n' check outcome s "last line"
for name in $chosen; do
    read -r code seconds <"$work/$name.end" || code=1 seconds=0
    case $code in
    0) outcome=ok ;;
    77) outcome=skipped ;;
    124 | 137) outcome=TIMEOUT failed=$((failed + 1)) ;;
    *) outcome=FAILED failed=$((failed + 1)) ;;
    esac
    printf '%-18s %-8s %5s  %s\n' "$name" "$outcome" "$seconds" \
        "$(grep -v '^ *$' "$work/$name.log" | tail -n 1 | cut -c 1-110)"
done
for name in $chosen; do
    read -r code _ <"$work/$name.end" || code=1
    [[ $code == 0 || $code == 77 ]] && continue
    printf '\n--- %s: the end of %s\n' "$name" "${work#"$root"/}/$name.log"
    tail -n 25 "$work/$name.log"
done
printf '\n%d checks, %d failed, %d s\n' "$(wc -w <<<"$chosen")" "$failed" "$SECONDS"
[[ $# != 1 || $code != 77 ]] || exit 77
((failed == 0))
