//! The function table: what libibverbs exports, as pointers.

mod load;

pub use load::{DlError, LoadError};

use crate::ops::set_errno;
use crate::types::*;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;

/// How a missing optional function answers, by the way its C function tells errors.
mod missing {
    use super::*;

    /// For functions that return an errno value.
    pub(super) const ERRNO: c_int = libc::EOPNOTSUPP;

    /// For functions that return null and set errno.
    pub(super) fn null<T>() -> *mut T {
        set_errno(libc::EOPNOTSUPP);
        null_mut()
    }

    /// For functions that return -1 and set errno.
    pub(super) fn minus_one() -> c_int {
        set_errno(libc::EOPNOTSUPP);
        -1
    }
}

/// The address of a symbol that need not be there, by way of the table in which the linker, or the dynamic linker, puts it. A
/// weak reference takes no library into a program; it finds what is there.
macro_rules! weak {
    ($symbol:ident) => {{
        let address: *mut c_void;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: it reads the symbol's entry of the global offset table, which is there for every symbol that is referred to,
        // and touches nothing else.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", stringify!($symbol)),
                concat!("mov {0}, qword ptr [rip + ", stringify!($symbol), "@GOTPCREL]"),
                out(reg) address, options(pure, readonly, nostack, preserves_flags)
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", stringify!($symbol)),
                concat!("adrp {0}, :got:", stringify!($symbol)),
                concat!("ldr {0}, [{0}, :got_lo12:", stringify!($symbol), "]"),
                out(reg) address, options(pure, readonly, nostack, preserves_flags)
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            address = null_mut();
        }
        address
    }};
}

