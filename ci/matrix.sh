#!/usr/bin/env bash
# The library and the software device against what they meet elsewhere: four kernels' soft-RoCE and one's soft-iWARP, in
# virtual machines; four releases of rdma-core; the least Rust; bare systems. One row for each job, and last, how many differences
# nobody has explained. What each prints is kept in target/ci/logs.
#
#   ci/matrix.sh              all rows: minutes
#   ci/matrix.sh ROW..        the row of that name, or else those whose names begin so: ci/matrix.sh kernel-6.12 copy
#   ci/matrix.sh --quick      three rows, with fewer cases and smaller files
#   ci/matrix.sh --list       the names of the rows, and what each runs
#   ci/matrix.sh -j N ..      N rows at a time (default: 2)
#
# Needs QEMU and packages of Debian (ci/vm/README.md). Status: 0 where all is well; 77, with SKIP lines, where nothing
# could run; 1 where something failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
logs=$CARGO_TARGET_DIR/ci/logs
mkdir -p "$logs" || exit 1

quick=0 list=0 parallel=2 wanted=()
while (($#)); do
    case $1 in
    --quick) quick=1 ;;
    --list) list=1 ;;
    -j) parallel=${2:?-j needs a number}; shift ;;
    -*) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; exit 2 ;;
    *) wanted+=("$1") ;;
    esac
    shift
done

# --- the rows -----------------------------------------------------------------------------------------

names=()
declare -A limits commands
# row NAME SECONDS COMMAND..: SECONDS is the time that it has once everything is fetched and built.
row() {
    names+=("$1")
    limits[$1]=$2
    commands[$1]="${*:3}"
}
# machine NAME SECONDS [-k KERNEL] [-u USERLAND] JOB [ARG..]
machine() { row "$1" "$2" ci/vm/job.sh -t "$2" "${@:3}"; }

if ((quick)); then
    machine states 120 states
    machine interop 300 interop --quick --longest 65536 --mtu 256 --mtu 4096
    machine copy 200 copy --bytes 1000001
else
    # Each kernel with the rdma-core of its time, but for 5.10, which rdma-core 33 has stopped. sid has the newest of both.
    while read -r kernel suite user; do
        machine "kernel-$kernel-suite" 1500 -k "$suite" -u "$user" suite
        machine "kernel-$kernel-states" 240 -k "$suite" -u "$user" states
    done <<<'5.10 bullseye bookworm
6.1 bookworm bookworm
6.12 trixie trixie
sid sid sid'
    machine core-33-suite 900 -k bookworm -u bullseye suite --quick
    machine core-sid-suite 900 -k bullseye -u sid suite --quick
    while read -r release suite; do
        row "core-$release" 600 ci/rdma-core/check.sh "$suite"
    done <<<'33 bullseye
