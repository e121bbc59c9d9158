#!/usr/bin/env bash
# Runs FOLDER/run in a virtual machine: fetches and builds what is missing, then boots.
#
#   vm.sh [-k KERNEL] [-u USERLAND] [-t SECONDS] [-l LOG] FOLDER [ARG..]
#
# KERNEL and USERLAND are Debian suites (default: bookworm, both). As root on a Debian system the packages that
# this needs are installed (QP_CHECK_INSTALL=0 forbids it). Everything else is kept in target/ci/vm.
# Status: that of the guest's script (see run.sh); 77, with a line `SKIP vm: reason`, where it cannot be had here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=${CARGO_TARGET_DIR:-$here/../../target}/ci/vm
PATH=$PATH:/usr/sbin:/sbin
kernel=bookworm user=bookworm options=()
while getopts k:u:t:l: option; do
    case $option in
    k) kernel=$OPTARG ;;
    u) user=$OPTARG ;;
    t | l) options+=("-$option" "$OPTARG") ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
(($#)) || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }

skip() {
    echo "SKIP vm: $*"
    exit 77
}

# --- what it needs of the machine ---------------------------------------------------------------------

tools=(qemu-system-x86_64 busybox cpio zstd xz depmod readelf)
packages=(qemu-system-x86 busybox-static cpio zstd xz-utils kmod binutils)
lacking() {
    local at
    for at in "${!tools[@]}"; do command -v "${tools[at]}" >/dev/null || echo "${packages[at]}"; done
}
[[ $(uname -m) == x86_64 ]] || skip "the guest is x86-64, this machine is $(uname -m)"
command -v apt-get dpkg >/dev/null || skip "kernels and userlands come by apt-get, which is not here"
mkdir -p "$work"
work=$(cd "$work" && pwd)
mapfile -t want < <(lacking)
if ((${#want[@]})) && [[ ${QP_CHECK_INSTALL:-1} != 0 && $(id -u) == 0 ]]; then
    {
        timeout -k 5 180 apt-get update -qq
        DEBIAN_FRONTEND=noninteractive timeout -k 5 420 apt-get install -y -qq --no-install-recommends "${want[@]}"
    } >"$work/install.log" 2>&1 </dev/null || true
    mapfile -t want < <(lacking)
fi
((${#want[@]} == 0)) || skip "packages ${want[*]} are not installed"

# --- kernel, userland, boot files: each made once -----------------------------------------------------

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
# Boot files made by other versions of these two scripts are not this version's.
version=$(cat "$here/init" "$here/mkinitrd.sh" | sha256sum | cut -c1-12)
base=$work/boot-$kernel-$user-$version
exec 9>"$work/lock"
flock -w 900 9 || skip "another run has been preparing $work for 15 minutes"
once "$work/kernel-$kernel" "$here/fetch.sh" kernel "$kernel" || skip "the kernel of $kernel cannot be fetched"
once "$work/user-$user" "$here/fetch.sh" user "$user" || skip "the userland of $user cannot be fetched"
once "$base" "$here/mkinitrd.sh" base "$work/kernel-$kernel" "$work/user-$user"
exec 9>&-
exec "$here/run.sh" "${options[@]}" "$base" "$@"
