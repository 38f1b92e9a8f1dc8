#!/usr/bin/env bash
# Makes a relocatable tarball of the program: it runs on a machine that has nothing but glibc, bash and,
# for GPUs, the driver and CUDA's libraries (of a toolkit, or of Python's nvidia-* packages). In it are
# the build's program, what tests/gpu.sh and bench/gpu.sh run, their scripts and data, Open MPI with its
# prefix, and every library of these that is part of neither glibc nor CUDA.
#   tools/bundle.sh OUT.tar.xz|OUT.tar.zst [BUILD_DIR]      (build/release when not given)
# On the other machine: tar -xf OUT.tar.xz; trireme/trireme doctor; bash trireme/tests/gpu.sh
set -euo pipefail

out=${1:?usage: tools/bundle.sh OUT.tar.xz [BUILD_DIR]}
out=$(realpath -m "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath "${2:-build/release}")
most=$((60 << 20)) # bytes of the tarball

die() {
    echo "bundle.sh: $*" >&2
    exit 1
}
case $out in
*.tar.xz | *.tar.zst) ;; # gzip is too weak: every program has the GPU code
*) die "the tarball's name ends in .tar.xz or .tar.zst, not as in $out" ;;
esac
[[ -x $build/trireme ]] || die "there is no $build/trireme: build first (cmake --build --preset release)"
command -v ompi_info >/dev/null || die "ompi_info is missing: apt-get install openmpi-bin"
command -v orted >/dev/null || die "there is no orted: a bundle holds Open MPI 4, as on Debian 12, and this is a later version"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/trireme
mkdir -p "$root/lib" "$root/build/release/tests" "$root/build/release/bench"

# --- programs, scripts, data ----------------------------------------------------------------------

cp "$build/trireme" "$root/build/release/"
programs=(test_device comm ckpt_compare ckpt_relayout)
for file in "$build"/tests/test_op_cuda "$build"/tests/gpu_*; do
    [[ -f $file && -x $file ]] && programs+=("$(basename "$file")")
done
for name in "${programs[@]}"; do
    [[ -x $build/tests/$name ]] || die "there is no $build/tests/$name: build all"
    cp "$build/tests/$name" "$root/build/release/tests/"
done
benches=(bench_op bench_train bench_updates) # built on demand: cmake --build build/release --target benches
[[ ! -x $build/tests/test_op_cuda ]] || benches+=(bench_matmul)
for name in "${benches[@]}"; do
    if [[ -x $build/bench/$name ]]; then cp "$build/bench/$name" "$root/build/release/bench/"; else
        echo "bundle.sh: without $name, which bench/gpu.sh needs (cmake --build $build --target benches)" >&2
    fi
