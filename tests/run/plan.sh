#!/usr/bin/env bash
# Tests `trireme plan`: the table of a run's memory and time, the same numbers as the run prints, and
# refusals.
# usage: plan.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1
scratch=$2
source "$(dirname "$0")/common.sh"

# plan CODE NAME ARGUMENTS...: a plan must end with that code; its output is in $scratch/NAME.out and .err.
plan() {
    local want=$1 name=$2 code=0
    shift 2
    timeout 60 "$trireme" plan "$scratch/base.yaml" log.dir="$scratch/$name" "$@" \
        >"$scratch/$name.out" 2>"$scratch/$name.err" || code=$?
    [[ $code == "$want" ]] || fail "plan $name ($*): exit code $code, not $want: $(<"$scratch/$name.err")"
}


# same_memory RUN RANKS: the row of rank 0 must have the numbers that the training run printed.
same_memory() {
    local planned trained
    planned=$(awk -v ranks="$2" '$2 == ranks {gsub(/[()]/, ""); print $12, $5, $6, $7, $8, $9, $10, $11; exit}' "$scratch/$1.plan.out")
    trained=$(sed -n 's/^memory   rank 0: \([0-9.]*\) MiB planned = parameters \([0-9.]*\) + gradients \([0-9.]*\) + optimizer \([0-9.]*\) + activations \([0-9.]*\) (live peak \([0-9.]*\)) + transfers \([0-9.]*\) + data \([0-9.]*\)$/\1 \2 \3 \4 \5 \6 \7 \8/p' "$scratch/$1.out")
    [[ -n $trained && $planned == "$trained" ]] || fail "$1: planned '$planned', trained '$trained'"
}

layout=(model.width=96 parallel.pp=2 parallel.tp=2 train.micro_batch=3 train.steps=1)
plan 0 grid.plan "${layout[@]}"
train 0 4 grid "${layout[@]}"
same_memory grid 0-1
plan 0 zbv.plan model.width=96 parallel.pp=2 parallel.schedule=zbv train.precision=bf16 train.steps=1
train 0 2 zbv model.width=96 parallel.pp=2 parallel.schedule=zbv train.precision=bf16 train.steps=1
same_memory zbv 0

# When the fastest cut does not fit, the plan and the run have another one, which does, and the losses stay.
layout=(model.layers=12 model.context=128 parallel.pp=4 train.batch=8 train.steps=2 optim.warmup=1)
plan 0 fastest.plan "${layout[@]}" device.memory=1GiB
grep -q '^cut .* does not fit' "$scratch/fastest.plan.out" && fail "fastest: another cut"
need=$(sed -n 's/^fits .* needs most: \([0-9.]*\) of .*/\1/p' "$scratch/fastest.plan.out")
train 0 4 fastest "${layout[@]}"
plan 0 fitting.plan "${layout[@]}" device.memory="$(awk "BEGIN { print int($need * 1024 * 0.93) }")KiB"
grep -q '^cut .* the fastest cut, which does not fit, is [0-9.]*% shorter$' "$scratch/fitting.plan.out" || fail "fitting: does not say so"
train 0 4 fitting "${layout[@]}" device.memory="$(awk "BEGIN { print int($need * 1024 * 0.93) }")KiB"
grep -q '^cut .* in which the fastest cut does not fit$' "$scratch/fitting.out" || fail "fitting: the run does not say so"
same_memory fitting 0
as_planned fitting
diff <(field fastest loss) <(field fitting loss) >"$scratch/diff" || fail "fitting: losses: $(<"$scratch/diff")"
# stages NAME: prints the layers of the stages of a plan, or of a run.
stages() { awk '/^stage/ {for (on = 1; getline && NF > 0;) printf "%s ", $3}' "$scratch/$1.plan.out"; }
trained() { sed -n 's/.*; stages of layers \(.*\)/\1 /p' "$scratch/$1.out" | tr -d '|' | tr -s ' '; }
for run in fastest fitting; do
    [[ $(stages $run) == "$(trained $run)" ]] || fail "$run: planned $(stages $run), trained $(trained $run)"
done
[[ $(stages fastest) != "$(stages fitting)" ]] || fail "fitting: the fastest cut"
# A cut that a plan prints is a value of parallel.cut, with which the run has the same stages and losses.
cut=$(sed -n 's/^cut *\([^:]*\).*/\1/p' "$scratch/fitting.plan.out")
plan 0 given.plan "${layout[@]}" parallel.cut="$cut"
train 0 4 given "${layout[@]}" parallel.cut="$cut"
for run in given.plan given; do
    own=$([[ $run == given ]] && trained given || stages given)
    [[ $own == "$(stages fitting)" ]] || fail "$run: stages $own with parallel.cut=$cut, not $(stages fitting)"
