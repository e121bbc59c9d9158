//! The verbs ABI of the software device: the table that libibverbs would be, and the objects behind
//! it. One file per kind of object.
//!
//! Objects are `repr(C)` with the ABI's struct first, in blocks of the newest sizes, so that
//! unmodified C code uses them. Everything that comes in through a pointer is checked as far as it
//! can be: null, the wrong provider, counts, lengths; whoever passes a dangling pointer breaks the
//! rules of verbs. Nothing here panics on what a caller passes.
#![allow(unsafe_code)]

mod ah;
mod by_name;
mod channel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod event;
mod import;
mod inventory;
mod limits;
mod mr;
mod mw;
mod object;
mod pd;
mod port;
mod post;
mod qp;
mod qp_ex;
mod request;
mod srq;
pub(crate) mod sys;
mod td;
mod text;
mod turn;
mod why;
mod xrcd;

use rdma_core_sys::{Functions, Verbs};

use why::{fail, minus_one, refuse};

pub use by_name::{
    counters, fail_device, open_error, partition, port_queries, qp_stats, queue_pairs, set_faults,
    set_gid, set_pkey, set_port_up,
};
pub use device::add_device;
pub use mr::has_other_keys;
pub use why::{last_refusal, refusal_place, refusals, say};

/// What the undefined fields of a failed completion hold: no opcode, no flag combination and no
/// length that a program expects, so that a program which reads them is found out.
pub const POISON: u32 = 0xa5a5_a5a5;

/// The software device's function table: what libibverbs exports, served by the devices of this
/// process.
///
/// `ibv_get_device_list` gives "soft0", made from the environment's `RDMA_SOFT_*` variables (see
/// [`Profile::from_env`](crate::profile::Profile::from_env)), and the devices of [`add_device`].
/// Where the environment is wrong it gives `EINVAL`; `Profile::from_env` says what is wrong.
///
/// ```
/// let verbs = rdma_soft::verbs();
/// let mut count = 0;
/// // SAFETY: the list is used until it is freed, the device is in it.
/// let name = unsafe {
///     let list = verbs.get_device_list(&mut count);
///     let name = std::ffi::CStr::from_ptr(verbs.get_device_name(*list)).to_owned();
///     verbs.free_device_list(list);
///     name
/// };
/// assert!(count >= 1);
/// assert_eq!(name.to_str(), Ok("soft0"));
/// ```
pub fn verbs() -> &'static Verbs {
    verbs_table()
}

const fn verbs_table() -> &'static Verbs {
    const FUNCTIONS: Functions = Functions {
        source: "the software device",
        get_device_list: device::get_device_list,
        free_device_list: device::free_device_list,
        get_device_name: device::get_device_name,
        get_device_guid: device::get_device_guid,
        get_device_index: Some(device::get_device_index),
        open_device: device::open_device,
        close_device: context::close_device,
        import_device: Some(import::import_device),
        import_pd: Some(import::import_pd),
        unimport_pd: Some(import::unimport_pd),
        import_mr: Some(import::import_mr),
        unimport_mr: Some(import::unimport_mr),
        import_dm: Some(import::import_dm),
        unimport_dm: Some(import::unimport_dm),
        get_async_event: event::get_async_event,
        ack_async_event: event::ack_async_event,
        query_device: limits::query_device,
        query_port_compat: port::query_port,
        query_port_speed: None,
        query_gid: port::query_gid,
        query_gid_ex: Some(port::query_gid_ex),
        query_gid_table: Some(port::query_gid_table),
        query_pkey: port::query_pkey,
        get_pkey_index: Some(port::get_pkey_index),
        resolve_eth_l2_from_gid: ah::resolve_eth_l2_from_gid,
        alloc_pd: pd::alloc_pd,
        dealloc_pd: pd::dealloc_pd,
        reg_mr: mr::reg_mr,
        reg_mr_iova: Some(mr::reg_mr_iova),
        reg_mr_iova2: Some(mr::reg_mr_iova2),
        reg_dmabuf_mr: None,
        rereg_mr: mr::rereg_mr,
        dereg_mr: mr::dereg_mr,
        create_comp_channel: channel::create_comp_channel,
        destroy_comp_channel: channel::destroy_comp_channel,
        create_cq: cq::create_cq,
        resize_cq: cq::resize_cq,
        destroy_cq: cq::destroy_cq,
        get_cq_event: channel::get_cq_event,
        ack_cq_events: channel::ack_cq_events,
        create_srq: srq::create_srq,
        modify_srq: srq::modify_srq,
        query_srq: srq::query_srq,
        destroy_srq: srq::destroy_srq,
        create_qp: qp::create_qp,
        modify_qp: qp::modify_qp,
        query_qp: qp::query_qp,
        destroy_qp: qp::destroy_qp,
        qp_to_qp_ex: Some(qp::qp_to_qp_ex),
        query_qp_data_in_order: Some(qp::query_qp_data_in_order),
        query_ece: Some(qp::query_ece),
        set_ece: Some(qp::set_ece),
        create_ah: ah::create_ah,
        init_ah_from_wc: ah::init_ah_from_wc,
        create_ah_from_wc: ah::create_ah_from_wc,
        destroy_ah: ah::destroy_ah,
        attach_mcast: ah::attach_mcast,
        detach_mcast: ah::detach_mcast,
        fork_init: device::fork_init,
        is_fork_initialized: Some(device::is_fork_initialized),
        node_type_str: text::node_type_str,
        port_state_str: text::port_state_str,
        event_type_str: text::event_type_str,
        wc_status_str: text::wc_status_str,
        rate_to_mult: text::rate_to_mult,
        mult_to_rate: text::mult_to_rate,
        rate_to_mbps: text::rate_to_mbps,
        mbps_to_rate: text::mbps_to_rate,
    };
    // SAFETY: each function is the one of its name in the modules here, written to the contract of libibverbs, which may be called
    // from any thread.
    static TABLE: Verbs = unsafe { Verbs::new(FUNCTIONS) };
    &TABLE
}

/// Writes `value` to a place of `len` bytes, which may be shorter or longer than the struct: a caller
/// of another version. What lies behind the struct becomes zero.
///
/// # Safety
/// `to` is writable for `len` bytes.
unsafe fn copy_out<T>(value: &T, to: *mut T, len: usize) {
    let known = len.min(size_of::<T>());
    // SAFETY: writable for `len` bytes by the caller's promise, `known` is no more than that and no
    // more than the struct has, and a local value does not overlap the caller's memory.
    unsafe {
        let to = to.cast::<u8>();
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast(), to, known);
        to.add(known).write_bytes(0, len - known);
    }
}
