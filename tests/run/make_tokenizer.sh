#!/usr/bin/env bash
# Writes a byte-level tokenizer.json of GPT-2's kind, with a few merges, for tests.
# usage: make_tokenizer.sh >tokenizer.json
set -euo pipefail
awk 'BEGIN {
    n = 256; more = 0
    for (b = 0; b < 256; b++) {
        own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174
        name[b] = sprintf("\\u%04x", own ? b : 256 + more++)
    }
    split("t+h th+e _+t _+a i+n _+the e+r h+e a+n an+d _+w _+s r+e o+n _+o", pair, " ")
    printf "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 300, \"content\": \"<|endoftext|>\", \"special\": true, \"normalized\": false}],"
    printf " \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true},"
    printf " \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {"
    for (b = 0; b < 256; b++) printf "%s\"%s\": %d", b ? ", " : "", name[b], b
    for (k = 1; k in pair; k++) {
        word = pair[k]; gsub("_", "\\u0120", word); gsub("u0120", "\\u0120", word); gsub(/\\+u/, "\\u", word)
        split(word, half, "+")
        merges = merges (k > 1 ? ", " : "") "\"" half[1] " " half[2] "\""
        printf ", \"%s%s\": %d", half[1], half[2], n++
    }
    printf ", \"<|endoftext|>\": 300}, \"merges\": [%s]}}\n", merges
}'
