//! Address handles: where datagrams go.
//!
//! A request names its handle, and a provider may look at it until the request is done (the kernel's rxe does). So a
//! handle that is dropped is retired as a region is, see [`crate::raw::pd`].

use std::collections::HashMap;
use std::mem::{ManuallyDrop, replace, take};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rdma_core_sys::*;

use super::pd::{PdHandle, Resource};
use super::{pointer, status};
use crate::errno::Errno;
use crate::qp::Path;

/// What datagrams go through, of an address handle and of a QP: a protection domain and one port of its device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Through(u64);

impl Through {
    /// By [`PdHandle::id`], which is a count; of a QP without a port, port 0, which no handle has.
    pub(super) fn new(pd: u64, port: u8) -> Through {
        Through(pd << 8 | u64::from(port))
    }

    /// The port.
    pub(super) fn port(self) -> u8 {
        self.0 as u8
    }

    /// Whether the PDs are the same.
    pub(super) fn is_same_pd(self, other: Through) -> bool {
        self.0 >> 8 == other.0 >> 8
    }
}

/// An address handle, and whether a send queue ever got a request with it.
pub(crate) struct AddressHandle {
    ptr: NonNull<ibv_ah>,
    through: Through,
    sent: AtomicBool,
}

// SAFETY: an ibv_ah is not changed after it was made, and may be named and destroyed from any thread.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// The pointer for a request of a QP that sends by `through`, after noting the use. `None`: the handle is of another PD,
    /// whose books would not hold it, or of another port. Called before the post, while the handle is borrowed, so a later
    /// drop of the handle sees it.
    #[inline]
    fn lend(&self, through: Through) -> Option<*mut ibv_ah> {
        if self.through != through {
            return None;
        }
        if !self.sent.load(Relaxed) {
            self.sent.store(true, Relaxed);
        }
        Some(self.ptr.as_ptr())
    }

    /// Whether a send queue ever got a request with it.
    pub(super) fn is_used(&self) -> bool {
        self.sent.load(Relaxed)
    }
}

/// Where a datagram goes, borrowed for a post call.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    ah: &'a AddressHandle,
    qp_num: u32,
    qkey: u32,
}

impl<'a> Datagram<'a> {
    #[inline]
    pub(crate) fn new(ah: &'a OwnedAh, qp_num: u32, qkey: u32) -> Datagram<'a> {
        Datagram {
            ah: &ah.ah,
            qp_num,
            qkey,
        }
    }

    /// The part of a request of a QP that sends by `through` that says where it goes, after noting the use of the handle.
    /// `None`: the handle is of another PD or port.
    #[inline]
    pub(super) fn lend(&self, through: Through) -> Option<ibv_send_wr_ud> {
        Some(ibv_send_wr_ud {
            ah: self.ah.lend(through)?,
            remote_qpn: self.qp_num,
            remote_qkey: self.qkey,
        })
    }

    /// What it goes through.
    pub(super) fn through(&self) -> Through {
        self.ah.through
    }
}

/// An address handle with its PD. When the last of those that share the handle is dropped, the handle is retired.
pub(crate) struct OwnedAh {
    /// Taken out by `drop` alone.
    ah: ManuallyDrop<Arc<AddressHandle>>,
    pd: Arc<PdHandle>,
}

impl OwnedAh {
    pub(crate) fn pd(&self) -> &Arc<PdHandle> {
        &self.pd
    }

    /// Whether both are the same handle.
    pub(crate) fn is(&self, other: &OwnedAh) -> bool {
        Arc::ptr_eq(&self.ah, &other.ah)
    }
}

impl Clone for OwnedAh {
    fn clone(&self) -> OwnedAh {
        self.pd.owned_ah(Arc::clone(&self.ah))
    }
}

impl Drop for OwnedAh {
    fn drop(&mut self) {
        // SAFETY: this is the end of the value: the Arc is taken once and not used again.
        let ah = unsafe { ManuallyDrop::take(&mut self.ah) };
        self.pd.held_ahs.fetch_sub(1, Relaxed);
        self.pd.give_back_ahs([ah]);
    }
}

/// Handles that each of two generations of the cache holds.
const GENERATION: usize = 1024;

/// The handles that were asked for last, by path.
///
/// What is asked for moves into the young generation; when that is full it becomes the old one, and what was in the old
/// one is let go of. So the [`GENERATION`] handles that were asked for last are always there, and never more than twice
/// as many.
#[derive(Default)]
pub(super) struct Cache {
    young: HashMap<Path, Arc<AddressHandle>>,
    old: HashMap<Path, Arc<AddressHandle>>,
}

impl Cache {
    /// The handle for a path, and what had to go for it.
    fn get(&mut self, path: &Path) -> Option<(Arc<AddressHandle>, Vec<Arc<AddressHandle>>)> {
        if let Some(ah) = self.young.get(path) {
            return Some((ah.clone(), Vec::new()));
        }
        let ah = self.old.remove(path)?;
        let gone = self.put(path, ah.clone());
        Some((ah, gone))
    }

