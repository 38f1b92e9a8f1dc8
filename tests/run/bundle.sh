#!/usr/bin/env bash
# Tests that the bundle runs wherever it is unpacked or moved: every library except glibc's and CUDA's comes
# from inside it, and so does Open MPI; without CUDA's libraries it says which are missing.
# usage: bundle.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
here=$(cd "$(dirname "$0")/../.." && pwd)
command -v orted >/dev/null || {
    echo "skipped: a bundle holds Open MPI 4, and this is a later version"
    exit 77
}
# The largest allowed tarball.
most=$((60 << 20))

# The quickest level takes a tenth of the time; the usual one makes the tarball a fifth smaller.
XZ_OPT=-0 bash "$here/tools/bundle.sh" "$scratch/t.tar.xz" "$(dirname "$trireme")" >"$scratch/made" 2>&1 || {
    fail "no bundle: $(tail -n 1 "$scratch/made")"
    finish
}
(($(stat -c %s "$scratch/t.tar.xz") <= most)) || fail "the bundle is too large"
mkdir "$scratch/first"
tar -C "$scratch/first" -xf "$scratch/t.tar.xz"
mkdir "$scratch/a place of its own"
mv "$scratch/first/trireme" "$scratch/a place of its own/moved"
bundle="$scratch/a place of its own/moved"

# alone COMMAND...: runs it without the caller's environment.
alone() { env -i HOME="$scratch" TMPDIR="$TMPDIR" PATH=/usr/bin:/bin TERM=dumb timeout 60 "$@"; }

# The libraries of every program and plugin that the dynamic linker finds outside of the bundle, except glibc
# and CUDA.
# shellcheck disable=SC2016 # expanded by the inner shell
alone bash -c 'source "$1/env.sh"; find "$1" -type f \( -perm -u+x -o -name "*.so*" \) ! -name "*.sh" ! -name "*.py" \
    -exec sh -c '\''for f; do ldd "$f" 2>/dev/null; done'\'' sh {} +' sh "$bundle" >"$scratch/ldd" 2>&1
grep -q "=> $bundle/lib/libhdf5" "$scratch/ldd" || fail "HDF5 is not in the bundle"
grep -q "=> $bundle/lib/libmpi\." "$scratch/ldd" || fail "Open MPI is not in the bundle"
outside=$(awk '$2 == "=>"' "$scratch/ldd" | grep -vF "=> $bundle/" | awk '{ print $1 }' | sort -u |
    grep -vE '^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv|util)\.so|lib(cudnn|cublas|cublasLt|nccl|cuda|cudart)\.so)' || true)
[[ -z $outside ]] || fail "not in the bundle: $outside"

# Two ranks under the bundle's own mpirun, one rank alone, and a sample.
cat >"$scratch/x.yaml" <<Y
model: {layers: 2, width: 32, heads: 4, context: 32}
data: {path: $bundle/tests/data/devil.txt}
train: {steps: 4, batch: 4, micro_batch: 1, threads: 1, validate_every: 0}
log: {dir: $scratch/pair}
Y
alone "$bundle/trireme" run -n 2 train "$scratch/x.yaml" parallel.pp=2 >"$scratch/pair.out" 2>&1 ||
    fail "two ranks ended with $?: $(tail -n 3 "$scratch/pair.out")"
# shellcheck disable=SC2016
alone bash -c 'source "$1/env.sh"; command -v mpirun; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1; mpirun -q --bind-to none -n 2 trireme train "$2" parallel.dp=2 log.dir="$3"' \
    sh "$bundle" "$scratch/x.yaml" "$scratch/plain" >"$scratch/plain.out" 2>&1 ||
    fail "plain mpirun ended with $?: $(tail -n 3 "$scratch/plain.out")"
grep -qxF "$bundle/openmpi/bin/mpirun" "$scratch/plain.out" || fail "mpirun is not the bundle's"
# The libraries that were really loaded, including plugins.
alone env LD_DEBUG=libs LD_DEBUG_OUTPUT="$scratch/loaded" "$bundle/trireme" run -n 2 train "$scratch/x.yaml" \
    parallel.pp=2 log.dir="$scratch/again" >"$scratch/again.out" 2>&1 || fail "two ranks ended with $?"
outside=$(cat "$scratch"/loaded.* | sed -n 's|.*calling init: \(/.*\)|\1|p' | sort -u | grep -vF "$bundle/" |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|tinfo|nss_[a-z]*|selinux|pcre2-8|cudnn[a-z_]*|cublasLt|cublas|nccl|cuda|cudart)\.so[.0-9]*)$' |
    grep -E 'mpi|open-|pmix|hwloc|event|hdf5|dnnl|gomp|yaml|cjson|xxhash|stdc' || true)
[[ -z $outside ]] || fail "loaded from outside: $outside"
alone "$bundle/trireme" sample "$scratch/pair" -n 20 >"$scratch/sample" 2>&1 || fail "no sample"

