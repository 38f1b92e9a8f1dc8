# Shared by the whole-run tests, which source it with $trireme and $scratch set.
# shellcheck shell=bash disable=SC2154

# The environment of a plain shell, whatever launched the tests.
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK PMI_RANK PMI_SIZE PMI_FD TRIREME_BACKTRACE TRIREME_BOARD
unset SLURM_NTASKS SLURM_STEP_NUM_TASKS WORLD_SIZE

trireme=$(realpath "$trireme")
rm -rf "$scratch" && mkdir -p "$scratch"
scratch=$(realpath "$scratch")
# A folder of its own for what mpirun and the programs keep in TMPDIR: Open MPI's daemons may fail while another
# one removes the folder that they share in /tmp.
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
tools=$(dirname "$scratch") # ckpt_compare and other tools are next to the tests' programs
tests_root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
text=$tests_root/data/devil.txt
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

# No process of a test outlives it, also when the test is stopped or a command fails, and no shared memory of a job
# that it has killed, which the next `trireme run` with this TMPDIR would remove.
leave_nothing() {
    local mine
    mapfile -t mine < <(descendants $$ | grep -vx $$)
    kill -KILL "${mine[@]}" 2>/dev/null || true
    until_true 10 gone "${mine[@]}" || true
    ! compgen -G "$TMPDIR/trireme-$UID-*" >/dev/null || "$trireme" run -n 1 help >/dev/null 2>&1 || true
}
trap leave_nothing EXIT
trap 'exit 1' HUP INT TERM

# drawn NAME: succeeds for about a third of all names, which TRIREME_DRAW chooses (tests/run.sh: the commit), and for all
# of them without it. Of many cases that differ little, each is run with every third commit.
drawn() {
    [[ -z ${TRIREME_DRAW:-} ]] || (($(cksum <<<"$TRIREME_DRAW $(basename "$scratch") $1" | cut -d' ' -f1) % 3 == 0)) ||
        { echo "not drawn: $1"; return 1; }
}

# finish: prints the last line of a test, and ends it.
finish() {
    echo "$failures failures"
    [[ $failures == 0 ]]
}

# A small GPT with dropout, 20 steps with saves at 10 and 20. Tests change it by overrides. It gives the same
# bits twice, also on a GPU.
cat >"$scratch/base.yaml" <<Y
model: {layers: 4, width: 32, heads: 4, context: 32, dropout: 0.1}
data: {path: $text}
train:
  {steps: 20, batch: 12, micro_batch: 1, seed: 7, precision: fp32, threads: 1, deterministic: true, validate_every: 10, validate_batches: 1}
optim: {lr: 0.003, warmup: 4}
checkpoint: {every: 10, keep: 2}
log: {every: 20}
Y

# halve: from here on runs of base.yaml take 10 steps, with saves and validations at 5 and 10: for tests that compare the
# bits of many runs, each of which takes every path of a step in its first ones.
halve() { sed -i 's/steps: 20,/steps: 10,/; s/every: 10\([,}]\)/every: 5\1/g' "$scratch/base.yaml"; }

# trireme_on RANKS ARGUMENTS...: runs the program, one rank without a launcher. The time limit ends a hang.
trireme_on() {
    local ranks=$1
    shift
    if [[ $ranks == 1 ]]; then timeout 300 "$trireme" "$@"; else timeout 300 "$trireme" run -n "$ranks" "$@"; fi
}

# train CODE RANKS RUN ARGUMENTS...: a training run in $scratch/RUN ends with that code; its output goes to
# $scratch/RUN.out and .err.
train() {
    local want=$1 ranks=$2 run=$3 code=0
    shift 3
    trireme_on "$ranks" train "$scratch/base.yaml" log.dir="$scratch/$run" "$@" \
        >"$scratch/$run.out" 2>"$scratch/$run.err" || code=$?
    [[ $code == "$want" ]] && return
    fail "$run ($ranks ranks, $*): exit code $code, not $want"
    tail -n 40 "$scratch/$run.out" "$scratch/$run.err"
}

# plain_mpirun ARGUMENTS...: mpirun without `trireme run`, also as root and with more ranks than cores. What version 5
# says of ranks that end early, which it cannot be told to leave out, is removed: blocks between two rows of dashes, and
# lines of PMIx.
plain_mpirun() (
    set +e -a
    source "$tests_root/mpi.env"
    exec 3>&1
    timeout 300 mpirun --bind-to none "$@" 2>&1 >&3 3>&- |
        sed -u '/^\[.*\] PMIX ERROR: /d; /^-\{74\}$/ { N; /\nprterun /! { P; D }; :more; N; /\n-\{74\}$/! b more; d }' >&2
    exit "${PIPESTATUS[0]}"
)

# apart COMMAND... : COMMAND...: plain mpirun of one rank for each command. A shell chooses a rank's own, since mpirun of
# Open MPI 5.0.7 crashes when it is given several programs.
apart() {
    local word rank=0 choice='case $OMPI_COMM_WORLD_RANK in 0) exec'
    for word; do
        if [[ $word == : ]]; then choice+=" ;; $((++rank))) exec"; else choice+=" $(printf %q "$word")"; fi
    done
    plain_mpirun -n $((rank + 1)) bash -c "$choice ;; esac"
}

# field RUN KEY: prints its value at each step that has one, as text.
field() { sed -n "s/.*\"$2\": *\([^,}]*\).*/\1/p" "$scratch/$1/metrics.jsonl"; }

step_dir() { printf '%s/%s/ckpt/step-%08d' "$scratch" "$1" "$2"; }