done
diff <(field fastest loss) <(field given loss) >"$scratch/diff" || fail "given: losses: $(<"$scratch/diff")"
# One that does not fit is not replaced; the advice is to let it be chosen.
fastest=$(sed -n 's/^cut *//p' "$scratch/fastest.plan.out")
small=device.memory="$(awk "BEGIN { print int($need * 1024 * 0.93) }")KiB"
plan 76 refused.plan "${layout[@]}" parallel.cut="$fastest" "$small"
says refused.plan '.*; it fits with parallel\.cut=auto, or .*'
train 76 4 refused "${layout[@]}" parallel.cut="$fastest" "$small"
# Stages of one layer, without blocks, and as many on each rank as the cut has.
for schedule in interleaved zbv auto; do
    train 0 2 "bare-$schedule" model.layers=4 parallel.pp=2 parallel.schedule=$schedule 'parallel.cut=E|tt|tt|L' train.steps=2
    grep -q '; stages of layers 0 | 1-2 | 3-4 | 5$' "$scratch/bare-$schedule.out" || fail "bare-$schedule: other stages"
    [[ $schedule == interleaved ]] || same_curve "bare-$schedule" bare-interleaved
done
# There may be more stages than blocks, since the embedding and the head are layers, too.
train 0 3 short model.layers=2 parallel.pp=3 'parallel.cut=E|t*2|L' train.steps=2 train.sample_every=2
train 0 4 shorter model.layers=2 parallel.pp=4 'parallel.cut=E|t|t|L' parallel.schedule=auto train.steps=2 train.sample_every=2
same_curve shorter short
train 78 1 resized model.layers=4 'parallel.cut=E|tt|tt|L'
says resized 'parallel\.cut has 4 stages, but parallel\.schedule 1f1b has 1 with parallel\.pp 1: give it as many, or set parallel\.cut=auto'
printf '0F0,0B0\n1F0,1B0\n' >"$scratch/two.csv"
plan 78 file.plan train.batch=1 parallel.pp=2 parallel.schedule="$scratch/two.csv" 'parallel.cut=E|t*3|t|L'
says file.plan 'parallel\.cut has 4 stages, but the schedule has 2: give it as many, or set parallel\.cut=auto'
plan 76 none.plan "${layout[@]}" device.memory=1MiB
train 76 4 none "${layout[@]}" device.memory=1MiB
says none 'rank . of the pipeline needs .* and a rank may use 1\.0 MiB \(device\.memory\), [0-9.]+ [KM]iB less: .*'

# The arena, which validation shares, is at most 5% over the live peak on every rank, and does not grow with the
# micro-batches of a pipeline with a slow head.
for batch in 16 128; do
    plan 0 peak$batch.plan model.layers=8 model.vocab=20000 parallel.pp=4 train.micro_batch=1 train.batch=$batch train.steps=1
    awk '/^stage/ { on = 1; next } on && !NF { exit } on { gsub(/[()]/, ""); print $8, $9 }' "$scratch/peak$batch.plan.out" >"$scratch/peak$batch"
    awk '!($1 <= 1.05 * $2) { bad = 1 } END { exit bad || NR != 4 }' "$scratch/peak$batch" || fail "activations and their peak: $(<"$scratch/peak$batch")"
done
diff "$scratch/peak16" "$scratch/peak128" >"$scratch/diff" || fail "activations of 16 and 128 micro-batches: $(<"$scratch/diff")"

# Data ranks that own one block more than others have rows of their own, and every rank is in one row. Stages that
# follow each other are a range.
plan 0 rows model.width=96 model.heads=2 model.layers=4 parallel.dp=8 parallel.zero=1 train.batch=16 train.micro_batch=1 parallel.schedule=bfs parallel.virtual=4
rows=$(awk '/^stage/ {for (on = 1; getline && NF > 0;) print $1, $2}' "$scratch/rows.out")
[[ $(wc -l <<<"$rows") -lt 8 && $(cut -d ' ' -f 1 <<<"$rows" | sort -u) == 0-3 &&
    $(cut -d ' ' -f 2 <<<"$rows" | tr , '\n' | awk -F - '{for (r = $1; r <= $NF; r++) print r}' | sort -n | tr '\n' ' ') == "0 1 2 3 4 5 6 7 " ]] ||
    fail "rows: $rows"
# Ranks share a row only if all of its numbers are theirs: here only the optimizer's differ.
plan 0 columns --rate 20 model.layers=2 model.width=96 model.context=64 model.dropout=0 parallel.dp=3 parallel.zero=1 train.batch=6
optimizer=$(awk '/^stage/ {for (; getline && NF > 0;) print $2, $7}' "$scratch/columns.out")
[[ $optimizer == $'0-1 0.6\n2 0.7' ]] || fail "optimizer of each row: $optimizer"

