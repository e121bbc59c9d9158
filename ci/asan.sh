#!/bin/sh
# The tests in which memory is dropped or forgotten while a device works on it, under AddressSanitizer: a late access to
# freed memory ends the test. The sanitizer is an unstable option of the compiler, so RUSTC_BOOTSTRAP unlocks it; the
# standard library stays as it is, and everything is built in a directory of its own.
set -eu
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan"
export RUSTC_BOOTSTRAP=1
# The one-instruction copies of user memory are out of the sanitizer's sight; visible_copies replaces them.
export RUSTFLAGS="-Zsanitizer=address --cfg visible_copies"
# Forgotten objects are leaks by intention.
export ASAN_OPTIONS="detect_leaks=0:abort_on_error=1"

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'fn main() {}' >"$probe/probe.rs"
# shellcheck disable=SC2086 # flags are words
if ! rustc $RUSTFLAGS --target "$host" -o "$probe/probe" "$probe/probe.rs" 2>"$probe/why" || ! "$probe/probe"; then
    echo "SKIP asan: this compiler has no AddressSanitizer for $host: $(head -n 1 "$probe/why")"
    exit 77
fi

cargo test -p rdma-qp --target "$host" --test memory --test lifetimes "$@"
# SRQs and domains destroyed in the middle of messages.
cargo test -p rdma-xrc --target "$host" --test isolation "$@"
