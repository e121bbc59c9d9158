//! Protection domains, registered memory and windows into it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use libc::{EINVAL, ENOMEM};
use rdma_core_sys::*;

use super::{Device, Failed, failed, outcome, report};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    pub(super) device: Rc<Device>,
    pub(super) pd: NonNull<ibv_pd>,
}

impl Pd {
    /// Allocates one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(device: &Rc<Device>) -> Result<Rc<Pd>, Failed> {
        // SAFETY: the context is open until `device` is dropped.
        let pd = unsafe { device.verbs.alloc_pd(device.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| failed("ibv_alloc_pd"))?;
        let device = Rc::clone(device);
        Ok(Rc::new(Pd { device, pd }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed here only; all objects on it own it, so they are gone.
        let errno = unsafe { self.device.verbs.dealloc_pd(self.pd.as_ptr()) };
        report(outcome("ibv_dealloc_pd", errno));
    }
}

/// Registered memory. The memory is allocated with it and stays as long as it; the registration ends earlier with
/// [`deregister`](Buffer::deregister).
#[derive(Debug)]
pub struct Buffer {
    pd: Rc<Pd>,
    mr: NonNull<ibv_mr>,
    registered: Cell<bool>,
    memory: NonNull<u8>,
    layout: Layout,
}

/// Page-aligned memory of zeros.
fn allocate(len: usize) -> Result<(NonNull<u8>, Layout), Failed> {
    const PAGE: usize = 4096;
    let layout = Layout::from_size_align(len.max(1), PAGE).map_err(|_| Failed {
        call: format!("a buffer of {len} bytes"),
        errno: ENOMEM,
    })?;
    // SAFETY: the layout is not empty.
    match NonNull::new(unsafe { alloc_zeroed(layout) }) {
        Some(memory) => Ok((memory, layout)),
        None => handle_alloc_error(layout),
    }
}

impl Buffer {
    /// What a region may be used for: all that verbs know, windows included.
    pub const ALL: ibv_access_flags = IBV_ACCESS_LOCAL_WRITE
        .union(IBV_ACCESS_REMOTE_WRITE)
        .union(IBV_ACCESS_REMOTE_READ)
        .union(IBV_ACCESS_REMOTE_ATOMIC)
        .union(IBV_ACCESS_MW_BIND);

    /// Allocates and registers `len` bytes of zeros (at least one), page-aligned, for every remote operation.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(pd: &Rc<Pd>, len: usize) -> Result<Rc<Buffer>, Failed> {
        Buffer::with_access(pd, len, Buffer::ALL - IBV_ACCESS_MW_BIND)
    }

    /// Allocates and registers `len` bytes of zeros (at least one), page-aligned.
    ///
    /// # Errors
    /// The call's errno.
    pub fn with_access(
        pd: &Rc<Pd>,
        len: usize,
        access: ibv_access_flags,
    ) -> Result<Rc<Buffer>, Failed> {
        let (memory, layout) = allocate(len)?;
        let (verbs, address) = (&pd.device.verbs, memory.as_ptr().cast());
        // SAFETY: the PD is alive until `pd` is dropped and of this table. The memory stays until the drop, after the
        // region is gone, and is touched through raw pointers only.
        let mr =
            unsafe { ops::ibv_reg_mr(verbs, pd.pd.as_ptr(), address, len.max(1), access.bits()) };
        let Some(mr) = NonNull::new(mr) else {
            let error = failed("ibv_reg_mr");
            // SAFETY: allocated above with this layout, known to nobody else.
            unsafe { dealloc(memory.as_ptr(), layout) };
            return Err(error);
        };
        Ok(Rc::new(Buffer {
            pd: Rc::clone(pd),
            mr,
            registered: Cell::new(true),
            memory,
            layout,
        }))
    }

    /// The region, while it is registered.
    pub(super) fn mr(&self) -> Option<*mut ibv_mr> {
        self.registered.get().then_some(self.mr.as_ptr())
    }

    /// `ibv_rereg_mr`, for another access or, with `None`, for no change at all.
    ///
    /// # Errors
    /// The call's errno.
    pub fn reregister(&self, access: Option<ibv_access_flags>) -> Result<(), Failed> {
        let Some(mr) = self.mr() else {
            return Err(Failed {
                call: "ibv_rereg_mr of a region that is gone".to_owned(),
                errno: EINVAL,
            });
        };
        let flags = match access {
            Some(_) => IBV_REREG_MR_CHANGE_ACCESS,
            None => ibv_rereg_mr_flags::empty(),
        };
        let access = access.unwrap_or(ibv_access_flags::empty());
        let (flags, access) = (flags.bits().cast_signed(), access.bits().cast_signed());
        // SAFETY: the region is registered and of this table; neither domain nor memory are given.
        let result = unsafe {
            (self.pd.device.verbs).rereg_mr(mr, flags, null_mut(), null_mut(), 0, access)
        };
        match result {
            0 => Ok(()),
            _ => Err(failed("ibv_rereg_mr")),
        }
    }

    /// Ends the registration; the memory stays. Nothing happens where it ended before.
    ///
    /// # Errors
    /// The call's errno, with the region still registered.
    pub fn deregister(&self) -> Result<(), Failed> {
        let Some(mr) = self.mr() else { return Ok(()) };
        // SAFETY: registered, and deregistered once: the flag goes with it. Requests that name the key afterwards are for
        // the device to refuse; the memory stays.
        let errno = unsafe { self.pd.device.verbs.dereg_mr(mr) };
        outcome("ibv_dereg_mr", errno)?;
        self.registered.set(false);
        Ok(())
    }

    /// The address of the byte at `offset`.
    #[must_use]
    pub fn address(&self, offset: usize) -> u64 {
        self.memory.as_ptr() as u64 + offset as u64
    }

    /// The keys, local and remote; 0 once it is deregistered.
    fn keys(&self) -> (u32, u32) {
        match self.mr() {
            // SAFETY: registered, so the object is alive; the numbers are copied out.
            Some(mr) => unsafe { ((*mr).lkey, (*mr).rkey) },
            None => (0, 0),
        }
    }

    /// The key for requests of this end; 0 once it is deregistered.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.keys().0
    }

