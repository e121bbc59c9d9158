#!/usr/bin/env bash
# Builds siw.ko, the kernel's soft-iWARP, which Debian's kernels leave out, from Debian's own sources of that kernel.
#
#   siw.sh SUITE KERNELDIR DIR      needs make, and a gcc that the kernel's build accepts
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=$1 kernel=$2 dir=$3
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
for modules in "$kernel"/{usr/,}lib/modules/*; do
    [[ ! -d $modules ]] || version=${modules##*/} # 6.1.0-57-amd64
done
series=$(grep -o '^[0-9]*\.[0-9]*' <<<"$version")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/fetch.sh" only "$suite" "$work" "linux-source-$series" "linux-kbuild-$series" \
    "linux-headers-$version" "linux-headers-${version%-amd64}-common"
source=linux-source-$series
tar -C "$work" -xJf "$work/usr/src/$source.tar.xz" --wildcards "$source/drivers/infiniband/sw/siw/*"
# The headers' Makefile names where they would be installed.
sed -i "s,/usr/src/,$work/usr/src/," "$work/usr/src/linux-headers-$version/Makefile"
make -s -C "$work/usr/src/linux-headers-$version" M="$work/$source/drivers/infiniband/sw/siw" CONFIG_RDMA_SIW=m modules
strip -g -o "$dir/siw.ko" "$work/$source/drivers/infiniband/sw/siw/siw.ko"
