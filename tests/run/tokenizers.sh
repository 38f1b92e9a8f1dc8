#!/usr/bin/env bash
# Token ids against the Python packages tokenizers and tiktoken, where they are installed.
# usage: tokenizers.sh TRIREME SCRATCH_DIR
set -euo pipefail
trireme=$1 scratch=$2
# shellcheck source=tests/run/common.sh
source "$(dirname "$0")/common.sh"
golden=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../golden")
cd "$scratch"

python=${TRIREME_PYTHON:-python3}
if "$python" -c 'import tokenizers, tiktoken' 2>/dev/null; then
    PYTHONDONTWRITEBYTECODE=1 "$python" "$golden/compare_tokenizers.py" "$tools/token_ids" --vocab 600 --strings 1000 \
        >out 2>err || fail "other ids than the reference: $(tail -n 1 out) $(tail -n 1 err)"
    head -n 1 out
else
    echo "skipped: the comparison of ids needs Python with tokenizers and tiktoken; unit.test_tokenizer_golden has ids that tokenizers gave"
fi
finish