# A plan writes no files and reads no data, so it needs no data.path. Training needs it.
[[ ! -e $scratch/grid.plan ]] || fail "a plan made a run directory"
sed '/^data:/d' "$scratch/base.yaml" >"$scratch/nodata.yaml"
grep -q data "$scratch/nodata.yaml" && fail "nodata.yaml names data"
timeout 60 "$trireme" plan "$scratch/nodata.yaml" >"$scratch/nodata.out" || fail "no plan without data"
code=0
"$trireme" train "$scratch/nodata.yaml" log.dir="$scratch/nodata" >"$scratch/nodata.train" 2>&1 || code=$?
[[ $code == 78 && ! -e $scratch/nodata ]] || fail "training without data: $code"
grep -q 'data.path is missing: name the file' "$scratch/nodata.train" || fail "data.path: $(<"$scratch/nodata.train")"
grep -q '^fits     rank 0 needs most: ' "$scratch/nodata.out" || fail "no verdict: $(<"$scratch/nodata.out")"
grep -Eq '^limit .* \(free memory here, divided among 1 rank\)$' "$scratch/nodata.out" || fail "no limit"

# Equal stages: the bubble of 1f1b is (p - 1) / (m + p - 1) of the step; here 12 micro-batches on blocks of
# equal cost, with an embedding without cost and a small head.
plan 0 bubble parallel.pp=4 model.width=256 model.vocab=256
bubble=$(sed -n 's/^step .* of which \([0-9.]*\)% bubble.*/\1/p' "$scratch/bubble.out")
awk -v b="$bubble" 'BEGIN {exit !(b > 100 * 3 / 15 && b < 30)}' || fail "a bubble of '$bubble' %"

# A model that does not fit: 76 and one sentence with the smallest changes that fit, which are tried.
plan 76 small model.width=96 parallel.pp=2 train.micro_batch=4 device.memory=6MiB
says small 'stage 0 \(rank 0\) needs [0-9.]+ MiB \(parameters .*\), [0-9.]+ MiB more than the 6.0 MiB that a rank may use \(device.memory\); it fits with (train.recompute=[a-z]*, or )?train.micro_batch='
grep -q '^0  *0  *0-' "$scratch/small.out" || fail "no table of what does not fit"
change=$(grep -o 'train.micro_batch=[0-9]*' "$scratch/small.err" | tail -n 1)
plan 0 smaller model.width=96 parallel.pp=2 device.memory=6MiB "$change"
train 0 2 smaller model.width=96 parallel.pp=2 device.memory=6MiB "$change" train.steps=1
train 76 2 refused model.width=96 parallel.pp=2 train.micro_batch=4 device.memory=6MiB train.steps=1
plan 76 hopeless device.memory=10KiB
says hopeless '.* MiB more than the 10\.0 KiB that a rank may use \(device\.memory\); no train.recompute, no larger parallel.pp or parallel.tp and no smaller train.micro_batch makes it fit: .* --search RANKS` combine all keys on more ranks$'

# A plan refuses what training refuses.
plan 78 unknown trian.steps=5
says unknown "unknown key 'trian.steps'; did you mean train.steps\?"
plan 78 heads parallel.tp=3
plan 78 stages parallel.pp=5
plan 78 batch train.micro_batch=5
plan 78 ranks parallel.dp=12 parallel.pp=2 train.batch=7
plan 78 vocab model.vocab=255
says vocab 'model.vocab 255 is too small: without a tokenizer \(data\.format bytes\) there are 256 tokens'
plan 0 tokens model.vocab=255 data.format=u16
# GPUs of another machine: planned for the stated memory, with the cpu device's scratch.
plan 69 cuda device.name=cuda:99
says cuda '.*; to plan for GPUs of another machine, set device.memory to the memory of a rank there'
gpus=(device.name=cuda:99 device.memory=1GiB)
fast=(train.precision=bf16 train.deterministic=false)
plan 0 elsewhere "${gpus[@]}" "${fast[@]}"
# Groups that add in rank order have 4 MiB where NCCL carries messages, also on GPUs of another machine.
transfers() { "$trireme" plan "$scratch/base.yaml" "${gpus[@]}" parallel.dp=3 train.deterministic=true "$@" | awk '$2 ~ /^0(,|-|$)/ && NF > 10 { print $10; exit }'; }
[[ $(transfers) == 4.0 && $(transfers parallel.transport=mpi) == 0.0 ]] || fail "transfers elsewhere: $(transfers), $(transfers parallel.transport=mpi)"
grep -q '^device   this machine has no device cuda:99: ' "$scratch/elsewhere.out" || fail "a plan for GPUs elsewhere does not say so"
[[ $(sed -n 1p "$scratch/elsewhere.out") == 'model '*' M parameters, '* ]] || fail "the first line of a plan for GPUs elsewhere"
plan 0 here device.memory=1GiB "${fast[@]}"
grep -q '^time     not known, since this machine has no device cuda:99: ' "$scratch/elsewhere.out" || fail "seconds without a rate"
diff <(grep -Ev '^(device|time) ' "$scratch/elsewhere.out") <(grep -Ev "^(slow|time|update|in all) " "$scratch/here.out") ||
    fail "the plan for GPUs elsewhere is another"

