//! Operations of the extended context, memory windows, and what falls back to an exported function.

use super::set_errno;
use crate::types::*;
use crate::verbs::Verbs;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;
use core::ptr::null_mut;
use libc::{EINVAL, ENOSYS, EOPNOTSUPP, EPERM};

/// Bytes from a field of `verbs_context` up to the `ibv_context` at its end: the same in every release, because it grows at
/// the front.
macro_rules! before_context {
    ($field:ident) => {
        offset_of!(verbs_context, context) - offset_of!(verbs_context, $field)
    };
}

/// Reads a field that lies in front of a context; `_field` tells its type.
///
/// # Safety
/// `context` is the tail of a `verbs_context` whose `sz` covers the field, `before` bytes in front.
unsafe fn read_before<T: Copy>(
    context: *const ibv_context,
    before: usize,
    _field: fn(&verbs_context) -> T,
) -> T {
    // SAFETY: the caller says that the field exists there; a field of a repr(C) struct is aligned.
    unsafe { context.byte_sub(before).cast::<T>().read() }
}

/// The operation `$op` behind `$context`, or `None`: C's `verbs_get_ctx_op`.
macro_rules! verbs_get_ctx_op {
    ($context:expr, $op:ident) => {{
        // SAFETY: every function here takes live objects only, so their context is one. An extended one has `sz` right in front;
        // the operation is read only when `sz` covers it.
        unsafe {
            let context: *const ibv_context = $context;
            let reach = size_of::<ibv_context>() + before_context!($op);
            if is_extended(context) && read_before(context, before_context!(sz), |v| v.sz) >= reach {
                read_before(context, before_context!($op), |v| v.$op)
            } else {
                None
            }
        }
    }};
}

/// Calls an extended operation that returns an errno value, or answers `EOPNOTSUPP`.
macro_rules! call_errno {
    ($context:expr, $op:ident($($arg:expr),*)) => {
        match verbs_get_ctx_op!($context, $op) {
            // SAFETY: the caller keeps the contract of the C function.
            Some(op) => unsafe { op($($arg),*) },
            None => EOPNOTSUPP,
        }
    };
}

/// Calls an extended operation that returns an object, or answers null and errno `EOPNOTSUPP`.
macro_rules! call_object {
    ($context:expr, $op:ident($($arg:expr),*)) => {
        match verbs_get_ctx_op!($context, $op) {
            // SAFETY: the caller keeps the contract of the C function.
            Some(op) => unsafe { op($($arg),*) },
            None => unsupported(),
        }
    };
}

fn unsupported<T>() -> *mut T {
    set_errno(EOPNOTSUPP);
    null_mut()
}

unsafe fn is_extended(context: *const ibv_context) -> bool {
    // SAFETY: the caller vouches for the context.
    unsafe { (*context).abi_compat.addr() == VERBS_ABI_IS_EXTENDED }
}

/// The extended context in front of a context, null when there is none.
///
/// Only the fields that `sz` covers exist: an older provider's struct begins later than the pointer says, so read single fields
/// and never make a reference to the whole.
///
/// # Safety
/// `context` is an open context.
#[must_use]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the caller vouches for the context.
    if unsafe { is_extended(context) } {
        context
            .wrapping_byte_sub(offset_of!(verbs_context, context))
            .cast()
    } else {
        null_mut()
    }
}

/// The private part of an extended context, null for others: a device in Rust knows its own contexts by it.
///
/// # Safety
/// `context` is an open context.
#[must_use]
pub unsafe fn verbs_get_priv(context: *const ibv_context) -> *mut verbs_ex_private {
    const {
        assert!(
            before_context!(priv_) == 112 && before_context!(sz) == 8,
            "priv has been there since the first extended context"
        )
    };
    // SAFETY: the caller vouches for the context; `priv` belongs to every extended context.
    unsafe {
        if is_extended(context) {
            read_before(context, before_context!(priv_), |v| v.priv_)
        } else {
            null_mut()
        }
    }
}

