#!/usr/bin/env bash
# Sees to it that packages of Debian are installed: what checks, machines and benches use beside Rust, gcc and Python.
#
#   ci/packages.sh PACKAGE..
#   ci/packages.sh --mirror     prints the mirror of Debian that this machine's apt uses, without the last /debian; or VM_MIRROR
#
# As root on a Debian system it installs those that are not there; not with QP_CHECK_INSTALL=0. Several of these at the same
# time wait for each other. Status: 0 where all are there now, else 1. What apt said is kept in target/ci/packages.log.
set -uo pipefail
(($#)) || { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "$0"; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kept=${CARGO_TARGET_DIR:-$root/target}/ci
want=("$@")

if [[ $1 == --mirror ]]; then
    # What an update would ask for: known from the sources alone, where no list was fetched yet, too.
    mirror=${VM_MIRROR:-$(apt-get update --print-uris 2>/dev/null | sed -nE "s,^'([^']*)/debian/dists/.*,\\1,p" | sort -u | head -n 1)}
    [[ -n $mirror ]] && echo "$mirror"
    exit
fi

# Leaves in `want` what is not installed.
look() {
    local package absent=()
    for package in "${want[@]}"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || absent+=("$package")
    done
    want=("${absent[@]}")
}

look
((${#want[@]})) || exit 0
if [[ ${QP_CHECK_INSTALL:-1} != 0 && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    mkdir -p "$kept"
    # One lock for the whole system, for that is what is changed; apt's own would refuse who comes second.
    exec 9>/run/lock/rdma-qp-packages
    flock -w 900 9
    look
    if ((${#want[@]})); then
        echo "installing ${want[*]}"
        {
            timeout -k 5 180 apt-get update -qq
            DEBIAN_FRONTEND=noninteractive timeout -k 5 600 \
                apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${want[@]}"
        } >>"$kept/packages.log" 2>&1 </dev/null 9>&-
        look
        ((${#want[@]} == 0)) || echo "could not be installed: ${want[*]}; see $kept/packages.log"
    fi
fi
((${#want[@]} == 0))