# Seconds: exact for a stated rate; for this machine they are measured once and remembered.
plan 0 stated device.name=cuda:99 device.memory=1GiB --rate 250
awk '/^step/ { work = $2 * ($3 == "MFLOP" ? 1e-3 : $3 == "TFLOP" ? 1e3 : 1) } /^time/ { seconds = $3; if ($4 == "ms") seconds /= 1000; steps = 12 * 32 / $7 }
    END { exit !(seconds > 0.99 * work / 250 && seconds < 1.01 * work / 250 && steps > 0.99 * seconds && steps < 1.01 * seconds) }' \
    "$scratch/stated.out" || fail "seconds at 250 GFLOP/s: $(grep -E '^(step|time) ' "$scratch/stated.out")"
for bad in 0 -1 x inf 1e-310; do
    code=0
    "$trireme" plan "$scratch/base.yaml" --rate "$bad" >/dev/null 2>"$scratch/rate.err" || code=$?
    [[ $code == 64 ]] || fail "--rate $bad: exit code $code, not 64"
done
export XDG_CACHE_HOME=$scratch/cache
plan 0 first
[[ $(wc -l <"$scratch/cache/trireme/rates") == 1 ]] || fail "the rate is not remembered"
plan 0 second
diff <(grep ^time "$scratch/first.out") <(grep ^time "$scratch/second.out") || fail "a remembered rate is another"
# For a model that is too large for this machine, a narrower layer is timed.
plan 0 wide model.width=262144 model.heads=4096 device.memory=900000GiB
grep -q '^time     about .* (measured here' "$scratch/wide.out" || fail "a layer that is narrowed: $(grep ^time "$scratch/wide.out")"
# A model that cannot be narrowed, and of which not even one layer can be timed here, is planned without
# seconds.
plan 0 immense model.width=262143 model.heads=511 device.memory=900000GiB
grep -q '^time     not measured, ' "$scratch/immense.out" || fail "a layer that does not fit here: $(grep ^time "$scratch/immense.out")"
sed -E 's/ [^ ]*$/ 1e9/' -i "$scratch/cache/trireme/rates"
plan 0 third
grep -q ': 1 GFLOP/s a rank (measured here' "$scratch/third.out" || fail "the remembered rate is not read: $(grep ^time "$scratch/third.out")"
# One that a clock has stored which was set back since is measured again.
sed -E 's/ [0-9]+ / 9999999999 /' -i "$scratch/cache/trireme/rates"
plan 0 ahead
! grep -q ': 1 GFLOP/s a rank (measured here' "$scratch/ahead.out" || fail "a rate of a later time is used: $(grep ^time "$scratch/ahead.out")"
sed -E 's/ [^ ]*$/ -1/' -i "$scratch/cache/trireme/rates"
plan 0 fourth
grep -q '^time     about ' "$scratch/fourth.out" || fail "no time with a damaged cache"
XDG_CACHE_HOME=/proc/nowhere plan 0 unwritable
grep -q '^time     about ' "$scratch/unwritable.out" || fail "no time without a cache"
# On GPUs the defaults are BF16 and not deterministic; one line says what other values cost.
sed -i 's/ precision: fp32,//; s/ deterministic: true,//' "$scratch/base.yaml"
plan 0 elsewhere "${gpus[@]}"
diff <(grep -Ev "^(device|time) " "$scratch/elsewhere.out") <(grep -Ev "^(slow|time|update|in all) " "$scratch/here.out") ||
    fail "the defaults on GPUs are others"
plan 0 fp32 "${gpus[@]}" train.precision=fp32
grep -q '^slow     train.precision is fp32: ' "$scratch/fp32.out" || fail "no line says what fp32 costs on a GPU"
plan 0 deterministic "${gpus[@]}" train.deterministic=true model.context=1024 train.micro_batch=4 parallel.tp=2
grep -q '^slow     train.deterministic is true: .* 16.0 MiB ' "$scratch/deterministic.out" ||
    fail "no line says what train.deterministic costs on a GPU"
