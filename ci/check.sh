#!/usr/bin/env bash
# Checks everything: formatting, lints, tests, documentation, rules of the repository, and what other
# programs say of the software device's frames. One line per check; a check that cannot run says SKIP and
# why. Needs Rust, gcc and Python 3; as root on a Debian system it installs what the outside checks use
# (set QP_CHECK_INSTALL=0 to leave the system alone). Logs are kept in target/ci/logs.
#
#   ci/check.sh             all checks
#   ci/check.sh NAME ...    only the named ones; `ci/check.sh --list` prints the names
#
# The last line is `N passed, N failed, N skipped`; the status is not zero where anything failed.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
export CARGO_TERM_COLOR=never PYTHONDONTWRITEBYTECODE=1 RUST_BACKTRACE=1
export QP="$CARGO_TARGET_DIR/release/qp" QP_SCRATCH="$CARGO_TARGET_DIR/ci"
# A machine that builds once and forgets needs neither incremental builds nor full debug information.
[[ ${CI:-} == true ]] && export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=line-tables-only
PATH=$PATH:/usr/sbin:/sbin
work=$CARGO_TARGET_DIR/ci
logs=$work/logs
venv=$work/venv
mkdir -p "$logs" || exit 1

passed=0 failed=0
failures=() missing=() current=
skips=$work/skips.txt
: >"$skips"

# --- machinery -------------------------------------------------------------------------------------

# Ends what is still running when the script is told to stop.
stop() {
    trap - EXIT INT TERM HUP
    if [[ -n $current ]] && kill -0 "$current" 2>/dev/null; then
        kill -TERM "$current" 2>/dev/null
        wait "$current" 2>/dev/null
    fi
    exit "${1:-130}"
}
trap 'stop 130' INT TERM HUP

# skip NAME REASON: a check of this script that cannot run.
skip() {
    printf 'SKIP %s: %s\n' "$1" "$2"
    printf '%s: %s\n' "$1" "$2" >>"$skips"
}

# run NAME SECONDS COMMAND...: runs one check in the background of this script, bounded in time.
run() {
    local name=$1 limit=$2 log=$logs/$1.log began=$SECONDS status tests
    shift 2
    timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null &
    current=$!
    wait "$current"
    status=$?
    current=
    local spent=$((SECONDS - began))
    # What tests and outside checks could not do, and tests marked as ignored.
    sed -nE 's/^(.* )?SKIP (([^:]|:[^ ])+): (.*)$/SKIP \2: \4/p' "$log" | sort -u
    sed -nE 's/^(.* )?SKIP (([^:]|:[^ ])+): (.*)$/\2: \4/p' "$log" >>"$skips"
    # (an ignored test that another one runs, in a process of its own, is no skip: its reason begins with "run by").
    sed -nE '/ ignored, run by /d; s/^test (.*) \.\.\. ignored(, (.*))?$/\1: ignored \3/p' "$log" | tee -a "$skips" | sed 's/^/SKIP /'
    tests=$(awk '/^test result: /{n += $4} END{print n + 0}' "$log")
    if ((status == 77)) && grep -qE '(^| )SKIP .+: ' "$log"; then
        return
    elif ((status == 0)); then
        passed=$((passed + (tests > 0 ? tests : 1)))
        printf 'ok    %-22s %4d s%s\n' "$name" "$spent" "$( ((tests > 0)) && echo "  $tests tests")"
    else
        ((tests > 0)) && passed=$((passed + tests))
        tests=$(awk '/^test result: /{n += $6} END{print n + 0}' "$log")
        failed=$((failed + (tests > 0 ? tests : 1)))
        failures+=("$name")
        printf 'FAIL  %-22s %4d s' "$name" "$spent"
        ((status == 124 || status == 137)) && printf '  ended at its limit of %s s' "$limit"
        printf '\n--- %s, last lines of %s\n' "$name" "${log#"$root"/}"
        grep -vE '^ *(Compiling|Checking|Documenting|Download(ed|ing)) ' "$log" | tail -n 150 | sed 's/^/    /'
        printf -- '---\n'
    fi
}

# --- what the outside checks use -------------------------------------------------------------------

# Installs, where it can, what is not there yet; notes in `missing` what could not be had.
install_tools() {
    local log=$logs/install.log
    ci/packages.sh libibverbs-dev librdmacm-dev libclang-dev pkg-config gcc g++ libc6-dev tshark iproute2 python3-venv valgrind
    if [[ ${QP_CHECK_INSTALL:-1} != 0 ]] && ! "$venv/bin/python" -c 'import scapy' 2>/dev/null; then
        { timeout 60 python3 -m venv "$venv" && timeout 120 "$venv/bin/pip" install --quiet --disable-pip-version-check 'scapy>=2.6'; } >"$log" 2>&1 </dev/null
    fi
    [[ -e /usr/include/infiniband/verbs.h ]] || missing+=("libibverbs headers")
    compgen -G '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' >/dev/null || missing+=("libclang")
    command -v tshark >/dev/null || missing+=("tshark")
    command -v ip >/dev/null || missing+=("iproute2")
    command -v valgrind >/dev/null || missing+=("valgrind")
    "$venv/bin/python" -c 'import scapy' 2>/dev/null || missing+=("scapy")
    cargo fmt --version >/dev/null 2>&1 || missing+=("rustfmt")
    cargo clippy --version >/dev/null 2>&1 || missing+=("clippy")
    unshare --net true 2>/dev/null || missing+=("network namespaces")
}

