# Options of the optimizer, precision, memory and data ranks that are drawn, most of which do not change bits: a run with
# them has the bits of one that divides, recomputes, offloads and samples nothing and has no pipeline, every rank allocates what
# was planned, a checkpoint of it continues without them, and a step that FP16 skips changes no tensor. A combination that
# docs/config.md excludes is refused.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
cat >base.yaml <<Y
model: {layers: 4, heads: 4, context: 32, dropout: 0.1}
data: {path: $text}
train: {steps: 3, batch: 12, micro_batch: 1, seed: $seed, threads: 1, deterministic: true, validate_every: 3, validate_batches: 1}
optim: {warmup: 1, clip: 0.5}
checkpoint: {every: 1, keep: 3}
log: {every: 3}
Y

# --- what is drawn -------------------------------------------------------------------------------------

pick precision fp32 fp32 bf16 bf16 bf16 fp16 fp16 fp64
pick outcome trains trains trains trains trains trains trains refused

# draw_options: draws all options but the precision.
draw_options() {
    pick optimizer adamw adam sgd "sgd optim.momentum=0" "sgd optim.nesterov=true" lion lamb muon adafactor
    pick moments fp32 fp32 bf16 int8
    pick gradients fp32 fp32 bf16
    pick master fp32 fp32 none
    pick reduce fp32 fp32 bf16
    pick recompute none selective full full:2-3,selective:1
    pick sequence true false
    pick zero 0 1 2 3
    pick offload none none none none optimizer activations optimizer,activations
    pick mesh "1 1 2" "1 1 3" "1 1 4" "1 1 2x2" "1 1 3x1" "1 2 1" "1 2 2" "2 1 1" "2 1 2" "2 2 1" "4 1 1"
    read -r pp tp dp <<<"$mesh"
    bfs="bfs $((4 / pp))" # with as many stages as blocks
    pick order "${orders[@]}" "$bfs" "$bfs" "$bfs" "$bfs" "$bfs" "interleaved $((4 / pp))"
    ((pp < 4 || ${order#* } < 2)) || order=$bfs
    pick family "gpt2" "gpt2 model.tie=false" "llama model.kv_heads=1" "qwen3 model.kv_heads=2"
    pick part "" "" "" "train.freeze=*.2.*" "model.lora.rank=4"
    pick more "" "" optim.clip_value=0.001 optim.l1=0.01 optim.l2=0.01 optim.weight_decay=0 warm-up
    pick noise true false
    pick background true false
    pick documents "" "" "data.documents=packed data.document_end=10"
    pick also "" "" "train.sample_every=1 train.sample_tokens=4" "guard.action=skip guard.sigma=30" "--trace 2" "--debug-nan"
    pick width 32 48

    device=cpu
    [[ $precision != fp64 ]] || device=ref
    [[ $offload == none ]] || device=guarded
}

# excluded: succeeds when docs/config.md says that the options do not work together.
excluded() {
    [[ $precision != fp64 || $device == ref ]] || return 0
    [[ $precision != fp64 || ($reduce == fp32 && $moments == fp32 && $gradients == fp32) ]] || return 0
    [[ $master == fp32 || $precision == bf16 ]] || return 0
    case $optimizer in
        "sgd optim.momentum=0" | adafactor) [[ $moments == fp32 ]] || return 0 ;;
    esac
    return 1
}

# Draws until the combination has the outcome: without this, a third of the trials only checks a refusal, and
# nearly all that have FP64, which few options go with.
drawn=""
until [[ $drawn == "$outcome" ]]; do
    draw_options
    if excluded; then drawn=refused; else drawn=trains; fi
done
read -r -a words <<<"optim.name=$optimizer model.family=$family model.width=$width $part $documents ${more/warm-up/train.batch=24}"
[[ $more != warm-up ]] || words+=(train.batch_warmup="12 1")
words+=(train.precision="$precision" optim.{moments="$moments",gradients="$gradients",master="$master"} device.name="$device")
words+=(parallel.{reduce="$reduce",sequence="$sequence",tp="$tp",dp="$dp"})
placed=(parallel.{zero="$zero",pp="$pp",schedule="${order% *}",virtual="${order#* }"})
placed+=(train.recompute="$recompute" device.offload="$offload" log.noise_scale="$noise" checkpoint.background="$background")
read -r -a also <<<"$also" # what changes no bit either
placed+=("${also[@]}")
what="${words[*]} ${placed[*]}"

# --- what must hold ------------------------------------------------------------------------------------

ranks=$((${dp/x/*} * tp))
if [[ $outcome == refused ]]; then
    what+=" (refused)"
    train 78 $((ranks * pp)) no "${words[@]}" "${placed[@]}"
    says no '.+'
    [[ ! -e no && ! -s no.out ]] || fail "no: it began"
else
    train 0 "$ranks" plain "${words[@]}"
    as_planned plain
    train 0 $((ranks * pp)) run "${words[@]}" "${placed[@]}"
    as_planned run
    same_curve run plain
    same_tensors run plain 3
    if [[ $precision != fp64 ]]; then
        rm -r "$(step_dir run 3)"
        train 0 "$ranks" run "${words[@]}" --resume
        same_curve run plain
        same_tensors run plain 3
    fi
    if [[ $precision == fp16 ]]; then # gradients that overflow
        "$tools/ckpt_forge" "$(step_dir run 3)" loss_scale 1048576 || fail "run: the scale was not set"
        train 0 $((ranks * pp)) run "${words[@]}" "${placed[@]}" train.steps=4 --resume
        tail -n 1 run/metrics.jsonl | grep -q '"step":4,.*"skipped":true' || fail "run: step 4 was not skipped"
        "$tools/ckpt_compare" exact "$(step_dir run 4)" "$(step_dir run 3)" || fail "run: a skipped step changed tensors"
    fi
fi