# On a CPU with fast BF16 instructions BF16 costs nothing; oneDNN does without them when it is told so.
widened='slow     train.precision is bf16: this processor has no fast BF16 instructions and multiplies in fp32, .*'
doctor=$("$trireme" doctor) || true
[[ $doctor != *'BF16 products in FP32'* ]] || sed -i "/^$widened/d" "$scratch/here.out"
grep -q '^slow ' "$scratch/here.out" "$scratch/elsewhere.out" && fail "a line names a cost that does not exist"
DNNL_MAX_CPU_ISA=AVX2 plan 0 widened device.memory=1GiB train.precision=bf16
grep -qx "$widened" "$scratch/widened.out" || fail "no line says what bf16 costs without its instructions"
for precision in bf16 fp16; do
    plan 0 ref device.memory=1GiB device.name=ref train.precision=$precision
    [[ $(grep '^slow ' "$scratch/ref.out") == "slow     train.precision is $precision: device ref stores it and computes in fp64, "* ]] ||
        fail "ref: $(grep '^slow ' "$scratch/ref.out")"
done
plan 0 host device.memory=1GiB
grep -q '^model .*, fp32' "$scratch/host.out" || fail "the defaults of the cpu device have changed"
code=0
"$trireme" plan >/dev/null 2>"$scratch/usage.err" || code=$?
[[ $code == 64 ]] || fail "plan without a config: exit code $code, not 64"
says usage 'no config was given, and no key, such as model.preset=llama-3-8b; usage: trireme plan \[CONFIG\] \[--search RANKS\] \[--rate GFLOP/s\] \[key=value ...\]'

# Arguments suffice; they give the plan of a config with the same keys.
printf 'model.preset: llama-3-8b\ntrain.batch: 64\ndevice: {name: cuda, memory: 200GiB}\n' >"$scratch/8b.yaml"
"$trireme" plan "$scratch/8b.yaml" --rate 4e5 parallel.tp=2 >"$scratch/8b.out" || fail "8b.yaml: no plan"
"$trireme" plan model.preset=llama-3-8b train.batch=64 device.name=cuda device.memory=200GiB --rate 4e5 parallel.tp=2 |
    diff "$scratch/8b.out" - || fail "another plan without a config"
code=0
"$trireme" plan train.batch=3 >/dev/null 2>"$scratch/usage.err" || code=$?
[[ $code == 78 ]] || fail "a bad plan without a config: exit code $code, not 78"
says usage 'train.batch 3 is not a multiple of '

# The sums of gradients: their time is that of the link, whatever the rate of a rank is; one data rank has none.
for rate in 1 20; do
    plan 0 sums-$rate --rate $rate parallel.dp=2 parallel.pp=2
    grep -Eq '^reduce   [0-9.]+ MiB of gradients in [0-9]+ buckets take [0-9.]+ [mu]?s at 1 GB/s, of which .* stay exposed$' "$scratch/sums-$rate.out" ||
        fail "sums-$rate: $(grep -E '^(time|reduce)' "$scratch/sums-$rate.out")"
done
diff <(sed -n 's/^reduce .*take \(.*\) at.*/\1/p' "$scratch/sums-1.out") <(sed -n 's/^reduce .*take \(.*\) at.*/\1/p' "$scratch/sums-20.out") ||
    fail "sums: another time at another rate"
plan 0 alone --rate 20
grep -Eq '^(reduce|tensor)' "$scratch/alone.out" && fail "alone: it sums nothing"

# A link that is not set is assumed, which plan and search say; one rank has none.
assumed='1 GB/s between ranks is assumed: set device.link, and for links between hosts device.network (docs/layout.md)'
# says_links NAME TEXT: TEXT is what follows "links" in a plan; '': there is no such line.
says_links() { [[ $(sed -n 's/^links    //p' "$scratch/$1.out") == "$2" ]] || fail "$1: $(grep '^links' "$scratch/$1.out")"; }
says_links alone ''
says_links sums-1 "$assumed"
plan 0 searched --search 2 --rate 20
says_links searched "$assumed"
plan 0 gpus --search 2 --rate 20 device.name=cuda device.memory=1GiB
says_links gpus "10${assumed#1}"
plan 0 set --search 2 --rate 20 device.link=2
says_links set ''
plan 0 between --rate 20 parallel.dp=2 device.host_ranks=1 device.network=2
says_links between ''
plan 0 some --rate 20 parallel.dp=2 parallel.pp=2 device.host_ranks=2 device.network=2
says_links some "$assumed"

# Hosts of two ranks: data ranks in two factors sum inside hosts and between them, and gather inside.
plan 0 near --rate 20 parallel.dp=2x2 parallel.zero=1 train.batch=16 device.host_ranks=2 device.link=10 device.network=0.5
grep -Eq '^reduce .* take .* at 10 and 0.5 GB/s, ' "$scratch/near.out" && grep -Eq '^gather .* take .* at 10 GB/s, ' "$scratch/near.out" ||
    fail "near: $(grep -E '^(reduce|gather)' "$scratch/near.out")"

