#!/usr/bin/env bash
# Tests bad input: every fault ends the run on all ranks with one message that names cause and remedy, with
# the documented exit code, without a hang, and with the last committed checkpoint intact.
# usage: bad_input.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# refuses CODE RANKS PATTERN ARGUMENTS...: a training run ends with that code and one line that matches.
refuses() {
    local code=$1 ranks=$2 pattern=$3
    shift 3
    train "$code" "$ranks" refused "$@"
    says refused "$pattern"
    rm -rf refused
}

# command CODE PATTERN ARGUMENTS...: the same for any command line.
command_fails() {
    local want=$1 pattern=$2 code=0
    shift 2
    timeout -k 5 60 "$trireme" "$@" >command.out 2>command.err || code=$?
    [[ $code == "$want" ]] || fail "trireme $*: exit code $code, not $want"
    says command "$pattern"
}

# The command that shows why mpirun does not start has the options that were passed to it. mpirun's own lines may come
# before or after the sentence, because the launcher does not wait for them.
bogus=0 code=0
plain_mpirun -n 2 --bogus 1 hostname >/dev/null 2>&1 || bogus=$? # it depends on mpirun's version
"$trireme" run -n 2 --mpi "--bogus 1" train base.yaml log.dir=bogus parallel.dp=2 >command.out 2>command.err || code=$?
[[ $code == 69 ]] && grep -q "trireme: mpirun ended with $bogus before the job began; see why with: mpirun .*-n 2 --bogus 1 hostname$" command.err ||
    fail "--mpi: exit code $code, said '$(<command.err)'"

# Open MPI 5 says the same of a host that it cannot reach at the start and of one that it loses later: such an mpirun,
# which first runs the given command.
mkdir unreached
cat >unreached/mpirun <<'M'
#!/usr/bin/env bash
$before
row=$(printf -- '-%.0s' {1..74})
printf '%s\n' "$row" 'PRTE has lost communication with a remote daemon.' '' \
    '  HNP daemon   : [prterun-a-7@0,0] on node a' '  Remote daemon: [prterun-a-7@0,1] on node b' '' "$row" >&2
exit 255
M
chmod +x unreached/mpirun
printf 'a\nb\n' >hosts
export before
before=true PATH=$scratch/unreached:$PATH command_fails 69 \
    "mpirun ended with 255 before the job began; see why with: mpirun .*--hostfile hosts hostname$" \
    run -n 2 --hostfile hosts train base.yaml parallel.dp=2
before='echo step 1' PATH=$scratch/unreached:$PATH command_fails 77 "lost host b; mpirun's daemon there has ended" \
    run -n 2 --hostfile hosts train base.yaml parallel.dp=2
unset before

# --- files of the wrong kind ------------------------------------------------------------------------------

mkfifo fifo fifo.yaml fifo.csv
: >empty
truncate -s 1025K large.yaml
truncate -s 1025M large.csv
printf 'data.path: fifo\n' >data_fifo.yaml
for launch in "" "run -n 2"; do
    dp=${launch:+parallel.dp=2}
    # shellcheck disable=SC2086 # words
    {
        command_fails 65 "the config file 'fifo.yaml' is a pipe: name a regular file" $launch train fifo.yaml $dp
        command_fails 65 "the config file '/dev/zero' is a device: " $launch train /dev/zero $dp
        command_fails 78 "the config file 'large.yaml' is larger than the limit of 1 MiB: name another file" $launch train large.yaml $dp
        command_fails 65 "the data file 'fifo' is a pipe: name a regular file \(data.path\)" $launch train data_fifo.yaml $dp
        command_fails 65 "the data file '/dev/zero' is a device: .*\(data.path\)" $launch train data_fifo.yaml data.path=/dev/zero $dp
        command_fails 65 "the data file 'empty' is empty" $launch train data_fifo.yaml data.path=empty $dp
        command_fails 65 "the schedule file 'fifo.csv' is a pipe: " $launch train base.yaml parallel.schedule=fifo.csv $dp
        command_fails 65 "the schedule file 'large.csv' is larger than the limit of 1 GiB: name another file" \
            $launch train base.yaml parallel.schedule=large.csv $dp
    }
