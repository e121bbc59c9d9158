//! Ports: attributes, GID tables, partition keys.

use std::ffi::c_int;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::context::{self, Context};
use super::{copy_out, minus_one, refuse};
use crate::core::CallError;
use crate::core::config::{GidEntry, GidKind};
use crate::node::PortNow;

/// A port as it is now, by its verbs number; counts the query.
fn port(context: &Context, number: u32) -> Result<PortNow, CallError> {
    let ports = context.device.profile.ports.len();
    let Some(number) = u8::try_from(number).ok().filter(|&n| n > 0) else {
        return Err(CallError::invalid(format!(
            "port {number}: there are 1 to {ports}"
        )));
    };
    let port = context.node.port(number)?;
    context.device.count_query(number);
    Ok(port)
}

/// The attributes of a port.
fn attributes(context: &Context, number: u8) -> Result<ibv_port_attr, CallError> {
    const PHYS_DISABLED: u8 = 3;
    const PHYS_LINK_UP: u8 = 5;
    const WIDTH_4X: u8 = 2;
    const SPEED_EDR: u8 = 32;
    let port = port(context, number.into())?;
    let config = port.config;
    let profile = &context.device.profile.ports[usize::from(number) - 1];
    let mtu = |bytes| ibv_mtu::from_bytes(bytes).unwrap_or(ibv_mtu::IBV_MTU_256);
    let mut attr = ibv_port_attr::zeroed();
    (attr.state, attr.phys_state) = if port.up {
        (ibv_port_state::IBV_PORT_ACTIVE, PHYS_LINK_UP)
    } else {
        (ibv_port_state::IBV_PORT_DOWN, PHYS_DISABLED)
    };
    attr.max_mtu = mtu(profile.max_mtu);
    attr.active_mtu = mtu(config.active_mtu);
    attr.gid_tbl_len = c_int::try_from(config.gids.len()).unwrap_or(c_int::MAX);
    attr.port_cap_flags =
        (ibv_port_cap_flags::IBV_PORT_CM_SUP | ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS).bits();
    attr.max_msg_sz = config.max_msg_sz;
    attr.bad_pkey_cntr = u32::try_from(port.bad_pkeys).unwrap_or(u32::MAX);
    attr.qkey_viol_cntr = u32::try_from(port.bad_qkeys).unwrap_or(u32::MAX);
    attr.pkey_tbl_len = u16::try_from(config.pkeys.len()).unwrap_or(u16::MAX);
    attr.max_vl_num = 1;
    attr.active_width = WIDTH_4X;
    attr.active_speed = SPEED_EDR;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    attr.flags = IBV_QPF_GRH_REQUIRED;
    Ok(attr)
}

/// The port query that knows the caller's size.
pub(super) unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = unsafe { context::soft(context) }.map_err(CallError::from);
    match context.and_then(|context| attributes(context, number)) {
        Ok(_) if attr.is_null() => refuse(CallError::invalid("no place for the attributes")),
        Ok(all) => {
            // SAFETY: not null, and the caller says that it has room for `len` bytes.
            unsafe { copy_out(&all, attr, len) };
            0
        }
        Err(error) => refuse(error),
    }
}

/// The exported port query. It knows the struct of the first release: 48 bytes.
pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    const COMPAT: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the caller's promises are those that `query_port_ex` asks for, with the size that
    // the exported symbol has always had.
    unsafe { query_port_ex(context, number, attr.cast(), COMPAT) }
}

/// One slot of a GID table.
fn gid_entry(context: &Context, number: u32, index: u32) -> Result<GidEntry, CallError> {
    let gids = port(context, number)?.config.gids;
    gids.get(index as usize).copied().ok_or_else(|| {
        CallError::invalid(format!(
            "index {index}: the GID table of port {number} has {} entries",
            gids.len()
        ))
    })
}