lacks() {
    local thing
    for thing in "${missing[@]}"; do [[ $thing == "$1" ]] && return 0; done
    return 1
}

# --- the checks ------------------------------------------------------------------------------------

# What all checks together leave under the target directory, in GiB. A disk that fills up fails everything after it, and says why nowhere.
needed=10
check_space() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    run space 60 bash -c '
        used=$(du -sk "$1" | cut -f1) free=$(df -Pk "$1" | awk "NR == 2{print \$4}")
        left=$(($2 * 1048576 - used))
        echo "free: $((free / 1024)) MiB; all checks need about $2 GiB under $1, of which $((used / 1024)) MiB are there"
        ((free > left)) || { echo "too little: free some, or name a directory elsewhere in CARGO_TARGET_DIR"; exit 1; }' space "$CARGO_TARGET_DIR" "$needed"
    ((failed)) || return 0
    printf '%d passed, %d failed, 0 skipped\n' "$passed" "$failed"
    exit 1
}

check_fmt() {
    if lacks rustfmt; then skip fmt "cargo fmt is not installed (rustup component add rustfmt)"; return; fi
    run fmt 120 cargo fmt --all -- --check --color never
}

check_versions() { run versions 120 python3 ci/rules.py versions; }
check_default-build() { run default-build 120 python3 ci/rules.py build; }
check_unsafe() { run unsafe 60 python3 ci/rules.py unsafe; }

check_clippy() {
    if lacks clippy; then skip clippy "cargo clippy is not installed (rustup component add clippy)"; return; fi
    run clippy 600 cargo clippy --workspace --all-targets --features rdma-qp/tokio --locked -- -D warnings
}

# The programs in a release build, and the preload library: what README's first command runs, and the outside checks use.
check_build() { run build 600 cargo build --release --locked --workspace; }

check_readme() {
    local line='cargo run --release --bin qp -- copy README.md target/copy-of-README.md'
    # shellcheck disable=SC2016 # expanded by the inner shell
    run readme 300 bash -c '
        grep -qxF "$1" README.md || { echo "README.md does not show: $1"; exit 1; }
        mkdir -p target && rm -f target/copy-of-README.md
        eval "$1" && cmp README.md target/copy-of-README.md' readme "$line"
}

check_tests() { run tests 900 cargo test --workspace --features rdma-qp/tokio --locked --no-fail-fast --all-targets -- --show-output; }
check_doctests() { run doctests 600 cargo test --workspace --features rdma-qp/tokio --locked --no-fail-fast --doc; }

# All documentation, as a site.
check_doc() { run doc 400 docs/build.sh; }

check_link() {
    if lacks "libibverbs headers"; then skip link "no /usr/include/infiniband/verbs.h (package libibverbs-dev)"; return; fi
    if lacks libclang; then skip link "no libclang (package libclang-dev)"; return; fi
    run link 600 cargo test -p rdma-core-sys --features link --locked --no-fail-fast -- --show-output
}

check_minimum-rust() {
    local version
    version=$(sed -nE 's/^rust-version = "(.*)"$/\1/p' Cargo.toml)
    # rustup fetches it, where it can and may; it is asked in so many words, for it does not everywhere do so by itself.
    there() { rustup toolchain list 2>/dev/null | grep -q "^$version" && timeout 60 cargo "+$version" --version >/dev/null 2>&1 </dev/null; }
    there || [[ ${QP_CHECK_INSTALL:-1} == 0 ]] ||
        timeout 300 rustup toolchain install "$version" --profile minimal --no-self-update >/dev/null 2>&1 </dev/null
    if ! there; then
        skip minimum-rust "toolchain $version cannot be had here (rustup toolchain install $version)"
        return
    fi
    run minimum-rust 600 env CARGO_TARGET_DIR="$CARGO_TARGET_DIR/minimum" cargo "+$version" check --workspace --locked
}

# The other processor that has code of its own (the preload library) and other types in C.
check_aarch64() {
    local target=aarch64-unknown-linux-gnu
    if [[ ! -d $(rustc --print target-libdir --target "$target" 2>/dev/null) ]] &&
        ! { [[ ${QP_CHECK_INSTALL:-1} != 0 ]] && timeout 120 rustup target add "$target" >/dev/null 2>&1 </dev/null; }; then
        skip aarch64 "the target cannot be had here (rustup target add $target)"
        return
    fi
    run aarch64 300 cargo check --target "$target" --locked -p rdma-soft-preload -p rdma-qp
}

check_memcheck() { run memcheck 600 bash ci/memcheck.sh; }
check_asan() { run asan 600 bash ci/asan.sh; }