44 bookworm
56 trixie
sid sid'
    machine siw-6.1 120 siw
    for kernel in 6.1:bookworm sid:sid; do
        suite=${kernel#*:}
        machine "interop-${kernel%:*}" 900 -k "$suite" -u "$suite" interop
        machine "interop-faulty-${kernel%:*}" 1500 -k "$suite" -u "$suite" interop --faulty
    done
    machine programs 600 programs
    machine preload 400 preload
    machine devices 120 devices
    machine capi 400 capi
    machine rc-tests 700 rc-tests
    machine copy 400 copy
    machine copy-faulty 400 copy --faulty --bytes 4000003
    for suite in bookworm trixie sid; do
        row "install-$suite" 1500 ci/install.sh "$suite"
    done
    row rust-least 900 ci/check.sh minimum-rust
fi

chosen=()
for name in "${names[@]}"; do
    ((${#wanted[@]})) || chosen+=("$name")
    for prefix in "${wanted[@]}"; do
        [[ $name != "$prefix" && (-n ${commands[$prefix]:-} || $name != "$prefix"*) ]] || { chosen+=("$name"); break; }
    done
done
((${#chosen[@]})) || { echo "matrix.sh: no row begins with ${wanted[*]}; see ci/matrix.sh --list" >&2; exit 2; }
if ((list)); then
    for name in "${chosen[@]}"; do printf '%-22s %s\n' "$name" "${commands[$name]}"; done
    exit 0
fi

# --- running them -------------------------------------------------------------------------------------

# The counts of a log: tally lines, or else the last line of ci/check.sh.
tally() {
    awk '/^tally: /{p += $2; f += $4; s += $6; e += $8; n++}
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/{last = $1 " " $3 " " $5 " 0"}
        END{print n || last == "" ? p + 0 " " f + 0 " " s + 0 " " e + 0 : last}' "$1"
}

# Runs a row; its log and its part of the table are files named after it.
run() {
    local name=$1 log=$logs/matrix-$1.log began=$SECONDS status child
    trap '[[ -z $child ]] || { kill -TERM "$child" 2>/dev/null; wait "$child"; }; exit 130' TERM
    # shellcheck disable=SC2086 # a command and its arguments
    (cd "$root" && exec setpriv --pdeathsig TERM timeout -k 20 $((${limits[$name]} + 1500)) ${commands[$name]}) >"$log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=
    {
        local counts
        read -ra counts < <(tally "$log")
        if ((status == 77)) || { ((status == 0 && counts[0] + counts[1] == 0)) && grep -q '^SKIP ' "$log"; }; then
            echo "SKIPPED"
            printf '%-22s %s\n' "$name" "$(grep -m1 '^SKIP ' "$log" || echo "SKIP $name: it could not run")"
            return
        fi
        # One that ended badly without having counted that: its machine died, or a program did.
        if ((status != 0 && counts[1] == 0)) || ((counts[0] + counts[1] == 0)); then
            counts[1]=1
        fi
        echo "${counts[1]}"
        printf '%-22s %7d %7d %8d %9d %4d s\n' "$name" "${counts[@]}" $((SECONDS - began))
        sed -nE 's/^(.* )?on .*(Linux [0-9.]+, .*rdma-core.*)$/    on \2/p' "$log" | sort -u
        sed -n 's/^SKIP /    skipped: /p' "$log" | sort -u
        sed -nE 's/^(exception|difference) ([^ :]+)[ :].*/    expected: \2/p; s/^(stricter-by-us: .*) \([0-9]+ times\): .*/    expected: \1/p' "$log" | sort -u
        if ((counts[1])); then
            grep -E 'FAIL|UNEXPLAINED|panicked|run.sh:|^error' "$log" | head -n 20 | cut -c1-300 | sed 's/^/    /'
            printf '    see %s\n' "${log#"$root"/}"
        fi
    } >"$logs/matrix-$name.new"
}

workers=()
trap 'kill -TERM "${workers[@]}" 2>/dev/null; wait; exit 130' INT TERM HUP
printf '%-22s %7s %7s %8s %9s %6s\n' row passed failed skipped expected time
unexplained=0 ran=0 shown=0 began=$SECONDS
# Shows what is done, in the order of the rows; `show all` when nothing is left to wait for.
show() {
    local name part first
    while ((shown < ${#chosen[@]})); do
        name=${chosen[shown]}
        part=$logs/matrix-$name.row
        [[ -e $part || ${1:-} == all ]] || return 0
        first=$(head -n 1 "$part" 2>/dev/null)
        if [[ $first == SKIPPED ]]; then
            tail -n +2 "$part"
        elif [[ $first =~ ^[0-9]+$ ]]; then
            tail -n +2 "$part"
            ran=$((ran + 1))
            unexplained=$((unexplained + first))
        else
            printf '%-22s FAIL: it ended without a result (killed, or no room left on the disk?)\n' "$name"
            ran=$((ran + 1))
            unexplained=$((unexplained + 1))
        fi
        shown=$((shown + 1))
    done
}
for name in "${chosen[@]}"; do rm -f "$logs/matrix-$name.row"; done
for name in "${chosen[@]}"; do
    while (($(jobs -rp | wc -l) >= parallel)); do
        wait -n
        show
    done
    (
        run "$name"
        mv "$logs/matrix-$name.new" "$logs/matrix-$name.row"
    ) &
    workers+=("$!")
done
while [[ -n $(jobs -rp) ]]; do
    wait -n
    show
done
show all
printf '%d rows in %d s\n' "$ran" $((SECONDS - began))
printf '%d unexplained differences\n' "$unexplained"
((ran)) || exit 77
((unexplained == 0))
