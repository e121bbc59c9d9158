#!/usr/bin/env bash
# Runs a command of Cargo's whose programs are linked with the oldest C library of the matrix, bullseye's, so that they run
# in every guest: oldest.sh cargo build --release ..
#
# They come to lie in $CARGO_TARGET_DIR/x86_64-unknown-linux-gnu. Status 77 with a line `SKIP vm: reason` where that
# library cannot be had.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sysroot=$("$here/prepare.sh" dev bullseye) || { status=$?; echo "$sysroot"; exit "$status"; }
export CARGO_BUILD_TARGET=x86_64-unknown-linux-gnu
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS=$("$here/linking.sh" "$sysroot")
exec "$@"
