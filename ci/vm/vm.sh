#!/usr/bin/env bash
# Runs FOLDER/run in a virtual machine: fetches and builds what is missing, then boots.
#
#   vm.sh [-k KERNEL] [-u USERLAND] [-t SECONDS] [-l LOG] FOLDER [ARG..]
#
# KERNEL and USERLAND are Debian suites (default: bookworm, both); prepare.sh fetches and keeps what they need.
# Status: that of the guest's script (see run.sh); 77, with a line `SKIP vm: reason`, where it cannot be had here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
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

base=$("$here/prepare.sh" boot "$kernel" "$user") || { status=$?; echo "$base"; exit "$status"; }
exec "$here/run.sh" "${options[@]}" "$base" "$@"
