#!/usr/bin/env bash
# The wire formats and the engine of the software device, and the short ways to post and poll, under Miri, which sees every
# misuse of memory that a run makes. Needs a nightly toolchain with the components miri and rust-src (rustup fetches them, where it can); status
# 77, with a SKIP line, without.
#
#   ci/miri.sh          wire formats, user memory, the unit tests of the engine, posts and polls over a provider of the tests: minutes
#   ci/miri.sh --all    all tests of wire and engine that Miri can run: hours
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/miri
export MIRIFLAGS=-Zmiri-disable-isolation
# User memory is copied by code that Miri sees, not by one instruction.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg visible_copies"

if ! timeout 300 rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1 </dev/null; then
    echo "SKIP miri: no nightly toolchain with miri can be had here (rustup component add --toolchain nightly miri rust-src)"
    exit 77
fi

# Minutes each under Miri: CRCs over whole frames and for all values of 16 bits, 100,000 keys, all overlaps.
slow=(--skip icrc:: --skip vectors --skip keys_never_repeat --skip overlapping_copies)
# Drawn values: a few.
export PROPTEST_CASES=${PROPTEST_CASES:-4}
if [[ ${1:-} == --all ]]; then
    cargo +nightly miri test -p rdma-soft --lib wire:: &&
        cargo +nightly miri test -p rdma-soft --test engine -- --skip kills:: --skip hostile::
else
    # The engine's tests move tens of kilobytes each, byte by byte here: they are for --all.
    # References and raw pointers to one request take turns, as the rules of Tree Borrows allow; the provider's one device is never
    # freed.
    cargo +nightly miri test -p rdma-soft --lib -- wire::tests mem:: core:: "${slow[@]}" &&
        MIRIFLAGS="$MIRIFLAGS -Zmiri-tree-borrows -Zmiri-ignore-leaks" cargo +nightly miri test -p rdma-qp --test contexts
fi
