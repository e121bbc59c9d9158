//! Work requests, built in place and handed over as a list.
//!
//! A [`Ring`] has a fixed number of requests, linked once, each with its entries. Posting fills the next one; when the
//! last one is filled, or the caller says so, all that are filled go to the device with one call. With one request in it,
//! every post is a call.
//!
//! A request of one range has a *form*: which region, which operation, which flags. Most requests of a queue have the
//! form of the one that was in their place before, and then all that depends on it is checked and written already. So each
//! slot knows the form of what is in it. Behind the last slot there is one that never has a form: whoever looks for the form
//! of the next request finds the end of the list by the same look.

use std::marker::PhantomData;
use std::ptr;

use rdma_core_sys::*;

use super::rarely;

/// A work request as a ring needs it.
///
/// # Safety
/// The functions set the fields `next` and `sg_list` of the request, and nothing else.
pub(super) unsafe trait Request: Copy {
    /// A request that asks for nothing.
    fn zeroed() -> Self;
    /// The link to the next request of a list.
    fn next(&self) -> *mut Self;
    /// Sets it.
    fn set_next(&mut self, next: *mut Self);
    /// Where its entries are.
    fn set_entries(&mut self, entries: *mut ibv_sge);
    /// What names it.
    fn wr_id(&self) -> u64;
}

macro_rules! request {
    ($($wr:ident),+) => {
        $(
            // SAFETY: the fields are those of the C structure.
            unsafe impl Request for $wr {
                fn zeroed() -> $wr {
                    $wr::zeroed()
                }
                #[inline]
                fn next(&self) -> *mut $wr {
                    self.next
                }
                #[inline]
                fn set_next(&mut self, next: *mut $wr) {
                    self.next = next;
                }
                fn set_entries(&mut self, entries: *mut ibv_sge) {
                    self.sg_list = entries;
                }
                fn wr_id(&self) -> u64 {
                    self.wr_id
                }
            }
        )+
    };
}
request!(ibv_send_wr, ibv_recv_wr);

/// What a device did not take of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// Requests of the list that it accepted, from its beginning.
    pub(super) accepted: u32,
    /// The others.
    pub(super) refused: u32,
    /// The `wr_id` of the first of those.
    pub(super) first: u64,
    /// What it returned.
    pub(super) status: i32,
}

/// What a request of one range has in common with others: the region, which [`Region::form`] names, and what is asked for.
/// 0 stands for none.
///
/// [`Region::form`]: super::region::Region::form
pub(super) type Form = u64;

/// Forms of requests on one region.
pub(super) const FORMS: Form = 1 << 16;

/// In a form: the region is longer than a message can be.
pub(super) const LONG: Form = FORMS >> 1;

/// A request with its own entry.
///
/// Its invariant: if `form` is not 0, everything of it is as the form has it, but for what [`Slot::aim`] and the operation
/// itself set, and for the id.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Slot<R> {
    pub(super) request: R,
    entry: ibv_sge,
    form: Form,
}

impl<R> Slot<R> {
    /// A slot of that request, without a form.
    pub(super) const fn empty(request: R) -> Slot<R> {
        Slot {
            request,
            entry: ibv_sge {
                addr: 0,
                length: 0,
                lkey: 0,
            },
            form: 0,
        }
    }

    /// Whether it has that form.
    #[inline(always)]
    pub(super) fn is_of(&self, form: Form) -> bool {
        self.form == form
    }

    /// The same, by a load of its own, so that [`Slot::is_of`] before it can be one instruction.
    #[inline(always)]
    pub(super) fn is_also_of(&self, form: Form) -> bool {
        // SAFETY: a reference is valid for reads.
        unsafe { (&raw const self.form).read_volatile() == form }
    }

    /// Where the one range of a request with a form is.
    #[inline(always)]
    pub(super) fn aim(&mut self, addr: u64, len: u32) {
        self.entry.addr = addr;
        self.entry.length = len;
    }
}

/// Where the next request is, where a run of them ends, and the form that the slot there has.
pub(super) type Place<R> = (*mut Slot<R>, *mut Slot<R>, Form);

/// The entries of the request that is being filled.
pub(super) struct Entries<'r> {
    first: *mut ibv_sge,
    width: usize,
    ring: PhantomData<&'r mut ibv_sge>,
}

