//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rdma_core_sys::{ibv_mr, ibv_pd};
use rdma_qp::{Access, CloseMrError, ClosePdError, Device, Memory, Mr, Pd};

use crate::device::qp_device;
use crate::errors::in_use;
use crate::export::{Array, Out, Raw, Room, export};
use crate::fault::*;
use crate::slots::{Held, Kind, Later, Object, insert};
use crate::values::qp_region;

/// A protection domain: regions and Queue Pairs of one can be used together. Any number of calls may be under way with it.
#[allow(non_camel_case_types)]
pub struct qp_pd {
    _never: [u8; 0],
}

/// A registered memory region. Any number of calls may be under way with it.
#[allow(non_camel_case_types)]
pub struct qp_mr {
    _never: [u8; 0],
}

// SAFETY: no other type has this kind.
unsafe impl Object for Pd {
    type C = qp_pd;
    const KIND: Kind = Kind::Pd;
}

// SAFETY: no other type has this kind.
unsafe impl Object for Mr {
    type C = qp_mr;
    const KIND: Kind = Kind::Mr;
}

/// The access flags of a region.
pub(crate) fn access(flags: c_int) -> Result<Access, Fault> {
    let bits = flags as u32;
    Access::from_bits(bits).ok_or_else(|| {
        let unknown = bits & !Access::all().bits();
        Fault::range(format!(
            "access {bits:#x} has bits that no region has: {unknown:#x}"
        ))
    })
}