/// The attributes of a port, all of them. 0 or an errno value.
///
/// With an extended operation the provider learns how long the struct is. Without one the exported compatibility function
/// fills the first 48 bytes; the rest is zero then.
///
/// # Safety
/// `context` is open and of this table; `attr` is writable (it need not be initialised).
pub unsafe fn ibv_query_port(
    verbs: &Verbs,
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: `attr` is writable.
    unsafe { attr.write(ibv_port_attr::zeroed()) };
    match verbs_get_ctx_op!(context, query_port) {
        // SAFETY: the provider writes at most the length it is given.
        Some(op) => unsafe { op(context, port_num, attr, size_of::<ibv_port_attr>()) },
        // SAFETY: the compatibility function writes the first 48 of our 56 bytes.
        None => unsafe { verbs.query_port_compat(context, port_num, attr.cast()) },
    }
}

/// A GID table entry with its type and network device. 0 or an errno value: `ENODATA` for an empty entry, `EOPNOTSUPP` before rdma-core v32.
///
/// # Safety
/// `context` is open and of this table; `entry` is writable.
pub unsafe fn ibv_query_gid_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: the caller vouches for the context and the entry, whose size goes along.
    unsafe {
        verbs.query_gid_ex(
            context,
            port_num,
            gid_index,
            entry,
            flags,
            size_of::<ibv_gid_entry>(),
        )
    }
}

/// All GID table entries that are not empty, of all ports. Their number, or a negative errno value (`-EOPNOTSUPP` before rdma-core v32).
///
/// # Safety
/// `context` is open and of this table; `entries` has room for `max_entries`.
pub unsafe fn ibv_query_gid_table(
    verbs: &Verbs,
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> isize {
    // SAFETY: the caller vouches for the context and the room; the stride goes along.
    unsafe {
        verbs.query_gid_table(
            context,
            entries,
            max_entries,
            flags,
            size_of::<ibv_gid_entry>(),
        )
    }
}

/// The extended attributes of a device; the classic ones and zeros where the provider has no extended query. 0 or an errno value.
///
/// # Safety
/// `context` is open and of this table; `input` is null or readable; `attr` is writable.
pub unsafe fn ibv_query_device_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller vouches for `input`.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
        return EINVAL;
    }
    // SAFETY: `attr` is writable.
    unsafe { attr.write(ibv_device_attr_ex::zeroed()) };
    if let Some(op) = verbs_get_ctx_op!(context, query_device_ex) {
        // SAFETY: the provider writes at most the length it is given.
        let answer = unsafe { op(context, input, attr, size_of::<ibv_device_attr_ex>()) };
        if answer != EOPNOTSUPP && answer != ENOSYS {
            return answer;
        }
        // SAFETY: `attr` is writable.
        unsafe { attr.write(ibv_device_attr_ex::zeroed()) };
    }
    // SAFETY: the caller vouches for the context; the classic attributes are part of `attr`.
    unsafe { verbs.query_device(context, &raw mut (*attr).orig_attr) }
}

/// Registers memory. Null and errno on failure.
///
/// Optional access bits (`IBV_ACCESS_OPTIONAL_RANGE`) are dropped when the library or the kernel does not know them.
///
/// # Safety
/// `pd` is alive and of this table; `length` bytes at `addr` stay mapped until the region is deregistered, and nobody takes
/// them for unshared while a device may touch them.
pub unsafe fn ibv_reg_mr(
    verbs: &Verbs,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    if access & IBV_ACCESS_OPTIONAL_RANGE != 0 && verbs.reg_mr_iova2.is_some() {
        // SAFETY: the caller vouches for the domain and the memory.
        return unsafe { verbs.reg_mr_iova2(pd, addr, length, addr.addr() as u64, access) };
    }
    // SAFETY: the caller vouches for the domain and the memory.
    unsafe {
        verbs.reg_mr(
            pd,
            addr,
            length,
            (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int,
        )
    }
}

/// Registers memory under a virtual address of one's own. Null and errno on failure (`EOPNOTSUPP` before rdma-core v25).
///
/// # Safety
/// As for [`ibv_reg_mr`].
pub unsafe fn ibv_reg_mr_iova(
    verbs: &Verbs,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if access & IBV_ACCESS_OPTIONAL_RANGE != 0 && verbs.reg_mr_iova2.is_some() {
        // SAFETY: the caller vouches for the domain and the memory.
        return unsafe { verbs.reg_mr_iova2(pd, addr, length, iova, access) };
    }
    // SAFETY: the caller vouches for the domain and the memory.
    unsafe {
        verbs.reg_mr_iova(
            pd,
            addr,
            length,
            iova,
            (access & !IBV_ACCESS_OPTIONAL_RANGE) as c_int,
        )
    }
}

/// Gives advice about ranges of memory regions. 0 or an errno value.
///
/// # Safety
/// `pd` is alive; `sg_list` holds `num_sge` entries.
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    call_errno!(
        (*pd).context,
        advise_mr(pd, advice, flags, sg_list, num_sge)
    )
}

