#!/usr/bin/env bash
# Tests data.documents packed: in FP64, a sequence has the loss and gradient norm of its documents, in any
# order and with any other documents, with learned and with rotary positions. With data.documents windows it
# does not. Invalid keys end with 78.
# usage: documents.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1
scratch=$2
source "$(dirname "$0")/common.sh"

# One window: two documents of 20 tokens, and the label of the last token.
A='The hound of the old' B='moor, said Dr Watson' C='0123456789 987654321' D='Holmes shut his eyes'
for name in AB BA CD AD CB; do
    first=${name:0:1} second=${name:1:1}
    printf '%s\n%s\n.' "${!first}" "${!second}" >"$scratch/$name.txt"
done
cat >"$scratch/base.yaml" <<Y
model: {layers: 2, width: 16, heads: 2, context: 42}
data: {validation: 0, document_end: 10}
train: {steps: 1, batch: 1, micro_batch: 1, precision: fp64, threads: 1}
log: {every: 1}
device: {name: ref}
Y

# equal WHAT same|different X Y: the relative difference of X and Y must be below 1e-11 (same) or above 1e-6
# (different).
equal() {
    awk -v limit="$2" -v x="$3" -v y="$4" 'BEGIN {
        d = (x - y) / y; if (d < 0) d = -d
        exit !(limit == "same" ? d < 1e-11 : d > 1e-6)
    }' || fail "$1: $3 and $4 should be $2"
}

for family in gpt2 llama; do
    for documents in packed windows; do
        declare -A loss=() norm=()
        for name in AB BA CD AD CB; do
            run=$family-$documents-$name
            train 0 1 "$run" model.family=$family data.path="$scratch/$name.txt" data.documents=$documents
            as_planned "$run"
            loss[$name]=$(field "$run" loss) norm[$name]=$(field "$run" grad_norm)
        done
        limit=same
        [[ $documents == packed ]] || limit=different
        equal "$family $documents, order" $limit "${loss[AB]}" "${loss[BA]}"
        equal "$family $documents, order, norm" $limit "${norm[AB]}" "${norm[BA]}"
        equal "$family $documents, company" $limit "$(awk "BEGIN { printf \"%.17g\", ${loss[AB]} + ${loss[CD]} }")" \
            "$(awk "BEGIN { printf \"%.17g\", ${loss[AD]} + ${loss[CB]} }")"
    done
done

# A run continues with the same documents, or with data.changed=allow.
one=(data.path="$scratch/AB.txt" data.documents=packed)
train 0 1 gpt2-packed-AB --resume "${one[@]}" train.steps=2
train 78 1 gpt2-packed-AB --resume data.path="$scratch/AB.txt" train.steps=3
says gpt2-packed-AB ".* is not the data that the checkpoint was made with: data.documents is windows, and was packed; .*data.changed=allow"
train 78 1 gpt2-packed-AB --resume "${one[@]}" data.document_end=32 train.steps=3
says gpt2-packed-AB ".* was made with: data.document_end is 32, and was 10; .*"
train 0 1 gpt2-packed-AB --resume "${one[@]}" data.document_end=32 train.steps=3 data.changed=allow

train 78 1 no-end "${one[@]}" data.document_end=-1
says no-end "data.documents packed needs data.document_end, the token that ends a document .*"
trireme_on 1 data "$scratch/base.yaml" "${one[@]}" data.document_end=-1 >"$scratch/data.out" 2>&1 && fail "data: packed documents without an end"
grep -q 'data.documents packed needs data.document_end' "$scratch/data.out" || fail "data said '$(<"$scratch/data.out")'"
trireme_on 1 data "$scratch/base.yaml" "${one[@]}" data.validation=0 >"$scratch/data.out"
grep -q '^documents 3$' "$scratch/data.out" || fail "data: $(grep '^doc' "$scratch/data.out"), not 3 documents"

printf '\n%.0s' {1..43} >"$scratch/ends.txt"
train 65 1 nothing data.path="$scratch/ends.txt" data.documents=packed
says nothing "step 1 has no label that counts, because every token of its sequences is data.document_end: .*"

# One label in 2048 counts, and none of the held-out part: the speed counts tokens, as in `plan`, and a
# checkpoint may have sequences without labels.
{ printf '\n%.0s' {1..1500}; printf '.'; printf '\n%.0s' {1..5499}; } >"$scratch/few.txt"
few=(data.path="$scratch/few.txt" data.documents=packed data.validation=0.5 model.context=1024 train.batch=2
    train.validate_every=1 checkpoint.every=3)
begin=$EPOCHREALTIME
train 0 1 few "${few[@]}" train.steps=3
end=$EPOCHREALTIME
field few tokens_per_s | awk -v wall="$(awk "BEGIN { print $end - $begin }")" '{ steps += 2 * 1024 / $1 }
    END { exit !(NR == 3 && steps <= wall) }' || fail "few: tokens a second are $(field few tokens_per_s | tr '\n' ' ')"
says few "warning: no validation loss: no label of the held-out windows that were read counts, because every token is data.document_end: .*"
train 0 1 few --resume "${few[@]}" train.steps=4
finish
