//! Memory regions and the keys that name them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rdma_core_sys::ibv_access_flags;

use super::event::PdId;
use super::rng::Rng;
use super::wqe::Sge;
use crate::mem::Region;

/// The two keys of a memory region. They always differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// Names the region in local scatter/gather entries.
    pub lkey: u32,
    /// Names the region in requests of peers.
    pub rkey: u32,
}

/// A registered memory region.
#[derive(Debug)]
pub(super) struct Mr {
    pub pd: PdId,
    pub region: Region,
    /// Address that requests use for the region's first byte.
    pub iova: u64,
    pub access: ibv_access_flags,
    pub keys: MrKeys,
}

impl Mr {
    /// Offset of `addr..addr + len` in the region, if it lies inside.
    fn offset(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        let end = offset.checked_add(len)?;
        (end <= self.region.len()).then_some(offset)
    }
}

/// A key that does not open what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Denied;

/// All memory regions of the node.
#[derive(Debug)]
pub(super) struct Keys {
    // Two maps: a local key never opens remote access, nor the other way round.
    local: BTreeMap<u32, Arc<Mr>>,
    remote: BTreeMap<u32, Arc<Mr>>,
    sequence: KeySequence,
}

impl Keys {
    pub fn new(rng: &mut Rng) -> Keys {
        Keys {
            local: BTreeMap::new(),
            remote: BTreeMap::new(),
            sequence: KeySequence::new(rng),
        }
    }

    pub fn len(&self) -> usize {
        self.local.len()
    }

    pub fn insert(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: ibv_access_flags,
    ) -> MrKeys {
        let keys = MrKeys {
            lkey: self.draw(),
            rkey: self.draw(),
        };
        let mr = Arc::new(Mr {
            pd,
            region,
            iova,
            access,
            keys,
        });
        self.local.insert(keys.lkey, Arc::clone(&mr));
        self.remote.insert(keys.rkey, mr);
        keys
    }

    /// A key that no region has: after 2^32 of them the sequence begins anew.
    fn draw(&mut self) -> u32 {
        loop {
            let key = self.sequence.draw();
            if !self.local.contains_key(&key) && !self.remote.contains_key(&key) {
                return key;
            }
        }
    }

    /// Forgets the region; nothing resolves to its memory afterwards. Gives its domain.
    pub fn remove(&mut self, lkey: u32) -> Option<PdId> {
        let mr = self.local.remove(&lkey)?;
        self.remote.remove(&mr.keys.rkey);
        Some(mr.pd)
    }

    /// The memory of a local entry, for a Queue Pair of `pd`.
    pub fn local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(&Region, u64), Denied> {
        let mr = self.local.get(&sge.lkey).ok_or(Denied)?;
        if mr.pd != pd || (write && !mr.access.contains(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)) {
            return Err(Denied);
        }
        let offset = mr.offset(sge.addr, u64::from(sge.len)).ok_or(Denied)?;
        Ok((&mr.region, offset))
    }

    /// The memory that a peer names, if it has all rights of `access` there.
    pub fn remote(
        &self,
        pd: PdId,
        rkey: u32,
        addr: u64,
        len: u64,
        access: ibv_access_flags,
    ) -> Result<(&Region, u64), Denied> {
        let mr = self.remote.get(&rkey).ok_or(Denied)?;
        if mr.pd != pd || !mr.access.contains(access) {
            return Err(Denied);
        }
        let offset = mr.offset(addr, len).ok_or(Denied)?;
        Ok((&mr.region, offset))
    }
}

/// Draws 32-bit keys that a peer cannot guess: a counter sent through a permutation with secret
/// round keys. None repeats within 2^32 draws, so a key is its own generation: one that was
/// deregistered opens nothing for that long.
#[derive(Debug)]
struct KeySequence {
    next: u32,
    rounds: [u32; 4],
}

impl KeySequence {
    fn new(rng: &mut Rng) -> KeySequence {
        KeySequence {
            next: rng.next_u32(),
            rounds: std::array::from_fn(|_| rng.next_u32()),
        }
    }

    fn draw(&mut self) -> u32 {
        loop {
            let key = self.permute(self.next);
            self.next = self.next.wrapping_add(1);
            // 0 and all ones are what forgotten fields hold.
            if key != 0 && key != u32::MAX {
                return key;
            }
        }
    }

    /// A Feistel network over two halves of 16 bits.
    fn permute(&self, value: u32) -> u32 {
        let (mut left, mut right) = (value >> 16, value & 0xffff);
        for &key in &self.rounds {
            let mixed = u64::from(right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            (left, right) = (right, left ^ (mixed as u32 & 0xffff));
        }
        left << 16 | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_never_repeat() {
        let mut s = KeySequence::new(&mut Rng::new(7));
        let keys: BTreeSet<u32> = (0..100_000).map(|_| s.draw()).collect();
        assert_eq!(keys.len(), 100_000);
        let mut other = KeySequence::new(&mut Rng::new(8));
        assert!((0..1000).filter(|_| keys.contains(&other.draw())).count() < 50);
    }
}
