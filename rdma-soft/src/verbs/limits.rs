//! What a device has and can do, and its clock.

use std::ffi::c_int;

use rdma_core_sys::*;

use super::context::{self, Context};
use super::device::set_text;
use super::{copy_out, refuse};
use crate::core::CallError;
use crate::core::config::Caps;

/// Vendor and part number that `ibv_query_device` reports. The vendor number is in the space of
/// locally administered Ethernet addresses, so it is nobody's.
const VENDOR: (u32, u32) = (0x02_52_51, 1);

/// What the device can do.
///
/// The counters of bad keys that a port's attributes have are those of the node. Windows of type 2 belong
/// to the Queue Pair that bound them, which is type 2B. Of the memory management extensions there is what
/// user space knows: sends that invalidate a key, and local invalidation.
const CAPABILITIES: ibv_device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR
    .union(IBV_DEVICE_BAD_QKEY_CNTR)
    .union(IBV_DEVICE_UD_AV_PORT_ENFORCE)
    .union(IBV_DEVICE_CURR_QP_STATE_MOD)
    .union(IBV_DEVICE_PORT_ACTIVE_EVENT)
    .union(IBV_DEVICE_SYS_IMAGE_GUID)
    .union(IBV_DEVICE_RC_RNR_NAK_GEN)
    .union(IBV_DEVICE_SRQ_RESIZE)
    .union(IBV_DEVICE_MEM_WINDOW)
    .union(IBV_DEVICE_XRC)
    .union(IBV_DEVICE_MEM_MGT_EXTENSIONS)
    .union(IBV_DEVICE_MEM_WINDOW_TYPE_2B);

/// A limit as verbs report it.
fn limit(value: u64) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// The attributes of a device. They never change, so a child may ask for them, too.
fn attributes(context: &Context) -> ibv_device_attr {
    let config = context.node.config();
    let caps: &Caps = &config.caps;
    let guid = context.device.guid.to_be();
    let pkeys = config.ports.iter().map(|p| p.pkeys.len()).max();
    let mut attr = ibv_device_attr::zeroed();
    set_text(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid;
    attr.sys_image_guid = guid;
    attr.max_mr_size = caps.max_mr_size;
    attr.page_size_cap = !(rustix::param::page_size() as u64 - 1);
    (attr.vendor_id, attr.vendor_part_id) = VENDOR;
    attr.hw_ver = 1;
    attr.max_qp = limit(caps.max_qp.into());
    attr.max_qp_wr = limit(caps.max_qp_wr.into());
    attr.device_cap_flags = CAPABILITIES.bits() as u32;
    attr.max_sge = limit(caps.max_sge.into());
    attr.max_sge_rd = attr.max_sge;
    attr.max_cq = limit(caps.max_cq.into());
    attr.max_cqe = limit(caps.max_cqe.into());
    attr.max_mr = limit(caps.max_mr.into());
    attr.max_pd = limit(caps.max_pd.into());
    attr.max_qp_rd_atom = caps.max_qp_rd_atom.into();
    attr.max_res_rd_atom = limit(u64::from(caps.max_qp_rd_atom) * u64::from(caps.max_qp));
    attr.max_qp_init_rd_atom = caps.max_qp_init_rd_atom.into();
    // Atomics are those of the processor, so they are atomic to everybody.
    attr.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_GLOB;
    attr.max_mw = limit(caps.max_mw.into());
    attr.max_mcast_grp = limit(caps.max_mcast_grp.into());
    attr.max_mcast_qp_attach = limit(caps.max_mcast_qp_attach.into());
    attr.max_total_mcast_qp_attach =
        limit(u64::from(caps.max_mcast_grp) * u64::from(caps.max_mcast_qp_attach));
    attr.max_ah = limit(caps.max_ah.into());
    attr.max_srq = limit(caps.max_srq.into());
    attr.max_srq_wr = limit(caps.max_srq_wr.into());
    attr.max_srq_sge = limit(caps.max_srq_sge.into());
    attr.max_pkeys = u16::try_from(pkeys.unwrap_or(0)).unwrap_or(u16::MAX);
    // 4.096 us x 2^8 is about 1 ms: what the thread may take to notice that polling ended.
    attr.local_ca_ack_delay = 8;
    attr.phys_port_cnt = u8::try_from(config.ports.len()).unwrap_or(u8::MAX);
    attr
}

pub(super) unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    match unsafe { context::soft_of_any_process(context) } {
        Ok(_) if attr.is_null() => refuse(CallError::invalid("no place for the attributes")),
        Ok(context) => {
            // SAFETY: not null, so it has room for the struct by the rules of ibv_query_device(3).
            unsafe { attr.write(attributes(context)) };
            0
        }
        Err(errno) => refuse(errno),
    }
}

pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = match unsafe { context::soft_of_any_process(context) } {
        Ok(context) => context,
        Err(errno) => return refuse(errno),
    };
    // SAFETY: null or, by the rules of ibv_query_device_ex(3), a struct.
    let no_extension = input.is_null() || unsafe { (*input).comp_mask } == 0;
    if attr.is_null() || attr_size < size_of::<ibv_device_attr>() || !no_extension {
        return refuse(CallError::invalid(
            "no place for the attributes, too little of it, or a comp_mask that is not 0",
        ));
    }
    let mut all = ibv_device_attr_ex::zeroed();
    all.orig_attr = attributes(context);
    // Completions are stamped in nanoseconds, of which there are 10^6 in a millisecond.
    all.completion_timestamp_mask = u64::MAX;
    all.hca_core_clock = 1_000_000;
    all.device_cap_flags_ex = CAPABILITIES.bits();
    all.phys_port_cnt_ex = all.orig_attr.phys_port_cnt.into();
    all.max_dm_size = context.node.config().caps.max_dm_size;
    // SAFETY: the caller says that `attr` has room for `attr_size` bytes.
    unsafe { copy_out(&all, attr, attr_size) };
    0
}

/// The clock that completions are stamped with: all of its nanoseconds are in `tv_nsec`, as drivers
/// give the ticks of theirs.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    const RAW_CLOCK: u32 = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.bits();
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = match unsafe { context::soft(context) } {
        Ok(context) => context,
        Err(errno) => return refuse(errno),
    };
    // SAFETY: null, or the struct that ibv_query_rt_values_ex(3) asks for.
    if values.is_null() || unsafe { (*values).comp_mask } & !RAW_CLOCK != 0 {
        return refuse(CallError::invalid(
            "no place for the values, or values that are not known",
        ));
    }
    // SAFETY: not null, as above.
    unsafe {
        if (*values).comp_mask & RAW_CLOCK != 0 {
            (*values).raw_clock.tv_sec = 0;
            (*values).raw_clock.tv_nsec = context.node.raw_clock() as i64;
        }
    }
    0
}
