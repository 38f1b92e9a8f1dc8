#!/usr/bin/env bash
# Tests the commands that need no model: help, data, doctor; errors appear once, on stderr, with their exit
# codes.
# usage: cli.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
source "$(dirname "$0")/common.sh"
cd "$scratch"

# expect CODE STDERR_LINE ARGUMENTS...: the command is refused with exactly that line.
expect() {
    refused "$@"
    [[ $(<refused.err) == "$2" ]] || fail "trireme ${*:3}: said '$(<refused.err)', not '$2'"
}

# shows PATTERN ARGUMENTS...: the command ends with 0, nothing on stderr, a line of stdout that matches.
shows() {
    local pattern=$1
    shift
    "$trireme" "$@" >out 2>err || fail "trireme $*: failed: $(<err)"
    [[ ! -s err ]] || fail "trireme $*: wrote to stderr"
    grep -Eq -- "$pattern" out || fail "trireme $*: no line like '$pattern'"
}

expect 64 "trireme: no command was given; \`trireme help\` lists the commands"
expect 64 "trireme: unknown command 'dta'; did you mean \`trireme data\`?" dta
expect 64 "trireme: --trace before a command is now --backtrace; \`trireme train CONFIG --trace N\` records N steps" --trace data x.yaml
expect 64 "trireme: --backtrace goes before the command: trireme --backtrace train" train x.yaml --backtrace
expect 64 "trireme: unknown command 'xyzzy'; \`trireme help\` lists the commands" xyzzy
# Commands of other programs.
other() { expect 64 "trireme: unknown command '$1'; did you mean \`trireme ${*:2}\`?" "$1"; }
other generate sample RUN
other inference sample RUN
other chat sample RUN --interactive
other serve sample RUN --interactive
other evaluate eval RUN
other fine-tune train CONFIG model.init_from=FOLDER
other resume train CONFIG --resume
other convert "ckpt import\` or \`trireme ckpt export"
other split help parallel.cut
expect 64 "trireme: unknown command or key 'convert'; did you mean \`trireme ckpt import\` or \`trireme ckpt export\`?" help convert
expect 64 "trireme: ranks cannot run 'generate'; did you mean \`trireme sample RUN\`?" run -n 2 generate run
# Each command that the table names is one, and its options are.
# shellcheck disable=SC2016 # backticks of the table
while read -r command words; do
    "$trireme" help "$command" >out || fail "the command $command does not exist"
    for word in $words; do
        [[ $word != [a-z-]* || $word == *.* ]] || grep -q -- "$word" out || fail "$command has no $word"
    done
done < <(sed -n '/^    {"`trireme/s/.*"`trireme \([^`]*\)`.*/\1/p' "$(dirname "$0")/../../config/elsewhere.c")
# So is each option and operand, in some command's usage, and each value, of some key or option.
for command in ckpt data eval plan run sample schedule simulate train; do "$trireme" help $command | sed -n 1p; done >usages
for key in $("$trireme" help | grep -oE '^  [a-z]+(\.[a-z_0-9]+)+ ' | sort -u); do "$trireme" help "$key"; done >values
while read -r ours; do
    case $ours in [-A-Z]*) grep -qF -- "$ours" usages ;; *) grep -qw -- "${ours#=}" values ;; esac || fail "there is no '$ours'"
done < <(sed -n 's/^    {"\([-=A-Z][^"]*\)".*/\1/p' "$(dirname "$0")/../../config/elsewhere.c")
expect 64 "trireme: unknown option --max_new_tokens; did you mean -n TOKENS?" sample run --max_new_tokens=5
expect 64 "trireme: unknown option --nproc-per-node; did you mean -n RANKS?" run --nproc-per-node 2 train x.yaml
# Each is the last word of a command line.
while IFS='>' read -r line hint; do
    read -ra words <<<"$line"
    expect 64 "trireme: unknown option ${words[-1]}; did you mean $hint?" "${words[@]}"
