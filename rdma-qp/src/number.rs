//! Hashing of numbers that nobody chooses to harm: of QPs, and of requests.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps by numbers that the device or the library gives.
pub(crate) type NumberHasher = BuildHasherDefault<Spread>;

/// Spreads a number over all bits by one multiplication.
#[derive(Default)]
pub(crate) struct Spread(u64);

/// 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(FACTOR);
        // The map takes its buckets from the low bits.
        self.0 = mixed ^ mixed >> 32;
    }
}
