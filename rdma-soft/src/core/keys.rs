//! Memory regions, memory windows, and the keys that name them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rdma_core_sys::ops::ibv_inc_rkey;
use rdma_core_sys::{ibv_access_flags, ibv_mw_type};

use super::error::CallError;
use super::event::PdId;
use super::rng::Rng;
use super::wqe::{Sge, WindowBind};
use crate::mem::Region;

/// The two keys of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrKeys {
    /// Names the region in local scatter/gather entries.
    pub lkey: u32,
    /// Names the region in requests of peers. It differs from the local one unless
    /// [`Strict::distinct_keys`](super::config::Strict::distinct_keys) is off.
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
        inside(self.iova, self.region.len(), addr, len)
    }
}

/// Offset of `addr..addr + len` in the `size` bytes from `start` on, if it lies inside.
fn inside(start: u64, size: u64, addr: u64, len: u64) -> Option<u64> {
    let offset = addr.checked_sub(start)?;
    let end = offset.checked_add(len)?;
    (end <= size).then_some(offset)
}

/// A memory window. The upper 24 bits of its key are its own, the lower 8 change with each bind.
#[derive(Debug)]
struct Window {
    pd: PdId,
    kind: ibv_mw_type,
    rkey: u32,
    bound: Option<Bound>,
    /// Regions that it was bound to, and that their owner still has to keep.
    closing: Vec<Closing>,
}

/// What a window opens.
#[derive(Debug)]
struct Bound {
    lkey: u32,
    /// Address that requests use for the window's first byte.
    start: u64,
    /// Where that is in the region.
    offset: u64,
    len: u64,
    access: ibv_access_flags,
    /// A window of type 2 is for the peer of the Queue Pair that bound it.
    qp_num: u32,
}

/// A binding that a request of this node has ended, until that one's completion was seen.
#[derive(Debug)]
struct Closing {
    lkey: u32,
    /// The request.
    qp_num: u32,
    seq: u64,
}

/// The bits of a window's key that are its own.
const WINDOW: u32 = !0xff;

/// A key that does not open what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Denied;

/// Who asks for memory by a remote key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    /// The domain that its requests are executed in.
    pub pd: PdId,
    /// The Queue Pair here that they come to.
    pub qp_num: u32,
}

/// All memory regions and windows of the node.
#[derive(Debug)]
pub(super) struct Keys {
    // Maps of their own: a local key never opens remote access, nor the other way round.
    local: BTreeMap<u32, Arc<Mr>>,
    remote: BTreeMap<u32, Arc<Mr>>,
    /// By the part of the key that does not change.
    windows: BTreeMap<u32, Window>,
    sequence: KeySequence,
    distinct: bool,
}

impl Keys {
    pub fn new(rng: &mut Rng, distinct: bool) -> Keys {
        Keys {
            local: BTreeMap::new(),
            remote: BTreeMap::new(),
            windows: BTreeMap::new(),
            sequence: KeySequence::new(rng),
            distinct,
        }
    }

    pub fn len(&self) -> usize {
        self.local.len()
    }

    /// How many windows there are.
    pub fn windows(&self) -> usize {
        self.windows.len()
    }

    pub fn insert(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: ibv_access_flags,
    ) -> MrKeys {
        let lkey = self.draw();
        let rkey = if self.distinct { self.draw() } else { lkey };
        let keys = MrKeys { lkey, rkey };
        self.store(Mr {
            pd,
            region,
            iova,
            access,
            keys,
        });
        keys
    }

    fn store(&mut self, mr: Mr) {
        let mr = Arc::new(mr);
        self.local.insert(mr.keys.lkey, Arc::clone(&mr));
        self.remote.insert(mr.keys.rkey, mr);
    }

    /// A key that no region and no window has: after 2^32 of them the sequence begins anew.
    fn draw(&mut self) -> u32 {
        loop {
            let key = self.sequence.draw();
            let taken = self.local.contains_key(&key)
                || self.remote.contains_key(&key)
                || self.windows.contains_key(&(key & WINDOW));
            if !taken {
                return key;
            }
        }
    }

    /// A region by its local key.
    pub fn region(&self, lkey: u32) -> Option<&Mr> {
        self.local.get(&lkey).map(|mr| &**mr)
    }

    /// Changes a region; its keys stay.
    pub fn replace(
        &mut self,
        lkey: u32,
        pd: PdId,
        region: Region,
        iova: u64,
        access: ibv_access_flags,
    ) {
        let Some(keys) = self.local.get(&lkey).map(|mr| mr.keys) else {
            return;
        };
        self.store(Mr {
            pd,
            region,
            iova,
            access,
            keys,
        });
    }

