#!/usr/bin/env bash
# Installs the packages of Debian or Ubuntu that building and testing Trireme needs and that are not there yet.
# A second run finds nothing to do and needs neither root nor the network.
# usage: tools/setup.sh [PACKAGE ...]     more packages, such as the tests' second compiler
set -euo pipefail

packages=(
    build-essential cmake ninja-build pkg-config
    libopenmpi-dev openmpi-bin
    libhdf5-dev hdf5-tools
    libdnnl-dev libyaml-dev libcjson-dev libxxhash-dev zlib1g-dev libzstd-dev
    libpcre2-dev libutf8proc-dev
    libcmocka-dev strace iproute2 patch xz-utils
    "$@"
)

fail() {
    echo "setup: $*" >&2
    exit 69
}

command -v dpkg-query >/dev/null ||
    fail "this script installs with apt and wants Debian 12 or 13 or Ubuntu 24.04; elsewhere install the counterparts of: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $state == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
    echo "setup: all ${#packages[@]} packages are installed"
    exit 0
fi

# Without a terminal sudo cannot read a password, so it must not ask for one.
as_root=()
if ((EUID != 0)); then
    command -v sudo >/dev/null ||
        fail "neither root nor sudo; let an administrator run: apt-get install ${missing[*]}"
    as_root=(sudo)
    [[ -t 0 ]] || as_root+=(-n)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get -q update </dev/null >"$log" 2>&1 ||
    fail "apt-get update failed: $(tail -n 1 "$log"); check the network and /etc/apt/sources.list"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -y --no-install-recommends install "${missing[@]}" </dev/null >"$log" 2>&1 ||
    fail "apt-get install failed: $(grep -m 1 '^E:' "$log" || tail -n 1 "$log")"
echo "setup: done (${#missing[@]} packages installed, $SECONDS s)"
