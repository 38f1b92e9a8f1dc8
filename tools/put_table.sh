#!/usr/bin/env bash
# Replaces what is between the marks of a page, "<!-- from here: ... -->" and "<!-- to here -->", by stdin.
# usage: put_table.sh PAGE
set -euo pipefail
page=$1
new=$(mktemp)
trap 'rm -f "$new"' EXIT
{
    sed '/^<!-- from here: /q' "$page"
    cat
    echo
    sed -n '/^<!-- to here -->/,$p' "$page"
} >"$new"
cat "$new" >"$page"
