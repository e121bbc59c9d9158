#!/usr/bin/env bash
# Puts the differences between the examples of the three stages into README.md, where they are shown.
#
#   stages.sh           writes them
#   stages.sh --check   says whether they are current
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
new=$(mktemp)
trap 'rm -f "$new"' EXIT
while IFS= read -r line; do
    if [[ $line =~ ^'<!-- diff '([a-z_]+)' '([a-z_]+)' -->'$ ]]; then
        echo "$line"
        echo '```diff'
        # Without the comment at the top, which says what the program is.
        diff -U1 <(sed '0,/\*\//d' "examples/${BASH_REMATCH[1]}.c") <(sed '0,/\*\//d' "examples/${BASH_REMATCH[2]}.c") |
            sed '1,2d; s/^@@.*@@$/@@/; s/[ \t]*$//' || true
        echo '```'
        while IFS= read -r line && [[ $line != '<!-- end -->' ]]; do :; done
    fi
    echo "$line"
done <README.md >"$new"
if [[ ${1:-} == --check ]]; then
    diff -u README.md "$new" || { echo "README.md does not show the examples as they are: run rdma-capi/stages.sh"; exit 1; }
else
    cp "$new" README.md
fi