export! {
    /// Allocates a protection domain.
    ///
    /// @param pd  Where the handle goes; destroy it with qp_pd_destroy().
    fn qp_pd_create(device: *mut qp_device as Held<Device>, pd: *mut *mut qp_pd as Out<'_, *mut qp_pd>) {
        pd.set(insert(device.alloc_pd()?)?);
        Ok(())
    }

    /// Gives the object of libibverbs that a protection domain is, as qp_device_raw().
    fn qp_pd_raw(pd: *mut qp_pd as Held<Pd>, raw: *mut *mut ibv_pd as Out<'_, *mut ibv_pd>) {
        raw.set(pd.as_ptr());
        Ok(())
    }

    /// Frees a protection domain.
    ///
    /// @return 0; EBUSY (QP_CODE_IN_USE): something of it is left, which qp_last_error() names, and it stays.
    fn qp_pd_destroy(pd: *mut qp_pd as Later<Pd>) {
        pd.destroy(|pd| {
            pd.close().map_err(|error| {
                let text = error.to_string();
                match error {
                    ClosePdError::Refused { pd, source } => (pd, Fault::of(QP_CODE_SYSTEM, source, &text)),
                    ClosePdError::Busy { pd, .. } => (pd, in_use(text)),
                    // There is no third.
                    _ => unreachable!("{text}"),
                }
            })
        })
    }

    /// Registers memory that the library allocates: zeroed, page-aligned. It is freed with the region.
    ///
    /// @param len     Bytes.
    /// @param access  Bits of enum ibv_access_flags: what the device may do for others. LOCAL_WRITE (1) is for receives and the
    ///                results of READ and atomics, and comes with REMOTE_WRITE (2) and REMOTE_ATOMIC (8); REMOTE_READ is 4.
    /// @param mr      Where the handle goes; destroy it with qp_mr_destroy().
    fn qp_mr_create(
        pd: *mut qp_pd as Held<Pd>,
        len: usize,
        access: c_int,
        mr: *mut *mut qp_mr as Out<'_, *mut qp_mr>,
    ) {
        let access = self::access(access)?;
        let memory = Memory::try_zeroed(len).ok_or_else(|| {
            Fault::new(QP_CODE_SYSTEM, libc::ENOMEM, format!("the system has no memory for {len} bytes"))
        })?;
        mr.set(insert(pd.register(memory, access)?)?);
        Ok(())
    }

    /// Registers memory of the program's.
    ///
    /// @param addr    The first byte. The memory stays the program's: it must be there until qp_mr_destroy() has returned 0.
    /// @param len     Bytes.
    /// @param access  As for qp_mr_create().
    /// @param mr      Where the handle goes; destroy it with qp_mr_destroy().
    fn qp_mr_register(
        pd: *mut qp_pd as Held<Pd>,
        addr: *mut c_void as Raw<c_void>,
        len: usize,
        access: c_int,
        mr: *mut *mut qp_mr as Out<'_, *mut qp_mr>,
    ) {
        let access = self::access(access)?;
        let start: NonNull<u8> = addr.0.cast();
        if len > isize::MAX as usize || start.addr().get().checked_add(len).is_none() {
            return Err(Fault::range(format!("{len} bytes from {start:p} on: no memory is so long")));
        }
        // SAFETY: the header asks for `len` bytes there until the region is destroyed, which gives them back, or refuses.
        let memory = unsafe { Memory::foreign(start, len) };
        mr.set(insert(pd.register(memory, access)?)?);
        Ok(())
    }

    /// Registers a part of a dma-buf: memory of a device, such as a GPU. Requests and peers use it as any other region; the process
    /// itself cannot read or write it by the handle.
    ///
    /// @param fd      The descriptor of the dma-buf. It may be closed afterwards.
    /// @param offset  First byte, counted from the start of the dma-buf.
    /// @param len     Bytes.
    /// @param iova    What requests and peers call the first byte; it must lie in its page as offset does in its own.
    /// @param access  As for qp_mr_create().
    /// @param mr      Where the handle goes; destroy it with qp_mr_destroy().
    /// @return 0; EOPNOTSUPP (QP_CODE_SYSTEM): the device, its library or the kernel has no such regions (rdma-core 34, Linux 5.12);
    ///         or what the device said.
    fn qp_mr_register_dmabuf(
        pd: *mut qp_pd as Held<Pd>,
        fd: c_int,
        offset: u64,
        len: usize,
        iova: u64,
        access: c_int,
        mr: *mut *mut qp_mr as Out<'_, *mut qp_mr>,
    ) {
        let access = self::access(access)?;
        if fd < 0 {
            return Err(Fault::range(format!("fd is {fd}, which is no descriptor")));
        }
        // SAFETY: the header asks for a descriptor that is open during the call; it is not -1.
        let buffer = unsafe { BorrowedFd::borrow_raw(fd) };
        mr.set(insert(pd.register_dmabuf(buffer, offset, len, iova, access)?.into_mr())?);
        Ok(())
    }

    /// Gives the address of a region's first byte. The program may read and write there at any time; what it finds while a device
    /// writes there is some mix of old and new bytes. Of a dma-buf it is iova, and no address of the process: do not read or write
    /// there.
    fn qp_mr_addr(mr: *mut qp_mr as Held<Mr>, addr: *mut *mut c_void as Out<'_, *mut c_void>) {
        // The memory was given to C: its provenance is exposed from here on.
        addr.set(std::ptr::with_exposed_provenance_mut(mr.addr() as usize));
        Ok(())
    }

    /// Tells how a peer names a region: give it to the peer.
    fn qp_mr_region(mr: *mut qp_mr as Held<Mr>, region: *mut qp_region as Out<'_, qp_region>) {
        region.set(mr.remote().into());
        Ok(())
    }

    /// Tells the key of a region for requests of this side that the program posts itself.
    fn qp_mr_lkey(mr: *mut qp_mr as Held<Mr>, lkey: *mut u32 as Out<'_, u32>) {
        lkey.set(mr.lkey());
        Ok(())
    }

    /// Gives the object of libibverbs that a region is, as qp_device_raw(). The program keeps the region until requests that
    /// it posts itself are done: the library does not know of them.
    fn qp_mr_raw(mr: *mut qp_mr as Held<Mr>, raw: *mut *mut ibv_mr as Out<'_, *mut ibv_mr>) {
        raw.set(mr.as_ptr());
        Ok(())
    }

    /// Copies bytes out of a region.
    ///
    /// @param offset  First byte, counted from the start of the region.
    /// @param into    Where they go; NULL if len is 0.
    /// @param len     Their number.
    /// @return 0; EINVAL (QP_CODE_RANGE): they are not all inside the region, or it is of a dma-buf.
    fn qp_mr_read(mr: *mut qp_mr as Held<Mr>, offset: usize, into: *mut u8 as Room<'_, u8>, len: usize) {
        // SAFETY: `len` is the length of `into`, says the header.
        let mut places = unsafe { into.of(len) }?;
        mr.slice(offset, len)?;
        let mut block = [0; 1024];
        for start in (0..len).step_by(block.len()) {
            let part = &mut block[..(len - start).min(1024)];
            mr.read_at(offset + start, part)?;
            places.fill_from(start, part);
        }
        Ok(())
    }

    /// Copies bytes into a region. Arguments and result as qp_mr_read().
    fn qp_mr_write(mr: *mut qp_mr as Held<Mr>, offset: usize, from: *const u8 as Array<'_, u8>, len: usize) {
        // SAFETY: `len` is the length of `from`, says the header.
        mr.write_at(offset, unsafe { from.of(len) }?)?;
        Ok(())
    }

    /// Deregisters a region; memory of the library's is freed, that of the program's may be from then on.
    ///
    /// @return 0; EBUSY (QP_CODE_IN_USE): requests may still use it, and qp_last_error() says of which queues: poll their CQs
    ///         until the requests are done, or destroy the Queue Pairs; or what the device said. The region stays then.
    fn qp_mr_destroy(mr: *mut qp_mr as Later<Mr>) {
        mr.destroy(|mr| match mr.close() {
            Ok(memory) => {
                drop(memory);
                Ok(())
            }
            Err(error) => {
                let text = error.to_string();
                let fault = match &error {
                    CloseMrError::Refused { source, .. } => Fault::of(QP_CODE_SYSTEM, *source, &text),
                    _ => in_use(text),
                };
                Err((error.into_mr(), fault))
            }
        })
    }
}
