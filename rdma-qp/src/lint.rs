//! Settings that are legal and do harm.
//!
//! Nothing here is refused by a device: the QP reaches RTS, every state is right, and then it crawls, hangs or dies. [`check`]
//! looks at what is known of a QP and says which of its settings do that, what happens, and what to set. It is a pure
//! function: [`Qp::lint`](crate::Qp::lint) fills in the settings of a live QP, [`Dump::settings`](crate::Dump::settings)
//! those of a dump, and connecting tells `tracing` what it finds.
//!
//! | code | what | what happens |
//! |---|---|---|
//! | `timeout-short` | timeout below 4 round trips | a slow answer counts as loss: repetitions, then `IBV_WC_RETRY_EXC_ERR` |
//! | `timeout-infinite` | timeout code 0 | a dead peer is never noticed |
//! | `retry-cnt-zero` | retry_cnt 0 | one lost packet ends the connection |
//! | `rnr-retry-zero` | rnr_retry 0 | one message that finds no receive at the peer ends the connection |
//! | `rnr-timer-longest` | min_rnr_timer code 0 | it is not zero: each late receive costs 655.36 ms |
//! | `depth-one` | a queue of depth 1 | one request at a time: throughput of one message per round trip |
//! | `hop-limit` | hop limit 0 or 1 | no router forwards it: works in the rack, fails across racks |
//! | `port-down` | port not active | nothing leaves; requests end in `IBV_WC_RETRY_EXC_ERR` |
//! | `mtu-over-interface` | path MTU that the network interface does not carry | short messages pass, long ones vanish |
//! | `paths-differ` | the two ends send in different classes | answers of the peer travel with less priority than requests, or more |

use std::fmt;
use std::time::Duration;

use rdma_core_sys::rules::{self, Transport};
use rdma_core_sys::{
    IBV_PORT_ACTIVE, IBV_QP_MIN_RNR_TIMER, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, ibv_port_state,
};

use crate::endpoint::Endpoint;
use crate::rtt::Rtt;
use crate::units::{AckTimeout, PathMtu, RetryCount, RnrRetry, RnrTimer, Timing};
use crate::wr_id::QueueKind;

/// What is known of a QP. What is `None` is not looked at: it is not known, or not set yet, or the transport has no such
/// thing.
///
/// ```
/// use rdma_qp::AckTimeout;
/// use rdma_qp::lint::{Settings, check};
/// use std::time::Duration;
/// let settings = Settings {
///     timeout: Some(AckTimeout::from_code(8)?),
///     rtt: Some(Duration::from_micros(500).into()),
///     ..Settings::default()
/// };
/// let found = check(&settings);
/// assert_eq!(found[0].code(), "timeout-short");
/// assert!(found[0].to_string().contains("set timeout to 12"));
/// # Ok::<(), rdma_qp::OutOfRange>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Wait for an acknowledgement.
    pub timeout: Option<AckTimeout>,
    /// Repetitions after a missing acknowledgement.
    pub retry_cnt: Option<RetryCount>,
    /// Repetitions after the peer said that it had no receive.
    pub rnr_retry: Option<RnrRetry>,
    /// How long the peer is asked to wait when this side has no receive.
    pub min_rnr_timer: Option<RnrTimer>,
    /// Path MTU of the QP.
    pub path_mtu: Option<PathMtu>,
    /// Hop limit of its packets.
    pub hop_limit: Option<u8>,
    /// Most sends outstanding.
    pub send_depth: Option<u32>,
    /// Most receives outstanding.
    pub recv_depth: Option<u32>,
    /// State of its port.
    pub port: Option<(u8, ibv_port_state)>,
    /// MTU of the network interface behind its GID, in bytes, and whether the GID is an IPv4 address.
    pub interface: Option<(u32, bool)>,
    /// What this end and the peer told each other.
    pub ends: Option<(Endpoint, Endpoint)>,
    /// The round trip to the peer, if it was measured.
    pub rtt: Option<Rtt>,
}

impl Settings {
    /// What is known when `timing` is set on a QP of that transport: those of its values that the transport has.
    pub fn of(transport: Transport, timing: Timing) -> Settings {
        let has = |from, to, bit| {
            rules::required(transport, from, to).is_some_and(|required| required.contains(bit))
        };
        let sends = |bit| has(IBV_QPS_RTR, IBV_QPS_RTS, bit);
        let receives = |bit| has(IBV_QPS_INIT, IBV_QPS_RTR, bit);
        Settings {
            timeout: sends(IBV_QP_TIMEOUT).then_some(timing.timeout),
            retry_cnt: sends(IBV_QP_RETRY_CNT).then_some(timing.retry_cnt),
            rnr_retry: sends(IBV_QP_RNR_RETRY).then_some(timing.rnr_retry),
            min_rnr_timer: receives(IBV_QP_MIN_RNR_TIMER).then_some(timing.min_rnr_timer),
            ..Settings::default()
        }
    }
}

