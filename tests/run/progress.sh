#!/usr/bin/env bash
# Tests the progress lines of a run: before step 1 and in long steps, while it saves and loads, in a pipe and
# on a terminal that is narrow or changes its size, also under `trireme run`.
# usage: progress.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"
export TERM=xterm NO_COLOR=1
forever=(train.steps=100000 train.validate_every=0 checkpoint.every=0)
# A first step of about a minute. The awaited lines come before its end; then the run is killed.
long=(model.width=128 model.context=256 train.batch=4096)
warming='now      warming up: step 1, micro-batch [0-9]+ of 4096, about [0-9.]+ (s|min) left'

# slow BYTES: makes every disk access of at least this many bytes take 0.25 s; 0: none.
slow() {
    export SLOW_DISK_BYTES=$1 LD_PRELOAD=$tools/libslow_disk.so
    [[ $1 != 0 ]] || unset LD_PRELOAD
}

# terminal NAME SIZE ACTIONS...: runs $run in a pseudo-terminal, and ends it after the actions. NAME is the
# record.
terminal() {
    # shellcheck disable=SC2016 # pty_run's shell knows the child
    local code=0 end=('do:kill -KILL $child') want=137
    [[ $ranks == 1 ]] || end=('keys:^C' 'wait:press Ctrl-C again' 'do:sleep 1' 'keys:^C') want=77
    "$tools/pty_run" "$@" limit:120 "${end[@]}" -- "${run[@]}" || code=$?
    [[ $code == "$want" ]] || { fail "$1: pty_run ended with $code"; tail -c 1000 "$1"; }
}

# fits RECORD FROM TO COLUMNS: between these two actions no refreshed line may fill the terminal's width.
fits() {
    sed -z "s/.*\x1b_$2\x1b//; s/\x1b_$3\x1b.*//" "$1" | tr '\r' '\n' | sed -n 's/\x1b\[K.*//p' >lines
    [[ $(wc -l <lines) -ge 2 ]] || fail "$1: too few lines at $4 columns"
    awk -v columns="$4" 'length($0) >= columns { exit 1 }' lines || fail "$1: at $4 columns: $(sort -u lines)"
}

kept='step [0-9/]+ loss [0-9.]+'
for ranks in 1 2; do
    start=("$trireme")
    [[ $ranks == 1 ]] || start+=(run -n "$ranks")
    start+=(train base.yaml "parallel.pp=$ranks" "${forever[@]}")
    run=("${start[@]}" log.dir=first-run-$ranks "${long[@]}")
    terminal first-$ranks 100x24 "wait:memory " "wait:$warming"
    # Each step reads 12 samples, in 3 s. The width changes meanwhile.
    run=("${start[@]}" log.dir=resized-run-$ranks)
    slow 1
    terminal resized-$ranks 120x24 'wait:mem [0-9/]+ MiB eta [0-9:]+ \| step [0-9]+, for [0-9]+ s' \
        size:40x24 $'wait:\r'"$kept"$'( eta [0-9:]+)?\e' 'do:: 40' $'wait:\r.*\r.*\r.*\r' size:60x24 \
        $'wait:\r'"$kept"' eta [0-9:]+ \| step [0-9]+(: 0 %|, for [0-9]+ s)' 'do:: 60' $'wait:\r.*\r.*\r.*\r' 'do:: end'
    slow 0
    fits resized-$ranks 'do:: 40' 'size:60x24' 40
    fits resized-$ranks 'do:: 60' 'do:: end' 60
done

# A pipe gets whole lines, with bytes and rate, for a save and a load that take some seconds.
saves=(parallel.tp=2 model.layers=2 model.width=128 train.validate_every=0 checkpoint.every=1)
amount='[0-9.]+ of [0-9.]+ MiB, [0-9.]+ MiB/s, (about [0-9.]+ (s|min) left|waiting for the disk)'
slow 50000
train 0 2 pipe "${saves[@]}" train.steps=1
cp pipe.out saved.out
train 0 2 pipe --resume "${saves[@]}" train.steps=2
slow 0
grep -Exq "now      saving step 1: $amount" saved.out || fail "of saving: $(<saved.out)"
grep -Exq "now      loading the checkpoint: $amount" pipe.out || fail "of loading: $(<pipe.out)"
if grep -q $'[\r\e]' saved.out pipe.out; then fail "a pipe got control codes"; fi
# No progress line follows the last line of the run.
[[ $(tail -n 1 saved.out) == saved* ]] || fail "the last line is $(tail -n 1 saved.out)"
# A long first step has lines too.
"$trireme" train base.yaml log.dir=first-pipe "${forever[@]}" "${long[@]}" >first.out 2>&1 &
job=$!
until_true 60 grep -Exq "$warming" first.out || fail "there is no line about the first step: $(<first.out)"
kill -KILL $job
{ wait $job; } 2>/dev/null || true
finish
