#!/usr/bin/env bash
# Prints the tables of docs/config.md, one for each section, from the program's help. With --write
# it puts them into docs/config.md between the marks. usage: config_table.sh TRIREME [--write]
set -euo pipefail
trireme=$1
here=$(cd "$(dirname "$0")" && pwd)

tables() {
    local key section last="" help meaning takes default gpu
    "$trireme" help | sed -n 's/^  \([a-z]*\.[a-z_0-9.]*\) .*/\1/p' | while read -r key; do
        section=${key%%.*}
        help=$("$trireme" help "$key")
        # The meaning has several lines. In a table | ends a cell, and * begins emphasis.
        meaning=$(sed '1d; /^  takes    /,$d; s/^ *//' <<<"$help" | paste -sd ' ' | sed -E 's/\|/\\|/g; s/([^ ])\*/\1\\*/g')
        takes=$(sed -n 's/^  takes    //p' <<<"$help")
        default=$(sed -n 's/^  default  //p' <<<"$help")
        gpu=$(sed -n 's/^  on GPUs  //p' <<<"$help")
        if [[ $section != "$last" ]]; then
            printf '\n### %s\n\n| key | takes | default | meaning |\n|---|---|---|---|\n' "$section"
        fi
        last=$section
        # shellcheck disable=SC2016 # Markdown's backticks
        printf '| `%s` | %s | %s | %s |\n' "$key" "$takes" "${default:+\`$default\`}${gpu:+; \`$gpu\` on GPUs}" "$meaning"
    done
    printf '\n### Presets\n\n```\n'
    "$trireme" help model.preset | sed -n 's/^  \([a-z0-9.-]* *[a-z0-9]*, layers [0-9]*, .*\)/\1/p'
    printf '```\n'
}

if [[ ${2:-} == --write ]]; then tables | bash "$here/put_table.sh" "$here/../docs/config.md"; else tables; fi
