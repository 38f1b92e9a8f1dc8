#!/usr/bin/env bash
# Tests jobs on two hosts: two network namespaces of this machine, joined by a virtual cable, each with its
# own host name and (on the second) /dev/shm. The bits are those of one host; a rank killed or stopped on the
# second host, a lost daemon of mpirun and a cut cable end the job with 77 and one sentence that names what
# was lost. Needs root. usage: hosts.sh TRIREME SCRATCH_DIR SPIN
set -u
trireme=$1
scratch=$2
spin=$(realpath "$3")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

# Names that only this run uses; an interface's name has at most 15 characters.
first=tra$$ second=trb$$
clean() {
    local ns
    for ns in $first $second; do
        ip netns pids "$ns" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
        ip netns del "$ns" 2>/dev/null
    done
}
skip() {
    echo "skipped: $*"
    exit 77
}
[[ $EUID == 0 ]] || skip "only root makes network namespaces"
command -v ip >/dev/null || skip "no ip command: apt-get install iproute2"
trap clean EXIT
trap 'exit 1' HUP INT TERM
ip netns add $first 2>"$scratch/why" && ip netns add $second &&
    ip link add v$first netns $first type veth peer name v$second netns $second 2>>"$scratch/why" &&
    ip netns exec $second unshare -u -m mount -t tmpfs none /dev/shm 2>>"$scratch/why" ||
    skip "network namespaces are not allowed here: $(<"$scratch/why")"
ip -n $first addr add 10.77.0.1/24 dev v$first
ip -n $second addr add 10.77.0.2/24 dev v$second
for ns in $first $second; do ip -n $ns link set lo up; done
ip -n $first link set v$first up
cable() { ip -n $second link set v$second "$1"; }
cable up

# The program that mpirun uses as ssh: it starts mpirun's daemon on the second host, with a plain environment,
# unless the host is dead, and hides the folder that the file "lacks" names.
cat >"$scratch/agent.sh" <<A
#!/usr/bin/env bash
[[ ! -e $scratch/dead ]] || exit 255
shift
exec env -i PATH="$PATH" HOME="$HOME" ip netns exec $second unshare -u -m bash -c \\
    'hostname hostb; mount -t tmpfs none /dev/shm
    [[ ! -s $scratch/lacks ]] || mount -t tmpfs none "\$(<$scratch/lacks)"; exec bash -c "\$0"' "\$*"
A
chmod +x "$scratch/agent.sh"
export OMPI_MCA_btl=tcp,vader,self OMPI_MCA_btl_tcp_if_include=10.77.0.0/24
export OMPI_MCA_plm_rsh_agent="$scratch/agent.sh" OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
export PRTE_MCA_plm_ssh_agent="$scratch/agent.sh" PRTE_MCA_prte_if_include=10.77.0.0/24 # the names of Open MPI 5

on_first() { exec ip netns exec $first unshare -u bash -c 'hostname hosta; exec "$@"' on_first "$@"; }

# hosts SLOTS: writes a hostfile with this many slots on each host.
hosts() { printf '10.77.0.%d slots='"$1"'\n' 1 2 >"$scratch/hosts"; }

# Ranks go to the first host until its slots are taken.
launcher=()
trireme_on() {
    local ranks=$1
    shift
    if [[ $ranks == 1 ]]; then timeout 100 "$trireme" "$@"; return; fi
    (on_first timeout 100 "$trireme" run -n "$ranks" --hostfile "$scratch/hosts" "${launcher[@]}" "$@")
}

# rank_on NAMESPACE RANK: prints the process of that rank.
rank_on() {
    local p
    for p in $(ip netns pids "$1"); do
        if [[ $(readlink "/proc/$p/exe") == "$trireme" ]] &&
            grep -qzx "OMPI_COMM_WORLD_RANK=$2" "/proc/$p/environ"; then echo "$p"; fi
    done
}

no_rank_on() {
    local p
    for p in $(ip netns pids "$1"); do
        [[ $(readlink "/proc/$p/exe") == "$trireme" && $(ps -o stat= -p "$p") != Z* ]] && return 1
    done
    true
}

# start RUN RANKS: starts a job in the background, and returns when it is past its step 20.
start() {
    local run=$1 ranks=$2
    rm -rf "${scratch:?}/$run"
    trireme_on "$ranks" train "$scratch/base.yaml" log.dir="$scratch/$run" train.steps=1000000 \
        train.validate_every=1000000 checkpoint.every=1000000 parallel.pp="$ranks" \
        >"$scratch/$run.out" 2>"$scratch/$run.err" &
    job=$!
    until_true 60 past "$run" 20 || fail "$run: $(<"$scratch/$run.err")"
    began=$SECONDS
}