# Activations that no order lets go.
plan 0 stays device.name=guarded device.offload=activations
grep -q '^offload  no activations: ' "$scratch/stays.out" || fail "stays: $(grep '^offload' "$scratch/stays.out")"
plan 0 goes device.name=guarded device.offload=activations parallel.schedule=gpipe
grep -q '^offload  at most [0-9.]* MiB a rank in host memory' "$scratch/goes.out" && ! grep -q 'no activations' "$scratch/goes.out" ||
    fail "goes: $(grep '^offload' "$scratch/goes.out")"
# What all ranks of a host keep in its memory.
plan 0 kept parallel.dp=2 device.name=guarded device.offload=optimizer device.host_memory=1GiB
rank=$(sed -n 's/^offload  at most \([0-9.]*\) MiB a rank in host memory, .*/\1/p' "$scratch/kept.out")
host=$(sed -n 's/^offload .* host memory, \([0-9.]*\) MiB of a host$/\1/p' "$scratch/kept.out")
awk -v rank="$rank" -v host="$host" 'BEGIN { exit !(rank > 0 && host > 1.99 * rank && host < 2.01 * rank) }' || fail "kept: $rank, $host MiB"
plan 76 full parallel.dp=2 device.name=guarded device.offload=optimizer device.host_memory=1MiB
says full ".*device.offload optimizer keeps $host MiB in the memory of a host, [0-9.]* MiB more than the 1.0 MiB that its ranks may take there \(device.host_memory\); set optim.moments to int8, set parallel.zero to 1, or set device.host_ranks, if the ranks are on several hosts"
# What to do is what this config can do.
while read -r name keys; do
    # shellcheck disable=SC2086
    plan 76 "$name" device.name=guarded device.host_memory=64KiB $keys
done <<'K'
small-state device.offload=optimizer optim.moments=int8 parallel.dp=2 parallel.zero=1 device.host_ranks=2
no-moments device.offload=optimizer optim.name=adafactor
copies device.offload=activations parallel.dp=2 parallel.pp=2 parallel.schedule=gpipe
all-moved device.offload=optimizer,activations:1 parallel.pp=2 parallel.schedule=gpipe train.recompute=full device.host_ranks=1
K
says small-state '.*\(device.host_memory\); put fewer ranks on a host \(device.host_ranks\)$'
says no-moments '.*\(device.host_memory\); divide the model among ranks on more hosts \(parallel.pp, device.host_ranks\)$'
says copies '.*\(device.host_memory\); offload fewer stages, set train.recompute to full, or set device.host_ranks, if .*'
says all-moved '.*\(device.host_memory\); offload no activations, set optim.moments to int8, or divide the model among .*'
# Both the host's memory and that of a rank: both are named, and what helps the rank does, whatever the host's is.
plan 76 both device.name=guarded device.offload=optimizer device.host_memory=1MiB device.memory=850KiB
says both '.*device.offload optimizer keeps .* \(device.host_memory\); set optim.moments to int8, .*; and stage 0 \(rank 0\) needs .* \(device.memory\); it fits with train.recompute=selective$'
[[ $(sed -n '/^recompute /,/^$/p' "$scratch/both.out" | awk '/too large/ {print $1}') == none ]] || fail "both: $(grep -A 3 '^recompute ' "$scratch/both.out")"
plan 78 beyond device.name=guarded device.offload=activations:1-2 parallel.pp=2
says beyond '.*device.offload names stage 2, but parallel.schedule 1f1b has 2 stages, numbered from 0'

# The sums over two tensor ranks, of R = 16 rows, C = 64, 4 blocks and 12 micro-batches: 4 of a block, the embedding's
# and the head's of 4 R C bytes, and the head's maximum and sums of 4 R and 8 R bytes. Each byte crosses the link once.
sums=(parallel.tp=2 model.width=64 model.layers=4 model.context=16 train.batch=12 train.micro_batch=1)
# tensor NAME: prints MiB, sums, seconds and exposed seconds of a plan.
tensor() {
    sed -nE 's/^tensor   ([0-9.]+) MiB of activations and gradients in ([0-9]+) sums take ([0-9.]+ m?s) at 1 GB\/s, of which ([0-9.]+ m?s) stay exposed$/\1 \2 \3 \4/p' \
        "$scratch/$1.out" | awk '{print $1, $2, $3 * ($4 == "ms" ? 1e-3 : 1), $5 * ($6 == "ms" ? 1e-3 : 1)}'
}
plan 0 tensor --rate 1000 "${sums[@]}"
plan 0 tensor-slow --rate 0.1 "${sums[@]}"
plan 0 tensor-apart --rate 0.1 "${sums[@]}" parallel.schedule=zb-h1
awk 'BEGIN {bytes = 12 * (18 * 4 * 16 * 64 + 12 * 16)}
    $2 != 12 * 20 || $1 - bytes / 2^20 > 0.06 || bytes / 2^20 - $1 > 0.06 || $3 < 0.99e-9 * bytes || $3 > 1.01e-9 * bytes {bad = 1}
    # Of W, 12 R C^2 FLOP a block and micro-batch, a fast rank hides all its time, and a slow one the sums of I, 8 of
    # 18; I and W apart hide nothing.
    NR == 1 && ($3 - $4 - 48 * 12 * 16 * 64^2 / 1e12)^2 > 1e-12 {bad = 1}
    NR == 2 && !($4 > 0.55 * $3 && $4 < 0.57 * $3) {bad = 1}
    NR == 3 && $4 != $3 {bad = 1}
    END {exit bad || NR != 3}' <(tensor tensor; tensor tensor-slow; tensor tensor-apart) ||
    fail "sums over tensor ranks: $(tensor tensor; tensor tensor-slow; tensor tensor-apart)"

