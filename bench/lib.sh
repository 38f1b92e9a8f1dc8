# shellcheck shell=bash
# Functions that the scripts of bench/ share; sourced from the repository's root.

release=build/release
rows=${BENCH_ROWS:-/dev/null} # bench/run.sh collects the rows of its table there

fail() {
    echo "bench: $*" >&2
    exit 1
}

load() { cut -d' ' -f1 /proc/loadavg; }

# row WHAT COMMAND MEASURED TARGET: prints one line of the table.
row() {
    echo "| $1 | \`$2\` | $3 | $4 |" | tee -a "$rows"
}

# build TARGET...: builds in the release build, without output.
build() {
    { cmake --preset release && cmake --build "$release" --target "$@"; } >"$release.log" 2>&1 ||
        fail "the build failed: $(tail -n 5 "$release.log")"
}

# mpi RANKS PROGRAM ARGUMENTS...: calls mpirun with the options of `trireme run`.
mpi() (
    set -a
    source tests/mpi.env
    exec mpirun --bind-to none -n "$1" "${@:2}" </dev/null
)

# median, least, most: print that of the numbers in the input, one a line.
median() { sort -g | awk '{ x[NR] = $1 } END { print (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'; } # of an even count: the mean of the two in the middle
least() { sort -g | head -n 1; }
most() { sort -g | tail -n 1; }