done
# Only one rank could read a config from a pipe.
command_fails 65 "the config file '/dev/fd/[0-9]+' is a pipe: " train <(echo data.path: x)
command_fails 65 "the config file 'fifo' is a pipe: " plan fifo
command_fails 65 "the config file 'fifo.yaml' is a pipe: " data fifo.yaml
command_fails 65 "the data file 'fifo' is a pipe: " data fifo
command_fails 65 "the data file '.' is a directory: " data .
for check in "schedule check" "schedule show" "simulate --schedule"; do
    # shellcheck disable=SC2086 # words
    {
        command_fails 65 "the schedule file './fifo' is a pipe: " $check ./fifo
        command_fails 65 "the schedule file '/dev/zero' is a device: " $check /dev/zero
        command_fails 65 "the schedule file 'large.csv' is larger than the limit of 1 GiB" $check large.csv
    }
done
command_fails 65 "the hostfile 'fifo' is a pipe: " run -n 2 --hostfile fifo train base.yaml
command_fails 66 "the hostfile 'none' cannot be opened: No such file" run -n 2 --hostfile none train base.yaml
mkdir -p pipe/ckpt-of-none && mkfifo pipe/metrics.jsonl
train 74 1 pipe
says pipe "'.*/pipe/metrics.jsonl' cannot be opened: "
# A run needs to write its config, but continues without a trace or a report.
mkdir -p pipe1 && : >pipe1/ckpt
train 65 1 pipe1
says pipe1 "checkpoints cannot be saved in '.*/pipe1/ckpt', which is not a directory \(log.dir\): remove it, "
[[ ! -s pipe1/metrics.jsonl ]] || fail "pipe1: steps were taken"
mkdir -p pipe2 && mkfifo pipe2/config.yaml.tmp
train 74 1 pipe2
says pipe2 "'.*/pipe2/config.yaml.tmp' cannot be written: "
mkdir -p pipe3 && mkfifo pipe3/trace.json pipe3/report.html.tmp
train 0 1 pipe3 --trace 2
[[ $(grep -c '^trireme: warning: no \(trace\|report\): .*pipe3/.* cannot be written: ' pipe3.err) == 2 ]] || fail "pipe3: $(<pipe3.err)"

# --- the command line and the config -----------------------------------------------------------------

command_fails 64 "no config was given: name a YAML file, which may be empty when arguments set its keys; usage: trireme train CONFIG" train data.path=text
mkdir -p finished folder
: >finished/config.yaml
: >folder/config.json
for name in finished finished/; do
    command_fails 65 "the config file '$name' is a directory: did you mean finished/config.yaml\?" train $name --resume
done
command_fails 65 "the config file 'folder' is the folder of a model: name it in a config, like model.init_from: folder" plan folder
command_fails 65 "the config file '.' is a directory: name a regular file" train .
command_fails 64 "more than one config, or a key without its value: train.steps; usage: " train base.yaml train.steps
command_fails 64 "the number of ranks is missing: give -n; usage: trireme run " run train base.yaml
command_fails 64 "only train can be started again: leave --restarts out; usage: " run -n 2 --restarts 1 sample runs
for option in -n -np --restarts --restarts=2 --hostfile; do
    command_fails 64 "${option%=*} is an option of run, before the command: trireme run -n RANKS " train base.yaml $option
done
command_fails 64 "unknown option --lr; did you mean the key optim.lr?" train base.yaml --lr=3
command_fails 64 "--debug-nan takes no value: leave =1 out" train base.yaml --debug-nan=1
command_fails 64 "unknown option --time_limit; did you mean --time-limit?" train base.yaml --time_limit=3
command_fails 64 "--restarts takes a whole number from 0 to 65536, not .often." run -n 2 --restarts often train base.yaml
command_fails 64 "ranks cannot run 'trian'; did you mean 'train'" run -n 2 trian base.yaml
command_fails 64 "ckpt takes ls, verify, import or export, not 'list'; usage: " ckpt list runs
command_fails 66 "there is no checkpoint under nowhere/ckpt" ckpt ls nowhere
command_fails 66 "there is no checkpoint under nowhere/ckpt" sample nowhere
command_fails 65 "there is no checkpoint under base.yaml/ckpt" ckpt ls base.yaml
command_fails 65 "'base.yaml' is a file: name a run, or the folder of a model; .trireme ckpt import FILE RUN. makes a run of a single file .*" sample base.yaml

