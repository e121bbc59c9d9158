//! What an end for datagrams shall be like.

use std::time::Duration;

use rdma_qp::datagram::Options;
use rdma_qp::{PathMtu, QKey};

use crate::export::In;
use crate::fault::Fault;
use crate::pair::or;
use crate::values::{path, qp_path};

/// What an end shall be like. Set it to all zero first: 0 means the usual everywhere. `peers`, `receives`, `send_packets`,
/// `send_depth` and `max_message` decide how much memory it takes; nothing grows beyond that.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_datagrams_options {
    /// Most peers at a time; 0: 64.
    pub peers: u32,
    /// Receives that are posted, each of one MTU; 0: 2048. 4 or more serve any number of peers: half of them are room for those who send.
    pub receives: u32,
    /// Packets that wait to be sent or acknowledged, each of one MTU; 0: 1024; at most 1048576. One peer takes at most half of them.
    pub send_packets: u32,
    /// Sends that the device may have at a time, each of one MTU; 0: 128.
    pub send_depth: u32,
    /// Longest message that is received, in bytes; 0: 65536.
    pub max_message: u32,
    /// Longest packets, in bytes: 256, 512, 1024, 2048 or 4096; 0: the MTU of the port.
    pub mtu: u32,
    /// How long an acknowledgement may wait for a message to travel with, in microseconds; 0: 50.
    pub ack_delay_us: u32,
    /// When a packet is sent again as long as no round trip was measured, in microseconds; 0: 20000.
    pub first_timeout_us: u32,
    /// A packet is not sent again earlier, in microseconds; 0: 1000. Longer than a peer usually does something else.
    pub least_timeout_us: u32,
    /// A peer that was asked and says nothing for so many milliseconds is dead; 0: 2000.
    pub dead_after_ms: u32,
    /// A peer that nothing was heard of for so many milliseconds is asked; 0: 1000; UINT32_MAX: never.
    pub heartbeat_ms: u32,
    /// The Q_Key of the end, without which nothing gets in; 0: drawn. The card tells it to the peers.
    pub qkey: u32,
    /// How packets are marked on their way.
    pub path: qp_path,
    /// Must be 0.
    pub reserved: [u64; 2],
}

pub(super) fn options(given: Option<In<'_, qp_datagrams_options>>) -> Result<Options, Fault> {
    let mut options = Options::default();
    let Some(In(given)) = given else {
        return Ok(options);
    };
    if given.reserved != [0; 2] {
        let text = "reserved of struct qp_datagrams_options is not 0: set it to all zero first";
        return Err(Fault::range(text));
    }
    if given.mtu != 0 {
        let mtu = PathMtu::from_bytes(given.mtu).ok_or_else(|| {
            let mtu = given.mtu;
            let text = format!("mtu is {mtu}, but must be 256, 512, 1024, 2048 or 4096");
            Fault::range(text)
        });
        options.mtu = Some(mtu?);
    }
    options.peers = or(given.peers, options.peers);
    options.receives = or(given.receives, options.receives);
    options.send_packets = or(given.send_packets, options.send_packets);
    options.send_depth = or(given.send_depth, options.send_depth);
    options.max_message = or(given.max_message, options.max_message);
    let time = |given: u32, unit: fn(u64) -> Duration, usual| match given {
        0 => usual,
        given => unit(given.into()),
    };
    let (us, ms) = (Duration::from_micros, Duration::from_millis);
    options.ack_delay = time(given.ack_delay_us, us, options.ack_delay);
    options.first_timeout = time(given.first_timeout_us, us, options.first_timeout);
    options.least_timeout = time(given.least_timeout_us, us, options.least_timeout);
    options.dead_after = time(given.dead_after_ms, ms, options.dead_after);
    options.heartbeat = match given.heartbeat_ms {
        0 => options.heartbeat,
        u32::MAX => None,
        given => Some(ms(given.into())),
    };
    options.path = path(Some(In(&given.path)))?;
    if given.qkey != 0 {
        options.qkey = Some(QKey::new(given.qkey)?);
    }
    Ok(options)
}