/// A region that reads and writes nothing. Null and errno on failure.
///
/// # Safety
/// `pd` is alive.
pub unsafe fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    call_object!((*pd).context, alloc_null_mr(pd))
}

/// Allocates device memory. Null and errno on failure.
///
/// # Safety
/// `context` is open; `attr` is readable.
pub unsafe fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    call_object!(context, alloc_dm(context, attr))
}

/// Frees device memory. 0 or an errno value.
///
/// # Safety
/// `dm` is alive and used by nobody else.
pub unsafe fn ibv_free_dm(dm: *mut ibv_dm) -> c_int {
    call_errno!((*dm).context, free_dm(dm))
}

/// Registers device memory. Null and errno on failure.
///
/// # Safety
/// `pd` and `dm` are alive and of one context.
pub unsafe fn ibv_reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    call_object!((*pd).context, reg_dm_mr(pd, dm, dm_offset, length, access))
}

/// Allocates a memory window. Null and errno on failure.
///
/// # Safety
/// `pd` is alive.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the domain is alive, and so is its context.
    match unsafe { (*(*pd).context).ops.alloc_mw } {
        // SAFETY: the domain is alive.
        Some(op) => unsafe { op(pd, mw_type) },
        None => unsupported(),
    }
}

/// Frees a memory window. 0 or an errno value.
///
/// # Safety
/// `mw` is alive and used by nobody else.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the window is alive, and so is its context.
    match unsafe { (*(*mw).context).ops.dealloc_mw } {
        // SAFETY: the window is alive.
        Some(op) => unsafe { op(mw) },
        None => EOPNOTSUPP,
    }
}

/// Binds a type 1 memory window by a request of its own. 0 or an errno value: `EINVAL` for a window of another type or a
/// range without a region, `EPERM` when window and region are of two domains.
///
/// # Safety
/// `qp` and `mw` are alive and of one context; `mw_bind` is readable, and its region, where there is one, is alive.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller vouches for the window and the argument; both are plain data, copied out.
    let (window, info) = unsafe { (*mw, (*mw_bind).bind_info) };
    if window.type_ != IBV_MW_TYPE_1 || info.mr.is_null() && (info.addr != 0 || info.length != 0) {
        return EINVAL;
    }
    // SAFETY: a region that is named is alive.
    if !info.mr.is_null() && unsafe { (*info.mr).pd } != window.pd {
        return EPERM;
    }
    // SAFETY: the window is alive, and so is its context.
    match unsafe { (*window.context).ops.bind_mw } {
        // SAFETY: the caller vouches for QP, window and argument.
        Some(op) => unsafe { op(qp, mw, mw_bind) },
        None => EOPNOTSUPP,
    }
}

/// Makes a CQ with readers. Null and errno on failure.
///
/// # Safety
/// `context` is open; `attr` is readable and what it names is alive.
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    call_object!(context, create_cq_ex(context, attr))
}

/// Changes a CQ's moderation. 0 or an errno value.
///
/// # Safety
/// `cq` is alive; `attr` is readable.
pub unsafe fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    call_errno!((*cq).context, modify_cq(cq, attr))
}

