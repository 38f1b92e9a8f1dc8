# A config of drawn sizes and options that does not fit a drawn limit: every change that the sentence of 76 names makes it fit,
# with as many ranks as it says; with the keys that --search prints best, plan has the memory and the step of that row, and a run
# allocates what was planned.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this

# --- what is drawn -------------------------------------------------------------------------------------

pick width 32 64 96
pick layers 4 6 8
pick batch 8 12 24 32
cat >base.yaml <<Y
model: {layers: $layers, heads: 4, width: $width, context: 32}
data: {path: $text}
train: {steps: 2, batch: $batch, threads: 1, deterministic: true, validate_batches: 1}
device: {link: 20, link_latency: 5}
checkpoint: {every: 0}
Y
pick precision fp32 bf16 fp16
pick family gpt2 "gpt2 model.tie=false" "llama model.kv_heads=2" "qwen3 model.kv_heads=1"
pick optimizer adamw lion lamb muon adafactor
pick moments fp32 bf16 int8
[[ $optimizer != adafactor ]] || moments=fp32
pick gradients fp32 bf16
pick mesh "1 1 1" "1 1 2" "2 1 1" "1 2 1" "2 2 1" "2 1 2" "1 2 2" "1 1 2x2" "4 1 1"
read -r pp tp dp <<<"$mesh"
pick order "${orders[@]}" "bfs $((layers / pp))"
((pp * ${order#* } <= layers)) || order="1f1b 1"
pick zero 0 0 1 3
pick offload none none none optimizer activations
pick recompute none none selective
pick background true false
pick part "" "" "train.freeze=*.2.*" "model.lora.rank=4" "train.sample_every=1" "train.batch_warmup=$((batch / 2)) 1"
pick micro 1 1 2
device=cpu
[[ $offload == none ]] || device=guarded
words=(model.family="${family% *}" optim.name="$optimizer" train.{precision="$precision",micro_batch="$micro",recompute="$recompute"}
    optim.{moments="$moments",gradients="$gradients"} device.{name="$device",offload="$offload"} checkpoint.background="$background")
[[ $family != *" "* ]] || words+=("${family#* }")
[[ -z $part ]] || words+=("$part")
layout=(parallel.{pp="$pp",tp="$tp",dp="$dp",zero="$zero",schedule="${order% *}",virtual="${order#* }"})
[[ $background != true ]] || words+=(checkpoint.every=1)
what="$layers layers, width $width, batch $batch, ${words[*]} ${layout[*]}"

# --- what must hold ------------------------------------------------------------------------------------

# plan NAME ARGUMENTS...: plans into NAME.out and .err, and sets $code.
plan() {
    local name=$1
    shift
    code=0
    timeout 200 "$trireme" plan base.yaml --rate 100 "$@" >"$name.out" 2>"$name.err" || code=$?
}
# need NAME: prints the MiB of the rank that needs most.
need() { sed -n 's/^fits .* needs most: \([0-9.]*\) of .*/\1/p' "$1.out"; }

plan free "${words[@]}" "${layout[@]}" device.memory=100GiB
if [[ $code == 78 ]]; then
    what+=": refused: $(<free.err)"
elif [[ $code != 0 ]]; then
    fail "plan ended with $code: $(<free.err)"
else
    needed=$(need free)
    draw share 60
    limit=$(awk -v n="$needed" -v s="$share" 'BEGIN { print int(n * (s + 38) / 100 * 1024) }')KiB
    what+=" needs $needed, limit $limit"
    plan tight "${words[@]}" "${layout[@]}" device.memory="$limit"
    if [[ $code == 76 ]]; then
        mapfile -t changes < <(sed -n 's/.*; it fits with //p' tight.err | sed 's/, or /\n/g')
        for change in "${changes[@]}"; do
            ranks=$((pp * tp * ${dp/x/*}))
            [[ $change =~ " on "([0-9]+)" rank" ]] && ranks=${BASH_REMATCH[1]}
            read -r -a keys <<<"${change% on *}"
            for key in "${keys[@]}"; do [[ $key == *=* ]] || fail "not a key in: $change"; done
            plan changed "${words[@]}" "${layout[@]}" device.memory="$limit" "${keys[@]}"
            [[ $code == 0 ]] || fail "with '$change' plan ends with $code: $(<changed.err)"
            product=$(sed -n 's/^layout  *pp \([0-9]*\) x tp \([0-9]*\) .*x dp \([0-9x]*\).*/\1*\2*\3/p' changed.out)
            [[ $((${product//x/*})) == "$ranks" ]] || fail "with '$change' there are $product ranks"
        done
        what+=", ${#changes[@]} changes"
    elif [[ $code != 0 ]]; then
        fail "plan with $limit ended with $code: $(<tight.err)"
    fi

    pick n 2 4 8
    plan found "${words[@]}" --search "$n" device.memory="$limit"
    if [[ $code == 0 ]]; then
        read -r -a best < <(sed -n 's/^best  *//p' found.out)
        read -r -a row < <(sed -n '/^ *pp /{n;s/as set/set/;p}' found.out)
        plan best "${words[@]}" device.memory="$limit" "${best[@]}"
        [[ $code == 0 ]] || fail "the best of --search: plan ends with $code: $(<best.err)"
        [[ $(need best) == "${row[9]}" ]] || fail "the best of --search: ${row[*]}, and plan needs $(need best)"
        step=$(sed -n 's/^in all  *about \([0-9.]* [a-z]*\) a step.*/\1/p' best.out)
        [[ $step == "${row[11]} ${row[12]}" ]] || fail "the best of --search: ${row[*]}, and a step of plan takes $step"
        train 0 "$n" run "${words[@]}" device.memory="$limit" "${best[@]}" optim.warmup=0
        as_planned run
        what+=", best of $n ranks: ${best[*]}"
    elif [[ $code != 76 ]]; then
        fail "--search ended with $code: $(<found.err)"
    fi
fi
