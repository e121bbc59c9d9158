#!/usr/bin/env bash
# A bare Debian system, made for this, as somebody who has just cloned the project: README's two commands, and libqp
# installed and linked from C.
#
#   ci/install.sh SUITE     bookworm, trixie or sid
#
# The system is a chroot that debootstrap makes, with gcc, git, binutils and Python beside what every system has. sid has a
# Rust of its own that is new enough, and whose linker is the package lld; elsewhere this machine's toolchain and its downloaded crates are mounted, as rustup and
# Cargo would bring them. Of README's second command the checks run that need no more than that: no headers, no captures, no
# virtual machines. Needs root; kept in target/ci/install, with what was built there.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=${1:?SUITE}
work=${CARGO_TARGET_DIR:-$root/target}/ci/install
system=$work/$suite
mkdir -p "$work"
work=$(cd "$work" && pwd)
quick=(versions default-build unsafe build readme states icrc-vectors faulty-wire suite)

skip() {
    echo "SKIP install-$suite: $*"
    exit 77
}
[[ $(id -u) == 0 ]] || skip "a chroot needs root"
unshare --mount true 2>/dev/null || skip "no namespaces of mounts can be made here"
command -v debootstrap >/dev/null || "$root/ci/packages.sh" debootstrap
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
mirror=$("$root/ci/packages.sh" --mirror)
[[ -n $mirror ]] || skip "this machine's apt names no Debian mirror"

packages=gcc,libc6-dev,git,python3,binutils,ca-certificates
own_rust=
[[ $suite != sid ]] || own_rust=1 packages+=,cargo,lld
# (one that was made with other packages is made again)
if [[ $(cat "$system/packages" 2>/dev/null) != "$packages" ]]; then
    rm -rf "$system.new"
    setpriv --pdeathsig TERM timeout -k 10 900 debootstrap --variant=minbase --include="$packages" "$suite" "$system.new" "$mirror/debian" >"$system.log" 2>&1 </dev/null || {
        tail -n 5 "$system.log" >&2
        skip "debootstrap cannot make $suite"
    }
    echo "$packages" >"$system.new/packages"
    rm -rf "$system"
    mv "$system.new" "$system"
fi
mkdir -p "$system"/{project,cargo,rustup,target} "$work/$suite-target"
(cd "$root" && cargo fetch --locked --quiet) || skip "the crates cannot be fetched"
cargo_home=${CARGO_HOME:-$HOME/.cargo}
toolchain=
[[ -n $own_rust ]] || toolchain=$(rustc --print sysroot)

# What runs in the chroot; each step says ok or FAILED.
cat >"$system/steps" <<'END'
set -uo pipefail
export HOME=/root PATH=/rustup/bin:/usr/local/bin:/usr/bin:/usr/sbin:/bin CARGO_HOME=/cargo CARGO_NET_OFFLINE=true
# (CI: no incremental builds)
export QP_CHECK_INSTALL=0 NO_COLOR=1 CI=true
unset CARGO_TARGET_DIR
passed=0 failed=0
step() {
    local name=$1
    shift
    if "$@" >/tmp/step 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        tail -n 40 /tmp/step
    fi
    grep '^SKIP ' /tmp/step | sort -u
}
rm -rf /clone
git config --global safe.directory '*'
step "a clean clone" git clone -q /project /clone
cd /clone || exit 1
rustc --version
# (what was built is kept beside the clone, which is new each time)
ln -s /target target
rm -f target/copy-of-README.md
first=$(grep -m1 '^cargo run --release --bin qp -- copy' README.md)
step "$first" bash -c "$first && cmp README.md target/copy-of-README.md"
second=$(grep -m1 '^ci/check.sh$' README.md)
step "$second $*" "$second" "$@"
# As README shows it, but for the optimisation over all crates, which changes nothing here and takes minutes.
install=$(grep -m1 '^rdma-capi/install.sh --prefix' README.md)
step "$install" bash -c "$install --profile release"
link=$(grep -m1 '^gcc rdma-capi/examples/pair.c' README.md)
step "$link" bash -c "$link"
pair() {
    local server client port status
    # (what it said the last time would be read, were it slow to begin)
    rm -f /tmp/server
    ./pair >/tmp/server 2>&1 &
    server=$!
    for _ in $(seq 100); do
        port=$(grep -soE '[0-9]+$' /tmp/server | head -n 1)
        [[ -z $port ]] || break
        sleep 0.1
    done
    timeout 60 ./pair "127.0.0.1:$port"
    status=$?
    wait "$server" && ((status == 0)) && grep "hello from the client" /tmp/server
    local served=$?
    cat /tmp/server
    return "$served"
}
step "pair.c, linked with libqp.a, says hello to itself" pair
shared="gcc rdma-capi/examples/pair.c -o pair -I$HOME/qp/include -L$HOME/qp/lib -lqp -Wl,-rpath,$HOME/qp/lib"
step "linked with libqp.so" bash -c "$shared"
step "pair.c, linked with libqp.so, says hello to itself" pair
echo "tally: $passed passed, $failed failed, 0 skipped, 0 expected differences"
((failed == 0))
END

# Mounts that end with this.
# shellcheck disable=SC2016 # expanded by the inner shell
exec unshare --mount --pid --fork --kill-child --mount-proc bash -c '
    set -e
    system=$1 root=$2 target=$3 cargo_home=$4 toolchain=$5
    shift 5
    mount --bind "$root" "$system/project"
    mount --bind "$target" "$system/target"
    mount --bind "$cargo_home" "$system/cargo"
    [[ -z $toolchain ]] || mount --bind "$toolchain" "$system/rustup"
    mount -t proc proc "$system/proc"
    mount --rbind /dev "$system/dev"
    mount -t tmpfs tmpfs "$system/tmp"
    exec chroot "$system" bash /steps "$@"
' install "$system" "$root" "$work/$suite-target" "$cargo_home" "$toolchain" "${quick[@]}"
