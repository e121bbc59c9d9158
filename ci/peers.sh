#!/usr/bin/env bash
# Programs that others wrote, unchanged, on the software device: the examples of rdma-core, perftest, pyverbs' own test-suite, UCX,
# Open MPI and MPICH. As root on a Debian system it installs them (set QP_CHECK_INSTALL=0 to leave the system alone); needs a
# release build (`cargo build --release`).
#
#   ci/peers.sh              all of them
#   ci/peers.sh GROUP ...    only these: own (qp run itself) ibverbs perftest pyverbs ucx mpi, or quick (some of the first three)
#
# One line per program and variant: what came of it. The last line is `N passed, N failed, N skipped`; the status is not zero
# where anything failed.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
export PYTHONDONTWRITEBYTECODE=1
groups=("$@")
((${#groups[@]})) || groups=(own ibverbs perftest pyverbs ucx mpi)

declare -A packages=(
    [quick]="ibverbs-utils perftest" [own]=ibverbs-utils [ibverbs]="ibverbs-utils valgrind" [perftest]=perftest [pyverbs]=python3-pyverbs
    [ucx]=ucx-utils [mpi]="openmpi-bin mpich libopenmpi-dev libmpich-dev gcc"
)
want=()
for group in "${groups[@]}"; do
    read -ra more <<<"${packages[$group]:-}"
    want+=("${more[@]}")
done
((${#want[@]} == 0)) || ci/packages.sh "${want[@]}"

exec python3 ci/peers/main.py "${groups[@]}"
