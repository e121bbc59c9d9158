//! Numbers that need not be secret, only different at each end.

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    /// Numbers out of a seed.
    pub(crate) fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
