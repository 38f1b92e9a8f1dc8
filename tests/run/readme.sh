#!/usr/bin/env bash
# Tests the documents. Every ```sh block of README.md and docs/*.md is run in order, with the README's own
# config (made small by further arguments); ```console blocks need root, minutes or a cluster, and only have
# to name scripts that exist. Keys, options, exit codes and files that are mentioned exist.
# usage: readme.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
source "$(dirname "$0")/common.sh"
cd "$scratch" && mkdir bin
documents=("$root/README.md" "$root"/docs/*.md)

# blocks KIND DOCUMENT: prints the lines of its ```KIND blocks as LINE:TEXT, and a block's end as LINE:```.
blocks() {
    awk -v fence="\`\`\`$1" '
        $0 == fence { inside = 1; print NR ":```"; next }
        /^ *```/ { inside = 0 }
        inside { print NR ":" $0 }' "$2"
}

# --- the environment of the commands -----------------------------------------------------------------------

# The real program; arguments after x.yaml make it small, and arguments of a document override them.
cat >bin/trireme <<END
#!/usr/bin/env bash
args=()
for word in "\$@"; do
    args+=("\$word")
    [[ \$word == x.yaml ]] && args+=(model.layers=2 model.width=32 model.heads=4 model.context=32
        train.steps=4 train.batch=4 train.micro_batch=1 train.validate_batches=1 train.threads=1 checkpoint.every=2)
done
exec '$trireme' "\${args[@]}"
END
# The real cmake, which builds only the test that the README runs, of the tested build's objects where it has them.
one_test=$(sed -n 's/^ctest .* -R unit\.\([a-z_]*\) .*/\1/p' "$root/README.md")
cmake=$(command -v cmake)
export TRIREME_TESTED=${trireme%/*}
objects=-DCMAKE_C_COMPILER_LAUNCHER=$root/tests/tools/tested_object.sh
! grep -Eq '^TRIREME_SANITIZE:[A-Z]*=.' "$TRIREME_TESTED/CMakeCache.txt" || objects=
cat >bin/cmake <<END
#!/usr/bin/env bash
[[ \$1 != --build ]] || set -- "\$@" --target $one_test
[[ \$1 != --preset ]] || set -- "\$@" -DCMAKE_C_FLAGS_RELEASE= -DTRIREME_CUDA=OFF $objects
exec '$cmake' "\$@"
END
# Reads its input to the end, so that a closed pipe does not end the command before it.
printf '#!/bin/sh\n/usr/bin/head "$@"\nexec cat >/dev/null\n' >bin/head
chmod +x bin/*
export PATH=$scratch/bin:$PATH TERM=dumb
set -a
source "$root/tests/mpi.env"
set +a
unset OMPI_COMM_WORLD_RANK PMIX_RANK PMI_RANK TRIREME_BACKTRACE

blocks yaml "$root/README.md" | sed -e '1d' -e '/:```$/,$d' -e 's/^[0-9]*://' >x.yaml
lines=$(wc -l <x.yaml)
((lines > 0 && lines < 10)) || fail "the README's config has $lines lines"

# --- every sh block -------------------------------------------------------------------------------

# as_after_quickstart FOLDER: copies the sources and configures them like the quickstart.
as_after_quickstart() {
    local entry configure
    for entry in "$root"/*; do
        [[ $entry == */build ]] || ln -s "$entry" "$1/"
    done
    configure=$(sed -n 's/^ *\(cmake --preset release.*\) && cmake --build build\/release$/\1/p' "$root/examples/quickstart.sh")
    [[ -n $configure ]] || fail "examples/quickstart.sh does not configure the release preset"
    (cd "$1" && bash -euo pipefail -c "$configure" >../configure.log 2>&1) || fail "$configure failed: $(tail -n 3 configure.log)"
}

