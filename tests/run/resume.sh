#!/usr/bin/env bash
# Tests resumed runs: the same curve and the same bits on the layout that saved, the saved bits on any other.
# usage: resume.sh TRIREME SCRATCH_DIR PRECISION
set -euo pipefail
trireme=$1 scratch=$2 precision=$3
source "$(dirname "$0")/common.sh"
halve

# resumed RUN REFERENCE RANKS ARGUMENTS...: continues REFERENCE from its step 5 as RUN.
resumed() {
    local run=$1 reference=$2 ranks=$3
    shift 3
    cp -r "$scratch/$reference" "$scratch/$run"
    rm -r "$(step_dir "$run" 10)"
    train 0 "$ranks" "$run" --resume "$@"
}

# relayout REFERENCE PP TP DP: that layout must load step 5 of the reference, and save the same bits.
relayout() {
    local run=$1-as-pp$2-tp$3-dp$4
    mkdir -p "$scratch/$run.from" "$scratch/$run"
    cp -r "$(step_dir "$1" 5)" "$scratch/$run.from"
    plain_mpirun -n $(($2 * $3 * $4)) "$tools/ckpt_relayout" "$scratch/base.yaml" \
        "$scratch/$run.from" "$scratch/$run/ckpt" parallel.pp="$2" parallel.tp="$3" parallel.dp="$4" \
        train.precision="$precision" </dev/null || fail "$run: loading or saving failed"
    same_tensors "$run" "$1" 5
}

options=(train.precision="$precision")
grid=(parallel.pp=2 parallel.tp=2)
train 0 1 one "${options[@]}"
train 0 4 grid "${options[@]}" "${grid[@]}"

resumed one-again one 1 "${options[@]}"
same_curve one-again one
same_tensors one-again one 10
resumed grid-again grid 4 "${options[@]}" "${grid[@]}"
same_curve grid-again grid
same_tensors grid-again grid 10

for layout in "4 1 1" "1 2 1" "1 1 3" "2 1 2" "1 4 1" "2 2 1"; do
    read -r pp tp dp <<<"$layout"
    relayout one "$pp" "$tp" "$dp"
    [[ $layout == "2 2 1" ]] && layout="1 1 1" pp=1 tp=1
    relayout grid "$pp" "$tp" "$dp"
    [[ $precision == fp32 ]] || continue
    run=resumed-pp$pp-tp$tp-dp$dp
    resumed "$run" grid $((pp * tp * dp)) "${options[@]}" parallel.pp="$pp" parallel.tp="$tp" parallel.dp="$dp"
    near "$run" one
done

# Where a default depends on the device, a key that the user has not set keeps the checkpoint's value, for
# example when a run on GPUs continues without them; a key that is set holds.
if [[ $precision == bf16 ]]; then
    cp "$scratch/base.yaml" "$scratch/set.yaml"
    sed -i 's/ precision: fp32,//; s/ deterministic: true,//' "$scratch/base.yaml"
    train 0 1 gpu train.precision=bf16 train.deterministic=false
    resumed kept gpu 1
    same_curve kept gpu
    same_tensors kept gpu 10
    grep -q 'precision: bf16' "$scratch/kept/config.yaml" || fail "kept: the config does not record bf16"
    grep -q 'deterministic: false' "$scratch/kept/config.yaml" || fail "kept: the config does not record deterministic"
    resumed changed gpu 1 train.precision=fp32
    grep -q 'precision: fp32' "$scratch/changed/config.yaml" || fail "changed: what was set does not hold"
    grep -q 'deterministic: false' "$scratch/changed/config.yaml" || fail "changed: deterministic was not set"
    mv "$scratch/set.yaml" "$scratch/base.yaml"
fi

# A whole job is killed between two saves, at any point past step 25, and resumed for ten more steps. With a
# constant learning rate the number of steps changes no step.
long=("${options[@]}" optim.warmup=10 optim.min_lr=0.003 checkpoint.every=10)
for ranks in 1 4; do
    layout=()
    [[ $ranks == 1 ]] || layout=("${grid[@]}")
    launch=()
    [[ $ranks == 1 ]] || launch=(run -n $ranks)
    "$trireme" "${launch[@]}" train "$scratch/base.yaml" log.dir="$scratch/killed-$ranks" "${long[@]}" \
        "${layout[@]}" train.steps=100000 >"$scratch/killed-$ranks.out" 2>"$scratch/killed-$ranks.err" &
    until_true 120 past "killed-$ranks" 25 || fail "killed-$ranks: never reached step 25"
    { descendants $! | xargs kill -9; wait $!; } 2>/dev/null || true
    end=$(($(last_step "killed-$ranks") + 10))
    train 0 $ranks "killed-$ranks" --resume "${long[@]}" "${layout[@]}" train.steps=$end
    train 0 $ranks "whole-$ranks" "${long[@]}" "${layout[@]}" train.steps=$end
    same_curve "killed-$ranks" "whole-$ranks"
    same_tensors "killed-$ranks" "whole-$ranks" $end
done

# Two runs with two threads give the same bits; the tensors are large enough to be divided among threads.
for run in threads-a threads-b; do
    train 0 2 $run "${options[@]}" parallel.pp=2 train.threads=2 train.micro_batch=6 model.width=64 model.context=64
done
same_curve threads-b threads-a
same_tensors threads-b threads-a 10
finish
