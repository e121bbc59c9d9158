#!/usr/bin/env bash
# Coverage-guided fuzzing of the software device and of libqp, on stable Rust: libFuzzer, with the coverage that LLVM's own
# pass gives (rdma-soft/fuzz says what each target does).
#
#   ci/fuzz.sh [--runs N] [TARGET ...]   until each target (or the named ones) was executed N times in all, 1,000,000 if not
#                                        given; a run that was ended goes on where it was
#   ci/fuzz.sh --quick                   the committed inputs and some ten thousand more; seconds for each target
#   ci/fuzz.sh [--seeds N] --planted     in a copy of the tree with three panics put in by hand: each is found within
#                                        3,000,000 executions, from each of N seeds, 1 if not given
#   ci/fuzz.sh --minimise [TARGET ...]   writes the committed inputs anew, from all that runs have found
#   ci/fuzz.sh --replay TARGET FILE ...  inputs, such as a finding, in one process
#
# A line for each target: executions, edges reached, inputs kept, findings, executions in a second of processor time. A finding
# is an input, kept in target/fuzz/TARGET/found, and fails the run. Needs Rust, a C++ compiler and Python 3.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
base=${CARGO_TARGET_DIR:-$root/target}
work=$base/fuzz
all=(packets ingress modify requests rings capi)
host=$(rustc -vV | sed -n 's/^host: //p')
bin=$work/build/$host/release
running=

stop() {
    trap - INT TERM HUP
    [[ -n $running ]] && kill -TERM "$running" 2>/dev/null && wait "$running" 2>/dev/null
    exit 130
}
trap stop INT TERM HUP

skip() { printf 'SKIP fuzz: %s\n' "$1"; exit 77; }

tools() {
    command -v c++ >/dev/null || "$root/ci/packages.sh" g++
    command -v c++ >/dev/null || skip "no C++ compiler (package g++)"
    command -v python3 >/dev/null || skip "no Python 3"
    [[ $host == *-linux-gnu ]] || skip "libFuzzer is tried on Linux alone, not on $host"
}

# build TREE TARGET ...: the targets of a tree, with coverage. The host's name is given, so that build scripts do without.
build() {
    local tree=$1 flags="--cfg fuzzing -Cpasses=sancov-module" pass targets=()
    shift
    for pass in level=4 inline-8bit-counters pc-table trace-compares; do flags+=" -Cllvm-args=-sanitizer-coverage-$pass"; done
    for pass in "$@"; do targets+=(--bin "$pass"); done
    RUSTFLAGS="$flags -Ccodegen-units=1" CARGO_TARGET_DIR=$work/build CARGO_INCREMENTAL=0 \
        cargo build --manifest-path "$tree/rdma-soft/fuzz/Cargo.toml" --release --locked --workspace "${targets[@]}" --target "$host" --quiet
}

# unpack TARGET DIR: the committed inputs as files. A line of the list is one of them, in base64.
unpack() {
    python3 - "$root/rdma-soft/fuzz/corpus/$1.txt" "$2" <<'END'
import base64, hashlib, os, sys
if os.path.exists(sys.argv[1]):
    for line in open(sys.argv[1]):
        data = base64.b64decode(line)
        with open(os.path.join(sys.argv[2], hashlib.sha1(data).hexdigest()), "wb") as out:
            out.write(data)
END
}

pack() {
    python3 - "$2" "$root/rdma-soft/fuzz/corpus/$1.txt" <<'END'
import base64, os, sys
inputs = [open(os.path.join(sys.argv[1], name), "rb").read() for name in os.listdir(sys.argv[1])]
with open(sys.argv[2], "w") as out:
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        print(base64.b64encode(data).decode(), file=out)
END
}

# The longest input of each target: what its steps can use.
longest() { case $1 in packets) echo 60 ;; capi) echo 400 ;; *) echo 512 ;; esac; }

# tally TARGET NAME: what it has counted so.
tally() { awk -v name="$2" '$1 == name {n = $2} END {print n + 0}' "$work/$1/tally" 2>/dev/null; }

