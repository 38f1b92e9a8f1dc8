#!/usr/bin/env bash
# Tests report.html of the run directory: planned and, with --trace, measured times; a resumed run shows all
# its steps. If Chromium is installed it opens the report: no two labels overlap, none is cut off, and the
# picture (report.png) is not empty.
# usage: report.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"

# holds RUN PATTERN...: each must be somewhere in its report.
holds() {
    local run=$1 pattern
    shift
    for pattern; do
        grep -Eq -- "$pattern" "$scratch/$run/report.html" || fail "$run: no '$pattern' in the report"
    done
    if [[ -e $scratch/$run/report.html.tmp ]]; then fail "$run: a temporary file is left"; fi
}

# A run that was stopped half-way, with only planned times, then resumed on a traced pipeline.
train 0 2 pipe parallel.pp=2 parallel.schedule=zbv train.steps=10
holds pipe ">10 of 10<" ">planned: makespan .* bubble [0-9.]+%" ">rank 1<" ">last validation<" "schedule zbv"
if grep -q ">measured" "$scratch/pipe/report.html"; then fail "pipe: measured without --trace"; fi
train 0 2 pipe parallel.pp=2 --resume --trace 1
holds pipe ">20 of 20<" ">planned: makespan" ">measured: makespan .* bubble [0-9.]+%" "after step 20<" "<circle[^/]*><title>10: "
# Memory of each rank: the classes add up to the sum, and the allocated bytes are the planned ones.
memory_rows() { # planned|taken: the rows of the ranks, seven classes and all
    sed -n 's/<td class="number">\([0-9.]*\)<\/td>/ \1/g; s/<td><\/td>//; s/^<tr><th>rank \([0-9]\) '"$1"'<\/th>\([ 0-9.]*\)<\/tr>$/\1\2/p' \
        "$scratch/pipe/report.html" | cut -d ' ' -f 1-9
}
memory_rows planned | awk '{ all = 0; for (k = 2; k <= 8; k++) all += $k
    if (NF == 9 && all > 0 && (all - $9) ^ 2 <= 0.04 ^ 2) good++ } END { exit !(NR == 2 && good == 2) }' ||
    fail "pipe: memory planned: $(memory_rows planned)"
diff <(memory_rows planned) <(memory_rows taken) >"$scratch/diff" || fail "pipe: memory taken: $(<"$scratch/diff")"
# How long ranks wait: for messages between stages, for sums over tensor ranks, and for those over data ranks.
# waits RUN: prints each rank's three percentages.
waits() { sed -n 's/<td class="number">\([0-9.]*\)%<\/td>/ \1/g; s/^<tr><th>rank [0-9] waits<\/th>\([ 0-9.]*\)<\/tr>$/\1/p' "$scratch/$1/report.html"; }
train 0 2 tensor parallel.tp=2 train.steps=5
train 0 2 data parallel.dp=2 train.steps=5
waits pipe | awk '!($1 > 0 && $1 < 100 && $2 == 0 && $3 == 0) { bad = 1 } END { exit bad || NR != 2 }' || fail "pipe: waits: $(waits pipe)"
waits tensor | awk '!($1 == 0 && $2 == 0 && $3 > 0 && $3 < 100) { bad = 1 } END { exit bad || NR != 2 }' || fail "tensor: waits: $(waits tensor)"
waits data | awk '$1 != 0 || $3 != 0 || $2 >= 100 { bad = 1 } { all += $2 } END { exit bad || NR != 2 || all <= 0 }' || fail "data: waits: $(waits data)"
# How much of a planned step a rank waits for sums of gradients and gathers of parameters: nothing, a part, and over slow
# links nearly all of it.
# exposed RUN: prints the percentage of each rank of the pipeline.
exposed() { parts "$1" | cut -d ' ' -f 7; }
# parts RUN: prints busy, bubble, fill, drain, waiting, imbalance and exposed of each rank of the pipeline, in %.
parts() { sed -n 's/<td class="number">\([0-9.]*\)%<\/td>/ \1/g; s/^<tr><th>rank [0-9]<\/th> \(\([0-9.]* \)\{6\}[0-9.]*\)<\/tr>$/\1/p' "$scratch/$1/report.html"; }
train 0 2 slow parallel.dp=2 parallel.zero=1 train.steps=2 device.link=0.001
train 0 2 staged parallel.pp=2 train.steps=2
[[ $(exposed staged | sort -u) == 0.0 ]] || fail "staged: exposed: $(exposed staged)"
awk -v part="$(exposed data)" -v most="$(exposed slow)" 'BEGIN { exit !(part > 0 && part < 50 && most > 90 && most <= 100) }' ||
    fail "exposed: $(exposed data) and $(exposed slow) %"
