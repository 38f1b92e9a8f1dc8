#!/usr/bin/env bash
# Tests the commands about schedules: orders as CSV, the check of files, drawings, and simulated numbers.
# usage: schedule.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
data=$(cd "$(dirname "$0")/../data" && pwd)
source "$(dirname "$0")/common.sh"
cd "$scratch"

# prints TEXT ARGUMENTS...: the command must end with 0, nothing on stderr, and TEXT on stdout.
prints() {
    local text=$1
    shift
    "$trireme" "$@" >out 2>err || fail "trireme $*: failed: $(<err)"
    [[ ! -s err && $(<out) == "$text" ]] || fail "trireme $*: printed '$(<out)', not '$text'"
}

prints $'0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2' schedule 1f1b -p 2 -m 3
: >1f1b.csv.tmp # as a process that is killed while it writes leaves it
prints '' schedule 1f1b -p 2 -m 3 -o 1f1b.csv
[[ ! -e 1f1b.csv.tmp ]] || fail "1f1b.csv.tmp is left"
prints '1f1b.csv: 2 ranks, 2 stages, 3 micro-batches; every action occurs once, and the order runs to its end' \
    schedule check 1f1b.csv
"$trireme" schedule check "$data/pytorch_csv/dualpipev_4rank_10mb.csv" >out
grep -q '4 ranks, 8 stages, 10 micro-batches;' out || fail "the golden DualPipeV is not accepted"

# With transfers as PyTorch lists them; a file with transfers keeps them.
pair=$data/pytorch_csv/zb1p_2rank_2stagep
prints "$(<"${pair}_comms.csv")" schedule "${pair}_compute.csv" --comms
prints "$(<"${pair}_comms.csv")" schedule "${pair}_comms.csv" --comms
prints $'0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0' schedule gpipe -p 2 -m 1 --comms
refused 64 "check does not write an order" schedule check 1f1b.csv --comms

# 1F1B: (m + p - 1)(F + I + W); rank i holds p - i.
json='{"makespan": 12, "span": [12, 9], "bubble_makespan": 0.25, "bubble_span": 0.25, "peak": [2, 1]}'
prints "$json" simulate --schedule 1f1b -p 2 -m 3 --json
prints "$json" simulate --schedule 1f1b.csv --json
# The help's costs and memory are the defaults, also for `auto`, which then holds any amount.
"$trireme" simulate --schedule auto -p 3 -m 8 --json >plain
# shellcheck disable=SC2046 # words
"$trireme" simulate --schedule auto -p 3 -m 8 --json $("$trireme" help simulate | grep -oE -- '--(costs|memory) [A-Za-z]+=[^] ]+' | head -n 2) >out || true
cmp plain out || fail "auto with the help's defaults: $(<out), not $(<plain)"
# With transfers of 0.5: four of them on the path through F0, B0, F2 and B2.
prints '{"makespan": 74, "span": [74, 55], "bubble_makespan": 0.27027027027, "bubble_span": 0.27027027027, "peak": [4, 2]}' \
    simulate --schedule 1f1b.csv -p 2 -m 3 --costs F=5,I=6,W=7,c=.5 --memory mB=2,mW=1 --json
"$trireme" simulate --schedule gpipe -p 2 -m 3 --memory mB=1,cap=2 >out
grep -q '^over the cap: 3 of at most 2$' out || fail "simulate does not name what is over the cap"

# Twice 25 million actions, within time and memory (KiB of address space).
(ulimit -v 2097152 && timeout 60 "$trireme" simulate --schedule interleaved-zb -p 1024 -m 4096 -v 2 --json >out) ||
    fail "p = 1024, m = 4096, v = 2 took too long or more than 2 GiB"
grep -q '^{"makespan": 12799.5, ' out || fail "p = 1024: printed $(head -c 100 out)"

