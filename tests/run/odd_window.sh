# Sourced by tests of steps that are skipped: a run over data with one window unlike the others, and what its records and
# checkpoints say.

# A sentence many times, so that its loss becomes small, and between two of them 32 other bytes.
{
    for ((i = 0; i < 188; i++)); do echo 'the quick brown fox jumps over it'; done
    for ((i = 0; i < 32; i++)); do printf '%b' "\\x$(printf %x $((128 + i * 41 % 128)))"; done
    for ((i = 0; i < 188; i++)); do echo 'the quick brown fox jumps over it'; done
} >"$scratch/odd.txt"
cat >"$scratch/base.yaml" <<Y
model: {layers: 2, width: 32, heads: 4, context: 32}
data: {path: $scratch/odd.txt, validation: 0}
train: {steps: 240, batch: 2, micro_batch: 1, seed: 3, precision: fp32, threads: 1, deterministic: true, validate_every: 0}
optim: {lr: 0.01, min_lr: 0.01, warmup: 4}
guard: {sigma: 5}
checkpoint: {every: 30, keep: 100}
log: {every: 100}
Y

lines() { head -n "$2" "$scratch/$1/metrics.jsonl" | sed 's/"tokens_per_s":[^,}]*//'; }
same_lines() { diff <(lines "$1" "$3") <(lines "$2" "$3") >"$scratch/diff" || fail "$1 and $2 differ: $(head -n 3 "$scratch/diff")"; }
steps_once() { diff <(field "$1" step) <(seq 240) >"$scratch/diff" || fail "$1: steps: $(head -n 3 "$scratch/diff")"; }
state_of() { h5dump -d "/state/$3" "$(step_dir "$1" "$2")/index.h5" | sed -n 's/.*(0): \(.*\)/\1/p'; }
skipped() { grep -n '"skipped":true' "$scratch/$1/metrics.jsonl" | cut -d : -f 1 | tr '\n' ' '; }
beyond() { sed -n 's/.*warning: step \([0-9]*\): the .* is more than 5 standard deviations .*/\1/p' "$scratch/$1.err"; }
