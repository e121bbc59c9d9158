//! Address handles and multicast.

use std::ffi::c_int;

use rdma_core_sys::*;
use rustix::io::Errno;

use super::context::{self, Context};
use super::object::named;
use super::qp::QpObject;
use super::{fail, minus_one, object, refuse};
use crate::core::config::{GidEntry, GidKind};
use crate::core::{Ah, CallError};

/// Our part of an `ibv_ah`.
pub(super) struct AhObject {
    pub(super) ah: Ah,
}

/// Creates an address handle.
///
/// # Safety
/// `pd` is null or a live PD of some verbs provider.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, CallError> {
    // SAFETY: the caller's promise.
    let (context, soft) = unsafe { (object::context(pd)?, object::soft(pd)?) };
    let mut attr = *attr;
    cut_flow_label(&mut attr);
    let ah = context.node.create_ah(soft.id, &attr)?;
    let mut abi = ibv_ah::zeroed();
    // SAFETY: a live PD, as above.
    abi.context = unsafe { (*pd).context };
    abi.pd = pd;
    let made = object::create::<ibv_ah>(abi, AhObject { ah });
    context.objects().ahs.insert(made as usize, ah);
    Ok(made)
}

pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    if attr.is_null() {
        return fail(CallError::invalid("the attributes are null"));
    }
    // SAFETY: not null, so it is the struct that ibv_create_ah(3) asks for; the PD is one that the
    // application got from a verbs provider and has not freed.
    unsafe { create(pd, &attr.read()) }.unwrap_or_else(fail)
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    let destroy = || -> Result<(), CallError> {
        // SAFETY: an address handle that the application got from a verbs provider and has not
        // destroyed.
        let (context, soft) = unsafe { (object::context(ah)?, object::soft(ah)?) };
        context.node.destroy_ah(&soft.ah);
        context.objects().ahs.remove(&(ah as usize));
        Ok(())
    };
    if let Err(error) = destroy() {
        return refuse(error);
    }
    // SAFETY: one of ours; requests hold copies: the application is done with it.
    unsafe { object::free(ah) };
    0
}

/// Cuts the flow label to the 20 bits of its field, as adapters do: UCX says 0xffffffff for any.
pub(super) fn cut_flow_label(attr: &mut ibv_ah_attr) {
    if attr.is_global != 0 {
        attr.grh.flow_label &= 0xf_ffff;
    }
}

/// Where an address handle that a request of `qp` names leads.
///
/// # Errors
/// `EINVAL` for one that is missing or of another context.
///
/// # Safety
/// `qp` is a live QP of ours; `ah` is null or a live address handle of some verbs provider.
pub(super) unsafe fn of(qp: *mut ibv_qp, ah: *mut ibv_ah) -> Result<Ah, CallError> {
    // SAFETY: the caller's promise.
    let found = unsafe { named((*qp).context, "ah", ah)? };
    let missing = || CallError::invalid("ah is null: a datagram needs an address handle");
    Ok(found.ok_or_else(missing)?.ah)
}

/// The headers in front of a datagram, as far as an answer needs them.
struct Route {
    /// Where it came from.
    from: [u8; 16],
    /// Where it went.
    to: [u8; 16],
    traffic_class: u8,
    hop_limit: u8,
    /// Which entries of the GID table it may have come to.
    kind: GidKind,
}

/// Next header of a global route header without UDP (RoCE v1).
const NEXT_HEADER_IB: u8 = 0x1b;
/// Next header of UDP.
const NEXT_HEADER_UDP: u8 = 17;

/// Reads the 40 bytes in front of a datagram: an IPv6 header, or an IPv4 header in the last 20.
///
/// Which it is, is decided as rdma-core's `get_grh_header_version` does: IPv4 if there is no IPv6
/// version in front, or if what lies at byte 20 is an IPv4 header with the right checksum.
///
/// # Errors
/// `EPROTONOSUPPORT` for anything else.
fn read_route(grh: &[u8; 40]) -> Result<Route, CallError> {
    let v4 = &grh[20..];
    let is_v6 = grh[0] >> 4 == 6;
    let is_v4 = if is_v6 {
        v4[0] & 0xf == 5 && sums_up(v4)
    } else {
        v4[0] >> 4 == 4
    };
    let take = |at: usize| {
        let mut gid = [0; 16];
        gid.copy_from_slice(&grh[at..at + 16]);
        gid
    };
    let mapped = |at: usize| {
        let mut addr = [0; 4];
        addr.copy_from_slice(&v4[at..at + 4]);
        std::net::Ipv4Addr::from(addr).to_ipv6_mapped().octets()
    };
    let unknown = |what: String| CallError::new(Errno::PROTONOSUPPORT, what);
    if is_v4 {
        return Ok(Route {
            from: mapped(12),
            to: mapped(16),
            traffic_class: v4[1],
            hop_limit: v4[8],
            kind: GidKind::RoceV2,
        });
    }
    if !is_v6 {
        let what = "the 40 bytes in front of the datagram hold no IP header".to_owned();
        return Err(unknown(what));
    }
    let kind = match grh[6] {
        NEXT_HEADER_UDP => GidKind::RoceV2,
        NEXT_HEADER_IB => GidKind::RoceV1,
        other => {
            return Err(unknown(format!(
                "next header {other} is neither UDP nor IBA"
            )));
        }
    };
    Ok(Route {
        from: take(8),
        to: take(24),
        traffic_class: grh[0] << 4 | grh[1] >> 4,
        hop_limit: grh[7],
        kind,
    })
}

