#!/usr/bin/env bash
# Tests parallel.zero 1, 2 and 3: data ranks that divide the optimizer's state, and gradients, and parameters, have the
# bits of those that do not, in losses, norms, parameters and moments, with dropout and clipping; the planned memory is
# what is taken, and less; a run continues with another parallel.zero and on another number of data ranks.
# usage: zero.sh TRIREME SCRATCH_DIR PRECISION
set -euo pipefail
trireme=$1 scratch=$2 precision=$3
source "$(dirname "$0")/common.sh"
halve
source "$(dirname "$0")/../../tools/plan_table.sh"

# Parameters of one block of 4096 elements, of several, and of a part of one.
options=(model.width=96 model.vocab=700 optim.clip=0.5 train.precision="$precision")

optimizer_bytes() { sed -n 's/^memory .* took .* optimizer \([0-9.]*\),.*/\1/p' "$scratch/$1.out"; }

# same_bits ZERO NAME REFERENCE RANKS ARGUMENTS...: runs with that parallel.zero as NAME-ZERO, like REFERENCE.
same_bits() {
    local name=$2-$1
    train 0 "$4" "$name" "${options[@]}" "${@:5}" parallel.zero="$1"
    same_curve "$name" "$3"
    same_tensors "$name" "$3" 10
    as_planned "$name"
    intact "$name" 10
}

# same_as_zero0 ZERO NAME RANKS ARGUMENTS...: runs with parallel.zero 0, as NAME-0, and with that one.
same_as_zero0() {
    train 0 "$3" "$2-0" "${options[@]}" "${@:4}"
    same_bits "$1" "$2" "$2-0" "${@:3}"
}

# drawn_as_zero0 ZERO NAME ...: the same, if the name is drawn.
drawn_as_zero0() { if drawn "$2"; then same_as_zero0 "$@"; fi; }

# less NAME FACTOR: the optimizer's state of rank 0 is at most that part of the undivided one.
less() {
    awk -v a="$(optimizer_bytes "$1-1")" -v b="$(optimizer_bytes "$1-0")" -v f="$2" 'BEGIN { exit !(a > 0 && a <= f * b) }' ||
        fail "$1: optimizer $(optimizer_bytes "$1-1") MiB, undivided $(optimizer_bytes "$1-0")"
}

same_as_zero0 1 dp2 2 parallel.dp=2
less dp2 0.6
same_as_zero0 1 dp4 4 parallel.dp=4 parallel.schedule=gpipe
less dp4 0.35
same_as_zero0 1 pp2 4 parallel.pp=2 parallel.dp=2
drawn_as_zero0 2 pp2-near 8 parallel.pp=2 parallel.dp=2x2 parallel.schedule=gpipe
# Neither the order nor the cut changes a bit.
drawn zbv && same_bits 3 zbv pp2-0 4 parallel.pp=2 parallel.dp=2 parallel.schedule=zbv
drawn interleaved && same_bits 1 interleaved pp2-0 4 parallel.pp=2 parallel.dp=2 parallel.schedule=interleaved parallel.virtual=2
drawn interleaved-dp2 && same_bits 3 interleaved-dp2 dp2-0 2 parallel.dp=2 parallel.schedule=interleaved parallel.virtual=4
drawn_as_zero0 1 tp2 4 parallel.tp=2 parallel.dp=2
# Tensor ranks that share a key head, and a head of its own.
drawn_as_zero0 3 llama 4 parallel.tp=2 parallel.dp=2 model.family=llama model.kv_heads=1
# An uneven number of data ranks, and more of them than blocks of most parameters.
same_as_zero0 3 dp3 3 parallel.dp=3 model.width=32
# A tied table of one block, of which some ranks own nothing.
drawn_as_zero0 2 small 2 parallel.dp=2 model.width=8 model.heads=2
drawn_as_zero0 3 small-pp2 4 parallel.pp=2 parallel.dp=2 model.width=8 model.heads=2
# Memory that the host cannot access, and messages that are staged.
if drawn guarded; then
    same_as_zero0 3 guarded 2 parallel.dp=2 device.name=guarded parallel.schedule=bfs parallel.virtual=4
    same_bits 1 guarded guarded-0 2 parallel.dp=2 device.name=guarded
