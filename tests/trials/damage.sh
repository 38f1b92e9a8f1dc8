# Damages a file of the newest checkpoint: bits flipped, cut, longer, empty, removed or exchanged.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
ranks=2 layout=(parallel.pp=2)
options=(train.steps=20 optim.min_lr=0.003 log.every=60)
train 0 2 good "${options[@]}" "${layout[@]}"
options[0]=train.steps=30
cp -r good whole
train 0 2 whole "${options[@]}" "${layout[@]}" --resume

# damage FILE: damages it; $what describes how.
damage() {
    local file=$1 size at bit n flips
    size=$(stat -c %s "$file")
    pick how flip flip flip cut longer empty gone other
    what="${file##*/}: $how"
    case $how in
        flip)
            pick flips 1 1 2 20
            for ((n = 0; n < flips; n++)); do
                draw at "$size"
                draw bit 8
                flip "$file" "$at" "$bit"
                what+=" $at.$bit"
            done
            ;;
        cut)
            draw at "$size"
            truncate -s "$at" "$file"
            what+=" to $at of $size"
            ;;
        longer) head -c 100 /dev/urandom >>"$file" ;;
        empty) : >"$file" ;;
        gone) rm "$file" ;;
        other) cp "${file/step-00000020/step-00000010}" "$file" ;;
    esac
}

for ((trial = 0; trial < 5; trial++)); do
    rm -rf run && cp -r good run
    files=(run/ckpt/step-00000020/*)
    pick file "${files[@]}"
    damage "$file"
    told+="${told:+; }$what"
    code=0
    timeout 60 "$trireme" ckpt verify run 20 >verify.out 2>&1 || code=$?
    # Two flips of the same bit leave the file unchanged.
    if cmp -s "$file" "good/${file#run/}"; then want=0; else want=65; fi
    [[ $code == "$want" ]] || fail "$what: ckpt verify ended with $code, not $want: $(<verify.out)"
    code=0
    trireme_on 2 train base.yaml log.dir=run "${options[@]}" "${layout[@]}" --resume >run.out 2>run.err || code=$?
    [[ $(grep -c "" run.err) -le 1 ]] || fail "$what: more than one sentence: $(<run.err)"
    [[ $code == 0 ]] || fail "$what: --resume ended with $code: $(<run.err)"
    [[ $want == 0 ]] || grep -q "^trireme: warning: resuming from step 10, .*step-00000020" run.err || fail "$what: said $(<run.err)"
    same_curve run whole
    same_tensors run whole 30
    code=0
    timeout 60 "$trireme" sample run --step 20 -n 4 >sample.out 2>sample.err || code=$?
    [[ $code == 0 || $code == 65 ]] || fail "$what: sample ended with $code: $(<sample.err)"
done
what=$told