impl Entries<'_> {
    /// Sets one of them. `index` is below the width.
    #[inline]
    pub(super) fn set(&mut self, index: usize, entry: ibv_sge) {
        debug_assert!(index < self.width);
        // SAFETY: the request has `width` entries of its own, as [`Ring::next`] found, whose ring is borrowed; the caller keeps to
        // that number.
        unsafe { *self.first.add(index) = entry };
    }
}

/// Requests of one queue, filled one after another.
///
/// Its invariant: `first` is the first of `count` slots, linked in order, the last with null, and one more behind them, the
/// `end`, which is never filled and whose form is 0. `only` is `first` if `count` is 1, else the end; `waits_to`, up to which
/// requests may wait, is the other way round. `next` is one of the slots, and those before it are filled. `entries` are `width`
/// for each slot but the end if `width` is over 1, and none otherwise. A request of one range has the entry of its slot, one
/// of more those of its slot's place in `entries`.
pub(super) struct Ring<R: Request> {
    only: *mut Slot<R>,
    first: *mut Slot<R>,
    next: *mut Slot<R>,
    end: *mut Slot<R>,
    waits_to: *mut Slot<R>,
    count: u32,
    width: u32,
    entries: *mut ibv_sge,
    /// Where the library says which request it refused; null while it has not refused any.
    bad: *mut R,
}

// SAFETY: the pointers are to memory that the ring owns alone.
unsafe impl<R: Request> Send for Ring<R> {}
// SAFETY: through `&Ring` nothing is read but plain values.
unsafe impl<R: Request> Sync for Ring<R> {}

impl<R: Request> Ring<R> {
    /// A ring of `count` requests of up to `width` entries each; at least one of each.
    pub(super) fn new(count: u32, width: u32) -> Ring<R> {
        let (count, width) = (count.max(1), width.max(1));
        let slot = Slot::empty(R::zeroed());
        let slots = Box::into_raw(vec![slot; count as usize + 1].into_boxed_slice());
        let entries = vec![ibv_sge::default(); Self::entries(count, width)];
        let entries = Box::into_raw(entries.into_boxed_slice());
        let first = slots.cast::<Slot<R>>();
        for index in 0..count as usize - 1 {
            let next = first.wrapping_add(index + 1).cast();
            // SAFETY: `index` is below the number of slots, which were just made and are known here only.
            unsafe { (*first.add(index)).request.set_next(next) };
        }
        let only = if count == 1 { 0 } else { count as usize };
        Ring {
            only: first.wrapping_add(only),
            first,
            next: first,
            end: first.wrapping_add(count as usize),
            waits_to: first.wrapping_add(if count == 1 { 0 } else { count as usize }),
            count,
            width,
            entries: entries.cast(),
            bad: ptr::null_mut(),
        }
    }

    /// How many entries there are beyond those of the slots.
    fn entries(count: u32, width: u32) -> usize {
        if width > 1 {
            count as usize * width as usize
        } else {
            0
        }
    }

    /// How many requests can be filled before the list is full.
    pub(super) fn left(&self) -> u32 {
        self.count - self.waiting()
    }

    /// Requests that are filled and not handed over.
    pub(super) fn waiting(&self) -> u32 {
        // SAFETY: both point into the slots, or behind them.
        unsafe { self.next.offset_from(self.first) as u32 }
    }

    /// How many requests right before number `index` are so.
    pub(super) fn run_before(&self, index: u32, so: impl Fn(&R) -> bool) -> u32 {
        let before = (0..index.min(self.count)).rev();
        let run = before.take_while(|at| {
            // SAFETY: `at` is below the number of slots, which the ring owns.
            so(unsafe { &(*self.first.add(*at as usize)).request })
        });
        run.count() as u32
    }

    /// Forgets the requests that are filled.
    pub(super) fn clear(&mut self) {
        self.next = self.first;
    }

    /// Forgets the forms of all requests.
    pub(super) fn forget_forms(&mut self) {
        for index in 0..self.count as usize {
            // SAFETY: `index` is below the number of slots, which the ring owns.
            unsafe { (*self.first.add(index)).form = 0 };
        }
    }

    /// Gives the next request, which was just built, a form.
    pub(super) fn set_form(&mut self, form: Form) {
        debug_assert!(self.left() > 0);
        // SAFETY: `next` is one of the slots but the end (not all are filled), and the ring owns it.
        unsafe { (*self.next).form = form };
    }