# as_from_others FOLDER: makes the files that docs/data.md takes from other programs.
as_from_others() {
    local write=${trireme%/*}/tests/token_files
    bash "$root/tests/run/make_tokenizer.sh" >"$1/tokenizer.json"
    head -c 20000 "$1/corpus.txt" | "$write" u16 "$1/train.bin"
    tail -c 5000 "$1/corpus.txt" | "$write" u16 "$1/val.bin"
    "$write" llmc "$1/fineweb_train_000001.bin" <"$1/corpus.txt"
    "$write" megatron "$1/my_text_document" <"$1/corpus.txt"
}

# run_block DOCUMENT LINE FILE: runs the block in the document's folder.
run_block() {
    (cd "$1" && timeout 300 bash -euo pipefail "$3" </dev/null >"$3.out" 2>&1) && return 0
    fail "$1, the block in line $2 failed: $(tail -n 3 "$3.out")"
}

run=0
for document in "${documents[@]}"; do
    name=$(basename "$document")
    mkdir "$name"
    cp x.yaml "$name/"
    cp "$root/tests/data/devil.txt" "$name/corpus.txt"
    [[ $name != data.md ]] || as_from_others "$name"
    [[ $name != README.md ]] || as_after_quickstart "$name"
    block="" start=0
    while IFS= read -r text; do # a colon at its end stays
        line=${text%%:*} text=${text#*:}
        if [[ $text == '```' ]]; then
            [[ -n $block ]] && run_block "$name" "$start" "$block"
            start=$line
            block=$scratch/$name.$line.sh
            : >"$block"
            run=$((run + 1))
        else
            printf '%s\n' "$text" >>"$block"
        fi
    done < <(blocks sh "$document")
    [[ -n $block ]] && run_block "$name" "$start" "$block"
done
((run >= 10)) || fail "only $run blocks were found"

# --- names in the documents ----------------------------------------------------------------------------

"$trireme" help >help.txt
mentions() { grep -hoE -- "$1" "${documents[@]}" "$root"/examples/*.yaml | sort -u; }

sections='model|data|train|optim|parallel|checkpoint|guard|log|device'
known=$(sed -nE "s/^  (($sections)\.(lora\.)?[a-z_0-9]+) .*/\1/p" help.txt)
# Files like data/data.c, log.txt and model.safetensors are not keys; train.stepz is the documents' example of a wrong key.
for key in $(mentions "(^|[^/a-z_.-])($sections)\.(lora\.)?[a-z_0-9]+" | grep -oE "($sections)\.(lora\.)?[a-z_0-9]+" | sort -u); do
    [[ $key == train.stepz || $key == log.txt || $key == train.bin || $key == model.safetensors || $key == model.embed_tokens ]] || grep -qx -- "$key" <<<"$known" || fail "there is no key $key"
done
diff <(bash "$root/tools/config_table.sh" "$trireme") \
    <(sed '1,/^<!-- from here: /d; /^<!-- to here -->/,$d' "$root/docs/config.md" | sed '$d') >table.diff ||
    fail "docs/config.md is old: run tools/config_table.sh build/release/trireme --write"

# The sample of a plan in docs/schedules.md has the lines that the command before it prints.
lines_of_plan() { awk '/^[a-z]/ { print $1 }'; }
printed=$(ls -v schedules.md.*.sh.out | xargs grep -l '^in all ' | head -n 1)
diff <(sed -n '/^```text$/,/^```$/p' "$root/docs/schedules.md" | lines_of_plan) <(lines_of_plan <"$printed") >lines.diff ||
    fail "the plan in docs/schedules.md has other lines than $printed: $(<lines.diff)"

# Options of this program's commands; those of mpirun and srun come before its name.
for option in $(for d in "${documents[@]}"; do blocks sh "$d"; blocks console "$d"; done |
    sed -n 's/.*trireme \([a-z-].*\)/\1/p' | sed 's/ #.*//; s/ | .*//' |
    grep -oE -- '(^| )--?[a-z][a-z-]*' | sort -u); do
    grep -qE -- "(^|[^a-z-])$option([^a-z-]|$)" help.txt || fail "\`trireme help\` does not have the option $option"
done
for command in $(mentions '`trireme [a-z]+' | sed 's/.* //'); do
    grep -q "^  trireme $command" help.txt || fail "there is no command $command"
done

folders='examples|tests|tools|docs|bench|base|device|comm|job|layers|pipeline|ckpt|config|partition|train|cli'
for path in $(mentions "(^|[^a-z0-9_/.])($folders)/[a-z0-9_/]+\.(sh|md|yaml|c|h)" |
    grep -oE "($folders)/[a-z0-9_/.]+" | sort -u); do
    [[ -e $root/$path ]] || grep -qx "+++ b/$path" "$root"/tests/own_model/*.diff || fail "there is no $path"
done

# shellcheck disable=SC2013 # one number a line
for code in $(sed -nE 's/^ +TR_ERR_[A-Z]+ = ([0-9]+),.*/\1/p' "$root/base/status.h"); do
    grep -q "^| $code |" "$root/README.md" || fail "the README lacks exit code $code"
done

echo "$run blocks"
finish