/// A GID table entry as verbs report it.
fn to_abi(entry: &GidEntry, port_num: u32, gid_index: u32) -> ibv_gid_entry {
    let kind = match entry.kind {
        GidKind::RoceV1 => ibv_gid_type::IBV_GID_TYPE_ROCE_V1,
        GidKind::RoceV2 => ibv_gid_type::IBV_GID_TYPE_ROCE_V2,
    };
    ibv_gid_entry {
        gid: ibv_gid::from_raw(entry.gid),
        gid_index,
        port_num,
        gid_type: kind.0,
        // The addresses are of no network device of this node's own.
        ndev_ifindex: 0,
    }
}

pub(super) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    number: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let query = || -> Result<(), CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(context)? };
        // A negative index becomes one that no table has.
        let entry = gid_entry(context, number.into(), index as u32)?;
        if gid.is_null() {
            return Err(CallError::invalid("no place for the GID"));
        }
        // SAFETY: not null, so it has room for a GID by the rules of ibv_query_gid(3).
        unsafe { gid.write(ibv_gid::from_raw(entry.gid)) };
        Ok(())
    };
    query().map_or_else(minus_one, |()| 0)
}

pub(super) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    number: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    let query = || -> Result<c_int, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(context)? };
        let found = gid_entry(context, number, index)?;
        if entry.is_null() || flags != 0 {
            return Err(CallError::invalid(
                "no place for the entry, or flags that are not 0",
            ));
        }
        if found.is_empty() {
            // Who looks through a table meets such; it is no refusal.
            return Ok(Errno::NODATA.raw_os_error());
        }
        // SAFETY: not null, and the caller says that it has room for `entry_size` bytes.
        unsafe { copy_out(&to_abi(&found, number, index), entry, entry_size) };
        Ok(0)
    };
    query().unwrap_or_else(refuse)
}

pub(super) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let query = || -> Result<isize, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(context)? };
        if flags != 0 || entry_size == 0 || (entries.is_null() && max_entries > 0) {
            return Err(CallError::invalid(
                "flags that are not 0, entries of no size, or no place for them",
            ));
        }
        let mut count = 0;
        // Not counted as a query of any port: it asks for all.
        for number in 1..=context.device.profile.ports.len() as u8 {
            let gids = context.node.port(number)?.config.gids;
            for (index, entry) in (0..).zip(&gids).filter(|(_, entry)| !entry.is_empty()) {
                if count == max_entries {
                    return Err(CallError::invalid(format!(
                        "room for {max_entries} entries: the tables hold more"
                    )));
                }
                // SAFETY: the caller says that there is room for `max_entries` entries of
                // `entry_size` bytes each, and `count` is below that number.
                unsafe {
                    let at = entries.byte_add(count * entry_size);
                    copy_out(&to_abi(entry, number.into(), index), at, entry_size);
                }
                count += 1;
            }
        }
        Ok(count as isize)
    };
    query().unwrap_or_else(|error| -(refuse(error) as isize))
}

pub(super) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    number: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    let query = || -> Result<(), CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(context)? };
        let pkeys = port(context, number.into())?.config.pkeys;
        // A negative index becomes one that no table has.
        let found = pkeys.get(index as u32 as usize).ok_or_else(|| {
            CallError::invalid(format!(
                "index {index}: the partition key table of port {number} has {} entries",
                pkeys.len()
            ))
        })?;
        if pkey.is_null() {
            return Err(CallError::invalid("no place for the key"));
        }
        // SAFETY: not null, so it has room for the key by the rules of ibv_query_pkey(3).
        unsafe { pkey.write(found.to_be()) };
        Ok(())
    };
    query().map_or_else(minus_one, |()| 0)
}

pub(super) unsafe extern "C" fn get_pkey_index(
    context: *mut ibv_context,
    number: u8,
    pkey: u16,
) -> c_int {
    let query = || -> Result<c_int, CallError> {
        // SAFETY: a context that the application got from a verbs provider and has not closed.
        let context = unsafe { context::soft(context)? };
        let pkeys = port(context, number.into())?.config.pkeys;
        let at = pkeys.iter().position(|p| p.to_be() == pkey);
        at.and_then(|at| c_int::try_from(at).ok()).ok_or_else(|| {
            let why = format!(
                "port {number} has no partition key {:#06x}",
                u16::from_be(pkey)
            );
            CallError::new(Errno::NOENT, why)
        })
    };
    query().unwrap_or_else(minus_one)
}
