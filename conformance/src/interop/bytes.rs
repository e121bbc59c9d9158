//! What messages hold, and where.

use super::case::Shape;

/// Bytes come from here ...
pub(super) const SOURCE: usize = 64;
/// ... and go there. Atomics work on its first 8 bytes, and leave what was there at `SOURCE`.
pub(super) const TARGET: usize = (2 << 20) + 64;
/// Where the second member of a group receives.
pub(super) const SECOND: usize = (3 << 20) + (1 << 19);
/// Where the global route headers of datagrams go, one behind the other.
pub(super) const GRHS: usize = SECOND + (1 << 18);
/// The size of the buffer.
pub(super) const BUFFER: usize = 4 << 20;
/// What lies around a target must stay as it is.
pub(super) const GUARD: usize = 64;
/// What a target holds before.
pub(super) const UNTOUCHED: u8 = 0xee;

/// The immediate data of a message.
pub(super) fn immediate(number: u32, at: usize) -> u32 {
    0x8001_0000 | number << 8 | at as u32
}

/// The parts of a message, in pieces by these weights.
pub(super) fn parts(
    start: usize,
    len: usize,
    shape: Shape,
    weights: [usize; 3],
) -> Vec<(usize, usize)> {
    match shape {
        _ if len == 0 => vec![],
        Shape::Plain | Shape::Inline => vec![(start, len)],
        Shape::Pieces => {
            let all: usize = weights.iter().sum();
            let (first, second) = (len * weights[0] / all, len * weights[1] / all);
            vec![
                (start, first),
                (start + first, second),
                (start + first + second, len - first - second),
            ]
        }
    }
}

/// The bytes of a case: no part of them looks like another part, or like another case.
pub(super) fn pattern(number: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(number) + 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // A linear congruential generator (Knuth, MMIX); its upper half is good enough for this.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 32).to_ne_bytes()[..4]);
    }
    bytes.truncate(len);
    bytes
}

/// The value of the first 8 bytes, 0 where there are others.
pub(super) fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

/// Says where two strings of bytes differ.
pub(super) fn same(found: &[u8], wanted: &[u8]) -> Result<(), String> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => {
            let wrong = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
            Err(format!(
                "{wrong} bytes are wrong, the first at {at} of {}",
                wanted.len()
            ))
        }
    }
}
