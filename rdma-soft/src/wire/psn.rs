//! Packet sequence numbers.

use std::fmt;

/// A packet sequence number: 24 bits that wrap.
///
/// It has neither an order nor a subtraction, because both lie at the wrap: ask for the
/// [`distance`](Psn::distance) instead.
///
/// ```
/// use rdma_soft::wire::Psn;
///
/// let last = Psn::new(0xff_ffff);
/// assert_eq!(last.next(), Psn::new(0));
/// assert_eq!(Psn::distance(last, Psn::new(4)), 5);
/// assert_eq!(Psn::distance(Psn::new(4), last), -5);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;

    /// The sequence number in the low 24 bits of `value`; the others are dropped.
    pub const fn new(value: u32) -> Psn {
        Psn(value & Psn::MASK)
    }

    /// The number, in `0..2^24`.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number that follows.
    #[must_use]
    pub const fn next(self) -> Psn {
        self.plus(1)
    }

    /// The number `n` packets later, modulo 2^24.
    #[must_use]
    pub const fn plus(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }

    /// The number `n` packets earlier, modulo 2^24.
    #[must_use]
    pub const fn minus(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// Packets from `from` to `to`, in `-2^23..2^23`: positive if `to` is later.
    ///
    /// Numbers exactly half the space apart count as 2^23 earlier, whichever way one asks.
    pub const fn distance(from: Psn, to: Psn) -> i32 {
        // The difference of the two, moved to the top 24 bits, has its sign in bit 31.
        ((to.0.wrapping_sub(from.0) << 8) as i32) >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