/// True if the one's complement sum of a header, its checksum included, is right (RFC 791).
fn sums_up(header: &[u8]) -> bool {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}

/// The way back to who sent a datagram: an address vector from its completion and the 40 bytes in
/// front of it.
///
/// # Errors
/// `EINVAL` for a datagram to a multicast group, which has no one local address, and for one to an
/// address that is not in the port's GID table; `EPROTONOSUPPORT` for headers that are none.
fn way_back(
    context: &Context,
    port: u8,
    wc: &ibv_wc,
    grh: &[u8; 40],
) -> Result<ibv_ah_attr, CallError> {
    let mut attr = ibv_ah_attr::zeroed();
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if wc.wc_flags & IBV_WC_GRH.bits() == 0 {
        return Ok(attr);
    }
    let route = read_route(grh)?;
    let to = crate::core::config::gid_to_ip(route.to);
    if to.is_multicast() {
        return Err(CallError::invalid(format!(
            "the datagram went to the group {to}, not to one address of this node"
        )));
    }
    let gids = context.node.port(port)?.config.gids;
    let entry = GidEntry {
        gid: route.to,
        kind: route.kind,
    };
    let index = gids.iter().position(|e| *e == entry);
    let index = index.and_then(|index| u8::try_from(index).ok());
    let index = index.ok_or_else(|| {
        CallError::invalid(format!("{to} is not in the GID table of port {port}"))
    })?;
    attr.is_global = 1;
    attr.grh.dgid.raw = route.from;
    attr.grh.sgid_index = index;
    attr.grh.hop_limit = route.hop_limit;
    attr.grh.traffic_class = route.traffic_class;
    attr.grh.flow_label = u32::from_be_bytes([0, grh[1] & 0xf, grh[2], grh[3]]);
    Ok(attr)
}

/// Reads a completion and what lies in front of its datagram, and finds the way back.
///
/// # Errors
/// As [`way_back`]; `EINVAL` for null pointers.
///
/// # Safety
/// `ctx` is null or a live context of some verbs provider; `wc` and `grh` are null or structs.
unsafe fn way_back_from(
    ctx: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
) -> Result<ibv_ah_attr, CallError> {
    // SAFETY: the caller's promise.
    let context = unsafe { context::soft(ctx)? };
    if wc.is_null() || grh.is_null() {
        return Err(CallError::invalid("the completion or the header is null"));
    }
    // SAFETY: not null, so they are structs by the caller's promise; a GRH is 40 bytes, wherever it
    // lies.
    let (wc, grh) = unsafe { (wc.read(), grh.cast::<[u8; 40]>().read_unaligned()) };
    way_back(context, port, &wc, &grh)
}

pub(super) unsafe extern "C" fn init_ah_from_wc(
    ctx: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    if attr.is_null() {
        return minus_one(CallError::invalid("the place for the attributes is null"));
    }
    // SAFETY: the application keeps the promises of ibv_init_ah_from_wc(3), which are those asked for.
    match unsafe { way_back_from(ctx, port_num, wc, grh) } {
        Ok(found) => {
            // SAFETY: not null, so it has room for the struct.
            unsafe { attr.write(found) };
            0
        }
        Err(error) => minus_one(error),
    }
}

pub(super) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    // SAFETY: the application keeps the promises of ibv_create_ah_from_wc(3); a PD that passes the
    // first check is live and has a context.
    let made = unsafe {
        object::context(pd)
            .map_err(CallError::from)
            .and_then(|_| way_back_from((*pd).context, port_num, wc, grh))
            .and_then(|attr| create(pd, &attr))
    };
    made.unwrap_or_else(fail)
}

/// A QP and a group, as `ibv_attach_mcast` and `ibv_detach_mcast` name them; the LID is for
/// InfiniBand.
///
/// # Safety
/// `qp` is null or a live QP of some verbs provider; `gid` is null or a GID.
unsafe fn member<'a>(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
) -> Result<(&'a Context, &'a QpObject, [u8; 16]), CallError> {
    // SAFETY: the caller's promise.
    let (context, soft) = unsafe { (object::context(qp)?, object::soft(qp)?) };
    if gid.is_null() {
        return Err(CallError::invalid("the group's GID is null"));
    }
    // SAFETY: not null, so it is a GID by the caller's promise.
    Ok((context, soft, unsafe { (*gid).raw }))
}

pub(super) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    let attach = || -> Result<(), CallError> {
        // SAFETY: a QP that the application got from a verbs provider and has not destroyed, and the
        // GID that ibv_attach_mcast(3) asks for.
        let (context, soft, group) = unsafe { member(qp, gid)? };
        soft.node.attach_mcast(&soft.qp, group)?;
        context.objects().add_member(&soft.qp, group);
        Ok(())
    };
    attach().map_or_else(refuse, |()| 0)
}

pub(super) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    let detach = || -> Result<(), CallError> {
        // SAFETY: a QP that the application got from a verbs provider and has not destroyed, and the
        // GID that ibv_detach_mcast(3) asks for.
        let (context, soft, group) = unsafe { member(qp, gid)? };
        soft.node.detach_mcast(&soft.qp, group)?;
        context.objects().remove_member(&soft.qp, group);
        Ok(())
    };
    detach().map_or_else(refuse, |()| 0)
}

/// There is no Ethernet below this device.
pub(super) unsafe extern "C" fn resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _eth_mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    refuse(CallError::new(
        Errno::OPNOTSUPP,
        "there is no Ethernet below this device, so no addresses of it",
    ))
}
