//! The structs of the header that are values, and what the safe layer has for them.

use std::time::Duration;

use rdma_qp::{
    AckTimeout, Deadline, PathOptions, RemoteAddr, RemoteRegion, RetryCount, RnrRetry, RnrTimer,
    Rtt, Timing,
};

use crate::export::{In, Out, export};
use crate::fault::Fault;

/// When to repeat, and when to give up. Where a function takes one, NULL means what qp_timing_default() gives.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_timing {
    /// Wait for an acknowledgement: 4.096 us x 2^timeout, 1..31; 0 waits for ever. Devices may take up to four times as long.
    pub timeout: u8,
    /// Repetitions after a missing acknowledgement, 0..7.
    pub retry_cnt: u8,
    /// Repetitions after the peer said that it had no receive, 0..6; 7 repeats for ever.
    pub rnr_retry: u8,
    /// How long the peer is asked to wait when this side has no receive: a code, 0..31; 0 is the longest, 655.36 ms.
    pub min_rnr_timer: u8,
}

impl From<Timing> for qp_timing {
    fn from(timing: Timing) -> qp_timing {
        qp_timing {
            timeout: timing.timeout.code(),
            retry_cnt: timing.retry_cnt.get(),
            rnr_retry: timing.rnr_retry.code(),
            min_rnr_timer: timing.min_rnr_timer.code(),
        }
    }
}

/// The timing that C gave, or the usual one.
pub(crate) fn timing(given: Option<In<'_, qp_timing>>) -> Result<Timing, Fault> {
    let Some(In(given)) = given else {
        return Ok(Timing::default());
    };
    Ok(Timing {
        timeout: AckTimeout::from_code(given.timeout)?,
        retry_cnt: RetryCount::new(given.retry_cnt)?,
        rnr_retry: RnrRetry::from_code(given.rnr_retry)?,
        min_rnr_timer: RnrTimer::from_code(given.min_rnr_timer)?,
    })
}

/// How packets of one end are marked on their way. Where a function takes one, NULL means all zero, which is the usual.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_path {
    /// Traffic class; on RoCE v2 the DSCP in the upper six bits and ECN in the lower two.
    pub traffic_class: u8,
    /// Service level, 0..15; on RoCE the priority of the VLAN tag.
    pub service_level: u8,
    /// Routers that a packet may pass, plus one; 0 means 64.
    pub hop_limit: u8,
    /// Must be 0.
    pub reserved: u8,
    /// Place of the partition key in the port's table; on RoCE 0.
    pub pkey_index: u16,
    /// Must be 0.
    pub reserved2: u16,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// The options that C gave, or the usual ones.
pub(crate) fn path(given: Option<In<'_, qp_path>>) -> Result<PathOptions, Fault> {
    let usual = PathOptions::default();
    let Some(In(given)) = given else {
        return Ok(usual);
    };
    if given.reserved != 0 || given.reserved2 != 0 {
        return Err(Fault::range(
            "a reserved field of struct qp_path is not 0: set it to all zero first",
        ));
    }
    Ok(PathOptions {
        traffic_class: given.traffic_class,
        service_level: given.service_level,
        flow_label: given.flow_label,
        hop_limit: match given.hop_limit {
            0 => usual.hop_limit,
            limit => limit,
        },
        pkey_index: given.pkey_index,
    })
}

/// A memory region as a peer names it. It is what the peer told: nothing of it is checked before the peer's device does.
#[repr(C)]
#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
pub struct qp_region {
    /// Address of its first byte, in the peer's process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its remote key.
    pub rkey: u32,
    /// Must be 0.
    pub reserved: u32,
}

impl From<RemoteRegion> for qp_region {
    fn from(region: RemoteRegion) -> qp_region {
        let RemoteRegion { addr, len, rkey } = region;
        qp_region {
            addr,
            len,
            rkey,
            reserved: 0,
        }
    }
}

impl qp_region {
    pub(crate) fn region(&self) -> RemoteRegion {
        let qp_region {
            addr, len, rkey, ..
        } = *self;
        RemoteRegion { addr, len, rkey }
    }

    /// The place `offset` bytes into it.
    #[inline(always)]
    pub(crate) fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
            room: self.len.saturating_sub(offset),
        }
    }
}

/// Length of the number of bytes in front of a card.
const HEAD: usize = 2;

/// A card as C hands it around: its length, its bytes, zeros. `None`: it is too long.
pub(crate) fn framed<const N: usize>(card: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let (head, body) = bytes.split_at_mut(HEAD);
    head.copy_from_slice(&u16::try_from(card.len()).ok()?.to_be_bytes());
    body.get_mut(..card.len())?.copy_from_slice(card);
    Some(bytes)
}

/// The card in what C handed around. `None`: there is none.
pub(crate) fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    let (head, body) = bytes.split_first_chunk::<HEAD>()?;
    body.get(..u16::from_be_bytes(*head).into())
}

/// A deadline from milliseconds; below 0 there is none.
pub(crate) fn deadline(timeout_ms: i64) -> Deadline {
    match u64::try_from(timeout_ms) {
        Ok(ms) => Deadline::from(Duration::from_millis(ms)),
        Err(_) => Deadline::NEVER,
    }
}

/// A limit for each step of an exchange, from milliseconds; below 0 a very long one.
pub(crate) fn limit(timeout_ms: i64) -> Duration {
    // Ten years: longer than any process, and no trouble for clocks.
    let most = 10 * 365 * 24 * 3600 * 1000;
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(most).min(most))
}

export! {
    /// Gives the usual timing: timeout 14 (67 ms) and 6 repetitions, so that a dead peer is an error after about half a
    /// second; RNR repetitions without limit, 0.64 ms apart.
    fn qp_timing_default(timing: *mut qp_timing as Out<'_, qp_timing>) {
        timing.set(Timing::default().into());
        Ok(())
    }

    /// Gives the timing for a measured round trip: long enough that jitter does not look like loss, and the usual
    /// otherwise.
    ///
    /// @param rtt_ns  The round trip in nanoseconds.
    fn qp_timing_from_rtt(rtt_ns: u64, timing: *mut qp_timing as Out<'_, qp_timing>) {
        timing.set(Timing::from_rtt(Rtt::from(Duration::from_nanos(rtt_ns))).into());
        Ok(())
    }
}