# ends RUN SECONDS PATTERN: the job must end within that time, with 77 and that one line.
ends() {
    local code=0 took
    wait "$job" || code=$?
    took=$((SECONDS - began))
    [[ $code == 77 ]] || fail "$1: exit code $code, not 77"
    ((took <= $2)) || fail "$1: over after $took s, not $2"
    says "$1" "$3"
    echo "$1: $took s"
    until_true 40 no_rank_on $first || fail "$1: a rank is left on the first host"
    until_true 40 no_rank_on $second || fail "$1: a rank is left on the second host"
}

# Ranks that compute for longer than any limit, without a call of MPI, during all of the following tests.
hosts 2
cp "$scratch/hosts" "$scratch/hosts.spin"
(OMPI_MCA_orte_default_hostfile="$scratch/hosts.spin" PRTE_MCA_prte_default_hostfile="$scratch/hosts.spin" on_first timeout 100 "$spin" run 3 spin steps 1 20) \
    >"$scratch/spin.out" 2>"$scratch/spin.err" &
spinning=$!

train 0 1 one
hosts 1
train 0 2 two parallel.pp=2
same_curve two one
same_tensors two one 20

start killed 2
kill -KILL "$(rank_on $second 1)"
ends killed 60 'lost rank 1 \(host hostb, pid [0-9]+\): .*; a signal ended its process \(Killed,'

start daemon 2
kill -KILL "$(ps -o ppid= -p "$(rank_on $second 1)")"
ends daemon 60 "lost host (10.77.0.2|hostb); mpirun's daemon there has ended"

# Two ranks on the second host: the remaining one knows more than the first host.
hosts 2
start together 4
kill -STOP "$(rank_on $second 3)"
ends together 60 'lost rank 3 \(host hostb, pid [0-9]+\): step .*; its process has been stopped for [0-9]+ s'

code=0
wait $spinning || code=$?
[[ $code == 0 && $(grep -c ' done' "$scratch/spin.out") == 3 && ! -s $scratch/spin.err ]] ||
    fail "a long action: exit code $code, $(cat "$scratch/spin.out" "$scratch/spin.err")"

start near 4
kill -KILL "$(rank_on $first 1)"
ends near 60 'lost rank 1 \(host hosta, pid [0-9]+\): .*; (a signal ended its process \(Killed,|its process is gone)'

hosts 1
start stopped 2
kill -STOP "$(rank_on $second 1)"
ends stopped 60 'lost rank 1 \(host hostb, pid [0-9]+\): .*; no heartbeat for [0-9]+ s: '

start cut 2
cable down
ends cut 60 'lost rank 1 \(host hostb, pid [0-9]+\): .*; no heartbeat for [0-9]+ s: '
cable up

# --restarts: after a lost process the same layout goes on, with the same bits; after a lost host a smaller
# parallel.dp where there is one.
# again RUN RANKS SETTING...: starts a job of 400 steps that may start again once, up to its step 100.
again() {
    local run=$1 ranks=$2
    shift 2
    rm -rf "${scratch:?}/$run"
    launcher=(--restarts 1)
    trireme_on "$ranks" train "$scratch/base.yaml" log.dir="$scratch/$run" train.steps=400 \
        train.validate_every=0 checkpoint.every=50 "$@" >"$scratch/$run.out" 2>"$scratch/$run.err" &
    job=$!
    launcher=()
    until_true 60 past "$run" 100 || fail "$run: $(<"$scratch/$run.err")"
}
# over RUN CODE: the job must end with that code, all its ranks end, and with 0 its records have each step once.
over() {
    local code=0
    wait "$job" || code=$?
    [[ $code == "$2" ]] || fail "$1: exit code $code, not $2: $(<"$scratch/$1.err")"
    until_true 40 no_rank_on $second || fail "$1: a rank is left on the second host"
    [[ $2 != 0 ]] || diff <(field "$1" step) <(seq 400) >"$scratch/diff" || fail "$1: steps: $(head -n 3 "$scratch/diff")"
}
train 0 1 long train.steps=400 train.validate_every=0
again process 2 parallel.dp=2
kill -KILL "$(rank_on $second 1)"
over process 0
grep -q 'the job starts again (restart 1 of 1)' "$scratch/process.err" || fail "process: no restart"
grep -q 'no answer' "$scratch/process.err" && fail "process: $(<"$scratch/process.err")"
train 0 2 undisturbed train.steps=400 train.validate_every=0 parallel.dp=2
same_curve process undisturbed
same_tensors process undisturbed 400

