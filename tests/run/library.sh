#!/usr/bin/env bash
# Tests docs/library.md: its commands install this build, and build and run the example against what was installed. The
# example plans what `trireme plan` plans. Only headers that a program may include are installed; the page names none
# that is missing.
# usage: library.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
source "$(dirname "$0")/common.sh"
build=$(dirname "$trireme")
page=$root/docs/library.md
export HOME=$scratch/home
mkdir "$HOME"
cd "$scratch"
cp base.yaml x.yaml

# The build's folder stands for the page's, and the example's is in the scratch folder.
sed -n '/^```console$/,/^```$/{/^```/!p}' "$page" |
    sed "s|build/release|'$build'|; s|build/library|'$scratch/example'|g; s|examples/library|'$root/examples/library'|" >commands
(($(wc -l <commands) == 4)) || fail "docs/library.md has other commands: $(<commands)"
bash -e commands >out 2>err || fail "the commands of docs/library.md end with $?: $(cat out err)"

"$HOME/trireme/bin/trireme" --version >/dev/null || fail "the installed program does not start"
for ranks in 1 2 4; do
    read -r _ mib fits bubble < <(grep "^ *$ranks " out) || fail "no line of $ranks ranks: $(<out)"
    "$trireme" plan x.yaml parallel.schedule=zb-h1 parallel.pp=$ranks --rate 1 >plan
    grep -q "^fits .* needs most: $mib of " plan || fail "$ranks ranks: $mib MiB are not the plan's: $(tail -n 1 plan)"
    grep -q "of which $bubble% bubble" plan || fail "$ranks ranks: $bubble % are not the plan's: $(grep ^step plan)"
    [[ $fits == yes ]] || fail "$ranks ranks: the plan fits"
done
code=0
example/fits x.yaml model.width=33 >out 2>err || code=$?
[[ $code == 78 ]] || fail "a config with an error: exit code $code"
grep -q "^fits: .*model.width" err || fail "a config with an error: $(<err)"
code=0
example/fits x.yaml >/dev/full 2>err || code=$?
[[ $code == 74 ]] || fail "a full disk: exit code $code: $(<err)"

# Two parts of a program may both ask for the package.
mkdir twice
printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(twice LANGUAGES C)' 'find_package(Trireme REQUIRED)' \
    'find_package(Trireme REQUIRED)' >twice/CMakeLists.txt
cmake -S twice -B twice/build -DCMAKE_PREFIX_PATH="$HOME/trireme" >out 2>&1 || fail "the package is found once only: $(tail -n 5 out)"

cd "$HOME/trireme/include/trireme"
find . -name '*_impl.h' -o -path './cli/*' -o -path './device/c*/*' -o -path './device/ref/*' | grep . &&
    fail "private headers are installed"
while read -r header; do
    [[ -f $header ]] || fail "an installed header includes $header, which is not installed"
done < <(grep -rhoP '^#include "\K[^"]+' . | sort -u)
sed -n 's/^| \(`[^|]*\) |.*/\1/p' "$page" | grep -o '`[^`]*\.h`' | tr -d '`' >named
while read -r header; do
    [[ -f $header ]] || fail "docs/library.md names $header, which is not installed"
done <named
(($(wc -l <named) > 10)) || fail "the table of docs/library.md is not read: $(<named)"
finish
