//! Work requests, built in place and handed over as a list.
//!
//! A [`Ring`] has a fixed number of requests, linked once, each with its entries. Posting fills the next one; when the
//! last one is filled, or the caller says so, all that are filled go to the device with one call. With one request in it,
//! every post is a call.

use std::marker::PhantomData;
use std::ptr;

use rdma_core_sys::*;

/// A work request as a ring needs it.
///
/// # Safety
/// `next` and `sg_list` set the fields of these names, and `parts` returns places of the request itself.
pub(super) unsafe trait Request: Copy {
    /// A request that asks for nothing.
    fn zeroed() -> Self;
    /// The link to the next request of a list.
    fn set_next(&mut self, next: *mut Self);
    /// Where its entries are.
    fn set_entries(&mut self, entries: *mut ibv_sge);
    /// Where its entries are.
    fn entries(&self) -> *mut ibv_sge;
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
                fn set_next(&mut self, next: *mut $wr) {
                    self.next = next;
                }
                fn set_entries(&mut self, entries: *mut ibv_sge) {
                    self.sg_list = entries;
                }
                #[inline]
                fn entries(&self) -> *mut ibv_sge {
                    self.sg_list
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
    /// What it returned.
    pub(super) status: i32,
}

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
        // SAFETY: the request has `width` entries of its own (the invariant of the ring, which is borrowed), and the caller
        // keeps to that number.
        unsafe { *self.first.add(index) = entry };
    }
}

/// Requests of one queue, filled one after another.
///
/// Its invariant: `requests` are `count` requests, linked in order, the last with null; each has `width` entries of its
/// own behind `sg_list`; `next` is one of them, and those before it are filled.
pub(super) struct Ring<R: Request> {
    first: *mut R,
    next: *mut R,
    last: *mut R,
    count: usize,
    entries: *mut ibv_sge,
    width: usize,
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
        let (count, width) = (count.max(1) as usize, width.max(1) as usize);
        let requests = Box::into_raw(vec![R::zeroed(); count].into_boxed_slice());
        let entries = Box::into_raw(vec![ibv_sge::default(); count * width].into_boxed_slice());
        let first = requests.cast::<R>();
        let entries = entries.cast::<ibv_sge>();
        for index in 0..count {
            // SAFETY: `index` is below the number of requests, and `index * width` below that of entries; both were just
            // made and are known here only.
            unsafe {
                let request = &mut *first.add(index);
                request.set_entries(entries.add(index * width));
                request.set_next(if index + 1 < count {
                    first.add(index + 1)
                } else {
                    ptr::null_mut()
                });
            }
        }
        Ring {
            first,
            next: first,
            // SAFETY: `count` is at least 1.
            last: unsafe { first.add(count - 1) },
            count,
            entries,
            width,
            bad: ptr::null_mut(),
        }
    }

    /// Requests that are filled and not handed over.
    pub(super) fn waiting(&self) -> u32 {
        // SAFETY: both point into the requests.
        unsafe { self.next.offset_from(self.first) as u32 }
    }

    /// Forgets the requests that are filled.
    pub(super) fn clear(&mut self) {
        self.next = self.first;
    }

    /// The next request to be filled, with its entries. `width` is how many of them there are.
    #[inline]
    pub(super) fn next(&mut self) -> (&mut R, Entries<'_>) {
        // SAFETY: `next` is one of the requests (the invariant), which the ring owns.
        let request = unsafe { &mut *self.next };
        let entries = Entries {
            first: request.entries(),
            width: self.width,
            ring: PhantomData,
        };
        (request, entries)
    }

    /// Counts the next request as filled. `true`: it was the last one, so that the list is to be handed over.
    #[inline]
    #[must_use]
    pub(super) fn filled(&mut self) -> bool {
        let next = self.next;
        if next == self.last {
            return true;
        }
        // SAFETY: `next` is not the last request, so another one follows.
        self.next = unsafe { next.add(1) };
        false
    }

    /// Hands a full list over: `post` is called with its first request and the place for the one that is refused. What it
    /// returns is returned; if it is not 0, [`Ring::refused`] tells the rest.
    #[inline]
    #[must_use]
    pub(super) fn hand_over(&mut self, post: impl FnOnce(*mut R, *mut *mut R) -> i32) -> i32 {
        self.next = self.first;
        post(self.first, &mut self.bad)
    }

    /// What was refused of the full list that was just handed over.
    pub(super) fn refused(&mut self, status: i32) -> Refused {
        self.refused_of(self.count as u32, status)
    }

    /// Hands over what is filled of a list that is not full: at least one request.
    pub(super) fn hand_over_some(
        &mut self,
        post: impl FnOnce(*mut R, *mut *mut R) -> i32,
    ) -> Result<(), Refused> {
        let count = self.waiting();
        debug_assert!(count > 0);
        // SAFETY: at least one request is filled, so there is one before `next`.
        let end = unsafe { &mut *self.next.sub(1) };
        end.set_next(ptr::null_mut());
        let status = post(self.first, &mut self.bad);
        // SAFETY: as above; the library keeps no pointer to a request after the call.
        unsafe { &mut *self.next.sub(1) }.set_next(self.next);
        self.next = self.first;
        if status == 0 {
            Ok(())
        } else {
            Err(self.refused_of(count, status))
        }
    }

    /// How far the library came with a list of `count`. One that refuses and does not say which request accepted none.
    #[cold]
    fn refused_of(&mut self, count: u32, status: i32) -> Refused {
        let distance = (self.bad as usize).wrapping_sub(self.first as usize) / size_of::<R>();
        let accepted = u32::try_from(distance)
            .ok()
            .filter(|accepted| *accepted < count)
            .unwrap_or(0);
        self.bad = ptr::null_mut();
        Refused {
            accepted,
            refused: count - accepted,
            status,
        }
    }
}

impl<R: Request> Drop for Ring<R> {
    fn drop(&mut self) {
        let requests = ptr::slice_from_raw_parts_mut(self.first, self.count);
        let entries = ptr::slice_from_raw_parts_mut(self.entries, self.count * self.width);
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
        ring.next().0.wr_id = id;
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
                    unsafe { *place = first.wrapping_add(bad) };
                }
                12
            });
            ring.refused(status)
        };
        let refused = |accepted, refused| Refused {
            accepted,
            refused,
            status: 12,
        };
        assert_eq!(full(Some(1)), refused(1, 3));
        assert_eq!(full(None), refused(0, 4), "not left from the last time");
        assert_eq!(full(Some(4)), refused(0, 4), "no request of the list");
    }
}