    /// The next request to be filled, with entries for so many ranges, which are no more than `width`. It has no form; the
    /// caller may give it one, [`Ring::set_form`], if it has one range. The list is not full.
    pub(super) fn next(&mut self, ranges: usize) -> (&mut R, Entries<'_>) {
        debug_assert!(self.left() > 0);
        let index = self.waiting();
        let first = if ranges <= 1 {
            // Made of the ring's own pointer: it stays in the request, and the entry is written by other ways too.
            // SAFETY: `next` is one of the slots but the end (the invariant), because not all are filled.
            unsafe { &raw mut (*self.next).entry }
        } else {
            // SAFETY: `next` is a slot from `first` on, and `entries` has `width`, which is over 1, for each (the invariant).
            unsafe { self.entries.add(index as usize * self.width as usize) }
        };
        // SAFETY: as above; the ring owns it.
        let slot = unsafe { &mut *self.next };
        slot.form = 0;
        slot.request.set_entries(first);
        let entries = Entries {
            first,
            width: ranges.max(1),
            ring: PhantomData,
        };
        (&mut slot.request, entries)
    }

    /// The next request to be filled, as its slot, which has no form if the list is full.
    pub(super) fn next_slot(&mut self) -> &mut Slot<R> {
        // SAFETY: `next` is one of the slots (the invariant), and the ring owns it.
        unsafe { &mut *self.next }
    }

    /// The only slot, and the place for what is refused. Where requests may wait, a slot without a form.
    #[inline(always)]
    pub(super) fn only(&mut self) -> (&mut Slot<R>, *mut *mut R) {
        // SAFETY: one of the slots (the invariant), which the ring owns.
        (unsafe { &mut *self.only }, &raw mut self.bad)
    }

    /// Where the next request is, for [`Ring::fill_to`], and where the run of requests ends that are filled by way of it: after
    /// `most`, which is no more than a queue has, or when the list is full; at once where none may wait. The slot there has no
    /// form until then, which is what ends the run; its form is returned.
    #[inline(always)]
    pub(super) fn begin(&mut self, most: u64) -> Place<R> {
        let far = self.next.wrapping_add(most as usize);
        let stop = far.min(self.waits_to);
        // SAFETY: one of the slots, or the end; the ring owns it.
        let form = std::mem::take(unsafe { &mut (*stop).form });
        (self.next, stop, form)
    }

    /// Counts the requests before `next` as filled, and gives the slot `stop` its form again.
    ///
    /// # Safety
    /// `stop` and `form` are from [`Ring::begin`], and so is what `next` was; it is by now that, or one of those up to `stop`.
    /// The ring was not used since.
    #[inline(always)]
    pub(super) unsafe fn fill_to(&mut self, next: *mut Slot<R>, stop: *mut Slot<R>, form: Form) {
        // SAFETY: one of the slots, which the ring owns.
        unsafe { (*stop).form = form };
        self.next = next;
    }

    /// Counts the next request as filled. `true`: it was the last one, so that the list is to be handed over.
    #[must_use]
    pub(super) fn filled(&mut self) -> bool {
        debug_assert!(self.left() > 0);
        // SAFETY: `next` is one of the slots but the end, so there is one behind it.
        self.next = unsafe { self.next.add(1) };
        self.is_full()
    }

    /// Whether every request is filled.
    pub(super) fn is_full(&self) -> bool {
        self.next == self.end
    }

    /// Hands a full list over: `post` is called with its first request and the place for the one that is refused. What it
    /// returns is returned; if it is not 0, [`Ring::refused`] tells the rest.
    #[must_use]
    pub(super) fn hand_over(&mut self, post: impl FnOnce(*mut R, *mut *mut R) -> i32) -> i32 {
        self.next = self.first;
        post(self.first.cast(), &mut self.bad)
    }

    /// What was refused of the full list that was just handed over.
    pub(super) fn refused(&mut self, status: i32) -> Refused {
        self.refused_of(self.count, status)
    }

