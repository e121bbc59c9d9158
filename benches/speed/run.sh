#!/usr/bin/env bash
# How fast the software device is, beside memcpy, plain UDP, libfabric, UCX and Open MPI: measures, and writes results.json,
# RESULTS.md and the plots into this folder.
#
#   benches/speed/run.sh                      all of it: about 2 minutes, and more with more rounds
#   benches/speed/run.sh --rounds 2 udp shm   fewer rounds, and these parts only (inside udp shm others many growth)
#   benches/speed/run.sh --out DIR ...        into another folder
#   benches/speed/run.sh --quick              a little of everything, into target/speed: does it run, and is what arrives
#                                             what was sent? Less than a minute; fails where it is not so
#
# As root on a Debian system it installs the others' programs (set QP_CHECK_INSTALL=0 to leave the system alone); what is not
# there is a SKIP.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}
called="benches/speed/run.sh $*"
out=benches/speed arguments=()
while (($#)); do
    case $1 in
        --out) out=$2 && shift ;;
        --quick) out=$target/speed && arguments+=(--quick) ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
mkdir -p "$out" "$target/speed"

ci/packages.sh libfabric-bin ucx-utils openmpi-bin libopenmpi-dev gcc libc6-dev || true # without them, fewer peers
cargo build --release --quiet --locked -p rdma-benches --bin speed
if command -v mpicc.openmpi >/dev/null; then
    mpicc.openmpi -O2 -Wall -Wextra -o "$target/speed/mpi" benches/speed/mpi.c && arguments+=(--mpi "$target/speed/mpi")
fi
speed=$target/release/speed
"$speed" run --out "$out/results.json" --command "${called% }" "${arguments[@]}"
"$speed" page "$out/results.json" "$out" --findings benches/speed/findings.md
echo "$out/RESULTS.md is written"
