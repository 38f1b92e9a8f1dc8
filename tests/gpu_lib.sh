# shellcheck shell=bash
# Functions that tests/gpu.sh and bench/gpu.sh share; sourced from the root of the repository or of the
# bundle.

export OMPI_MCA_orte_execute_quiet=1 # mpirun -q, an option that version 5 has not

# ask_gpu FIELD,...: prints nvidia-smi's fields of the first GPU; nothing where it is missing or does not
# answer.
ask_gpu() {
    local all
    all=$(timeout 10 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null) || return 0
    head -n 1 <<<"$all"
}

# need_device DEVICE PROGRAMS LOG: returns if the tests' programs can open the device. Otherwise the script
# ends with the reason: with 77 where there is no GPU, with 1 where there is one that cannot be used.
need_device() {
    local code=0 name=$0
    gpu_words=$(ask_gpu name,driver_version,memory.total,clocks.max.sm,power.limit)
    TRIREME_TEST_DEVICE=$1 timeout --kill-after=5 60 "$2/test_device" >"$3" 2>&1 || code=$?
    case $code in
    77)
        if [[ $1 == cuda* && -n $(ask_gpu name) ]]; then
            echo "$name: nvidia-smi lists a GPU, but: $(grep -m 1 '^skipped' "$3")" >&2
            exit 1
        fi
        grep -m 1 '^skipped' "$3"
        exit 77
        ;;
    124 | 137)
        echo "$name: the device $1 does not answer: test_device did not end within 60 s" >&2
        exit 1
        ;;
    esac
}

# stamp DEVICE: prints date, commit and device in one line; after need_device.
stamp() {
    local commit
    commit=$(sed -n 's/^commit *//p' VERSION 2>/dev/null || git describe --always --dirty 2>/dev/null || true)
    echo "$(date -u '+%Y-%m-%d %H:%M') UTC, commit ${commit:-unknown}, device $1${gpu_words:+ ($gpu_words)}, $SECONDS s"
}

# gpus TRIREME: prints the number of GPUs: TRIREME_TEST_GPUS, or what doctor counts.
gpus() {
    local count=${TRIREME_TEST_GPUS:-}
    [[ -n $count ]] || count=$("$1" doctor 2>/dev/null | sed -n 's/.* CUDA driver [^,]*, \([0-9]*\) device.*/\1/p')
    echo "${count:-0}"
}
