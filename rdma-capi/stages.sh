#!/usr/bin/env bash
# Puts what is shown of the examples into the two README.md: the differences between the three stages, and whole programs.
#
#   stages.sh           writes them
#   stages.sh --check   says whether they are current
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# Without the comment at the top, which says what the program is.
body() { sed '0,/\*\//d' "examples/$1.c"; }

# show FILE: the file as it should be.
show() {
    local line
    while IFS= read -r line; do
        if [[ $line =~ ^'<!-- diff '([a-z_]+)' '([a-z_]+)' -->'$ ]]; then
            echo "$line"
            echo '```diff'
            diff -U1 <(body "${BASH_REMATCH[1]}") <(body "${BASH_REMATCH[2]}") | sed '1,2d; s/^@@.*@@$/@@/; s/[ \t]*$//' || true
        elif [[ $line =~ ^'<!-- program '([a-z_]+)' -->'$ ]]; then
            echo "$line"
            echo '```c'
            cat "examples/${BASH_REMATCH[1]}.c"
        else
            echo "$line"
            continue
        fi
        echo '```'
        while IFS= read -r line && [[ $line != '<!-- end -->' ]]; do :; done
        echo "$line"
    done <"$1"
}

for file in README.md ../README.md; do
    show "$file" >"$new"
    if [[ ${1:-} == --check ]]; then
        diff -u "$file" "$new" || { echo "$file does not show the examples as they are: run rdma-capi/stages.sh"; exit 1; }
    else
        cp "$new" "$file"
    fi
done
