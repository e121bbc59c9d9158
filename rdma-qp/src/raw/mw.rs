//! Memory windows.
//!
//! A request that binds names its window, and a list of requests may wait for its doorbell, so a window that is dropped is
//! retired as a region is, see [`crate::raw::pd`].

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};

use rdma_core_sys::*;

use super::pd::{PdHandle, Resource};
use super::region::LocalSlice;
use super::{pointer, status};
use crate::errno::Errno;
use crate::wr_id::QueueKind;

/// A memory window, and whether a send queue ever got a request with it.
pub(crate) struct WindowHandle {
    ptr: NonNull<ibv_mw>,
    /// [`PdHandle::id`] of its PD.
    pd: u64,
    sent: AtomicBool,
}

// SAFETY: an ibv_mw is named and freed from any thread; its key is read by its owner alone.
unsafe impl Send for WindowHandle {}
// SAFETY: through `&WindowHandle` its key is only read, and the owner binds through `&mut`.
unsafe impl Sync for WindowHandle {}

impl WindowHandle {
    pub(super) fn is_used(&self) -> bool {
        self.sent.load(Relaxed)
    }
}

/// A window with its PD. Dropping it retires the window.
pub(crate) struct OwnedWindow {
    /// Taken out by `drop` alone.
    window: ManuallyDrop<WindowHandle>,
    pd: Arc<PdHandle>,
}

impl OwnedWindow {
    /// A window of that type.
    pub(crate) fn allocate(pd: &Arc<PdHandle>, kind: ibv_mw_type) -> Result<OwnedWindow, Errno> {
        // SAFETY: the PD is live (invariant 1).
        let ptr = pointer(unsafe { ops::ibv_alloc_mw(pd.as_ptr(), kind) })?;
        pd.windows_made.fetch_add(1, Relaxed);
        Ok(OwnedWindow {
            window: ManuallyDrop::new(WindowHandle {
                ptr,
                pd: pd.id,
                sent: AtomicBool::new(false),
            }),
            pd: pd.clone(),
        })
    }

    /// The key that the library has for it.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the window is live until it is dropped (invariant 1).
        unsafe { self.window.ptr.as_ref().rkey }
    }

    /// Tells the library the key that the last bind gave it: some find the window by it (rdma-core's rxe: `rxe.c`,
    /// `convert_send_wr`), and binding by a request leaves it to the program to note it.
    pub(crate) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: the window is live until it is dropped (invariant 1). The library reads the field in calls that name the
        // window, none of which is under way: a bind is handed over by the call that posts it, and that borrows `self`.
        unsafe { (*self.window.ptr.as_ptr()).rkey = rkey };
    }

    pub(crate) fn pd(&self) -> &Arc<PdHandle> {
        &self.pd
    }

    /// What a request that binds it to `to` says.
    pub(crate) fn binding<'a>(
        &'a self,
        to: Option<LocalSlice<'a>>,
        access: ibv_access_flags,
        rkey: u32,
    ) -> Binding<'a> {
        Binding {
            window: &self.window,
            to,
            access,
            rkey,
        }
    }
}

impl Drop for OwnedWindow {
    fn drop(&mut self) {
        // SAFETY: this is the end of the value: the window is taken once.
        let window = unsafe { ManuallyDrop::take(&mut self.window) };
        self.pd.retire(Resource::Window(window));
    }
}

/// A window and what it is bound to, borrowed for a post call.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    window: &'a WindowHandle,
    to: Option<LocalSlice<'a>>,
    access: ibv_access_flags,
    rkey: u32,
}

impl Binding<'_> {
    /// The part of a request of a send queue of PD `pd` that says so, after noting the use of window and region. `None`: one
    /// of them is of another PD.
    pub(super) fn lend(&self, pd: u64) -> Option<ibv_send_wr_bind_mw> {
        if self.window.pd != pd {
            return None;
        }
        let mut info = ibv_mw_bind_info::zeroed();
        if let Some(to) = &self.to {
            to.lend(QueueKind::Send, pd)?;
            info.mr = to.region().as_ptr();
            (info.addr, info.length) = (to.addr(), to.len() as u64);
            info.mw_access_flags = self.access.bits();
        }
        self.window.sent.store(true, Relaxed);
        Some(ibv_send_wr_bind_mw {
            mw: self.window.ptr.as_ptr(),
            rkey: self.rkey,
            bind_info: info,
        })
    }
}

impl PdHandle {
    /// Frees a window that no queue has requests with.
    pub(super) fn free_window(&self, window: WindowHandle) {
        // SAFETY: the window is live: it is consumed here and nowhere else, and it is of this PD. No queue has requests that
        // name it: the caller checked the marks.
        match status(unsafe { ops::ibv_dealloc_mw(window.ptr.as_ptr()) }) {
            Ok(()) => {
                self.windows_freed.fetch_add(1, Release);
            }
            Err(errno) => {
                tracing::error!(device = %self.context.name, %errno, "a memory window could not be freed and stays");
            }
        }
    }
}