# CUDA is looked for in Python's packages too; if it is not found, one sentence says so.
mkdir -p "$scratch/venv/lib/python3.12/site-packages/nvidia/cudnn/lib"
nowhere() { # BUNDLE: looks for CUDA's libraries where there are none
    # shellcheck disable=SC2016
    alone env VIRTUAL_ENV="$scratch/venv" bash -c 'source "$1/env.sh" 2>/dev/null; trireme_cuda_folders
        trireme_cuda_folders() { echo /nowhere; }; trireme_find_cuda' sh "$1" >"$scratch/folders" 2>"$scratch/missing" || true
}
nowhere "$bundle"
grep -qx "$scratch/venv/lib/python3.12/site-packages/nvidia/cudnn/lib" "$scratch/folders" || fail "Python's packages are not searched"
with_cuda=$(grep -c "^libcublasLt" "$bundle/cuda-libraries" || true)
if ((with_cuda)); then
    grep -q 'libcudnn.so.9 libcublasLt.so.13 libnccl.so.2 libnvrtc.so.13 not found in a toolkit' "$scratch/missing" || fail "no line says what is missing"
elif [[ -s $scratch/missing ]]; then
    fail "a bundle that needs none of CUDA's libraries names them: $(<"$scratch/missing")"
fi
# For programs that need only one of them, only that one is named as missing.
mkdir -p "$scratch/lone"
cp "$bundle/env.sh" "$scratch/lone/"
echo libnccl.so.2 >"$scratch/lone/cuda-libraries"
nowhere "$scratch/lone"
grep -q "CUDA's libnccl.so.2 not found in a toolkit" "$scratch/missing" || fail "of one library: $(<"$scratch/missing")"
# cuDNN's compiler may be in a folder without the other libraries.
mkdir -p "$scratch/dnn" "$scratch/rtc"
printf "%s\n" libcudnn.so.9 libnccl.so.2 >"$scratch/lone/cuda-libraries"
touch "$scratch/dnn/libcudnn.so.9" "$scratch/dnn/libnccl.so.2" "$scratch/rtc/libnvrtc.so.13"
# shellcheck disable=SC2016
alone env TRIREME_CUDA_LIBRARIES="$scratch/dnn:$scratch/rtc" bash -c 'source "$1/env.sh"; echo "$trireme_cuda"' \
    sh "$scratch/lone" >"$scratch/compiler" 2>&1 || true
grep -qxF "$scratch/dnn:$scratch/rtc" "$scratch/compiler" || fail "cuDNN's compiler is not found: $(<"$scratch/compiler")"
# A cuDNN that is too old, by the name of its file, is passed over if another folder has one, which comes
# before it on the path.
mkdir -p "$scratch/old"
touch "$scratch/old/libcudnn.so.9.14.0" "$scratch/old/libnccl.so.2" "$scratch/old/libnvrtc.so.13"
ln -s libcudnn.so.9.14.0 "$scratch/old/libcudnn.so.9"
for folders in "$scratch/old:$scratch/dnn" "$scratch/old"; do
    # shellcheck disable=SC2016
    alone env TRIREME_CUDA_LIBRARIES="$folders" bash -c 'source "$1/env.sh"
        trireme_cuda_folders() { tr ":" "\n" <<<"$TRIREME_CUDA_LIBRARIES"; }; trireme_find_cuda; echo "$trireme_cuda"' \
        sh "$scratch/lone" 2>&1 || true
done >"$scratch/versions"
printf "%s\n" "$scratch/dnn:$scratch/old" "$scratch/old" | diff - "$scratch/versions" || fail "an old cuDNN"
nowhere "$scratch/lone"
grep -q "libcudnn.so.9 libnccl.so.2 libnvrtc.so.13 not found" "$scratch/missing" || fail "of a compiler: $(<"$scratch/missing")"
rm "$scratch/lone/cuda-libraries"
nowhere "$scratch/lone"
[[ ! -s $scratch/missing ]] || fail "of no library: $(<"$scratch/missing")"
# The program starts without them, trains on the CPU and refuses GPUs.
without() {
    # shellcheck disable=SC2016
    alone bash -c 'source "$1/env.sh"; trireme_cuda_folders() { echo /nowhere; }; trireme_find_cuda
        LD_LIBRARY_PATH=$1/lib:$trireme_cuda exec "$1/build/release/trireme" "${@:2}"' sh "$bundle" "$@"
}
if ((with_cuda)); then
    without train "$scratch/x.yaml" log.dir="$scratch/without" >"$scratch/without.out" 2>&1 ||
        fail "without CUDA's libraries: $(tail -n 1 "$scratch/without.out")"
    code=0
    without train "$scratch/x.yaml" device.name=cuda log.dir="$scratch/refused" >"$scratch/refused.out" 2>&1 || code=$?
    [[ $code == 69 ]] || fail "device.name=cuda without CUDA's libraries ended with $code, not 69"
fi

# The GPU tests run from the bundle.
code=0
alone bash "$bundle/tests/gpu.sh" >"$scratch/gpu.out" 2>&1 || code=$?
[[ $code == 0 || $code == 77 ]] || fail "tests/gpu.sh ended with $code: $(tail -n 3 "$scratch/gpu.out")"
finish
