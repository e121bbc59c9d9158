//! The bytes of packets that may have to be sent again: one block of memory, in pieces of one size.

use super::DatagramError;

/// Most slots that there may be: their names are kept in memory, too, whether they are used or not.
pub(super) const MOST: u32 = 1 << 20;

#[derive(Debug)]
pub(super) struct Slots {
    bytes: Vec<u8>,
    size: usize,
    free: Vec<u32>,
}

impl Slots {
    /// `count` slots of `size` bytes each.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(super) fn new(count: u32, size: usize) -> Result<Slots, DatagramError> {
        let all = (count as usize).saturating_mul(size);
        // Asked for beforehand, because the memory that costs nothing before it is used is given or the process ends.
        let there = Vec::<u8>::new().try_reserve_exact(all);
        there.map_err(|_| DatagramError::Option {
            option: "send_packets",
            value: count.into(),
            cure: format!("there is no memory for so many packets of {size} bytes, give less"),
        })?;
        Ok(Slots {
            bytes: vec![0; all],
            size,
            free: (0..count).rev().collect(),
        })
    }

    /// Slots that nobody has.
    pub(super) fn left(&self) -> usize {
        self.free.len()
    }

    /// Fills a free slot; the caller has looked that there is one.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> u32 {
        let Some(slot) = self.free.pop() else {
            unreachable!("slots are counted before they are filled");
        };
        let at = slot as usize * self.size;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        slot
    }

    pub(super) fn bytes(&self, slot: u32, len: u32) -> &[u8] {
        let at = slot as usize * self.size;
        &self.bytes[at..at + len as usize]
    }

    pub(super) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }
}