printf 'data.path: %s\ntrain:\n  steps: ten\n' "$text" >type.yaml
printf 'data.path: %s\ntrain:\n  stepz: 10\n' "$text" >key.yaml
printf 'data.path: %s\nmodel:\n  heads: 6\n  width: 32\n' "$text" >heads.yaml
for launch in "" "run -n 3"; do
    # shellcheck disable=SC2086 # words
    {
        command_fails 64 "unknown option --resum; did you mean --resume" $launch train base.yaml --resum
        command_fails 66 "the config file 'no.yaml' cannot be opened: No such file" $launch train no.yaml
        command_fails 78 "type.yaml:3:10: train.steps must be an integer \(for example 1000\), not 'ten'" $launch train type.yaml
        command_fails 78 "key.yaml:3:3: unknown key 'train.stepz'; did you mean train.steps\?" $launch train key.yaml
        command_fails 78 "heads.yaml:4:10: model.width 32 is not divisible by model.heads 6" \
            $launch train heads.yaml ${launch:+parallel.dp=3 train.batch=12}
    }
done
for ranks in 1 3; do
    dp=parallel.dp=$ranks
    refuses 78 $ranks "unknown key 'trian.steps'; did you mean train.steps\?" $dp trian.steps=5
    refuses 78 $ranks "unknown key 'xyzzy'; .trireme help. lists all keys" $dp xyzzy=5
    refuses 66 $ranks "the data file 'no.txt' cannot be opened: No such file or directory \(data.path\)" $dp data.path=no.txt
    refuses 65 $ranks "a sequence of 100001 tokens .* is longer than the training part of .*: use more data or a smaller model.context" \
        $dp model.context=100000
    CUDA_VISIBLE_DEVICES='' refuses 69 $ranks "(this build of Trireme has no CUDA backend|no GPU can be used here .*): .*set device.name=cpu" \
        $dp device.name=cuda
    refuses 78 $ranks "device.name must be cpu, cuda, cuda:N or ref, not 'gpu'; did you mean 'cuda'?" $dp device.name=gpu
    divides=
    ((ranks == 1)) || divides='set parallel.zero to 1, '
    refuses 76 $ranks "rank 0 of the pipeline needs .* and a rank may use .*: ${divides}raise parallel.pp" $dp device.memory=10KiB
done

# mpirun may drop what a rank wrote last before MPI_Abort. The launcher says it then.
mkdir deaf
printf '#!/bin/sh\nexec %s "$@" 2>/dev/null\n' "$(command -v mpirun)" >deaf/mpirun
chmod +x deaf/mpirun
PATH=$scratch/deaf:$PATH command_fails 66 "the data file 'no.txt' cannot be opened: No such file or directory" \
    run -n 2 train base.yaml parallel.dp=2 data.path=no.txt
command_fails 78 "train.seed must be between 0 and 9007199254740992, not 9007199254740993" \
    plan base.yaml train.seed=9007199254740993
command_fails 64 "--costs: F must be 0 or between 1e-30 and 1e\+30, not '1e308'; usage: " \
    simulate --schedule 1f1b -p 4 -m 8 --costs F=1e308
command_fails 64 "--costs: F must be 0 or between 1e-30 and 1e\+30, not '0x10'; usage: " \
    simulate --schedule 1f1b -p 4 -m 8 --costs F=0x10
refuses 78 1 "parallel.pp \* tp \* dp = 2 \* 2 \* 1 needs 4 ranks, but 1 was started: use .trireme run -n 4 train" \
    parallel.pp=2 parallel.tp=2
