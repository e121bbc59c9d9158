#!/usr/bin/env bash
# rdma-core as a Debian suite has it, without a device: its headers, its library, and the feature `link`.
#
#   check.sh SUITE      bullseye (rdma-core 33), bookworm (44), trixie (56) or sid (the newest)
#
# The packages come by ci/vm/prepare.sh; nothing of the machine's own rdma-core is used. What needs a device, the conformance
# suite with structures that are poisoned before each query among it, runs in virtual machines (rows kernel-* of
# ci/matrix.sh).
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
suite=${1:?SUITE}
dev=$(ci/vm/prepare.sh dev "$suite") || { status=$?; echo "$dev"; exit "$status"; }
library=$(basename "$(readlink -f "$dev"/usr/lib/x86_64-linux-gnu/libibverbs.so.1)") # libibverbs.so.1.14.44.0
release=$(cut -d. -f5 <<<"$library")
echo "rdma-core $release of $suite: $library"
work=$CARGO_TARGET_DIR/ci/rdma-core
mkdir -p "$work"
passed=0 failed=0 skipped=0 expected=0

# Builds that are known to fail, by release: the text that they fail with, file and function, and the cause. One that builds
# all the same fails the check.
declare -A no_link=()

ok() { passed=$((passed + 1)); echo "ok      $*"; }
bad() { # bad NAME LOG
    failed=$((failed + 1))
    echo "FAILED  $1"
    tail -n 40 "$2"
}
check() { # check NAME COMMAND..
    local name=$1 log=$work/$suite.log
    shift
    if "$@" >"$log" 2>&1; then ok "$name"; else bad "$name" "$log"; fi
}
# tests COMMAND..: builds test programs by Cargo and prints their paths.
tests() { "$@" --locked --no-run --message-format=json-render-diagnostics | sed -nE 's/.*"kind":\["test"\].*"executable":"([^"]+)".*/\1/p'; }
# A program on the C library and the rdma-core of the suite.
there() {
    local libraries=$dev/lib/x86_64-linux-gnu:$dev/usr/lib/x86_64-linux-gnu
    "$dev/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$libraries" "$@"
}
ran() { # ran TEXT COMMAND..: it succeeds, and its output has the text.
    local output status=0
    output=$("${@:2}") || status=$?
    echo "$output"
    ((status == 0)) && grep -qF -- "$1" <<<"$output" && ! grep -q SKIP <<<"$output"
}

# --- the headers: every size, offset and constant -----------------------------------------------------

# Not its C library's: the compiler has those of this machine.
headers=$work/headers-$suite
mkdir -p "$headers"
ln -sfn "$dev/usr/include/infiniband" "$dev/usr/include/rdma" "$headers"
check "the layout of every type, and every constant" \
    ran "test result: ok. 1 passed" env VERBS_INCLUDE_DIR="$headers" VERBS_RELEASE="$release" cargo test -p rdma-core-sys --locked --test c_layout

# --- the library: what is built without it opens it, and finds each symbol in its version -------------

loader=$(tests ci/vm/oldest.sh cargo test -p rdma-core-sys --test loader)
[[ -x $loader ]] || { echo "FAILED  the default build"; failed=$((failed + 1)); }
check "a default build finds every symbol in $library" \
    ran "test result: ok. 1 passed" there "$loader" --exact the_systems_library_has_every_required_symbol

# --- the feature `link`, against these headers and this library ---------------------------------------

ci/packages.sh libclang-dev pkg-config
# (libclang-cpp.so is another library)
if ! compgen -G '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' >/dev/null || ! command -v pkg-config >/dev/null; then
    echo "SKIP link-$release: no libclang or no pkg-config (packages libclang-dev and pkg-config)"
    skipped=$((skipped + 1))
else
    for package in libibverbs librdmacm; do
        sed "s,^includedir=.*,includedir=$headers,; s,^libdir=.*,libdir=$dev/usr/lib/x86_64-linux-gnu," "$dev/usr/lib/x86_64-linux-gnu/pkgconfig/$package.pc" >"$headers/$package.pc"
    done
    link() {
        CARGO_TARGET_DIR=$work/target CARGO_BUILD_TARGET=x86_64-unknown-linux-gnu \
            CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS=$(ci/vm/linking.sh "$dev") \
            PKG_CONFIG_LIBDIR=$headers:$dev/usr/lib/x86_64-linux-gnu/pkgconfig \
            tests cargo test -p rdma-core-sys --features link --test link
    }
    linked=$(link 2>"$work/link-$suite.log")
    reason=${no_link[$release]:-}
    if [[ -n $reason && ! -x $linked ]] && grep -qF "${reason%%|*}" "$work/link-$suite.log"; then
        expected=$((expected + 1))
        echo "difference no-link-with-$release: ${reason#*|}"
    elif [[ -n $reason ]]; then
        echo "the link is not refused with: ${reason%%|*}" >>"$work/link-$suite.log"
        bad "the known failure of feature link" "$work/link-$suite.log"
    elif [[ ! -x $linked ]]; then
        bad "feature link builds" "$work/link-$suite.log"
    else
        ok "feature link builds"
        check "what is linked runs, with types as long as bindgen's" ran "test result: ok. 2 passed" there "$linked"
    fi
fi
echo "tally: $passed passed, $failed failed, $skipped skipped, $expected expected differences"
((failed == 0))