fi

# Breadth-first orders, in which the gradients and parameters of two stages are alive at one time.
bfs=(parallel.schedule=bfs parallel.virtual=4)
same_bits 2 bfs-dp2 dp2-0 2 parallel.dp=2 "${bfs[@]}"
same_bits 3 bfs-dp2 dp2-0 2 parallel.dp=2 "${bfs[@]}"
drawn bfs-dp4 && same_bits 3 bfs-dp4 dp4-0 4 parallel.dp=4 "${bfs[@]}" train.recompute=full
drawn bfs-pp2 && same_bits 3 bfs-pp2 pp2-0 4 parallel.pp=2 parallel.dp=2 parallel.schedule=bfs parallel.virtual=2

# Data ranks in two factors: sums in another order than those of 4 data ranks, within the tolerance of FP32.
same_as_zero0 1 near 4 parallel.dp=2x2
drawn_as_zero0 2 near4 8 parallel.dp=2x4 train.batch=16
less near 0.6
same_bits 3 bfs-near near-0 4 parallel.dp=2x2 "${bfs[@]}"
# Three runs of one rank are three data ranks, which divide nothing.
train 0 3 far "${options[@]}" parallel.dp=3x1 model.width=32 parallel.zero=3
grep -q '^layout   pp 1 x tp 1 x dp 3x1 (zero divides nothing in runs of 1), ' "$scratch/far.out" || fail "far: $(grep '^layout' "$scratch/far.out")"
same_curve far dp3-0
same_tensors far dp3-0 10
paste <(field near-0 loss) <(field dp4-0 loss) >"$scratch/near"
awk -v most="$([[ $precision == fp32 ]] && echo 1e-5 || echo 1e-2)" '{ d = $1 / $2 - 1; if (d != 0) other = 1; if (d > most || d < -most) far = 1 }
    END { exit !(NR == 10 && other && !far) }' "$scratch/near" || fail "2x2 and 4: $(<"$scratch/near")"

# Frozen parameters among those that are trained, and rates of their own.
drawn_as_zero0 3 frozen 2 parallel.dp=2 train.freeze='*.ln_1.* transformer.h.1.*' train.lr_scale='0.1 *.c_fc.*' "${bfs[@]}"
drawn_as_zero0 3 lora 2 parallel.dp=2 model.lora.rank=4

# A measurement of the gradients.
drawn_as_zero0 2 tied-noise 4 parallel.pp=2 parallel.dp=2 log.noise_scale=true

# What follows does not depend on the storage type.
[[ $precision == fp32 ]] || {
    finish
    exit
}

# A run continues with the other value, and with other data ranks, as one continues that never divided anything.
# as_dp2 RUN REFERENCE RANKS ARGUMENTS...: the same, if it is drawn; the bits must be those of dp2-0.
as_dp2() {
    drawn "$1" || return 0
    continue_run "$@"
    same_curve "$1" dp2-0
    same_tensors "$1" dp2-0 10
}
as_dp2 from-0 dp2-0 2 parallel.dp=2 parallel.zero=1
as_dp2 from-1 dp2-1 2 parallel.dp=2 parallel.zero=0
as_dp2 again dp2-1 2 parallel.dp=2 parallel.zero=1
as_dp2 from-2 bfs-dp2-2 2 parallel.dp=2 parallel.zero=3 "${bfs[@]}"
as_dp2 from-3 bfs-dp2-3 2 parallel.dp=2 parallel.zero=1
# both NAME REFERENCE RANKS ARGUMENTS...: continues REFERENCE-0, and REFERENCE-1 with parallel.zero=$zero, as NAME-0 and -1.
both() {
    drawn "$1" || return 0
    continue_run "$1-0" "$2-0" "${@:3}"
    continue_run "$1-1" "$2-1" "${@:3}" parallel.zero="$zero"
    same_curve "$1-1" "$1-0"
    same_tensors "$1-1" "$1-0" 10
}
zero=1 both fewer dp4 2 parallel.dp=2
zero=3 both tensor dp4 4 parallel.dp=2 parallel.tp=2
zero=1 both onto4 near 4 parallel.dp=4
zero=1 both onto2x2 dp4 4 parallel.dp=2x2