# A step with all of it: the computed time, what stays exposed, and the optimizer's step on the device.
in_all() { sed -nE 's/^(time|in all) +about ([0-9.]+ [mu]?s) a step.*/\2/p; s/^( +at the end of a|tensor) .*(which|GB\/s:) ([0-9.]+ [mu]?s) stay exposed$/\3/p; s/^update .* take ([0-9.]+ [mu]?s) at .* GB\/s of memory$/\1/p' "$scratch/$1.out" |
    awk '{print $1 * ($2 == "ms" ? 1e-3 : 1)}' | tr '\n' ' '; }
plan 0 on-host --rate 1000 device.name=cuda device.memory=1GiB device.offload=optimizer
for all in alone tensor on-host; do
    awk '{for (k = 1; k < NF; k++) sum += $k; exit !(NF == n && $(NF - 1) > 0 && (sum - $NF)^2 < 1e-4 * $NF^2)}' \
        n=$([[ $all == alone ]] && echo 3 || echo 4) <(in_all $all) || fail "in all: $(in_all $all)"
done

# The messages of rank 1 of 4, which is between two others: 12 activations and 12 gradients of 4 R C = 4096 bytes.
# With two ranks a host those to rank 0 stay on the host, and those to rank 2 go to another one.
messages=(device.memory=1GiB parallel.pp=4 parallel.schedule=gpipe model.width=64 model.context=16 train.batch=12 --rate 100)
# links NAME: prints what follows "messages" in a plan.
links() { sed -n 's/^messages //p' "$scratch/$1.out"; }
plan 0 near "${messages[@]}"
[[ $(links near) == "0.1 MiB of activations and gradients in 24 messages take 0.0983 ms at 1 GB/s, and make the step "*" ms longer" ]] ||
    fail "messages: $(links near)"
plan 0 hosts "${messages[@]}" device.link=10 device.link_latency=1 device.network=0.5 device.network_latency=100 device.host_ranks=2
[[ $(links hosts) == "0.1 MiB of activations and gradients in 24 messages take 1.32 ms at 0.5 GB/s, and make the step "*" ms longer" ]] ||
    fail "messages between hosts: $(links hosts)"
diff <(grep -Ev '^(links|messages|tied|in all)' "$scratch/near.out") <(grep -Ev '^(messages|tied|in all)' "$scratch/hosts.out") || fail "links change more than messages and the sum of a tied table"
plan 0 linked --rate 100 "${sums[@]}" device.link=4 device.link_latency=3
awk -v bytes=$((12 * (18 * 4 * 16 * 64 + 12 * 16))) '{d = $5 * ($6 == "ms" ? 1e-3 : 1) - bytes / 4e9 - 240 * 6e-6} END {exit d > 1e-5 || d < -1e-5}' \
    <(sed -n 's/.* sums take \([0-9.]* m*s\) at 4 GB\/s.*/x x x x \1/p' "$scratch/linked.out") || fail "sums with a latency: $(grep ^tensor "$scratch/linked.out")"
plan 78 links device.link=-1
# --- the search over layouts --------------------------------------------------------------------------

