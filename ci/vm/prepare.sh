#!/usr/bin/env bash
# Makes what machines and builds stand on, each once, and prints the folder where it lies.
#
#   prepare.sh boot KERNEL USERLAND   boot files for run.sh
#   prepare.sh kernel SUITE           a kernel with its modules, unpacked
#   prepare.sh user SUITE             the guest's programs and libraries, unpacked
#   prepare.sh dev SUITE              libibverbs, librdmacm and the C library with their headers: a --sysroot for a compiler
#   prepare.sh siw SUITE              siw.ko for the kernel of that suite, which Debian does not build
#
# All arguments are Debian suites. As root on a Debian system the packages that this needs are installed (not with
# QP_CHECK_INSTALL=0). Everything is kept in target/ci/vm: delete a folder there to make it again.
# Status: 77, with a line `SKIP vm: reason` instead of the folder, where something cannot be had here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=${CARGO_TARGET_DIR:-$here/../../target}/ci/vm
PATH=$PATH:/usr/sbin:/sbin
(($# >= 2)) || { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; exit 2; }

skip() {
    echo "SKIP vm: $*"
    exit 77
}

# --- what it needs of the machine ---------------------------------------------------------------------

tools=(qemu-system-x86_64 busybox cpio zstd xz depmod readelf)
packages=(qemu-system-x86 busybox-static cpio zstd xz-utils kmod binutils)
case $1 in
dev) tools=(dpkg) packages=(dpkg) ;;
siw) tools=(make gcc xz) packages=(make gcc xz-utils) ;;
esac
lacking() {
    local at
    for at in "${!tools[@]}"; do command -v "${tools[at]}" >/dev/null || echo "${packages[at]}"; done
}
[[ $(uname -m) == x86_64 ]] || skip "the guest is x86-64, this machine is $(uname -m)"
command -v apt-get dpkg >/dev/null || skip "kernels and userlands come by apt-get, which is not here"
mkdir -p "$work"
work=$(cd "$work" && pwd)
mapfile -t want < <(lacking)
if ((${#want[@]})); then
    "$here/../packages.sh" "${want[@]}" >&2 || true
    mapfile -t want < <(lacking)
fi
((${#want[@]} == 0)) || skip "packages ${want[*]} are not installed"

# --- each made once -----------------------------------------------------------------------------------

# once DIR COMMAND..: runs COMMAND with DIR.new as its last argument unless DIR is there; DIR when it succeeds.
once() {
    local dir=$1
    shift
    [[ ! -d $dir ]] || return 0
    rm -rf "$dir.new"
    "$@" "$dir.new" >"$dir.log" 2>&1 </dev/null || { tail -n 5 "$dir.log" >&2; return 1; }
    mv "$dir.new" "$dir"
}
export VM_CACHE=$work
kernel() { once "$work/kernel-$1" "$here/fetch.sh" kernel "$1" || skip "the kernel of $1 cannot be fetched"; }
user() { once "$work/user-$1" "$here/fetch.sh" user "$1" || skip "the userland of $1 cannot be fetched"; }
# Newer suites have /lib as a link, in a package that is not among these. Links that begin with / would lead out of it.
dev() {
    local suite=$1 dir=$2 link
    "$here/fetch.sh" user "$suite" "$dir" libibverbs-dev librdmacm-dev libc6-dev libgcc-s1 ibverbs-providers
    for link in lib lib64; do
        [[ -e $dir/$link ]] || ln -s "usr/$link" "$dir/$link"
    done
    find "$dir" -type l -lname '/*' | while read -r link; do
        ln -sfnr "$dir$(readlink "$link")" "$link"
    done
}

exec 9>"$work/lock"
flock -w 900 9 || skip "another run has been preparing $work for 15 minutes"
case $1 in
boot)
    kernel "$2"
    user "$3"
    # Boot files made by other versions of these two scripts are not this version's.
    dir=$work/boot-$2-$3-$(cat "$here/init" "$here/mkinitrd.sh" | sha256sum | cut -c1-12)
    once "$dir" "$here/mkinitrd.sh" base "$work/kernel-$2" "$work/user-$3"
    ;;
kernel | user) "$1" "$2"; dir=$work/$1-$2 ;;
dev)
    dir=$work/dev-$2
    once "$dir" dev "$2" || skip "the headers of $2 cannot be fetched"
    ;;
siw)
    kernel "$2"
    dir=$work/siw-$2
    once "$dir" "$here/siw.sh" "$2" "$work/kernel-$2" || skip "siw cannot be built for the kernel of $2"
    ;;
*) echo "prepare.sh: no such thing: $1" >&2; exit 2 ;;
esac
echo "$dir"
