#!/usr/bin/env bash
# The library and the software device against the kernel's soft-RoCE, in virtual machines: one line per job, and last,
# how many differences nobody has explained. What each job prints is kept in target/ci/logs.
#
#   ci/matrix.sh            all jobs: minutes
#   ci/matrix.sh --quick    fewer cases, smaller files
#
# Needs QEMU and packages of Debian (ci/vm/README.md). Status: 0 where all is well; 77, with SKIP lines, where nothing
# could run; 1 where something failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
logs=$CARGO_TARGET_DIR/ci/logs
mkdir -p "$logs" || exit 1

quick=0
case ${1:-} in
--quick) quick=1 ;;
'') ;;
*) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

child=
trap '[[ -z $child ]] || { kill -TERM "$child" 2>/dev/null; wait "$child"; }; exit 130' INT TERM HUP

unexplained=0 ran=0
printf '%-18s %7s %7s %8s %9s %6s\n' job passed failed skipped expected time

# job NAME SECONDS JOB [ARG..]: runs ci/vm/jobs/JOB and prints its line.
job() {
    local name=$1 limit=$2 log=$logs/vm-$1.log began=$SECONDS status
    shift 2
    setpriv --pdeathsig TERM timeout -k 20 $((limit + 900)) "$root/ci/vm/job.sh" -t "$limit" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=
    local tally=(0 0 0 0)
    mapfile -t tally < <(awk '/^tally: /{p += $2; f += $4; s += $6; e += $8} END{print p + 0; print f + 0; print s + 0; print e + 0}' "$log")
    if ((status == 77)); then
        printf '%-18s %s\n' "$name" "$(grep -m1 '^SKIP ' "$log" || echo "SKIP $name: it could not run")"
        return
    fi
    ran=$((ran + 1))
    # A job that ended badly without having counted that: its machine died, or a program did.
    if ((status != 0 && tally[1] == 0)) || ! grep -q '^tally: ' "$log"; then
        tally[1]=1
    fi
    printf '%-18s %7d %7d %8d %9d %4d s\n' "$name" "${tally[@]}" $((SECONDS - began))
    sed -n 's/^SKIP /    skipped: /p' "$log" | sort -u
    sed -nE 's/^(exception|difference) ([^ :]+)[ :].*/    expected: \2/p; s/^(stricter-by-us: .*) \([0-9]+ times\): .*/    expected: \1/p' "$log" | sort -u
    if ((tally[1])); then
        grep -E 'FAILED|UNEXPLAINED|panicked|run.sh:' "$log" | head -n 20 | cut -c1-300 | sed 's/^/    /'
        printf '    see %s\n' "${log#"$root"/}"
    fi
    unexplained=$((unexplained + tally[1]))
}

if ((quick)); then
    job states 60 states
    job interop 150 interop --quick --longest 65536 --mtu 256 --mtu 4096
    job copy 100 copy --bytes 1000001
else
    job devices 60 devices
    job preload 200 preload
    job capi 200 capi
    job states 60 states
    job rc-tests 240 rc-tests
    job suite 900 suite
    job interop 600 interop
    job interop-faulty 900 interop --faulty
    job copy 200 copy
    job copy-faulty 200 copy --faulty --bytes 4000003
fi

printf '%d unexplained differences\n' "$unexplained"
((ran)) || exit 77
((unexplained == 0))
