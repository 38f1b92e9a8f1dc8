#!/usr/bin/env bash
# Tests the removal of files that killed jobs leave in TMPDIR and /dev/shm: the launcher removes them at the
# end of its job, or the next `trireme run` when the launcher was killed too; files of living jobs and of
# other users stay.
# usage: sweep.sh TRIREME SCRATCH_DIR
set -u
trireme=$1
scratch=$2
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
export OMPI_MCA_btl=vader,self

folders() { find "$TMPDIR" -mindepth 1 -maxdepth 1 -name "trireme-*" -printf '%f\n'; }
is_gone() { [[ ! -e $1 ]]; }

# start RUN STEPS: starts a job in the background, and returns when it is past its step 10; $job and $mpirun
# are its processes, $folder its folder in TMPDIR, $memory that of its ranks' shared memory.
start() {
    local before
    before=$(folders)
    trireme_on 2 train "$scratch/base.yaml" log.dir="$scratch/$1" train.steps="$2" parallel.pp=2 \
        train.validate_every=1000000 checkpoint.every=1000000 >"$scratch/$1.out" 2>"$scratch/$1.err" &
    waiter=$!
    until_true 60 past "$1" 10 || fail "$1: $(<"$scratch/$1.err")"
    folder=$TMPDIR/$(comm -13 <(sort <<<"$before") <(folders | sort))
    job=$(descendants "$waiter" | while read -r p; do
        [[ $(readlink "/proc/$p/exe") == "$trireme" ]] && echo "$p"
    done | head -n 1)
    mpirun=$(cat "/proc/$job/task/"*/children)
    mpirun=${mpirun%% *}
    ranks="$(rank_process 0) $(rank_process 1)"
    memory=/dev/shm/$(basename "$folder")
    segments=$(for p in $ranks; do grep -o "$memory/[^ ]*" "/proc/$p/maps"; done | sort -u)
    [[ -n $(find "$folder" -type f) && $(wc -w <<<"$segments") == 2 ]] ||
        fail "$1: the session files and segments are not where they are expected: $folder $segments"
}

# left RUN: fails for each file of that job that still exists.
left() {
    local file
    for file in "$folder" "$memory" "${memory%.d}"; do is_gone "$file" || fail "$1: $file is left"; done
    ! compgen -G "$TMPDIR/[!to]*" || fail "$1: files are left in TMPDIR" # other than trireme-* and "other"
}

# mpirun is killed: the launcher removes what mpirun left.
start mpirun 1000000
kill -KILL "$mpirun"
code=0
wait "$waiter" || code=$?
[[ $code == 77 ]] || fail "mpirun: exit code $code, not 77"
grep -q '^trireme: .*; nothing was saved: start again$' "$scratch/mpirun.err" ||
    fail "mpirun: $(<"$scratch/mpirun.err")"
left mpirun

# A job continues while other jobs are killed and their files removed.
start living 1000000
living="$job $waiter" living_files="$folder $memory $segments"

# All processes of a job are killed, none of them long enough after another to see its end: the next run removes
# what they left.
start all 1000000
hold "$job" >/dev/null
# shellcheck disable=SC2086
kill -KILL "$job" "$mpirun" $ranks
# shellcheck disable=SC2086
until_true 60 gone "$job" "$mpirun" $ranks || fail "all: a process is left"
is_gone "$folder" && fail "all: $folder is gone before the next run" # runs of other tests remove what is in /dev/shm
ln -s "$scratch/base.yaml" "$TMPDIR/trireme-$UID-link"
ln -s "$scratch/living" "$TMPDIR/trireme-$UID-folder"
touch "$TMPDIR/trireme-$UID-file"
mkdir "$TMPDIR/trireme-$((UID + 1))-other" "$TMPDIR/other"
"$trireme" run -n 1 help >"$scratch/help.out" 2>&1 || fail "the next run: $(<"$scratch/help.out")"
left all
for file in $living_files "$scratch/base.yaml" "$scratch/living/metrics.jsonl" \
    "$TMPDIR"/{"trireme-$UID-link","trireme-$UID-folder","trireme-$UID-file","trireme-$((UID + 1))-other",other}; do
    is_gone "$file" && fail "the next run has removed $file"
done

# A board without a folder, of a job that was killed while it began: the next run removes it unless a process has
# it mapped, it is new, or it is another user's.
board=/dev/shm/trireme-$UID-0-sweep$$ other=/dev/shm/trireme-$((UID + 1))-0-sweep$$
for file in "$board"-{left,mapped,new} "$other"; do head -c 1920 /dev/zero >"$file"; done
if command -v python3 >/dev/null; then
    python3 -c 'import mmap, sys, time
with open(sys.argv[1], "r+b") as f: m = mmap.mmap(f.fileno(), 0)
print("mapped", flush=True)
time.sleep(600)' "$board-mapped" >"$scratch/mapped.out" &
    holder=$!
    until_true 60 grep -q mapped "$scratch/mapped.out" || fail "no process maps the board"
fi
touch -d '1 hour ago' "$board"-{left,mapped} "$other" # last, since the runs of other tests remove boards, too
# A launcher in a user namespace of its own may not look into the process that has it mapped.
if unshare --user --map-root-user true 2>/dev/null; then
    unshare --user --map-root-user "$trireme" run -n 1 help >"$scratch/help.out" 2>&1
    [[ -z ${holder:-} ]] || ! is_gone "$board-mapped" || fail "a run in a user namespace has removed a board in use"
fi
"$trireme" run -n 1 help >"$scratch/help.out" 2>&1
is_gone "$board-left" || fail "$board-left is left"
[[ -z ${holder:-} ]] || ! is_gone "$board-mapped" || fail "the next run has removed a board in use"
for file in "$board-new" "$other"; do is_gone "$file" && fail "the next run has removed $file"; done
[[ -z ${holder:-} ]] || kill "$holder"
rm -f "$board"-* "$other"

# Only the launcher is killed: mpirun ends the ranks.
start launcher 1000000
kill -KILL "$job"
# shellcheck disable=SC2086
until_true 60 gone "$mpirun" $ranks || fail "launcher: a process is left"
"$trireme" run -n 1 help >"$scratch/help.out" 2>&1
left launcher

# Jobs that are killed at any moment of their start.
for delay in 0 0.05 0.1 0.2 0.3 0.5; do
    "$trireme" run -n 2 train "$scratch/base.yaml" parallel.pp=2 log.dir="$scratch/early$delay" >/dev/null 2>&1 &
    job=$!
    sleep $delay
    processes=$(hold $job)
    # shellcheck disable=SC2086
    kill -KILL $processes 2>/dev/null
    wait $job 2>/dev/null
    # shellcheck disable=SC2086
    until_true 60 gone $processes || fail "$delay s: a process is left"
    "$trireme" run -n 1 help >"$scratch/help.out" 2>&1
    [[ $(folders | grep -cEv -- "-(link|folder|file|other)$") == 1 ]] || fail "$delay s: left is $(folders)"
done

# shellcheck disable=SC2086
kill -TERM ${living% *}
code=0
wait "${living#* }" || code=$?
[[ $code == 75 ]] || fail "the living job: exit code $code, not 75: $(<"$scratch/living.err")"
for file in $living_files; do is_gone "$file" || fail "the living job: $file is left"; done
finish
