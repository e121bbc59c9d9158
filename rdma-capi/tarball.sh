#!/usr/bin/env bash
# Makes a release tarball that builds and installs libqp without a network: the sources of HEAD, and those of everything that
# they need.
#
#   rdma-capi/tarball.sh [DIR]     writes DIR/rdma-qp-VERSION.tar.gz; here if not given
#
#   tar xf rdma-qp-VERSION.tar.gz && rdma-qp-VERSION/rdma-capi/install.sh --prefix /usr/local --offline
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(cd "${1:-.}" && pwd)
version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"$/\1/p' "$root/Cargo.toml")
name=rdma-qp-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$root" archive --prefix="$name/" HEAD | tar -x -C "$work"
mkdir "$work/$name/.cargo"
(cd "$work/$name" && cargo vendor --quiet --locked --versioned-dirs vendor >/dev/null)
cat >"$work/$name/.cargo/config.toml" <<'END'
# Nothing is fetched: all sources are here.
[source.crates-io]
replace-with = "vendored"

[source.vendored]
directory = "vendor"
END
# The same bytes for the same sources.
date=$(git -C "$root" log -1 --format=%cI)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" -C "$work" -c "$name" | gzip -n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
