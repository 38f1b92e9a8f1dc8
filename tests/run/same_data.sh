#!/usr/bin/env bash
# Tests that a resumed run recognizes its data: other content is refused unless it is allowed, the same
# content elsewhere is the same data, and bytes that were appended are read from the next epoch on.
# usage: same_data.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# 55 windows an epoch, 12 a step: epoch 2 begins within step 10.
head -c 2000 "$text" >old.txt
head -c 5000 "$text" >grown.txt
options=(data.path=data.txt checkpoint.every=3 checkpoint.keep=9 optim.min_lr=0.003 train.validate_every=2)
cp old.txt data.txt
train 0 1 whole "${options[@]}" train.steps=20
train 0 1 part "${options[@]}" train.steps=6

# continued RUN ARGUMENTS...: continues `part` as RUN.
continued() {
    local want=$1 ranks=$2 run=$3
    shift 3
    cp -r part "$run"
    train "$want" "$ranks" "$run" --resume "${options[@]}" train.steps=20 "$@"
}

# The same file, and the same content under another name and time.
continued 0 1 same
[[ ! -s same.err ]] || fail "same: said '$(<same.err)'"
same_curve same whole
mv data.txt moved.txt
continued 0 1 moved data.path=moved.txt
[[ ! -s moved.err ]] || fail "moved: said '$(<moved.err)'"
same_curve moved whole
same_tensors moved whole 20

# One changed byte in the middle; a shorter file; another split.
sed '1,30s/the/thf/' old.txt >data.txt
cmp -s old.txt data.txt && fail "the file was not changed"
for ranks in 1 2; do
    continued 78 $ranks other-$ranks parallel.dp=$ranks
    says other-$ranks "'data.txt' is not the data that the checkpoint was made with: its 2000 bytes have other content; restore the earlier data and keys, or continue with these by data.changed=allow"
    [[ $(last_step other-$ranks) == 6 && $(ls other-$ranks/ckpt | wc -l) == 2 ]] || fail "other-$ranks: something was written"
done
continued 0 1 allowed data.changed=allow
says allowed "warning: 'data.txt' is not the data that the checkpoint was made with \(its 2000 bytes .*\): epoch 2 begins with it"
train 0 1 allowed --resume "${options[@]}" train.steps=22
[[ ! -s allowed.err ]] || fail "allowed: said '$(<allowed.err)'"
continued 78 1 part-validation data.validation=0.2 data.path=moved.txt
says part-validation ".*: data.validation is 0.2, and was 0.1; restore the earlier data and keys.*"
head -c 1900 old.txt >data.txt
continued 78 1 shorter
says shorter ".*: it has 1900 bytes, and had 2000; restore the earlier data and keys.*"

# Growth: the epoch in progress continues unchanged, and stopping the run again makes no difference.
cp grown.txt data.txt
continued 0 1 grown
says grown "warning: 'data.txt' has grown from 2000 to 5000 bytes: the new bytes are read from epoch 2 on, and the held-out part stays the same"
diff <(field grown loss | head -n 8) <(field whole loss | head -n 8) || fail "grown: the epoch in progress changed"
diff <(field grown loss) <(field whole loss) >/dev/null && fail "grown: what is new was never read"
cp -r grown twice
rm -r "$(step_dir twice 20)" "$(step_dir twice 18)" "$(step_dir twice 15)"
train 0 1 twice --resume "${options[@]}" train.steps=20
[[ ! -s twice.err ]] || fail "twice: said '$(<twice.err)'"
same_curve twice grown
same_tensors twice grown 20
h5dump -d /state/split_bytes "$(step_dir grown 20)/index.h5" >split.dump
grep -q '(0): 2000$' split.dump || fail "grown: the held-out part moved"
cp old.txt data.txt
code=0
trireme_on 1 train base.yaml log.dir=twice "${options[@]}" --resume train.steps=22 >back.out 2>back.err || code=$?
[[ $code == 78 ]] || fail "twice: went on with data that shrank, $code"
says back ".*: it has 2000 bytes, and had 5000; .*"

# A checkpoint that records nothing about its data is accepted, with one line.
cp -r part unmarked
for field in data_bytes data_hash data_format validation split_bytes epoch epoch_sample epoch_bytes; do
    "$tools/ckpt_forge" "$(step_dir unmarked 6)" $field remove
done
train 0 1 unmarked --resume "${options[@]}" train.steps=20
says unmarked "warning: the checkpoint does not record its data: 'data.txt' is assumed to be the same"
same_curve unmarked whole
same_tensors unmarked whole 20

# Ranks of one run find different files under one name.
cp old.txt data.txt
sed 's/the/thf/' old.txt >other.txt
printf '#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 0 ] || set -- "$@" data.path=other.txt\nexec "%s" "$@"\n' "$trireme" >ranks.sh
chmod +x ranks.sh
code=0
plain_mpirun -n 2 ./ranks.sh train base.yaml log.dir=apart "${options[@]}" parallel.dp=2 \
    >apart.out 2>apart.err </dev/null || code=$?
[[ $code == 65 ]] || fail "apart: ended with $code, not 65"
says apart "the data file 'other.txt' has other content here than where rank 0 reads it: give every host the same file"
finish
