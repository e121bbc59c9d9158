#!/usr/bin/env bash
# Boots the guest, runs FOLDER/run in it, exits with that script's status.
#
#   run.sh [-t SECONDS] [-m MB] [-c CPUS] [-l LOG] BASEDIR FOLDER [ARG..]
#
# BASEDIR holds what `mkinitrd.sh base` made. All of FOLDER is at /extra. Arguments may hold neither blanks nor commas.
# What the script prints comes out on stdout, as it comes; the kernel's messages go to LOG.
# Status: the script's; 124 past the limit; 125 where the guest ended without a status.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
limit=180 memory=2048 cpus=2 log=
while getopts t:m:c:l: option; do
    case $option in
    t) limit=$OPTARG ;;
    m) memory=$OPTARG ;;
    c) cpus=$OPTARG ;;
    l) log=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
base=${1:?BASEDIR} folder=${2:?FOLDER}
shift 2
log=${log:-$base/console.log}

work=$(mktemp -d "$base/run.XXXXXX")
machine=
tidy() {
    trap - EXIT
    [[ -z $machine ]] || { kill -TERM "$machine" 2>/dev/null && wait "$machine" 2>/dev/null; }
    rm -rf "$work"
}
trap tidy EXIT
trap 'exit 130' INT TERM HUP

"$here/mkinitrd.sh" extra "$folder" "$work/extra.cpio"
cat "$base/base.cpio" "$work/extra.cpio" >"$work/initrd"
# (A machine that has much else to do gives too few timer ticks for the check of them that some kernels end with.)
append="console=ttyS0 no_timer_check nokaslr mitigations=off panic=-1 loglevel=5 random.trust_cpu=on tsc=reliable"
append+=" args=$(IFS=,; echo "$*")"
# Emulated by QEMU itself: works everywhere, virtual machines without nested ones included.
# The machine ends with this script, however this script ends.
setpriv --pdeathsig TERM timeout -k 5 "$limit" setpriv --pdeathsig KILL \
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory" \
    -nodefaults -no-user-config -display none -no-reboot -nic none \
    -kernel "$base/vmlinux" -initrd "$work/initrd" -append "$append" \
    -serial "file:$log" -serial stdio -serial "file:$work/status" </dev/null &
machine=$!
ended=0
wait "$machine" || ended=$?
machine=
if ((ended == 124 || ended == 137)); then
    echo "run.sh: no end within $limit s; the kernel's messages are in $log" >&2
    exit 124
fi
status=$(tr -dc 0-9 <"$work/status" 2>/dev/null || true)
if [[ -z $status ]]; then
    echo "run.sh: the guest ended without a status; the end of $log:" >&2
    tail -n 5 "$log" >&2
    exit 125
fi
exit "$status"