done <<'END'
train x.yaml --bf16>the key train.precision
train x.yaml --batch-size>the key train.batch
train x.yaml --epochs>the key train.steps
train x.yaml --output>the key log.dir
train x.yaml -o>the key log.dir
train x.yaml -lr>the key optim.lr
train x.yaml --device>the key device.name
train x.yaml --data>the key data.path
train x.yaml --load>--resume
train x.yaml -resume>--resume
train x.yaml --profile>--trace N
train x.yaml --dry-run>`trireme plan CONFIG`
train x.yaml --log-dir>the key log.dir
train x.yaml --checkpoint_keep-every>the key checkpoint.keep_every
train x.yaml --min-lr>the key optim.min_lr
train x.yaml --nproc-per-node>`trireme run -n RANKS train ...`
train x.yaml --gpus>`trireme run -n RANKS train ...`
plan x.yaml --world-size>--search RANKS
plan x.yaml -n>--search RANKS
plan x.yaml --gpu-memory>the key device.memory
data x.yaml --format>the key data.format
data tokenize x --output-prefix>-o PREFIX
data tokenize x --vocab>--tokenizer FILE|DIR
data tokenize x -j>--threads N
data train-bpe x --vocab-size>--vocab N
data train-bpe x --out>-o FILE|DIR
sample run --n>-n
sample run -temperature>--temperature
sample run --greedy>--temperature T
sample run --chat>--interactive
sample run --device>the key device.name
eval run --tasks>--data FILES
ckpt export run x --torch-dtype>--dtype fp32|bf16|fp16
ckpt export run x --lora>--adapter
schedule gpipe --num-stages>-p P
schedule gpipe --output>-o FILE.csv
schedule show gpipe -o>--svg FILE
simulate --microbatches>-m M
run --nnodes>--hostfile FILE
run --np>-n RANKS
run -n2>-n 2
run -n=2>-n 2
sample run -p=a=b>-p a=b
schedule show gpipe -p2>-p 2
schedule show gpipe --num-stages>-p P
END
# What other programs have an option for, and Trireme has not.
while IFS='>' read -r line remark; do
    read -ra words <<<"$line"
    expect 64 "trireme: unknown option ${words[-1]}: $remark" "${words[@]}"
done <<'END'
train x.yaml --wandb>every run writes metrics.jsonl and TensorBoard events to log.dir
train x.yaml --verbose>log.every sets how often a line is printed
train x.yaml --force>nothing is overwritten: continue the run with --resume, or set another log.dir
ckpt export run x --force>nothing is overwritten: name a new folder
plan x.yaml --json>only eval and simulate write JSON
ckpt ls run --json>only eval and simulate write JSON
sample run --json>with --prompts FILE every text is a line of JSON
END
# Operands, for which they have options.
while read -r ours option command; do
    # shellcheck disable=SC2086 # words
    expect 64 "trireme: unknown option $option; write $ours without an option, as in \`trireme $command $ours\`" $command "$option" x
done <<'END'
CONFIG --config train
CONFIG -c plan
CONFIG|FILE --input data
FILES... --input data tokenize
FILES... --files data train-bpe
RUN --model sample
RUN --checkpoint eval
NAME|FILE --schedule schedule
END
expect 64 "trireme: unknown option --output; write RUN FOLDER without an option, as in \`trireme ckpt export RUN FOLDER\`" ckpt export --output x
# No hint is better than a wrong one: at a key that the command does not take, at another form's option, or far away.
while IFS='>' read -r line usage; do
    read -ra words <<<"$line"
    expect 64 "trireme: unknown option ${words[-1]}; usage: trireme $usage" "${words[@]}"
done <<'END'
data tokenize x --seq-length>data tokenize FILES... --tokenizer FILE|DIR -o PREFIX [--key KEY] [--no-special] [--threads N]
data train-bpe x --threads>data train-bpe FILES... --vocab N -o FILE|DIR [--key KEY] [--pattern gpt2|llama3|qwen|o200k]
ckpt ls run --step>ckpt ls RUN
ckpt import a --dtype>ckpt import FOLDER|FILE RUN
plan x.yaml --limit>plan [CONFIG] [--search RANKS] [--rate GFLOP/s] [key=value ...]
END
for option in --output --batch-size --input_ids; do
    expect 64 "trireme: unknown option $option; usage: trireme $("$trireme" help eval | sed -n '1s/^trireme //p')" eval run $option
