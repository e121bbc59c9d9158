//! Values with units: what the attributes of a QP mean, instead of bare integers.

use std::fmt;
use std::time::Duration;

use rdma_core_sys::rules;
use serde::{Deserialize, Serialize};

use crate::rtt::Rtt;

/// A value is outside the range that its field can carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, but must be in {min}..={max}{note}")]
pub struct OutOfRange {
    /// Name of the field, as verbs spells it.
    pub field: &'static str,
    /// The value that was given.
    pub value: u64,
    /// Smallest value allowed.
    pub min: u64,
    /// Largest value allowed.
    pub max: u64,
    /// A further remark, to be put behind the rest; or empty.
    pub note: &'static str,
}

/// `value`, unless it is above `max`.
pub(crate) fn in_range(
    field: &'static str,
    value: u64,
    max: u64,
    note: &'static str,
) -> Result<(), OutOfRange> {
    if value <= max {
        Ok(())
    } else {
        Err(OutOfRange {
            field,
            value,
            min: 0,
            max,
            note,
        })
    }
}

/// Fills `bytes` from the operating system's random source.
pub(crate) fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// A packet sequence number: 24 bits.
///
/// The verbs core silently masks larger values; here they cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Psn(u32);

impl TryFrom<u32> for Psn {
    type Error = OutOfRange;

    fn try_from(value: u32) -> Result<Psn, OutOfRange> {
        Psn::new(value)
    }
}

impl From<Psn> for u32 {
    fn from(psn: Psn) -> u32 {
        psn.0
    }
}

impl Psn {
    /// Largest PSN.
    pub const MAX: Psn = Psn(0x00ff_ffff);

    /// A PSN from its value.
    ///
    /// # Errors
    /// `value` does not fit in 24 bits.
    pub fn new(value: u32) -> Result<Psn, OutOfRange> {
        in_range("psn", value.into(), Psn::MAX.0.into(), " (24 bits)")?;
        Ok(Psn(value))
    }

    /// An unpredictable PSN from the operating system's random source, so that packets of a former connection do not
    /// fall into the window of a new one.
    ///
    /// # Errors
    /// The system has no random bytes to give.
    pub fn random() -> std::io::Result<Psn> {
        let mut bytes = [0u8; 4];
        random(&mut bytes)?;
        Ok(Psn(u32::from_ne_bytes(bytes) & Psn::MAX.0))
    }

    /// The value, 0 to 2^24 - 1.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// How often a request is repeated after a missing acknowledgement: 0..=7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryCount(u8);

impl RetryCount {
    /// The largest count, 7. The kernel's rxe takes it for ever (`rxe_comp.c`, `rxe_completer`): there a dead peer is an
    /// error with 6 or less only.
    pub const MAX: RetryCount = RetryCount(7);

    /// A count from its value.
    ///
    /// # Errors
    /// `value` is above 7: the field is three bits wide.
    pub fn new(value: u8) -> Result<RetryCount, OutOfRange> {
        in_range("retry_cnt", value.into(), 7, " (three bits)")?;
        Ok(RetryCount(value))
    }

    /// The value, 0..=7.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// How often a request is repeated after the peer said that it had no receive posted: a number of times, or for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrRetry(u8);

impl RnrRetry {
    /// Repeat without limit (code 7).
    pub const FOREVER: RnrRetry = RnrRetry(7);

    /// Repeat up to `count` times, 0..=6. With 0 one late receive ends the connection.
    ///
    /// # Errors
    /// `count` is above 6; without limit is [`RnrRetry::FOREVER`].
    pub fn times(count: u8) -> Result<RnrRetry, OutOfRange> {
        in_range(
            "rnr_retry",
            count.into(),
            6,
            " (7 means for ever: RnrRetry::FOREVER)",
        )?;
        Ok(RnrRetry(count))
    }

    /// A number of repetitions from its code: 0..=6 are that many, 7 is [`RnrRetry::FOREVER`].
    ///
    /// # Errors
    /// `code` is above 7.
    pub fn from_code(code: u8) -> Result<RnrRetry, OutOfRange> {
        in_range("rnr_retry", code.into(), 7, " (three bits)")?;
        Ok(RnrRetry(code))
    }

    /// The code, 0..=7.
    pub fn code(self) -> u8 {
        self.0
    }
}

impl fmt::Display for RnrRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 7 {
            f.write_str("for ever")
        } else {
            write!(f, "{} times", self.0)
        }
    }
}

/// How long the peer is asked to wait before it repeats a request that found no receive posted (`min_rnr_timer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The shortest timer that lasts at least `interval`; the longest there is (655.36 ms) for anything above that.
    ///
    /// ```
    /// use rdma_qp::RnrTimer;
    /// use std::time::Duration;
    /// assert_eq!(RnrTimer::at_least(Duration::from_micros(600)).code(), 12); // 0.64 ms
    /// assert_eq!(RnrTimer::at_least(Duration::from_secs(1)).code(), 0);      // 655.36 ms
    /// ```
    pub fn at_least(interval: Duration) -> RnrTimer {
        let code = (1..32u8).find(|&code| RnrTimer(code).interval() >= interval);
        RnrTimer(code.unwrap_or(0))
    }

    /// A timer from its code, 0..=31. Code 0 means 655.36 ms, not zero.
    ///
    /// # Errors
    /// `code` is above 31.
    pub fn from_code(code: u8) -> Result<RnrTimer, OutOfRange> {
        in_range("min_rnr_timer", code.into(), 31, " (five bits)")?;
        Ok(RnrTimer(code))
    }

    /// The code, 0..=31.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The interval that the code stands for.
    pub fn interval(self) -> Duration {
        rules::rnr_timer(self.0)
    }
}

