//! What the layer shall be like.

use std::time::Duration;

use super::DatagramError;
use super::pool::part;
use super::slots::MOST;
use crate::qkey::QKey;
use crate::qp::PathOptions;
use crate::units::PathMtu;

/// What an end shall be like. `peers`, `receives`, `send_packets`, `send_depth` and `max_message` decide how much memory it takes;
/// nothing grows beyond that.
#[derive(Clone, Debug)]
pub struct Options {
    /// Most peers at a time; 64 if not set.
    pub peers: u32,
    /// Receives that are posted; 2048 if not set, each of one MTU and 40 bytes. Half of them are a pool for messages: who sends
    /// is given room out of it, each of those who send at present the same part, and who is silent for 200 ms has none of it. The
    /// other half is for acknowledgements, for what comes twice, and for the one packet that every peer may send without having
    /// been given room. So with four receives for each peer that may send at the same time, all that is sent finds one while the end
    /// is polled; with less it works, too: what finds none is lost, and repeated.
    pub receives: u32,
    /// Packets that wait to be sent, or were sent and are not acknowledged; 1024 if not set, each of one MTU, and at most 2^20.
    /// One peer takes at most half of them, so that one that is stalled leaves room for the others.
    pub send_packets: u32,
    /// Sends that the device may have at a time; 128 if not set, each with a buffer of one MTU.
    pub send_depth: u32,
    /// Longest message that is received, in bytes; 65536 if not set. The peer is told, in the [card](super::Datagrams::card).
    pub max_message: u32,
    /// Longest datagrams that are sent and received; the MTU of the port if not set. With less, the same number of packets takes
    /// less memory, and long messages take more packets.
    pub mtu: Option<PathMtu>,
    /// How long an acknowledgement may wait for a message to travel with, or for others to speak for; 50 us if not set.
    pub ack_delay: Duration,
    /// When a packet is sent again, as long as no round trip was measured; 20 ms if not set.
    pub first_timeout: Duration,
    /// A packet is not sent again earlier, however short round trips are; 1 ms if not set. A peer answers when it polls, so this
    /// should be longer than it usually does something else.
    pub least_timeout: Duration,
    /// A peer that was asked and says nothing for so long is dead; 2 s if not set. Longer than a peer that lives may do
    /// something else than poll.
    pub dead_after: Duration,
    /// A peer of which nothing was heard for so long is asked; 1 s if not set. `None`: who sends nothing to a peer is not told
    /// of its death; and one that dies while a packet of it is missing, and others that it sent later are there, keeps the receives
    /// in which those are, and its place in the pool with them, until it is removed, moved, or begins anew.
    pub heartbeat: Option<Duration>,
    /// Options of the paths to the peers.
    pub path: PathOptions,
    /// The Q_Key of the end, without which nothing gets in; drawn if not set. Each peer is told, in the card.
    pub qkey: Option<QKey>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            peers: 64,
            receives: 2048,
            send_packets: 1024,
            send_depth: 128,
            max_message: 65536,
            mtu: None,
            ack_delay: Duration::from_micros(50),
            first_timeout: Duration::from_millis(20),
            least_timeout: Duration::from_millis(1),
            dead_after: Duration::from_secs(2),
            heartbeat: Some(Duration::from_secs(1)),
            path: PathOptions::default(),
            qkey: None,
        }
    }
}

impl Options {
    /// Packets that one peer may have under way to this end while all the others send, too: its part of half the receives, at
    /// least 1, and at most 65, because an acknowledgement names no more. While others are silent it may have more.
    ///
    /// ```
    /// use rdma_qp::datagram::Options;
    /// assert_eq!(Options::default().window(), 16);
    /// let few = Options { peers: 4, ..Options::default() };
    /// assert_eq!(few.window(), 65);
    /// ```
    pub fn window(&self) -> u32 {
        part(self.receives / 2, self.peers)
    }

    /// The longest time between two repetitions: so there are several before a peer counts as dead.
    pub(super) fn most_timeout(&self) -> Duration {
        self.dead_after / 8
    }

    /// Within which time the death of a peer is noticed, once there was something of it, while this end is polled:
    /// `dead_after`, and before that the heartbeat, or the time of one repetition. `None`: without heartbeat the death of a
    /// peer to which nothing is sent is not noticed.
    ///
    /// ```
    /// use rdma_qp::datagram::Options;
    /// use std::time::Duration;
    /// assert_eq!(Options::default().notices_within(), Some(Duration::from_secs(3)));
    /// ```
    pub fn notices_within(&self) -> Option<Duration> {
        let asks = self.heartbeat?.max(self.most_timeout());
        Some(asks.saturating_add(self.dead_after))
    }

    /// Packets that a message takes, with parts of `payload` bytes.
    pub(super) fn packets(len: usize, payload: usize) -> usize {
        len.div_ceil(payload).max(1)
    }

    /// Looks whether all this can be; `payload` is how much of a message a packet holds.
    pub(super) fn check(&self, payload: usize) -> Result<(), DatagramError> {
        let refuse = |option, value: u64, cure| {
            Err(DatagramError::Option {
                option,
                value,
                cure,
            })
        };
        if self.peers == 0 {
            return refuse("peers", 0, "give at least 1".to_owned());
        }
        if self.receives < 4 {
            let cure =
                "give at least 4, and rather 4 for each peer that sends at a time".to_owned();
            return refuse("receives", self.receives.into(), cure);
        }
        if self.send_depth < 16 {
            let cure = "give at least 16".to_owned();
            return refuse("send_depth", self.send_depth.into(), cure);
        }
        if self.send_packets < 2 {
            let cure = "give at least 2".to_owned();
            return refuse("send_packets", self.send_packets.into(), cure);
        }
        if self.send_packets > MOST {
            let cure = format!("give at most {MOST}");
            return refuse("send_packets", self.send_packets.into(), cure);
        }
        let (dead, least) = (self.dead_after, Duration::from_micros(8));
        if dead < least {
            let cure = format!("give at least {least:?}, and rather a second");
            return refuse("dead_after, in ns,", dead.as_nanos() as u64, cure);
        }
        let packets = Options::packets(self.max_message as usize, payload);
        if packets > i32::MAX as usize {
            return refuse(
                "max_message",
                self.max_message.into(),
                "give less".to_owned(),
            );
        }
        Ok(())
    }
}
