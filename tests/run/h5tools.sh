#!/usr/bin/env bash
# Tests that HDF5's own tools read every global tensor of a checkpoint, whole and with the right values,
# whatever layout saved it.
# usage: h5tools.sh TRIREME SCRATCH_DIR
set -euo pipefail
for tool in h5ls h5dump; do
    command -v $tool >/dev/null || { echo "h5tools.sh: skipped: $tool is missing (apt-get install hdf5-tools)"; exit 77; }
done
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# Names and shapes of the tensors of this GPT-2 of 4 blocks, width 32, context 32, 256 tokens.
tensors() {
    local block
    echo "wte.weight {256, 32}"
    echo "wpe.weight {32, 32}"
    for block in 0 1 2 3; do
        printf "h.$block.%s\n" "ln_1.weight {32}" "ln_1.bias {32}" "attn.c_attn.weight {32, 96}" \
            "attn.c_attn.bias {96}" "attn.c_proj.weight {32, 32}" "attn.c_proj.bias {32}" \
            "ln_2.weight {32}" "ln_2.bias {32}" "mlp.c_fc.weight {32, 128}" "mlp.c_fc.bias {128}" \
            "mlp.c_proj.weight {128, 32}" "mlp.c_proj.bias {32}"
    done
    echo "ln_f.weight {32}"
    echo "ln_f.bias {32}"
}

# values FILE DATASET: prints its numbers, one a line.
values() { h5dump -y -w 1 -m %.9g -d "$2" "$1" | sed -n '/DATA {/,/}/p' | tr -d ' ,' | grep -E '^[-0-9.]'; }

# constant FILE DATASET VALUE COUNT
constant() {
    [[ $(values "$1" "$2" | sort | uniq -c | tr -s ' ') == " $4 $3" ]] ||
        fail "$1: $2 is not $4 times $3: $(values "$1" "$2" | sort | uniq -c | head -n 3)"
}

# One step at learning rate 0: parameters keep their initial values, moments get their first ones.
options=(train.steps=1 optim.lr=0 optim.warmup=0 optim.clip=0)
train 0 1 one "${options[@]}"
train 0 4 grid "${options[@]}" parallel.pp=2 parallel.tp=2
train 0 6 wide "${options[@]}" parallel.tp=2 parallel.dp=3

for run in one grid wide; do
    index=$(step_dir $run 1)/index.h5
    h5ls -r "$index" >$run.ls || fail "h5ls of $run"
    for group in weights adam_m adam_v; do
        while read -r name shape; do
            grep -q "^/$group/transformer\.${name//./\\.} *Dataset ${shape}\$" $run.ls || fail "$run: no $group of $name $shape"
        done < <(tensors)
        [[ $(grep -c "^/$group/" $run.ls) == $(tensors | wc -l) ]] || fail "$run: other tensors in $group"
    done
    # GPT-2's initial values: ones and zeros for norms, a normal distribution of deviation 0.02 elsewhere.
    for norm in h.0.ln_1 h.3.ln_2 ln_f; do
        constant "$index" /weights/transformer.$norm.weight 1 32
        constant "$index" /weights/transformer.$norm.bias 0 32
    done
    constant "$index" /weights/transformer.h.2.attn.c_attn.bias 0 96
    values "$index" /weights/transformer.wte.weight | awk '
        { sum += $1; squares += $1 * $1; if ($1 != 0) some++ }
        END { mean = sum / NR; deviation = sqrt(squares / NR - mean * mean)
              exit !(NR == 8192 && some > 8000 && mean^2 < 0.001^2 && deviation > 0.019 && deviation < 0.021) }' ||
        fail "$run: wte.weight is not normal of deviation 0.02"
    # m = 0.1 g and v = 0.05 g^2 after the first step, element by element.
    paste <(values "$index" /adam_m/transformer.h.1.mlp.c_fc.weight) <(values "$index" /adam_v/transformer.h.1.mlp.c_fc.weight) |
        awk '{ v = 5 * $1 * $1; d = v - $2; if (d < 0) d = -d; if (d > 1e-5 * v) bad = 1; sum += v }
             END { exit bad || NR != 4096 || sum == 0 }' || fail "$run: moments do not belong to one gradient"
    for name in wte.weight h.1.attn.c_attn.weight h.3.mlp.c_proj.weight; do
        values "$index" /weights/transformer.$name >$run.values
        values "$(step_dir one 1)/index.h5" /weights/transformer.$name | cmp -s - $run.values ||
            fail "$run: $name differs from one rank's"
    done
done
finish
