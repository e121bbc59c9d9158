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
    for package in ${packages[$group]:-}; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || want+=("$package")
    done
done
if ((${#want[@]})) && [[ ${QP_CHECK_INSTALL:-1} != 0 && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "installing ${want[*]}"
    timeout 180 apt-get update -qq >/dev/null 2>&1 </dev/null
    DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null 2>&1 </dev/null
fi

exec python3 ci/peers/main.py "${groups[@]}"