/// A setting that is legal and does harm.
///
/// `Display` says what it is, what happens, and what to set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The timeout is shorter than four round trips.
    TimeoutShort {
        /// What is set.
        timeout: AckTimeout,
        /// The round trip that nine of ten stay within.
        rtt: Duration,
        /// What to set.
        better: AckTimeout,
    },
    /// The timeout is for ever.
    TimeoutInfinite,
    /// Nothing is repeated after a loss.
    RetryCntZero,
    /// Nothing is repeated when the peer had no receive.
    RnrRetryZero,
    /// The code 0, which is the longest timer and not none.
    RnrTimerLongest,
    /// A queue holds one request.
    DepthOne {
        /// The queue.
        queue: QueueKind,
    },
    /// The hop limit lets packets pass no router.
    HopLimit {
        /// What is set.
        hop_limit: u8,
    },
    /// The port is not active.
    PortDown {
        /// The port.
        port: u8,
        /// Its state.
        state: ibv_port_state,
    },
    /// Packets of the path MTU do not fit the network interface.
    MtuOverInterface {
        /// What is set.
        path_mtu: PathMtu,
        /// MTU of the interface, in bytes.
        interface: u32,
        /// What the interface must carry, in bytes.
        needed: u32,
    },
    /// The two ends send with different service levels or traffic classes.
    PathsDiffer {
        /// What differs, as verbs spells it.
        field: &'static str,
        /// Value of this end.
        here: u8,
        /// Value of the peer.
        there: u8,
    },
}

impl Finding {
    /// A name that never changes, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Finding::TimeoutShort { .. } => "timeout-short",
            Finding::TimeoutInfinite => "timeout-infinite",
            Finding::RetryCntZero => "retry-cnt-zero",
            Finding::RnrRetryZero => "rnr-retry-zero",
            Finding::RnrTimerLongest => "rnr-timer-longest",
            Finding::DepthOne { .. } => "depth-one",
            Finding::HopLimit { .. } => "hop-limit",
            Finding::PortDown { .. } => "port-down",
            Finding::MtuOverInterface { .. } => "mtu-over-interface",
            Finding::PathsDiffer { .. } => "paths-differ",
        }
    }

    /// What follows from it.
    pub fn consequence(&self) -> &'static str {
        match self {
            Finding::TimeoutShort { .. } => {
                "an answer that is a little late counts as lost, and requests end in IBV_WC_RETRY_EXC_ERR on a good network"
            }
            Finding::TimeoutInfinite => "a dead peer is never noticed, and requests hang",
            Finding::RetryCntZero => {
                "one lost packet ends the connection with IBV_WC_RETRY_EXC_ERR"
            }
            Finding::RnrRetryZero => {
                "one message that finds no receive ends the connection with IBV_WC_RNR_RETRY_EXC_ERR"
            }
            Finding::RnrTimerLongest => {
                "it means 655.36 ms, not zero: each message of the peer that finds no receive waits that long"
            }
            Finding::DepthOne { .. } => {
                "the next request waits for the completion of the last: one message per round trip"
            }
            Finding::HopLimit { .. } => {
                "it becomes the TTL of the packets, so the first router drops them: a peer in the same subnet is reached, and \
                 one behind a router is not"
            }
            Finding::PortDown { .. } => {
                "nothing leaves it, and requests end in IBV_WC_RETRY_EXC_ERR"
            }
            Finding::MtuOverInterface { .. } => {
                "short messages pass, and those that fill a packet are dropped without a word"
            }
            Finding::PathsDiffer { .. } => {
                "acknowledgements and READ answers travel in another class than requests, which queues and PFC treat differently"
            }
        }
    }

    /// What to do.
    pub fn advice(&self) -> String {
        let usual = Timing::default();
        match self {
            Finding::TimeoutShort { better, .. } => format!("set timeout to {better}"),
            Finding::TimeoutInfinite => {
                format!(
                    "set timeout to {}, or derive it from the round trip",
                    usual.timeout
                )
            }
            Finding::RetryCntZero => format!("set retry_cnt to {}", usual.retry_cnt.get()),
            Finding::RnrRetryZero => "set rnr_retry to 7, which repeats without limit".to_owned(),
            Finding::RnrTimerLongest => {
                let timer = usual.min_rnr_timer;
                format!(
                    "set min_rnr_timer to {} ({:?})",
                    timer.code(),
                    timer.interval()
                )
            }
            Finding::DepthOne { .. } => {
                "make the queue as deep as messages fit into one round trip; 64 is a start"
                    .to_owned()
            }
            Finding::HopLimit { .. } => {
                format!(
                    "set hop_limit to {}",
                    crate::qp::PathOptions::default().hop_limit
                )
            }
            Finding::PortDown { port, .. } => {
                format!("bring the link of port {port} up, or use a GID of a port that is")
            }
            Finding::MtuOverInterface {
                path_mtu,
                needed,
                interface,
            } => {
                let overhead = needed - path_mtu.bytes();
                let fits = |mtu: &PathMtu| mtu.bytes() + overhead <= *interface;
                let cure =
                    format!("give the interfaces of both ends and all between an MTU of {needed}");
                match PathMtu::ALL.into_iter().rfind(fits) {
                    Some(mtu) => format!("{cure}, or set path_mtu to {}", mtu.bytes()),
                    None => cure,
                }
            }
            Finding::PathsDiffer { field, here, .. } => {
                format!("give both ends the same {field}, such as {here}")
            }
        }
    }
}