    /// Enters a handle. Returns what had to go for it.
    fn put(&mut self, path: &Path, ah: Arc<AddressHandle>) -> Vec<Arc<AddressHandle>> {
        let mut gone = Vec::new();
        if self.young.len() >= GENERATION {
            let old = replace(&mut self.old, take(&mut self.young));
            gone.extend(old.into_values());
        }
        gone.extend(self.young.insert(*path, ah));
        gone
    }

    /// Lets go of everything.
    pub(super) fn clear(&mut self) -> Vec<Arc<AddressHandle>> {
        let (young, old) = (take(&mut self.young), take(&mut self.old));
        young.into_values().chain(old.into_values()).collect()
    }

    /// Handles in it.
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

impl PdHandle {
    /// A new address handle for a path, which lowers to `av`; it goes into the cache.
    pub(crate) fn new_ah(
        self: &Arc<PdHandle>,
        path: &Path,
        av: &ibv_ah_attr,
    ) -> Result<OwnedAh, Errno> {
        let made = match self.create_ah(av) {
            // What nobody uses makes room.
            Err(Errno::ENOMEM) if self.forget_ahs() > 0 => self.create_ah(av)?,
            made => made?,
        };
        let ah = Arc::new(made);
        let gone = self.cached_ahs().put(path, ah.clone());
        self.give_back_ahs(gone);
        Ok(self.owned_ah(ah))
    }

    /// The address handle for a path, if it is in the cache.
    pub(crate) fn cached_ah(self: &Arc<PdHandle>, path: &Path) -> Option<OwnedAh> {
        let (ah, gone) = self.cached_ahs().get(path)?;
        self.give_back_ahs(gone);
        Some(self.owned_ah(ah))
    }

    fn owned_ah(self: &Arc<PdHandle>, ah: Arc<AddressHandle>) -> OwnedAh {
        self.held_ahs.fetch_add(1, Relaxed);
        OwnedAh {
            ah: ManuallyDrop::new(ah),
            pd: self.clone(),
        }
    }

    /// Empties the cache. Returns how many handles were in it.
    pub(crate) fn forget_ahs(&self) -> usize {
        let gone = self.cached_ahs().clear();
        let count = gone.len();
        self.give_back_ahs(gone);
        count
    }

    /// Handles in the cache.
    pub(crate) fn cached_ah_count(&self) -> usize {
        self.cached_ahs().len()
    }

    /// Retires those that nobody else shares.
    pub(super) fn give_back_ahs(&self, ahs: impl IntoIterator<Item = Arc<AddressHandle>>) {
        for ah in ahs.into_iter().filter_map(Arc::into_inner) {
            self.retire(Resource::Ah(ah));
        }
    }

    fn create_ah(&self, av: &ibv_ah_attr) -> Result<AddressHandle, Errno> {
        let mut av = *av;
        // SAFETY: the PD is live (invariant 1); `av` is whole.
        let ptr = pointer(unsafe { self.context.verbs.create_ah(self.as_ptr(), &mut av) })?;
        Ok(AddressHandle {
            ptr,
            through: Through::new(self.id, av.port_num),
            sent: AtomicBool::new(false),
        })
    }

    /// Destroys a handle that no queue holds requests with.
    pub(super) fn destroy_ah(&self, ah: AddressHandle) {
        // SAFETY: the handle is live: an AddressHandle is consumed by the only call of this. No queue has requests with it:
        // `sweep`, the only caller, checked the marks.
        if let Err(errno) = status(unsafe { self.context.verbs.destroy_ah(ah.ptr.as_ptr()) }) {
            tracing::error!(
                device = %self.context.name, %errno, "an address handle could not be destroyed and stays"
            );
        }
    }
}