    /// The local keys of a domain's regions.
    pub fn regions_of(&self, pd: PdId) -> impl Iterator<Item = u32> + '_ {
        (self.local.values())
            .filter(move |mr| mr.pd == pd)
            .map(|mr| mr.keys.lkey)
    }

    /// The keys of a domain's windows.
    pub fn windows_of(&self, pd: PdId) -> impl Iterator<Item = u32> + '_ {
        (self.windows.values())
            .filter(move |w| w.pd == pd)
            .map(|w| w.rkey)
    }

    /// The keys of the windows that are bound to a region, or were until its owner ended that and has not
    /// seen it yet.
    pub fn windows_on(&self, lkey: u32) -> impl Iterator<Item = u32> + '_ {
        let on = move |w: &&Window| {
            let bound = w.bound.as_ref().is_some_and(|b| b.lkey == lkey);
            bound || w.closing.iter().any(|c| c.lkey == lkey)
        };
        self.windows.values().filter(on).map(|w| w.rkey)
    }

    /// Forgets the closed windows of a region whose closing the application has seen.
    pub fn settle_windows(&mut self, lkey: u32, polled: impl Fn(u32) -> Option<u64>) {
        for window in self.windows.values_mut() {
            let open = |c: &Closing| polled(c.qp_num).is_some_and(|n| n <= c.seq);
            window.closing.retain(|c| c.lkey != lkey || open(c));
        }
    }

    /// Forgets the region; nothing resolves to its memory afterwards. Gives its domain.
    pub fn remove(&mut self, lkey: u32) -> Option<PdId> {
        let mr = self.local.remove(&lkey)?;
        self.remote.remove(&mr.keys.rkey);
        Some(mr.pd)
    }

    /// A window that opens nothing yet; gives its key.
    pub fn insert_window(&mut self, pd: PdId, kind: ibv_mw_type) -> u32 {
        let rkey = loop {
            let key = self.draw();
            let family = key & WINDOW..=key | !WINDOW;
            if self.remote.range(family.clone()).next().is_none()
                && self.local.range(family).next().is_none()
                && key & WINDOW != 0
            {
                break key;
            }
        };
        let window = Window {
            pd,
            kind,
            rkey,
            bound: None,
            closing: Vec::new(),
        };
        self.windows.insert(rkey & WINDOW, window);
        rkey
    }

    /// Forgets a window, by any key that it had. Gives its domain.
    pub fn remove_window(&mut self, rkey: u32) -> Option<PdId> {
        self.windows.remove(&(rkey & WINDOW)).map(|w| w.pd)
    }

    /// A window's key as it is now, by any key that it had.
    pub fn window_key(&self, rkey: u32) -> Option<u32> {
        self.windows.get(&(rkey & WINDOW)).map(|w| w.rkey)
    }

    /// Names the key of a window of type 1 after its next bind.
    pub fn next_window_key(&self, rkey: u32) -> Result<u32, CallError> {
        let window = self.windows.get(&(rkey & WINDOW));
        match window {
            None => Err(CallError::invalid(format!("no memory window {rkey:#x}"))),
            Some(w) if w.kind == ibv_mw_type::IBV_MW_TYPE_1 => Ok(ibv_inc_rkey(rkey)),
            Some(_) => Err(CallError::invalid(
                "ibv_bind_mw is for windows of type 1; post IBV_WR_BIND_MW for type 2",
            )),
        }
    }

    /// Binds a window, or closes one of type 1, for a Queue Pair of `by`.
    ///
    /// The rules are those of ibv_bind_mw(3) and of rxe's `rxe_check_bind_mw`.
    pub fn bind(&mut self, by: Asker, bind: &WindowBind) -> Result<(), Denied> {
        use ibv_access_flags as A;
        let first = self.windows.get(&(bind.window & WINDOW)).ok_or(Denied)?;
        let type_2 = first.kind == ibv_mw_type::IBV_MW_TYPE_2;
        let own = first.pd == by.pd && bind.rkey & WINDOW == bind.window & WINDOW;
        // Programs name local writes, too, which say nothing of a window: adapters take that.
        let known = A::IBV_ACCESS_LOCAL_WRITE
            | A::IBV_ACCESS_REMOTE_WRITE
            | A::IBV_ACCESS_REMOTE_READ
            | A::IBV_ACCESS_REMOTE_ATOMIC
            | A::IBV_ACCESS_ZERO_BASED;
        let based_on_zero = bind.access.contains(A::IBV_ACCESS_ZERO_BASED);
        let allowed = if type_2 {
            // Bound once, until it is invalidated; and to a key that the peer cannot know yet.
            first.bound.is_none() && bind.rkey != first.rkey && bind.lkey.is_some() && bind.len > 0
        } else {
            !based_on_zero
        };
        if !own || !allowed || bind.access.bits() & !known.bits() != 0 {
            return Err(Denied);
        }
        let bound = match bind.lkey.filter(|_| bind.len > 0) {
            None => None,
            Some(lkey) => {
                let mr = self.local.get(&lkey).ok_or(Denied)?;
                let writes = A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_ATOMIC;
                let fits = mr.pd == by.pd
                    && mr.access.contains(A::IBV_ACCESS_MW_BIND)
                    && (!bind.access.intersects(writes)
                        || mr.access.contains(A::IBV_ACCESS_LOCAL_WRITE));
                let offset = mr.offset(bind.addr, bind.len).filter(|_| fits);
                Some(Bound {
                    lkey,
                    start: if based_on_zero { 0 } else { bind.addr },
                    offset: offset.ok_or(Denied)?,
                    len: bind.len,
                    access: bind.access,
                    qp_num: by.qp_num,
                })
            }
        };
        let window = self
            .windows
            .get_mut(&(bind.window & WINDOW))
            .ok_or(Denied)?;
        (window.rkey, window.bound) = (bind.rkey, bound);
        Ok(())
    }

    /// Ends what a key opens. Only windows of type 2 can be invalidated, by the Queue Pair that bound
    /// them or its peer (rxe: `rxe_invalidate_mw`; regions of programs cannot: `rxe_invalidate_mr`).
    ///
    /// By a request of this node, `request`, the region stays in use until that one's completion was
    /// seen: until then the application cannot know that the window is closed.
    pub fn invalidate(&mut self, by: Asker, rkey: u32, request: Option<u64>) -> Result<(), Denied> {
        let window = self.windows.get_mut(&(rkey & WINDOW)).ok_or(Denied)?;
        let fits =
            window.rkey == rkey && window.kind == ibv_mw_type::IBV_MW_TYPE_2 && window.pd == by.pd;
        let bound = (window.bound).take_if(|b| fits && b.qp_num == by.qp_num);
        let lkey = bound.ok_or(Denied)?.lkey;
        if let Some(seq) = request {
            // Who has seen this one has seen those before it in the queue.
            let qp_num = by.qp_num;
            (window.closing).retain(|c| (c.lkey, c.qp_num) != (lkey, qp_num));
            window.closing.push(Closing { lkey, qp_num, seq });
        }
        Ok(())
    }

    /// The windows of type 2 that this Queue Pair bound are closed with it.
    pub fn qp_gone(&mut self, qp_num: u32) {
        for window in self.windows.values_mut() {
            window.closing.retain(|c| c.qp_num != qp_num);
            let of = window.bound.as_ref().is_some_and(|b| b.qp_num == qp_num);
            if of && window.kind == ibv_mw_type::IBV_MW_TYPE_2 {
                window.bound = None;
            }
        }
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
        by: Asker,
        rkey: u32,
        addr: u64,
        len: u64,
        access: ibv_access_flags,
    ) -> Result<(&Region, u64), Denied> {
        if let Some(mr) = self.remote.get(&rkey) {
            if mr.pd != by.pd || !mr.access.contains(access) {
                return Err(Denied);
            }
            let offset = mr.offset(addr, len).ok_or(Denied)?;
            return Ok((&mr.region, offset));
        }
        let window = self.windows.get(&(rkey & WINDOW)).ok_or(Denied)?;
        let bound = window.bound.as_ref().ok_or(Denied)?;
        let open = window.rkey == rkey
            && window.pd == by.pd
            && bound.access.contains(access)
            && (window.kind == ibv_mw_type::IBV_MW_TYPE_1 || bound.qp_num == by.qp_num);
        let offset = inside(bound.start, bound.len, addr, len).filter(|_| open);
        let mr = self.local.get(&bound.lkey).ok_or(Denied)?;
        Ok((&mr.region, bound.offset + offset.ok_or(Denied)?))
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

    /// A window that is bound and ended again and again to the same region: however seldom somebody looks, only
    /// the last end is remembered, and the region waits for that one.
    #[test]
    fn a_window_remembers_one_end_per_region_and_queue() {
        let mut keys = Keys::new(&mut Rng::new(1), true);
        let (pd, qp_num) = (PdId(1), 7);
        let by = Asker { pd, qp_num };
        let access = ibv_access_flags::IBV_ACCESS_MW_BIND;
        let lkey = keys.insert(pd, Region::owned(64), 0, access).lkey;
        let mut rkey = keys.insert_window(pd, ibv_mw_type::IBV_MW_TYPE_2);
        for seq in 0..1000 {
            let bind = WindowBind {
                window: rkey,
                rkey: ibv_inc_rkey(rkey),
                lkey: Some(lkey),
                addr: 0,
                len: 64,
                access: ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            };
            keys.bind(by, &bind).unwrap();
            rkey = bind.rkey;
            keys.invalidate(by, rkey, Some(seq)).unwrap();
            let closing: usize = keys.windows.values().map(|w| w.closing.len()).sum();
            assert_eq!(closing, 1);
        }
        keys.settle_windows(lkey, |_| Some(999));
        assert_eq!(keys.windows_on(lkey).collect::<Vec<_>>(), [rkey]);
        keys.settle_windows(lkey, |_| Some(1000));
        assert_eq!(keys.windows_on(lkey).count(), 0);
    }
}
