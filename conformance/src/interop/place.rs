//! Where the bytes of messages are.

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