# spend FILE: sets `spent` to the seconds of processor time of all that has ended so far. Through a file: a subshell has its own.
spend() {
    times >"$1"
    spent=$(tail -n 1 "$1" | tr ms '  ' | awk '{print $1 * 60 + $2 + $3 * 60 + $4}')
}

# go TARGET DIR OPTION...: libFuzzer in a directory with inputs and findings; its log is DIR/log, and how much processor time
# it took is in DIR/seconds.
go() {
    local target=$1 dir=$2 before
    shift 2
    mkdir -p "$dir/corpus" "$dir/found"
    rm -rf "$dir/before"
    spend "$dir/seconds"
    before=$spent
    QP_FUZZ_TALLY=$dir/tally nice -n 15 "$bin/$target" -max_len="$(longest "$target")" -len_control=20 -timeout=120 -report_slow_units=120 -rss_limit_mb=4096 \
        -artifact_prefix="$dir/found/" -print_final_stats=1 "$@" "$dir/corpus" >"$dir/log" 2>&1 </dev/null &
    running=$!
    wait "$running"
    local status=$?
    running=
    spend "$dir/seconds"
    awk -v before="$before" -v after="$spent" 'BEGIN {print after - before}' >"$dir/seconds"
    return $status
}

# What a run must have seen, beside no panic: the names of counters.
musts() {
    case $1 in
        # Every reason for which a frame is refused, from the one list of them.
        ingress) sed -nE 's/^    [A-Z][A-Za-z]* = "(rx_[a-z_]+)",$/\1/p' rdma-soft/src/core/counters.rs ;;
        rings) printf '%s\n' rings packets broken ;;
        modify) printf '%s\n' done refused ;;
        requests) printf '%s\n' accepted refused completed ;;
    esac
}

failed=0

