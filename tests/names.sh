#!/usr/bin/env bash
# Checks that a name has one meaning: no struct, union or enum has two definitions, no macro of a header is defined in
# another one, and no word of names (tr_<word>_ of functions, tags and types, TR_<WORD>_ of constants and macros) is
# declared on two floors, except the words below, which mean one thing there. Tests of whole runs do not redefine a
# function of tests/run/common.sh: the script that redefined `finish` could not fail.
# Usage: names.sh [SOURCE_DIR]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
mapfile -t floors < <(sed -nE 's/^    \[([a-z]+)\]=.*/\1/p' tests/floors.sh) # the folders that it lists
declare -A shared=(
    [attention]="the operators of attention and the part of a layer that runs them"
    [choices]="a file of multiple-choice questions and its score"
    [cp]="a Unicode code point and its properties"
    [memory]="a rank's memory by class: taken and planned"
    [norm]="the operators of a norm and the part of a layer that runs them"
    [param]="a parameter of a layer and the memory it takes"
    [question]="a question that a model is evaluated by"
    [rank]="a process of a run"
    [run]="the run of a program"
    [step]="a training step: its inputs, its state on the device, its end"
    [token]="an id of a vocabulary, and lists of them"
)
faults=0
tell() {
    echo "$1"
    faults=$((faults + 1))
}
headers() { grep -rlE --include='*.h' --include='*.cuh' '' "$@" | sort; }
tags() { grep -rhoE --include='*.[ch]' --include='*.cu' --include='*.cuh' '\b(struct|union|enum) tr_[a-z0-9_]+ \{' "$@" || true; }
# Prints "word floor what" for every name that a header of the floor declares.
names() {
    local floor
    for floor in "${floors[@]}"; do
        headers "$floor" | xargs awk -v floor="$floor" '
            function say(name) {
                sub(/^[tT][rR]_/, "", name)
                if (name ~ /^[A-Z0-9]+$/) return # a constant of one word begins nothing
                split(tolower(name), word, "_")
                print word[1], floor
            }
            FNR == 1 { comment = constants = 0 }
            {
                line = $0
                if (comment && !sub(/.*\*\//, "", line)) next
                comment = 0
                gsub(/\/\*[^*]*\*+([^\/*][^*]*\*+)*\//, "", line)
                if (sub(/\/\*.*/, "", line)) comment = 1
            }
            match(line, /^#define TR_[A-Z0-9_]+/) { say(substr(line, 9, RLENGTH - 8)) }
            match(line, /^[a-z][a-z0-9_ *]*[ *]tr_[a-z0-9_]+\(/) {
                name = substr(line, 1, RLENGTH - 1)
                sub(/.*[ *]/, "", name)
                say(name)
            }
            match(line, /(struct|union|enum) tr_[a-z0-9_]+ \{/) {
                split(substr(line, RSTART, RLENGTH), part, " ")
                say(part[2])
            }
            line ~ /(^|[^a-z_])enum[^(;a-z]*( tr_[a-z0-9_]+ )?\{/ { constants = 1; sub(/.*\{/, "", line) }
            constants {
                end = sub(/\}.*/, "", line)
                count = split(line, part, ",")
                for (i = 1; i <= count; i++) if (match(part[i], /^ *TR_[A-Z0-9_]+/)) {
                    name = substr(part[i], 1, RLENGTH)
                    gsub(/ /, "", name)
                    say(name)
                }
                if (end) constants = 0
            }'
    done | sort -u
}

(($(tags "${floors[@]}" | wc -l) > 100)) || tell "fewer than 100 tags were found: is this the root of the repository?"
while read -r tag; do
    tell "two definitions of ${tag% \{}: $(grep -rlE --include='*.[ch]' --include='*.cu*' "\b$tag" "${floors[@]}" | tr '\n' ' ')"
done < <(tags "${floors[@]}" | sort | uniq -d)
while read -r macro; do
    tell "two headers define $macro: $(headers "${floors[@]}" | xargs grep -lE "#define $macro\b" | tr '\n' ' ')"
done < <(headers "${floors[@]}" | xargs grep -HoE '#define [A-Za-z_0-9]+' | sort -u | sed 's/.*#define //' | sort | uniq -d)
declare -A on=()
while read -r word floor; do on[$word]+=" $floor"; done < <(names)
((${#on[@]} > 200)) || tell "only ${#on[@]} words were found: is this the root of the repository?"
for word in "${!on[@]}"; do
    [[ ${on[$word]} != *' '*' '* || -n ${shared[$word]:-} ]] || tell "the names tr_${word}_... are on the floors${on[$word]}"
done
for word in "${!shared[@]}"; do
    [[ ${on[$word]:-} == *' '*' '* ]] || tell "tests/names.sh shares the word $word, which is on one floor"
done
while IFS=: read -r script name; do
    [[ $script:$name == tests/run/hosts.sh:trireme_on ]] || # on several hosts
        tell "$script redefines $name of tests/run/common.sh"
done < <(grep -HoE '^ *[a-z_]+\(\)' tests/run/*.sh | tr -d ' ()' | grep -v '^tests/run/common.sh:' |
    grep -E ":($(grep -oE '^[a-z_]+\(\)' tests/run/common.sh | tr -d '()' | paste -sd '|'))\$")
((faults == 0)) || exit 1
