#!/usr/bin/env bash
# Measures the time from the start of the program to the line of step 1, with the quickstart's model: one
# rank, four pipeline ranks, and sixty-four data ranks.
#   bench/launch.sh [rounds]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/lib.sh

rounds=${1:-5}
build trireme
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Any text will do, so the sources are the data.
cat ./*/*.c >"$work/text"

# launch RANKS: seconds from exec to the first progress line; the run then ends by itself.
launch() {
    local ranks=$1 start=$EPOCHREALTIME end='' line command=("$release/trireme")
    rm -rf "$work/run"
    ((ranks == 1)) || command+=(run -n "$ranks")
    local layout=(parallel.pp="$ranks")
    ((ranks < 64)) || layout=(parallel.pp=1 parallel.dp="$ranks" train.batch="$ranks" train.micro_batch=1)
    while read -r line; do
        [[ -n $end || $line != "step 1/"* ]] || end=$EPOCHREALTIME
    done < <("${command[@]}" train examples/quickstart.yaml data.path="$work/text" \
        log.dir="$work/run" "${layout[@]}" train.steps=2 train.validate_every=0 log.every=1)
    [[ -n $end ]] || fail "$ranks ranks did not reach step 1"
    awk -v a="$start" -v b="$end" 'BEGIN { printf "%.3f\n", b - a }'
}

for ranks in 1 4 64; do
    for ((i = 0; i < rounds; i++)); do launch "$ranks"; done >"$work/seconds"
    limit=$((ranks == 1 ? 2 : ranks == 4 ? 4 : 10))
    row "launch to step 1, $ranks rank(s), load $(load)" "bench/launch.sh $rounds" \
        "median $(median <"$work/seconds") s, least $(least <"$work/seconds"), most $(most <"$work/seconds")" \
        "$limit s"
done
