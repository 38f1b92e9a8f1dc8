#!/usr/bin/env bash
# Goes from a fresh Debian 12 to sampled text: installs what is missing, builds, fetches a public-domain text,
# trains examples/quickstart.yaml on it and samples from the result. All files stay in build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=build/quickstart
trireme=build/release/trireme
mkdir -p "$work"

fail() {
    echo "quickstart: $*" >&2
    exit 1
}

# Says what a step does and where its output is, runs it, and prints how long it took.
step() {
    local what=$1 start=$SECONDS
    shift
    echo "quickstart: $what; the output is in $work/step.log"
    "$@" </dev/null >"$work/step.log" 2>&1 || {
        tail -n 30 "$work/step.log" >&2
        fail "$what: this failed; the whole output is in $work/step.log"
    }
    echo "quickstart: done in $((SECONDS - start)) s"
}

build() {
    cmake --preset release -DBUILD_TESTING=OFF && cmake --build build/release
}

# The Debian package of a public-domain dictionary, unpacked here and not installed.
fetch_text() {
    local package
    [[ -s $work/devil.txt ]] && return 0
    (
        cd "$work"
        rm -rf text ./*.deb
        # apt finds no package before its lists are loaded, which only root may do.
        apt-get -q download dict-devil || {
            as_root apt-get -q update && apt-get -q download dict-devil
        }
        package=$(echo dict-devil_*.deb)
        dpkg -x "$package" text
        gunzip -c <text/usr/share/dictd/devil.dict.dz >devil.part
        mv devil.part devil.txt
    )
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -n "$@"
    else
        echo "apt's package lists are empty: let an administrator run apt-get update"
        return 1
    fi
}

bash tools/setup.sh
step "building $trireme, which takes some minutes" build
step "fetching $work/devil.txt" fetch_text
rm -rf "$work/run"
echo "quickstart: training examples/quickstart.yaml on 2 ranks; checkpoints and metrics go to $work/run"
"$trireme" run -n 2 train examples/quickstart.yaml
echo "quickstart: 400 bytes sampled from the trained model:"
"$trireme" sample "$work/run" -p "LOVE, n.  " -n 400 --temperature 0.7
echo
echo "quickstart: all done in $SECONDS s"
