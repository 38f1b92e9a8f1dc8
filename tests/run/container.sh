#!/usr/bin/env bash
# Tests the places that containers give a program: little or no shared memory, low limits, a TMPDIR that cannot be
# written or is /dev/shm, a user without a name or a home. A run works, or one sentence says what is missing and how
# to give it. Needs the right to mount (mounts.sh).
# usage: container.sh TRIREME SCRATCH_DIR
set -euo pipefail
source "$(dirname "$0")/mounts.sh"
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# --- /dev/shm ---------------------------------------------------------------------------------------------

mount_empty /dev/shm ro
train 0 1 alone # it needs none
train 69 2 together parallel.pp=2
says together "shared memory .* cannot be opened: Read-only file system; make /dev/shm a writable tmpfs"
umount /dev/shm
mount_empty /dev/shm size=4k
head -c 4096 /dev/zero >/dev/shm/full
train 69 2 reserved parallel.pp=2
says reserved "[0-9]+ bytes of shared memory for .* cannot be reserved: No space left on device; make room in /dev/shm"
[[ $(ls -A /dev/shm) == full ]] || fail "reserved: left $(ls -A /dev/shm)"
umount /dev/shm
mount_empty /dev/shm size=1m
OMPI_MCA_btl=vader,self train 69 2 small parallel.pp=2
grep -Eq '^trireme: MPI could not start: its 2 ranks take 8 MiB or more of shared memory, and /dev/shm had 1\.0 MiB free; make room' \
    small.err || fail "a small /dev/shm: $(<small.err)"
umount /dev/shm

# Two containers that share /dev/shm and the host's name, each with its own numbers of processes, which are the same.
contained() {
    unshare --pid --fork --kill-child --mount-proc timeout -s KILL 60 "$trireme" run -n 2 train base.yaml \
        log.dir="$scratch/$1" parallel.pp=2 >"$1.out" 2>&1
}
mount_empty /dev/shm size=64m
contained first &
other=$!
contained second || fail "second: exit code $?: $(tail -n 20 second.out)"
wait $other || fail "first: exit code $?: $(tail -n 20 first.out)"
for run in first second; do same_curve $run alone; done
[[ -z $(ls -A /dev/shm) ]] || fail "two containers left $(ls -A /dev/shm)"
umount /dev/shm

# --- limits -----------------------------------------------------------------------------------------------

# limited LIMIT TRAIN...: `train` with that limit.
limited() {
    # shellcheck disable=SC2086 # an option and a number
    (ulimit $1 && failures=0 && train "${@:2}" && finish >/dev/null) || failures=$((failures + 1))
}
limited "-n 40" 69 4 files parallel.pp=4
says files "mpirun needs 48 open files for 4 ranks, and the limit is 40: raise it \(ulimit -n\)$"
limited "-f 1000" 69 2 large parallel.pp=2
says large "mpirun and its ranks need files of 5 MiB, and the limit on a file's size is 1\.0 MiB: raise it \(ulimit -f\)$"

# --- TMPDIR -----------------------------------------------------------------------------------------------

mkdir sealed
mount_empty sealed ro
TMPDIR=$scratch/sealed train 69 2 unwritten parallel.pp=2
says unwritten "mpirun cannot keep its files in '$scratch/sealed': Read-only file system; set TMPDIR to a folder that you can write$"
TMPDIR=$scratch/base.yaml train 69 2 no-folder parallel.pp=2
says no-folder "mpirun cannot keep its files in '$scratch/base.yaml': Not a directory; set TMPDIR to a folder that you can write$"

# A user without an entry in /etc/passwd and without HOME, TMPDIR in /dev/shm, and a limit of open files that the
# launcher may raise.
mount_empty /dev/shm size=64m
mount --bind /dev/null /etc/passwd
unset HOME
TMPDIR=/dev/shm limited "-S -n 32" 0 2 odd parallel.pp=2
[[ ! -s odd.err ]] || fail "odd: said '$(<odd.err)'"
[[ -z $(ls -A /dev/shm) ]] || fail "odd: left $(ls -A /dev/shm)"
same_curve odd alone
finish
