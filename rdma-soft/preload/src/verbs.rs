//! The functions that libibverbs exports, each of which asks its object where the call belongs.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use rdma_core_sys::dispatch::{Object, table_of};
use rdma_core_sys::*;

use crate::{devices, facade, real, record};

/// The table that serves what belongs to no object of a device in Rust: libibverbs', or where there is none ours.
fn others() -> &'static Verbs {
    real::verbs().unwrap_or_else(|| rdma_soft::verbs())
}

/// The first argument of a function, by which it is known where the call belongs.
trait Subject {
    /// Where it belongs.
    ///
    /// # Safety
    /// A pointer is null or to a live object of its type.
    unsafe fn table(self) -> &'static Verbs;
}

impl<T: Object> Subject for *mut T {
    unsafe fn table(self) -> &'static Verbs {
        if self.is_null() {
            // Ours answer a null pointer with EINVAL, libibverbs crashes.
            return rdma_soft::verbs();
        }
        // SAFETY: the caller's promise.
        unsafe { table_of(self) }.unwrap_or_else(others)
    }
}

macro_rules! plain_values {
    ($($value:ty),*) => { $(
        impl Subject for $value {
            unsafe fn table(self) -> &'static Verbs {
                others()
            }
        }
    )* };
}

// Translations: what libibverbs knows, and ours where there is none.
plain_values!(
    c_int,
    ibv_node_type,
    ibv_port_state,
    ibv_event_type,
    ibv_wc_status,
    ibv_rate
);

/// The processor's instruction to go on elsewhere.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

/// Exports one function for each of the table.
macro_rules! export {
    ($(
        $(#[$doc:meta])*
        $field:ident = $symbol:ident @ $version:literal ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $(, else $missing:expr)?;
    )*) => { $(
        unsafe extern "C" fn $field($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the program keeps the contract of the function, which is that of the function of the table.
            unsafe { record::named(stringify!($symbol), || export!(@call $field $($arg)*)) }
        }
        export!(@symbol $field $symbol $version);
    )* };

    (@call get_device_list $num_devices:ident) => { devices::get_device_list($num_devices) };
    (@call free_device_list $list:ident) => { devices::free_device_list($list) };
    (@call open_device $device:ident) => { devices::open_device($device.table(), $device) };
    (@call import_device $cmd_fd:ident) => { of_command_fd($cmd_fd).import_device($cmd_fd) };
    (@call ack_async_event $event:ident) => { of_event($event).ack_async_event($event) };
    (@call close_device $context:ident) => { record::close_device($context.table(), $context) };
    (@call modify_qp $qp:ident $attr:ident $mask:ident) => { record::modify_qp($qp.table(), $qp, $attr, $mask) };
    (@call destroy_qp $qp:ident) => { record::destroy_qp($qp.table(), $qp) };
    (@call create_qp $pd:ident $attr:ident) => { record::created($pd.table(), $pd.table().create_qp($pd, $attr)) };
    (@call create_cq $context:ident $cqe:ident $data:ident $channel:ident $vector:ident) => {
        record::made("ibv_create_cq", u64::try_from($cqe).ok(), $context.table().create_cq($context, $cqe, $data, $channel, $vector))
    };
    (@call reg_mr $pd:ident $addr:ident $length:ident $access:ident) => {
        record::registered(
            "ibv_reg_mr", $length, $access as u32, record::own_address($addr, $access as u32),
            $pd.table().reg_mr($pd, $addr, $length, $access),
        )
    };
    (@call reg_mr_iova $pd:ident $addr:ident $length:ident $iova:ident $access:ident) => {
        record::registered(
            "ibv_reg_mr_iova", $length, $access as u32, $iova, $pd.table().reg_mr_iova($pd, $addr, $length, $iova, $access),
        )
    };
    (@call reg_mr_iova2 $pd:ident $addr:ident $length:ident $iova:ident $access:ident) => {
        record::registered(
            "ibv_reg_mr", $length, $access, $iova, $pd.table().reg_mr_iova2($pd, $addr, $length, $iova, $access),
        )
    };
    (@call reg_dmabuf_mr $pd:ident $offset:ident $length:ident $iova:ident $fd:ident $access:ident) => {
        record::registered(
            "ibv_reg_dmabuf_mr", $length, $access as u32, $iova,
            $pd.table().reg_dmabuf_mr($pd, $offset, $length, $iova, $fd, $access),
        )
    };
    (@call rereg_mr $mr:ident $flags:ident $pd:ident $addr:ident $length:ident $access:ident) => {
        record::reregister($mr.table(), $mr, $flags, $pd, $addr, $length, $access)
    };
    (@call dereg_mr $mr:ident) => { record::deregister($mr.table(), $mr) };
    (@call fork_init) => { others().fork_init() };
    (@call is_fork_initialized) => { others().is_fork_initialized() };
    (@call $field:ident $first:ident $($arg:ident)*) => { $first.table().$field($first $(, $arg)*) };

    // The symbol is a jump, because its version must be given where it is defined.
    (@symbol $field:ident $symbol:ident $version:literal) => {
        global_asm!(
            concat!(".globl rdma_soft_preload_", stringify!($symbol)),
            concat!(".type rdma_soft_preload_", stringify!($symbol), ", @function"),
            concat!("rdma_soft_preload_", stringify!($symbol), ":"),
            concat!(jump!(), " {function}"),
            concat!(".symver rdma_soft_preload_", stringify!($symbol), ", ", stringify!($symbol), "@@", $version),
            function = sym $field,
        );
    };
}

for_each_verb!(export);

/// Where a command file descriptor belongs: libibverbs' are of character devices, those of our contexts are not.
fn of_command_fd(cmd_fd: c_int) -> &'static Verbs {
    // SAFETY: all-zero is valid for a struct of integers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: any number may be asked about, and `stat` is writable.
    let known = unsafe { libc::fstat(cmd_fd, &mut stat) } == 0;
    if known && stat.st_mode & libc::S_IFMT != libc::S_IFCHR {
        rdma_soft::verbs()
    } else {
        others()
    }
}

