#!/usr/bin/env bash
# Downloads packages of any Debian suite and unpacks them. Neither the machine's apt configuration nor its
# dpkg database is touched; the mirror is the one that the machine's own apt uses.
#
#   fetch.sh kernel SUITE DIR           the newest linux-image-amd64 of SUITE, unpacked into DIR
#   fetch.sh user   SUITE DIR [PKG..]   the packages and all that they depend on, unpacked into DIR
#   fetch.sh only   SUITE DIR PKG..     the packages alone, unpacked into DIR
#   fetch.sh versions SUITE [PKG..]     prints the versions that SUITE has
#
# SUITE is bullseye, bookworm, trixie, sid or X-backports. Package lists and archives are kept in $VM_CACHE.
set -euo pipefail

cache=${VM_CACHE:?the folder for package lists and archives}
mirror=$("$(dirname "${BASH_SOURCE[0]}")/../packages.sh" --mirror || true)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
userland="rdma-core ibverbs-providers ibverbs-utils libibverbs1 librdmacm1 rdmacm-utils perftest
    iproute2 ethtool iputils-ping dash bash coreutils"

die() { echo "fetch.sh: $*" >&2; exit 1; }
(($# >= 2)) || die "usage: fetch.sh kernel|user|versions SUITE ..."
verb=$1 suite=$2
shift 2
[[ -n $mirror ]] || die "this machine's apt names no Debian mirror"

# --- a private apt: its own lists and archives, an empty dpkg status ----------------------------------

state=$cache/apt/$suite
mkdir -p "$state"/{etc/apt.conf.d,etc/preferences.d,lists/partial,archives/partial,none/partial}
: >"$state/status"
base=${suite%-backports}
sign="[arch=amd64 signed-by=$keys]"
{
    echo "deb $sign $mirror/debian $base main"
    case $base in bullseye | bookworm | trixie) echo "deb $sign $mirror/debian-security $base-security main" ;; esac
    [[ $suite == "$base" ]] || echo "deb $sign $mirror/debian $suite main"
} >"$state/sources.list"
target=()
[[ $suite == "$base" ]] || target=(-t "$suite")

private() { # private get|cache ARG..
    local tool=$1
    shift
    timeout -k 5 400 "apt-$tool" -qq -o Dir::Etc="$state/etc" -o Dir::Etc::sourcelist="$state/sources.list" \
        -o Dir::Etc::sourceparts=- -o Dir::State="$state" -o Dir::State::status="$state/status" \
        -o Dir::State::lists="$state/lists" -o Dir::Cache="$state" -o Dir::Cache::archives="$state/archives" \
        -o APT::Sandbox::User=root -o APT::Architecture=amd64 -o APT::Install-Recommends=false \
        -o Acquire::Retries=2 "${target[@]}" "$@"
}

# The lists are refreshed at most every 12 hours.
if [[ -z $(find "$state/stamp" -mmin -720 2>/dev/null) ]]; then
    private get update && touch "$state/stamp"
fi

unpack() { # unpack DIR: the archives named on stdin
    local archive
    while read -r archive; do dpkg -x "$archive" "$1"; done
}

only() { # only DIR PKG..: these packages and nothing that they depend on
    local dir=$1 package
    shift
    mkdir -p "$dir" "$state/only"
    (cd "$state/only" && private get download "$@")
    for package; do
        find "$state/only" -name "${package}_*.deb" -printf '%T@ %p\n' | sort -rn | head -1 | cut -d' ' -f2-
    done | unpack "$dir"
}

case $verb in
kernel)
    dir=${1:?DIR}
    depends() { private cache depends "$1" | sed -n "s/.*Depends: \($2\)/\1/p"; }
    image=$(depends linux-image-amd64 'linux-image-[0-9].*' | head -1)
    [[ -n $image ]] || die "$suite has no kernel image"
    # Newer suites split the image: what it depends on belongs to it.
    mapfile -t packages < <(echo "$image"; depends "$image" 'linux-[a-z]*-[0-9].*')
    only "$dir" "${packages[@]}"
    # Modules that no guest loads: looking through all of them for what depends on what takes half a minute.
    for modules in "$dir"/{usr/,}lib/modules/*/kernel; do
        [[ -d $modules ]] || continue
        find "$modules" -name '*.ko*' ! -path '*/infiniband/*' ! -path '*/net/veth.ko*' ! -path "$modules/net/*" \
            ! -path "$modules/lib/*" ! -path "$modules/crypto/*" ! -path "$modules/arch/*" -delete
    done
    ;;
only) only "$@" ;;
user)
    dir=${1:?DIR}
    shift
    # shellcheck disable=SC2086 # a list of names
    (($#)) || set -- $userland
    mkdir -p "$dir"
    # The names of all archives first: with an empty archive folder, because --print-uris leaves out what is
    # downloaded already.
    private get install -y --print-uris -o Dir::Cache::archives="$state/none" "$@" |
        sed "s/^'[^']*' \([^ ]*\) .*/\1/" >"$state/wanted"
    private get install -y --download-only "$@" >"$state/download.log" 2>&1 || { tail "$state/download.log" >&2; exit 1; }
    sed "s,^,$state/archives/," "$state/wanted" | unpack "$dir"
    ;;
versions)
    (($#)) || set -- linux-image-amd64 rdma-core libibverbs1 perftest iproute2
    for package; do
        printf '%-12s %-22s %s\n' "$suite" "$package" "$(private cache policy "$package" | sed -n 's/ *Candidate: //p')"
    done
    ;;
*) die "no such verb: $verb" ;;
esac