# Weights that a run starts from.
(cd "$scratch" && "$trireme" ckpt export dp2-0 model >/dev/null) || fail "no export"
drawn_as_zero0 3 start 2 parallel.dp=2 model.init_from="$scratch/model"

# The run and its report name it.
grep -q '^layout   pp 1 x tp 1 x dp 2 (zero 1), ' "$scratch/dp2-1.out" || fail "dp2-1: $(grep '^layout' "$scratch/dp2-1.out")"
grep -q 'dp 2 (zero 1), schedule' "$scratch/dp2-1/report.html" || fail "dp2-1: the report does not name parallel.zero"

# A run that does not fit names the key, if it helps.
for memory in "8MiB adamw" "8MiB lamb" "100KiB lamb"; do
    read -r size optim <<<"$memory"
    "$trireme" plan "$scratch/base.yaml" "${options[@]}" parallel.dp=2 device.memory="$size" optim.name="$optim" >/dev/null 2>"$scratch/advice" &&
        fail "$memory: it fits"
    [[ $(<"$scratch/advice") == *"it fits with parallel.zero=1"* ]] || [[ $memory != 8MiB* ]] || fail "$memory: $(<"$scratch/advice")"
    [[ $(<"$scratch/advice") != *parallel.zero* ]] || [[ $memory == 8MiB* ]] || fail "$memory: $(<"$scratch/advice")"
done
for memory in "6MiB 2" "5500KiB 3"; do
    read -r size zero <<<"$memory"
    "$trireme" plan "$scratch/base.yaml" "${options[@]}" train.precision=fp32 train.batch=4 parallel.dp=4 device.memory="$size" >/dev/null 2>"$scratch/advice" &&
        fail "one micro-batch: $size fits"
    [[ $(<"$scratch/advice") == *"it fits with parallel.zero=$zero parallel.virtual=4 parallel.schedule=bfs"* ]] || fail "one micro-batch, $size: $(<"$scratch/advice")"
done
"$trireme" plan "$scratch/base.yaml" "${options[@]}" train.precision=fp32 train.batch=4 parallel.dp=4 device.memory=6MiB "${bfs[@]}" \
    parallel.zero=2 >/dev/null || fail "one micro-batch: it does not fit"
# At 1 GB/s the rank that has updated most of a layer sends its values to 3 others: at least as long as if all layers
# travelled at once. A tied table travels once. The first forward hides a part.
"$trireme" plan "$scratch/base.yaml" "${options[@]}" parallel.dp=4 parallel.zero=1 device.link=1 --rate 100 >"$scratch/gather"
read -r mib ms exposed < <(sed -n 's/^gather   \([0-9.]*\) MiB of updated parameters in 6 gathers take \([0-9.]*\) ms at 1 GB.s, of which \([0-9.]*\) ms stay exposed$/\1 \2 \3/p' "$scratch/gather") || true
read -r most whole < <(awk "$plan_table"'is_row() { all += $7 * ranks_of($2); whole = $5; if ($7 > most) most = $7 } END { if (all > 0) print most / all, whole }' "$scratch/gather")
awk -v mib="${mib:-0}" -v ms="${ms:-0}" -v e="${exposed:-0}" -v most="${most:-1}" 'BEGIN {
    d = ms / (3 * most * (mib + 1e-9) * 1.048576) - 1; exit !(mib > 0.5 && e > 0 && e < ms && d < 0.2 && d > -0.05) }' && [[ $precision != fp32 || $mib == "$whole" ]] ||
    fail "the gathers: $(grep '^gather' "$scratch/gather"), of $whole MiB, of which one rank has ${most:-0}"
# Gradients that travel in bf16 are half the bytes.
"$trireme" plan "$scratch/base.yaml" "${options[@]}" parallel.dp=4 parallel.zero=1 parallel.reduce=bf16 device.link=1 --rate 100 >"$scratch/reduced"
# The sum of gradients moves half of what it moves when nothing is divided.
"$trireme" plan "$scratch/base.yaml" "${options[@]}" parallel.dp=4 device.link=1 --rate 100 >"$scratch/undivided"
reduce_of() { sed -n "s/^reduce   \([0-9.]*\) MiB of ${2:+$2 }gradients in [0-9]* buckets take \([0-9.]*\) ms at 1 GB.s, .*\$/\1 \2/p" "$1"; }
awk -v a="$(reduce_of "$scratch/gather")" -v b="$(reduce_of "$scratch/undivided")" 'BEGIN {
    split(a, x, " "); split(b, y, " "); d = 2 * x[2] - y[2]; exit !(x[1] > 0.5 && x[1] == y[1] && x[2] > 1 && d < 0.2 && d > -0.2) }' ||
    fail "the reductions: $(grep -h '^reduce' "$scratch/gather" "$scratch/undivided")"