# best NAME: prints the keys of a search's best layout; steps NAME: the time of each row.
best() { sed -n 's/^best *//p' "$scratch/$1.out"; }
rows() { awk '$1 == "pp" { table = 1; next } table && NF < 13 { exit } table { print $1 * $2 * $3, $2, $12 * ($13 == "s" ? 1000 : 1) }' "$scratch/$1.out"; }
# same_step SEARCH PLAN: fails unless the plan's step is that of the first row.
same_step() {
    awk 'NR == FNR { step = $3; nextfile } /^(time|in all) / { last = ($1 == "in" ? $4 : $3) * (/ about [0-9.]+ s / ? 1000 : 1) } END { exit !(step > 0 && last == step) }' \
        <(rows "$1") "$scratch/$2.out" || fail "$1: $(rows "$1" | head -1), the plan: $(grep -E '^(time|in all)' "$scratch/$2.out")"
}
found=(device.link=1 --rate 20)
plan 0 search --search 4 "${found[@]}"
rows search | awk '$1 != 4 || $3 < last { bad = 1 } { last = $3 } END { exit bad || NR < 4 }' || fail "search: $(<"$scratch/search.out")"
read -ra keys < <(best search)
[[ ${#keys[@]} == 9 ]] || fail "search: keys ${keys[*]}"
# The row is what `plan` says of its keys, and a run takes them.
plan 0 best "${found[@]}" "${keys[@]}"
same_step search best
train 0 4 best-run "${keys[@]}" train.steps=1
# A cut is one of a layout: the search cuts the layers of each itself, and says so.
plan 0 recut --search 4 "${found[@]}" 'parallel.cut=Ett|ttL'
[[ $(best recut) == "$(best search) parallel.cut=auto" ]] || fail "recut: $(best recut), not $(best search)"
plan 78 uncut --search 4 "${found[@]}" parallel.cut=3-2
plan 78 uncut-plan "${found[@]}" parallel.cut=3-2
diff "$scratch/uncut.err" "$scratch/uncut-plan.err" >/dev/null || fail "uncut: $(<"$scratch/uncut.err")"
# Keys that are given stay; without a layout that fits, without any, and without a speed it says so.
plan 0 kept --search 4 "${found[@]}" parallel.tp=2 train.recompute=full
rows kept | awk '$2 != 2 { bad = 1 } END { exit bad || NR != 2 }' || fail "kept: $(<"$scratch/kept.out")"
[[ $(best kept) != *tp=* && $(best kept) != *recompute* && $(best kept) == *parallel.pp=* ]] || fail "kept: $(best kept)"
plan 76 small --search 4 "${found[@]}" device.memory=16KiB
least=$(sed -nE 's/^trireme: none of them fits the .* that a rank may use \(device.memory\): the one that needs least takes ([0-9.]+) MiB a rank \(([^)]*)\); use .*/\1 \2/p' "$scratch/small.err")
read -r mib keys <<<"$least"
read -ra keys <<<"$keys"
[[ ${#keys[@]} == 9 ]] || fail "small: $(<"$scratch/small.err")"
plan 76 least "${found[@]}" device.memory=16KiB "${keys[@]}"
grep -q " needs $mib MiB (" "$scratch/least.err" || fail "least: $least, $(<"$scratch/least.err")"
# Where a layout does not fit, parts of it are in a host's memory.
small=("${found[@]}" device.name=guarded device.memory=400KiB)
plan 0 offloaded --search 4 "${small[@]}"
read -ra keys < <(best offloaded)
[[ ${keys[-1]} == device.offload=optimizer ]] && grep -q ' offload$' "$scratch/offloaded.out" || fail "offloaded: $(<"$scratch/offloaded.out")"
plan 0 offloaded-best "${small[@]}" "${keys[@]}"
same_step offloaded offloaded-best
plan 76 full-host --search 4 "${small[@]}" device.host_memory=1KiB
grep -q '^trireme: none of them fits: device.offload optimizer keeps at least .* (device.host_memory); use more ranks, or put fewer' \
    "$scratch/full-host.err" || fail "full-host: $(<"$scratch/full-host.err")"
# Data ranks on several hosts are in runs where that pays.
hosts=(device.link=1 device.network=0.01 device.host_ranks=2 parallel.pp=1 parallel.tp=1 parallel.zero=1 --rate 20)
plan 0 runs --search 4 "${hosts[@]}"
[[ $(best runs) == parallel.dp=2x2\ * ]] || fail "runs: $(<"$scratch/runs.out")"
read -ra keys < <(best runs)
plan 0 runs-best "${hosts[@]}" "${keys[@]}"
same_step runs runs-best
plan 78 none --search 35 "${found[@]}"
grep -q '^trireme: no layout of 35 ranks is possible: ' "$scratch/none.err" || fail "none: $(<"$scratch/none.err")"
echo junk >"$scratch/junk.csv"
plan 78 junk --search 2 "${found[@]}" parallel.schedule="$scratch/junk.csv"
grep -q '^trireme: no layout of 2 ranks is possible: .*junk.csv' "$scratch/junk.err" || fail "junk: $(<"$scratch/junk.err")"
plan 76 full-hosts --search 4 --rate 20 device.name=guarded device.memory=1GiB device.offload=optimizer device.host_memory=1KiB
grep -q '^trireme: none of them fits: device.offload optimizer keeps at least .* (device.host_memory); offload less' "$scratch/full-hosts.err" ||
    fail "full-hosts: $(<"$scratch/full-hosts.err")"
plan 69 speed --search 4 device.name=cuda device.memory=1GiB
grep -q 'give it with --rate GFLOP/s$' "$scratch/speed.err" || fail "speed: $(<"$scratch/speed.err")"
for wrong in 0 x 1.5 -3; do plan 64 wrong --search "$wrong"; done
plan 64 wrong --search

finish
