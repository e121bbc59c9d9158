#!/usr/bin/env bash
# A quick part of the software device's tests under valgrind: reads of memory that was never written, or is no more. Its
# engine, its wire formats and its link have no `unsafe` of their own (ci/rules.py); what this watches is what they stand
# on: the module that copies user memory, by one instruction that no compiler's sanitizer sees, and the standard library.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! command -v valgrind >/dev/null; then
    echo "SKIP memcheck: valgrind is not installed (package valgrind)"
    exit 77
fi
# Names of tests, or `--all`; by default those that touch user memory in every way, and the wire formats.
case ${1:-} in
'') wanted=(wire:: memory:: invalidation::) ;;
--all) wanted=() ;;
*) wanted=("$@") ;;
esac
programs=$(cargo test --quiet --locked -p rdma-soft --lib --test engine --no-run --message-format=json |
    sed -nE 's/.*"name":"(rdma_soft|engine)".*"executable":"([^"]+)".*/\2/p')
for program in $programs; do
    echo "valgrind $(basename "$program")"
    valgrind --quiet --error-exitcode=9 --leak-check=no --fair-sched=yes "$program" --test-threads 2 "${wanted[@]}"
done