refuses 78 3 ".*parallel.pp \* tp \* dp = 2 \* 1 \* 1 needs 2 ranks, but 3 were started: use .trireme run -n 2 train" parallel.pp=2
refuses 78 3 ".*base.yaml:1:38: model.heads 4 is not divisible by parallel.tp 3: a tensor rank holds whole heads" parallel.tp=3
refuses 78 3 "parallel.pp 3 with parallel.virtual 1 makes 3 stages, but model.layers is 2: every stage needs a layer" parallel.pp=3 model.layers=2
refuses 78 3 "train.batch 13 is not a multiple of .*: the next multiple is 15" parallel.dp=3 train.batch=13

# Started by a launcher that does not start MPI: each process would train alone.
SLURM_NTASKS=4 refuses 69 1 "SLURM_NTASKS=4, but MPI sees one rank: start with 'srun --mpi=pmix -n 4 trireme " parallel.dp=4
WORLD_SIZE=4 refuses 69 1 "WORLD_SIZE=4, but MPI sees one rank .*: start with 'trireme run -n 4 " parallel.dp=4
# But one rank of mpirun is what was asked for, also in a batch job for several.
SLURM_NTASKS=4 "$trireme" run -n 1 train base.yaml train.steps=1 log.dir=batch_job >batch_job.out 2>&1 ||
    fail "one rank in a batch job for several: $(cat batch_job.out)"

# A limit on the file size must not kill the process with SIGXFSZ.
limit=$(ulimit -S -f)
ulimit -S -f 400
train 74 1 limited checkpoint.every=0
ulimit -S -f "$limit"
says limited "cannot .*: File too large; a checkpoint of this run takes at least [0-9]+ bytes: raise the limit on a file's size \(ulimit -f\)"

# --- a run that diverges ----------------------------------------------------------------------------

for ranks in 1 4; do
    layout=()
    [[ $ranks == 1 ]] || layout=(parallel.pp=2 parallel.tp=2)
    run=diverges-$ranks
    train 65 $ranks $run "${layout[@]}" optim.lr=1000 optim.clip=0 optim.warmup=0 checkpoint.every=1
    says $run "training has diverged: at step [0-9]+ the loss is .*; lower optim.lr.*\(step [0-9]+ is saved\)"
    intact $run "$(sed -n 's/.*(step \([0-9]*\) is saved).*/\1/p' $run.err)"
done

# --- a data file that is shortened ------------------------------------------------------------------

# The run ends with 65 on every rank and one sentence, and the last finished step is saved. When the file is
# restored, the run reaches the bits of an undisturbed run.
[[ $(wc -c <"$text") == 60780 ]] || fail "shortened: the file has another size"
for ranks in 1 4; do
    run=shortened-$ranks
    # With a constant learning rate the number of steps changes no step.
    options=(data.path=$run.txt checkpoint.every=0 optim.min_lr=0.003)
    cp "$text" $run.txt
    (until_true 60 past $run 5 && truncate -s 100 $run.txt) &
    train 65 $ranks $run parallel.pp=$ranks "${options[@]}" train.steps=100000
    wait $!
    saved=$(last_step $run)
    says $run "the data file '$run.txt' was shortened while it was in use: byte [0-9]+ of 60780 is gone; restore the file \(step $saved is saved\)"
    intact $run "$saved"
    cp "$text" $run.txt
    end=$((saved + 10))
    train 0 $ranks $run parallel.pp=$ranks "${options[@]}" train.steps=$end --resume
    train 0 1 whole-$ranks "${options[@]}" train.steps=$end
    same_tensors $run whole-$ranks $end
    [[ $(field $run step | wc -l) == "$end" ]] || fail "$run: not every step is recorded"
done

# Only the held-out part is missing: the step before the validation is recorded and saved.
cp "$text" held.txt
(until_true 60 past held 5 && truncate -s 55000 held.txt) &
train 65 2 held parallel.dp=2 data.path=held.txt train.steps=100000 train.validate_every=200
wait $!
says held "the data file 'held.txt' was shortened .* \(step [0-9]*00 is saved\)"
intact held "$(last_step held)"

# --- checkpoints ------------------------------------------------------------------------------------

train 0 4 good parallel.pp=2 parallel.tp=2
train 78 1 good
says good "'.*/good' contains another run: continue it with --resume, or choose another directory with log.dir=..."
train 78 4 good parallel.pp=2 parallel.tp=2
says good "'.*/good' contains another run: "
refuses 66 4 "there is no checkpoint under '.*' to resume from: start the run without --resume" \
    --resume parallel.pp=2 parallel.tp=2