# die: the second host dies.
die() {
    touch "$scratch/dead"
    kill -KILL "$(ps -o ppid= -p "$(rank_on $second 1)")"
}
again fewer 2 parallel.dp=2x1 # of two factors the first gets smaller
die
over fewer 0
grep -q 'no answer from 10.77.0.2: the job goes on without it, with parallel.dp=1 instead of 2x1$' "$scratch/fewer.err" ||
    fail "fewer: $(<"$scratch/fewer.err")"
grep -q 'parallel: *{.*dp: 1\|dp: 1' "$scratch/fewer/config.yaml" || fail "fewer: $(grep dp "$scratch/fewer/config.yaml")"
rm "$scratch/dead"

# --time-limit counts from the start of the first job also for ranks that are on another host than the launcher: a job
# that starts again after the limit takes a step.
past_limit() { (($(ps -o etimes= -p "$job") > limit)); }
for limit in 6 40; do # on a busy machine the first limit may end the job before it is held
    rm -rf "$scratch/away"
    echo "10.77.0.2 slots=2" >"$scratch/hosts"
    launcher=(--restarts 1)
    trireme_on 2 train "$scratch/base.yaml" log.dir="$scratch/away" train.steps=1000000 train.validate_every=0 \
        checkpoint.every=0 parallel.dp=2 --time-limit $limit >"$scratch/away.out" 2>"$scratch/away.err" &
    job=$!
    launcher=()
    until_true 60 past away 1 || fail "away: $(<"$scratch/away.err")"
    lost=$(rank_on $second 1)
    held=$(hold "$job"; ip netns pids $second)
    # shellcheck disable=SC2086 # a word for each process
    kill -STOP $held
    [[ -z $lost ]] || break
done
until_true 60 past_limit || fail "away: not held"
kill -KILL "$lost"
# shellcheck disable=SC2086 # a word for each process
kill -CONT $held
over away 75
grep -q "stopped by --time-limit $limit after step [0-9]*, which is saved" "$scratch/away.err" || fail "away: $(<"$scratch/away.err")"
[[ $(grep -c '^trireme: lost ' "$scratch/away.err") == 1 ]] || fail "away: the loss is not said once: $(<"$scratch/away.err")"
# What the second job took; the first one was held within the limit.
[[ $(sed -n '/starts again/,$p' "$scratch/away.err" | sed -n 's/.*after step \([0-9]*\), .*/\1/p') == 1 ]] ||
    fail "away: the limit began again: $(<"$scratch/away.err")"

hosts 1
again none 2 parallel.pp=2
die
over none 77
grep -q 'no answer from 10.77.0.2: the job does not start again, because the others have 1 slots, and no smaller parallel.dp' \
    "$scratch/none.err" || fail "none: $(<"$scratch/none.err")"

# A host that cannot be reached from the start is not a lost rank.
code=0
trireme_on 2 train "$scratch/base.yaml" log.dir="$scratch/unreached" parallel.pp=2 2>"$scratch/unreached.err" || code=$?
[[ $code == 69 ]] && grep -q 'mpirun ended with 255 before the job began; see why with: mpirun ' "$scratch/unreached.err" ||
    fail "unreached: exit code $code: $(<"$scratch/unreached.err")"

# An error that all ranks agree on is printed once, not on each host.
rm "$scratch/dead"
train 66 2 missing parallel.pp=2 data.path=missing.txt
says missing "the data file 'missing.txt' cannot be opened: No such file or directory"

# A host with another directory as log.dir, which its rank would notice at the first save.
mkdir "$scratch/there"
echo "$scratch/there" >"$scratch/lacks"
train 78 2 apart parallel.pp=2 log.dir="$scratch/there/apart"
rm "$scratch/lacks"
says apart "'$scratch/there/apart' \(log.dir\) on host hostb is not the directory of this run: choose one in a file system that"

# A host without the program. mpirun 5 says that in other words.
if ! mpirun --version | grep -q 'Open MPI) 5'; then
    code=0
    mkdir "$scratch/here"
    cp "$trireme" "$scratch/here/trireme"
    echo "$scratch/here" >"$scratch/lacks"
    (trireme=$scratch/here/trireme; trireme_on 2 train "$scratch/base.yaml" log.dir="$scratch/lacking" parallel.pp=2) \
        2>"$scratch/lacks.err" || code=$?
    rm "$scratch/lacks"
    [[ $code == 69 && $(wc -l <"$scratch/lacks.err") == 1 ]] &&
        grep -Eq "^trireme: host (10.77.0.2|hostb) cannot start '$scratch/here/trireme': install the same program there" "$scratch/lacks.err" ||
        fail "a host without the program: exit code $code: $(<"$scratch/lacks.err")"
fi
finish