/// A measured time to three digits: more say nothing.
pub(crate) fn rounded(time: Duration) -> Duration {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let digits = ns.checked_ilog10().unwrap_or(0);
    let unit = 10u64.pow(digits.saturating_sub(2));
    Duration::from_nanos(ns.saturating_add(unit / 2) / unit * unit)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::TimeoutShort { timeout, rtt, .. } => {
                let rtt = rounded(*rtt);
                write!(f, "timeout {timeout} is below 4 round trips of {rtt:?}")?;
            }
            Finding::TimeoutInfinite => f.write_str("timeout 0 is for ever")?,
            Finding::RetryCntZero => f.write_str("retry_cnt is 0")?,
            Finding::RnrRetryZero => f.write_str("rnr_retry is 0")?,
            Finding::RnrTimerLongest => f.write_str("min_rnr_timer is 0")?,
            Finding::DepthOne { queue } => write!(f, "the {queue} holds 1 request")?,
            Finding::HopLimit { hop_limit } => write!(f, "hop_limit is {hop_limit}")?,
            Finding::PortDown { port, state } => {
                write!(
                    f,
                    "port {port} is {}",
                    state.name().unwrap_or("in an unknown state")
                )?;
            }
            Finding::MtuOverInterface {
                path_mtu,
                interface,
                needed,
            } => write!(
                f,
                "path_mtu {} makes packets of up to {needed} bytes, but the network interface carries {interface}",
                path_mtu.bytes()
            )?,
            Finding::PathsDiffer { field, here, there } => {
                write!(f, "{field} is {here} here and {there} at the peer")?;
            }
        }
        write!(f, ": {}; {}", self.consequence(), self.advice())
    }
}

/// Bytes of the longest packet beyond its payload, above Ethernet: UDP (8), BTH (12), RETH (16), immediate data (4), ICRC (4),
/// and an IPv4 (20) or IPv6 (40) header.
fn overhead(ipv4: bool) -> u32 {
    let ip = if ipv4 { 20 } else { 40 };
    ip + 8 + 12 + 16 + 4 + 4
}

/// Says which settings are legal and do harm, the worst first.
pub fn check(settings: &Settings) -> Vec<Finding> {
    let s = settings;
    let mut found = Vec::new();
    if let Some((port, state)) = s.port
        && state != IBV_PORT_ACTIVE
    {
        found.push(Finding::PortDown { port, state });
    }
    if let (Some(path_mtu), Some((interface, ipv4))) = (s.path_mtu, s.interface) {
        let needed = path_mtu.bytes() + overhead(ipv4);
        if interface < needed {
            found.push(Finding::MtuOverInterface {
                path_mtu,
                interface,
                needed,
            });
        }
    }
    match (s.timeout.map(|t| (t, t.interval())), s.rtt) {
        (Some((_, None)), _) => found.push(Finding::TimeoutInfinite),
        (Some((timeout, Some(interval))), Some(rtt)) if interval < rtt.p90.saturating_mul(4) => {
            found.push(Finding::TimeoutShort {
                timeout,
                rtt: rtt.p90,
                better: Timing::from_rtt(rtt).timeout,
            });
        }
        _ => {}
    }
    if s.retry_cnt.is_some_and(|count| count.get() == 0) {
        found.push(Finding::RetryCntZero);
    }
    if s.rnr_retry.is_some_and(|count| count.code() == 0) {
        found.push(Finding::RnrRetryZero);
    }
    if s.min_rnr_timer.is_some_and(|timer| timer.code() == 0) {
        found.push(Finding::RnrTimerLongest);
    }
    if let Some(hop_limit @ 0..=1) = s.hop_limit {
        found.push(Finding::HopLimit { hop_limit });
    }
    let depths = [
        (QueueKind::Send, s.send_depth),
        (QueueKind::Recv, s.recv_depth),
    ];
    for (queue, depth) in depths {
        if depth == Some(1) {
            found.push(Finding::DepthOne { queue });
        }
    }
    if let Some((here, there)) = &s.ends {
        let pairs = [
            ("service_level", here.service_level, there.service_level),
            ("traffic_class", here.traffic_class, there.traffic_class),
        ];
        for (field, here, there) in pairs {
            if here != there {
                found.push(Finding::PathsDiffer { field, here, there });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
