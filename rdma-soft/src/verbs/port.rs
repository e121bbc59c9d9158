//! Ports: attributes, GID tables, partition keys.

use std::ffi::c_int;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::context::{self, Context};
use super::copy_out;
use super::device::minus_one;
use crate::core::config::{GidEntry, GidKind, PortConfig};
use crate::profile::PortProfile;

/// A port by its verbs number, as configured and as told to the engine.
fn port(context: &Context, number: u32) -> Result<(&PortProfile, &PortConfig), Errno> {
    let at = (number as usize).checked_sub(1).ok_or(Errno::INVAL)?;
    let profile = context.device.profile.ports.get(at);
    let config = context.node.config().ports.get(at);
    profile.zip(config).ok_or(Errno::INVAL)
}

/// The attributes of a port.
fn attributes(context: &Context, number: u8) -> Result<ibv_port_attr, Errno> {
    const PHYS_DISABLED: u8 = 3;
    const PHYS_LINK_UP: u8 = 5;
    const WIDTH_4X: u8 = 2;
    const SPEED_EDR: u8 = 32;
    let (profile, config) = port(context, number.into())?;
    let mtu = |bytes| ibv_mtu::from_bytes(bytes).unwrap_or(ibv_mtu::IBV_MTU_256);
    let mut attr = ibv_port_attr::zeroed();
    (attr.state, attr.phys_state) = if profile.up {
        (ibv_port_state::IBV_PORT_ACTIVE, PHYS_LINK_UP)
    } else {
        (ibv_port_state::IBV_PORT_DOWN, PHYS_DISABLED)
    };
    attr.max_mtu = mtu(profile.max_mtu);
    attr.active_mtu = mtu(profile.active_mtu);
    attr.gid_tbl_len = c_int::try_from(config.gids.len()).unwrap_or(c_int::MAX);
    attr.port_cap_flags =
        (ibv_port_cap_flags::IBV_PORT_CM_SUP | ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS).bits();
    attr.max_msg_sz = config.max_msg_sz;
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
    let context = unsafe { context::soft(context) };
    match context.and_then(|context| attributes(context, number)) {
        Ok(_) if attr.is_null() => Errno::INVAL.raw_os_error(),
        Ok(all) => {
            // SAFETY: not null, and the caller says that it has room for `len` bytes.
            unsafe { copy_out(&all, attr, len) };
            0
        }
        Err(errno) => errno.raw_os_error(),
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
fn gid_entry(context: &Context, number: u32, index: u32) -> Result<GidEntry, Errno> {
    let (_, config) = port(context, number)?;
    config.gids.get(index as usize).copied().ok_or(Errno::INVAL)
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
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = unsafe { context::soft(context) };
    let entry = context.and_then(|context| {
        let index = u32::try_from(index).map_err(|_| Errno::INVAL)?;
        gid_entry(context, number.into(), index)
    });
    match entry {
        Ok(_) if gid.is_null() => minus_one(Errno::INVAL),
        Ok(entry) => {
            // SAFETY: not null, so it has room for a GID by the rules of ibv_query_gid(3).
            unsafe { gid.write(ibv_gid::from_raw(entry.gid)) };
            0
        }
        Err(errno) => minus_one(errno),
    }
}

pub(super) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    number: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = unsafe { context::soft(context) };
    let found = context.and_then(|context| gid_entry(context, number, index));
    match found {
        Ok(_) if entry.is_null() || flags != 0 => Errno::INVAL.raw_os_error(),
        Ok(found) if found.is_empty() => Errno::NODATA.raw_os_error(),
        Ok(found) => {
            // SAFETY: not null, and the caller says that it has room for `entry_size` bytes.
            unsafe { copy_out(&to_abi(&found, number, index), entry, entry_size) };
            0
        }
        Err(errno) => errno.raw_os_error(),
    }
}

pub(super) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let refused = |errno: Errno| -(errno.raw_os_error() as isize);
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = match unsafe { context::soft(context) } {
        Ok(context) => context,
        Err(errno) => return refused(errno),
    };
    if flags != 0 || entry_size == 0 || (entries.is_null() && max_entries > 0) {
        return refused(Errno::INVAL);
    }
    let ports = (1u32..).zip(&context.node.config().ports);
    let all = ports.flat_map(|(number, port)| {
        (0u32..)
            .zip(&port.gids)
            .map(move |(index, entry)| (number, index, entry))
    });
    let mut count = 0;
    for (number, index, entry) in all.filter(|(_, _, entry)| !entry.is_empty()) {
        if count == max_entries {
            return refused(Errno::INVAL);
        }
        // SAFETY: the caller says that there is room for `max_entries` entries of `entry_size`
        // bytes each, and `count` is below that number.
        unsafe {
            let at = entries.byte_add(count * entry_size);
            copy_out(&to_abi(entry, number, index), at, entry_size);
        }
        count += 1;
    }
    count as isize
}

pub(super) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    number: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = unsafe { context::soft(context) };
    let found = context.and_then(|context| {
        let (_, config) = port(context, number.into())?;
        let index = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        config.pkeys.get(index).copied().ok_or(Errno::INVAL)
    });
    match found {
        Ok(_) if pkey.is_null() => minus_one(Errno::INVAL),
        Ok(found) => {
            // SAFETY: not null, so it has room for the key by the rules of ibv_query_pkey(3).
            unsafe { pkey.write(found.to_be()) };
            0
        }
        Err(errno) => minus_one(errno),
    }
}

pub(super) unsafe extern "C" fn get_pkey_index(
    context: *mut ibv_context,
    number: u8,
    pkey: u16,
) -> c_int {
    // SAFETY: a context that the application got from a verbs provider and has not closed.
    let context = unsafe { context::soft(context) };
    let index = context.and_then(|context| {
        let (_, config) = port(context, number.into())?;
        let at = config.pkeys.iter().position(|p| p.to_be() == pkey);
        at.and_then(|at| c_int::try_from(at).ok())
            .ok_or(Errno::NOENT)
    });
    index.unwrap_or_else(minus_one)
}