/// Makes an SRQ of any type; a basic one by the exported function. Null and errno on failure.
///
/// # Safety
/// `context` is open and of this table; `attr` is readable and writable and what it names is alive.
pub unsafe fn ibv_create_srq_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the caller vouches for the attributes.
    let (mask, srq_type, pd) = unsafe {
        (
            ibv_srq_init_attr_mask::from_bits_retain((*attr).comp_mask),
            (*attr).srq_type,
            (*attr).pd,
        )
    };
    let basic = mask == IBV_SRQ_INIT_ATTR_PD
        || mask == IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE && srq_type == IBV_SRQT_BASIC;
    if basic {
        // SAFETY: the head of the extended attributes is the classic struct.
        return unsafe { verbs.create_srq(pd, attr.cast()) };
    }
    call_object!(context, create_srq_ex(context, attr))
}

/// The number by which XRC senders name an SRQ. 0 or an errno value.
///
/// # Safety
/// `srq` is alive; `srq_num` is writable.
pub unsafe fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    call_errno!((*srq).context, get_srq_num(srq, srq_num))
}

/// Posts a list of tag matching operations. 0, or an errno value and the first that was not posted in `bad_op`.
///
/// # Safety
/// As for [`ibv_post_send`](super::ibv_post_send).
pub unsafe fn ibv_post_srq_ops(
    srq: *mut ibv_srq,
    op: *mut ibv_ops_wr,
    bad_op: *mut *mut ibv_ops_wr,
) -> c_int {
    match verbs_get_ctx_op!((*srq).context, post_srq_ops) {
        // SAFETY: the caller vouches for the SRQ and the operations.
        Some(function) => unsafe { function(srq, op, bad_op) },
        None => {
            // SAFETY: `bad_op` is writable.
            unsafe { bad_op.write(op) };
            EOPNOTSUPP
        }
    }
}

/// Makes a QP of any type; with a protection domain alone by the exported function. Null and errno on failure.
///
/// # Safety
/// `context` is open and of this table; `attr` is readable and writable and what it names is alive.
pub unsafe fn ibv_create_qp_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller vouches for the attributes.
    let (mask, pd) = unsafe { ((*attr).comp_mask, (*attr).pd) };
    if mask == IBV_QP_INIT_ATTR_PD.bits() {
        // SAFETY: the head of the extended attributes is the classic struct.
        return unsafe { verbs.create_qp(pd, attr.cast()) };
    }
    call_object!(context, create_qp_ex(context, attr))
}

/// Opens an XRC target QP of another process. Null and errno on failure.
///
/// # Safety
/// `context` is open; `attr` is readable and what it names is alive.
pub unsafe fn ibv_open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    call_object!(context, open_qp(context, attr))
}

/// Limits the rate of a QP. 0 or an errno value.
///
/// # Safety
/// `qp` is alive; `attr` is readable.
pub unsafe fn ibv_modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    call_errno!((*qp).context, modify_qp_rate_limit(qp, attr))
}

/// Opens an XRC domain. Null and errno on failure.
///
/// # Safety
/// `context` is open; `attr` is readable.
pub unsafe fn ibv_open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    call_object!(context, open_xrcd(context, attr))
}

/// Closes an XRC domain. 0 or an errno value, `EBUSY` while objects use it.
///
/// # Safety
/// `xrcd` is alive and used by nobody else.
pub unsafe fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    call_errno!((*xrcd).context, close_xrcd(xrcd))
}

/// Allocates a thread domain. Null and errno on failure.
///
/// # Safety
/// `context` is open; `attr` is readable.
pub unsafe fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    call_object!(context, alloc_td(context, attr))
}

/// Frees a thread domain. 0 or an errno value.
///
/// # Safety
/// `td` is alive and used by nobody else.
pub unsafe fn ibv_dealloc_td(td: *mut ibv_td) -> c_int {
    call_errno!((*td).context, dealloc_td(td))
}

/// Allocates a parent domain: a protection domain with a thread domain or an allocator of one's own. Null and errno on failure.
///
/// # Safety
/// `context` is open; `attr` is readable and what it names is alive.
pub unsafe fn ibv_alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    call_object!(context, alloc_parent_domain(context, attr))
}

/// Reads a device's clock. 0 or an errno value.
///
/// # Safety
/// `context` is open; `values` is readable and writable.
pub unsafe fn ibv_query_rt_values_ex(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    call_errno!(context, query_rt_values(context, values))
}
