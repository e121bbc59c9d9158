#!/usr/bin/env bash
# The MPI examples with each MPI that is there: ring and all-to-all on four ranks, over each transport, on the software device;
# then the same with one rank that dies half way, where each of the others must name it, nobody else, and end with the status
# of the example's own. Then connections that are kept alive, whose ends meet by messages of MPI.
#
#   rdma-capi/tests/mpi.sh PREFIX   where libqp is installed
#
# Needs mpicc and mpirun of Open MPI (packages openmpi-bin, libopenmpi-dev) or MPICH (mpich, libmpich-dev), by the names that
# Debian gives them where both are there.
set -euo pipefail
prefix=${1:?where is libqp installed?}
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")/../examples" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ranks=4 dead=2 failed=0
command -v pkg-config >/dev/null || { echo "SKIP capi-mpi: pkg-config is not installed"; exit 0; }
flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags qp)
flags+=" $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --variable=static_libs qp)"
read -ra flags <<<"$flags"
transports=(rc ud xrc)
# Each rank is started by a shell, which tells its status. MPICH's launcher says by SIGUSR1 that a rank is dead.
shell='trap "" USR1; "$@"; echo "status $?"'

# Runs a program on all ranks: launch MPI PROGRAM OPTION...
launch() {
    local mpi=$1 options=()
    shift
    case $mpi in
        openmpi) options=(--allow-run-as-root --oversubscribe --enable-recovery) ;;
        mpich) options=(-disable-auto-cleanup) ;;
    esac
    timeout 120 "mpirun.$mpi" "${options[@]}" -n "$ranks" sh -c "$shell" sh "$@" --device soft
}

# Counts the lines of a log that are like this.
lines() { grep -cE "$1" "$work/log" || true; }

# Prints what a run gave, and with what it did not agree.
judge() {
    local name=$1 wrong=$2
    if [[ -z $wrong ]]; then
        echo "ok   $name"
    else
        echo "FAIL $name: $wrong"
        sed 's/^/     /' "$work/log"
        failed=1
    fi
}

for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" >/dev/null || ! command -v "mpirun.$mpi" >/dev/null; then
        echo "SKIP capi-mpi-$mpi: mpicc.$mpi or mpirun.$mpi is not installed"
        continue
    fi
    for example in ring alltoall; do
        program=$work/$example-$mpi
        "mpicc.$mpi" -std=c99 -O2 -Wall -Wextra -Werror "$examples/mpi_$example.c" "${flags[@]}" -o "$program"
        for transport in "${transports[@]}"; do
            wrong=
            launch "$mpi" "$program" --transport "$transport" >"$work/log" 2>&1 || wrong="mpirun ended with $?"
            # Each rank gets one message of 1024 bytes a round from each other one, or by the left one.
            [[ $(lines "^[a-z-]+ over ${transport^^}: $ranks ranks, $((ranks * (ranks - 1) * 100 * 1024)) bytes, all right$") == 1 ]] ||
                wrong="${wrong:-not all bytes were right}"
            [[ $(lines '^status 0$') == "$ranks" ]] || wrong="${wrong:-not all ended with 0}"
            judge "$mpi $example $transport" "$wrong"

            wrong=
            # What mpirun itself ends with is MPI's affair.
            launch "$mpi" "$program" --transport "$transport" --die "$dead" >"$work/log" 2>&1 || true
            why='it does not answer$'
            [[ $transport == ud ]] || why='.*IBV_WC_RETRY_EXC_ERR'
            for ((rank = 0; rank < ranks; rank++)); do
                [[ $rank == "$dead" || $(lines "^rank $rank has lost rank $dead: $why") == 1 ]] || wrong="rank $rank does not name the dead one"
            done
            [[ $(lines ' has lost rank ') == $((ranks - 1)) ]] || wrong="${wrong:-others are called lost too}"
            [[ $(lines '^status 137$') == 1 && $(lines '^status 3$') == $((ranks - 1)) ]] || wrong="${wrong:-statuses are not 3, and 137 of the dead one}"
            judge "$mpi $example $transport, one rank killed" "$wrong"
        done
    done

    program=$work/supervised-$mpi
    "mpicc.$mpi" -std=c99 -O2 -Wall -Wextra -Werror "$examples/mpi_supervised.c" "${flags[@]}" -o "$program"
    wrong=
    launch "$mpi" "$program" >"$work/log" 2>&1 || wrong="mpirun ended with $?"
    [[ $(lines "^supervised over MPI: $ranks ranks, $((ranks / 2 * 100)) messages in 2 lives, all right$") == 1 ]] ||
        wrong="${wrong:-the messages did not come in two lives}"
    [[ $(lines '^status 0$') == "$ranks" ]] || wrong="${wrong:-not all ended with 0}"
    judge "$mpi supervised" "$wrong"
done
exit "$failed"