/// Where an event belongs. One of a port or a device has no object, and no table does anything when it is acknowledged.
///
/// # Safety
/// `event` is null or was written by `ibv_get_async_event`, and not acknowledged yet.
unsafe fn of_event(event: *mut ibv_async_event) -> &'static Verbs {
    if event.is_null() {
        return rdma_soft::verbs();
    }
    // SAFETY: not null, so an event by the caller's promise: its element is what its kind says (ibv_get_async_event(3)), an object
    // that lives until the event is acknowledged.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            ibv_event_type::IBV_EVENT_CQ_ERR => element.cq.table(),
            ibv_event_type::IBV_EVENT_QP_FATAL
            | ibv_event_type::IBV_EVENT_QP_REQ_ERR
            | ibv_event_type::IBV_EVENT_QP_ACCESS_ERR
            | ibv_event_type::IBV_EVENT_COMM_EST
            | ibv_event_type::IBV_EVENT_SQ_DRAINED
            | ibv_event_type::IBV_EVENT_PATH_MIG
            | ibv_event_type::IBV_EVENT_PATH_MIG_ERR
            | ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED => element.qp.table(),
            ibv_event_type::IBV_EVENT_SRQ_ERR | ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED => {
                element.srq.table()
            }
            ibv_event_type::IBV_EVENT_WQ_FATAL => element.wq.table(),
            _ => others(),
        }
    }
}

/// `ibv_query_gid_type`, which libibverbs keeps for its own programs (`ibv_devinfo`) under a version that changes with every
/// release: without a version it stands in for all of them. 0, or -1 and errno.
///
/// # Safety
/// `context` is a live context, `kind` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    type Function = unsafe extern "C" fn(*mut ibv_context, u8, c_uint, *mut c_uint) -> c_int;
    // SAFETY: a live context by the caller's promise.
    let Some(verbs) = (unsafe { table_of(context) }) else {
        let Some(address) = real::symbol(c"ibv_query_gid_type") else {
            ops::set_errno(libc::EOPNOTSUPP);
            return -1;
        };
        // SAFETY: the function of this name, and its prototype in libibverbs' driver.h.
        let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the caller's promises are those that it asks for.
        return unsafe { function(context, port_num, index, kind) };
    };
    /// In its own terms 0 is InfiniBand or RoCE v1, 1 is RoCE v2.
    const ROCE_V2: c_uint = 1;
    let mut entry = ibv_gid_entry::zeroed();
    // SAFETY: a live context of this table, and an entry of the size that is told.
    let errno = unsafe {
        verbs.query_gid_ex(
            context,
            port_num.into(),
            index,
            &mut entry,
            0,
            size_of::<ibv_gid_entry>(),
        )
    };
    match errno {
        // An empty slot is of the first kind there.
        0 | libc::ENODATA => {
            let v2 = errno == 0 && entry.gid_type == ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
            // SAFETY: writable by the caller's promise.
            unsafe { *kind = if v2 { ROCE_V2 } else { 0 } };
            0
        }
        errno => {
            ops::set_errno(errno);
            -1
        }
    }
}

/// `ibv_read_sysfs_file`, which libibverbs has beside its verbs, for its own programs and providers: the text of a file of a
/// directory below /sys, without the end of its line. The length of the text, or -1 and errno.
///
/// # Safety
/// `dir` and `file` are C strings, `buf` is writable for `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> c_int;
    if let Some(address) = real::symbol(c"ibv_read_sysfs_file") {
        // SAFETY: the function of this name, and its prototype in libibverbs' driver.h.
        let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the caller's promises are those that it asks for.
        let length = unsafe { function(dir, file, buf, size) };
        if length >= 0 {
            return length;
        }
    }
    // SAFETY: C strings by the caller's promise.
    let path = unsafe { [CStr::from_ptr(dir), CStr::from_ptr(file)] };
    let Some(text) = facade::text(&path.map(CStr::to_bytes).join(&b'/')) else {
        ops::set_errno(libc::ENOENT);
        return -1;
    };
    let text = text.trim_end().as_bytes();
    let length = text.len().min(size.saturating_sub(1));
    if size > 0 {
        // SAFETY: `buf` is writable for `size` bytes, of which `length` is fewer; a text of ours does not overlap it.
        unsafe {
            buf.copy_from_nonoverlapping(text.as_ptr().cast(), length);
            *buf.add(length) = 0;
        }
    }
    c_int::try_from(length).unwrap_or(c_int::MAX)
}