done
expect 64 "trireme: --resume continues the run in log.dir: write log.dir=run; usage: $("$trireme" help train | sed -n 1p)" train x.yaml --resume run
printf '# none yet\n\n' >hosts
expect 65 "trireme: the hostfile 'hosts' names no host: write one a line, like node1 slots=8" run -n 2 --hostfile hosts train x.yaml
expect 64 "trireme: unknown command 'report': every run writes report.html to its log.dir" report run
expect 64 "trireme: unknown option --step; write RUN [STEP] without an option, as in \`trireme ckpt verify RUN [STEP]\`" ckpt verify run --step 4
expect 64 "trireme: name the schedule with --schedule gpipe; usage: $("$trireme" help simulate | sed -n 1p)" simulate gpipe -p 2 -m 2
expect 64 "trireme: unknown command 'x.yaml'; did you mean \`trireme train x.yaml\`?" x.yaml
expect 64 "trireme: ranks cannot run 'x.yaml'; did you mean 'train x.yaml'?" run -n 2 x.yaml
expect 64 "trireme: unknown option '-V'; did you mean \`trireme --version\`?" -V
expect 64 "trireme: unknown command 'version'; did you mean \`trireme --version\`?" version
expect 64 "trireme: unknown option '--verison'; did you mean \`trireme --version\`?" --verison
expect 64 "trireme: unknown command or key 'optmi'; did you mean \`trireme help optim\`?" help optmi
expect 64 "trireme: unknown command or key 'stepz'; did you mean \`trireme help train.steps\`?" help stepz
expect 64 "trireme: unknown command or key 'LoRA'; did you mean \`trireme help model.lora\`?" help LoRA
expect 64 "trireme: unknown command or key 'rank'; did you mean \`trireme help model.lora.rank\`?" help rank
expect 64 "trireme: train-bpe is a part of data, which \`trireme help data\` explains" help train-bpe
expect 64 "trireme: unknown command 'verify'; did you mean \`trireme ckpt verify\`?" verify run
expect 64 "trireme: unknown command 'CONFIG'; \`trireme help\` lists the commands" CONFIG
expect 64 "trireme: --resume is an option, which \`trireme help train\` explains" help resume
expect 64 "trireme: swiglu is a value of model.activation, which \`trireme help model.activation\` explains" help swiglu
expect 64 "trireme: zbv is a value of parallel.schedule, which \`trireme help parallel.schedule\` explains" help zbv
expect 64 "trireme: unknown command or key 'xyzzy'; \`trireme help\` lists both" help xyzzy
expect 64 "trireme: unknown command or key 'ends'; \`trireme help\` lists both" help ends
expect 64 "trireme: doctor takes no arguments; usage: trireme doctor" doctor now
expect 64 "trireme: unknown option --fast; usage: trireme train CONFIG [--resume[=auto]] [--time-limit T] [--trace N] [--debug-nan] [key=value ...]" train x.yaml --fast
# A word that is not an option is named, also as the last one, where its value would be missing.
for command in "eval run" "train x.yaml" "plan x.yaml" "ckpt ls run" "ckpt verify run" "ckpt import a b" "ckpt export a b" "data tokenize a" \
    "data train-bpe a" "schedule gpipe" "simulate" "run" "sample run"; do
    # shellcheck disable=SC2086 # words
    code=0 && "$trireme" $command --foo >out 2>err || code=$?
    [[ $code == 64 ]] && grep -q "^trireme: unknown option --foo; usage: trireme ${command%% *} " err || fail "$command --foo: exit code $code: $(<err)"
