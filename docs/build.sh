#!/usr/bin/env bash
# Builds the documentation as a site of plain files: the guide and the crates (rustdoc), the state diagrams, the commands,
# and the C header. Every page but the first is made from the code.
#
#   docs/build.sh [DIR]     into DIR, or target/site
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}
site=${1:-$target/site}
mkdir -p "$site"

# rustdoc links to another crate where that one's pages are already; cargo documents crates in any order, and removes the pages
# of each before it makes them anew. So the crates that others name come first, one after the other.
export RUSTDOCFLAGS="${RUSTDOCFLAGS:--D warnings}"
named=(rdma-core-sys rdma-soft rdma-qp rdma-xrc)
for crate in "${named[@]}"; do
    features=()
    [[ $crate != rdma-qp ]] || features=(--features tokio)
    cargo doc --quiet --no-deps --locked -p "$crate" "${features[@]}"
done
cargo doc --quiet --no-deps --locked --workspace "${named[@]/#/--exclude=}"
# The check of all has built it already, and says where.
qp=${QP:-$target/debug/qp}
[[ -x $qp && -n ${QP:-} ]] || { cargo build --quiet --locked -p rdma-cli && qp=$target/debug/qp; }

rm -rf "$site/api"
cp -a "$target/doc" "$site/api"
cp docs/index.html docs/site.css "$site/"
cp rdma-capi/include/qp.h "$site/qp.h.txt"

escape() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g'; }

# page TITLE: a page around what comes in.
page() {
    printf '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
    printf '<title>%s</title><link rel="stylesheet" href="site.css"></head><body>\n<p><a href="index.html">rdma-qp</a></p>\n<h1>%s</h1>\n' "$1" "$1"
    cat
    printf '</body></html>\n'
}

transports=$("$qp" states --tsv | cut -f1 | sed 1d | uniq)
for transport in $transports; do
    printf '<h2>%s</h2>\n' "$transport"
    "$qp" states --svg --transport "$transport"
done | page "States of a Queue Pair" >"$site/states.html"

# commands [COMMAND]: those below it.
commands() { "$qp" "$@" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v '^help$' || true; }
{
    printf '<pre>%s</pre>\n' "$("$qp" help | escape)"
    for command in $(commands); do
        printf '<h2 id="%s">qp %s</h2>\n<pre>%s</pre>\n' "$command" "$command" "$("$qp" "$command" --help | escape)"
        for below in $(commands "$command"); do
            printf '<h3>qp %s %s</h3>\n<pre>%s</pre>\n' "$command" "$below" "$("$qp" "$command" "$below" --help | escape)"
        done
    done
} | page "The command qp" >"$site/commands.html"

# A link of these pages that leads nowhere is an error.
broken=0
for page in index commands states; do
    while read -r link; do
        [[ -e $site/${link%%#*} ]] || { echo "$page.html: no $link" >&2; broken=1; }
    done < <(grep -o 'href="[^"]*"' "$site/$page.html" | sed 's/^href="//; s/"$//' | grep -v '^https\?:' | sort -u)
done
# Neither may rustdoc leave a path of Rust where a link belongs.
if grep -rlE --include='*.html' 'href="rdma_[a-z_]+::' "$site/api" >&2; then
    echo "these pages were made before those that they name: remove $target/doc, and build them again" >&2
    broken=1
fi
((broken == 0))
echo "$site/index.html"