for ranks in 1 2; do
    tp=parallel.tp=$ranks
    train 65 $ranks good --resume $tp model.width=64
    says good ".*/good/ckpt holds a checkpoint of another model: its model.width is 32, and this config's is 64; "
    train 65 $ranks good --resume $tp model.heads=2
    says good ".*: its model.heads is 4, and this config's is 2; "
    train 78 $ranks good --resume $tp train.seed=8
    says good "train.seed is 8, but the checkpoint was made with 7: "
done
intact good 20
code=0
timeout -k 5 60 "$trireme" sample good -n 1000000000 >/dev/full 2>command.err || code=$?
[[ $code == 74 ]] || fail "sample to a full disk: exit code $code"
says command "the text cannot be written: No space left on device"

# damaged RUN HOW: copies the good run; a shard of its newest step is cut or has flipped bits.
damaged() {
    local run=$1 how=$2 shard
    rm -rf "$run"
    cp -r good "$run"
    shard=$(echo "$run"/ckpt/step-00000020/shard-00002-of-*.h5)
    if [[ $how == cut ]]; then
        truncate -s -100 "$shard"
    else
        flip "$shard" 140000 6 # amid the weights
    fi
}

# passed_over RUN RANKS CAUSE: the run continues from step 10, and takes step 20 again.
passed_over() {
    train 0 "$2" "$1" --resume parallel.tp="$2"
    [[ -z $3 ]] || says "$1" "warning: resuming from step 10, because a newer one is not valid: .*$3"
    intact "$1" 10
    intact "$1" 20
}

for ranks in 1 2; do
    # A cut shard is found before anything is read.
    cause="shard-00002-of-00004.h5 has [0-9]+ bytes, [0-9]+ were written: it is truncated"
    run=cut-$ranks
    damaged $run cut
    command_fails 65 ".*$cause" ckpt verify $run 20
    "$trireme" ckpt ls $run >command.out || fail "$run: ckpt ls failed"
    grep -Eq "^20 .*/shard-00002-of-00004.h5 has .*: it is truncated" command.out || fail "$run: ckpt ls: $(<command.out)"
    # Without a step, verify reads the newest valid one, and says why that is not the newest.
    "$trireme" ckpt verify $run >command.out 2>command.err || fail "$run: ckpt verify: $(<command.err)"
    grep -q "^step 10: all blocks of all shards are intact$" command.out || fail "$run: ckpt verify: $(<command.out)"
    grep -Eq "^trireme: warning: using step 10, because a newer one is not valid: .*$cause" command.err ||
        fail "$run: ckpt verify is silent about step 20: $(<command.err)"
    passed_over $run $ranks "$cause"
    damaged $run cut
    rm -r "$(step_dir $run 10)"
    train 65 $ranks $run --resume parallel.tp=$ranks
    says $run "no checkpoint under .* is valid; the newest: .*$cause.*; start again with another log.dir$"

    # A flipped bit is found when it is read. A step that is named is never another one.
    cause="shard-00002-of-00004.h5: block [0-9]+ of tensor .* does not have its checksum: it is corrupt"
    run=flipped-$ranks
    damaged $run flipped
    command_fails 65 ".*$cause.*; the newest valid step before it is 10" ckpt verify $run 20
    command_fails 65 ".*$cause.*; the newest valid step before it is 10" sample $run --step 20 -n 4
    "$trireme" ckpt ls $run >command.out || fail "$run: ckpt ls failed"
    # It reads no tensors, so it reports only that the step is complete.
    [[ $(grep -Ec "^(10|20) .* complete$" command.out) == 2 ]] || fail "$run: ckpt ls: $(<command.out)"
    passed_over $run $ranks "$cause"
    damaged $run flipped
    rm -r "$(step_dir $run 10)"
    train 65 $ranks $run --resume parallel.tp=$ranks
    says $run "no checkpoint under .* is valid; the newest: .*$cause.*; start again with another log.dir$"
done
finish