done
: >-dash.yaml
expect 64 "trireme: unknown option -dash.yaml; write ./-dash.yaml for the file of this name" plan -dash.yaml
expect 64 "trireme: unknown option --temprature; did you mean --temperature?" sample run --temprature
expect 64 "trireme: unknown option --temp; did you mean --temperature?" sample run --temp 0
expect 64 "trireme: unknown option --tensor-model-parallel-size; did you mean the key parallel.tp?" train x.yaml --tensor-model-parallel-size 2
expect 64 "trireme: --pattern is gpt2, llama3, qwen or o200k, not 'lama3'; did you mean 'llama3'?; usage: trireme data train-bpe FILES... --vocab N -o FILE|DIR [--key KEY] [--pattern gpt2|llama3|qwen|o200k]" data train-bpe x --pattern lama3
expect 64 "trireme: --dtype must be fp32, bf16 or fp16, not 'bf'; did you mean 'bf16'?; usage: trireme ckpt export RUN FOLDER [--adapter] [--dtype fp32|bf16|fp16] [--step N] [--max-shard-size 5GB]" ckpt export run x --dtype bf
expect 64 "trireme: --train.steps is a key: write it with its value, as train.steps=VALUE" train x.yaml --train.steps 5
# The value of an option may follow a '='. What is not an option stays a key, a value of another option, or a file.
expect 64 "trireme: --seed takes a whole number from 0 to 9223372036854775807, not 'x'; usage: $("$trireme" help sample | sed -n 1p)" sample run --seed=x
expect 66 "trireme: the config file 'none.yaml' cannot be opened: No such file or directory" plan none.yaml --search=4 --rate=3 --train.steps=5
expect 66 "trireme: the config file 'none.yaml' cannot be opened: No such file or directory" run -np 2 train none.yaml --time-limit=5s
expect 66 "trireme: there is no checkpoint under none/ckpt: name the log.dir of a run that has saved one" sample none -p --seed=x
expect 64 "trireme: --resume takes =auto or nothing, not '=yes': it continues the run in log.dir; usage: $("$trireme" help train | sed -n 1p)" train x.yaml --resume=yes
for command in plan "data $text" "schedule 1f1b -p 2 -m 2" "ckpt verify none"; do
    # shellcheck disable=SC2086 # words
    expect 64 "trireme: every rank would do all of \`trireme ${command%% *}\`: call it without \`run -n 2\`" run -n 2 $command
done
for option in -n -p --stop --top-k; do
    code=0 && "$trireme" sample run $option >out 2>err || code=$?
    [[ $code == 64 ]] && grep -q "^trireme: a value is missing after $option; " err || fail "sample $option: exit code $code: $(<err)"
done
code=0 && "$trireme" data "$text" --foo >out 2>err || code=$?
[[ $code == 64 ]] && grep -q "^trireme: unknown option --foo; usage: trireme data CONFIG|FILE \[key=value ...\]$" err || fail "data --foo: exit code $code: $(<err)"
expect 66 "trireme: there is no checkpoint under no-run/ckpt: name the log.dir of a run that has saved one" ckpt ls no-run

shows '^trireme [0-9]+\.[0-9]+\.[0-9]+$' --version
shows '^trireme train CONFIG ' train --help
# The help of a command explains every option of its usage line.
# fits FILE: no line is longer than 100 characters, except the usage, which errors repeat.
fits() { ! grep -vE '^ *trireme ' "$1" | grep -E '^.{101}' || fail "$1 has lines of over 100 characters"; }
"$trireme" help >overview
fits overview
for command in $("$trireme" help | sed -n 's/^  trireme \([a-z]*\).*/\1/p'); do
    "$trireme" help "$command" >"$scratch/help"
    fits help
    for option in $(sed 1q "$scratch/help" | grep -oE '(^| |\[)--?[a-zA-Z][a-z-]*' | tr -d ' [' | sort -u); do
        grep -qE -- "(^|[ ,])$option([ ,=]|$)" <(sed 1,2d "$scratch/help") || fail "help $command does not explain $option"
    done