    /// Hands over what is filled of a list, if anything is. What `post` returns is returned; if it is not 0, so is how many
    /// there were, for [`Ring::refused_of`].
    #[inline(always)]
    pub(super) fn hand_over_some(
        &mut self,
        post: impl FnOnce(*mut R, *mut *mut R) -> i32,
    ) -> Result<(), (u32, i32)> {
        if self.next == self.first {
            return Ok(());
        }
        // SAFETY: at least one request is filled, so there is one before `next`.
        let last = unsafe { self.next.sub(1) };
        // SAFETY: as above; the ring owns it.
        let link = unsafe { (*last).request.next() };
        // SAFETY: as above.
        unsafe { (*last).request.set_next(ptr::null_mut()) };
        let status = post(self.first.cast(), &mut self.bad);
        // SAFETY: as above; the library keeps no pointer to a request after the call.
        unsafe { (*last).request.set_next(link) };
        if status != 0 {
            rarely();
            let count = self.waiting();
            self.next = self.first;
            return Err((count, status));
        }
        self.next = self.first;
        Ok(())
    }

    /// How far the library came with a list of `count`. One that refuses and does not say which request accepted none.
    #[cold]
    pub(super) fn refused_of(&mut self, count: u32, status: i32) -> Refused {
        let distance = (self.bad as usize).wrapping_sub(self.first as usize) / size_of::<Slot<R>>();
        let accepted = u32::try_from(distance)
            .ok()
            .filter(|accepted| *accepted < count)
            .unwrap_or(0);
        self.bad = ptr::null_mut();
        Refused {
            accepted,
            refused: count - accepted,
            // SAFETY: fewer were accepted than there are slots, which the ring owns.
            first: unsafe { (*self.first.add(accepted as usize)).request.wr_id() },
            status,
        }
    }
}

impl<R: Request> Drop for Ring<R> {
    fn drop(&mut self) {
        let requests = ptr::slice_from_raw_parts_mut(self.first, self.count as usize + 1);
        let entries = Self::entries(self.count, self.width);
        let entries = ptr::slice_from_raw_parts_mut(self.entries, entries);
        // SAFETY: both were made by `Box::into_raw` of slices of these lengths, and are freed once.
        unsafe {
            drop(Box::from_raw(requests));
            drop(Box::from_raw(entries));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `wr_id`s of a list, as a device walks it.
    fn ids(mut request: *mut ibv_recv_wr) -> Vec<u64> {
        let mut found = Vec::new();
        while !request.is_null() {
            // SAFETY: a request of the ring that the test holds.
            let r = unsafe { &*request };
            found.push(r.wr_id);
            request = r.next;
        }
        found
    }

    fn fill(ring: &mut Ring<ibv_recv_wr>, id: u64) -> bool {
        ring.next(1).0.wr_id = id;
        ring.filled()
    }

    #[test]
    fn a_list_is_handed_over_when_it_is_full_or_when_asked() {
        let mut ring = Ring::<ibv_recv_wr>::new(3, 2);
        for id in 0..2 {
            assert!(!fill(&mut ring, id));
        }
        assert!(fill(&mut ring, 2));
        let mut seen = Vec::new();
        let status = ring.hand_over(|first, _| {
            seen = ids(first);
            0
        });
        assert_eq!(status, 0);
        assert_eq!(seen, [0, 1, 2]);
        assert!(!fill(&mut ring, 7));
        assert_eq!(ring.waiting(), 1);
        ring.hand_over_some(|first, _| {
            seen = ids(first);
            0
        })
        .unwrap();
        assert_eq!(seen, [7]);
        for id in 10..12 {
            assert!(!fill(&mut ring, id));
        }
        assert!(fill(&mut ring, 12), "the links are whole again");
        let status = ring.hand_over(|first, _| {
            seen = ids(first);
            0
        });
        assert_eq!(status, 0);
        assert_eq!(seen, [10, 11, 12]);
    }

    #[test]
    fn what_a_library_refuses_is_counted_from_the_request_that_it_names() {
        let mut ring = Ring::<ibv_recv_wr>::new(4, 1);
        let mut full = |bad: Option<usize>| {
            for id in 0..4 {
                let _ = fill(&mut ring, id);
            }
            let status = ring.hand_over(|first, place| {
                if let Some(bad) = bad {
                    // SAFETY: the place and the requests are the ring's.
                    unsafe { *place = first.cast::<Slot<ibv_recv_wr>>().wrapping_add(bad).cast() };
                }
                12
            });
            ring.refused(status)
        };
        let refused = |accepted, refused| Refused {
            accepted,
            refused,
            first: accepted.into(),
            status: 12,
        };
        assert_eq!(full(Some(1)), refused(1, 3));
        assert_eq!(full(None), refused(0, 4), "not left from the last time");
        assert_eq!(full(Some(4)), refused(0, 4), "no request of the list");
    }
}
