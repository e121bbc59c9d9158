//! Registered memory, cut into slots: each slot holds a pattern that is its own, but for what the model
//! says was put there.

use rdma_core_sys::ibv_access_flags;
use rdma_soft::core::rng::Rng;
use rdma_soft::core::{Engine, MrKeys, PdId, Remote, Sge};
use rdma_soft::mem::Region;

/// Bytes around each region that nobody may touch.
const GUARD: u64 = 64;

/// A piece of a slot: where it starts, and its bytes.
pub type Piece = (u64, u32);

/// A slot: the number of its area, and its number there.
pub type SlotId = (usize, usize);

/// How much of a message must be in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All of it.
    Whole,
    /// Any number of its first packets, of so many bytes each.
    Part(u32),
}

/// Mixes numbers into one that looks drawn.
pub fn mix(a: u64, b: u64) -> u64 {
    Rng::new(a.rotate_left(32) ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93)).next_u64()
}

/// `len` bytes that no other mark gives; they begin with the mark itself.
pub fn text(mark: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(mark);
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_ne_bytes());
    }
    // Too short for a mark: let it at least not be the same as others'.
    if len >= 8 {
        bytes[..8].copy_from_slice(&mark.to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// One slot.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// How often its pattern was renewed.
    generation: u64,
    /// Who uses it.
    holds: u32,
    /// A message may have begun here and gone on elsewhere: what is behind the next one is unknown.
    dirty: bool,
}

/// A memory region with guards around it.
#[derive(Debug)]
pub struct Area {
    /// The host that it is registered at.
    pub host: usize,
    /// Its keys.
    pub keys: MrKeys,
    /// It was deregistered, or its node died: nothing may touch it any more.
    pub gone: bool,
    whole: Region,
    iova: u64,
    slot_len: u64,
    mark: u64,
    slots: Vec<Slot>,
}

/// What an area is made of.
#[derive(Clone, Copy, Debug)]
pub struct AreaInit {
    /// The host.
    pub host: usize,
    /// Its protection domain.
    pub pd: PdId,
    /// The address of the first byte, in requests.
    pub iova: u64,
    /// Slots, and bytes of each.
    pub slots: (usize, u64),
    /// Rights.
    pub access: ibv_access_flags,
    /// What its patterns are drawn from.
    pub mark: u64,
}

impl Area {
    /// Registers an area.
    pub fn new(engine: &mut Engine, init: AreaInit) -> Result<Area, String> {
        let AreaInit {
            host,
            pd,
            iova,
            slots: (count, slot_len),
            access,
            mark,
        } = init;
        let len = count as u64 * slot_len;
        let whole = Region::owned((len + 2 * GUARD) as usize);
        let part = whole
            .part(GUARD, len as usize)
            .map_err(|e| format!("{e:?}"))?;
        let keys = engine
            .reg_mr(pd, part, iova, access)
            .map_err(|e| e.to_string())?;
        let slots = vec![Slot::default(); count];
        let area = Area {
            host,
            keys,
            gone: false,
            whole,
            iova,
            slot_len,
            mark,
            slots,
        };
        for at in [0, GUARD + len] {
            area.write(at, &text(mix(mark, at), GUARD as usize));
        }
        for slot in 0..count {
            area.renew(slot);
        }
        Ok(area)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let done = self.whole.write(at, bytes);
        debug_assert!(done.is_ok(), "the simulator's own memory");
    }

    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let mut out = vec![0; len as usize];
        let done = self.whole.read(at, &mut out);
        debug_assert!(done.is_ok(), "the simulator's own memory");
        out
    }

    fn start(&self, slot: usize) -> u64 {
        GUARD + slot as u64 * self.slot_len
    }

    /// What a slot holds while nobody has put anything there.
    fn image(&self, slot: usize) -> Vec<u8> {
        let own = mix(self.mark ^ (slot as u64) << 32, self.slots[slot].generation);
        text(own, self.slot_len as usize)
    }

    fn renew(&self, slot: usize) {
        self.write(self.start(slot), &self.image(slot));
    }

    /// What a slot holds now.
    pub fn now(&self, slot: usize) -> Vec<u8> {
        self.bytes(self.start(slot), self.slot_len)
    }

    /// Takes a free slot, chosen by `draw`, which must not have been touched since it was given back.
    pub fn take(&mut self, draw: u64) -> Result<Option<usize>, String> {
        let count = self.slots.len();
        let free = |&slot: &usize| self.slots[slot].holds == 0;
        let Some(slot) = (0..count)
            .map(|i| (i + draw as usize % count) % count)
            .find(free)
        else {
            return Ok(None);
        };
        self.untouched(slot)?;
        self.slots[slot].holds = 1;
        Ok(Some(slot))
    }

    /// One more user of a slot.
    pub fn hold(&mut self, slot: usize) {
        self.slots[slot].holds += 1;
    }

    /// One user less. With the last one the slot is written over at once, as its owner may: whoever still
    /// reads or writes it will be found out.
    pub fn release(&mut self, slot: usize) {
        let s = &mut self.slots[slot];
        s.holds = s.holds.saturating_sub(1);
        if s.holds == 0 {
            (s.generation, s.dirty) = (s.generation + 1, false);
            self.renew(slot);
        }
    }

    /// A message may have been left half-way in this slot.
    pub fn soil(&mut self, slot: usize) {
        self.slots[slot].dirty = true;
    }

    /// Puts the bytes of a message into pieces of a slot.
    pub fn put(&self, slot: usize, pieces: &[Piece], bytes: &[u8]) {
        let mut from = 0;
        for &(at, len) in pieces {
            self.write(self.start(slot) + at, &bytes[from..from + len as usize]);
            from += len as usize;
        }
    }

    /// The bytes in pieces of a slot.
    pub fn pieces(&self, slot: usize, pieces: &[Piece]) -> Vec<u8> {
        let now = self.now(slot);
        let of = |&(at, len): &Piece| now[at as usize..][..len as usize].to_vec();
        pieces.iter().flat_map(of).collect()
    }

    /// The scatter/gather entries of pieces of a slot.
    pub fn sges(&self, slot: usize, pieces: &[Piece]) -> Vec<Sge> {
        let base = self.iova + slot as u64 * self.slot_len;
        let entry = |&(at, len): &Piece| Sge {
            addr: base + at,
            len,
            lkey: self.keys.lkey,
        };
        pieces.iter().map(entry).collect()
    }

    /// Remote memory at an offset of a slot.
    pub fn remote(&self, slot: usize, at: u64) -> Remote {
        Remote {
            addr: self.iova + slot as u64 * self.slot_len + at,
            rkey: self.keys.rkey,
        }
    }

    /// Start and length, as requests name them.
    pub fn range(&self) -> (u64, u64) {
        (self.iova, self.slots.len() as u64 * self.slot_len)
    }

    /// A slot holds its pattern.
    pub fn untouched(&self, slot: usize) -> Result<(), String> {
        self.check(slot, &[], &[], Shape::Whole)
    }

    /// A slot holds `message` in its pieces, as far as `shape` says, and its pattern elsewhere.
    pub fn check(
        &self,
        slot: usize,
        pieces: &[Piece],
        message: &[u8],
        shape: Shape,
    ) -> Result<(), String> {
        let (mut want, now) = (self.image(slot), self.now(slot));
        if self.slots[slot].dirty {
            // Only what is inside the pieces may be old.
            for &(at, len) in pieces {
                let (at, end) = (at as usize, (at + u64::from(len)) as usize);
                want[at..end].copy_from_slice(&now[at..end]);
            }
        }
        let there = match shape {
            Shape::Whole => message.len(),
            Shape::Part(mtu) => self.arrived(&want, &now, pieces, message, mtu as usize),
        };
        let mut from = 0;
        for &(at, len) in pieces {
            let n = (there - from).min(len as usize);
            want[at as usize..][..n].copy_from_slice(&message[from..from + n]);
            from += n;
        }
        if want == now {
            return Ok(());
        }
        let differs = want.iter().zip(&now).filter(|(a, b)| a != b).count();
        let first = want.iter().zip(&now).position(|(a, b)| a != b).unwrap_or(0);
        Err(format!(
            "slot {slot} of {:#x}: {differs} bytes are wrong, from byte {first} on; {} of {} bytes of a message in {pieces:?} ({shape:?})",
            self.iova,
            there,
            message.len()
        ))
    }

    /// How many bytes of a message came, in whole packets.
    fn arrived(
        &self,
        old: &[u8],
        now: &[u8],
        pieces: &[Piece],
        message: &[u8],
        mtu: usize,
    ) -> usize {
        let line = |of: &[u8]| -> Vec<u8> {
            let piece = |&(at, len): &Piece| of[at as usize..][..len as usize].to_vec();
            pieces.iter().flat_map(piece).take(message.len()).collect()
        };
        let (old, now) = (line(old), line(now));
        let ends = (0..=message.len().div_ceil(mtu)).map(|k| (k * mtu).min(message.len()));
        let fits = |&end: &usize| now[..end] == message[..end] && now[end..] == old[end..];
        ends.rev().find(fits).unwrap_or(0)
    }

    /// Nothing may touch the area from now on: it was deregistered.
    pub fn bury(&mut self) {
        self.gone = true;
        for slot in 0..self.slots.len() {
            self.slots[slot].generation += 1;
            self.slots[slot].dirty = false;
            self.renew(slot);
        }
    }

    /// The guards hold their patterns; and so does all of an area that is gone, and every slot that nobody
    /// uses.
    pub fn intact(&self) -> Result<(), String> {
        let len = self.slots.len() as u64 * self.slot_len;
        for at in [0, GUARD + len] {
            if self.bytes(at, GUARD) != text(mix(self.mark, at), GUARD as usize) {
                return Err(format!("the guard at {at} of {:#x} was touched", self.iova));
            }
        }
        for (slot, s) in self.slots.iter().enumerate() {
            if self.gone || s.holds == 0 {
                self.untouched(slot)
                    .map_err(|e| format!("memory that is in no use: {e}"))?;
            }
        }
        Ok(())
    }
}

/// Cuts `len` bytes into at most `most` pieces with small gaps between them; they end below
/// `len` + 16 * `most`.
pub fn cut(rng: &mut Rng, len: u32, most: u64) -> Vec<Piece> {
    let count = 1 + rng.below(most);
    let (mut at, mut left) = (rng.below(16), len);
    let mut pieces = vec![];
    for i in 0..count {
        let n = match i + 1 == count {
            true => left,
            false => rng.below(u64::from(left) + 1) as u32,
        };
        pieces.push((at, n));
        at += u64::from(n) + rng.below(16);
        left -= n;
    }
    pieces
}
