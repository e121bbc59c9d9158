//! Memory regions and memory windows.

use rdma_core_sys::{IBV_ACCESS_OPTIONAL_RANGE, ibv_access_flags, ibv_mw_type};
use rustix::io::Errno;

use super::{count, within};
use crate::core::keys::MrKeys;
use crate::core::{CallError, Engine, PdId};
use crate::mem::Region;

/// Rights that a region may be registered with.
fn check_access(access: ibv_access_flags) -> Result<(), CallError> {
    use ibv_access_flags as A;
    let local = A::IBV_ACCESS_LOCAL_WRITE;
    let remote = A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_ATOMIC;
    // How the range is addressed is settled by `iova`; that its pages are huge is a hint.
    let known = local
        | remote
        | A::IBV_ACCESS_REMOTE_READ
        | A::IBV_ACCESS_MW_BIND
        | A::IBV_ACCESS_ZERO_BASED
        | A::IBV_ACCESS_HUGETLB
        | A::from_bits_retain(IBV_ACCESS_OPTIONAL_RANGE);
    let unknown = access.bits() & !known.bits();
    if unknown != 0 {
        return Err(CallError::invalid(format!(
            "access has bits that this device does not know: {unknown:#x}"
        )));
    }
    if access.intersects(remote) && !access.contains(local) {
        return Err(CallError::invalid(
            "IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE",
        ));
    }
    Ok(())
}

impl Engine {
    /// Registers memory. Requests address its first byte as `iova`.
    ///
    /// # Errors
    /// `EINVAL` for rights of peers to write without the local right to write (ibv_reg_mr(3)), for
    /// rights that this device does not have, and for a range that wraps; `ENOMEM` above the caps.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: ibv_access_flags,
    ) -> Result<MrKeys, CallError> {
        within(
            "max_mr",
            self.shared.keys.len(),
            self.shared.config.caps.max_mr,
        )?;
        self.check_region(pd, &region, iova)?;
        check_access(access)?;
        count(&mut self.pds, pd, 1);
        Ok(self.shared.keys.insert(pd, region, iova, access))
    }

    fn check_region(&self, pd: PdId, region: &Region, iova: u64) -> Result<(), CallError> {
        let max = self.shared.config.caps.max_mr_size;
        if region.len() > max {
            let why = format!("{} bytes: max_mr_size is {max}", region.len());
            return Err(CallError::invalid(why));
        }
        if iova.checked_add(region.len()).is_none() {
            return Err(CallError::invalid("the range wraps around"));
        }
        self.known_pd(Some(pd))
    }

    /// Changes a registration: its memory (with the address that requests use for its first byte),
    /// its domain, its rights, whichever is given. Its keys stay.
    ///
    /// # Errors
    /// As [`reg_mr`](Engine::reg_mr); `EBUSY` while a memory window is bound to it. Nothing was
    /// changed then.
    pub fn rereg_mr(
        &mut self,
        lkey: u32,
        memory: Option<(Region, u64)>,
        pd: Option<PdId>,
        access: Option<ibv_access_flags>,
    ) -> Result<(), CallError> {
        let mr = self.shared.keys.region(lkey).ok_or(Errno::INVAL)?;
        let (old, new) = (mr.pd, pd.unwrap_or(mr.pd));
        let access = access.unwrap_or(mr.access);
        let (region, iova) = memory.unwrap_or_else(|| (mr.region.clone(), mr.iova));
        self.check_region(new, &region, iova)?;
        check_access(access)?;
        self.free_of_windows(lkey)?;
        self.shared.keys.replace(lkey, new, region, iova, access);
        count(&mut self.pds, old, -1);
        count(&mut self.pds, new, 1);
        Ok(())
    }

    fn free_of_windows(&self, lkey: u32) -> Result<(), CallError> {
        let bound: Vec<_> = (self.shared.keys.windows_on(lkey))
            .map(|k| format!("{k:#x}"))
            .collect();
        if bound.is_empty() {
            return Ok(());
        }
        Err(CallError::busy(format!(
            "memory windows are bound to the region: rkey {}; invalidate them and poll the completion first",
            bound.join(", ")
        )))
    }

    /// Ends a registration: after it returns, nothing touches the memory.
    ///
    /// # Errors
    /// `EBUSY` while a memory window is bound to it: it is until the completion of the request that
    /// invalidates it was reported.
    pub fn dereg_mr(&mut self, lkey: u32) -> Result<(), CallError> {
        self.free_of_windows(lkey)?;
        let pd = self.shared.keys.remove(lkey).ok_or(Errno::INVAL)?;
        count(&mut self.pds, pd, -1);
        Ok(())
    }

    /// A new memory window, bound to nothing. Gives its key.
    ///
    /// # Errors
    /// `EINVAL` for an unknown type, `ENOMEM` above [`max_mw`](crate::core::config::Caps::max_mw).
    pub fn alloc_mw(&mut self, pd: PdId, kind: ibv_mw_type) -> Result<u32, CallError> {
        self.known_pd(Some(pd))?;
        if !matches!(
            kind,
            ibv_mw_type::IBV_MW_TYPE_1 | ibv_mw_type::IBV_MW_TYPE_2
        ) {
            return Err(CallError::invalid(format!(
                "type {}: a window is of type 1 or 2",
                kind.0
            )));
        }
        let (have, max) = (self.shared.keys.windows(), self.shared.config.caps.max_mw);
        within("max_mw", have, max)?;
        count(&mut self.pds, pd, 1);
        Ok(self.shared.keys.insert_window(pd, kind))
    }

    /// The key that a bind of this window of type 1 gives it, to be passed with the bind request
    /// (ibv_bind_mw(3)). `EINVAL` for a window of type 2, whose keys the application chooses, and for
    /// one that there is not.
    pub fn next_window_key(&mut self, rkey: u32) -> Result<u32, CallError> {
        self.shared.keys.next_window_key(rkey)
    }

    /// A window's key as it is now, by any key that it had.
    pub fn window_key(&self, rkey: u32) -> Option<u32> {
        self.shared.keys.window_key(rkey)
    }

    /// Frees a memory window, bound or not, by any key that it had.
    pub fn dealloc_mw(&mut self, rkey: u32) -> Result<(), CallError> {
        let pd = self.shared.keys.remove_window(rkey).ok_or(Errno::INVAL)?;
        count(&mut self.pds, pd, -1);
        Ok(())
    }
}