NO_COLOR=1 "$trireme" schedule show 1f1b zbv -p 2 -m 2 --svg s.svg --trace t.json >out
grep -q '^rank 0   F0F1' out || fail "show: no drawing: $(<out)"
grep -q $'\033' out && fail "show: colours off a terminal"
[[ $(head -c 4 s.svg) == '<svg' && $(head -c 1 t.json) == '{' ]] || fail "show: no SVG or trace"
# A file - is stdout, and so is /dev/stdout, which keeps what a file has before it; a drawing is then for a file.
for name in - /dev/stdout /dev/fd/1; do
    { echo before; "$trireme" schedule 1f1b -p 2 -m 3 -o $name; } >stdout.csv
    cmp <(sed 1d stdout.csv) 1f1b.csv && [[ $(head -n 1 stdout.csv) == before ]] || fail "-o $name: $(<stdout.csv)"
    "$trireme" schedule show 1f1b zbv -p 2 -m 2 --svg $name >stdout.svg
    cmp stdout.svg s.svg || fail "--svg $name: $(head -c 200 stdout.svg)"
done
# The file that the shell has opened as another number keeps what it has before, too.
for name in /dev/fd/3 /proc/self/fd/3 /dev/stderr; do
    { echo before; "$trireme" schedule 1f1b -p 2 -m 3 -o $name 2>&3; } >fd.csv 3>>fd.csv
    cmp <(sed 1d fd.csv) 1f1b.csv && [[ $(head -n 1 fd.csv) == before ]] || fail "-o $name: $(<fd.csv)"
done
refused 74 "'/dev/fd/9' cannot be written: Bad file descriptor" schedule 1f1b -p 2 -m 3 -o /dev/fd/9
[[ ! -e ./- ]] || fail "a file named -"
"$trireme" schedule auto -p 4 -m 8 -o - >auto-stdout.csv 2>auto.err || fail "auto -o -: $(<auto.err)"
"$trireme" schedule check auto-stdout.csv >out || fail "auto -o -: $(<auto-stdout.csv)"
refused 64 "--svg and --trace both write to stdout: name a file for one" schedule show 1f1b -p 2 -m 2 --svg - --trace -
refused 65 "'.' is a directory: name a file" schedule 1f1b -p 2 -m 3 -o .
# A file next to which no other one can be made is written in place.
long=$(printf 'x%.0s' {1..250})
: >"$long"
"$trireme" schedule 1f1b -p 2 -m 3 -o "$long" 2>long.err || fail "a long name: $(<long.err)"
cmp "$long" 1f1b.csv || fail "a long name: $(<"$long")"

# The search prints the distance from the bound, in addition to the order.
prints 'auto: makespan 24.75, 0.00% above the lower bound 24.75; 4 stages a rank, made for these costs' \
    schedule auto -p 4 -m 8 -o auto.csv
"$trireme" schedule auto -p 4 -m 8 >out 2>err
cmp -s out auto.csv || fail "auto: another order on stdout"
[[ $(<err) == 'auto: makespan 24.75, 0.00% above the lower bound 24.75; '* ]] || fail "auto: said '$(<err)'"

# Simulating it prints that too; a file may have any name except a schedule's.
"$trireme" simulate --schedule auto -p 4 -m 8 >out
grep -q '^bound     24.75 with 4 stages a rank: the makespan is 0.00% above it$' out || fail "auto: simulated as $(<out)"
cp 1f1b.csv order
prints "$json" simulate --schedule order --json
# A single micro-batch goes down the pipeline and back, which is exactly the bound.
prints 'auto: makespan 6.25, 0.00% above the lower bound 6.25; 4 stages a rank, made for these costs' \
    schedule auto -p 3 -m 1 -o one.csv