done
mkdir -p "$root/tests" "$root/bench"
cp -r tests/run tests/data tests/gpu.sh tests/gpu_lib.sh "$root/tests/"
cp bench/gpu.sh bench/lib.sh bench/*.py "$root/bench/"
cp -r examples docs README.md "$root/"
cp tools/bundle/env.sh tools/bundle/trireme "$root/"

# --- Open MPI with its prefix ---------------------------------------------------------------------

# Its path under its own prefix, so that OPAL_PREFIX alone moves it.
mpi_path() { ompi_info --path "$1" --parsable | sed 's/^path:[^:]*://'; }
prefix=$(mpi_path prefix)
plugins=$(mpi_path pkglibdir) texts=$(mpi_path pkgdatadir)
mpi=$root/openmpi
mkdir -p "$mpi/bin" "$mpi${plugins#"$prefix"}" "$mpi${texts#"$prefix"}" "$mpi/etc"
for name in mpirun orted; do cp -L "$(command -v $name)" "$mpi/bin/"; done
cp "$texts"/help-*.txt "$mpi${texts#"$prefix"}/"
cp "$(mpi_path sysconfdir)"/*.conf "$mpi/etc/" 2>/dev/null || true

glibc='ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl|nsl|mvec|thread_db|BrokenLocale|nss_[a-z]*)\.so.*|linux-vdso.*'
cuda='lib(cuda|cudart|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvidia|nvrtc|nvJitLink|nvToolsExt).*'
fabric='lib(ucp|ucs|uct|ucm|fabric|psm2|psm_infinipath|infinipath|ibverbs|rdmacm|efa|oshmem|mca_common_(ucx|ofi|verbs))\..*'

# needed FILE...: prints the libraries that they load as "name path", except glibc's and CUDA's.
needed() {
    local file
    for file in "$@"; do ldd "$file" 2>/dev/null || true; done | awk '$2 == "=>" { print $1, $3 }' | sort -u |
        grep -vE "^($glibc|$cuda) "
}

# Leaves out plugins that need a fabric's library or serve what a bundle does not do.
for file in "$plugins"/*.so; do
    case $(basename "$file") in
    mca_{sshmem,spml,scoll,memheap,atomic,crs,vprotocol,monitoring}_* | *_monitoring.so | mca_fs_* | mca_fbtl_*) continue ;;
    mca_fcoll_* | mca_sharedfp_* | mca_io_* | mca_ras_gridengine* | mca_ras_slurm* | mca_ess_slurm*) continue ;;
    esac
    grep -qE "^$fabric" <(needed "$file") || cp "$file" "$mpi${plugins#"$prefix"}/"
done
# The process manager's library finds its own plugins and texts under PMIX_PREFIX.
pmix=$(ldconfig -p | sed -n 's/.*libpmix\.so\.2 .* => //p' | head -n 1)
[[ -z $pmix ]] || pmix=$(realpath "$pmix")
if [[ -n $pmix && -d $(dirname "$pmix")/pmix ]]; then
    mkdir -p "$root/pmix/lib" "$root/pmix/share"
    cp -r "$(dirname "$pmix")/pmix" "$root/pmix/lib/"
    cp -r "$(dirname "$pmix")/../share/pmix" "$root/pmix/share/" 2>/dev/null || true
fi

# --- libraries ------------------------------------------------------------------------------------

mapfile -t files < <(find "$root" -type f \( -perm -u+x -o -name '*.so*' \) ! -name '*.sh' ! -name '*.py')
while read -r name path; do
    [[ -f $path ]] || die "$name is needed and not found here"
    cp -L "$path" "$root/lib/$name"
done < <(needed "${files[@]}")
find "$root" -type f \( -perm -u+x -o -name '*.so*' \) -exec sh -c '
    for f; do [ "$(head -c 4 "$f" | tail -c 3)" != ELF ] || strip --strip-unneeded "$f"; done' sh {} +

# The programs load CUDA's libraries when they open a GPU; env.sh finds the folders of those named here.
# A build without CUDA names none.
cuda_names='lib(cublasLt|cudnn|nccl)\.so\.[0-9]+'
grep -haoE "$cuda_names" "$root"/build/release/trireme | sort -u >"$root/cuda-libraries" || true

{
    echo "trireme bundle"
    git rev-parse HEAD 2>/dev/null | sed 's/^/commit  /' || true
    echo "glibc   $(ldd --version | sed -n '1s/.* //p') or later"
} >"$root/VERSION"

# --- the tarball ----------------------------------------------------------------------------------

case $out in
*.xz) pack="xz -T0" ;; # XZ_OPT may hold another level than 6
*.zst) pack="zstd -15 -T0 -q" ;;
esac
tar -C "$work" --sort=name --owner=0 --group=0 -I "$pack" -cf "$out" trireme
bytes=$(stat -c %s "$out")
((bytes <= most)) || die "$out has $bytes bytes, more than the $most that are allowed"
echo "$out: $((bytes >> 10)) KiB, $(find "$root" -type f | wc -l) files, $(find "$root/lib" -type f | wc -l) libraries"