# A step begins with the gathers before its first action: they are waited for, and do not fill the pipeline.
parts slow | awk '!($3 == 0 && $5 > 20) { bad = 1 } END { exit bad || NR != 1 }' || fail "slow: $(parts slow)"
# What travels in a planned step, in % of it, as `plan` says it at the CPU's usual rate.
# traffic RUN NAME: prints count, MiB, percentage moving and exposed.
traffic() { sed -n 's/<td class="number">\([0-9.]*\)%\{0,1\}<\/td>/ \1/g; s/^<tr><th>'"$2"'<\/th>\([ 0-9.]*\)<\/tr>$/\1/p' "$scratch/$1/report.html"; }
# planned LINE KEY=VALUE...: prints the same of a line of the plan.
planned() {
    "$trireme" plan "$scratch/base.yaml" --rate 20 "${@:2}" >"$scratch/plan.out" || fail "plan ${*:2}: $(<"$scratch/plan.out")"
    awk -v name="$1" '
        function ms(value, unit) { return unit == "s" ? 1000 * value : value }
        $1 == name { for (k = 1; k < NF; k++) {
            if ($(k + 1) == "MiB") mib = $k
            if ($k == "in") count = $(k + 1)
            if ($k == "take") moving = ms($(k + 1), $(k + 2))
            if ($k == "which" || $k == "step") exposed = ms($(k + 1), $(k + 2)) } }
        /^in all/ { step = ms($4, $5) }
        END { print count, mib, 100 * moving / step, 100 * exposed / step }' "$scratch/plan.out"
}
agrees() { # RUN NAME LINE KEY=VALUE...
    local report plan
    report=$(traffic "$1" "$2") plan=$(planned "${@:3}")
    awk -v p="$plan" 'function near(a, b, by) { return a - b <= by && b - a <= by }
        { split(p, x, " "); good = $1 == x[1] && near($2, x[2], 0.051) && near($3, x[3], 0.1 + x[3] / 100) && near($4, x[4], 0.1 + x[4] / 100) && $4 > 0 }
        END { exit !(NR == 1 && good) }' <<<"$report" || fail "$1: the report's traffic: $report, the plan's: $plan"
}
agrees staged "messages between stages" messages parallel.pp=2
agrees tensor "sums over tensor ranks" tensor parallel.tp=2
agrees data "sums of gradients over data ranks" reduce parallel.dp=2
agrees slow "gathers of parameters from data ranks" gather parallel.dp=2 parallel.zero=1 device.link=0.001
train 0 1 alone train.steps=2
grep -Eq 'Waiting|Traffic' "$scratch/alone/report.html" && fail "alone: it waits for other ranks"
# Each checkpoint leaves a report, also of a run that is lost after it.
"$trireme" train "$scratch/base.yaml" log.dir="$scratch/lost" train.steps=100000 >/dev/null 2>&1 &
lost=$!
until_true 60 test -e "$scratch/lost/report.html" || fail "lost: no report after a checkpoint"
kill -KILL $lost
{ wait $lost; } 2>/dev/null || true
holds lost " of 100000<"
if command -v xmllint >/dev/null; then
    for run in pipe lost; do xmllint --noout "$scratch/$run/report.html" || fail "$run: not well-formed"; done
fi

if ! browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome); then
    echo "report.sh: the picture was not looked at: chromium is not installed"
    finish
    exit
fi
# look OPTIONS... PAGE: opens it in a browser with a profile of its own.
look() {
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars \
        --user-data-dir="$scratch/browser" --window-size=1240,1900 "$@" 2>"$scratch/browser.log" ||
        fail "the browser: $(tail -n 3 "$scratch/browser.log")"
}
# A copy of the report with a script that finds labels of one drawing that overlap or leave it.
cat >"$scratch/measure.js" <<'J'
let overlaps = [], outside = [], labels = 0;
for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect(), boxes = [];
    for (const text of svg.querySelectorAll("text")) {
        const box = text.getBoundingClientRect(), name = text.firstChild.textContent;
        labels++;
        if (box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom)
            outside.push(name);
        for (const [other, of] of boxes)
            if (box.left < other.right && other.left < box.right && box.top < other.bottom - 2 && other.top < box.bottom - 2)
                overlaps.push(of + "|" + name);
        boxes.push([box, name]);
    }
}
document.body.setAttribute("data-seen", `labels ${labels} overlaps ${overlaps} outside ${outside} end`);
J
{
    sed 's/<\/body>//; s/<\/html>//' "$scratch/pipe/report.html"
    echo "<script>$(<"$scratch/measure.js")</script></body></html>"
} >"$scratch/measured.html"
look --dump-dom "file://$scratch/measured.html" >"$scratch/dom"
seen=$(grep -o 'data-seen="[^"]*"' "$scratch/dom" || true)
pattern="labels ([0-9]+) overlaps  outside  end"
if [[ ! $seen =~ $pattern ]] || ((BASH_REMATCH[1] < 60)); then fail "labels: '$seen'"; fi
look --screenshot="$scratch/report.png" "file://$scratch/pipe/report.html" >"$scratch/browser.out"
[[ $(head -c 4 "$scratch/report.png" | tail -c 3) == PNG ]] || fail "no picture"
# A white page would be a few kilobytes.
bytes=$(stat -c %s "$scratch/report.png")
((bytes > 40000)) || fail "the picture of a whole report has only $bytes bytes"
finish