# report TARGET SECONDS STATUS
report() {
    local target=$1 dir=$work/$1 word=ok name n missing=() speed
    local found inputs edges
    found=$(find "$dir/found" -type f | wc -l)
    inputs=$(find "$dir/corpus" -type f | wc -l)
    edges=$(grep -oE ' cov: [0-9]+' "$dir/log" | tail -n 1 | grep -oE '[0-9]+')
    # Of a processor's second: what else the machine does matters little.
    speed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/log" | tail -n 1 |
        awk -v seconds="$(cat "$dir/seconds" 2>/dev/null)" 'seconds > 0 {printf "%d", $1 / seconds}')
    while read -r name; do
        (($(tally "$target" "$name") > 0)) || missing+=("$name")
    done < <(musts "$target")
    if (($2 != 0 || found || ${#missing[@]})); then word=FAIL failed=1; fi
    printf '%-4s  %-9s %9s executions  %5s edges  %5s inputs  %3s findings  %6s/s\n' "$word" "$target" "$(tally "$target" executions)" "${edges:-?}" "$inputs" "$found" "${speed:-?}"
    ((${#missing[@]} == 0)) || printf '      never seen: %s\n' "${missing[*]}"
    if (($2 != 0 || found)); then
        grep -E 'panicked at' -A 3 "$dir/log" | sed 's/^/      /' | head -n 8
        find "$dir/found" -type f -printf '      again: ci/fuzz.sh --replay '"$target"' %p\n'
        [[ ! -d $dir/before ]] || printf '      where that alone is not enough: ci/fuzz.sh --replay %s %s/*\n' "$target" "$dir/before"
    fi
}

# The named drop counters and how often each was hit.
drops() {
    local name
    printf 'frames refused, by reason:\n'
    musts ingress | while read -r name; do printf '    %-24s %12d\n' "$name" "$(tally ingress "$name")"; done
}

fuzz() {
    local target=$1 runs=$2 limit=${3:-0} had left status=0
    mkdir -p "$work/$target/corpus"
    unpack "$target" "$work/$target/corpus"
    had=$(tally "$target" executions)
    left=$((runs - had))
    if ((left > 0)); then
        go "$target" "$work/$target" -runs="$left" -max_total_time="$limit"
        status=$?
    fi
    report "$target" "$status"
}

quick() {
    local target
    # Of its own, so that it is the same each time.
    work=$work/quick
    for target in "$@"; do
        rm -rf "${work:?}/$target"
        fuzz "$target" 15000 8
    done
}

planted() {
    local copy=$work/planted/tree target panic dir seed inputs missed=0 executions
    rm -rf "$work/planted"
    mkdir -p "$copy"
    { git ls-files -z && git ls-files -z --others --exclude-standard rdma-soft/fuzz; } | xargs -0 cp -p --parents -t "$copy" 2>/dev/null
    python3 rdma-soft/fuzz/planted.py "$copy" >"$work/planted/list" || return 1
    mapfile -t targets < <(cut -d' ' -f1 "$work/planted/list")
    build "$copy" "${targets[@]}" || return 1
    while read -r target panic; do
        for ((seed = 1; seed <= seeds; seed++)); do
            dir=$work/planted/$target/$seed
            mkdir -p "$dir/corpus"
            unpack "$target" "$dir/corpus"
            inputs=$(find "$dir/corpus" -type f | wc -l)
            # The same each time: from a seed, and what is in the directory is read once.
            go "$target" "$dir" -runs=$within -seed="$seed" -reload=0
            executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/log" | tail -n 1)
            if ! grep -qF "$panic" "$dir/log"; then
                printf 'FAIL  %-9s seed %d: did not find "%s" in %s executions\n' "$target" "$seed" "$panic" "$executions"
                missed=1
            elif ((executions <= inputs)); then
                printf 'FAIL  %-9s "%s" is found by a committed input: plant another one\n' "$target" "$panic"
                missed=1
            else
                printf 'ok    %-9s seed %d: found "%s" after %s executions\n' "$target" "$seed" "$panic" "$executions"
            fi
        done
    done <"$work/planted/list"
    return $missed
}

runs=1000000 mode=run seeds=1
# Executions within which a planted panic is found.
within=3000000
while [[ ${1:-} == --* ]]; do
    case $1 in
        --runs) runs=${2:?--runs needs a number}; shift ;;
        --seeds) seeds=${2:?--seeds needs a number}; shift ;;
        --quick | --planted | --minimise) mode=${1#--} ;;
        --replay) mode=replay; shift; break ;;
        --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; exit ;;
        *) echo "fuzz.sh: unknown option $1; see --help" >&2; exit 2 ;;
    esac
    shift
done
targets=("$@")
if [[ $mode == replay ]]; then
    targets=("${1:?--replay needs a target and a file}")
fi
((${#targets[@]})) || targets=("${all[@]}")
for target in "${targets[@]}"; do
    [[ " ${all[*]} " == *" $target "* ]] || { echo "fuzz.sh: no target is called $target; there are ${all[*]}" >&2; exit 2; }
done
tools
mkdir -p "$work"
if [[ $mode == planted ]]; then
    planted
    exit
fi
build "$root" "${targets[@]}" || exit 1
case $mode in
    run)
        for target in "${targets[@]}"; do fuzz "$target" "$runs"; done
        [[ " ${targets[*]} " != *" ingress "* ]] || drops
        ;;
    quick) quick "${targets[@]}" ;;
    replay) "$bin/$1" "${@:2}" ;;
    minimise)
        for target in "${targets[@]}"; do
            mkdir -p "$work/$target/corpus"
            unpack "$target" "$work/$target/corpus"
            rm -rf "$work/$target/least"
            mkdir -p "$work/$target/least"
            # An edge is reached, or is not: how often would keep ten times as many.
            nice -n 15 "$bin/$target" -merge=1 -use_counters=0 -max_len="$(longest "$target")" "$work/$target/least" "$work/$target/corpus" >"$work/$target/merge.log" 2>&1 || { tail -n 20 "$work/$target/merge.log"; failed=1; }
            pack "$target" "$work/$target/least"
            printf '%-9s %5d inputs, %d bytes\n' "$target" "$(wc -l <"rdma-soft/fuzz/corpus/$target.txt")" "$(stat -c %s "rdma-soft/fuzz/corpus/$target.txt")"
        done
        ;;
esac
exit $failed
