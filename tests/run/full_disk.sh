#!/usr/bin/env bash
# Tests a full disk (a small tmpfs): a save that fails gives one warning and leaves no partial files, and
# training continues; the run ends with 74 only when its last save fails. Needs the right to mount (mounts.sh).
# usage: full_disk.sh TRIREME SCRATCH_DIR
set -euo pipefail
source "$(dirname "$0")/mounts.sh"
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# disk RUN KIB: mounts a file system of that size for a run.
disk() {
    mkdir -p "$1"
    mount_empty "$1" size="$2k"
}

# nothing_half RUN: no directory must be in progress or partly deleted.
nothing_half() { [[ -z $(find "$1/ckpt" -name '.*-step-*') ]] || fail "$1: $(ls -A "$1/ckpt")"; }

# changing RUN COMMAND [SETTINGS...]: runs six saves on a disk that COMMAND RUN changes after the first of them:
# ${options[@]} are the run's, $code is its exit code, and it saves every $every steps. A run that was faster, so that
# the change came at its end, is repeated with more steps.
changing() {
    local run=$1
    for every in 50 500 5000; do
        disk "$run" 12000
        rm -f "$run.late" "$run.out" "$run.err"
        options=("${layout[@]}" "${@:3}" train.steps=$((6 * every)) checkpoint.every=$every checkpoint.keep=9)
        (
            until_true 60 test -d "$(step_dir "$run" $every)"
            "$2" "$run"
            (($(last_step "$run") < 6 * every - 1)) || touch "$run.late"
        ) &
        code=0
        trireme_on "$ranks" train base.yaml log.dir="$scratch/$run" "${options[@]}" >"$run.out" 2>"$run.err" || code=$?
        wait $!
        [[ -e $run.late ]] || return 0
        umount "$run"
    done
    fail "$run: its disk never changed in time"
}
fill() { dd if=/dev/zero of="$1/filler" bs=64k status=none 2>/dev/null || true; }
# Leaves less space than a save takes, until a save has failed or the run has ended.
fill_for_a_while() {
    fallocate -l $(($(stat -f -c '%a * %S' "$1") - 600000)) "$1/filler"
    until_true 60 grep -qs '^trireme: \|^saved' "$1.err" "$1.out"
    rm "$1/filler"
}

unsaved="failed: .*: No space left on device"

# Token files: one sentence with the path, no file under its last name, and the same command goes on where
# there is room.
bash "$(dirname "$0")/make_tokenizer.sh" >tokenizer.json
for ((i = 0; i < 12; i++)); do cat "$text"; done >long.txt
root=$(realpath "$(dirname "$0")/../..")
tokens=(model.vocab=301 train.steps=2 data.path=long.txt data.format=text data.tokenizer=tokenizer.json)
disk small 500
code=0
"$trireme" data tokenize long.txt --tokenizer tokenizer.json -o small/long >small.out 2>small.err || code=$?
[[ $code == 74 ]] || fail "data tokenize: exit code $code, not 74"
says small "'small/long.bin' cannot be written: No space left on device"
[[ ! -e small/long.bin && ! -e small/long.idx ]] || fail "data tokenize: $(ls small)"
code=0
disk few 4
"$trireme" data train-bpe "$text" --vocab 600 -o few/t.json >few.out 2>few.err || code=$?
[[ $code == 74 && $(wc -l <few.err) == 1 ]] || fail "data train-bpe: exit code $code: $(<few.err)"
grep -q "'few/t.json.*' cannot be written: " few.err || fail "data train-bpe: $(<few.err)"
[[ -z $(ls few) ]] || fail "data train-bpe: $(ls few)"
mount -o remount,ro few
for out in few few/ few/t.json few/new/; do
    code=0
    "$trireme" data train-bpe "$text" --vocab 600 -o $out >few.out 2>few.err || code=$?
    [[ $code == 74 && ! -s few.out ]] || fail "data train-bpe -o $out: exit code $code: $(<few.out) $(<few.err)"
    grep -q "no file can be made in the folder '.*few/*': Read-only file system" few.err || fail "data train-bpe: $(<few.err)"
done

# An order and drawings: the old file stays whole, and no new one is left. A pipe is written as it is.
disk orders 40
echo old >orders/old
for file in old new; do
    for command in "1f1b -p 64 -m 1000 -o" "show 1f1b -p 8 -m 64 --svg" "show 1f1b -p 8 -m 64 --trace"; do
        # shellcheck disable=SC2086 # words
        refused 74 "'orders/$file' cannot be written: " schedule $command orders/$file
        [[ $(ls orders) == old && $(<orders/old) == old ]] || fail "schedule $command: $(ls -s orders)"
    done
done
"$trireme" schedule 1f1b -p 2 -m 4 -o orders/old
"$trireme" schedule 1f1b -p 2 -m 4 -o >(cat >piped)
until_true 60 cmp -s orders/old piped || fail "schedule -o to a pipe: $(<piped)"
[[ $(ls orders) == old && $(<orders/old) == "$("$trireme" schedule 1f1b -p 2 -m 4)" ]] || fail "schedule: $(ls -s orders)"

for ranks in 1 2; do
    disk fly-$ranks 500
    train 74 $ranks fly-$ranks "${tokens[@]}" parallel.dp=$ranks
    says fly-$ranks "the tokens of 'long.txt' cannot be kept in '.*fly-$ranks/tokens': '.*-[0-9a-f]*.bin' cannot be written: No space left on device: make room, and"
    [[ ! -e fly-$ranks/ckpt ]] || fail "fly-$ranks: something was saved"
    mount -o remount,size=40000k fly-$ranks
    train 0 $ranks fly-$ranks "${tokens[@]}" parallel.dp=$ranks