done
expect 64 "trireme: --help goes right after the command: trireme run --help" run -n 2 --help
shows '^  train.steps +1000 ' help
shows '^  takes    an integer, 1 to ' help train.steps
shows '^  argument optim.lr=0.001$' help optim.lr
shows "^  argument 'model.rope_scaling=llama3 8 1 4 8192'$" help model.rope_scaling
# The examples of all keys are valid YAML, and each is one word for the shell.
: >"$scratch/examples.yaml"
for key in $("$trireme" help | sed -nE 's/^  ([a-z]+\.[a-z0-9_.]+) .*/\1/p'); do
    "$trireme" help "$key" >"$scratch/help"
    sed -n 's/^  in YAML  //p' "$scratch/help" >>"$scratch/examples.yaml"
    words=()
    eval "words=($(sed -n 's/^  argument //p' "$scratch/help"))"
    [[ ${#words[@]} == 1 && $key:\ ${words[0]#"$key="} == "$(tail -n 1 "$scratch/examples.yaml" | tr -d \')" ]] ||
        fail "help $key: the argument is ${words[*]@Q}"
done
"$trireme" plan "$scratch/examples.yaml" >"$scratch/out" 2>&1 || true
grep 'not valid YAML' "$scratch/out" && fail "help: $(<"$scratch/out")"
shows '^  gpt2-124m +gpt2, layers 12, width 768' help model.preset
shows '^  llama-3-8b +llama, layers 32, width 4096, heads 32 \(key heads 8\)' help model.preset
shows '^  log.every ' help log
shows '^trireme data ' help data

printf 'data.path: %s\nmodel.context: 64\n' "$text" >good.yaml
shows '^tokens    60780, 77 different$' data "$text"
# The launcher refuses what the ranks would refuse, before it starts them: here it could not.
for wrong in train.stepz=1 parallel.dp=3 --fast; do
    code=0
    PATH=/nowhere "$trireme" run -n 2 train good.yaml "$wrong" >out 2>err || code=$?
    [[ $code == $([[ $wrong == --fast ]] && echo 64 || echo 78) && $(wc -l <err) == 1 ]] || fail "run train $wrong: $code, $(<err)"
done
shows '^training  54702 tokens, 853 windows of 64$' data good.yaml
shows '^held out  12156 tokens, 189 windows$' data good.yaml data.validation=0.2
shows '^held out  .*devil.txt, 949 windows$' data good.yaml data.validation="$text"
shows '^bigram    2\.[0-9]+ nats' data good.yaml

expect 66 "trireme: the config file 'no.yaml' cannot be opened: No such file or directory" data no.yaml
expect 66 "trireme: the data file 'no.txt' cannot be opened: No such file or directory (data.path)" data no.txt
expect 66 "trireme: the data file 'a,b' cannot be opened: No such file or directory (data.path); put blanks between files, not commas" data a,b
expect 66 "trireme: the data file '0.7' cannot be opened: No such file or directory (data.path); a weight is above 0 and before its files, like '0.7 a.bin 0.3 b.bin'" \
    data good.yaml "data.path=$text 0.7 $text 0.3"
# Numbers outside of their option's limits are refused, not clamped.
for option in "-n 9223372036854775808" "-n -1" "--top-k 4294967297" "--seed -1" "--step -1" "--temperature inf" "--temperature 1e7" "-n 0x10"; do
    # shellcheck disable=SC2086 # words
    code=0 && "$trireme" sample no-run $option >out 2>err || code=$?
    [[ $code == 64 ]] && grep -Eq "^trireme: ${option% *} takes a (whole )?number from 0 to .*, not '${option#* }'; usage: " err ||
        fail "sample $option: exit code $code: $(<err)"
done
expect 64 "trireme: STEP takes a whole number from 0 to 9223372036854775807, not 'x'; usage: trireme ckpt verify RUN [STEP]" ckpt verify no-run x
code=0 && "$trireme" ckpt export a b --max-shard-size 100KB >out 2>err || code=$?
[[ $code == 64 ]] && grep -q "^trireme: --max-shard-size must be a whole number of bytes, kB, KiB, MB, MiB, GB, GiB, TB or TiB, like 5GB, not '100KB'; " err ||
    fail "--max-shard-size: exit code $code: $(<err)"

# A sentence is one line without control characters, and names the cause even if the path is long.
expect 66 "trireme: the config file 'a?b?[31m.yaml' cannot be opened: No such file or directory" data $'a\nb\e[31m.yaml'
long=$(printf 'd/%.0s' {1..2000})
expect 66 "trireme: the config file '${long:0:512}...' cannot be opened: No such file or directory" plan "$long.yaml"
expect 66 "trireme: the config file '${long:0:512}...' cannot be opened: File name too long" plan "$long$long.yaml"
expect 65 "trireme: there is no checkpoint under $text/ckpt: name the log.dir of a run that has saved one" ckpt ls "$text"
expect 65 "trireme: '$text' is a file: name a run, or the folder of a model; \`trireme ckpt import FILE RUN\` makes a run of a single file (.safetensors, or llm.c's .bin)" sample "$text"
expect 64 "trireme: the run's name is empty: name the log.dir of a run" ckpt ls ""
expect 78 "trireme: unknown key 'trian.steps'; did you mean train.steps?" data good.yaml trian.steps=5
printf 'data.path: x\ntrain:\n  stepz: 5\n' >bad.yaml
expect 78 "trireme: bad.yaml:3:3: unknown key 'train.stepz'; did you mean train.steps?" data bad.yaml
expect 65 "trireme: a sequence of 100001 tokens (model.context + 1) is longer than the training part of '$text', 54702 tokens: use more data or a smaller model.context" \
    data good.yaml model.context=100000

# A config's name may have a '=', and the file may begin with a byte order mark.
printf '\xef\xbb\xbf' | cat - good.yaml >a=b.yaml
shows '^tokens    60780, 77 different$' data a=b.yaml
shows '^layout   pp 1 x tp 1 x dp 1, 1f1b' plan a=b.yaml model.layers=1
expect 78 "trireme: unknown key 'a'; \`trireme help\` lists all keys" plan good.yaml a=b.yaml
iconv -t UTF-16 good.yaml >utf16.yaml
expect 78 "trireme: utf16.yaml:1:1: the file is UTF-16: save it as UTF-8" data utf16.yaml

code=0
"$trireme" --backtrace data bad.yaml 2>err || code=$?
[[ $code == 78 && $(wc -l <err) == 2 ]] || fail "--backtrace: no source locations"
grep -q '^  at config/config.c:[0-9]* < config/config.c:' err || fail "--backtrace: said '$(<err)'"
code=0
"$trireme" --backtrace run -n 2 train bad.yaml 2>err || code=$?
[[ $code == 78 && $(wc -l <err) == 2 ]] || fail "--backtrace run: no source locations of a rank: '$(<err)'"
for variable in OMPI_COMM_WORLD_RANK PMIX_RANK PMI_RANK; do
    env $variable=1 "$trireme" data bad.yaml 2>err && fail "rank 1 succeeded"
    [[ ! -s err ]] || fail "rank 1 repeated the error of $variable"
done
# A command that may run alone asks MPI, too, when a launcher of several started it.
PMI_RANK=0 PMI_SIZE=2 refused 69 "trireme: PMI_SIZE=2, but MPI sees one rank" ckpt import none out

code=0
"$trireme" doctor >out || code=$?
[[ $code == 0 || $code == 69 ]] || fail "doctor: exit code $code"
for check in build cores mpi root threads hdf5 onednn cuda nccl files locked core shm disk; do
    grep -Eq "^(ok  |warn|fail)  $check " out || fail "doctor: no line for $check"
done
[[ -z $(ls -A | grep trireme-doctor || true) ]] || fail "doctor left a file behind"
# Lost output is noticed also before the end: parts as large as stdio's buffer, or lines that are flushed one
# by one.
for command in help "schedule 1f1b -p 64 -m 1000" doctor "run -n 2 help"; do
    # shellcheck disable=SC2086 # words
    [[ ! -w /dev/full ]] || { "$trireme" $command >/dev/full 2>err && fail "$command: a full disk went unseen" || [[ $? == 74 ]]; }
done
for option in --svg --trace; do
    [[ ! -w /dev/full ]] ||
        expect 74 "trireme: '/dev/full' cannot be written: No space left on device" schedule show 1f1b -p 2 -m 4 $option /dev/full
done

# Threads of a command that computes spin only briefly between loops, unless the user has set how long.
for command in train plan sample eval "--backtrace train"; do
    code=0
    # shellcheck disable=SC2086 # words
    spin=$(env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY OMP_DISPLAY_ENV=verbose "$trireme" $command none.yaml 2>&1) || code=$?
    [[ $code == 66 && $spin == *"GOMP_SPINCOUNT = '1000'"* ]] || fail "$command spins: $spin"
done
code=0
spin=$(env GOMP_SPINCOUNT=77 OMP_DISPLAY_ENV=verbose "$trireme" train none.yaml 2>&1) || code=$?
[[ $code == 66 && $spin == *"GOMP_SPINCOUNT = '77'"* && $spin != *"'1000'"* ]] || fail "GOMP_SPINCOUNT is lost: $spin"
finish
