# Invalid inputs: mutated configs, schedules and arguments, and files that are pipes, devices, directories,
# endless or empty. The program ends soon with a documented code, and with one sentence unless the code is 0.
# shellcheck shell=bash disable=SC2154,SC2034 # one.sh sources this
ranks=1 layout=()
train 0 1 good train.steps=2 checkpoint.every=2
"$trireme" schedule 1f1b -p 2 -m 4 --comms -o good.csv >/dev/null
cp base.yaml good.yaml
mkdir directory
mkfifo pipe
: >empty
ln -s loop loop
truncate -s 1T endless
head -c 3000 /dev/urandom >noise
printf '\xef\xbb\xbf' | cat - base.yaml >marked.yaml
files=(/dev/zero /dev/full /dev/null /dev/urandom pipe directory empty loop endless noise nowhere "" . / good base.yaml
    marked.yaml good.csv "$(printf 'x%.0s' {1..5000})")
numbers=(0 -1 1 2 3 7 1000 2147483647 2147483648 9223372036854775807 9223372036854775808 -9223372036854775808
    18446744073709551616 1e308 1e309 -1e308 nan inf 0x10 1e-320 "" " " "1 2" 1.5 true null "[1]" "{a: 1}" "*" "'" '"')
mapfile -t keys < <("$trireme" help | sed -nE 's/^  ([a-z]+\.[a-z_0-9]+) .*/\1/p')

# mutated FILE: makes a copy in `mutant` with some lines or bytes changed, added or removed.
mutated() {
    local -a lines
    local changes at other how n word
    mapfile -t lines <"$1"
    draw changes 4
    for ((n = 0; n <= changes; n++)); do
        draw at "${#lines[@]}"
        draw other "${#lines[@]}"
        pick how octet octet number number drop double swap cut insert
        case $how in
            octet)
                draw word 255
                printf -v word '\\x%x' $((word + 1))
                printf -v word %b "$word"
                draw other $((${#lines[at]} + 1))
                lines[at]=${lines[at]:0:other}$word${lines[at]:other+1}
                ;;
            number)
                pick word "${numbers[@]}"
                [[ ${lines[at]} =~ [0-9]+ ]] && lines[at]=${lines[at]/${BASH_REMATCH[0]}/$word}
                ;;
            drop) lines[at]="" ;;
            double) lines[at]+=$'\n'${lines[other]} ;;
            swap) word=${lines[at]} lines[at]=${lines[other]} lines[other]=$word ;;
            cut) lines[at]=${lines[at]:0:$((${#lines[at]} / 2))} ;;
            insert) lines[at]+=$(printf '%*s' $((1 << changes * 4)) "{") ;;
        esac
    done
    printf '%s\n' "${lines[@]}" >mutant
}

# hostile: sets `words` to the words of a command line.
hostile() {
    local file key number kind
    pick file "${files[@]}"
    pick key "${keys[@]}"
    pick number "${numbers[@]}"
    pick kind config config config csv csv csv config-file csv-file data-file run-file override word
    case $kind in
        config)
            mutated good.yaml
            pick word plan data train
            words=("$word" mutant)
            ;;
        csv)
            mutated good.csv
            pick word "schedule check mutant" "schedule show mutant" "simulate --schedule mutant" \
                "train base.yaml parallel.schedule=mutant parallel.pp=2 train.batch=4"
            read -r -a words <<<"$word"
            ;;
        config-file)
            pick word plan data train
            words=("$word" "$file")
            # A terabyte of zeros is valid data.
            [[ $word != data || $file != endless ]] || words[1]=noise
            ;;
        csv-file)
            pick word check show
            words=(schedule "$word" "$file")
            ;;
        data-file)
            pick word plan train
            words=("$word" base.yaml data.path="$file")
            ;;
        run-file)
            pick word "sample" "ckpt ls" "ckpt verify" "train base.yaml --resume log.dir="
            read -r -a words <<<"$word"
            if [[ $word == *= ]]; then words[-1]+=$file; else words+=("$file"); fi
            ;;
        override) words=(plan base.yaml "$key=$number") ;;
        word)
            pick word "sample good -n" "sample good --seed" "sample good --temperature" "sample good --top-k" "sample good --step" \
                "ckpt verify good" "schedule 1f1b -m 4 -p" "schedule 1f1b -p 2 -m" "schedule" "simulate --schedule 1f1b -p 2 -m 4 --costs" \
                "train base.yaml --trace" "help" "run -n" "simulate --schedule"
            read -r -a words <<<"$word"
            words+=("$number")
            # Any number of tokens is valid: the text ends with its first space.
            [[ $word != "sample good -n" ]] || words+=(--stop " ")
            ;;
    esac
    # A mutated config may be valid and ask for years of training.
    [[ ${words[0]} != train ]] || words+=(train.steps=2 train.validate_batches=1 device.memory=64MiB log.dir=run)
}

declare -A ends=()
for ((trial = 0; trial < 25; trial++)); do
    hostile
    rm -rf run
    code=0
    timeout --kill-after=5 60 "$trireme" "${words[@]}" >out 2>err </dev/null || code=$?
    ends[$code]=$((${ends[$code]:-0} + 1))
    told=${words[*]}
    case $code in
        0) ;;
        64 | 65 | 66 | 69 | 74 | 76 | 78)
            if [[ $(wc -l <err) != 1 ]] || ! grep -q "^trireme: " err; then
                cp mutant "mutant-$trial" 2>/dev/null || true
                fail "'${told:0:300}' (mutant-$trial): not one sentence: $(head -c 1000 err)"
            fi
            ;;
        *)
            cp mutant "mutant-$trial" 2>/dev/null || true
            fail "'${told:0:300}' (mutant-$trial): exit code $code: $(head -c 1000 err)"
            ;;
    esac
done
what="inputs"
for code in "${!ends[@]}"; do what+=", ${ends[$code]} ended with $code"; done
