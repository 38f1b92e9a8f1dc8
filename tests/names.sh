#!/usr/bin/env bash
# Checks that a name has one meaning: no struct, union or enum has two definitions, and no family of
# functions, tr_<word>_, is declared on two floors.
# Usage: names.sh [SOURCE_DIR]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
mapfile -t floors < <(sed -nE 's/^    \[([a-z]+)\]=.*/\1/p' tests/floors.sh) # the folders that it lists
faults=0
tell() {
    echo "$1"
    faults=$((faults + 1))
}
# Prints what the files of a folder define and declare, one a line.
tags() { grep -rhoE --include='*.[ch]' --include='*.cu' --include='*.cuh' '\b(struct|union|enum) tr_[a-z0-9_]+ \{' "$@" || true; }
families() { grep -rhoE --include='*.h' --include='*.cuh' '^[a-z][a-z0-9_ *]*\btr_[a-z0-9]+_[a-z0-9_]+\(' "$1" |
    sed -E 's/.*\b(tr_[a-z0-9]+_)[a-z0-9_]+\($/\1/' | sort -u || true; }

(($(tags "${floors[@]}" | wc -l) > 100)) || tell "fewer than 100 tags were found: is this the root of the repository?"
while read -r tag; do
    tell "two definitions of ${tag% \{}: $(grep -rlE --include='*.[ch]' --include='*.cu*' "\b$tag" "${floors[@]}" | tr '\n' ' ')"
done < <(tags "${floors[@]}" | sort | uniq -d)
while read -r family; do
    found=()
    for floor in "${floors[@]}"; do families "$floor" | grep -qx "$family" && found+=("$floor"); done
    tell "the functions $family... are on two floors: ${found[*]}"
done < <(for floor in "${floors[@]}"; do families "$floor"; done | sort | uniq -d)
((faults == 0)) || exit 1
