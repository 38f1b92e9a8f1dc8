# Source this file (bash) to run what is in this folder: bin and library paths, Open MPI's prefix, and
# where CUDA's libraries are. Says in one sentence which of CUDA's libraries are missing.
# shellcheck shell=bash
trireme_home=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Folders that may hold CUDA's libraries: what the caller names, toolkits, and the nvidia-* packages of
# Python, where every library has a folder of its own (nvidia/cudnn/lib, nvidia/cu13/lib, ...).
trireme_cuda_folders() {
    local site
    [[ -z ${TRIREME_CUDA_LIBRARIES:-} ]] || tr ':' '\n' <<<"$TRIREME_CUDA_LIBRARIES"
    printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda-[0-9]*/lib64 /usr/local/cuda/lib /opt/cuda/lib64 \
        /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/lib
    for site in $(env -u LD_LIBRARY_PATH python3 -c \
        'import site, sys; print(*dict.fromkeys(site.getsitepackages() + [site.getusersitepackages()] + sys.path))' \
        2>/dev/null) ${VIRTUAL_ENV:+"$VIRTUAL_ENV"/lib/python3*/site-packages} \
        /opt/*/lib/python3*/site-packages /usr/local/lib/python3*/dist-packages; do
        printf '%s\n' "$site"/nvidia/*/lib
    done
}

# Succeeds when a library's file name tells that it is a cuDNN before 9.16, which the program refuses. The
# file names of Python's packages tell no version.
trireme_too_old() {
    [[ $(realpath "$1") =~ /libcudnn\.so\.9\.([0-9]+) ]] && ((BASH_REMATCH[1] < 16))
}

# Finds each library that the program may load (cuda-libraries) in the first folder that has it, and cuDNN in
# the first where it is not too old, if there is one; a folder enters the path once, cuDNN's first, because
# another may have an older one. Without them everything runs except what needs a GPU. NVRTC, with which cuDNN
# compiles, is looked for too: it finds its own parts on the path alone.
trireme_find_cuda() {
    local name names folder folders missing=() found="" have
    trireme_cuda=
    names=$(cat "$trireme_home/cuda-libraries" 2>/dev/null) || return 0
    [[ $names != *libcudnn.so.9* ]] || names="libcudnn.so.9 ${names/libcudnn.so.9/} libnvrtc.so.13"
    folders=$(trireme_cuda_folders)
    for name in $names; do
        have=""
        while read -r folder; do
            [[ -e $folder/$name ]] || continue
            [[ -n $have ]] || have=$folder
            ! trireme_too_old "$folder/$name" || continue
            have=$folder
            break
        done <<<"$folders"
        if [[ -z $have ]]; then
            missing+=("$name")
            continue
        fi
        # What the dynamic linker searches anyway must not come before this folder's own libraries.
        case $have in /usr/lib/x86_64-linux-gnu | /usr/lib64) continue ;; esac
        [[ :$found: == *":$have:"* ]] || found+=${found:+:}$have
    done
    trireme_cuda=$found
    ((${#missing[@]} == 0)) || echo "trireme: CUDA's ${missing[*]} not found in a toolkit" \
        "(/usr/local/cuda*/lib64) or in Python's nvidia-* packages: install them, or set" \
        "TRIREME_CUDA_LIBRARIES=FOLDER:FOLDER; what needs them runs on no GPU" >&2
}

trireme_find_cuda
export LD_LIBRARY_PATH=$trireme_home/lib${trireme_cuda:+:$trireme_cuda}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$trireme_home:$trireme_home/openmpi/bin:$PATH
export OPAL_PREFIX=$trireme_home/openmpi OPAL_SYSCONFDIR=$trireme_home/openmpi/etc
export PMIX_PREFIX=$trireme_home/pmix PMIX_LIBDIR=$trireme_home/pmix/lib PMIX_DATADIR=$trireme_home/pmix/share
export HWLOC_PLUGINS_PATH=$trireme_home/none # a system's own would bring its own libraries
# Open MPI starts nothing without a way to other machines, needed or not.
command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm=isolated