done
for ((i = 0; i < 30; i++)); do cat "$root/examples/instruct.jsonl"; done >chats.jsonl
disk chats 60
chats=(model.vocab=384 model.context=128 train.steps=2 data.path=chats.jsonl data.format=instruct data.tokenizer="$root/tests/golden/instruct/chatml")
train 74 2 chats "${chats[@]}" parallel.dp=2
says chats "the tokens of 'chats.jsonl' cannot be kept in '.*chats/tokens': '.*-[0-9a-f]*.rows' cannot be written: No space left on device"
[[ -z $(ls chats/tokens) ]] || fail "chats: $(ls chats/tokens)"
mount -o remount,size=40000k chats
train 0 2 chats "${chats[@]}" parallel.dp=2

for ranks in 1 4; do
    layout=()
    [[ $ranks == 1 ]] || layout=(parallel.pp=2 parallel.tp=2)

    # Space for one and a half steps: the last save fails.
    run=last-$ranks
    disk $run 8000
    train 74 $ranks $run "${layout[@]}" model.layers=2 model.width=128 train.batch=4
    says $run ".*step-00000020.*: No space left on device; a checkpoint of this run takes at least [0-9]+ bytes: make room"
    # The size in the sentence must be at most that of a checkpoint, and at least nine tenths of it.
    size=$(du -sb $run/ckpt/step-00000010 | cut -f1) said=$(grep -Eo 'at least [0-9]+' $run.err | grep -Eo '[0-9]+')
    ((said <= size && said >= size * 9 / 10)) || fail "$run: the message names $said bytes, and step 10 has $size"
    nothing_half $run
    intact $run 10
    [[ $(field $run step | wc -l) == 20 ]] || fail "$run: not every step is recorded"

    # The same with a save that fails in the middle of a run, also in the background: the disk fills up after the
    # first save and is emptied after the run's warning.
    for middle in "" background; do
        run=middle-$ranks$middle
        changing $run fill_for_a_while ${middle:+checkpoint.background=true}
        [[ $code == 0 ]] || fail "$run: exit code $code, not 0: $(<$run.err)"
        warnings=$(wc -l <$run.err)
        [[ $warnings -ge 1 && $warnings == $(grep -Ec "^trireme: warning: the save of step [0-9]+ $unsaved" $run.err) ]] ||
            fail "$run: said '$(<$run.err)'"
        nothing_half $run
        steps=$(find $run/ckpt -name 'step-*' | wc -l)
        [[ $((steps + warnings)) == 6 ]] || fail "$run: $steps steps are saved, and $warnings were not"
        intact $run "$every"
        intact $run $((6 * every))
        [[ $(field $run step | wc -l) == $((6 * every)) ]] || fail "$run: not every step is recorded"
    done

    [[ $ranks == 1 ]] || continue
    # Not one byte is left, not even for metrics: the run continues, and its last save fails.
    run=full-$ranks
    changing $run fill
    [[ $code == 74 ]] || fail "$run: exit code $code, not 74: $(<$run.err)"
    grep -q "^trireme: warning: the metrics of step .* No space left on device" $run.err ||
        fail "$run: no warning of lost metrics: $(<$run.err)"
    [[ $(tail -n 1 $run.err) == *step-$(printf %08d $((6 * every)))*"No space left on device"* ]] || fail "$run: $(tail -n 1 $run.err)"
    nothing_half $run
    intact $run "$every"
    rm $run/filler
    train 0 $ranks $run "${options[@]}" --resume
    intact $run $((6 * every))
done

# Only the file of samples, or of answers, has no space left: one warning, and whole records.
mkdir sampled asked folder
echo '{"context":"The ","choices":["man","zebra"],"label":0}' >questions.jsonl
cp questions.jsonl folder
disk other 4
disk more 4
ln -s ../other/samples.jsonl sampled/samples.jsonl
ln -s ../more/eval.jsonl asked/eval.jsonl
train 0 1 sampled train.sample_every=1 train.sample_tokens=300
says sampled 'warning: the samples of step [0-9]+ and possibly of more are lost: .*No space left on device'
train 0 1 asked train.validate_every=1 train.eval="questions.jsonl folder/questions.jsonl questions.jsonl"
says asked 'warning: the answers of step [0-9]+ and possibly of more are lost: .*No space left on device'
for records in other/samples.jsonl more/eval.jsonl; do
    lines=$(wc -l <$records)
    ((lines > 0 && lines < 60)) && [[ $(grep -c '^{"step":.*}$' $records) == "$lines" ]] || fail "$records: $(<$records)"
done
for run in sampled asked; do [[ $(field $run step | wc -l) == 20 ]] || fail "$run: not every step is recorded"; done
for tag in acc/questions.jsonl acc_norm/folder/questions.jsonl; do
    grep -qa "$tag" asked/events.out.tfevents.* || fail "asked: no $tag in TensorBoard"
done

# An import fills the disk: the sentence names the folder that the user typed, and no key; nothing is left.
models=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../golden/hf")
disk small 16
code=0
"$trireme" ckpt import "$models/qwen3" small/run >import.out 2>import.err || code=$?
[[ $code == 74 && $(wc -l <import.err) == 1 ]] || fail "an import to a full disk: exit code $code: $(<import.err)"
grep -q "small/run/.*: No space left on device; .*: make room" import.err || fail "an import to a full disk: $(<import.err)"
grep -q "log\.dir" import.err && fail "an import to a full disk names log.dir: $(<import.err)"
[[ -z $(ls -A small) ]] || fail "an import to a full disk left $(ls -A small)"
finish