    /// The key for peers; 0 once it is deregistered.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.keys().1
    }

    /// A scatter/gather entry for a part of it. Nothing is checked here: the device does that.
    #[must_use]
    pub fn sge(&self, offset: usize, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.address(offset),
            length: len as u32,
            lkey: self.lkey(),
        }
    }

    /// Entries for parts of it, each an offset and a length.
    #[must_use]
    pub fn sges(&self, parts: &[(usize, usize)]) -> Vec<ibv_sge> {
        parts.iter().map(|&(at, len)| self.sge(at, len)).collect()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Past the end.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(
            end.is_some_and(|end| end <= self.layout.size()),
            "past the end of a buffer"
        );
        let to = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: inside the allocation by the line above; `bytes` is a borrow, and this memory is never lent.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// A copy of `len` bytes at `offset`.
    ///
    /// # Panics
    /// Past the end.
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.layout.size()),
            "past the end of a buffer"
        );
        let mut bytes = vec![0; len];
        let from = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: inside the allocation by the lines above; `bytes` is our own, so they do not overlap.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            // A device may still touch the memory: it stays.
            return report(Err(error));
        }
        // SAFETY: allocated by `allocate` with this layout; no device knows it any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// A memory window.
#[derive(Debug)]
pub struct Window {
    pd: Rc<Pd>,
    mw: NonNull<ibv_mw>,
}

impl Window {
    /// Allocates one.
    ///
    /// # Errors
    /// The call's errno.
    pub fn new(pd: &Rc<Pd>, mw_type: ibv_mw_type) -> Result<Rc<Window>, Failed> {
        // SAFETY: the PD is alive until `pd` is dropped.
        let mw = unsafe { ops::ibv_alloc_mw(pd.pd.as_ptr(), mw_type) };
        let mw = NonNull::new(mw).ok_or_else(|| failed("ibv_alloc_mw"))?;
        let pd = Rc::clone(pd);
        Ok(Rc::new(Window { pd, mw }))
    }

    pub(super) fn mw(&self) -> *mut ibv_mw {
        self.mw.as_ptr()
    }

    /// Its key as the object has it.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is alive until the drop; the number is copied out.
        unsafe { (*self.mw()).rkey }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = &self.pd;
        // SAFETY: allocated once, freed here only; requests that named it have been posted, and a device refuses its key
        // from now on.
        let errno = unsafe { ops::ibv_dealloc_mw(self.mw()) };
        report(outcome("ibv_dealloc_mw", errno));
    }
}