/// One list from which the table, its methods and its loaders come.
///
/// `field = "symbol" @ "version" (arguments) -> result;` is required; `... else value;` is optional, and `value` is what
/// the method answers when it is missing.
macro_rules! verbs {
    ($(
        $(#[$doc:meta])*
        $field:ident = $symbol:ident @ $version:literal ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $(, else $missing:expr)?;
    )*) => {
        /// What libibverbs exports, as a table of C function pointers.
        ///
        /// It comes from rdma-core ([`Verbs::open`]), from a program's own link (`Verbs::linked`, feature `link`), or from a
        /// device in Rust ([`Verbs::new`]). Whoever made it vouches for its functions, so that code without `unsafe` may hand it on;
        /// therefore its [`Functions`] can be read and not replaced:
        ///
        /// ```compile_fail,E0594
        /// fn without_unsafe(mut verbs: rdma_core_sys::Verbs) {
        ///     verbs.get_device_index = None;
        /// }
        /// ```
        ///
        /// Objects belong to the table that made them: never hand an object of
        /// one table to a function of another. What `infiniband/verbs.h` does inline is in [`ops`](crate::ops) and needs no table,
        /// because it goes through pointers inside the objects.
        ///
        /// Required is what libibverbs has had since `IBVERBS_1.1`; what came later is optional. Each function also has a method of
        /// the same name, which answers `EOPNOTSUPP` in its own way (an errno value, or null or -1 with errno set) when it is missing.
        #[derive(Clone, Copy)]
        pub struct Verbs(Functions);

        /// The functions of a [`Verbs`], for a device in Rust to fill in.
        #[derive(Clone, Copy)]
        pub struct Functions {
            /// Where the functions came from, for people: a library's name, `this process`, `the linker`, or a device's name.
            pub source: &'static str,
            $( $(#[$doc])* pub $field: verbs!(@type ($($ty),*) $(-> $ret)? $(, $missing)?), )*
        }

        impl core::ops::Deref for Verbs {
            type Target = Functions;

            fn deref(&self) -> &Functions {
                &self.0
            }
        }

        impl Verbs {
            /// The table of these functions.
            ///
            /// # Safety
            /// Each function does what the libibverbs function of its name does: given what that one may be given, it is sound to call
            /// from any thread, and the pointers that it returns are null or to live objects whose own pointers keep the same contract.
            #[must_use]
            pub const unsafe fn new(functions: Functions) -> Self {
                Self(functions)
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The contract of the C function: pointers are valid for what it reads and writes, objects are alive and were made
                /// by this table, and an object that it destroys is used by nobody else.
                #[inline]
                pub unsafe fn $field(&self, $($arg: $ty),*) $(-> $ret)? {
                    verbs!(@call self.0.$field, ($($arg),*) $(, $missing)?)
                }
            )*

            /// Every symbol of the table: name, version, and whether it is required.
            pub const SYMBOLS: &'static [(&'static str, &'static str, bool)] =
                &[$( (stringify!($symbol), $version, verbs!(@required $($missing)?)) ),*];

            /// The optional symbols that this table lacks, with the version that has them.
            pub fn missing(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
                let present = [$( verbs!(@present self.0.$field $(, $missing)?) ),*];
                Self::SYMBOLS.iter().zip(present).filter(|(_, present)| !present).map(|(&(name, version, _), _)| (name, version))
            }

            /// The address of the function of this name, `None` when the table lacks it.
            #[must_use]
            pub fn symbol(&self, name: &core::ffi::CStr) -> Option<*mut c_void> {
                $( if name == cstr!($symbol) {
                    return verbs!(@address self.0.$field $(, $missing)?);
                } )*
                None
            }

            /// The address that the linker bound to the function of this name in this very program or shared object; null where
            /// there was none, which is no error: the references are weak.
            pub(crate) fn bound(name: &core::ffi::CStr) -> *mut c_void {
                $( if name == cstr!($symbol) {
                    return weak!($symbol);
                } )*
                null_mut()
            }

            /// Fills the table with what `find` finds for a name and version.
            ///
            /// # Safety
            /// What it finds is the address of a function as [`new`](Self::new) asks for, of the prototype that `verbs.h` has for
            /// the name.
            pub(crate) unsafe fn resolve(
                source: &'static str,
                find: impl Fn(&core::ffi::CStr, &core::ffi::CStr) -> Result<*mut c_void, LoadError>,
            ) -> Result<Self, LoadError> {
                Ok(Self(Functions {
                    source,
                    $( $field: {
                        let found = find(cstr!($symbol), cstr!($version));
                        verbs!(@bind found, unsafe extern "C" fn($($ty),*) $(-> $ret)? $(, $missing)?)
                    }, )*
                }))
            }
        }

        #[cfg(feature = "link")]
        mod linked {
            use super::*;

            // The crate brings the linker flags for libibverbs; the types are ours.
            extern crate rdma_sys;

            // The optional ones are declared and never referred to, so the linker does not ask for them.
            #[allow(dead_code)]
            unsafe extern "C" {
                $( fn $symbol($($arg: $ty),*) $(-> $ret)?; )*
            }

            impl Verbs {
                /// The functions that the linker bound to this program. Symbols newer than the library at hand do not link: the
                /// optional ones are therefore looked up while the program runs.
                ///
                /// # Errors
                /// None is expected, because the linker has checked the required symbols; the type is that of the other loaders.
                pub fn linked() -> Result<Self, LoadError> {
                    let scope = load::Scope::process();
                    let source = "the linker";
                    Ok(Self(Functions {
                        source,
                        $( $field: verbs!(@link $symbol, scope.find(source, cstr!($symbol), cstr!($version)),
                            unsafe extern "C" fn($($ty),*) $(-> $ret)? $(, $missing)?), )*
                    }))
                }
            }
        }
    };

    (@type ($($ty:ty),*) $(-> $ret:ty)?) => { unsafe extern "C" fn($($ty),*) $(-> $ret)? };
    (@type ($($ty:ty),*) $(-> $ret:ty)?, $missing:expr) => { Option<unsafe extern "C" fn($($ty),*) $(-> $ret)?> };

    (@call $self:ident.0.$field:ident, ($($arg:ident),*)) => {
        // SAFETY: the caller keeps the contract of the C function, which is this method's own.
        unsafe { ($self.0.$field)($($arg),*) }
    };
    (@call $self:ident.0.$field:ident, ($($arg:ident),*), $missing:expr) => {
        match $self.0.$field {
            // SAFETY: the caller keeps the contract of the C function, which is this method's own.
            Some(function) => unsafe { function($($arg),*) },
            None => $missing,
        }
    };

    (@required) => { true };
    (@required $missing:expr) => { false };
    (@address $self:ident.0.$field:ident) => { Some($self.0.$field as *mut c_void) };
    (@address $self:ident.0.$field:ident, $missing:expr) => { $self.0.$field.map(|function| function as *mut c_void) };

    (@present $self:ident.0.$field:ident) => { true };
    (@present $self:ident.0.$field:ident, $missing:expr) => { $self.0.$field.is_some() };

    (@bind $found:ident, $ty:ty) => {
        // SAFETY: `find` gives the address of the function of this name and version, and `$ty` is its prototype in verbs.h; that
        // it is so, and stays mapped, is what `resolve` and the linker's scopes are promised. The address is not null.
        unsafe { core::mem::transmute::<*mut c_void, $ty>($found?) }
    };
    (@bind $found:ident, $ty:ty, $missing:expr) => {
        // SAFETY: `find` gives the address of the function of this name and version, and `$ty` is its prototype in verbs.h; that
        // it is so, and stays mapped, is what `resolve` and the linker's scopes are promised. The address is not null.
        $found.ok().map(|address| unsafe { core::mem::transmute::<*mut c_void, $ty>(address) })
    };

    (@link $symbol:ident, $found:expr, $ty:ty) => { $symbol };
    (@link $symbol:ident, $found:expr, $ty:ty, $missing:expr) => {
        { let found = $found; verbs!(@bind found, $ty, $missing) }
    };
}

/// A C string literal from an identifier or a literal.
macro_rules! cstr {
    ($name:ident) => {
        cstr!(@bytes concat!(stringify!($name), "\0"))
    };
    ($text:literal) => {
        cstr!(@bytes concat!($text, "\0"))
    };
    (@bytes $text:expr) => {
        const {
            match core::ffi::CStr::from_bytes_with_nul($text.as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!("a name has no zero byte"),
            }
        }
    };
}

/// Hands the list of functions to another macro: for crates that make something of each.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_verb {
    ($then:ident) => {
        $then! {
            /// `ibv_get_device_list`: a null-terminated array; free it with `free_device_list`. Null and errno on failure.
            get_device_list = ibv_get_device_list @ "IBVERBS_1.1" (num_devices: *mut c_int) -> *mut *mut ibv_device;
            /// `ibv_free_device_list`: devices that are not open are no longer valid after it.
            free_device_list = ibv_free_device_list @ "IBVERBS_1.1" (list: *mut *mut ibv_device);
            /// `ibv_get_device_name`: the kernel's name, alive as long as the device.
            get_device_name = ibv_get_device_name @ "IBVERBS_1.1" (device: *mut ibv_device) -> *const c_char;
            /// `ibv_get_device_guid`: the node GUID in network byte order.
            get_device_guid = ibv_get_device_guid @ "IBVERBS_1.1" (device: *mut ibv_device) -> u64;
            /// `ibv_get_device_index`: the kernel's index, -1 when it is not known.
            get_device_index = ibv_get_device_index @ "IBVERBS_1.9" (device: *mut ibv_device) -> c_int, else missing::minus_one();
            /// `ibv_open_device`: null and errno on failure.
            open_device = ibv_open_device @ "IBVERBS_1.1" (device: *mut ibv_device) -> *mut ibv_context;
            /// `ibv_close_device`: 0, or -1.
            close_device = ibv_close_device @ "IBVERBS_1.1" (context: *mut ibv_context) -> c_int;
            /// `ibv_import_device`: a context from another process's command file descriptor. Null and errno on failure.
            import_device = ibv_import_device @ "IBVERBS_1.10" (cmd_fd: c_int) -> *mut ibv_context, else missing::null();
            /// `ibv_import_pd`: a protection domain from its handle. Null and errno on failure.
            import_pd = ibv_import_pd @ "IBVERBS_1.10" (context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd, else missing::null();
            /// `ibv_unimport_pd`: forgets an imported protection domain.
            unimport_pd = ibv_unimport_pd @ "IBVERBS_1.10" (pd: *mut ibv_pd), else set_errno(libc::EOPNOTSUPP);
            /// `ibv_import_mr`: a memory region from its handle. Null and errno on failure.
            import_mr = ibv_import_mr @ "IBVERBS_1.10" (pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr, else missing::null();
            /// `ibv_unimport_mr`: forgets an imported memory region.
            unimport_mr = ibv_unimport_mr @ "IBVERBS_1.10" (mr: *mut ibv_mr), else set_errno(libc::EOPNOTSUPP);
            /// `ibv_import_dm`: device memory from its handle. Null and errno on failure.
            import_dm = ibv_import_dm @ "IBVERBS_1.13" (context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm, else missing::null();
            /// `ibv_unimport_dm`: forgets imported device memory.
            unimport_dm = ibv_unimport_dm @ "IBVERBS_1.13" (dm: *mut ibv_dm), else set_errno(libc::EOPNOTSUPP);

            /// `ibv_get_async_event`: the next asynchronous event, 0 or -1. It waits unless `async_fd` is non-blocking.
            get_async_event = ibv_get_async_event @ "IBVERBS_1.1" (context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
            /// `ibv_ack_async_event`: every event that was got must be acknowledged; destroying its object waits for that.
            ack_async_event = ibv_ack_async_event @ "IBVERBS_1.1" (event: *mut ibv_async_event);

            /// `ibv_query_device`: 0 or an errno value.
            query_device = ibv_query_device @ "IBVERBS_1.1" (context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
            /// The exported `ibv_query_port`: 0 or an errno value. **A trap:** it writes the first 48 bytes of the attributes only and
            /// leaves the rest as it was. Call [`ops::ibv_query_port`](crate::ops::ibv_query_port), which is the C header's macro.
            query_port_compat = ibv_query_port @ "IBVERBS_1.1" (context: *mut ibv_context, port_num: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
            /// `ibv_query_port_speed`: the effective speed in units of 100 Mbit/s. 0 or an errno value.
            query_port_speed = ibv_query_port_speed @ "IBVERBS_1.16" (context: *mut ibv_context, port_num: u32, speed: *mut u64) -> c_int, else missing::ERRNO;
            /// `ibv_query_gid`: the GID at an index, all zero for an empty entry. 0 or -1.
            query_gid = ibv_query_gid @ "IBVERBS_1.1" (context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
            /// `_ibv_query_gid_ex`, behind [`ops::ibv_query_gid_ex`](crate::ops::ibv_query_gid_ex): 0 or an errno value, `ENODATA` for an empty entry.
            query_gid_ex = _ibv_query_gid_ex @ "IBVERBS_1.11" (context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: usize) -> c_int, else missing::ERRNO;
            /// `_ibv_query_gid_table`, behind [`ops::ibv_query_gid_table`](crate::ops::ibv_query_gid_table): the number of entries, or a negative errno value.
            query_gid_table = _ibv_query_gid_table @ "IBVERBS_1.11" (context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize) -> isize, else -(missing::ERRNO as isize);
            /// `ibv_query_pkey`: the P_Key at an index, in network byte order. 0 or -1.
            query_pkey = ibv_query_pkey @ "IBVERBS_1.1" (context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int;
            /// `ibv_get_pkey_index`: the index of a P_Key in network byte order, or -1.
            get_pkey_index = ibv_get_pkey_index @ "IBVERBS_1.5" (context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int, else missing::minus_one();
            /// `ibv_resolve_eth_l2_from_gid`: the MAC address and VLAN behind an address vector. 0 or an errno value.
            resolve_eth_l2_from_gid = ibv_resolve_eth_l2_from_gid @ "IBVERBS_1.1" (context: *mut ibv_context, attr: *mut ibv_ah_attr, eth_mac: *mut u8, vid: *mut u16) -> c_int;

            /// `ibv_alloc_pd`: null and errno on failure.
            alloc_pd = ibv_alloc_pd @ "IBVERBS_1.1" (context: *mut ibv_context) -> *mut ibv_pd;
            /// `ibv_dealloc_pd`: 0 or an errno value, `EBUSY` while objects use it.
            dealloc_pd = ibv_dealloc_pd @ "IBVERBS_1.1" (pd: *mut ibv_pd) -> c_int;

            /// The exported `ibv_reg_mr`: null and errno on failure. It knows no optional access bits; call
            /// [`ops::ibv_reg_mr`](crate::ops::ibv_reg_mr), which is the C header's macro.
            reg_mr = ibv_reg_mr @ "IBVERBS_1.1" (pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
            /// The exported `ibv_reg_mr_iova`: with a virtual address of one's own. Null and errno on failure.
            reg_mr_iova = ibv_reg_mr_iova @ "IBVERBS_1.7" (pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr, else missing::null();
            /// `ibv_reg_mr_iova2`: the same, and it drops the optional access bits that the kernel does not know. Null and errno on failure.
            reg_mr_iova2 = ibv_reg_mr_iova2 @ "IBVERBS_1.8" (pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr, else missing::null();
            /// `ibv_reg_dmabuf_mr`: memory behind a dma-buf. Null and errno on failure.
            reg_dmabuf_mr = ibv_reg_dmabuf_mr @ "IBVERBS_1.12" (pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr, else missing::null();
            /// `ibv_rereg_mr`: 0, or an [`ibv_rereg_mr_err_code`] and errno.
            rereg_mr = ibv_rereg_mr @ "IBVERBS_1.1" (mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int;
            /// `ibv_dereg_mr`: 0 or an errno value, `EBUSY` while windows are bound to it.
            dereg_mr = ibv_dereg_mr @ "IBVERBS_1.1" (mr: *mut ibv_mr) -> c_int;

            /// `ibv_create_comp_channel`: null and errno on failure.
            create_comp_channel = ibv_create_comp_channel @ "IBVERBS_1.0" (context: *mut ibv_context) -> *mut ibv_comp_channel;
            /// `ibv_destroy_comp_channel`: 0 or an errno value, `EBUSY` while CQs use it.
            destroy_comp_channel = ibv_destroy_comp_channel @ "IBVERBS_1.0" (channel: *mut ibv_comp_channel) -> c_int;
            /// `ibv_create_cq`: null and errno on failure.
            create_cq = ibv_create_cq @ "IBVERBS_1.1" (context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
            /// `ibv_resize_cq`: 0 or an errno value.
            resize_cq = ibv_resize_cq @ "IBVERBS_1.1" (cq: *mut ibv_cq, cqe: c_int) -> c_int;
            /// `ibv_destroy_cq`: 0 or an errno value; waits until all its events are acknowledged.
            destroy_cq = ibv_destroy_cq @ "IBVERBS_1.1" (cq: *mut ibv_cq) -> c_int;
            /// `ibv_get_cq_event`: the next completion event, 0 or -1. It waits unless the channel's fd is non-blocking.
            get_cq_event = ibv_get_cq_event @ "IBVERBS_1.1" (channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
            /// `ibv_ack_cq_events`: acknowledges so many events.
            ack_cq_events = ibv_ack_cq_events @ "IBVERBS_1.1" (cq: *mut ibv_cq, nevents: c_uint);

            /// `ibv_create_srq`: null and errno on failure; writes back what was given.
            create_srq = ibv_create_srq @ "IBVERBS_1.1" (pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
            /// `ibv_modify_srq`: 0 or an errno value.
            modify_srq = ibv_modify_srq @ "IBVERBS_1.1" (srq: *mut ibv_srq, attr: *mut ibv_srq_attr, attr_mask: c_int) -> c_int;
            /// `ibv_query_srq`: 0 or an errno value.
            query_srq = ibv_query_srq @ "IBVERBS_1.1" (srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
            /// `ibv_destroy_srq`: 0 or an errno value, `EBUSY` while QPs use it.
            destroy_srq = ibv_destroy_srq @ "IBVERBS_1.1" (srq: *mut ibv_srq) -> c_int;

            /// `ibv_create_qp`: null and errno on failure; writes back the capacity that was given.
            create_qp = ibv_create_qp @ "IBVERBS_1.1" (pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
            /// `ibv_modify_qp`: 0 or an errno value.
            modify_qp = ibv_modify_qp @ "IBVERBS_1.1" (qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
            /// `ibv_query_qp`: 0 or an errno value. A provider may give more than the mask asks for.
            query_qp = ibv_query_qp @ "IBVERBS_1.1" (qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int;
            /// `ibv_destroy_qp`: 0 or an errno value, `EBUSY` while it is attached to multicast groups.
            destroy_qp = ibv_destroy_qp @ "IBVERBS_1.1" (qp: *mut ibv_qp) -> c_int;
            /// `ibv_qp_to_qp_ex`: the extended face of a QP made with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`, null for others.
            qp_to_qp_ex = ibv_qp_to_qp_ex @ "IBVERBS_1.6" (qp: *mut ibv_qp) -> *mut ibv_qp_ex, else missing::null();
            /// `ibv_query_qp_data_in_order`: 1 when data lands in order, 0 when that is not promised.
            query_qp_data_in_order = ibv_query_qp_data_in_order @ "IBVERBS_1.14" (qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int, else 0;
            /// `ibv_query_ece`: 0 or an errno value.
            query_ece = ibv_query_ece @ "IBVERBS_1.10" (qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, else missing::ERRNO;
            /// `ibv_set_ece`: 0 or an errno value.
            set_ece = ibv_set_ece @ "IBVERBS_1.10" (qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, else missing::ERRNO;

            /// `ibv_create_ah`: null and errno on failure.
            create_ah = ibv_create_ah @ "IBVERBS_1.1" (pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
            /// `ibv_init_ah_from_wc`: the address vector for an answer. 0 or -1.
            init_ah_from_wc = ibv_init_ah_from_wc @ "IBVERBS_1.1" (context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, attr: *mut ibv_ah_attr) -> c_int;
            /// `ibv_create_ah_from_wc`: the address handle for an answer. Null and errno on failure.
            create_ah_from_wc = ibv_create_ah_from_wc @ "IBVERBS_1.1" (pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah;
            /// `ibv_destroy_ah`: 0 or an errno value.
            destroy_ah = ibv_destroy_ah @ "IBVERBS_1.1" (ah: *mut ibv_ah) -> c_int;
            /// `ibv_attach_mcast`: 0 or an errno value.
            attach_mcast = ibv_attach_mcast @ "IBVERBS_1.1" (qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
            /// `ibv_detach_mcast`: 0 or an errno value.
            detach_mcast = ibv_detach_mcast @ "IBVERBS_1.1" (qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;

            /// `ibv_fork_init`: 0 or an errno value; before any other call.
            fork_init = ibv_fork_init @ "IBVERBS_1.1" () -> c_int;
            /// `ibv_is_fork_initialized`: whether fork(2) is protected against.
            is_fork_initialized = ibv_is_fork_initialized @ "IBVERBS_1.13" () -> ibv_fork_status, else IBV_FORK_DISABLED;

            /// `ibv_node_type_str`: a static text.
            node_type_str = ibv_node_type_str @ "IBVERBS_1.1" (node_type: ibv_node_type) -> *const c_char;
            /// `ibv_port_state_str`: a static text.
            port_state_str = ibv_port_state_str @ "IBVERBS_1.1" (port_state: ibv_port_state) -> *const c_char;
            /// `ibv_event_type_str`: a static text.
            event_type_str = ibv_event_type_str @ "IBVERBS_1.1" (event: ibv_event_type) -> *const c_char;
            /// `ibv_wc_status_str`: a static text.
            wc_status_str = ibv_wc_status_str @ "IBVERBS_1.1" (status: ibv_wc_status) -> *const c_char;
            /// `ibv_rate_to_mult`: a rate as a multiple of 2.5 Gbit/s, -1 for an unknown one.
            rate_to_mult = ibv_rate_to_mult @ "IBVERBS_1.0" (rate: ibv_rate) -> c_int;
            /// `mult_to_ibv_rate`: the rate for a multiple of 2.5 Gbit/s, `IBV_RATE_MAX` when there is none.
            mult_to_rate = mult_to_ibv_rate @ "IBVERBS_1.0" (mult: c_int) -> ibv_rate;
            /// `ibv_rate_to_mbps`: a rate in Mbit/s, -1 for an unknown one.
            rate_to_mbps = ibv_rate_to_mbps @ "IBVERBS_1.1" (rate: ibv_rate) -> c_int;
            /// `mbps_to_ibv_rate`: the rate for so many Mbit/s, `IBV_RATE_MAX` when there is none.
            mbps_to_rate = mbps_to_ibv_rate @ "IBVERBS_1.1" (mbps: c_int) -> ibv_rate;
        }
    };
}

for_each_verb!(verbs);

impl core::fmt::Debug for Verbs {
    /// Where it came from and what it lacks; addresses tell nothing.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let missing: Vec<_> = self.missing().map(|(name, _)| name).collect();
        f.debug_struct("Verbs")
            .field("source", &self.source)
            .field("missing", &missing)
            .finish()
    }
}