/// How long to wait for an acknowledgement before repeating: 4.096 us x 2^code, or for ever.
///
/// Devices may take up to four times as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// Never give up (code 0): a dead peer then stays unnoticed.
    pub const INFINITE: AckTimeout = AckTimeout(0);

    /// A timeout from its code: 0 is [`AckTimeout::INFINITE`], 1..=31 stand for 4.096 us x 2^code.
    ///
    /// # Errors
    /// `code` is above 31.
    pub fn from_code(code: u8) -> Result<AckTimeout, OutOfRange> {
        in_range("timeout", code.into(), 31, " (five bits, an exponent)")?;
        Ok(AckTimeout(code))
    }

    /// The shortest timeout that lasts at least `interval`; the longest there is (about 2.4 hours) above that.
    pub fn at_least(interval: Duration) -> AckTimeout {
        let code =
            (1..31u8).find(|&code| AckTimeout(code).interval().is_some_and(|t| t >= interval));
        AckTimeout(code.unwrap_or(31))
    }

    /// The code, 0..=31.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The interval; `None` for ever.
    pub fn interval(self) -> Option<Duration> {
        rules::ack_timeout(self.0)
    }
}

impl fmt::Display for AckTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.interval() {
            None => write!(f, "{} (for ever)", self.0),
            Some(interval) => write!(f, "{} ({interval:?})", self.0),
        }
    }
}

/// The largest payload of one packet on a path. The code that verbs uses and the number of bytes cannot be confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl PathMtu {
    /// All MTUs, smallest first.
    pub const ALL: [PathMtu; 5] = [
        PathMtu::Mtu256,
        PathMtu::Mtu512,
        PathMtu::Mtu1024,
        PathMtu::Mtu2048,
        PathMtu::Mtu4096,
    ];

    /// The MTU of that many bytes: 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Option<PathMtu> {
        PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The MTU of a verbs code (`enum ibv_mtu`, 1..=5).
    pub fn from_code(code: u32) -> Option<PathMtu> {
        PathMtu::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// Its size in bytes.
    pub fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// Its code in `enum ibv_mtu`.
    pub fn code(self) -> u32 {
        self as u32 + 1
    }
}

/// The number of bytes.
impl From<PathMtu> for u32 {
    fn from(mtu: PathMtu) -> u32 {
        mtu.bytes()
    }
}

/// From a number of bytes.
impl TryFrom<u32> for PathMtu {
    type Error = OutOfRange;

    fn try_from(bytes: u32) -> Result<PathMtu, OutOfRange> {
        PathMtu::from_bytes(bytes).ok_or(OutOfRange {
            field: "MTU",
            value: bytes.into(),
            min: 256,
            max: 4096,
            note: ", and a power of two",
        })
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

/// When to repeat, and when to give up.
///
/// ```
/// use rdma_qp::Timing;
/// use std::time::Duration;
/// // The default finds a dead peer in about half a second.
/// assert!(Timing::default().budget().unwrap() < Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// Repetitions after a missing acknowledgement.
    pub retry_cnt: RetryCount,
    /// Repetitions after the peer said that it had no receive.
    pub rnr_retry: RnrRetry,
    /// How long the peer is asked to wait when this side has no receive.
    pub min_rnr_timer: RnrTimer,
}

impl Default for Timing {
    /// Timeout code 14 (67 ms) and 6 repetitions, so a dead peer is an error after about (6 + 1) x 67 ms = 0.47 s;
    /// RNR repetitions without limit, 0.64 ms apart.
    ///
    /// Not 7 repetitions: the kernel's rxe repeats for ever then (`rxe_comp.c`, `rxe_completer`), and would never
    /// report a dead peer.
    fn default() -> Timing {
        Timing {
            timeout: AckTimeout(14),
            retry_cnt: RetryCount(6),
            rnr_retry: RnrRetry::FOREVER,
            min_rnr_timer: RnrTimer(12),
        }
    }
}

impl Timing {
    /// Timing for a measured round trip. The acknowledgement is awaited for the longest of three times, so that jitter does
    /// not look like loss:
    ///
    /// * 16 of the shortest round trip,
    /// * 4 of what nine of ten round trips stay within,
    /// * 16.8 ms (code 12), which the software of a busy peer may take by itself.
    ///
    /// Up to a round trip of 8 ms the budget stays below 2 s. Why so much: with a round trip of 0.5 ms, timeout code 8
    /// (1.05 ms) looks like enough, and requests end in `IBV_WC_RETRY_EXC_ERR` as soon as the peer is a little slow, while
    /// every state is right; code 14 (67 ms) cured it. The price of a long timeout is only paid for a packet that is lost
    /// at the end of a burst, and for a dead peer.
    ///
    /// ```
    /// use rdma_qp::Timing;
    /// use std::time::Duration;
    /// let timing = Timing::from_rtt(Duration::from_micros(500));
    /// assert_eq!(timing.timeout.code(), 12); // 16.8 ms
    /// ```
    pub fn from_rtt(rtt: impl Into<Rtt>) -> Timing {
        let rtt = rtt.into();
        let wanted = rtt.min.saturating_mul(16).max(rtt.p90.saturating_mul(4));
        Timing {
            timeout: AckTimeout(AckTimeout::at_least(wanted).0.max(12)),
            ..Timing::default()
        }
    }

    /// How long a dead peer may stay unnoticed by a side that has requests under way:
    /// (retry_cnt + 1) x 4.096 us x 2^timeout, of which devices may take up to four times as much. `None`: for ever.
    pub fn budget(&self) -> Option<Duration> {
        Some(self.timeout.interval()? * (u32::from(self.retry_cnt.0) + 1))
    }
}

#[cfg(test)]
mod tests;
