//! UD: where datagrams go, and groups.

use std::ffi::{c_char, c_int};
use std::net::{IpAddr, Ipv6Addr};

use rdma_qp::{Destination, Device, Gid, Grh, Mr, QKey, Sender};

use crate::cq::{QP_DATAGRAM, QP_HAS_GRH, qp_completion};
use crate::device::{self, qp_device};
use crate::endpoint::qp_endpoint;
use crate::export::{In, Out, Text, export};
use crate::fault::*;
use crate::memory::qp_mr;
use crate::pair::{Any, Pair, no_such, qp_pair};
use crate::slots::{Alone, Held, Kind, Later, Object, insert};
use crate::values::{path, qp_path};

/// Where datagrams of a UD Queue Pair go: to another one, or to a group. Any number of calls may be under way with it.
#[allow(non_camel_case_types)]
pub struct qp_dest {
    _never: [u8; 0],
}

// SAFETY: no other type has this kind.
unsafe impl Object for Destination {
    type C = qp_dest;
    const KIND: Kind = Kind::Dest;
}

/// The UD Queue Pair, or why it is none.
fn ud(pair: &mut Pair) -> Result<&mut rdma_qp::Qp<rdma_qp::Ud>, Fault> {
    match &mut pair.qp {
        Any::Ud(qp) => Ok(qp),
        _ => Err(no_such(
            "a Queue Pair that connects",
            "destinations and groups: they are for UD",
        )),
    }
}

/// The GID of a group, from its address.
fn group(text: &str) -> Result<Gid, Fault> {
    let address: IpAddr = text.parse().map_err(|_| {
        let text = format!("group is {text:?}, which is no address such as 239.1.2.3 or ff0e::1");
        Fault::new(QP_CODE_TEXT, libc::EINVAL, text)
    })?;
    let six: Ipv6Addr = match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    Ok(Gid::new(six.octets()))
}

export! {
    /// Makes a fresh UD Queue Pair ready to receive and to send: RESET to INIT, RTR and RTS.
    ///
    /// @param device     The device that the Queue Pair is of.
    /// @param port       Its port, counted from 1.
    /// @param gid_index  Place of the GID in the port's table; -1 chooses one.
    /// @param qkey       Its Q_Key, the high bit 0: only datagrams with it get in.
    /// @param options    Options of its path; NULL for the usual ones.
    /// @param here       Where its description goes, for those who send to it (qp_dest_create()); may be NULL.
    fn qp_pair_activate(
        pair: *mut qp_pair as Alone<Pair>,
        device: *mut qp_device as Held<Device>,
        port: c_int,
        gid_index: c_int,
        qkey: u32,
        options: *const qp_path as Option<In<'_, qp_path>>,
        here: *mut qp_endpoint as Option<Out<'_, qp_endpoint>>,
    ) {
        let options = path(options)?;
        let qkey = QKey::new(qkey)?;
        let gid = device::gid(&device, port, gid_index)?;
        let told = ud(&mut pair)?.activate(gid, qkey, options)?;
        if let Some(mut here) = here {
            here.set(qp_endpoint::of_this(&told, gid.index, options.pkey_index)?);
        }
        Ok(())
    }

    /// Makes the way from an active UD Queue Pair to another one.
    ///
    /// @param there  What the other one's qp_pair_activate() gave.
    /// @param dest   Where the handle goes; destroy it with qp_dest_destroy(). It is for Queue Pairs of the same protection
    ///               domain.
    fn qp_dest_create(
        pair: *mut qp_pair as Alone<Pair>,
        there: *const qp_endpoint as In<'_, qp_endpoint>,
        dest: *mut *mut qp_dest as Out<'_, *mut qp_dest>,
    ) {
        let there = there.0.endpoint()?;
        dest.set(insert(ud(&mut pair)?.destination(&there)?)?);
        Ok(())
    }

    /// Makes the way from an active UD Queue Pair to all members of a group, which are taken to have its own Q_Key.
    ///
    /// @param group  The group's address, such as "239.1.2.3" or "ff0e::1".
    /// @param lid    The group's LID on InfiniBand; 0 on Ethernet.
    fn qp_dest_group(
        pair: *mut qp_pair as Alone<Pair>,
        group: *const c_char as Text<'_>,
        lid: u16,
        dest: *mut *mut qp_dest as Out<'_, *mut qp_dest>,
    ) {
        let gid = self::group(group.0)?;
        dest.set(insert(ud(&mut pair)?.group(gid, lid)?)?);
        Ok(())
    }

    /// Makes the way back to who sent a datagram, which is taken to have this Queue Pair's Q_Key. The same way is found again
    /// in a table.
    ///
    /// @param received  The completion of the receive.
    /// @param mr        The region that it went to.
    /// @param offset    Where the receive began there.
    fn qp_dest_reply(
        pair: *mut qp_pair as Alone<Pair>,
        received: *const qp_completion as In<'_, qp_completion>,
        mr: *mut qp_mr as Held<Mr>,
        offset: usize,
        dest: *mut *mut qp_dest as Out<'_, *mut qp_dest>,
    ) {
        let done = received.0;
        if done.flags & QP_DATAGRAM == 0 {
            let text = "the completion is not that of a received datagram: it names no sender";
            return Err(Fault::new(QP_CODE_REFUSED, libc::EINVAL, text));
        }
        let has_grh = done.flags & QP_HAS_GRH != 0;
        let sender = Sender::new(done.sender_qp_num, done.sender_lid, done.service_level, has_grh);
        let grh = match has_grh {
            true => Some(Grh::read(&mr, offset).map_err(rdma_qp::DestinationError::from)?),
            false => None,
        };
        dest.set(insert(ud(&mut pair)?.reply_by(&sender, grh.as_ref())?)?);
        Ok(())
    }

    /// Ends a way. Requests that name it are not touched.
    fn qp_dest_destroy(dest: *mut qp_dest as Later<Destination>) {
        dest.destroy(|_| Ok(()))
    }

    /// Makes a UD Queue Pair a member of a group: it receives what is sent there. It leaves all groups when it is destroyed.
    ///
    /// @param group  As for qp_dest_group().
    /// @return 0; EINVAL (QP_CODE_REFUSED): no group, or a member already; or what the device said.
    fn qp_pair_attach(pair: *mut qp_pair as Alone<Pair>, group: *const c_char as Text<'_>, lid: u16) {
        let gid = self::group(group.0)?;
        ud(&mut pair)?.attach(gid, lid)?;
        Ok(())
    }

    /// Ends a membership of a group.
    fn qp_pair_detach(pair: *mut qp_pair as Alone<Pair>, group: *const c_char as Text<'_>) {
        let gid = self::group(group.0)?;
        ud(&mut pair)?.detach(gid)?;
        Ok(())
    }
}
