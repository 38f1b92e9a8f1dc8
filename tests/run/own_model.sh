#!/usr/bin/env bash
# Tests docs/own-model.md: its diffs apply to a copy of this tree, which builds; objects that they do not change are
# those of the tested build. The new operators agree with ref, on the CPU and as emulated kernels, and their gradients
# with finite differences. The new families agree with PyTorch (own_model/*.h5) and train with the same bits on one rank
# and on two. The page quotes the diffs exactly.
# usage: own_model.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1
scratch=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=$(dirname "$(realpath "$1")")/CMakeCache.txt
source "$(dirname "$0")/common.sh"
diffs=("$root/tests/own_model/family.diff" "$root/tests/own_model/operator.diff")
tree=$scratch/tree

# Prints a cached variable of the tested build; "" when it has none.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$cache" 2>/dev/null || true; }

# Every diff block on the page must be in one of the diffs, and the page must name every file of the diffs. It installs what
# make.py installs.
check_page() {
    local page=$root/docs/own-model.md file
    cat "${diffs[@]}" >"$scratch/diffs"
    awk -v diffs="$scratch/diffs" '
        BEGIN { RS = "\001"; getline all <diffs; RS = "\n" }
        /^```/ && !inside { inside = $0 == "```diff"; block = ""; from = NR; other = !inside; if (other) inside = 1; next }
        /^```/ { if (!other) { blocks++; if (!index(all, block)) { print "line " from ": " block; bad = 1 } } inside = 0; next }
        inside { block = block $0 "\n" }
        END { exit bad || blocks < 10 }' "$page" >"$scratch/page" ||
        fail "docs/own-model.md quotes what the diffs do not have: $(<"$scratch/page")"
    sed -n 's|^+++ b/||p' "$scratch/diffs" | sort -u | while read -r file; do
        grep -qF "\`$file\`" "$page" || echo "$file"
    done >"$scratch/unnamed"
    grep -qxF "$(sed -n 's/^ *\(pip install\)/\1/p' "$root/tests/golden/make.py")" "$page" ||
        fail "docs/own-model.md does not install what tests/golden/make.py needs"
    [[ ! -s $scratch/unnamed ]] || fail "docs/own-model.md does not name $(tr '\n' ' ' <"$scratch/unnamed")"
}

apply_diffs() {
    local diff
    mkdir "$tree"
    tar -C "$root" --exclude='./build*' --exclude=./.git --exclude=./runs -cf - . | tar -C "$tree" -xf -
    for diff in "${diffs[@]}"; do
        if ! patch -d "$tree" -p1 -F1 --no-backup-if-mismatch -r - <"$diff" >"$scratch/patch.out"; then
            fail "$(basename "$diff") no longer applies; mend it, and docs/own-model.md with it:"
            grep -B 1 -E 'FAILED|ignored|find file' "$scratch/patch.out"
            finish
        fi
    done
}

# add_bare: adds a family with as few names as a row needs: LayerNorm, learned positions, one tensor of queries, keys and
# values, weights [in, out], an MLP with a gate, a tied head. And `lone`, which has no preset.
add_bare() {
    local row='.root = "model", .words = "words", .positions = "places", .blocks = "h", .norm = "norm", .norm_1 = "n1", .norm_2 = "n2",
        .qkv = "qkv", .attention_out = "o", .gate = "gate", .up = "up", .down = "down", .attention_site = "drop", .conv1d = true,
        .biases = true, .defaults = {.norm_eps = 1e-5, .qk_norm = TR_NO, .qkv_bias = TR_YES, .tie = TR_YES, .activation = "geglu"}};'
    {
        sed '/^const tr_family \*const tr_families/,$d' "$tree/layers/family.c"
        echo "static const tr_family bare = {.name = \"bare\", $row"
        echo "static const tr_family lone = {.name = \"lone\", $row"
        sed '/^const tr_family \*const tr_families/,$!d; s/&starcoder2/&, \&bare, \&lone/' "$tree/layers/family.c"
    } >"$scratch/family.c"
    mv "$scratch/family.c" "$tree/layers/family.c"
    sed -i 's/mistral starcoder2/& bare lone/; s/ starcoder2-tiny/& bare-tiny/' "$tree/config/schema.c"
    sed -i 's/^ *{"starcoder2-tiny"/    {"bare-tiny", {.family = "bare", TINY}},\n&/' "$tree/layers/preset.c"
}

# changed_objects: prints the objects of the tested build that depend on a file of the diffs.
changed_objects() {
    local changed
    changed=$(sed -n 's|^--- a/||p' "$scratch/diffs" | paste -sd'|')
    ninja -C "$(dirname "$cache")" -t deps 2>/dev/null | awk -v changed="/(${changed//./\\\\.})\$" '
        sub(/: #deps.*/, "") { object = $0; next }
        $1 ~ changed { print object }' | sort -u
}

build() {
    local launcher cxx
    launcher=$(cached CMAKE_C_COMPILER_LAUNCHER)
    if [[ $(cached CMAKE_GENERATOR) == Ninja && -z $(cached TRIREME_SANITIZE) ]]; then
        TRIREME_TESTED=$(dirname "$cache") TRIREME_CHANGED=$scratch/changed_objects
        export TRIREME_TESTED TRIREME_CHANGED
        changed_objects >"$TRIREME_CHANGED"
        grep -q '/op\.c\.o$' "$TRIREME_CHANGED" || fail "no object is changed"
        launcher="$root/tests/tools/tested_object.sh${launcher:+;$launcher}"
    fi
    cxx=$(cached CMAKE_CXX_COMPILER)
    cmake -S "$tree" -B "$tree/build" -G "$(cached CMAKE_GENERATOR)" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O1 \
        -DTRIREME_WIDE_KERNELS=OFF -DTRIREME_CUDA=OFF -DCMAKE_C_COMPILER="$(cached CMAKE_C_COMPILER)" ${cxx:+-DCMAKE_CXX_COMPILER="$cxx"} \
        ${launcher:+-DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"} \
        >"$scratch/cmake.out" 2>&1 || { fail "cmake: $(tail -n 5 "$scratch/cmake.out")"; finish; }
    CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1 cmake --build "$tree/build" --parallel 2 \
        --target trireme ckpt_compare "${tests[@]}" >"$scratch/build.out" 2>&1 ||
        { fail "the build: $(grep -m 5 -E 'error|undefined' "$scratch/build.out")"; finish; }
    ! grep -E 'warning:' "$scratch/build.out" | grep -vE 'maybe-uninitialized' || fail "the build warns"
}

# equal FAMILY: compares one rank, two stages in a V, and two tensor ranks.
equal() {
    train 0 1 "$1" model.family="$1"
    train 0 2 "$1-pp" model.family="$1" parallel.pp=2 parallel.schedule=zbv
    same_curve "$1-pp" "$1"
    same_tensors "$1-pp" "$1" 20
    train 0 2 "$1-tp" model.family="$1" parallel.tp=2
    as_planned "$1-tp"
    train 0 2 "$1-sequence" model.family="$1" parallel.tp=2 parallel.sequence=true
    as_planned "$1-sequence"
    near "$1-sequence" "$1-tp"
    paste <(field "$1" loss) <(field "$1-tp" loss) |
        awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > 1e-5) bad = 1 } END { exit bad || NR != 20 }' ||
        fail "$1: losses of one and two tensor ranks"
    [[ $(field "$1" loss | sed -n '1p;$p' | paste -s | awk '{ print $2 < 0.8 * $1 }') == 1 ]] || fail "$1 does not learn"
}

check_page
tests=(test_op_table test_op_cpu test_op_gradients test_families test_golden test_config)
[[ -z $(cached CMAKE_CXX_COMPILER) ]] || tests+=(test_op_cuda_emulated)
apply_diffs
add_bare
build
# Of both devices, the new operators: the others have the kernels of unit.test_op_cpu and unit.test_op_cuda_emulated.
for test in "${tests[@]}"; do
    TRIREME_TEST_ONLY='test_table: scale' TRIREME_GOLDEN=$root/tests/own_model "$tree/build/tests/$test" >"$scratch/$test.out" 2>&1 ||
        fail "$test: $(grep -m 3 -E 'FAULT|not|differ|off' "$scratch/$test.out")"
done
[[ ! -e $scratch/test_op_cuda_emulated.out ]] || grep -q 'OK .*test_table: scale' "$scratch/test_op_cuda_emulated.out" ||
    fail "no emulated kernel ran: $(tail -n 3 "$scratch/test_op_cuda_emulated.out")"
grep -q 'RUN .*test_table' "$scratch/test_op_cpu.out" || fail "no operator ran: $(tail -n 3 "$scratch/test_op_cpu.out")"
trireme=$tree/build/trireme
sed -i 's/dropout: 0.1/dropout: 0/' "$scratch/base.yaml"
equal starcoder2
equal own
# The page's plan of the published size fits.
(cd "$scratch" && eval "$(sed -n '/^echo .*3b.yaml$/p; s/^trireme plan 3b.yaml/"$trireme" plan 3b.yaml/p' "$root/docs/own-model.md")") \
    >"$scratch/plan.out" 2>&1 || fail "the plan of docs/own-model.md: $(tail -n 1 "$scratch/plan.out")"
grep -q '^model .* 3030.37 M parameters' "$scratch/plan.out" || fail "the plan is of $(head -n 1 "$scratch/plan.out")"
train 78 1 dropped model.family=own model.dropout=0.1
says dropped ".*model.dropout is 0.1, but model.family own has LayerScale instead: set it to 0"
# transformers' classes of this program have neither LayerScale nor the other family's tensors.
for family in starcoder2 own; do
    refused 65 "no class of transformers is known for model.family $family, so its models cannot be exported" ckpt export "$scratch/$family" "$scratch/out"
done
[[ ! -e $scratch/out ]] || fail "a refused export left a folder"

# A row of few names trains on any ranks, and what it does not name is refused.
train 0 1 bare model.family=bare
train 0 2 bare-tp model.family=bare parallel.tp=2
as_planned bare-tp
near bare-tp bare
train 78 1 heads model.family=bare model.kv_heads=2
says heads ".*model.family bare has one tensor of queries, keys and values, .*: set model.kv_heads to model.heads, 4"
train 78 1 untied model.family=bare model.tie=false
says untied ".*model.tie is false, but model.family bare has only a tied head: leave it out"
train 70 1 lone model.family=lone
says lone ".*model.family lone has no preset: add its tiny one to layers/preset.c"
[[ $failures != 0 ]] || rm -r "$tree"
finish
