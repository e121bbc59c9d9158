//! Regions whose memory is a device's, behind a dma-buf: of a GPU, for instance.

use std::fmt;
use std::os::fd::BorrowedFd;

use crate::endpoint::RemoteRegion;
use crate::errno::Errno;
use crate::mr::{Mr, MrSlice, OutOfRegion};
use crate::pd::{Access, Pd};
use crate::raw::pd::{Holder, Reclaim};
use crate::raw::region::OwnedRegion;

/// Memory behind a dma-buf could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} did not register {len} bytes from {offset:#x} of a dma-buf with {access:?}: {source}{}", hint(*.source))]
pub struct DmabufError {
    /// The device.
    pub device: String,
    /// The first byte, counted from the start of the dma-buf.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// The access asked for.
    pub access: Access,
    /// What the library said.
    #[source]
    pub source: Errno,
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EOPNOTSUPP => {
            "; it, its library or the kernel has no such regions (rdma-core 34, Linux 5.12)"
        }
        _ => "",
    }
}

/// A region of a dma-buf was not deregistered. It is inside the error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseDmabufError {
    /// Queues may still use it.
    #[error("the region is still held by {}", .holders.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Held {
        /// The region.
        mr: DmabufMr,
        /// The queues.
        holders: Vec<Holder>,
    },
    /// The library refused.
    #[error("the region could not be deregistered: {source}")]
    Refused {
        /// The region.
        mr: DmabufMr,
        /// What the library said.
        source: Errno,
    },
}

/// A registered part of a dma-buf. Its bytes are not the process's: requests name them, and nothing else here reads them.
///
/// Dropping it is as with [`Mr`](crate::Mr): it stays registered until no request can use it.
pub struct DmabufMr {
    owned: OwnedRegion,
}

impl Pd {
    /// Registers `len` bytes from `offset` of a dma-buf (`ibv_reg_dmabuf_mr(3)`). Requests and peers call the first of them
    /// `iova`, which must lie in its page as `offset` does in its own.
    ///
    /// # Errors
    /// The device, its library or the kernel cannot do this, or refused.
    pub fn register_dmabuf(
        &self,
        buffer: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<DmabufMr, DmabufError> {
        let region = self
            .handle()
            .register_dmabuf(buffer, offset, len, iova, access.for_region());
        match region {
            Ok(region) => Ok(DmabufMr {
                owned: OwnedRegion::new(region, self.handle().clone()),
            }),
            Err(source) => Err(DmabufError {
                device: self.device().to_owned(),
                offset,
                len,
                access,
                source,
            }),
        }
    }
}

impl DmabufMr {
    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.owned.region().len()
    }

    /// Key for requests of this side.
    pub fn lkey(&self) -> u32 {
        self.owned.region().lkey
    }

    /// How a peer names it: tell the peer this.
    pub fn remote(&self) -> RemoteRegion {
        let region = self.owned.region();
        RemoteRegion {
            addr: region.addr(),
            len: region.len() as u64,
            rkey: region.rkey,
        }
    }

    /// The `len` bytes from `offset`, for a post call.
    ///
    /// # Errors
    /// They are not all inside the region.
    pub fn slice(&self, offset: usize, len: usize) -> Result<MrSlice<'_>, OutOfRegion> {
        let region = self.owned.region();
        let outside = OutOfRegion {
            offset,
            len,
            region: region.len(),
        };
        let local = region.slice(offset, len).ok_or(outside)?;
        Ok(MrSlice::from_local(local))
    }

    /// The region as any other, for who has regions of both kinds. Nobody can read or write its bytes through it: for
    /// [`Mr::read_at`] and its like it has none, and [`Mr::addr`] is what requests call the first one.
    pub fn into_mr(self) -> Mr {
        Mr::of(self.owned)
    }

    /// Deregisters the region and says whether that worked.
    ///
    /// # Errors
    /// Requests that are under way may use it, or the library refused. The region is in the error.
    pub fn close(self) -> Result<(), CloseDmabufError> {
        match self.owned.reclaim() {
            Ok(_) => Ok(()),
            Err((Reclaim::Held(holders), owned)) => Err(CloseDmabufError::Held {
                mr: DmabufMr { owned },
                holders,
            }),
            Err((Reclaim::Refused(source), owned)) => Err(CloseDmabufError::Refused {
                mr: DmabufMr { owned },
                source,
            }),
        }
    }
}

impl fmt::Debug for DmabufMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remote = self.remote();
        write!(
            f,
            "DmabufMr({} bytes at {:#x}, rkey {:#x})",
            remote.len, remote.addr, remote.rkey
        )
    }
}