# same_curve RUN REFERENCE: losses, norms and validation losses must be the same text.
same_curve() {
    local key
    for key in step loss grad_norm val_loss; do
        diff <(field "$1" "$key") <(field "$2" "$key") >"$scratch/diff" ||
            fail "$1 and $2: $key differs: $(head -n 4 "$scratch/diff" | tr '\n' ' ')"
    done
}

# same_tensors RUN REFERENCE STEP: parameters and moments must be the same bits.
same_tensors() {
    "$tools/ckpt_compare" exact "$(step_dir "$1" "$3")" "$(step_dir "$2" "$3")" ||
        fail "$1 and $2: tensors of step $3 differ"
}

# near RUN REFERENCE [KEY LIMIT]: both must have the same number of losses, which agree except for the order of FP32
# sums; or another key's values, within that relative limit.
near() {
    paste <(field "$1" "${3:-loss}") <(field "$2" "${3:-loss}") | awk -v first="${4:-1e-6}" -v limit="${4:-1e-5}" '
        { d = ($1 - $2) / $2; if (d < 0) d = -d }
        NF != 2 || d > (NR == 1 ? first : limit) { print "line " NR ": " $1 " and " $2; bad = 1 }
        END { exit bad || !NR }' || fail "$1 and $2: ${3:-loss} too far apart"
}

# as_planned RUN: at its end the run must report that each class of memory took the planned bytes on every
# rank.
as_planned() {
    [[ $(grep -c '^memory .* took ' "$scratch/$1.out") == 1 ]] &&
        grep -Eq '^memory +rank 0: took [0-9.]+ MiB, as planned: parameters [0-9.]+, .* data [0-9.]+' "$scratch/$1.out" ||
        fail "$1: memory: $(grep '^memory' "$scratch/$1.out")"
}

# Both functions are for halved runs (halve), and pass on the array options, which the test sets.
# same_run RUN REFERENCE RANKS ARGUMENTS...: the run has the reference's bits, and the planned memory.
same_run() {
    train 0 "$3" "$1" "${options[@]}" "${@:4}"
    same_curve "$1" "$2"
    same_tensors "$1" "$2" 10
    as_planned "$1"
}
# continue_run RUN REFERENCE RANKS ARGUMENTS...: continues REFERENCE from its step 5 as RUN.
continue_run() {
    cp -r "$scratch/$2" "$scratch/$1"
    rm -r "$(step_dir "$1" 10)"
    train 0 "$3" "$1" --resume "${options[@]}" "${@:4}"
}

# intact RUN STEP: every block of the checkpoint must be intact.
intact() {
    "$trireme" ckpt verify "$scratch/$1" "$2" >"$scratch/verify" 2>&1 || fail "$1: step $2: $(<"$scratch/verify")"
}

# flip FILE BYTE BIT: inverts a bit of the file.
flip() {
    local octet
    octet=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059 # the format is the octet
    printf "\\$(printf %o $((octet ^ 1 << $3)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# says RUN PATTERN: its stderr must be exactly one line, which matches.
says() {
    local lines
    lines=$(wc -l <"$scratch/$1.err")
    [[ $lines == 1 ]] || fail "$1: $lines lines on stderr, not 1: $(<"$scratch/$1.err")"
    grep -Eq -- "^trireme: $2" "$scratch/$1.err" || fail "$1: said '$(<"$scratch/$1.err")', not '$2'"
}

# refused CODE WORDS ARGUMENTS...: the command ends with that exit code, nothing on stdout, and one line on stderr,
# which has the words.
refused() {
    local want=$1 words=$2 code=0 said
    shift 2
    timeout 60 "$trireme" "$@" >"$scratch/refused.out" 2>"$scratch/refused.err" || code=$?
    said=$(<"$scratch/refused.err")
    [[ $code == "$want" ]] || fail "trireme $*: exit code $code, not $want: $said"
    [[ ! -s $scratch/refused.out ]] || fail "trireme $*: wrote to stdout: $(<"$scratch/refused.out")"
    [[ $(wc -l <"$scratch/refused.err") == 1 ]] || fail "trireme $*: not one line on stderr: $said"
    [[ $said == *"$words"* ]] || fail "trireme $*: said '$said', without '$words'"
}

# until_true SECONDS CONDITION...: waits for it; fails when the time is over.
until_true() {
    local tries=$(($1 * 20))
    shift
    while ((tries-- > 0)); do
        "$@" && return
        sleep 0.05
    done
    return 1
}

# last_step RUN: prints the last step in its metrics.
last_step() { field "$1" step | tail -n 1; }

# past RUN STEP: succeeds when its metrics have reached the step.
past() { [[ -f $scratch/$1/metrics.jsonl && $(wc -l <"$scratch/$1/metrics.jsonl") -ge $2 ]]; }

# descendants PID: prints it and all its descendants.
descendants() {
    local child
    echo "$1"
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do descendants "$child"; done
}

# hold PID: stops it and all its descendants, each before its children are looked for, so that none is missed, and
# prints them. `kill -CONT` continues them.
hold() {
    local child
    kill -STOP "$1" 2>/dev/null || return 0
    until_true 60 has_state "$1" T || return 0
    echo "$1"
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do hold "$child"; done
}

# has_state PID LETTER: succeeds when the process is in that state, or has ended, even if its parent has not
# collected it.
has_state() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    [[ $stat == *") "[ZX$2]" "* ]]
}

# gone PID...: succeeds when all these processes have ended.
gone() {
    local p
    for p in "$@"; do has_state "$p" Z || return 1; done
}

# rank_process RANK: prints the process of that rank of $job.
rank_process() {
    local p
    for p in $(descendants "$job"); do
        if [[ $(readlink "/proc/$p/exe") == "$trireme" ]] &&
            grep -qzx "OMPI_COMM_WORLD_RANK=$1" "/proc/$p/environ"; then echo "$p"; fi
    done
}