# Tensor ranks sum parts of gradients, too, and divide no updates.
"$trireme" plan "$scratch/base.yaml" "${options[@]}" parallel.tp=2 parallel.zero=1 parallel.reduce=bf16 >"$scratch/reduced-tp2"
grep -q '^layout   pp 1 x tp 2 x dp 1 (zero divides nothing with dp 1, reduce bf16), ' "$scratch/reduced-tp2" || fail "reduced-tp2: $(grep '^layout' "$scratch/reduced-tp2")"
awk -v a="$(reduce_of "$scratch/gather")" -v b="$(reduce_of "$scratch/reduced" bf16)" 'BEGIN {
    split(a, x, " "); split(b, y, " "); m = x[1] - 2 * y[1]; t = x[2] - 2 * y[2]
    exit !(y[1] > 0.2 && m < 0.21 && m > -0.21 && y[2] > 0.5 && t < 0.2 && t > -0.2) }' ||
    fail "the reductions in bf16: $(grep -h '^reduce' "$scratch/gather" "$scratch/reduced")"
# With parallel.zero 2 a rank has half the gradients, and the plan says whether whole ones are fewer, too.
alive_of() { sed -n 's/^zero     at most \([0-9.]*\) of a rank.s \([0-9.]*\) MiB of whole gradients are alive at one time, in the activations\(.*\)$/\1 \2 \3/p' <("$trireme" plan "$scratch/base.yaml" "${options[@]}" --rate 100 "$@"); }
read -r alive whole advice < <(alive_of parallel.dp=2 parallel.zero=2 "${bfs[@]}") || true
awk -v a="${alive:-0}" -v w="${whole:-0}" 'BEGIN { exit !(a > 0 && a < 0.8 * w) }' && [[ -z $advice ]] || fail "bfs: $alive of $whole MiB $advice"
read -r alive whole advice < <(alive_of parallel.dp=2 parallel.zero=2) || true
[[ $alive == "$whole" && $advice == *"saves nothing over parallel.zero 1: use parallel.schedule bfs with parallel.virtual 3 or more" ]] ||
    fail "1f1b: $alive of $whole MiB $advice"
[[ -z $(alive_of parallel.dp=2 parallel.zero=1) ]] || fail "parallel.zero 1 has a line on whole gradients"
# With parallel.zero 3 so it is with parameters: each is gathered twice, except those of the last two stages.
values_of() { sed -n 's/^zero     at most \([0-9.]*\) of a rank.s \([0-9.]*\) MiB of whole parameters are alive at one time, in the activations, and gathered \([0-9.]*\) times a step\(.*\)$/\1 \2 \3 \4/p' <("$trireme" plan "$scratch/base.yaml" "${options[@]}" --rate 100 "$@"); }
read -r alive whole times advice < <(values_of parallel.dp=2 parallel.zero=3 "${bfs[@]}") || true
awk -v a="${alive:-0}" -v w="${whole:-0}" -v t="${times:-0}" 'BEGIN { exit !(a > 0 && a < 0.8 * w && t > 1 && t < 2) }' && [[ -z $advice ]] || fail "bfs: $alive of $whole MiB, $times times $advice"
read -r alive whole times advice < <(values_of parallel.dp=2 parallel.zero=3) || true
[[ $alive == "$whole" && $times == 1.0 && $advice == *"saves nothing over parallel.zero 2: use parallel.schedule bfs with parallel.virtual 3 or more" ]] ||
    fail "1f1b: $alive of $whole MiB, $times times $advice"
