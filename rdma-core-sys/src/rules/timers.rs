//! The codes of the two timers of a QP, as times (ibv_modify_qp(3): `timeout`, `min_rnr_timer`).

use std::time::Duration;

/// How long a requester waits for an acknowledgement: 4.096 us x 2^`code`. `None` for code 0, which means for ever.
///
/// The code has 5 bits; higher ones are not looked at.
///
/// ```
/// use rdma_core_sys::rules::ack_timeout;
/// use std::time::Duration;
///
/// assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
/// assert_eq!(ack_timeout(0), None);
/// ```
#[must_use]
pub const fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 31 {
        0 => None,
        code => Some(Duration::from_nanos(4096 << code)),
    }
}

/// How long a peer waits after an RNR NAK with this code. Code 0 is the longest, 655.36 ms.
///
/// The code has 5 bits; higher ones are not looked at.
///
/// ```
/// use rdma_core_sys::rules::rnr_timer;
/// use std::time::Duration;
///
/// assert_eq!(rnr_timer(12), Duration::from_micros(640));
/// assert_eq!(rnr_timer(0), Duration::from_micros(655_360));
/// ```
#[must_use]
pub const fn rnr_timer(code: u8) -> Duration {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10 * HUNDREDTHS_OF_MS[(code & 31) as usize])
}