refused 64 "no schedule was named" schedule
refused 64 "unknown option --fast" schedule gpipe --fast
refused 64 "--schedule FILE|NAME is missing" simulate --json
refused 64 "needs the ranks, -p, and micro-batches, -m" simulate --schedule gpipe -p 2
refused 64 "-p takes a whole number from 1" simulate --schedule gpipe -p 0 -m 2
refused 64 "-p takes a whole number from 1 to 4096" simulate --schedule zb-h1 -p 1000000 -m 2
refused 64 "not 'X=2'" simulate --schedule gpipe -p 2 -m 2 --costs F=1,X=2
refused 64 "mB must be 0 or between 1e-30 and 1e+30, not '-1'" schedule gpipe -p 2 -m 2 --memory mB=-1
refused 64 "-p 3 contradicts 1f1b.csv, which has 2" simulate --schedule 1f1b.csv -p 3
"$trireme" schedule gpipe -p 512 -m 1 -o wide.csv
refused 64 "-v 4096 contradicts wide.csv, which has 512 stages on 512 ranks" simulate --schedule wide.csv -v 4096
refused 64 "--memory: mB must be more than 0" schedule auto -p 2 -m 2 --memory mB=0,cap=1
refused 66 "the schedule file 'no.csv' cannot be opened" schedule check no.csv
refused 74 "'no/x' cannot be written: No such file or directory: make its folder first" schedule gpipe -p 2 -m 2 -o no/x
refused 78 "there is no file '1f2b'; unknown schedule '1f2b'; did you mean '1f1b'?" schedule 1f2b -p 2 -m 2
refused 78 "unknown schedule 'breadth-first'; did you mean 'bfs'?" schedule show breadth-first -p 2 -m 2
refused 78 "unknown schedule 'Interleaved1F1B'; did you mean 'interleaved'?" simulate --schedule Interleaved1F1B -p 2 -m 2
refused 74 "'1f1b.csv/x' cannot be written: Not a directory: choose another path" schedule gpipe -p 2 -m 2 -o 1f1b.csv/x
refused 78 "there is no file 'ordr'; unknown schedule 'ordr': use one of gpipe, 1f1b" schedule check ordr
refused 78 "events are too many for a drawing" schedule show gpipe -p 300 -m 3000 --svg large.svg
[[ ! -e large.svg ]] || fail "a drawing that was refused left a file"
printf '0F0,0B0\n1B0,1F0\n' >stuck.csv
refused 78 "stuck.csv:2:1: schedule stuck.csv cannot run to its end: rank 1 at 1B0 waits for 1F0" \
    schedule check stuck.csv
printf '0F0,0F1,0B0,0B2\n1F0,1B0,1F1,1B1\n' >typo.csv
refused 78 "typo.csv:1:5: the schedule has no I or B of stage 0, micro-batch 1 (they are 0 to 2)" schedule check typo.csv
printf '0F0,0F2,0B0,0B2\n1F0,1F2,1B0,1B2\n' >hole.csv
refused 78 "hole.csv:1:1: the schedule has no F of stage 0, micro-batch 1 (they are 0 to 2)" simulate --schedule hole.csv
printf '(0F0;0B0)OVERLAP_F_B\n' >pair.csv
refused 78 "pair.csv:1:2: rank 0: 0F0 cannot overlap with 0B0" schedule show pair.csv
printf '0F0,0B0\n1F0,1X0\n' >bad.csv
refused 78 "bad.csv:2:6: " schedule show bad.csv

# The table of docs/schedules.md has every schedule except auto, with its bubble and memory.
page=$data/../../docs/schedules.md
sed -n 's/^| `\([a-z0-9-]*\)` | \([0-9a-z]*\) | .* | \([0-9.]*%\) | \([0-9.]*\) |$/\1 \2 \3 \4/p' "$page" >table
while read -r name stages bubble memory; do
    many=()
    [[ $stages != any ]] || many=(-v 4)
    "$trireme" simulate --schedule "$name" -p 8 -m 32 "${many[@]}" --memory mB=1,mW=0.94 >out
    simulated=$(awk '/^makespan/ {bubble = $NF} /^ +[0-9]/ && $NF > most {most = $NF} END {print bubble, most}' out)
    [[ $simulated == "$bubble $memory" ]] || fail "docs/schedules.md has $bubble $memory for $name: $simulated"
done <table
names=$("$trireme" help parallel.schedule | sed -n 's/^  takes    one of \(.*\), auto, or a path.*/\1/p')
[[ -n $names && $(cut -d ' ' -f 1 table | paste -sd , | sed 's/,/, /g') == "$names" ]] || fail "docs/schedules.md does not list $names"
finish
