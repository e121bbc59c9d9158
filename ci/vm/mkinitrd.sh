#!/usr/bin/env bash
# Builds the guest's boot files from what fetch.sh unpacked.
#
#   mkinitrd.sh base KERNELDIR USERDIR OUTDIR    OUTDIR/vmlinux and OUTDIR/base.cpio
#   mkinitrd.sh extra FOLDER FILE.cpio           FOLDER appears as /extra
#
# A boot gets base.cpio and the extra one behind it, so only the small second one is built when a job changes.
# VM_MODULES names the kernel modules to bring (with what they depend on), VM_LOAD those that /init loads. A module
# that the kernel does not have is left out: loading it then says so.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
modules=${VM_MODULES:-"ib_core ib_uverbs ib_umad ib_cm iw_cm rdma_cm rdma_ucm rdma_rxe udp_tunnel ip6_udp_tunnel
    crc32_generic crc32_pclmul crc32c_generic libcrc32c veth ipv6 sch_netem"}
load=${VM_LOAD:-"ib_uverbs ib_umad rdma_ucm rdma_rxe veth"}

first() {
    local path
    for path; do [[ ! -e $path ]] || { echo "$path"; return; }; done
    return 1
}
pack() { (cd "$1" && find . -print0 | cpio --quiet -0 -o -H newc -R 0:0) >"$2.tmp" && mv "$2.tmp" "$2"; }

case ${1:-} in
base)
    kernel=$2 user=$3 out=$4
    mkdir -p "$out"
    stage=$(mktemp -d "$out/stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT
    chmod 755 "$stage"
    mkdir -p "$stage"/usr/{bin,sbin,lib,lib64} "$stage"/{bb,proc,sys,dev,tmp,run,etc,root,extra}
    for dir in bin sbin lib lib64; do ln -s usr/$dir "$stage/$dir"; done

    # The userland: programs, shared libraries, provider plugins, /etc. Suites differ in whether /bin is /usr/bin.
    for dir in bin sbin lib lib64 usr/bin usr/sbin usr/lib usr/lib64; do
        [[ -d $user/$dir && ! -L $user/$dir ]] || continue
        tar -C "$user/$dir" -c --exclude='*perl*' --exclude='python*' --exclude=gconv --exclude=systemd \
            --exclude=udev --exclude=modules --exclude=audit --exclude=terminfo --exclude=dpkg --exclude='*.a' \
            --exclude=locale . | tar -C "$stage/usr/${dir#usr/}" -x --keep-directory-symlink
    done
    tar -C "$user" -c etc | tar -C "$stage" -x
    loader=lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
    [[ ! -e $stage/usr/$loader ]] || ln -sf ../$loader "$stage/usr/lib64/"
    cp "$(command -v busybox)" "$stage/bb/busybox"
    if ldd "$stage/bb/busybox" >/dev/null 2>&1; then
        echo "mkinitrd.sh: busybox must be static (package busybox-static)" >&2
        exit 1
    fi
    # Not busybox: its shell prefers its own ip.
    [[ -e $stage/usr/bin/sh ]] || ln -s dash "$stage/usr/bin/sh"
    ln -sf /bb/busybox "$stage/usr/sbin/modprobe"
    printf 'root:x:0:0:root:/root:/bin/sh\n' >"$stage/etc/passwd"
    printf 'root:x:0:\n' >"$stage/etc/group"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$stage/etc/hosts"

    # The modules, unpacked, with what they depend on.
    source=$(first "$kernel"/{usr/,}lib/modules/*)
    version=${source##*/} root=${source%/lib/modules/*}
    to=$stage/usr/lib/modules/$version
    mkdir -p "$to"
    [[ -e $source/modules.dep ]] || depmod -b "$root" "$version"
    for module in $modules; do
        modprobe -d "$root" -S "$version" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p' || true
    done | sort -u | while read -r file; do
        case $file in
        *.xz) xz -dc "$file" >"$to/$(basename "$file" .xz)" ;;
        *.zst) zstd -qdc "$file" >"$to/$(basename "$file" .zst)" ;;
        *) cp "$file" "$to" ;;
        esac
    done
    cp "$source"/modules.{builtin,order} "$to"
    depmod -b "$stage" "$version" 2>/dev/null
    echo "$load" >"$stage/etc/modules-load"
    install -m 755 "$here/init" "$stage/init"
    pack "$stage" "$out/base.cpio"

    # The kernel itself, taken out of its self-extracting image: QEMU enters it by its PVH note, and the guest is
    # spared a decompression that is slow under emulation.
    image=$(first "$kernel"/boot/vmlinuz-* "$source/vmlinuz")
    for packed in '\xfd7zXZ:xz -dc' '\x28\xb5\x2f\xfd:zstd -dqc'; do
        for offset in $(LC_ALL=C grep -abo -P "${packed%%:*}" "$image" | cut -d: -f1); do
            # shellcheck disable=SC2086 # a command and its options
            tail -c +$((offset + 1)) "$image" | ${packed#*:} >"$out/vmlinux" 2>/dev/null || true
            ! readelf -h "$out/vmlinux" >/dev/null 2>&1 || break 2
        done
    done
    readelf -h "$out/vmlinux" >/dev/null 2>&1 || { echo "mkinitrd.sh: no ELF kernel in $image" >&2; exit 1; }
    echo "$version" >"$out/version"
    ;;
extra)
    folder=$2 file=$3
    [[ -f $folder/run ]] || { echo "mkinitrd.sh: $folder/run is missing" >&2; exit 1; }
    stage=$(mktemp -d "$(dirname "$file")/stage.XXXXXX")
    trap 'rm -rf "$stage"' EXIT
    chmod 755 "$stage"
    mkdir "$stage/extra"
    cp -a "$folder/." "$stage/extra/"
    chmod +x "$stage/extra/run"
    pack "$stage" "$file"
    ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