check_icrc-vectors() { run icrc-vectors 60 python3 ci/outside/icrc_check.py --vectors rdma-soft/tests/fixtures/roce_icrc_vectors.tsv; }
check_faulty-wire() { run faulty-wire 120 python3 ci/outside/wire_check.py; }
check_states() { run states 60 python3 ci/outside/states_check.py; }
check_capture() { QP_VENV=$venv run capture 180 python3 ci/outside/capture_check.py; }
check_accounting() { run accounting 180 python3 ci/outside/accounting_check.py; }
check_conformance() { QP_VENV=$venv run conformance 300 python3 ci/outside/conformance_check.py; }
check_xrc() { run xrc 180 python3 ci/outside/xrc_check.py; }
# Fewer lengths than `cargo run --release -p conformance`.
check_suite() {
    run suite 300 "$CARGO_TARGET_DIR/release/conformance" --quick
    sed -nE 's/^[0-9]+ passed, .* refused, .*$/          &/p' "$logs/suite.log"
}
check_copy() { run copy 240 python3 ci/outside/copy_check.py; }
# Instructions only: figures are shown, never judged; what fails is a hot path that allocates or locks.
check_cost() {
    run cost 300 benches/cost/run.sh --quick
    sed -nE 's/^raw .* safe .* tight .*$/          &/p' "$logs/cost.log"
}
# A little of what ci/long.sh runs; deaths may be seen later where this machine has more to do.
check_soak() {
    run soak 180 "$CARGO_TARGET_DIR/release/soak" --seconds 15 --kills 8 --slack 5000
    sed -nE 's/^soak: /          &/p' "$logs/soak.log"
}
# Simulated clusters; the same seeds give the same runs on every machine.
check_sim() {
    run sim 300 "$CARGO_TARGET_DIR/release/sim" --first 1 --count 300
    sed -nE 's/^trace /          &/p' "$logs/sim.log"
}
# The committed inputs of the fuzzers, and some ten thousand more of each; ci/fuzz.sh goes on from there.
check_fuzz() {
    run fuzz 600 ci/fuzz.sh --quick
    sed -nE 's/^(packets|ingress|modify|requests|rings|capi) .*$/          &/p' "$logs/fuzz.log"
}
# Whether what is measured runs, and whether what arrives is what was sent; no figure is judged.
check_speed() { run speed 300 benches/speed/run.sh --quick; }
# All that a C program relies on; the steps that can be skipped say so.
check_capi() { run capi 1200 ci/capi.sh; }
# A little of what ci/peers.sh runs.
check_peers() { run peers 300 ci/peers.sh quick; }
check_kill() { run kill 180 python3 ci/outside/kill_check.py; }

# Against the kernel's own soft-RoCE; ci/matrix.sh alone tries all of it.
check_vm() {
    run vm 900 ci/matrix.sh --quick
    ! grep -q 'SKIP vm:' "$logs/vm.log" || missing+=("what a virtual machine needs")
}

# --- all of it -------------------------------------------------------------------------------------

all=(space versions default-build unsafe fmt clippy build readme states icrc-vectors faulty-wire capture
    conformance suite xrc sim accounting copy kill soak peers cost speed capi fuzz vm tests doctests doc link minimum-rust aarch64 asan memcheck)
if [[ ${1:-} == --list ]]; then
    printf '%s\n' "${all[@]}"
    exit 0
fi
chosen=("$@")
((${#chosen[@]})) || chosen=("${all[@]}")
for name in "${chosen[@]}"; do
    if ! declare -F "check_$name" >/dev/null; then
        printf 'no check is called %s; see ci/check.sh --list\n' "$name" >&2
        exit 2
    fi
done

# What runs the programs of `build` has them built first, so that none of yesterday's is judged.
runs_programs=' states faulty-wire capture conformance suite xrc sim accounting copy kill soak peers '
if [[ " ${chosen[*]} " != *' build '* ]]; then
    for name in "${chosen[@]}"; do
        [[ $runs_programs != *" $name "* ]] || { chosen=(build "${chosen[@]}"); break; }
    done
fi

install_tools
for name in "${chosen[@]}"; do "check_$name"; done

# Where everything could be installed, the skips are exactly the committed ones.
sort -u -o "$skips" "$skips"
skipped=$(sed "s/: .*//" "$skips" | sort -u | grep -c .)
if ((${#chosen[@]} == ${#all[@]})); then
    if ((${#missing[@]})); then
        printf 'skips are not compared with ci/expected-skips.txt: this machine lacks %s\n' "$(IFS=,; echo "${missing[*]}")"
    else
        # Names with a question mark may run or not.
        may=$(sed -nE 's/^([^#:]+)\?: .*/\1/p' ci/expected-skips.txt)
        run skips 10 diff -u <(sed -E '/^(#|$)/d; /^[^:]+\?: /d; s/: .*//' ci/expected-skips.txt | sort -u) \
            <(sed "s/: .*//" "$skips" | grep -vxF -- "$may" | sort -u)
    fi
fi

echo
printf 'in %d s; logs in %s\n' "$SECONDS" "${logs#"$root"/}"
((failed)) && printf 'failed: %s\n' "${failures[*]}"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
