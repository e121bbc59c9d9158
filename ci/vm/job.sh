#!/usr/bin/env bash
# Runs one job in a virtual machine: builds the programs that it needs, hands them to the guest, runs jobs/NAME there.
#
#   job.sh [-k KERNEL] [-u USERLAND] [-t SECONDS] NAME [ARG..]     jobs: see jobs/
#
# The last lines of its output are the job's tallies. Status: 0 where all is well, 77 where it cannot run here (with a
# line `SKIP vm: reason`), anything else where something failed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
limit=300 kernel=bookworm user=bookworm
while getopts k:u:t: option; do
    case $option in
    k) kernel=$OPTARG ;;
    u) user=$OPTARG ;;
    t) limit=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
name=${1:?NAME of a job, one of: $(cd "$here/jobs" && echo *)}
shift
[[ -f $here/jobs/$name ]] || { echo "job.sh: no job $name; there are: $(cd "$here/jobs" && echo *)" >&2; exit 2; }

work=$CARGO_TARGET_DIR/ci/vm
mkdir -p "$work"
# What runs that were killed have left.
find "$work" -maxdepth 2 -type d \( -name 'job-*.??????' -o -name 'run.??????' \) -mmin +60 -exec rm -rf {} +
folder=$(mktemp -d "$work/job-$name.XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM HUP
cp "$here/jobs/$name" "$folder/run"
cp "$here/lib.sh" "$folder/"

# Programs that run in every guest.
build() { (cd "$root" && "$here/oldest.sh" "$@"); }
built=$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release
build cargo build --quiet --release --locked --bin qp --bin state-table --bin interop --bin conformance
mkdir "$folder/bin"
cp "$built"/{qp,state-table,interop,conformance} "$folder/bin/"
if [[ $name == rc-tests ]]; then
    # The test programs of the safe layer, which say themselves where their verbs come from.
    build cargo test --quiet --locked -p rdma-qp --tests --no-run --message-format=json |
        sed -nE 's/.*"kind":\["test"\].*"executable":"([^"]+)".*/\1/p' | while read -r program; do
        cp "$program" "$folder/bin/test-$(basename "$program" | sed 's/-[0-9a-f]*$//')"
    done
fi
if [[ $name == capi ]]; then
    # The examples in C, as ci/capi.sh leaves them; `raw` is the last one that it builds.
    capi=$CARGO_TARGET_DIR/ci/capi
    if [[ ! -x $capi/raw || ! -x $capi/static/stage_b ]] ||
        [[ -n $(find "$root"/{Cargo.lock,rdma-*} -type f -newer "$capi/raw" -print -quit) ]]; then
        "$root/ci/capi.sh" compile good
    fi
    [[ -x $capi/raw && -x $capi/static/stage_b ]] || { echo "SKIP vm: programs of libibverbs cannot be built here (package libibverbs-dev)"; exit 77; }
    cp "$capi"/static/{plain,stage_a,stage_b} "$capi/raw" "$folder/bin/"
    # They are linked with this machine's C library.
    guest=$("$here/prepare.sh" user "$user") || { status=$?; echo "$guest"; exit "$status"; }
    libc=$(readelf -V "$folder"/bin/{plain,stage_a,stage_b,raw} | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
    if ! find "$guest" -name libc.so.6 -exec grep -qaF "$libc" {} +; then
        echo "SKIP vm: programs that are built here need $libc, newer than $user's C library; -u names another"
        exit 77
    fi
fi
if [[ $name == preload || $name == programs || $name == ratio ]]; then
    build cargo build --quiet --release --locked -p rdma-soft-preload
    cp "$built"/librdma_soft_preload.so "$folder/bin/"
fi
if [[ $name == siw ]]; then
    siw=$("$here/prepare.sh" siw "$kernel") || { status=$?; echo "$siw"; exit "$status"; }
    cp "$siw/siw.ko" "$folder/"
fi
strip "$folder"/bin/* 2>/dev/null || true

log=$work/job-$name-$kernel-$user.console.log
# Not exec: the folder goes when the machine has ended.
setpriv --pdeathsig TERM "$here/vm.sh" -k "$kernel" -u "$user" -t "$limit" -l "$log" "$folder" "$@" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null; wait "$child"; exit 130' INT TERM HUP
status=0
wait "$child" || status=$?
exit "$status"
