#!/usr/bin/env bash
# Prints the table of docs/memory.md: what `plan` says of the rank that needs most, layout by layout. With
# --write it puts it into the page. usage: memory_table.sh TRIREME [--write]
set -euo pipefail
trireme=$1
here=$(cd "$(dirname "$0")" && pwd)
page=$here/../docs/memory.md
source "$here/plan_table.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sed -n '/^```yaml$/,/^```$/{//!p}' "$page" >"$dir/x.yaml"

# row SETTINGS...: the stages of a pipeline divide the layers, so its ranks differ.
row() {
    local output
    output=$("$trireme" plan "$dir/x.yaml" --rate 1 "$@")
    awk -v settings="$*" "$plan_table"'
        $1 == "fits" { rank = $3 }
        $1 == "offload" { host = $11 }
        is_row() { line[++lines] = $0 }
        END {
            for (k = 1; k <= lines; k++) {
                split(line[k], f)
                if (has_rank(f[2], rank)) break
            }
            printf "| %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %.1f |\n", settings == "" ? "one rank" : "`" settings "`", rank,
                f[3], f[5], f[6], f[7], f[8], f[10], f[11], f[12], host
        }' <<<"$output"
}

table() {
    printf '\n| settings | rank | layers | parameters | gradients | optimizer | activations | transfers | data | all | host |\n'
    printf '|---|---|---|---|---|---|---|---|---|---|---|\n'
    row
    row parallel.dp=2
    row parallel.dp=2 parallel.zero=1
    row parallel.dp=4 parallel.zero=1
    row parallel.dp=4 parallel.schedule=bfs parallel.virtual=12 train.recompute=full
    row parallel.dp=4 parallel.zero=1 parallel.schedule=bfs parallel.virtual=12 train.recompute=full
    row parallel.dp=4 parallel.zero=2 parallel.schedule=bfs parallel.virtual=12 train.recompute=full
    row parallel.dp=4 parallel.zero=2
    row parallel.dp=4 parallel.zero=3 parallel.schedule=bfs parallel.virtual=12 train.recompute=full
    row parallel.dp=2x2 parallel.zero=1
    row parallel.tp=2
    row parallel.tp=4
    row parallel.tp=4 parallel.sequence=true
    row parallel.pp=2
    row parallel.pp=4
    row parallel.pp=4 parallel.schedule=gpipe
    row parallel.pp=4 parallel.tp=2
    row train.micro_batch=1
    row train.recompute=selective
    row train.recompute=full
    row parallel.pp=4 train.recompute=full
    row train.precision=bf16
    row parallel.dp=4 parallel.zero=1 train.precision=bf16
    row train.precision=bf16 optim.master=none
    row train.precision=bf16 optim.master=none optim.moments=bf16
    row optim.gradients=bf16
    row train.precision=bf16 optim.master=none optim.moments=bf16 optim.gradients=bf16
    row optim.moments=bf16
    row optim.moments=int8
    row parallel.dp=4 parallel.zero=1 train.precision=bf16 optim.moments=bf16
    row optim.name=muon
    row parallel.dp=4 parallel.zero=1 optim.name=muon
    row train.precision=bf16 optim.master=none optim.moments=int8 optim.gradients=bf16 optim.name=muon
    row train.precision=bf16 optim.name=adafactor
    row train.precision=bf16 optim.master=none optim.gradients=bf16 optim.name=adafactor
    row parallel.dp=4 parallel.zero=1 train.precision=bf16 optim.name=adafactor
    row device.offload=optimizer device.name=guarded
    row parallel.dp=4 parallel.zero=1 device.offload=optimizer device.name=guarded
    row parallel.pp=4 device.offload=activations device.name=guarded
    row parallel.pp=4 parallel.schedule=gpipe device.offload=activations device.name=guarded
}

if [[ ${2:-} == --write ]]; then table | bash "$here/put_table.sh" "$page"; else table; fi