read -r alive whole times advice < <(values_of parallel.dp=2 parallel.zero=3 parallel.schedule=interleaved parallel.virtual=4) || true
awk -v t="${times:-0}" 'BEGIN { exit !(t > 4) }' && [[ $advice == "(at most twice with parallel.schedule bfs)" ]] || fail "interleaved: $times times $advice"
[[ -z $(values_of parallel.dp=2 parallel.zero=2) ]] || fail "parallel.zero 2 has a line on whole parameters"
# At 1 GB/s a gather of all parameters by two ranks moves half of their bytes into each, and what one rank has more.
"$trireme" plan "$scratch/base.yaml" "${options[@]}" parallel.dp=2 parallel.zero=3 "${bfs[@]}" device.link=1 --rate 100 >"$scratch/gathers"
read -r mib ms exposed < <(sed -n 's/^gather   \([0-9.]*\) MiB of parameters in [0-9]* gathers take \([0-9.]*\) ms at 1 GB.s, of which \([0-9.]*\) ms stay exposed$/\1 \2 \3/p' "$scratch/gathers") || true
awk -v mib="${mib:-0}" -v ms="${ms:-0}" -v e="${exposed:-0}" 'BEGIN { d = ms / (mib / 2 * 1.048576 + 1e-9) - 1; exit !(mib > 0.5 && d < 0.2 && d > -0.05 && e > 0 && e < ms) }' ||
    fail "the gathers: $(grep '^gather' "$scratch/gathers")"
gradient_bytes() { sed -n 's/^memory .* took .* gradients \([0-9.]*\),.*/\1/p' "$scratch/$1.out"; }
awk -v a="$(gradient_bytes bfs-dp2-2)" -v b="$(gradient_bytes dp2-0)" 'BEGIN { exit !(a > 0 && a < 0.6 * b) }' ||
    fail "gradients: $(gradient_bytes bfs-dp2-2) MiB, undivided $(gradient_bytes dp2-0)"
parameter_bytes() { sed -n 's/^memory .* took .* parameters \([0-9.]*\),.*/\1/p' "$scratch/$1.out"; }
awk -v a="$(parameter_bytes bfs-dp2-3)" -v b="$(parameter_bytes dp2-0)" 'BEGIN { exit !(a > 0 && a < 0.6 * b) }' ||
    fail "parameters: $(parameter_bytes bfs-dp2-3) MiB, undivided $(parameter_bytes dp2-0)"
train 76 2 large "${options[@]}" parallel.dp=2 device.memory=8MiB
grep -q '8.0 MiB (device.memory), .* less: set parallel.zero to 1, raise parallel.pp' "$scratch/large.err" || fail "large: $(<"$scratch/large.err")"

if [[ $precision == fp32 ]]; then
    # Gradients that travel in BF16: other bits than in FP32, and the same ones with every parallel.zero, order and cut.
    bf16=parallel.reduce=bf16
    train 0 4 reduced-0 "${options[@]}" parallel.dp=2x2 $bf16
    diff <(field reduced-0 loss) <(field near-0 loss) >/dev/null && fail "reduced-0 has the losses of sums in FP32"
    same_bits 1 reduced reduced-0 4 parallel.dp=2x2 $bf16
    drawn reduced-bfs && same_bits 2 reduced-bfs reduced-0 4 parallel.dp=2x2 "${bfs[@]}" $bf16 device.name=guarded
    drawn_as_zero0 2 reduced-dp2 4 parallel.dp=2 parallel.tp=2 parallel.sequence=true $bf16
    drawn reduced-pp2 && same_bits 1 reduced-pp2 reduced-0 8 parallel.pp=2 parallel.dp=2x2 parallel.schedule=zbv $bf16
    grep -q '^layout   pp 1 x tp 1 x dp 2x2 (zero 1, reduce bf16), ' "$scratch/reduced-1.out" || fail "reduced-1: $(grep '^layout' "$scratch/reduced-1.out")"
    drawn_as_zero0 2 fp64 2 parallel.dp=2 train.precision=fp64 device.name=ref model.width=32 model.vocab=300
    train 78 1 reduced-fp64 parallel.reduce=bf16 train.precision=fp64 device.name=ref
    says reduced-fp64 '.*train.precision fp64 sums gradients in fp64: leave parallel.reduce out'
    train 78 1 four parallel.zero=4
fi
finish
