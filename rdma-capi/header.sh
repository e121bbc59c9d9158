#!/usr/bin/env bash
# Makes include/qp.h from the sources, with cbindgen, which reads them after the macros: so what is exported, and only that,
# is in the header.
#
#   header.sh           writes include/qp.h
#   header.sh --check   says whether it is current; 77 where cbindgen is missing (cargo install cbindgen)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
target=${CARGO_TARGET_DIR:-$root/target}
PATH=$PATH:$target/tools/bin
if ! command -v cbindgen >/dev/null; then
    echo "SKIP capi-header: cbindgen is not installed (cargo install cbindgen --root $target/tools)"
    exit 77
fi
version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"$/\1/p' "$root/Cargo.toml")
IFS=. read -r major minor patch <<<"${version%%-*}"
work=$target/header
mkdir -p "$work"
# Expanding the macros is not a stable option of the compiler; what is built with it is kept apart.
(cd "$root" && RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$work cargo rustc --quiet -p rdma-capi --lib --profile check -- \
    -Zunpretty=expanded >"$work/expanded.rs")
cat >"$work/top.h" <<END
/*
 * libqp $version: safe RDMA Queue Pairs for C and MPI programs.
 *
 * Made by header.sh; do not edit.
 *
 * Return value. Every function that can fail returns an int: 0, or a positive errno value, and errno is set to it as well. On
 * failure nothing is given out: results are written on success only, unless the function says otherwise. qp_last_error() has
 * a sentence that says what is wrong and what to change, qp_last_code() a number that says it to a program; both are kept per
 * thread until its next failure. These hold for all functions, and are not repeated below:
 *
 *   EINVAL  QP_CODE_NULL          a pointer is NULL that must not be
 *   EINVAL  QP_CODE_RANGE         a number is out of its range
 *   EBADF   QP_CODE_NO_HANDLE     a handle that the library never gave out
 *   EBADF   QP_CODE_WRONG_HANDLE  a handle of another type
 *   EBADF   QP_CODE_DESTROYED     a handle that was destroyed; destroying twice is this too
 *   EBUSY   QP_CODE_OCCUPIED      another thread is in a call with the object
 *   EDEADLK QP_CODE_REENTERED     a call from within the log callback (but for posting and polling)
 *   ENOTRECOVERABLE QP_CODE_INTERNAL  a fault of the library
 *
 * Ownership. What a function gives out in a handle is the caller's, to be destroyed with the ..._destroy of its type (a qp_shared
 * ends by qp_shared_end()). An object keeps what it was made from alive, but a destroy says EBUSY (QP_CODE_IN_USE) while something
 * still uses the object. Strings and structs that are handed in are copied.
 *
 * Handles are numbers that only look like pointers: do not dereference or compare them with anything but each other and NULL.
 * A handle that was destroyed is recognised, even after long. Objects of libibverbs (struct ibv_qp and so on) that are handed
 * in are real pointers, of which nothing can be known: they must be alive.
 *
 * Threads. Any thread may call any function. One object serves one call at a time, and a second one meanwhile is refused with
 * EBUSY; of qp_device, qp_pd, qp_mr, qp_dest, qp_listener, qp_shared and qp_xrc_domain many calls may be under way. No function
 * may be called by a signal handler. A child of fork(2) opens what it needs itself: handles of its parent are of no use to it. What is
 * not destroyed when the process ends, ends with it.
 *
 * Names. What verbs call something else:
 *
 *   context of qp_send, qp_recv, qp_completion   wr_id
 *   send_depth, recv_depth                       max_send_wr, max_recv_wr
 *   send_ranges, recv_ranges                     max_send_sge, max_recv_sge
 *   inline_data                                  max_inline_data
 *   qp_range: mr, offset, len                    ibv_sge: lkey, addr, length
 *   qp_region: what a peer is told               addr, length and rkey of an ibv_mr
 *   qp_pair; qp_ref, of one that you made        ibv_qp
 *   qp_dest                                      ibv_ah, with remote_qpn and remote_qkey of a request
 *   op, enum qp_op; operation                    opcode of ibv_send_wr; of ibv_wc
 *   imm, in host byte order                      imm_data, in network byte order
 *   QP_UNSIGNALED; requests are signaled         no IBV_SEND_SIGNALED
 *   qp_cq_arm(), qp_cq_take_events()             ibv_req_notify_cq(); ibv_get_cq_event() and ibv_ack_cq_events()
 *
 * Needs nothing but the C library at build time: libibverbs is found when it is first needed, in the process if it is there,
 * else on the system. <infiniband/verbs.h> may be included before or after, or not at all.
 */
END
cat >"$work/after.h" <<END
#define QP_VERSION_MAJOR $major
#define QP_VERSION_MINOR $minor
#define QP_VERSION_PATCH $patch
#define QP_VERSION "$version"

/* Of <infiniband/verbs.h>. */
struct ibv_context;
struct ibv_pd;
struct ibv_mr;
struct ibv_cq;
struct ibv_srq;
struct ibv_qp;
struct ibv_qp_attr;
struct ibv_wc;
END
{
    sed -n '1,/^\[/p' "$here/cbindgen.toml" | sed '$d'
    printf "header = '''\n%s'''\n" "$(cat "$work/top.h")"
    printf "after_includes = '''\n%s'''\n\n" "$(cat "$work/after.h")"
    sed -n '/^\[/,$p' "$here/cbindgen.toml"
} >"$work/cbindgen.toml"
cbindgen --quiet --config "$work/cbindgen.toml" --output "$work/qp.h" "$work/expanded.rs"
sed -i 's/[ \t]*$//' "$work/qp.h"
if [[ ${1:-} == --check ]]; then
    diff -u "$here/include/qp.h" "$work/qp.h" || { echo "include/qp.h is not current: run rdma-capi/header.sh"; exit 1; }
else
    cp "$work/qp.h" "$here/include/qp.h"
fi
