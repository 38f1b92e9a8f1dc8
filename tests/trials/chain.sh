# A run that is interrupted again and again (killed, stopped by a signal or its time limit, or given fewer steps) and continues
# each time with other stages, schedule, recomputation, offload and parallel.zero: it has the bits of one that was never stopped.
# Then other commands read it: eval agrees with the run's last validation on drawn layouts, with its export and with an import of
# that, and sample between layouts; and a run with other tensor and data ranks, precision and optimizer continues it.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
head -c 9000 "$text" >a.txt
tail -c 1600 "$text" >b.txt

# --- what is drawn -------------------------------------------------------------------------------------

pick precision fp32 fp32 bf16 bf16 fp16
pick mesh "1 1" "1 1" "1 2" "1 3" "1 4" "1 2x2" "2 1" "2 2" "4 1"
read -r tp dp <<<"$mesh"
flat=$((tp * ${dp/x/*})) # ranks of a stage
pick family gpt2 "gpt2 model.tie=false" "llama model.kv_heads=1" "qwen2 model.kv_heads=2" "qwen3 model.tie=true" \
    "mistral model.window=7" "llama model.rope_scaling=yarn_4_16" "gpt2 model.activation=relu2 model.window=20"
pick optimizer adamw adam "sgd optim.nesterov=true" "sgd optim.momentum=0" lion lamb muon adafactor
pick moments fp32 bf16 int8
[[ $optimizer != *momentum=0 && $optimizer != adafactor ]] || moments=fp32
pick master fp32 none
[[ $precision == bf16 ]] || master=fp32
pick gradients fp32 bf16
pick reduce fp32 bf16
pick sequence true false
pick data "path=$text data.validation=0.05" "path=a.txt|b.txt data.validation=0.05" "path=0.7|a.txt|0.3|b.txt data.validation=0.05" \
    "path=a.txt data.validation=b.txt"
pick documents "" "data.documents=packed data.document_end=10"
pick curve cosine linear constant inverse-root "steps optim.milestones=3|7" wsd cycles "cosine optim.restarts=4"
pick part "" "" "train.freeze=*.[26].*" "model.lora.rank=3" "train.lr_scale=0.1|*.1.*"
pick warm "" "" "12|2" "4|3|12|7"
[[ $dp != 3 || $warm != 4* ]] || warm="12|2"
pick guard "" "" warn skip rollback
pick init normal truncated xavier he orthogonal
pick background true false
pick noise true false
pick most 4 4 4 8 # ranks of a job
steps=10 batch=12
[[ -z $guard ]] || steps=36 # no step is out of line before the 21st
[[ -z $warm ]] || batch=24
cat >base.yaml <<Y
model: {layers: 8, heads: 4, width: 32, context: 32, dropout: 0.1, init: $init}
train: {steps: $steps, batch: $batch, micro_batch: 1, seed: $seed, threads: 1, deterministic: true, validate_every: 4, validate_batches: 0}
optim: {warmup: 1, clip: 0.5, horizon: $steps}
checkpoint: {every: 3, keep: 3}
log: {every: 100}
Y
# A | is a space within a value.
read -r -a words <<<"model.family=${family//_4_/|4|} optim.name=$optimizer data.$data $documents optim.schedule=$curve $part
    train.batch_warmup=$warm ${guard:+guard.action=$guard guard.sigma=1}"
words+=(train.precision="$precision" optim.{moments="$moments",gradients="$gradients",master="$master"} log.noise_scale="$noise")
words+=(parallel.{reduce="$reduce",sequence="$sequence",tp="$tp",dp="$dp"})
words=("${words[@]//|/ }")

# draw_cut: draws a cut into $stages stages, as $cut.
draw_cut() {
    local left=$((stages - 1)) at end
    cut=L
    for ((at = 9; at > 0; at--)); do # boundary `at` has the embedding and at - 1 blocks before it
        draw end "$at"
        ((end >= left)) || { cut="|$cut"; left=$((left - 1)); }
        if ((at > 1)); then cut=t$cut; else cut=E$cut; fi
    done
}

# draw_place: draws, as $place and $ranks, what changes no bit.
draw_place() {
    pick pp 1 1 2 4
    ((pp * flat <= most)) || pp=1
    pick order "${orders[@]}" "bfs $((8 / pp))" "bfs $((8 / pp))" "bfs $((8 / pp))" "interleaved $((4 / pp))"
    pick zero 0 1 2 3
    pick recompute none selective full full:2-5,selective:6
    pick offload none none optimizer activations optimizer,activations
    pick own no no cut file
    device=cpu
    [[ $offload == none ]] || device=guarded
    ranks=$((pp * flat)) stages=$((pp * ${order#* }))
    place=(parallel.{pp="$pp",schedule="${order% *}",virtual="${order#* }",zero="$zero"} train.recompute="$recompute"
        device.{name="$device",offload="$offload"} checkpoint.background="$background")
    if [[ $own == cut ]] && ((stages > 1)); then
        draw_cut
        place+=(parallel.cut="$cut")
    elif [[ $own == file && -z $warm ]] && ((stages > 0)); then
        "$trireme" schedule "${order% *}" -p "$pp" -m $((batch * tp / flat)) -v "${order#* }" -o own.csv >/dev/null
        place+=(parallel.schedule=own.csv parallel.virtual=0)
    fi
}

# --- the chain -----------------------------------------------------------------------------------------

# interrupt: starts $command, and ends it by a signal some steps later.
interrupt() {
    local more ms victim processes begun
    count_steps run
    begun=$steps
    draw more 6
    draw ms 30
    draw victim "$ranks"
    setsid env --default-signal timeout 200 "${command[@]}" >run.out 2>run.err &
    job=$!
    until gone "$job" || { count_steps run && ((steps > begun + more)); }; do nap 3; done
    nap "$ms"
    mapfile -t processes < <(if [[ $how == kill ]]; then ranks_of_job | sed -n "$((victim + 1))p"; else pgrep -P "$job"; fi)
    kill -"${how^^}" "${processes[@]}" 2>/dev/null || true
    wait "$job" 2>/dev/null || code=$?
    until_true 60 none_left || fail "processes are left: $(ranks_of_job | tr '\n' ' ')"
}

what="${words[*]} of"
whole=0
trireme_on "$flat" train base.yaml log.dir=whole "${words[@]}" >whole.out 2>whole.err || whole=$?
if [[ $whole == 65 && -n $guard ]] && grep -q "training has diverged" whole.err; then
    what+=" (diverges)"
elif [[ $whole != 0 ]]; then
    fail "whole: exit code $whole: $(tail -n 3 whole.err)"
else
    as_planned whole
fi

for ((leg = 0, how = 0; !failures; leg++)); do
    draw_place
    pick how kill kill term limit steps end
    # A rollback would return to the step that a stop saves.
    [[ $guard != rollback || $how == end ]] || how="kill"
    ((leg < 4)) || how=end
    what+=" [${place[*]} $how]"
    command=("$trireme")
    [[ $ranks == 1 ]] || command+=(run -n "$ranks")
    command+=(train base.yaml log.dir=run "${words[@]}" "${place[@]}" --resume=auto)
    code=0
    count_steps run
    case $how in
        kill | term) interrupt ;;
        limit) timeout 200 "${command[@]}" --time-limit 1s >run.out 2>run.err || code=$? ;;
        steps) timeout 200 "${command[@]}" train.steps=$((steps < 7 ? steps + 3 : 10)) >run.out 2>run.err || code=$? ;;
        end) timeout 200 "${command[@]}" >run.out 2>run.err || code=$? ;;
    esac
    case $code in
        0) as_planned run ;;
        65) [[ $whole == 65 ]] || fail "leg $leg: $(tail -n 3 run.err)" ;;
        75 | 77 | 137) [[ $how != end && $how != steps ]] || fail "leg $leg: exit code $code: $(tail -n 3 run.err)" ;;
        *) fail "leg $leg: exit code $code: $(tail -n 3 run.err)" ;;
    esac
    [[ $how != end ]] || break
done
if ((!failures)); then
    [[ $code == "$whole" ]] || fail "run ended with $code, and whole with $whole"
    for key in step loss grad_norm lr skipped loss_scale grad_square grad_variance noise_scale; do
        diff <(field run "$key") <(field whole "$key") >differ || fail "$key differs: $(head -n 6 differ | tr '\n' ' ')"
    done
    last=$(compgen -G "whole/ckpt/step-*" | tail -n 1) || true
    [[ -z $last ]] || "$tools/ckpt_compare" exact "run/${last#whole/}" "$last" || fail "tensors of $last differ"
fi

# --- what reads it -------------------------------------------------------------------------------------

# score NAME RANKS ARGUMENTS...: eval's loss with these arguments, as the variable NAME.
score() {
    local name=$1 n=$2
    shift 2
    trireme_on "$n" eval "$@" --json >eval.out 2>eval.err || fail "eval $* ended with $?: $(<eval.err)"
    printf -v "$name" %s "$(sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' eval.out)"
}

if ((!failures && whole == 0)); then
    score one 1 run
    pick n 2 3 4
    score piped "$n" run
    score divided "$n" run parallel.dp="$n" train.micro_batch=3
    [[ $piped == "$one" && $divided == "$one" ]] || fail "eval: $one, as a pipeline $piped, divided $divided"
    limit=1e-14
    [[ $tp == 1 ]] || { limit=1e-6 && [[ $precision == fp32 ]]; } || limit=4e-3
    awk -v a="$one" -v b="$(field run val_loss | tail -n 1)" -v limit=$limit 'BEGIN { exit !((a - b) ^ 2 <= (limit * b) ^ 2) }' ||
        fail "eval: $one, and the run has measured $(field run val_loss | tail -n 1)"

    options=(-p "The man" -n 40 --temperature 0)
    "$trireme" sample run "${options[@]}" >one.txt 2>/dev/null || fail "sample on one rank ended with $?"
    trireme_on 2 sample run "${options[@]}" >two.txt 2>/dev/null || fail "sample on two ranks ended with $?"
    cmp -s one.txt two.txt || fail "samples differ: $(<one.txt) / $(<two.txt)"

    if trireme_on 2 ckpt export run out >export.out 2>export.err; then
        "$trireme" ckpt import out back >import.out 2>import.err || fail "import: $(<import.err)"
        # Dropout, also where it does nothing, lets 16 bits round once more; so does the merging of updates.
        alike=(--data "$text" train.precision="$precision" model.context=32 model.dropout=0 train.threads=1)
        [[ -z $documents ]] || alike+=(data.documents=packed data.document_end=10)
        score folder 1 out "${alike[@]}"
        score imported 2 back "${alike[@]}"
        score trained 1 run "${alike[@]}"
        [[ $imported == "$folder" ]] || fail "eval: of the export $folder, of its import $imported"
        [[ $trained == "$folder" || $part == *lora* ]] || fail "eval: of the run $trained, of its export $folder"
    else
        grep -q 'transformers has no' export.err || fail "export: $(<export.err)"
    fi

    pick tp 1 2
    pick dp 1 2
    flat=$((tp * dp))
    warm=later # no file: its micro-batches would be others
    draw_place
    pick optimizer adamw sgd lion lamb muon adafactor
    pick precision fp32 bf16 fp16
    words+=(train.{precision="$precision",steps=38,batch=24,batch_warmup=} optim.{name="$optimizer",moments=fp32,gradients=fp32,master=fp32})
    words+=(parallel.{tp="$tp",dp="$dp"} optim.{momentum=0.9,nesterov=false} guard.action=warn)
    what+=" then ${words[*]} ${place[*]}"
    train 0 $ranks run "${words[@]}" "${place[@]}" --resume
    as_planned run
fi
