#!/usr/bin/env bash
# Checks for plain English: comments, messages and documents say "instead of", "except", "next to" and
# "again".
# Usage: words.sh [SOURCE_DIR]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
faults=0
# The sources, without builds, data that tests read, results of the past, and this list of phrases.
files() { grep -rIlE --exclude-dir={.git,build,data,results,node_modules} --exclude={words.sh,COPYING,LICENSE} \
    --include={'*.c','*.h','*.cu','*.cuh','*.cpp','*.sh','*.md','*.yaml','*.cmake',CMakeLists.txt} '' . | sort; }
(($(files | wc -l) > 300)) || { echo "fewer than 300 sources were found: is this the root of the repository?"; exit 1; }
grep -qP '\bx\b' <<<x || { echo "this grep has no -P"; exit 1; }
# refuse PATTERN INSTEAD: fails when a source has the pattern.
refuse() {
    local found
    found=$(files | xargs grep -nP "$1" || true)
    [[ -n $found ]] || return 0
    echo "$found" | cut -c1-160
    echo "write $2"
    faults=$((faults + 1))
}
refuse '\bbut for\b' '"except"'
refuse '\banew\b' '"again"'
refuse '\bin place of\b' '"instead of"'
refuse '\bbeside\b[^.]' '"next to"'
refuse '\bwhose\b|\bwhom\b' '"with", "its" or a sentence of its own'
refuse '(rank|process|thread|function|caller)s?, who [a-z]' '"which"'
refuse '(?<![Tt]here )\b(is|be|are|was|were) no (?!(longer|more|less|slower|faster|other|better|nearer|later|larger|smaller)\b)' '"is not a ..."'
refuse '\bhas no end\b|\bwhat lies\b' 'the name of the thing'
refuse '\bspeaks? (of|to|for)\b|\bspoken of\b|\btells? of\b' '"names" or "reports"'
refuse '\b(one|each) behind the other\b|\bstands? (behind|in front|next to)\b' '"one after another", "is next to"'
refuse '\bsaid so\b|\bin silence\b|\bgoes? without\b' 'what is printed, or not'
refuse '\b(would|must|can|to) go on\b(?! (a|the|for))' '"continue"'
((faults == 0)) || { echo "$faults phrases"; exit 1; }
