#!/usr/bin/env bash
# What a work request costs: instructions, time and allocations per signaled SEND of one range, in C, in Rust at the unsafe
# level and through the safe layer, over a provider that does nothing. README.md beside this folder explains the table.
#
#   benches/cost/run.sh [--quick] [--libqp] [--lines LOOP]... [--instructions LOOP]...
#
# --quick leaves out times, the crate sideway and libqp, whose builds take minutes; --libqp takes that in again.
# The last line is `raw R safe I tight T`: instructions of the unsafe level over those of C `fields`; of the safe layer, one
# request at a time; of the safe layer, 32 requests at a time. The status is 1 where the safe loops allocate or lock.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}
work=$target/benches
mkdir -p "$work"
for tool in valgrind:valgrind objdump:binutils python3:python3; do
    if ! command -v "${tool%%:*}" >/dev/null; then
        echo "SKIP cost: ${tool%%:*} is not installed (package ${tool##*:})"
        exit 77
    fi
done
cargo build --release --quiet --locked -p rdma-benches --bin cost
arguments=("$target/release/cost" --root "$root")
if ! command -v gcc >/dev/null; then
    echo "SKIP cost-c: no C compiler (package gcc)"
elif ! echo '#include <infiniband/verbs.h>' | gcc -E - >/dev/null 2>&1; then
    echo "SKIP cost-c: no infiniband/verbs.h (package libibverbs-dev)"
else
    gcc -O2 -Wall -Wextra -shared -fPIC -o "$work/loops.so" benches/cost/loops.c
    arguments+=(--c "$work/loops.so")
fi
# The crate sideway takes its libibverbs by dlopen, and needs cmake and libclang to build.
sideway() {
    local tool
    for tool in gcc cmake; do
        command -v "$tool" >/dev/null || { echo "SKIP cost-sideway: $tool is not installed (package $tool)"; return; }
    done
    compgen -G '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' >/dev/null || { echo "SKIP cost-sideway: no libclang (package libclang-dev)"; return; }
    [[ -e $work/loops.so ]] || { echo "SKIP cost-sideway: no infiniband/verbs.h (package libibverbs-dev)"; return; }
    if ! (cd benches/sideway && CARGO_TARGET_DIR=$work/sideway cargo build --release --quiet --locked) >"$work/sideway.log" 2>&1; then
        echo "SKIP cost-sideway: it could not be built, see $work/sideway.log"
        return
    fi
    mkdir -p "$work/standin"
    gcc -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libibverbs.so.1 -o "$work/standin/libibverbs.so.1" benches/sideway/standin.c
    export LD_LIBRARY_PATH=$work/standin
    arguments+=(--beside "$work/sideway/release/rdma-benches-sideway")
}
# libqp as rdma-capi/install.sh builds it, but with the lines of its source, which are told in the tables.
libqp() {
    [[ -e $work/loops.so ]] || { echo "SKIP cost-libqp: no C compiler, or no infiniband/verbs.h (packages gcc, libibverbs-dev)"; return; }
    CARGO_TARGET_DIR=$work/libqp CARGO_PROFILE_DIST_DEBUG=line-tables-only cargo build --profile dist --quiet --locked -p rdma-capi
    gcc -O2 -g1 -no-pie -Wall -Wextra -Irdma-capi/include -o "$work/cost-libqp" benches/cost/libqp.c benches/cost/loops.c \
        -Wl,--gc-sections,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=posix_memalign \
        "$work/libqp/dist/libqp.a" -pthread -ldl -lm
    arguments+=(--beside "$work/cost-libqp")
}
options=()
for option in "$@"; do [[ $option == --libqp ]] || options+=("$option"); done
[[ " $* " == *" --quick "* ]] || sideway
[[ " $* " == *" --quick "* && " $* " != *" --libqp "* ]] || libqp
exec python3 benches/cost/count.py "${arguments[@]}" "${options[@]}"
